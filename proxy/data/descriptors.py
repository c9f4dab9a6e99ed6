"""File descriptors: every connection takes one, and there is a limit to them.

Running out is our own trouble, never an engine's: it must be told apart from one, and best not come
about. So the limit is raised at start as far as it can be, and where that is not enough fewer
clients are served, each of which is told so; see `provide`.
"""

import errno
import resource
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

RESERVE: Final = 128
"""Descriptors for all that is no client of the endpoint: its listener (17 for each address), log,
probes, name servers (64), the admin listener's clients (64)."""

MOST_TOLD: Final = 1024
"""Clients over the limit that are told so at one time, each for a second at most; whoever comes on
top of them is closed without a word. Where descriptors are few, an eighth of them."""

_NONE_FREE: Final = frozenset({errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True, slots=True)
class Provision:
    """What there is, and for how many clients it suffices."""

    limit: int
    """Descriptors that this process may have."""
    needed: int
    """Descriptors that the configured number of clients needs."""
    told: int
    """Clients over the limit that may be told so at one time."""
    clients: int
    """How many clients there are enough for, with one for an engine each; at least 1."""

    @property
    def suffices(self) -> bool:
        """Whether every client that the configuration allows can be served."""
        return self.limit >= self.needed

    def shortage(self, max_connections: int) -> str:
        """What an operator is told where it does not suffice for so many clients."""
        return (
            f"file descriptors: {self.limit} are allowed and limits.max_connections = "
            f"{max_connections} needs {self.needed}, so no more than {self.clients} clients are "
            f"served at a time; raise the limit (ulimit -n {self.needed}, with systemd "
            f"LimitNOFILE={self.needed}, in compose ulimits: nofile: {self.needed}) or lower "
            "limits.max_connections"
        )


def provide(max_connections: int) -> Provision:
    """Raise the limit of this process as far as `max_connections` clients need and it can be."""
    needed = 2 * max_connections + RESERVE + MOST_TOLD
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # RLIM_INFINITY is negative
        soft = needed if hard < 0 else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = _number(soft)
    told = min(MOST_TOLD, limit // 8)
    return Provision(limit, needed, told, max(1, (limit - RESERVE - told) // 2))


def descriptor_limit() -> int:
    """Descriptors that this process may have now."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _number(limit: int) -> int:
    return sys.maxsize if limit < 0 else limit


def descriptors_ran_out(error: OSError) -> bool:
    """Whether a connection failed because there was no descriptor for it.

    Looking up a name needs some too, and its failure does not say so: then it is tried whether
    there is one.
    """
    if isinstance(error, socket.gaierror):
        return not descriptors_are_free(1)
    return error.errno in _NONE_FREE


def descriptors_are_free(count: int) -> bool:
    """Whether `count` more sockets can be opened, now."""
    with ExitStack() as opened:
        try:
            for _ in range(count):
                opened.enter_context(socket.socket())
        except OSError:
            return False
    return True
