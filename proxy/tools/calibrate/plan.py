"""Which cells to measure, in which order, when it is enough, and how long it takes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.core.words import UpstreamName
from proxy.tools.calibrate.cells import Part, Place

LEVELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Concurrencies, about evenly spaced on a logarithmic scale: policy.md F3.2's."""

_FEWEST: Final = 16
_PER_SEQUENCE: Final = 2
"""max(16, 2C) requests a cell give N* with a standard deviation of 6 %; more is wasted, since 25 %
off in N* costs 3 % of latency (a Monte Carlo with an acceptance that varies by 0.25)."""

_CLEARLY_BEHIND: Final = 0.85
"""Speculation's rate in shares of the other's, below which noise of a few per cent does not matter:
5 % in the ratio move N* by 10 to 13 %."""
_BEYOND: Final = 3.0
"""How many times N* is measured before it is enough: the queue of which the crossover rate is
computed grows that far now and then, and a curve says little beyond its points."""
_FEWEST_LEVELS: Final = 5
"""Points on a curve of three parameters, with some to tell how well it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured on each server alone."""

    levels: tuple[int, ...]
    """Concurrencies, ascending."""
    output_tokens: int
    """Of each request."""

    def cells(self, level: int) -> tuple[Place, Place]:
        """Both servers at one concurrency, in turn first and second (ABBA): what drifts with time
        (clocks, heat, other tenants) then falls on both alike.
        """  # noqa: D205 - the reason belongs to the sentence
        first = UpstreamName.SPEC if self.levels.index(level) % 2 == 0 else UpstreamName.BASE
        return (
            Place(Part.SWEEP, first, level),
            Place(Part.SWEEP, first.other, level),
        )

    @property
    def again(self) -> tuple[Place, Place]:
        """What is measured a second time when the sweep is over.

        Both servers where few are in flight, which was nearly first and does not take long: it
        tells how much a run moves on this machine, and whether the servers have changed meanwhile.
        """
        first, second = self.cells(self.levels[1])
        return second, first


@dataclass(frozen=True, slots=True)
class Pace:
    """A guess at a server's time per output token: alone + more for each further sequence."""

    alone: float
    more: float

    def seconds_per_token(self, concurrency: int) -> float:
        """At this concurrency."""
        return self.alone + self.more * (concurrency - 1)


def requests_of(concurrency: int) -> int:
    """How many requests of a cell count."""
    return max(_FEWEST, _PER_SEQUENCE * concurrency)


def fitting(levels: Sequence[int], *, most: int | None) -> tuple[int, ...]:
    """The levels up to `most` sequences, ascending, and `most` itself where it cuts any off.

    Beyond what both servers run at once a cell would measure a queue.
    """
    wanted = sorted(set(levels))
    if most is None or not wanted or wanted[-1] <= most:
        return tuple(wanted)
    return (*(level for level in wanted if level < most), most)


def enough(rates: Mapping[UpstreamName, Mapping[int, float]]) -> bool:
    """Whether what was measured, output tokens/s by concurrency, settles where the curves cross.

    It does once base is clearly ahead at the last two levels and the last one is far beyond the
    crossing. Where speculation is behind from the start, that is soon.
    """
    spec, base = rates[UpstreamName.SPEC], rates[UpstreamName.BASE]
    levels = sorted(spec.keys() & base.keys())
    if len(levels) < _FEWEST_LEVELS:
        return False
    shares = [spec[level] / base[level] for level in levels]
    ahead = [level for level, share in zip(levels, shares, strict=True) if share >= 1.0]
    far = not ahead or levels[-1] >= _BEYOND * ahead[-1]
    return far and all(share < _CLEARLY_BEHIND for share in shares[-2:])


def cell_seconds(pace: Pace, concurrency: int, output_tokens: int, requests: int) -> float:
    """About how long a cell takes: its warm-up, its requests, and those of the end."""
    rounds = (0.5 + requests / concurrency) + 0.5
    return rounds * output_tokens * pace.seconds_per_token(concurrency)


def sweep_seconds(plan: Plan, paces: Mapping[UpstreamName, Pace]) -> float:
    """At most how long the sweep takes: as if it did not end early."""
    places = [place for level in plan.levels for place in plan.cells(level)]
    return sum(
        cell_seconds(
            paces[place.server],
            place.concurrency,
            plan.output_tokens,
            requests_of(place.concurrency),
        )
        for place in (*places, *plan.again)
    )
