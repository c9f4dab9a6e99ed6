"""What a closed loop measured at one concurrency, and whether it can be believed. Pure.

A cell keeps `concurrency` requests in flight, all of one output length. What is wanted of it is the
time of a decode step for so many sequences, so what else a client sees is taken out: while the
server fills another request's prompt, decoding stands still (SGLang's default), and for a moment
after each end there is one sequence less. Both would be charged to the curve, and the first a
second time when a queue is computed from curve and prefill.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from statistics import fmean, median
from typing import Final

from proxy.core.curves import Prefill
from proxy.core.words import UpstreamName
from proxy.tools.asking import Sample
from proxy.tools.curves.cells import BadDataError

_MOST_STALLED: Final = 0.8
"""The share of a cell's decoding that others' prompts may take; with more the rest is a difference
of two large numbers."""
_LEAST_LEFT: Final = 0.05
"""The share of one answer that is left of it at least: a time is above 0."""


_STREAMED: Final = 16
"""Output tokens from which on an answer that comes all at once was held back on its way: two or
three tokens may share a packet, or a verify round."""


class Part(StrEnum):
    """What a cell was measured for."""

    SWEEP = "sweep"  # this server alone
    BOTH = "both"  # both servers at once
    LONG = "long"  # alone, with long prompts


@dataclass(frozen=True, slots=True)
class Place:
    """Which cell: of it there may be several rounds."""

    part: Part
    server: UpstreamName
    concurrency: int

    def __str__(self) -> str:
        return f"{self.server} at concurrency {self.concurrency}" + _BESIDE[self.part]


_BESIDE: Final = {Part.SWEEP: "", Part.BOTH: " beside the other", Part.LONG: ", long prompts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One request of a cell; seconds from the start of the cell."""

    prompt: int
    """Its place in the list of prompts."""
    measured: bool
    """Whether it counts; others only keep the number in flight where it is."""
    sent: float
    first: float | None = None
    """Its first token; None for one that was given up when the cell was over."""
    last: float | None = None
    ended: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One round of a cell."""

    place: Place
    requests: tuple[Timed, ...]
    late_seconds: float
    """Nine of ten looks at the clock were late by at most that: how much our own loop lagged."""
    started: float = 0.0
    """Seconds since calibration began, for a history."""

    @property
    def measured(self) -> tuple[Timed, ...]:
        """The requests that count."""
        return tuple(request for request in self.requests if request.measured)

    @property
    def rate(self) -> float:
        """Output tokens/s of all of them, prompts included: by Little's law from what each took."""
        took = sum(each.ended - each.sent for each in self.measured if each.ended is not None)
        tokens = sum(each.output_tokens or 0 for each in self.measured)
        return self.place.concurrency * tokens / took

    @property
    def first_token_seconds(self) -> float:
        """Median TTFT."""
        return median(each.first - each.sent for each in self.measured if each.first is not None)

    @property
    def seconds_per_token(self) -> float:
        """Median TPOT as a client sees it, others' prompts included."""
        return median(decode / (tokens - 1) for _, decode, tokens in _decodes(self.measured))

    @property
    def acceptance_length(self) -> float | None:
        """Mean over the requests that tell; None where none does."""
        told = [each.acceptance_length for each in self.measured]
        known = [length for length in told if length is not None]
        return fmean(known) if known else None

    @property
    def prompt_tokens(self) -> float:
        """Mean."""
        return fmean(each.prompt_tokens or 0 for each in self.measured)


def timed(prompt: int, sample: Sample, *, measured: bool, origin: float) -> Timed:
    """A request of a cell that began at `origin`, as its sample tells."""
    sent = sample.sent_at - origin
    first, last = sample.first_token_seconds, sample.last_token_seconds
    return Timed(
        prompt=prompt,
        measured=measured,
        sent=sent,
        first=None if first is None else sent + first,
        last=None if last is None else sent + last,
        ended=sent + sample.duration_seconds,
        prompt_tokens=sample.prompt_tokens,
        output_tokens=sample.output_tokens,
        acceptance_length=sample.acceptance_length,
    )


def flaw(sample: Sample, asked: int) -> str | None:
    """What is wrong with an answer for which `asked` tokens were asked; None if nothing is."""
    if sample.error is not None:
        return sample.error
    if sample.output_tokens is None or sample.prompt_tokens is None:
        return "it reports no usage, and chunks cannot be counted: speculation fills them"
    if sample.output_tokens != asked:
        end = sample.finish_reason or "unknown"
        return (
            f"{sample.output_tokens} tokens where {asked} were asked for with ignore_eos "
            f"(finish_reason {end})"
        )
    if sample.first_token_seconds is None or sample.last_token_seconds is None:
        return "no token was seen"
    times = (sample.first_token_seconds, sample.last_token_seconds, sample.duration_seconds)
    if not all(isfinite(each) for each in times):
        return "its times are no numbers"
    if asked >= _STREAMED and sample.last_token_seconds <= sample.first_token_seconds:
        return "all its tokens came at one instant: something between holds the stream back"
    return None


def check(found: Measurement, most_late: float) -> None:
    """Raise BadDataError where our own loop was too late to be believed.

    `most_late` is the share of a median decode by which the clock may be late: an arrival is seen
    late by that, at both ends.
    """
    usual = median(decode for _, decode, _ in _decodes(found.measured))
    if found.late_seconds > most_late * usual:
        raise BadDataError(
            f"{found.place}: this machine was {found.late_seconds * 1e3:.1f} ms late for its clock "
            f"while an answer took {usual * 1e3:.0f} ms. Measure from a machine that is less busy, "
            f"up to a lower concurrency, or with more output tokens"
        )


def step_seconds(found: Measurement, prefill: Prefill) -> list[float]:
    """Seconds per output token of each measured request, without others' prompts.

    What a prompt takes is what `prefill` says, but never more than that request itself waited: a
    prompt whose beginning is in the server's cache is filled faster. It counts as far as it falls
    into the time of the answer: prompts that are filled together hold up nobody among them.

    Raises:
        BadDataError: hardly anything is left.
    """
    stops = list(_stops(found, prefill))
    answers = [
        (decode, _overlap(stops, request), tokens)
        for request, decode, tokens in _decodes(found.measured)
    ]
    share = sum(stalled for _, stalled, _ in answers) / sum(decode for decode, _, _ in answers)
    if share > _MOST_STALLED:
        raise BadDataError(
            f"{found.place}: others' prompts took {share:.0%} of the time of an answer. "
            f"Use shorter prompts or more output tokens"
        )
    return [
        max(decode - stalled, _LEAST_LEFT * decode) / (tokens - 1)
        for decode, stalled, tokens in answers
    ]


def in_flight(found: Measurement, prefill: Prefill) -> float:
    """How many sequences a decode step had, seen by one of them: itself and the others' share.

    Another one is missing while it waits to be admitted, which is what its TTFT has beyond its
    prefill, and between its end and its successor.
    """
    decoding = missing = 0.0
    for request, decode, _ in _decodes(found.measured):
        waited = (request.first or 0.0) - request.sent
        decoding += decode
        missing += max(0.0, waited - prefill.seconds(request.prompt_tokens or 0))
        missing += (request.ended or 0.0) - (request.last or 0.0)
    others = found.place.concurrency - 1
    return 1.0 + others * decoding / (decoding + missing)


def _decodes(requests: Sequence[Timed]) -> Iterator[tuple[Timed, float, int]]:
    """Each request with the seconds after its first token, and its tokens."""
    for each in requests:
        if each.first is not None and each.last is not None and each.output_tokens:
            yield each, each.last - each.first, each.output_tokens


def _stops(found: Measurement, prefill: Prefill) -> Iterator[tuple[float, float]]:
    """When each request's prompt was filled, and for how long decoding stood still for it.

    Only what grows with the prompt counts: the fixed part of a time to a first token, as a client
    sees it, is mostly its way there and back.
    """
    sizes = _sizes(found.requests)
    for each in found.requests:
        seconds = prefill.per_token * sizes.get(each.prompt, 0.0)
        if each.first is None:  # given up at the end of the cell
            yield each.sent + prefill.fixed + seconds, seconds
        else:
            yield each.first, min(seconds, each.first - each.sent)


def _sizes(requests: Sequence[Timed]) -> Mapping[int, float]:
    """Tokens of each prompt, by its place in the list."""
    return {each.prompt: each.prompt_tokens for each in requests if each.prompt_tokens is not None}


def _overlap(stops: Sequence[tuple[float, float]], own: Timed) -> float:
    """Seconds of the prompts in `stops`, (end, seconds), that fall into the time of an answer."""
    first, last = own.first or 0.0, own.last or 0.0
    return sum(max(0.0, min(at, last) - max(at - seconds, first)) for at, seconds in stops)
