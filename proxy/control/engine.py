"""Typed readings of an SGLang server: is it there, what is it, how busy is it.

Asks only what costs the engine nothing: never a path that generates (`/health` makes a token) and
never a POST. A field that is missing or makes no sense is None; an answer that is none of the
server's known answers is an EngineError, with the server's address and without its key. Field names
are SGLang 0.5.23's, older ones where they are known to differ.
"""

import asyncio
import errno
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from string import ascii_letters, digits
from urllib.parse import quote_from_bytes

import httpx2

from proxy.control.counters import Counters, counters_of
from proxy.core.fields import Fields
from proxy.core.identity import Identity
from proxy.core.pages import identity_of, total
from proxy.core.signals import EngineSignals, Totals
from proxy.errors import EngineError, EngineSilentError, EngineUnaskedError

MAX_ANSWER_BYTES = 16 * 2**20
"""/server_info has 37 kB, and 20 kB more per data-parallel rank: room for hundreds of ranks."""
MAX_METRICS_BYTES = 4 * 2**20
"""/metrics has 87 kB, of which only what is labelled per rank grows with their number."""
_KEEP_ALIVE_SECONDS = 3.0
"""Below the 5 s after which SGLang (uvicorn) closes an idle connection."""
_ABSENT = frozenset({404, 405})
_IN_QUERY = ascii_letters + digits + "!$%&'()*+,-./:;=?@[]_~"
"""What a query keeps as it came; everything else is encoded, as it should have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What /v1/loads says, over all data-parallel ranks; None where it does not say."""

    running: int | None = None
    """Requests being decoded."""
    waiting: int | None = None
    """Requests in the engine's queue."""
    token_usage: float | None = None
    """Share of the KV cache in use, 0 to 1, of the fullest rank: that one queues first."""
    timestamp: float | None = None
    """When the newest rank wrote its part; seconds of the engine's own clock."""
    age_seconds: float | None = None
    """How old the oldest part was when the engine answered, by the engine's own clock.

    A decoding engine publishes every 15 iterations, so this is seldom 0.
    """
    decoded: Totals | None = None
    """Output tokens of decode steps, and sequences in them: verify rounds where it speculates.

    From `decode_moments`, over all ranks that have decoded anything. `accept_length` beside it is a
    mean since the server's start.
    """


@dataclass(frozen=True, slots=True)
class Reading:
    """A load, when it was read and for how long it may be believed; seconds, monotonic."""

    load: Load
    at: float
    stale_after: float

    def age(self, now: float) -> float:
        """Seconds since the engine wrote what was read."""
        return now - self.at + (self.load.age_seconds or 0.0)

    def fresh(self, now: float) -> bool:
        """Whether it still says something; a stale reading is an unknown one."""
        return now - self.at <= self.stale_after


@dataclass(slots=True)
class Findings:
    """What the prober has found of one upstream; it writes, metrics and state read."""

    reading: Reading | None = None
    """The last load that could be read."""
    signals: EngineSignals | None = None
    """What the dispatcher was last told of it."""
    fault: str | None = None
    """What was wrong with the last probe, as a sentence; None if nothing was."""

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a verify round, lately; as old as the reading."""
        return None if self.signals is None else self.signals.acceptance_length


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered, whole."""

    status: int
    content_type: str
    """Empty where it did not say."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Reach:
    """How a server is reached for what is no probe."""

    url: str
    tls: ssl.SSLContext | None = field(repr=False)
    api_key: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one server is asked, or told to do."""

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = field(default=b"", repr=False)
    most: int = MAX_ANSWER_BYTES
    """Bytes; an answer with more is an error."""


@dataclass(frozen=True, slots=True)
class Within:
    """Seconds that a server may take: to be connected to, and in all."""

    connect: float
    answer: float


def connect(
    url: str, *, api_key: str | bytes | None, tls: ssl.SSLContext | None, timeout: float
) -> httpx2.AsyncClient:
    """A client for the server at `url`; `timeout` in seconds, for each step of a request.

    A key of bytes goes as it is: a client's, which may be no text at all. `tls` says whom to
    believe, None for a server without TLS. Proxies and credentials of the environment are ignored:
    an engine is a neighbour.
    """
    # identity: nothing is gained from compression next door, and nothing can unfold into gigabytes.
    headers = [(b"accept", b"application/json"), (b"accept-encoding", b"identity")]
    headers.append((b"user-agent", b"specswitch"))
    if api_key:
        key = api_key.encode() if isinstance(api_key, str) else api_key
        headers.append((b"authorization", b"Bearer " + key))
    return httpx2.AsyncClient(
        base_url=url,
        headers=headers,
        # False asks nobody, and has nobody to ask: the system's list takes 75 ms to read.
        verify=False if tls is None else tls,
        timeout=timeout,
        limits=httpx2.Limits(max_connections=4, keepalive_expiry=_KEEP_ALIVE_SECONDS),
        follow_redirects=False,
        trust_env=False,
    )


async def ask(reach: Reach, question: Question, *, key: bytes | None, within: Within) -> Answer:
    """The answer to `question`, asked once, with `key`, over a connection of its own.

    So nothing is kept that a reload would have to look after, and no probe waits behind it. Raises
    EngineError when there is no answer, EngineSilentError when there is none in time.
    """
    path = question.path
    if question.query:
        path += "?" + quote_from_bytes(question.query, safe=_IN_QUERY)
    client = connect(reach.url, api_key=key, tls=reach.tls, timeout=within.connect)
    client.timeout = httpx2.Timeout(None, connect=within.connect)
    where = f"{_place(client)}{question.path}"
    try:
        async with client, asyncio.timeout(within.answer):
            return await _answer(client, question, path)
    except TimeoutError as exc:
        raise EngineSilentError(
            f"{where} did not answer within {round(within.answer, 2):g} s"
        ) from exc


async def check_ready(client: httpx2.AsyncClient, path: str) -> None:
    """Return if the server says at `path` that it takes requests; raise EngineError if it does not.

    A server without that path is asked for /v1/models, which every one of them has.
    """
    answer = await _get(client, path)
    if answer.status in _ABSENT:
        path = "/v1/models"
        answer = await _get(client, path)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - RFC 9110 section 15.3
        where = f"{_place(client)}{_bare(path)}"
        raise EngineError(f"{where} answers {answer.status}{_hint(answer.status)}")


async def read_identity(client: httpx2.AsyncClient) -> Identity:
    """What the server says it is; raises EngineError when it cannot be read."""
    arguments = await _find_object(client, "/server_info", "/get_server_info")
    models = await _find_object(client, "/v1/models")
    return identity_of(arguments, [] if models is None else models.many("data"))


async def read_load(client: httpx2.AsyncClient) -> Load:
    """How busy the server says it is; raises EngineError when it cannot be read."""
    fields = await _find_object(client, "/v1/loads")
    if fields is None:
        raise EngineError(f"{_place(client)} has no /v1/loads")
    ranks = fields.many("loads")
    usages = [usage for rank in ranks if (usage := rank.amount("token_usage")) is not None]
    stamps = [stamp for rank in ranks if (stamp := rank.amount("timestamp")) is not None]
    answered = _moment(fields.text("timestamp"))
    age = None if answered is None or not stamps else max(0.0, answered - min(stamps))
    return Load(
        running=total([rank.count("num_running_reqs") for rank in ranks]),
        waiting=total([rank.count("num_waiting_reqs") for rank in ranks]),
        token_usage=max(usages, default=None),
        timestamp=max(stamps, default=None),
        age_seconds=age,
        decoded=_decoded(ranks),
    )


async def read_counters(client: httpx2.AsyncClient) -> Counters | None:
    """What it has counted; None where it has no /metrics, which needs --enable-metrics.

    Raises EngineError when it cannot be read, or a figure makes no sense.
    """
    answer = await _get(client, "/metrics", MAX_METRICS_BYTES)
    if answer.status in _ABSENT:
        return None
    where = f"{_place(client)}/metrics"
    if answer.status != 200:  # noqa: PLR2004 - RFC 9110 section 15.3.1
        raise EngineError(f"{where} answers {answer.status}{_hint(answer.status)}")
    counters = counters_of(answer.body)
    if counters is None:
        raise EngineError(f"{where} has a counter that is no count")
    return counters


def _decoded(ranks: list[Fields]) -> Totals | None:
    """SGLang's sums over decode steps: of batch sizes at 1, of generated tokens at 5."""
    found = []
    for rank in ranks:
        match rank.amounts("decode_moments"):
            case [_, float(times), _, _, _, float(tokens), *_]:
                found.append(Totals(tokens, times))
            case _:
                pass  # an older server, or a rank that has decoded nothing
    if not found:
        return None
    return Totals(sum(each.tokens for each in found), sum(each.times for each in found))


def _moment(text: str | None) -> float | None:
    """Seconds since 1970 of an ISO 8601 time with its zone; None for anything else."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


async def _find_object(client: httpx2.AsyncClient, *paths: str) -> Fields | None:
    """The JSON object at the first of `paths` that the server has; None if it has none of them."""
    for path in paths:
        answer = await _get(client, path)
        if answer.status in _ABSENT:
            continue
        where = f"{_place(client)}{path}"
        if answer.status != 200:  # noqa: PLR2004 - RFC 9110 section 15.3.1
            raise EngineError(f"{where} answers {answer.status}{_hint(answer.status)}")
        return _object(answer.body, where)
    return None


def _object(body: bytes, where: str) -> Fields:
    try:
        # The standard library's parser, because engines write NaN, which strict ones refuse whole.
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise EngineError(f"{where} does not answer JSON") from exc
    if not isinstance(value, dict):
        raise EngineError(f"{where} does not answer a JSON object")
    return Fields(value)


async def _get(client: httpx2.AsyncClient, path: str, most: int = MAX_ANSWER_BYTES) -> Answer:
    return await _answer(client, Question(method="GET", path=path, most=most), path)


async def _answer(client: httpx2.AsyncClient, question: Question, path: str) -> Answer:
    where = f"{_place(client)}{_bare(path)}"
    most = question.most
    with _translated(where):
        async with client.stream(
            question.method, path, content=question.body or None, headers=[*question.headers]
        ) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > most:
                    raise EngineError(f"{where} answers more than {most} bytes")
            response.headers.encoding = "latin-1"  # so that it can be passed on, whatever it is
            content_type = response.headers.get("content-type", "")
            return Answer(response.status_code, content_type, bytes(body))


@contextmanager
def _translated(where: str) -> Iterator[None]:
    """The one place where the client library's exceptions become ours."""
    try:
        yield
    except httpx2.ConnectTimeout as exc:
        raise EngineError(f"{where} could not be connected to in time") from exc
    except httpx2.TimeoutException as exc:
        raise EngineSilentError(f"{where} did not answer in time ({type(exc).__name__})") from exc
    except (httpx2.RemoteProtocolError, httpx2.DecodingError) as exc:
        # The library quotes what came, which may be anything: also our own key, sent back.
        raise EngineError(f"{where} could not be read ({type(exc).__name__})") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        if _ran_out(exc):
            raise EngineUnaskedError(f"{where} was not asked: no file descriptor is free") from exc
        raise EngineError(f"{where} could not be read ({type(exc).__name__}: {exc})") from exc


def _ran_out(error: BaseException | None) -> bool:
    """Whether file descriptors had run out, in what led to `error`."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(client: httpx2.AsyncClient) -> str:
    """The server's address as it may be shown: without user information."""
    return str(client.base_url.copy_with(username=None, password=None)).rstrip("/")


def _bare(path: str) -> str:
    """Without a query, which may hold a key."""
    return path.partition("?")[0]


def _hint(status: int) -> str:
    return " (is its api_key configured here?)" if status in {401, 403} else ""
