"""The pages of the pair as one server: what each server is asked for, and what is made of it.

A page is asked for when it is asked for, of both at the same time. One server is enough: what it
says is answered, and that the other is missing. Where neither gives one, an engine's own refusal
passes (it has no such page, or the query makes no sense to it), else there is no upstream.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode

from proxy.control.engine import MAX_ANSWER_BYTES, MAX_METRICS_BYTES, Answer, Question
from proxy.control.one_load import RANKS, one_load, prometheus
from proxy.control.one_metrics import METRICS_TYPE, one_metrics
from proxy.control.one_server import one_server
from proxy.core.errands import Errand, Reply, Result
from proxy.core.refusals import RETRY_AFTER_DOWN
from proxy.core.words import UpstreamName
from proxy.errors import EngineError, EngineSilentError, EngineUnaskedError, NoUpstream

T = TypeVar("T")
Heard: TypeAlias = Mapping[UpstreamName, Answer | EngineError]
"""What each server has answered, or why it has not."""

ABSENT: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
JSON: Final = "application/json"
_PROMETHEUS: Final = "prometheus"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page."""

    paths: tuple[str, ...]
    """Where a server has it; the later ones are those of older versions."""
    most: int
    """Bytes of a server's answer."""
    query: Callable[[bytes], bytes]
    """What of the client's query the servers are asked with."""
    matters: Callable[[bytes], bytes]
    """What of it makes a difference, to the servers or here, in one way of writing it."""
    read: Callable[[bytes], T]
    """Raises ValueError or RecursionError where it is not what SGLang answers."""
    made: Callable[[Errand, Mapping[UpstreamName, T], Mapping[UpstreamName, str], int], Reply]
    """The pair's, of those that were read, of what is to be said of each, and of how many requests
    wait here."""

    def alike(self, errand: Errand) -> Errand:
        """One that is answered as `errand` is, and the same for all that are."""
        return replace(errand, template=self.paths[0], query=self.matters(errand.query))

    def questions(self, errand: Errand) -> tuple[Question, ...]:
        """What a server is asked, in turn, while it does not have it."""
        query = self.query(errand.query)
        return tuple(
            Question(method="GET", path=path, query=query, most=self.most) for path in self.paths
        )

    def result(self, errand: Errand, heard: Heard, waiting: int) -> Result:
        """What becomes of the servers' answers, while `waiting` requests wait here."""
        read: dict[UpstreamName, T] = {}
        said: dict[UpstreamName, str] = {}
        for name, answer in heard.items():
            if isinstance(answer, EngineError):
                said[name] = _why(answer)
            elif answer.status != HTTPStatus.OK:
                said[name] = f"answers {answer.status}"
            else:
                try:
                    read[name] = self.read(answer.body)
                    said[name] = "ok"
                except (ValueError, RecursionError):
                    said[name] = "does not answer as SGLang does"
        if not read:
            return _none(heard, said)
        return self.made(errand, read, said, waiting)


def _why(error: EngineError) -> str:
    """In words that hold no address, which is nobody's business here."""
    if isinstance(error, EngineSilentError):
        return "did not answer in time"
    if isinstance(error, EngineUnaskedError):
        return "was not asked: no file descriptor is free"
    return "could not be asked"


def _none(heard: Heard, said: Mapping[UpstreamName, str]) -> Result:
    for name in (UpstreamName.BASE, UpstreamName.SPEC):
        answer = heard[name]
        if isinstance(answer, Answer) and _passes(answer.status):
            # As it came, like every answer of an engine that is no page of the pair.
            return Reply(
                status=answer.status, content_type=answer.content_type or JSON, body=answer.body
            )
    why = ", ".join(f"{name} {what}" for name, what in said.items())
    return NoUpstream(f"no upstream could tell: {why}", retry_after=RETRY_AFTER_DOWN)


def _passes(status: int) -> bool:
    """Whether it is a client's fault that we know the name of."""
    return 400 <= status < 500 and status in _KNOWN  # noqa: PLR2004 - RFC 9110 section 15.5


_KNOWN: Final = frozenset(each.value for each in HTTPStatus)


_DEEPEST: Final = 64
"""Levels of an answer; SGLang's have 5. What is made of one goes down once for each."""
_MOST: Final = 1e300
"""Of a figure; JSON has no infinity, and sums and means of smaller ones are none."""


def parsed(body: bytes) -> object:
    """JSON; what it cannot hold and engines write all the same (NaN) is null.

    Raises ValueError, also where a figure is too large or it is nested too deeply to make anything
    of it, or RecursionError.
    """
    value: object = json.loads(body, parse_constant=lambda _: None)
    level = [value]
    for _ in range(_DEEPEST):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, int | float) and abs(each) > _MOST:
                raise ValueError("a figure is too large")
        level = below
    if level:
        raise ValueError("nested too deeply")
    return value


def json_body(value: object) -> bytes:
    """`value` as it is sent."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _object(body: bytes) -> dict[str, object]:
    value = parsed(body)
    if not isinstance(value, dict):
        raise ValueError("no object")  # noqa: TRY004 - of its text, not of a type
    return value


def _loads(body: bytes) -> dict[str, object]:
    page = _object(body)
    if not isinstance(page.get("loads"), list):
        raise ValueError("no loads")  # noqa: TRY004 - the same
    return page


def _metrics_text(body: bytes) -> str:
    """One with nothing on it is a page, too: of a server that has served nobody yet."""
    page = body.decode()
    if page.strip() and not _OF_METRICS.search(page):
        raise ValueError("no metrics")
    return page


_OF_METRICS: Final = re.compile(r"^(?:# TYPE |# HELP |sglang:)", re.MULTILINE)


def _no_query(_query: bytes) -> bytes:
    return b""


def _server(
    _errand: Errand,
    pages: Mapping[UpstreamName, dict[str, object]],
    said: Mapping[UpstreamName, str],
    _waiting: int,
) -> Reply:
    body = json_body({**one_server(pages), "specswitch": said})
    return Reply(status=HTTPStatus.OK, content_type=JSON, body=body)


def _query_of_load(query: bytes) -> bytes:
    """Without what is ours: ranks are the pair's, and its format is made here."""
    return _encoded(_theirs(_pairs(query)))


def _what_matters_of_load(query: bytes) -> bytes:
    pairs = _pairs(query)
    asked, kept = dict(pairs), _theirs(pairs)
    rank = _rank(asked.get("dp_rank", ""))
    if rank is not None:  # all that the pair does not have are alike
        kept.append(("dp_rank", str(rank if rank in RANKS.values() else -1)))
    if asked.get("format") == _PROMETHEUS:
        kept.append(("format", _PROMETHEUS))
    return _encoded(kept)


def _theirs(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [each for each in pairs if not _is_ours(*each)]


def _encoded(pairs: list[tuple[str, str]]) -> bytes:
    return urlencode(pairs, encoding="latin-1").encode()


def _is_ours(name: str, value: str) -> bool:
    return (name == "dp_rank" and _rank(value) is not None) or name == "format"


def _rank(value: str) -> int | None:
    digits = value.removeprefix("-")
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else None


_DIGITS: Final = 9
"""More than any rank has; the engine says what it thinks of a longer one."""


def _pairs(query: bytes) -> list[tuple[str, str]]:
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")


def _load(
    errand: Errand,
    pages: Mapping[UpstreamName, dict[str, object]],
    said: Mapping[UpstreamName, str],
    waiting: int,
) -> Reply:
    asked = dict(_pairs(errand.query))
    made = one_load(pages, _rank(asked.get("dp_rank", "")), waiting=waiting)
    if asked.get("format") == _PROMETHEUS:
        loads = made["loads"]
        assert isinstance(loads, list)  # noqa: S101 - as it is made
        text = "".join(f"# specswitch: {note}\n" for note in _notes(said)) + prometheus(loads)
        return Reply(status=HTTPStatus.OK, content_type=METRICS_TYPE, body=text.encode())
    body = json_body({**made, "specswitch": said})
    return Reply(status=HTTPStatus.OK, content_type=JSON, body=body)


def _metrics(
    _errand: Errand,
    pages: Mapping[UpstreamName, str],
    said: Mapping[UpstreamName, str],
    waiting: int,
) -> Reply:
    text = one_metrics(pages, _notes(said), waiting=waiting)
    return Reply(status=HTTPStatus.OK, content_type=METRICS_TYPE, body=text.encode())


def _notes(said: Mapping[UpstreamName, str]) -> list[str]:
    return [f"{name} {what}" for name, what in said.items() if what != "ok"]


_SERVER: Final = Page(
    paths=("/server_info", "/get_server_info"),
    most=MAX_ANSWER_BYTES,
    query=_no_query,
    matters=_no_query,
    read=_object,
    made=_server,
)
_LOAD: Final = Page(
    paths=("/v1/loads",),
    most=MAX_ANSWER_BYTES,
    query=_query_of_load,
    matters=_what_matters_of_load,
    read=_loads,
    made=_load,
)
_METRICS: Final = Page(
    paths=("/metrics",),
    most=MAX_METRICS_BYTES,
    query=_no_query,
    matters=_no_query,
    read=_metrics_text,
    made=_metrics,
)
PAGES: Final[Mapping[str, Page[dict[str, object]] | Page[str]]] = {
    "/server_info": _SERVER,
    "/get_server_info": _SERVER,
    "/v1/loads": _LOAD,
    "/metrics": _METRICS,
}
"""By the route's template."""
