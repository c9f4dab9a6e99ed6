"""WebSockets through specswitch: what both sides see of each other, and what is counted."""

import asyncio
import os
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.typing import Subprotocol

from tests.harness.running import Rig, rig
from tests.harness.tunnels import PATH, dialled, echo, opened, served

MEBIBYTE = 1 << 20


def counted(it: Rig, outcome: str, upstream: str = "base") -> float:
    """How many tunnels have ended so."""
    return it.metric("requests_total", endpoint=PATH, outcome=outcome, upstream=upstream)


async def test_what_is_said_is_heard() -> None:
    """Text, bytes and fragments; by base, since a tunnel is no load."""
    async with rig() as it, served(it, echo):
        async with dialled(it) as socket:
            response = socket.response
            assert response is not None
            assert response.status_code == 101
            assert response.headers["x-specswitch-upstream"] == "base"
            assert response.headers["x-specswitch-reason"] == "mode"
            assert response.headers["x-request-id"]
            assert it.metric("open_requests") == 1
            assert it.total("in_flight") == 0
            for said in ("hello", b"\0\xff", "ünï"):
                await socket.send(said)
                assert await socket.recv() == said
            await socket.send(iter(["in ", "three ", "parts"]))
            assert await socket.recv() == "in three parts"
            await (await socket.ping(b"still there?"))
        await it.until(lambda: counted(it, "ok") == 1, "it has ended well")
        assert it.metric("responses_total", upstream="base", code="101") == 1
        assert it.metric("open_requests") == 0
        assert not it.spec.requests


async def test_subprotocol_query_and_headers_arrive() -> None:
    """The engine sees what was asked for, and its choice comes back."""
    seen: list[tuple[str, str | None, str | None]] = []

    async def note(connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        seen.append((request.path, connection.subprotocol, request.headers.get("x-mine")))

    async with rig() as it, served(it, note, subprotocols=["realtime", "other"]):
        ours = dialled(
            it,
            f"{PATH}?model=tiny&intent=transcription",
            subprotocols=[Subprotocol("realtime")],
            additional_headers={"x-mine": "1", "x-request-id": "asked-for"},
        )
        async with ours as socket:
            assert socket.subprotocol == "realtime"
            assert socket.response is not None
            assert socket.response.headers["x-request-id"] == "asked-for"
        assert seen == [(f"{PATH}?model=tiny&intent=transcription", "realtime", "1")]


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, ""), (1001, "going"), (1008, "no"), (4000, "ours"), (4999, "ü")]
)
@pytest.mark.parametrize("who", ["engine", "client"])
async def test_close_codes_are_kept(who: str, code: int, reason: str) -> None:
    """Whoever closes, the other hears with which code and why."""
    heard: asyncio.Queue[tuple[int, str]] = asyncio.Queue()

    async def close_or_wait(connection: ServerConnection) -> None:
        if who == "engine":
            await connection.close(code, reason)
        else:
            await connection.wait_closed()
            heard.put_nowait((connection.close_code or 0, connection.close_reason or ""))

    async with rig() as it, served(it, close_or_wait):
        async with dialled(it) as socket:
            if who == "client":
                await socket.close(code, reason)
                assert await asyncio.wait_for(heard.get(), 5) == (code, reason)
            else:
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, reason)
        await it.until(lambda: counted(it, "ok") == 1, "it has ended well")


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_large_messages(compression: str | None) -> None:
    """8 MiB each way, compressed or not, without a frame being looked at."""
    settings: dict[str, Any] = {"max_size": None, "compression": compression}
    async with rig() as it, served(it, echo, **settings), dialled(it, **settings) as socket:
        if compression:
            assert socket.response is not None
            extensions = socket.response.headers["sec-websocket-extensions"]
            assert "permessage-deflate" in extensions
        said = os.urandom(MEBIBYTE) * 8
        await socket.send(said)
        assert await asyncio.wait_for(socket.recv(), 30) == said


async def test_bytes_pass_as_they_came() -> None:
    """No frame is parsed: what is no WebSocket at all passes as well, both ways."""
    async with rig() as it:
        client, request = await opened(it)
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        request.say(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
        assert (
            await client.reader.readexactly(38) == b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"
        )
        await it.until(lambda: request.came == b"GET / HTTP/1.1\r\n\r\n", "the engine has it")


async def test_an_engine_that_vanishes_is_heard_as_such() -> None:
    """No close frame is made up: the client sees 1006, which says that there was none."""

    async def vanish(connection: ServerConnection) -> None:
        connection.transport.abort()

    async with rig() as it, served(it, vanish), dialled(it) as socket:
        with pytest.raises(ConnectionClosedError) as closed:
            await socket.recv()
        assert closed.value.rcvd is None
