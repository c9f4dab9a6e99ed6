"""Traces of requests: read from a file, put to another rate, and one that is made here.

A file is CSV in the format of the Azure public dataset (`TIMESTAMP,ContextTokens,GeneratedTokens`),
CSV with the header `at,prompt_tokens,output_tokens`, or JSONL with these three in each line; `at`
is in seconds. Nothing is guessed or left out: one bad line and there is no trace.
"""

import csv
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from math import pi, sin
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

import msgspec

from proxy.errors import SpecswitchError
from proxy.sim.lengths import CONVERSATION_PROMPTS, CONVERSATION_REPLIES, spread

MOST_TOKENS: Final = 1_000_000
"""Of a prompt or a reply: far above any model's context, so more is a mistake in the file."""

_SYNTHETIC_COUNT: Final = 1500
_SYNTHETIC_RATE: Final = 5.5
"""Requests per second: 19,366 in the hour of the Azure conversation trace."""
_SYNTHETIC_SWING: Final = 0.38
"""The rate swings by so much, once. Counts in windows of a second then have a variance of
1 + rate * swing^2 / 2 = 1.4 times their mean, as in that trace (1.39)."""
_SYNTHETIC_SEED: Final = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace or of a workload."""

    at: float
    """Seconds since the start."""
    prompt_tokens: int
    output_tokens: int


def read(path: Path) -> tuple[Request, ...]:
    """The requests of a file; its first one is at 0.

    Raises:
        SpecswitchError: it cannot be read, holds no request, or has a bad line; the message names
            the file and the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecswitchError(f"{path}: {error.strerror or error}") from error
    return _parse(content, str(path))


@cache
def conversation() -> tuple[Request, ...]:
    """The trace that comes along: what `synthetic` makes."""
    found = files("proxy.sim") / "data" / "conversation.csv"
    return _parse(found.read_bytes(), "conversation.csv")


def rate(trace: Sequence[Request]) -> float:
    """Mean requests per second: gaps between requests over the time that they take.

    Raises:
        SpecswitchError: all are at one instant.
    """
    seconds = trace[-1].at - trace[0].at
    if seconds <= 0.0:
        raise SpecswitchError("a trace needs two requests that are not at the same time")
    return (len(trace) - 1) / seconds


def scaled(trace: Sequence[Request], to: float) -> tuple[Request, ...]:
    """The same requests at a mean rate of `to` per second; the first is at 0.

    Raises:
        SpecswitchError: all are at one instant.
    """
    factor = rate(trace) / to
    first = trace[0].at
    return tuple(replace(one, at=(one.at - first) * factor) for one in trace)


def written(trace: Sequence[Request]) -> str:
    """As a file that `read` reads: CSV with times to the millisecond."""
    lines = [f"{one.at:.3f},{one.prompt_tokens},{one.output_tokens}" for one in trace]
    return "\n".join(["at,prompt_tokens,output_tokens", *lines, ""])


def synthetic() -> tuple[Request, ...]:
    """A small trace with the moments of the Azure conversations of 2023, and nothing of theirs.

    Lengths are spread evenly over the distribution and shuffled, so that even a short trace has its
    mean and quantiles.
    """
    random = Random(_SYNTHETIC_SEED)  # noqa: S311 - draws lots, keeps no secret
    prompts = spread(CONVERSATION_PROMPTS, _SYNTHETIC_COUNT, random)
    replies = spread(CONVERSATION_REPLIES, _SYNTHETIC_COUNT, random)
    times = _swinging(_SYNTHETIC_COUNT, random)
    return tuple(Request(*one) for one in zip(times, prompts, replies, strict=True))


def _swinging(count: int, random: Random) -> list[float]:
    """Times of a Poisson process whose rate swings once; the first is 0."""
    period = count / _SYNTHETIC_RATE
    most = 1.0 + _SYNTHETIC_SWING
    now, times = 0.0, [0.0]
    while len(times) < count:
        now += random.expovariate(_SYNTHETIC_RATE * most)
        factor = 1.0 + _SYNTHETIC_SWING * sin(2.0 * pi * now / period)
        if random.random() * most < factor:  # thinning
            times.append(round(now, 3))
    return times


class _Line(msgspec.Struct):
    at: float
    prompt_tokens: int
    output_tokens: int


_LINE: Final = msgspec.json.Decoder(_Line)

_Reader = Callable[[str], Request]
"""Makes a request of one line; ValueError says what is wrong with it."""


def _parse(content: bytes, name: str) -> tuple[Request, ...]:
    reader: _Reader | None = None
    requests: list[Request] = []
    for number, raw in enumerate(content.removeprefix(BOM_UTF8).splitlines(), start=1):
        if not raw.strip():
            continue
        try:
            line = raw.decode()
            if reader is None and not line.startswith("{"):
                reader = _csv_reader(line)
                continue
            reader = reader or _json_line
            requests.append(_checked(reader(line), after=requests[-1:]))
        except (ValueError, csv.Error, msgspec.DecodeError) as error:
            raise SpecswitchError(f"{name}, line {number}: {error}") from error
    if not requests:
        raise SpecswitchError(f"{name}: there is no request in it")
    first = requests[0].at
    return tuple(replace(one, at=one.at - first) for one in requests)


def _json_line(line: str) -> Request:
    read_line = _LINE.decode(line)
    return Request(read_line.at, read_line.prompt_tokens, read_line.output_tokens)


def _csv_reader(header: str) -> _Reader:
    names = ",".join(name.strip() for name in _cells(header))
    read_time = _HEADERS.get(names)
    if read_time is None:
        known = " or ".join(_HEADERS)
        raise ValueError(f"neither JSON nor a known header: expected {known}")

    def reader(line: str) -> Request:
        cells = _cells(line)
        if len(cells) != _COLUMNS:
            raise ValueError(f"{len(cells)} columns where there should be {_COLUMNS}")
        return Request(read_time(cells[0]), _tokens(cells[1]), _tokens(cells[2]))

    return reader


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]))]


def _tokens(cell: str) -> int:
    # int() alone takes "1_000", "+5" and digits of other scripts
    if not (cell.isascii() and cell.isdigit()) or len(cell) > _MOST_DIGITS:
        raise ValueError(f"not a number of tokens: {cell[:40]!r}")
    return int(cell)


def _seconds(cell: str) -> float:
    if "_" in cell:
        raise ValueError(f"not a time in seconds: {cell[:40]!r}")
    return float(cell)


def _timestamp(cell: str) -> float:
    """Azure's have no zone in 2023 and one in 2024; digits below a microsecond are cut off."""
    moment = datetime.fromisoformat(cell)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_COLUMNS: Final = 3
_MOST_DIGITS: Final = 12
_HEADERS: Final[Mapping[str, Callable[[str], float]]] = MappingProxyType(
    {
        "TIMESTAMP,ContextTokens,GeneratedTokens": _timestamp,
        "at,prompt_tokens,output_tokens": _seconds,
    }
)
"""With how each writes its times."""


_LATEST: Final = 1e10
"""Seconds: three hundred years, since 1970 or since the trace began."""


def _checked(one: Request, *, after: Sequence[Request]) -> Request:
    if not abs(one.at) <= _LATEST:
        raise ValueError(f"not a time: {one.at}")
    if after and one.at < after[-1].at:
        raise ValueError("it comes before the request above it")
    for what, tokens in (("prompt", one.prompt_tokens), ("output", one.output_tokens)):
        if not 1 <= tokens <= MOST_TOKENS:
            raise ValueError(f"{tokens} {what} tokens; 1 to {MOST_TOKENS} are possible")
    return one
