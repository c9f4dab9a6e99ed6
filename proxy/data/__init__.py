"""Moves bytes, and decides nothing.

reader       a client's bytes to requests; no I/O
exchange     one request's life as a state machine: events in, commands out; no I/O
events       those events and commands
relay        runs one exchange's commands between a client and an engine
downstream   the asyncio protocol facing the client
upstream     the asyncio protocol facing an engine, and its pool of kept connections
response     an engine's response head, and what follows from it
front        what all client connections share
ledger       what is noted of a request, and the record it becomes
own          answers of our own as bytes
settings     the values that all of it is set to
"""
