"""File descriptors: how many are needed, and when they have run out. The limits are lent."""

import errno
import resource
import socket
import sys

import pytest

from proxy.data import descriptors
from proxy.data.descriptors import (
    MOST_TOLD,
    RESERVE,
    Provision,
    descriptor_limit,
    descriptors_are_free,
    descriptors_ran_out,
    provide,
)


class Lent:
    """A limit that is not this process's."""

    def __init__(self, soft: int, hard: int) -> None:
        self.soft, self.hard = soft, hard

    def get(self, _which: int) -> tuple[int, int]:
        """What it is."""
        return self.soft, self.hard

    def put(self, _which: int, limits: tuple[int, int]) -> None:
        """Change it."""
        self.soft, self.hard = limits


NO_LIMIT = resource.RLIM_INFINITY
NEEDED = 2 * 100 + RESERVE + MOST_TOLD


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "clients"),
    [
        (2048, 4096, 2048, None),
        (256, 4096, NEEDED, None),
        (256, NO_LIMIT, NEEDED, None),
        (NO_LIMIT, NO_LIMIT, NO_LIMIT, None),
        (261, 261, 261, 50),
        (200, 261, 261, 50),
        (64, 64, 64, 1),
    ],
)
def test_the_limit_is_raised_as_far_as_is_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int, clients: int | None
) -> None:
    """Not lowered, not above what is needed or allowed; where it is too low fewer are served."""
    lent = Lent(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", lent.get)
    monkeypatch.setattr(resource, "setrlimit", lent.put)
    there = provide(100)
    assert lent.soft == raised
    assert lent.hard == hard
    assert there.needed == NEEDED
    assert there.told == min(MOST_TOLD, descriptor_limit() // 8)
    assert there.suffices is (clients is None)
    assert there.clients >= 100 if clients is None else there.clients == clients
    assert descriptor_limit() == (sys.maxsize if raised == NO_LIMIT else raised)


def test_exactly_enough() -> None:
    """The border belongs to those who have enough."""
    assert Provision(328, 328, 1, 100).suffices
    assert not Provision(327, 328, 1, 99).suffices


def test_a_shortage_says_how_many_clients_there_are_for() -> None:
    """And what to set, in the words of each way of starting it."""
    told = Provision(327, 328, 1, 99).shortage(100)
    assert "327 are allowed and limits.max_connections = 100 needs 328" in told
    assert "no more than 99 clients are served" in told
    assert told.count("328") == 4


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
        (OSError("Multiple exceptions"), False),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
    ],
)
def test_what_running_out_looks_like(error: OSError, *, ran_out: bool) -> None:
    """Two codes, of this process and of the machine; a name that is not found is something else."""
    assert descriptors_ran_out(error) is ran_out


def test_a_name_that_is_not_found_for_want_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver does not say why it failed, so it is tried whether there is one."""
    monkeypatch.setattr(descriptors, "descriptors_are_free", lambda count: count == 0)
    assert descriptors_ran_out(socket.gaierror(socket.EAI_AGAIN, "Temporary failure"))


def test_whether_some_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried, and what was opened for it is closed."""
    opened: list[socket.socket] = []

    def limited() -> socket.socket:
        if len(opened) >= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(real())
        return opened[-1]

    real = socket.socket
    monkeypatch.setattr(socket, "socket", limited)
    assert descriptors_are_free(3)
    opened.clear()
    assert not descriptors_are_free(4)
    assert [each.fileno() for each in opened] == [-1] * 3
