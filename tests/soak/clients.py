"""A client of the soak: does a job, looks at what comes, and keeps what it saw.

What it saw is judged here against what the engine was to say; reckoning.py holds it against what
specswitch and the engines say of the same request.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from tests.harness.client import RawClient, Response
from tests.harness.tunnels import offer
from tests.soak.answers import pieces_of
from tests.soak.jobs import Framing, Job, Leave, Way
from tests.soak.plans import MID, STATUS, Act

MAX_BODY_BYTES: Final = 64 * 1024
"""What the soak's specswitch takes of a body."""

_LITTLE: Final = 32 * 1024  # a receive buffer, so that the kernel holds little for a slow client
_PART: Final = 256 * 1024
_PAUSE_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 20.0  # for a connection to be ended by the other side
_CONTINUE: Final = 100
_STUCK_SECONDS: Final = 4.0  # four times the `client_write` of the soak
_OWN_CODES: Final = {
    400: {"bad_request"},
    404: {"not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    413: {"body_too_large"},
    429: {"overloaded"},
    431: {"headers_too_large"},
    502: {"upstream_connect", "upstream_reset"},
    503: {"no_upstream", "queue_timeout", "ineligible"},
    504: {"upstream_timeout"},
}
_GATEWAY: Final = {502, 504}  # never an engine's own here
LARGE: Final = frozenset({Way.SLOW, Way.STUCK})
_EXPECTED: Final = {
    Way.UNKNOWN: 404,
    Way.METHOD: 405,
    Way.TOO_LARGE: 413,
    Way.MALFORMED: 400,
    Way.LONG_HEAD: 431,
    Way.OWN: 200,
}
_MALFORMED: Final = (
    b"\x16\x03\x01\x02\x00 no http\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0",
    b"POST /generate HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    b"GET http://elsewhere/generate HTTP/1.1\r\nHost: a\r\n\r\n",
    b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere:443\r\n\r\n",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client saw of one request."""

    job: Job
    status: int | None = None
    """None where no head came."""
    upstream: str | None = None
    whole: bool = False
    """Whether the answer came to its end."""
    closes: bool = False
    """Whether it was said to be the connection's last."""
    refused: bool = False
    """Whether specswitch itself had no room for it."""
    left: bool = False
    """Whether the client went before it had."""
    fault: str | None = None
    """What is wrong with what it saw, whatever the others say."""


class SoakClient(RawClient):
    """A raw client that can ask before it sends its body."""

    _ahead: tuple[int, list[tuple[str, str]]] | None = None

    async def send_when_asked(self, head: bytes, body: bytes) -> None:
        """Send `head`, and `body` unless the answer comes first."""
        self.send(head)
        first = await super().head()
        if first[0] == _CONTINUE:
            self.send(body)
        else:
            self._ahead = first

    def put_back(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Have a head come again."""
        self._ahead = status, headers

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        """Read a final head; the one that has come already, if it has."""
        first, self._ahead = self._ahead, None
        while first is None or first[0] == _CONTINUE:
            first = await super().head()
        return first


class Connection:
    """One client's connection, made anew where a job needs it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: SoakClient | None = None

    async def do(self, batch: list[Job]) -> list[Seen]:
        """Do a job, or several in one write."""
        seen: list[Seen] = []
        try:
            client = await self._ready(little=batch[0].way in LARGE)
            client.send(b"".join(_bytes_ahead(batch)))
            for job in batch:
                seen.append(await _do(client, job))
                if not seen[-1].whole or seen[-1].closes:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
            job = batch[len(seen)]
            seen.append(Seen(job=job, fault=f"no answer: {error!r}"))
        if seen[-1].closes or not (seen[-1].whole and _stays(batch[-1])):
            self.close()
        return seen

    def close(self) -> None:
        """Have no connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _ready(self, *, little: bool) -> SoakClient:
        if little:
            self.close()
        if self._client is None:
            self._client = await _connect(self._port, little=little)
        return self._client


def _stays(job: Job) -> bool:
    stays = {Way.STAY, Way.PIPELINE, Way.OWN, Way.UNKNOWN, Way.METHOD}
    return job.way in stays and job.keeps_alive


async def _connect(port: int, *, little: bool) -> SoakClient:
    if not little:
        return await SoakClient.connect(port)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LITTLE)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    return SoakClient(*await asyncio.open_connection(sock=raw, limit=_PART))


# Sending -------------------------------------------------------------------------------------


def request(job: Job) -> tuple[bytes, bytes]:
    """The head and the body, framed."""
    if job.way is Way.MALFORMED:
        return _MALFORMED[sum(job.id.encode()) % len(_MALFORMED)], b""
    if job.way is Way.TUNNEL:
        asks = {"x-request-id": job.id, "x-soak": str(job.plan)}
        return offer(job.path, headers=asks), b""
    if job.way is Way.OWN:
        return b"GET /livez HTTP/1.1\r\nHost: soak\r\n\r\n", b""
    method = "DELETE" if job.way is Way.METHOD else "POST"
    path = "/flush_cache" if job.way is Way.UNKNOWN else job.path
    body = job.body()
    if job.way is Way.TOO_LARGE:
        body += b" " * MAX_BODY_BYTES
    lines = [f"{method} {path} HTTP/1.1", "Host: soak", f"x-request-id: {job.id}"]
    lines += _framing_lines(job, body)
    if job.way is Way.LONG_HEAD:
        lines.append("x-long: " + "a" * 40_000)
    if job.framing is Framing.CHUNKED:
        half = len(body) // 2
        parts = (body[:half], body[half:])
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode(), body


def _framing_lines(job: Job, body: bytes) -> Iterator[str]:
    if not job.keeps_alive:
        yield "Connection: close"
    if job.framing is Framing.CHUNKED:
        yield "Transfer-Encoding: chunked"
    else:
        yield f"Content-Length: {len(body)}"
    if _asks(job):
        yield "Expect: 100-continue"


def _asks(job: Job) -> bool:
    return job.framing is Framing.EXPECT and job.way in {Way.STAY, Way.TOO_LARGE}


def _bytes_ahead(batch: list[Job]) -> Iterator[bytes]:
    """What is sent in one write, before anything is read."""
    for job in batch:
        head, body = request(job)
        if job.way is Way.LEAVE_HEAD:
            yield head[: len(head) // 2]
        elif job.way is Way.LEAVE_BODY:
            yield head + body[: len(body) // 2]
        elif not _asks(job):
            yield head + body


# Reading and leaving -------------------------------------------------------------------------


async def _do(client: SoakClient, job: Job) -> Seen:
    """Go on with a job whose first bytes are on their way."""
    match job.way:
        case Way.LEAVE_HEAD | Way.LEAVE_BODY:
            return await _leave(client, job)
        case Way.LEAVE_SOON:
            await asyncio.sleep(job.patience / 1000)
            return await _leave(client, job)
        case Way.STUCK:
            return await _read_nothing(client, job)
        case Way.TUNNEL:
            return await _talk(client, job)
        case Way.LEAVE_MID | Way.SLOW:
            return await _read_chunks(client, job)
        case _:
            if _asks(job):
                await client.send_when_asked(*request(job))
            return judged(job, await client.response())


async def _leave(client: SoakClient, job: Job) -> Seen:
    """Go, with what has been sent on its way."""
    await client.writer.drain()
    if job.leave is Leave.RESET:
        client.reset()
    elif job.leave is Leave.FIN:
        client.close()
    else:
        client.half_close()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            with suppress(ConnectionError):
                await client.reader.read(-1)
    return Seen(job=job, left=True)


async def _read_nothing(client: SoakClient, job: Job) -> Seen:
    """Take no byte for longer than anybody's patience; then see what there is."""
    client.stop_reading()
    await asyncio.sleep(_STUCK_SECONDS)
    client.read_on()
    try:
        seen = judged(job, await client.response())
    except (ConnectionError, asyncio.IncompleteReadError):
        return Seen(job=job, left=True)  # it was cut with a reset, which leaves nothing to read
    if seen.whole and seen.status == HTTPStatus.OK:
        return replace(seen, fault="it read nothing for long, and was not cut")
    return seen


async def _talk(client: SoakClient, job: Job) -> Seen:
    """Say things through a tunnel and hear each again, as long as it lasts; then leave it."""
    status, headers = await client.head()
    upstream = _value(headers, "x-specswitch-upstream")
    if status != HTTPStatus.SWITCHING_PROTOCOLS:
        client.put_back(status, headers)
        return judged(job, await client.response())
    seen = Seen(job=job, status=status, upstream=upstream, closes=True)
    for number in range(job.plan.pieces):
        said = b"%d" % (number % 10) + b"." * job.plan.pad
        client.send(said)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                heard = await client.reader.readexactly(len(said))
        except asyncio.IncompleteReadError as short:
            fault = None if said.startswith(short.partial) else f"heard {short.partial[:40]!r}"
            return replace(seen, fault=fault)
        except ConnectionError:
            return seen
        if heard != said:
            return replace(seen, fault=f"said {said[:40]!r}, heard {heard[:40]!r}")
    await _leave(client, job)
    return seen


async def _read_chunks(client: SoakClient, job: Job) -> Seen:
    """Read a stream piece by piece: slowly, or only its first one; anything else as it comes."""
    status, headers = await client.head()
    if (status, _value(headers, "transfer-encoding")) != (200, "chunked"):
        client.put_back(status, headers)
        return judged(job, await client.response())
    chunks: list[bytes] = []
    try:
        while (chunk := await client.chunk()) is not None:
            if job.way is Way.LEAVE_MID:
                return await _leave(client, job)
            chunks.append(chunk)
            await asyncio.sleep(_PAUSE_SECONDS)
    except ConnectionError:
        return judged(job, Response(status, headers, b"".join(chunks), chunks, complete=False))
    return judged(job, Response(status, headers, b"".join(chunks), chunks, complete=True))


def _value(headers: list[tuple[str, str]], wanted: str) -> str | None:
    return next((value for name, value in headers if name.lower() == wanted), None)


# Judging -------------------------------------------------------------------------------------


def judged(job: Job, response: Response) -> Seen:
    """What a client saw that read its answer to the end, such as it was."""
    upstream = response.header("x-specswitch-upstream")
    if upstream is not None and response.status not in _GATEWAY:
        fault = _fault_of_theirs(job, response, job.plan.act(upstream))
    else:
        fault = _fault_of_ours(job, response)
    return Seen(
        job=job,
        status=response.status,
        upstream=upstream,
        whole=response.complete,
        closes=response.header("connection") == "close",
        refused=upstream is None and response.status in {429, 503},
        fault=fault,
    )


def _fault_of_theirs(job: Job, response: Response, act: Act) -> str | None:
    """What is wrong with an engine's answer as it arrived, None if nothing is."""
    if response.header("x-request-id") != job.id:
        return f"the answer has the id {response.header('x-request-id')}"
    status = STATUS.get(act, 200)
    if response.status != status:
        return f"status {response.status} from an engine that says {status} ({act})"
    body = b"".join(pieces_of(act, job.path, job.plan))
    if response.complete:
        if act in MID:
            return f"a whole answer from an engine that broke off ({act})"
        # Where closing marks the end, an engine that is killed looks as if it had ended.
        same = response.body == body[: None if act is not Act.UNTIL_CLOSE else len(response.body)]
        return None if same else f"the body is another ({act}): {response.body[-80:]!r}"
    told = response.body[_same_bytes(response.body, body) :]
    if told and b"upstream_" not in told:
        return f"broken off with {told[:80]!r} ({act})"
    return None


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])


def _fault_of_ours(job: Job, response: Response) -> str | None:
    """What is wrong with our own answer, None if nothing is."""
    if not response.complete:
        return f"our own answer {response.status} is not whole"
    expected = _EXPECTED.get(job.way)
    if expected is not None and response.status != expected:
        return f"answered {response.status}, not {expected}"
    if response.status == HTTPStatus.OK:
        return None if job.way is Way.OWN else "200 without an engine"
    codes = _OWN_CODES.get(response.status, ())
    told = response.body.decode()
    return None if any(code in told for code in codes) else f"{response.status} says {told}"
