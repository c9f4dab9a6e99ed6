"""Two fitted curves side by side: which server is ahead, where that changes, and how sure it is.

Pure; the verdict is drawn in `crossover`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log
from random import Random
from statistics import fmean
from typing import Final

from proxy.core.words import UpstreamName
from proxy.tools.curves.fit import Fit, refit

_STEP: Final = 1.06
"""From one number in flight to the next at which the curves are compared: two crossings closer
than this are none that anybody could use."""

_TURNS: Final = 24
"""Halvings of such a step: far below any noise."""

_LEAST_MOVE: Final = 0.1
"""A factor of noise stays above 0, however bad the data are."""

EDGE: Final = 0.05
"""What a 90 % interval leaves out at each end."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the two curves meet."""

    in_flight: float
    ends_lead: bool
    """Whether spec is ahead below it and base above, as speculation does."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The curves of both servers."""

    spec: Fit
    base: Fit

    @property
    def reach(self) -> float:
        """The most in flight that was measured on both."""
        return min(fit.points[-1].concurrency for fit in (self.spec, self.base))

    def of(self, name: UpstreamName) -> Fit:
        """The curve of the server called `name`."""
        return self.spec if name is UpstreamName.SPEC else self.base

    def lead(self, in_flight: float) -> float:
        """X_spec / X_base: above 1 where speculation pays."""
        spec = self.spec.seconds_per_token(in_flight)
        return self.base.seconds_per_token(in_flight) / spec

    def steps(self) -> list[float]:
        """Numbers in flight from 1 to the reach, evenly spaced as a factor."""
        count = max(1, ceil(log(max(self.reach, _STEP)) / log(_STEP)))
        return [self.reach ** (step / count) for step in range(count + 1)]

    def crossings(self) -> tuple[Crossing, ...]:
        """All of them between 1 and the reach, ascending."""
        leads = [(n, self.lead(n) > 1.0) for n in self.steps()]
        return tuple(
            Crossing(self._narrow(low, high, ahead=ahead), ahead)
            for (low, ahead), (high, still) in pairwise(leads)
            if still is not ahead
        )

    def _narrow(self, low: float, high: float, *, ahead: bool) -> float:
        for _ in range(_TURNS):
            middle = (low + high) / 2.0
            if (self.lead(middle) > 1.0) is ahead:
                low = middle
            else:
                high = middle
        return (low + high) / 2.0


def redrawn(pairing: Pairing, random: Random) -> Pairing:
    """The pair as another calibration might have found it: one replicate of the bootstrap.

    Requests are drawn again within their cell, and each run is moved by the noise between runs.
    Where a curve holds less well than the noise explains, that noise is taken larger by as much, so
    that an interval is not narrow for a curve that does not fit.
    """
    return Pairing(*(_redrawn(fit, random) for fit in (pairing.spec, pairing.base)))


def _redrawn(fit: Fit, random: Random) -> Fit:
    seconds = [
        fmean(random.choices(point.samples, k=len(point.samples)))
        * max(_LEAST_MOVE, random.gauss(1.0, fit.noise(point)))
        for point in fit.points
    ]
    return refit(fit, seconds, random.random())


@dataclass(frozen=True, slots=True)
class Spread:
    """What the replicates say together."""

    alone: Sequence[float]
    """The lead of spec with one sequence in flight, ascending."""
    best: Sequence[float]
    """Its largest lead anywhere, ascending."""
    first: Sequence[float]
    """Where its lead first ends, ascending: 1 where there is none from the start, the reach where
    it lasts."""
    crossing: float
    """The share of replicates in which a lead ends on the way."""
    lasting: float
    """The share in which spec is ahead from 1 to the reach."""
    surely: Sequence[tuple[float, float, float]]
    """(in flight, lower, upper end) of its lead."""

    @classmethod
    def of(cls, replicates: Sequence[Pairing]) -> "Spread":
        """Of replicates of one pair."""
        firsts = [_first_end(pairing) for pairing in replicates]
        count = len(replicates)
        ends = [
            p.reach if first is None else first for p, first in zip(replicates, firsts, strict=True)
        ]
        return cls(
            alone=sorted(pairing.lead(1.0) for pairing in replicates),
            best=sorted(max(map(pairing.lead, pairing.steps())) for pairing in replicates),
            first=sorted(ends),
            crossing=sum(first is not None and first > 1.0 for first in firsts) / count,
            lasting=firsts.count(None) / count,
            surely=[_lead_of(replicates, step) for step in replicates[0].steps()],
        )

    def parts(self, in_flight: float) -> bool:
        """Whether spec is surely ahead somewhere below this number, and surely behind above it.

        Two curves that run close together cross somewhere by chance, and often at a like place in
        all replicates; neither a gain below it nor a loss above it follows from that.
        """
        ahead = any(n <= in_flight and low > 1.0 for n, low, _ in self.surely)
        return ahead and any(n >= in_flight and high < 1.0 for n, _, high in self.surely)


def _lead_of(replicates: Sequence[Pairing], in_flight: float) -> tuple[float, float, float]:
    leads = sorted(pairing.lead(in_flight) for pairing in replicates)
    return in_flight, quantile(leads, EDGE), quantile(leads, 1.0 - EDGE)


def _first_end(pairing: Pairing) -> float | None:
    """Where the lead of spec first ends; 1 if it never has one there, None if it lasts."""
    if pairing.lead(1.0) <= 1.0:
        return 1.0
    found = pairing.crossings()
    return found[0].in_flight if found else None


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value that `share` of them lie below, on the line between its neighbours."""
    place = share * (len(ascending) - 1)
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (place - low) * (ascending[high] - ascending[low])
