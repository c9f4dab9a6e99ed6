"""How the admin listener ends: at once, after what runs, and in spite of what does not end."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.control import admin
from proxy.control.admin import AdminServer
from tests.harness.running import until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n{"
CUT = ["cut 1 admin connections that did not end"]


class Slow:
    """An application that answers when it is told to, and does not look who is still there."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.answer = asyncio.Event()
        self.cancelled = False

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer when told."""
        self.began.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            return
        await _answer(send)


class Reading:
    """An application that answers once it has the whole body."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.disconnected = False

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a body that is whole."""
        while True:
            message = await receive()
            self.began.set()
            if message["type"] == "http.disconnect":
                self.disconnected = True
                return
            if not message.get("more_body"):
                await _answer(send)
                return


async def _answer(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[AdminServer]:
    """A listener with `app` behind it; closed at the latest here, or the loop would never end."""
    server = AdminServer(app, "127.0.0.1", 0)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def connected(server: AdminServer) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """A client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    yield reader, writer
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_nothing_to_wait_for_is_not_waited_for() -> None:
    """By itself uvicorn would pause for a tenth of a second, twice."""
    async with listening(Slow()) as server:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await server.close()
        assert loop.time() - before < 0.09


async def test_idle_clients_do_not_keep_it(caplog: pytest.LogCaptureFixture) -> None:
    """A scraper between two requests, and one that has not asked for anything yet."""
    app = Slow()
    app.answer.set()
    async with (
        listening(app) as server,
        connected(server) as (reader, writer),
        connected(server) as (silent, _),
    ):
        writer.write(GET)
        assert await reader.readuntil(b"\r\n\r\n")
        await server.close()
        assert await reader.read() == b""
        assert await silent.read() == b""
    assert not caplog.records


async def test_what_runs_is_answered_first() -> None:
    """A request that has begun has its time, and its connection closes after it."""
    app = Slow()
    async with listening(app) as server, connected(server) as (reader, writer):
        writer.write(GET)
        await app.began.wait()
        closing = asyncio.get_running_loop().create_task(server.close())
        await asyncio.wait({closing}, timeout=0.05)
        assert not closing.done()
        app.answer.set()
        await closing
        assert (await reader.read()).startswith(b"HTTP/1.1 204 ")


async def test_half_a_request_is_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who does not send the rest does not keep it; the application sees a client that left."""
    monkeypatch.setattr(admin, "_CLOSE_SECONDS", 0.05)
    app = Reading()
    async with listening(app) as server, connected(server) as (reader, writer):
        writer.write(HALF)
        await app.began.wait()
        await server.close()
        assert app.disconnected
        with suppress(ConnectionError):
            assert await reader.read() == b""
    assert [record.getMessage() for record in caplog.records] == CUT


async def test_what_does_not_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that does not look whether its client is there is ended all the same."""
    monkeypatch.setattr(admin, "_CLOSE_SECONDS", 0.02)
    monkeypatch.setattr(admin, "_CUT_SECONDS", 0.05)
    app = Slow()
    async with listening(app) as server, connected(server) as (_, writer):
        writer.write(GET)
        await app.began.wait()
        await server.close()
        assert app.cancelled
        assert not server._server.server_state.tasks
    assert CUT[0] in [record.getMessage() for record in caplog.records]


async def test_the_date_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once for many answers, and must not stay what it was at the start."""
    monkeypatch.setattr(admin, "_DATE_SECONDS", 0.01)
    async with listening(Slow()) as server:
        server._server.server_state.default_headers = []
        await until(lambda: bool(server._server.server_state.default_headers), "there is a Date")
