"""What a run amounts to: means, percentiles, shares; all in virtual seconds and output tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from statistics import fmean

from proxy.core.words import UpstreamName
from proxy.sim.run import Moment, Run, Served

_NEIGHBOURHOOD = 30.0
"""Seconds around an arrival in which its load is counted, to tell the quiet half from the busy."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request has to meet to count as good; seconds."""

    first_token: float = 1.0
    per_token: float = 0.02
    """A reader's patience ends far later; it is what a fast server should give."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A set of durations, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run in figures."""

    requests: int
    refused: int
    e2e: Spread
    first_token: Spread
    per_token: Spread
    """Of requests with at least two output tokens."""
    tokens_per_second: float
    """Output tokens from the first arrival to the last end."""
    goodput: float
    """The share of requests that met the objective."""
    switches_per_minute: float
    """Changes of where new requests go, between the first arrival and the last."""
    both_active: float
    """The share of time in which both engines had work."""
    on_spec: float
    """The share of output tokens that came from spec."""
    peak_spec: int
    """Most sequences on spec at one time."""
    quiet: float
    """Mean E2E of the half of the requests with the fewest others around them."""
    busy: float
    """Mean E2E of the other half."""


def spread(values: Sequence[float]) -> Spread:
    """Mean and percentiles; the percentile of a share is the smallest value that covers it."""
    if not values:
        return Spread(inf, inf, inf, inf)
    ordered = sorted(values)

    def percentile(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    return Spread(fmean(ordered), percentile(0.5), percentile(0.95), percentile(0.99))


def summarize(run: Run, objective: Objective) -> Result:
    """The figures of `run`.

    Raises:
        ValueError: nothing was served.
    """
    served = [one for one in run.served if not one.refused]
    if not served:
        raise ValueError("no request was served")
    arrivals = [one.request.at for one in run.served]
    span = max(one.end_at for one in served) - arrivals[0]
    minutes = (arrivals[-1] - arrivals[0]) / 60.0
    tokens = sum(one.request.output_tokens for one in served)
    quiet, busy = _halves(served)
    return Result(
        requests=len(run.served),
        refused=len(run.served) - len(served),
        e2e=spread([_e2e(one) for one in served]),
        first_token=spread([_first_token(one) for one in served]),
        per_token=spread([t for t in map(_per_token, served) if t is not None]),
        tokens_per_second=tokens / span,
        goodput=sum(_is_good(one, objective) for one in served) / len(run.served),
        switches_per_minute=len(run.changes) / minutes if minutes else 0.0,
        both_active=both_active(run.moments) / span,
        on_spec=_spec_tokens(served) / tokens,
        peak_spec=max(moment.spec for moment in run.moments),
        quiet=quiet,
        busy=busy,
    )


def _e2e(one: Served) -> float:
    return one.end_at - one.request.at


def _first_token(one: Served) -> float:
    return one.first_at - one.request.at


def _per_token(one: Served) -> float | None:
    """After the first token; None for a request of one token."""
    rest = one.request.output_tokens - 1
    return (one.end_at - one.first_at) / rest if rest else None


def _is_good(one: Served, objective: Objective) -> bool:
    per_token = _per_token(one)
    fast = per_token is None or per_token <= objective.per_token
    return fast and _first_token(one) <= objective.first_token


def _spec_tokens(served: Sequence[Served]) -> int:
    return sum(one.request.output_tokens for one in served if one.upstream is UpstreamName.SPEC)


def both_active(moments: Sequence[Moment]) -> float:
    """Seconds in which both engines had work."""
    return sum(after.at - before.at for before, after in pairwise(moments) if _both(before))


def _both(moment: Moment) -> bool:
    return moment.spec > 0 and moment.base > 0


def _halves(served: Sequence[Served]) -> tuple[float, float]:
    """Mean E2E of the quiet and of the busy half.

    By the tokens that arrive around a request and not by what is in flight, so that the halves are
    the same whatever the policy.
    """
    crowds = _crowds(served)
    order = sorted(range(len(served)), key=lambda index: (crowds[index], index))
    middle = (len(order) + 1) // 2
    halves = (order[:middle], order[middle:] or order[:middle])
    quiet, busy = (fmean(_e2e(served[index]) for index in half) for half in halves)
    return quiet, busy


def _crowds(served: Sequence[Served]) -> list[int]:
    """Output tokens that arrive within half the neighbourhood before or after each request."""
    crowds: list[int] = []
    low = high = tokens = 0
    for one in served:
        at = one.request.at
        while high < len(served) and served[high].request.at <= at + _NEIGHBOURHOOD / 2:
            tokens += served[high].request.output_tokens
            high += 1
        while served[low].request.at < at - _NEIGHBOURHOOD / 2:
            tokens -= served[low].request.output_tokens
            low += 1
        crowds.append(tokens)
    return crowds
