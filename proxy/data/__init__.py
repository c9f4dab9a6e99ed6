"""Moves bytes, and decides nothing.

listener     the listening sockets, and who is taken when descriptors run short
tls          TLS between a client's socket and its connection
downstream   the asyncio protocol facing the client
reader       a client's bytes to requests; no I/O
exchange     one request's life as a state machine: events in, commands out; no I/O
events       those events and commands
relay        runs one exchange's commands between a client and an engine
pool         the connections to one upstream: kept, in use, being made
upstream     the asyncio protocol facing an engine
response     an engine's response head, and what follows from it
outbox       what is written in one turn of the loop, all at its end
lane         large bodies are looked into one a turn
front        what all client connections share
ledger       what is noted of a request, and the record it becomes
own          answers of our own as bytes
settings     the values that all of it is set to
descriptors  file descriptors: how many there are, and whether they ran out
"""
