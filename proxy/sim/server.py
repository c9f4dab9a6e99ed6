"""The simulated pair as two HTTP servers on one simulated GPU, with the shapes of SGLang 0.5.23.

Plain asyncio protocols around `clockwork.py`; there is no task for a request. A client that leaves
aborts its sequences at once, where a real SGLang takes up to four seconds for a request that is not
streamed, and a health check answers without generating a token.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from types import TracebackType
from typing import Final, Self, cast

import httptools

from proxy.core.words import UpstreamName
from proxy.sim import replies
from proxy.sim.asks import BodyError, Shape
from proxy.sim.clockwork import Clockwork, Exchange
from proxy.sim.desk import Desk
from proxy.sim.engine import Load
from proxy.sim.gpu import Gpu
from proxy.sim.options import PairOptions
from proxy.sim.wire import (
    CONTINUE,
    LAST_CHUNK,
    Answer,
    Request,
    answer_bytes,
    chunk,
    json_answer,
    stream_head,
)

_BACKLOG: Final = 2048
"""uvicorn's default, under which SGLang listens."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing sends a reset."""


class SimulatedPair:
    """Both servers: `start` them, or use the pair as a context; `close` leaves nothing behind.

    One engine can be taken down with `stop` and brought back on its port with `restart`.
    """

    def __init__(self, options: PairOptions | None = None) -> None:
        self._options = options or PairOptions()
        self._servers: dict[UpstreamName, _Server] = {}
        self._clockwork: Clockwork | None = None

    async def start(self) -> None:
        """Listen; raises OSError if a port is taken."""
        options = self._options
        gpu = Gpu(
            options.profile,
            options.limits,
            contention=options.contention,
            random=Random(options.seed),  # noqa: S311  a simulation that can be repeated
        )
        self._clockwork = Clockwork(
            gpu,
            asyncio.get_running_loop(),
            scale=options.time_scale,
            wall=datetime.now(UTC).timestamp(),
        )
        self._servers = {
            name: _Server(Desk(name, options, self._clockwork)) for name in options.names
        }
        try:
            for server in self._servers.values():
                await server.listen()
        except BaseException:  # a cancelled start must not leave a listener either
            await self.close()
            raise

    async def close(self) -> None:
        """Cut every connection and stop the clock."""
        for server in self._servers.values():
            await server.die()
        if self._clockwork is not None:
            self._clockwork.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def urls(self) -> Mapping[UpstreamName, str]:
        """Where each engine that is there listens, without a path."""
        return {name: server.desk.url for name, server in self._servers.items()}

    @property
    def spec_url(self) -> str:
        """Where the speculative engine listens, without a path."""
        return self.urls[UpstreamName.SPEC]

    @property
    def base_url(self) -> str:
        """Where the plain engine listens, without a path."""
        return self.urls[UpstreamName.BASE]

    async def stop(self, name: UpstreamName | str) -> None:
        """Take an engine down as SIGKILL would: connections are reset, its work is lost."""
        await self._servers[UpstreamName(name)].die()

    async def restart(self, name: UpstreamName | str) -> None:
        """Bring a stopped engine back on its port, empty; raises OSError if that is taken."""
        await self._servers[UpstreamName(name)].listen()

    def load(self, name: UpstreamName | str) -> Load:
        """What an engine is doing."""
        return self._servers[UpstreamName(name)].desk.load


class _Server:
    """One engine's listener and its connections."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.connections: set[_Connection] = set()
        self._listener: asyncio.Server | None = None
        self._lost = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether it takes connections."""
        return self._listener is not None

    async def listen(self) -> None:
        """Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Connection(self),
            self.desk.options.host,
            self.desk.port,
            backlog=_BACKLOG,
        )
        self.desk.port = self._listener.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """Reset every connection and forget everything."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        for connection in self.connections:
            connection.reset()
        while self.connections:
            self._lost.clear()
            await self._lost.wait()
        await listener.wait_closed()
        self.desk.reset()

    def lost(self, connection: "_Connection") -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        self._lost.set()


class _Connection(asyncio.Protocol):
    """One client's connection: requests are read ahead and answered one after the other."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._desk = server.desk
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._url = b""
        self._reading = Request()
        self._waiting: deque[Request] = deque()
        self._exchange: Exchange | None = None
        self._keep_alive = True
        self._head_sent = False
        self._paused = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a client is here."""
        # By what it can do: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.up:  # accepted while the engine died
            self.reset()
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio calls it so
        """asyncio: it is gone, and so is the use of what it waited for."""
        self._wake()
        self._waiting.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._desk.clockwork.abort(exchange)
        self._server.lost(self)

    def data_received(self, data: bytes) -> None:
        """asyncio: it sent something."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # answered as if nothing else had been offered
        except httptools.HttpParserError:
            self._keep_alive = False
            self._answer(
                Answer(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8")
            )

    def pause_writing(self) -> None:
        """asyncio: it reads slowly."""
        self._paused = True

    def resume_writing(self) -> None:
        """asyncio: it has caught up."""
        self._paused = False
        self._flush()

    def on_message_begin(self) -> None:
        """httptools: a request starts."""
        self._wake()
        self._reading = Request()
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """httptools: a piece of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: a field."""
        self._reading.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """httptools: the head is whole."""
        request = self._reading
        request.method = self._parser.get_method().decode("ascii")
        request.path = (httptools.parse_url(self._url).path or b"/").decode("latin-1")
        request.keep_alive = self._parser.should_keep_alive()
        if request.headers.get("expect", "").lower() == "100-continue" and self._exchange is None:
            self._transport.write(CONTINUE)

    def on_body(self, piece: bytes) -> None:
        """httptools: a piece of its body."""
        self._reading.body += piece

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        self._waiting.append(self._reading)
        self._next()

    def reset(self) -> None:
        """Close with a reset, as the kernel does for a process that was killed."""
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def _next(self) -> None:
        """Turn to the requests that wait, unless one is being answered."""
        while self._waiting and self._exchange is None and not self._transport.is_closing():
            request = self._waiting.popleft()
            self._keep_alive = request.keep_alive
            self._serve(request)
        if self._exchange is None and not self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._desk.options.keep_alive, self._transport.close)

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _serve(self, request: Request) -> None:
        try:
            reply = self._desk.reply(request)
        except BodyError as error:
            if error.in_stream:
                self._stream([replies.event(error.payload), replies.DONE], last=True)
            else:
                self._answer(json_answer(error.payload, 400))
            return
        if isinstance(reply, Answer):
            self._answer(reply)
            return
        self._exchange = Exchange(self._desk.name, reply, self._desk.tally, self._flush)
        if reply.ask.stream and reply.ask.shape is Shape.GENERATE:
            self._stream([], last=False)  # /generate says 200 before it knows
        self._desk.clockwork.submit(self._exchange)

    def _flush(self) -> None:
        """Send what there is to send of the generation, and turn to the next when it is over."""
        exchange = self._exchange
        if exchange is None or self._paused:
            return
        generation = exchange.generation
        if generation.ask.stream:
            made = replies.events(generation)
            if made:
                self._stream(made, last=generation.closed)
        elif generation.refused:
            generation.closed = True
            self._answer(json_answer(replies.refusal(), 503))
        elif generation.complete:
            generation.closed = True
            self._answer(json_answer(replies.body(generation)))
        if generation.closed:
            self._exchange = None
            self._desk.clockwork.abort(exchange)
            self._next()

    def _stream(self, events: list[bytes], *, last: bool) -> None:
        """Send events of a stream, after its head if they are the first."""
        pieces = [] if self._head_sent else [stream_head(keep_alive=self._keep_alive)]
        self._head_sent = not last
        pieces += map(chunk, events)
        if last:
            pieces.append(LAST_CHUNK)
        self._transport.write(b"".join(pieces))
        self._close_unless_kept(last=last)

    def _answer(self, answer: Answer) -> None:
        self._transport.write(answer_bytes(answer, keep_alive=self._keep_alive))
        self._close_unless_kept(last=True)

    def _close_unless_kept(self, *, last: bool) -> None:
        if last and not self._keep_alive:
            self._transport.close()
