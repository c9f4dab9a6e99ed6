"""How specswitch and its peers behave when things go wrong, in numbers.

    python -m bench.reliability --help

`__main__` runs measures, interleaved over targets and rounds, and prints medians. A measure is one
function that takes a started target and its two engines and returns numbers:

    leaving    a client goes: how soon is its engine's connection closed?
    slow       clients that do not read or dribble: what do they cost, and whom do they slow down?
    failover   an engine dies: what does the next request pay, and what is lost?
    draining   SIGTERM under load: what is cut, what is refused, when is it over?

`targets` starts what is measured, `peers` installs those that are not ours, `asking` is the client.
The engines are those of the soak (tests/soak/engine.py): processes that do what a request asks.
"""
