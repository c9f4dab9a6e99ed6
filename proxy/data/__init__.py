"""Moves bytes, and decides nothing: an exchange between two asyncio protocols."""
