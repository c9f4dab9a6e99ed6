"""The listening sockets while descriptors run out: nobody is taken, nobody is lost, it is said."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from proxy.data import listener
from proxy.data.listener import Listener
from tests.harness.client import RawClient
from tests.harness.running import until
from tests.harness.wire import Wire


class Echo(asyncio.Protocol):
    """Says that it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say so."""
        said = cast("asyncio.Transport", transport)
        said.write(b"here")
        said.close()


class Free:
    """How many descriptors are free."""

    def __init__(self) -> None:
        self.count = 1000

    def __call__(self, count: int) -> bool:
        """Whether these are."""
        return self.count >= count


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """As many as the test says."""
    made = Free()
    monkeypatch.setattr(listener, "descriptors_are_free", made)
    return made


@pytest.fixture
async def listening(free: Free) -> AsyncIterator[Listener]:
    """One that listens on loopback."""
    made = Listener(Wire().front, Echo)
    await made.listen("127.0.0.1", 0)
    yield made
    made.close()


async def is_taken(client: RawClient) -> bool:
    """Whether the client is spoken to."""
    async with asyncio.timeout(5):
        return await client.reader.read(10) == b"here"


async def test_it_waits_and_goes_on(listening: Listener, free: Free) -> None:
    """Without a descriptor clients wait in the kernel's queue; with some they are all taken."""
    port = listening.port
    free.count = 0
    await listening.look(1.0)
    assert listening.paused is True
    async with await RawClient.connect(port) as first, await RawClient.connect(port) as second:
        enough = listener.RESUME_FREE + listener.AT_ONCE
        free.count = enough - 1
        await listening.look(1.25)
        assert listening.paused
        free.count = enough
        await listening.look(1.5)
        assert len(listening._servers) == listener.AT_ONCE
        assert await is_taken(first)
        assert await is_taken(second)
    assert listening.port == port


async def test_somebody_else_is_faster(
    listening: Listener, free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that is gone again by the time it is needed is waited for again."""
    free.count = 0
    await listening.look(1.0)
    free.count = 1000
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(socket.socket, "dup", _gone)
        await listening.look(1.25)
    assert listening.paused
    await listening.look(1.5)
    async with await RawClient.connect(listening.port) as client:
        assert await is_taken(client)


async def test_it_is_said_once_a_second(
    listening: Listener, free: Free, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a second at most, and none once it is over; no refused request goes unsaid."""
    front = listening._front
    free.count = 0
    for step in range(9):  # two seconds
        front.connects_without_descriptor += 1
        await listening.look(10.0 + step / 4)
    free.count = 1000
    await listening.look(12.25)
    await listening.look(20.0)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(lines) == 3
    assert all(line.startswith("out of file descriptors, of which ") for line in lines)
    assert "new clients have to wait; 1 requests were refused" in lines[0]
    assert [int(line.split("; ")[1].split(" ")[0]) for line in lines] == [1, 4, 4]


async def test_requests_alone_are_said_too(
    listening: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """A shortage that was over before it was looked for has left its mark on requests."""
    listening._front.connects_without_descriptor = 2
    await listening.look(10.0)
    await listening.look(11.0)
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == [
        "new clients are taken; 2 requests were refused for want of a connection to their engine"
    ]


async def test_its_port_is_free_afterwards(free: Free) -> None:
    """Closed while it waits or not, nobody listens any more."""
    for count in (1000, 0):
        made = Listener(Wire().front, Echo)
        await made.listen("127.0.0.1", 0)
        port = made.port
        free.count = count
        await made.look(1.0)
        made.close()
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(port)


async def test_a_start_without_descriptors_leaves_nothing(
    free: Free, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not all of its servers can be made, none listens."""
    made = Listener(Wire().front, Echo)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(socket.socket, "dup", _gone)
        with pytest.raises(OSError, match="Too many open files"):
            await made.listen("127.0.0.1", 0)
    assert free.count
    assert made.paused
    assert all(each.fileno() == -1 for each in made._sockets)


def _gone(_self: socket.socket) -> socket.socket:
    raise OSError(24, "Too many open files")


async def test_those_behind_the_first_are_taken_with_it(listening: Listener) -> None:
    """Of many that come at once nobody waits for as many turns of the loop as there are others."""
    clients = [socket.create_connection(("127.0.0.1", listening.port)) for _ in range(60)]
    turns = 0
    while not all(_is_spoken_to(client) for client in clients):
        turns += 1
        await asyncio.sleep(0)
    for client in clients:
        client.close()

    assert turns < len(clients) // 2


def _is_spoken_to(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(10, socket.MSG_PEEK) == b"here"
    except BlockingIOError:
        return False


async def test_its_end_takes_those_in_the_queue(listening: Listener, free: Free) -> None:
    """The loop has not seen them yet; whoever comes later is refused, whatever descriptors say."""
    port = listening.port
    free.count = 0
    await listening.look(0.0)
    assert listening.paused
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]

    await listening.stop()

    with pytest.raises(ConnectionRefusedError):
        await RawClient.connect(port)
    await until(lambda: all(_is_spoken_to(each) for each in clients), "all are taken")
    for client in clients:
        client.close()
    free.count = 0
    await listening.look(1.0)
    free.count = 1000
    await listening.look(2.0)
    assert listening.paused


async def test_its_end_lets_nobody_new_into_the_queue(listening: Listener) -> None:
    """Who comes while it is emptied is not connected, only to be reset, but refused."""
    async with asyncio.TaskGroup() as group:
        group.create_task(listening.stop())
        await asyncio.sleep(0)

        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(listening.port)

    assert listening.paused
