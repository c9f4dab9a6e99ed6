"""An engine's container is paused, killed, cut off: what docs/operations.md says then happens."""

import pytest

from tests.deploy.docker.stack import Stack
from tests.deploy.docker.traffic import Clients, ask, served_by

EJECTED_SECONDS = 90.0
"""Three probes of 5 s each with 2 s between, on a slow machine."""


@pytest.fixture(autouse=True)
def as_it_was(stack: Stack) -> None:
    """Each test begins with both engines in service."""
    stack.settled()


def out(stack: Stack, name: str) -> None:
    """Wait until specswitch sends an engine nothing any more."""
    stack.until(lambda: stack.health(name) == "ejected", f"{name} is ejected", EJECTED_SECONDS)


def back(stack: Stack, name: str) -> None:
    """Wait until it is in use again."""
    stack.until(lambda: stack.health(name) == "healthy", f"{name} is back", EJECTED_SECONDS)


def test_paused(stack: Stack) -> None:
    """Connections stand and nothing comes: probes fail, base serves; it comes back by itself."""
    stack.compose("pause", "spec")
    try:
        out(stack, "spec")
        assert served_by(ask(stack)) == (200, "base", "health")
    finally:
        stack.compose("unpause", "spec")
    stack.settled()
    stack.until(lambda: served_by(ask(stack)) == (200, "spec", "mode"), "spec serves again")


async def test_killed_under_streams(stack: Stack) -> None:
    """Streams at it break off and never look finished; whoever comes next is served by base."""
    stack.control("spec")
    async with Clients(stack, tokens=2000, count=3) as clients:
        await clients.begun()
        assert {stream.upstream for stream in clients.streams} == {"spec"}
        stack.compose("kill", "spec")
        assert served_by(ask(stack))[:2] == (200, "base")
        await clients.ended()
    for stream in clients.streams:
        assert stream.errors == ["upstream_reset"]
        assert stream.broken
        assert "data: [DONE]" not in stream.lines
    out(stack, "spec")
    stack.compose("start", "spec")
    back(stack, "spec")


def test_cut_off_from_the_network(stack: Stack) -> None:
    """Neither its name nor its address leads anywhere: base serves, and it is found again."""
    container = stack.container("spec")
    stack.engine.run("network", "disconnect", stack.network, container)
    try:
        out(stack, "spec")
        assert served_by(ask(stack)) == (200, "base", "health")
    finally:
        stack.engine.run("network", "connect", "--alias", "spec", stack.network, container)
    back(stack, "spec")


def test_both_stopped(stack: Stack) -> None:
    """Nobody is left: requests wait a while and are refused by name; then all goes on."""
    stack.compose("stop", "--timeout", "5", "spec", "base")
    out(stack, "spec")
    out(stack, "base")
    answer = ask(stack)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_upstream")
    assert int(answer.headers["retry-after"]) > 0
    stack.compose("start", "spec", "base")
    back(stack, "base")
    assert ask(stack).status_code == 200
