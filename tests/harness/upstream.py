"""A scripted upstream: a raw TCP server that says exactly what a test wants, byte by byte.

It is no HTTP framework, because those cannot be told to misbehave. Each request that is not a probe
is answered by the steps that the test has given; everything that came and how each connection ended
is kept for the test to look at.

    upstream.script(Send(head), Gate(event), Send(piece), Reset())

Or the test answers itself, when it likes: `upstream.script(ByHand())`, `request.say(piece)`.
"""

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Self, TypeAlias


@dataclass(frozen=True)
class Send:
    """Write these bytes."""

    data: bytes


@dataclass(frozen=True)
class Gate:
    """Wait until the test sets `event`."""

    event: asyncio.Event


@dataclass(frozen=True)
class Reset:
    """Close with a reset."""


@dataclass(frozen=True)
class Fin:
    """Close cleanly, in the middle or not."""


@dataclass(frozen=True)
class Silence:
    """Say nothing more until the other side has gone."""


@dataclass(frozen=True)
class ByHand:
    """The test answers, by the methods of what was received, until it calls `over`."""


@dataclass(frozen=True)
class Tunnel:
    """Keep what comes through a tunnel until the other side sends no more.

    With `stays`, this side is open until the test calls `over`.
    """

    stays: bool = False


@dataclass(frozen=True)
class PassTo:
    """Let a server at `port` on loopback answer, and pass bytes both ways until either ends."""

    port: int


Step: TypeAlias = Send | Gate | Reset | Fin | Silence | ByHand | Tunnel | PassTo


@dataclass
class Received:
    """One request as it came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    writer: asyncio.StreamWriter
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by `over`."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection has ended while this was the last request on it."""
    gone_at: float | None = None
    """Loop time of that."""
    came: bytearray = field(default_factory=bytearray)
    """What has come through a tunnel."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing more comes through it."""

    def header(self, name: str) -> str | None:
        """The first value of the header `name`, None without one."""
        return next((v for n, v in self.headers if n.lower() == name), None)

    def count(self, name: str) -> int:
        """How often the header `name` came."""
        return sum(n.lower() == name for n, _ in self.headers)

    @property
    def path(self) -> str:
        """The request target."""
        return self.line.split(" ")[1]

    def say(self, data: bytes) -> None:
        """Send bytes now."""
        self.writer.write(data)

    def fin(self) -> None:
        """Send FIN now, and go on listening."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Close with a reset now."""
        _reset(self.writer)

    def over(self) -> None:
        """The answer is whole: wait for the next request on this connection."""
        self.ended.set()


def reply(
    body: bytes,
    *,
    status: str = "200 OK",
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A whole response with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data: object) -> bytes:
    """One server-sent event with JSON data."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def stream(*events: bytes) -> bytes:
    """A whole streamed response, one HTTP chunk an event."""
    return STREAM_HEAD + b"".join(map(chunk, events)) + END


class ScriptedUpstream:
    """One upstream; `info` is its /server_info, None for a server without one."""

    def __init__(self, *, speculative: bool, model: str = "tiny") -> None:
        self.info: dict[str, object] | None = {
            "model_path": model,
            "served_model_name": model,
            "speculative_algorithm": "EAGLE3" if speculative else None,
            "max_running_requests": 48 if speculative else None,
        }
        self.ready = True
        self.pages: dict[str, bytes | None] = {}
        """Whole answers to what probes ask, too, by path; None: it is a request like any other."""
        self.requests: list[Received] = []
        self.probes = 0
        self.port = 0
        self._scripts: deque[tuple[Step, ...]] = deque()
        self._always: tuple[Step, ...] = (Send(reply(b"{}")),)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._probed: set[asyncio.StreamWriter] = set()
        """Those that probes have come over."""
        self.answering = 0
        """Requests, not probes, whose answer is not over."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[object]] = set()
        self._connections = 0
        self._arrived = asyncio.Condition()

    @property
    def url(self) -> str:
        """Where it listens, or listened."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._writers)

    @property
    def for_requests(self) -> int:
        """Those of them over which no probe has come."""
        return len(self._writers - self._probed)

    @property
    def tasks(self) -> set[asyncio.Task[object]]:
        """The tasks that serve its connections."""
        return {*self._tasks, *self._waiting}

    def script(self, *steps: Step) -> None:
        """Answer the next request by `steps`; scripts queue up."""
        self._scripts.append(steps)

    def always(self, *steps: Step) -> None:
        """Answer every request by `steps` while no script is queued."""
        self._always = steps

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=1 << 26
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go away as a killed process does: every connection reset, nobody listening."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                _reset(writer)
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    @asynccontextmanager
    async def taking_none(self) -> AsyncIterator[None]:
        """Neither take nor refuse a further connection: the backlog is full. Those that are stay.

        Who has tried meanwhile tries again a second after, which is TCP's first patience.
        """
        assert self._server is not None
        self._server.close()
        with ExitStack() as sockets:
            listener = sockets.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(0)
            for _ in range(4):
                waiting = sockets.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", self.port))
            yield
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def received(self, count: int) -> list[Received]:
        """Wait until `count` requests that are no probes have come."""
        async with asyncio.timeout(10), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self._connections += 1
        last: list[Received] = []
        try:
            await self._converse(reader, writer, self._connections, last)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side has gone, which is what `gone` says; or `stop` has ended us
        finally:
            for request in last:
                request.gone_at = asyncio.get_running_loop().time()
                request.gone.set()
            self._writers.discard(writer)
            self._probed.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: int,
        last: list[Received],
    ) -> None:
        while True:
            request = await _read_request(reader, writer, connection)
            last.clear()
            probe = self._probe_answer(request)
            if probe is not None:
                self.probes += 1
                self._probed.add(writer)
                writer.write(probe)
                continue
            last.append(request)
            async with self._arrived:
                self.requests.append(request)
                self._arrived.notify_all()
            self.answering += 1
            try:
                if not await self._play(reader, request):
                    return
            finally:
                self.answering -= 1

    def _probe_answer(self, request: Received) -> bytes | None:
        """The answer to a probe, None to what is none."""
        path = request.path
        own = path.partition("?")[0]
        if own in self.pages:
            return self.pages[own]
        if path == "/v1/models" and request.header("user-agent") == "specswitch":
            return reply(b'{"object":"list","data":[]}')
        if not path.startswith(
            ("/ready", "/server_info", "/get_server_info", "/v1/loads", "/metrics")
        ):
            return None
        if path.startswith("/ready"):
            return reply(b"", status="200 OK" if self.ready else "503 Service Unavailable")
        if path.startswith(("/server_info", "/get_server_info")) and self.info is not None:
            return reply(json.dumps(self.info).encode())
        if path.startswith("/v1/loads"):
            return reply(b'{"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0}]}')
        return reply(b'{"detail":"Not Found"}', status="404 Not Found")

    async def _play(self, reader: asyncio.StreamReader, request: Received) -> bool:
        """Answer by the next script; whether the connection can go on."""
        writer = request.writer
        for step in self._scripts.popleft() if self._scripts else self._always:
            match step:
                case Send(data):
                    writer.write(data)
                    await writer.drain()
                case Gate() | Silence() | ByHand():
                    await self._unless_gone(reader, _awaited(step, request))
                case Tunnel(stays):
                    await _tunnel(reader, request, stays=stays)
                    return False
                case PassTo(port):
                    await self._pass_to(port, reader, request)
                    return False
                case Reset():
                    _reset(writer)
                    return False
                case Fin():
                    return False
        return True

    async def _pass_to(self, port: int, reader: asyncio.StreamReader, request: Received) -> None:
        """Pass the request on, and then whatever comes from either side."""
        there, to = await asyncio.open_connection("127.0.0.1", port)
        lines = [request.line, *(f"{name}: {value}" for name, value in request.headers)]
        to.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        ways = [
            asyncio.get_running_loop().create_task(_pump(source, sink))
            for source, sink in ((reader, to), (there, request.writer))
        ]
        self._waiting.update(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(ways, timeout=1.0)  # the other way has its own end
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._waiting.difference_update(ways)
            to.close()

    async def _unless_gone(self, reader: asyncio.StreamReader, event: asyncio.Event) -> None:
        """Wait for `event`; raises ConnectionError as soon as the other side has gone."""
        waits = asyncio.get_running_loop().create_task(event.wait())
        reads = asyncio.get_running_loop().create_task(reader.read(1))
        self._waiting |= {waits, reads}
        try:
            await asyncio.wait((waits, reads), return_when=asyncio.FIRST_COMPLETED)
            if not waits.done() and reads.done():
                raise ConnectionResetError("gone")
        finally:
            for task in (waits, reads):
                task.cancel()
            await asyncio.gather(waits, reads, return_exceptions=True)
            self._waiting -= {waits, reads}


def _awaited(step: Gate | Silence | ByHand, request: Received) -> asyncio.Event:
    """What such a step waits for."""
    match step:
        case Gate(event):
            return event
        case Silence():
            return asyncio.Event()
        case ByHand():
            return request.ended


async def _tunnel(reader: asyncio.StreamReader, request: Received, *, stays: bool) -> None:
    """Keep what comes until nothing more does, and then stay or not."""
    while data := await reader.read(65536):
        request.came += data
    request.finished.set()
    if stays:
        await request.ended.wait()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on what comes until nothing more does, and then say so."""
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.split("\r\n")
    headers = [(n, v.strip()) for n, _, v in (each.partition(":") for each in rest if each)]
    length = next((int(v) for n, v in headers if n.lower() == "content-length"), 0)
    body = await reader.readexactly(length)
    return Received(line, headers, body, connection, writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
