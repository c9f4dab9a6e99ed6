"""One streamed request, as its client sees it: when its tokens came, and what became of it.

Token counts are the engine's own (usage): a speculative chunk holds several tokens, so counting
chunks would say nothing. How a stream is read is in `listening.py`.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import httpx2
import msgspec

from proxy.core.peek import Dialect
from proxy.errors import ConfigError, SpecswitchError
from proxy.tools.listening import Reading, said

__all__ = ["Fault", "Question", "Sample", "ask", "chat", "connect", "model_of"]

_CONNECT_SECONDS: Final = 10.0
"""Three lost SYNs (1, 2 and 4 s) fit: a server that takes longer is not there."""
_IDLE_SECONDS: Final = 3.0
"""Below SGLang's keep-alive of 5 s: a kept connection that it closes as we send is a lost request
that says nothing of the server."""
_ERROR_BYTES: Final = 64 * 1024
_OK: Final = 200
_REFUSALS: Final = frozenset({429, 503})
_BACKPRESSURE: Final = "overloaded"

_DIALECTS: Final[Mapping[str, Dialect]] = {
    "/v1/completions": Dialect.OPENAI_COMPLETIONS,
    "/generate": Dialect.GENERATE,
}


class Fault(StrEnum):
    """What kind of bad end a request had."""

    REFUSED = "refused"  # 429 or 503, as a status or in an error event: backpressure
    STATUS = "status"  # any other status than 200
    ERROR_EVENT = "error_event"  # inside a 200
    CUT = "cut"  # the connection broke after the head
    UNFINISHED = "unfinished"  # the stream ended cleanly, but without its own end
    NO_STREAM = "no_stream"  # a 200 that is no event stream
    TIMEOUT = "timeout"
    CONNECT = "connect"  # no connection
    LOST = "lost"  # the connection broke before the head


_MOST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, ready to send."""

    path: str
    body: bytes
    sequences: int = 1
    output_tokens: int | None = None
    """Asked for, of each sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What came of one request. Durations are seconds from `sent_at`; None is unknown."""

    sent_at: float
    """Seconds, monotonic."""
    first_token_seconds: float | None
    last_token_seconds: float | None
    duration_seconds: float
    prompt_tokens: int | None
    output_tokens: int | None
    """From usage only; of all sequences together."""
    finish_reason: str | None
    acceptance_length: float | None
    """Output tokens for each verification, as the engine says; None without speculation."""
    status: int | None
    error: str | None
    """Why it did not end well; None where it did."""
    upstream: str | None
    reason: str | None
    fault: Fault | None = None
    """The kind of `error`."""
    sequences: int = 1

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.error is None

    @property
    def refused(self) -> bool:
        """Whether the server had no room for it: backpressure, not failure."""
        return self.fault is Fault.REFUSED

    @property
    def seconds_per_token(self) -> float | None:
        """TPOT: the time after the first token, divided by the tokens after it."""
        first, last, tokens = self.first_token_seconds, self.last_token_seconds, self.output_tokens
        if first is None or last is None or tokens is None or tokens <= self.sequences:
            return None
        return (last - first) / (tokens / self.sequences - 1)


def chat(  # noqa: PLR0913 - the fields of a request, each by its name
    messages: Sequence[Mapping[str, object]],
    *,
    model: str,
    max_tokens: int,
    ignore_eos: bool = False,
    temperature: float = 0.0,
    details: bool = False,
    extra: Mapping[str, object] | None = None,
) -> Question:
    """Return a streamed chat request that reports its usage.

    With `details` a speculative SGLang adds the acceptance length. `extra` are further fields, and
    win over those that are made here.
    """
    fields: dict[str, object] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        fields["ignore_eos"] = True
    if details:
        fields["return_spec_tokens_details"] = True
    fields |= extra or {}
    samples = fields.get("n")
    return Question(
        path="/v1/chat/completions",
        body=msgspec.json.encode(fields),
        sequences=samples if isinstance(samples, int) and samples > 0 else 1,
        output_tokens=max_tokens,
    )


def connect(
    url: str, *, api_key: str | None = None, timeout: float = 600.0, connections: int = 1024
) -> httpx2.AsyncClient:
    """Return a client of the server at `url`; close it after use.

    `timeout` (seconds) bounds each request of `ask` as a whole. Proxies that the environment names
    are not used, and answers are not compressed: both would be measured as the server.

    Raises:
        ConfigError: `url` is none of http or https.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ConfigError([(repr(url), f"is no URL: {error}")]) from error
    if parsed.userinfo:
        bare = str(parsed.copy_with(username=None, password=None))
        raise ConfigError([(repr(bare), "must hold no user and no password")])
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError([(repr(url), "is no URL of a server: http://HOST:PORT")])
    if parsed.port is not None and not 0 < parsed.port <= _MOST_PORT:
        raise ConfigError([(repr(url), f"has no port from 1 to {_MOST_PORT}")])
    headers = {"accept-encoding": "identity", "user-agent": "specswitch-tools"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    return httpx2.AsyncClient(
        base_url=parsed,
        headers=headers,
        timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout), pool=None),
        limits=httpx2.Limits(
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=_IDLE_SECONDS,
        ),
        trust_env=False,
        # Reading the certificates of the machine takes 20 ms, which plain http need not wait for.
        verify=ssl.create_default_context() if parsed.scheme == "https" else False,
    )


async def model_of(client: httpx2.AsyncClient) -> str:
    """Return the first model that the server names.

    Raises:
        SpecswitchError: the server does not answer, or names none.
    """
    where = str(client.base_url).rstrip("/")
    try:
        answer = await client.get("/v1/models", timeout=_CONNECT_SECONDS)
    except httpx2.HTTPError as error:
        raise SpecswitchError(f"{where} does not answer: {_words(error)}") from error
    if answer.status_code != _OK:
        raise SpecswitchError(f"{where}/v1/models answers {answer.status_code}")
    try:
        models = msgspec.json.decode(answer.content, type=_Models).data
    except msgspec.MsgspecError as error:
        raise SpecswitchError(f"{where}/v1/models does not list models: {error}") from error
    if not models:
        raise SpecswitchError(f"{where}/v1/models lists no model")
    return models[0].id


async def ask(
    client: httpx2.AsyncClient, question: Question, *, clock: Callable[[], float]
) -> Sample:
    """Send `question` and read its answer to the end; whatever the server does is in the sample."""
    asking = _Asking(question, clock)
    try:
        async with asyncio.timeout(client.timeout.read):
            await asking.run(client)
    except (TimeoutError, httpx2.TimeoutException) as error:
        connecting = isinstance(error, httpx2.ConnectTimeout)
        asking.fail(
            Fault.CONNECT if connecting else Fault.TIMEOUT,
            f"no {'connection' if connecting else 'end'} within {clock() - asking.sent_at:.1f} s",
        )
    except httpx2.ConnectError as error:
        asking.fail(Fault.CONNECT, _words(error))
    except httpx2.HTTPError as error:
        asking.fail(Fault.LOST if asking.status is None else Fault.CUT, _words(error))
    return asking.sample()


class _Asking:
    """One request under way."""

    def __init__(self, question: Question, clock: Callable[[], float]) -> None:
        self.status: int | None = None
        self.sent_at = clock()
        self._clock = clock
        self._question = question
        self._headers: Mapping[str, str] = {}
        self._fault: Fault | None = None
        self._error: str | None = None
        self._reading = Reading(_DIALECTS.get(question.path, Dialect.OPENAI_CHAT))
        self._ended_at = self.sent_at

    async def run(self, client: httpx2.AsyncClient) -> None:
        question = self._question
        headers = {"content-type": "application/json"}
        async with client.stream(
            "POST", question.path, content=question.body, headers=headers
        ) as response:
            self.status = response.status_code
            self._headers = response.headers
            if response.status_code != _OK:
                self._refuse(response.status_code, await _some(response))
            elif not response.headers.get("content-type", "").startswith("text/event-stream"):
                self.fail(Fault.NO_STREAM, said(await _some(response)))
            else:
                async for piece in response.aiter_raw():
                    self._reading.feed(piece, self._clock())
                self._ended_at = self._clock()
                self._reading.watch.finish(self._ended_at)
                self._judge()

    def fail(self, fault: Fault, error: str) -> None:
        """Note a bad end, unless the server has given a reason for it already."""
        self._ended_at = self._clock()
        if self.status == _OK and self._reading.error is not None:
            self._judge()
        elif self._error is None:
            self._fault, self._error = fault, error

    def sample(self) -> Sample:
        """What came of it."""
        reading, last = self._reading, self._reading.last()
        return Sample(
            sent_at=self.sent_at,
            first_token_seconds=self._since(reading.first_token_at),
            last_token_seconds=self._since(last.token_at),
            duration_seconds=self._ended_at - self.sent_at,
            prompt_tokens=reading.watch.prompt_tokens,
            output_tokens=reading.watch.completion_tokens,
            finish_reason=last.finish_reason,
            acceptance_length=last.acceptance_length,
            status=self.status,
            error=self._error,
            upstream=self._headers.get("x-specswitch-upstream"),
            reason=self._headers.get("x-specswitch-reason"),
            fault=self._fault,
            sequences=self._question.sequences,
        )

    def _refuse(self, status: int, body: bytes) -> None:
        fault = Fault.REFUSED if status in _REFUSALS else Fault.STATUS
        self.fail(fault, f"{status}: {said(body)}")

    def _judge(self) -> None:
        """Whether a stream that is over was a good one."""
        code = self._reading.error
        if code is not None:
            refusal = code in _REFUSALS or code == _BACKPRESSURE
            self._fault = Fault.REFUSED if refusal else Fault.ERROR_EVENT
            self._error = f"an error event inside a 200: {code}: {self._reading.last().message}"
        elif not self._reading.watch.ended:
            self._fault, self._error = Fault.UNFINISHED, "the stream ended without [DONE]"

    def _since(self, at: float | None) -> float | None:
        return None if at is None else at - self.sent_at


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def _some(response: httpx2.Response) -> bytes:
    """The body of an answer, of a long one its beginning."""
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > _ERROR_BYTES:
            break
    return body


def _words(error: httpx2.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
