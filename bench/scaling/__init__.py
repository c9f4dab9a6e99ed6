"""One pair to 64 behind a router, in simulation: what the rule that spreads requests is worth.

Each pair has the controller of its own, unchanged, on a simulated GPU (`proxy/sim/fleet.py`).
"""
