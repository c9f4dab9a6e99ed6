"""Decides, and does no I/O: values, pure functions, and classes whose methods take `now`."""
