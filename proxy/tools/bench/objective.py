"""What a set of samples amounts to: percentiles, goodput under an objective, ratios with intervals.

Pure. What is not known is None: a server that reports no usage has no TPOT, and its goodput is not
guessed at.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, sqrt
from random import Random
from statistics import fmean
from typing import Final

from proxy.tools.asking import Fault, Sample
from proxy.tools.bench.load import Shot, Volley

_RESAMPLES: Final = 1000
_LOW, _HIGH = 0.05, 0.95
"""Of the resamples: an interval of 90 %."""
_FEWEST_PAIRS: Final = 20
"""With fewer there are not enough blocks to draw from, and an interval would only look like one."""
_LATE_SHARE: Final = 0.1
"""Of the TTFT objective: a generator that is later than that has distorted what it measures."""
_MESSAGES: Final = 3


@dataclass(frozen=True, slots=True)
class Objective:
    """A request meets it with a first token within `ttft` and at most `tpot` for each after it.

    Both in seconds.
    """

    ttft: float
    tpot: float

    def met(self, sample: Sample) -> bool | None:
        """Whether a request met it; None where that hangs on token counts that nobody gave.

        One that failed has not. One of a single token has no TPOT, and none that is too long.
        """
        first = sample.first_token_seconds
        if not sample.ok or first is None or first > self.ttft:
            return False
        if sample.seconds_per_token is not None:
            return sample.seconds_per_token <= self.tpot
        return None if sample.output_tokens is None else True


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a set of values: mean and percentiles, in their unit."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio and its interval of 90 %, None where there was too little for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of one endpoint at one level; rates are a second of `seconds`."""

    planned: int
    """Requests whose time had come before the end, or the interruption."""
    ok: int
    failed: int
    refused: int
    """429 and 503: the server's word that it is full."""
    unsent: int
    """Held back on this side."""
    faults: Mapping[Fault, int]
    """Of failed ones, by kind."""
    messages: tuple[str, ...]
    """What was said of the first few different ones."""
    seconds: float
    """From the start of each round to the end of its last answer, added up."""
    uncounted: int
    """Good answers without usage; with any, what hangs on token counts is None."""
    met: float | None
    """Share of `planned` that met the objective."""
    goodput: float | None
    """Requests that met it, a second."""
    tokens_per_second: float | None
    """Output tokens of good answers."""
    end_to_end: Spread | None
    first_token: Spread | None
    per_token: Spread | None
    spec_share: float | None
    """Of good answers that say who served them."""
    lateness: Spread | None
    """Of the generator, seconds."""
    late: bool
    """Whether it was so late that the figures are not to be trusted."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the `share` quantile of sorted `values`, between two of them by a straight line.

    This is Hyndman and Fan's definition 7, the usual one of numerical libraries.
    """
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def spread(values: Iterable[float]) -> Spread | None:
    """Return what there is to say of `values`; None of none."""
    found = sorted(values)
    if not found:
        return None
    return Spread(fmean(found), *(percentile(found, share) for share in (0.5, 0.95, 0.99)))


def figures(fired: Sequence[tuple[Sequence[Shot], Volley]], objective: Objective) -> Figures:
    """Return what the rounds of one endpoint at one level amount to."""
    samples = [sample for _, volley in fired for sample in volley.samples if sample is not None]
    good = [sample for sample in samples if sample.ok]
    failed = [sample for sample in samples if not sample.ok and not sample.refused]
    unsent = sum(len(volley.unsent) for _, volley in fired)
    planned = len(samples) + unsent
    seconds = sum(volley.ended_at - volley.started_at for _, volley in fired)
    uncounted = sum(sample.output_tokens is None for sample in good)
    met = _number_met(samples, objective)
    lateness = spread(late for shots, volley in fired for late in volley.lateness(shots))
    return Figures(
        planned=planned,
        ok=len(good),
        failed=len(failed),
        refused=len(samples) - len(good) - len(failed),
        unsent=unsent,
        faults=dict(Counter(sample.fault for sample in failed if sample.fault is not None)),
        messages=_messages(failed),
        seconds=seconds,
        uncounted=uncounted,
        met=None if met is None or not planned else met / planned,
        goodput=None if met is None or not seconds else met / seconds,
        tokens_per_second=None if uncounted or not seconds else _tokens(good) / seconds,
        end_to_end=spread(sample.duration_seconds for sample in good),
        first_token=spread(_known(good, first_token_of)),
        per_token=None if uncounted else spread(_known(good, per_token_of)),
        spec_share=_spec_share(good),
        lateness=lateness,
        late=lateness is not None and lateness.p99 > _LATE_SHARE * objective.ttft,
    )


def end_to_end_of(sample: Sample) -> float | None:
    """Seconds to the end of an answer."""
    return sample.duration_seconds


def first_token_of(sample: Sample) -> float | None:
    """TTFT, seconds."""
    return sample.first_token_seconds


def per_token_of(sample: Sample) -> float | None:
    """TPOT, seconds."""
    return sample.seconds_per_token


def values(
    fired: Sequence[tuple[Sequence[Shot], Volley]], value: Callable[[Sample], float | None]
) -> list[float | None]:
    """Return a value of each shot, in the order of the plan; None of those without a good end."""
    return [
        None if sample is None or not sample.ok else value(sample)
        for _, volley in fired
        for sample in volley.samples
    ]


def marks(
    fired: Sequence[tuple[Sequence[Shot], Volley]], objective: Objective
) -> list[float | None]:
    """Return 1 for each shot that met the objective, 0 where it did not, None for unknown."""
    return [
        _mark(index, sample, volley, objective)
        for _, volley in fired
        for index, sample in enumerate(volley.samples)
    ]


def ratio(
    ours: Sequence[float | None], theirs: Sequence[float | None], random: Random
) -> Ratio | None:
    """Return the mean of `ours` over that of `theirs`, of the shots that have a value in both.

    The interval is from a circular block bootstrap (Politis and Romano 1992) of the pairs: requests
    that were under way together were slow together, and drawing them one by one would make the
    interval too small. Blocks are as long as the root of their number.
    """
    pairs = [
        (one, other)
        for one, other in zip(ours, theirs, strict=False)
        if one is not None and other is not None
    ]
    whole = _quotient(sum(one for one, _ in pairs), sum(other for _, other in pairs))
    if whole is None:
        return None
    if len(pairs) < _FEWEST_PAIRS:
        return Ratio(whole)
    found = sorted(one for one in _resampled(pairs, random) if one is not None)
    return Ratio(whole, percentile(found, _LOW), percentile(found, _HIGH))


def _resampled(pairs: Sequence[tuple[float, float]], random: Random) -> Iterator[float | None]:
    count = len(pairs)
    block = round(sqrt(count))
    draws = ceil(count / block)
    around = [*pairs, *pairs[:block]]
    ours = list(accumulate((one for one, _ in around), initial=0.0))
    theirs = list(accumulate((other for _, other in around), initial=0.0))
    for _ in range(_RESAMPLES):
        starts = [random.randrange(count) for _ in range(draws)]
        yield _quotient(
            sum(ours[start + block] - ours[start] for start in starts),
            sum(theirs[start + block] - theirs[start] for start in starts),
        )


def _quotient(one: float, other: float) -> float | None:
    return one / other if other > 0.0 else None


def _number_met(samples: Sequence[Sample], objective: Objective) -> int | None:
    met = [objective.met(sample) for sample in samples]
    return None if None in met else sum(map(bool, met))


def _mark(index: int, sample: Sample | None, volley: Volley, objective: Objective) -> float | None:
    if sample is None:
        return 0.0 if index in volley.unsent else None
    met = objective.met(sample)
    return None if met is None else float(met)


def _known(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> Iterator[float]:
    return (found for found in map(value, samples) if found is not None)


def _tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.output_tokens or 0 for sample in samples)


def _spec_share(samples: Sequence[Sample]) -> float | None:
    told = [sample.upstream for sample in samples if sample.upstream is not None]
    return told.count("spec") / len(told) if told else None


def _messages(samples: Sequence[Sample]) -> tuple[str, ...]:
    said = dict.fromkeys(sample.error for sample in samples if sample.error is not None)
    return tuple(said)[:_MESSAGES]
