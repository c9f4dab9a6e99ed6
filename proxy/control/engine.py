"""Typed readings of an SGLang server: is it there, what is it, how busy is it.

Asks only what costs the engine nothing: never a path that generates (`/health` makes a token) and
never a POST. A field that is missing or makes no sense is None; an answer that is none of the
server's known answers is an EngineError, with the server's address and without its key. Field names
are SGLang 0.5.23's, older ones where they are known to differ.
"""

import errno
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import httpx2

from proxy.control.counters import Counters, counters_of
from proxy.core.identity import Identity
from proxy.core.signals import EngineSignals, Totals
from proxy.errors import EngineError, EngineSilentError, EngineUnaskedError

MAX_ANSWER_BYTES = 16 * 2**20
"""/server_info has 37 kB, and 20 kB more per data-parallel rank: room for hundreds of ranks."""
MAX_METRICS_BYTES = 4 * 2**20
"""/metrics has 87 kB, of which only what is labelled per rank grows with their number."""
_KEEP_ALIVE_SECONDS = 3.0
"""Below the 5 s after which SGLang (uvicorn) closes an idle connection."""
_ABSENT = frozenset({404, 405})
_ADAPTIVE_DRAFT_TOKENS = 8
"""SGLang 0.5.23, adaptive_spec_params.py: the deepest step of its own ladder is 7, and the token
before them is verified, too."""
_LARGEST = 2**53
"""Beyond it a float no longer holds every whole number, and no count of ours is real."""


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
class _Answer:
    status: int
    body: bytes


class _Fields:
    """An object of JSON that may hold anything; what has the wrong type is unknown."""

    __slots__ = ("_values",)

    def __init__(self, value: object) -> None:
        self._values: Mapping[str, object] = value if isinstance(value, dict) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value if isinstance(value, str) and value else None

    def count(self, name: str) -> int | None:
        return _count(self._values.get(name))

    def amount(self, name: str) -> float | None:
        return _amount(self._values.get(name))

    def counts(self, name: str) -> list[int]:
        value = self._values.get(name)
        found = [_count(each) for each in value] if isinstance(value, list) else []
        return [each for each in found if each is not None]

    def amounts(self, name: str) -> list[float | None]:
        value = self._values.get(name)
        return [_amount(each) for each in value] if isinstance(value, list) else []

    def yes(self, name: str) -> bool:
        return self._values.get(name) is True

    def within(self, name: str) -> "_Fields":
        return _Fields(self._values.get(name))

    def many(self, name: str) -> list["_Fields"]:
        value = self._values.get(name)
        return [_Fields(each) for each in value] if isinstance(value, list) else []


def connect(
    url: str, *, api_key: str | None, tls: ssl.SSLContext | None, timeout: float
) -> httpx2.AsyncClient:
    """A client for the server at `url`; `timeout` in seconds, for each step of a request.

    `tls` says whom to believe, None for a server without TLS. Proxies and credentials of the
    environment are ignored: an engine is a neighbour.
    """
    # identity: nothing is gained from compression next door, and nothing can unfold into gigabytes.
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    headers["user-agent"] = "specswitch"
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
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
    info = await _find_object(client, "/server_info", "/get_server_info")
    cards = (await _find_object(client, "/v1/models") or _Fields(None)).many("data")
    served = None if info is None else info.text("served_model_name")
    adapters = frozenset(
        name for card in cards if (name := card.text("id")) and _is_adapter(card, served)
    )
    if info is None:
        return Identity(known=False, adapters=adapters)
    ranks = info.many("internal_states")
    lengths = [card.count("max_model_len") for card in cards if not _is_adapter(card, served)]
    resolved = next((length for length in lengths if length is not None), None)
    return Identity(
        known=True,
        speculative_algorithm=info.text("speculative_algorithm"),
        model=info.text("model_path"),
        revision=info.text("revision"),
        dtype=info.text("dtype"),
        quantization=info.text("quantization"),
        # The argument is null where the model's own length is used; the card has what came of it.
        context_length=resolved if resolved is not None else info.count("context_length"),
        tensor_parallel=info.count("tp_size"),
        max_running_requests=_max_running(info, ranks),
        graph_ceiling=_graph_ceiling(info, ranks),
        speculative_num_steps=info.count("speculative_num_steps"),
        speculative_eagle_topk=info.count("speculative_eagle_topk"),
        speculative_num_draft_tokens=_draft_tokens(info),
        version=info.text("version"),
        adapters=adapters,
    )


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
        running=_total([rank.count("num_running_reqs") for rank in ranks]),
        waiting=_total([rank.count("num_waiting_reqs") for rank in ranks]),
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


def _decoded(ranks: list[_Fields]) -> Totals | None:
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


def _is_adapter(card: _Fields, served: str | None) -> bool:
    """Whether an entry of /v1/models is a LoRA adapter: those have a parent, or another name."""
    return card.text("parent") is not None or (served is not None and card.text("id") != served)


def _max_running(info: _Fields, ranks: list[_Fields]) -> int | None:
    """Sequences that run at once: what came of the argument, which memory may have cut."""
    effective = _total([rank.count("effective_max_running_requests_per_dp") for rank in ranks])
    return info.count("max_running_requests") if effective is None else effective


def _graph_ceiling(info: _Fields, ranks: list[_Fields]) -> int | None:
    """The largest decode batch with a CUDA graph; None where graphs are off or not spoken of."""
    if info.yes("disable_cuda_graph") or info.yes("disable_decode_cuda_graph"):
        return None
    if ranks and all("decode_cuda_graph_bs" in rank for rank in ranks):
        # What was captured in fact: empty on a CPU, whose arguments still name a ceiling.
        return _total([max(rank.counts("decode_cuda_graph_bs"), default=None) for rank in ranks])
    decode = info.within("cuda_graph_config").within("decode")
    if decode.text("backend") == "disabled":
        return None
    ceiling = decode.count("max_bs") or info.count("cuda_graph_max_bs")  # the older name
    return None if ceiling is None else ceiling * max(1, len(ranks))


def _draft_tokens(info: _Fields) -> int | None:
    """The most draft tokens of a round; adaptive speculation may draft more than it says now."""
    said = info.count("speculative_num_draft_tokens")
    if said is None or not info.yes("speculative_adaptive"):
        return said
    return max(said, _ADAPTIVE_DRAFT_TOKENS)


def _total(parts: list[int | None]) -> int | None:
    """The sum over all ranks; None if one does not say, or there is none."""
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST else None


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LARGEST else None  # never true of NaN


def _moment(text: str | None) -> float | None:
    """Seconds since 1970 of an ISO 8601 time with its zone; None for anything else."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


async def _find_object(client: httpx2.AsyncClient, *paths: str) -> _Fields | None:
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


def _object(body: bytes, where: str) -> _Fields:
    try:
        # The standard library's parser, because engines write NaN, which strict ones refuse whole.
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise EngineError(f"{where} does not answer JSON") from exc
    if not isinstance(value, dict):
        raise EngineError(f"{where} does not answer a JSON object")
    return _Fields(value)


async def _get(client: httpx2.AsyncClient, path: str, most: int = MAX_ANSWER_BYTES) -> _Answer:
    where = f"{_place(client)}{_bare(path)}"
    with _translated(where):
        async with client.stream("GET", path) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > most:
                    raise EngineError(f"{where} answers more than {most} bytes")
            return _Answer(response.status_code, bytes(body))


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
