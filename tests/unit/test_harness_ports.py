"""Ports for programs that are started later: nobody may get one in between."""

import socket

import pytest

from tests.harness import process
from tests.harness.process import free_port, ports


def test_a_port_is_not_one_that_the_kernel_gives() -> None:
    """A connection, or a listener on port 0, would take it meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert probe.getsockname()[1] not in ports()
    assert free_port() in ports()


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one on which somebody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        used = taken.getsockname()[1]
        few = (used, *sorted(free_port() for _ in range(3)))
        monkeypatch.setattr(process, "_given", set())
        monkeypatch.setattr(process, "ports", lambda: few)
        assert sorted(free_port() for _ in few[1:]) == list(few[1:])
