"""Medians of pairs, and how sure they are.

A target is compared with another round by round: the two runs of a round met the same machine. The
figure is the median of the rounds' ratios. Its 90 % interval is that of order statistics: with n
rounds the k-th smallest and the k-th largest ratio, k the largest for which at least 90 % of all
samples would hold the median between them. It asks nothing of how the ratios are distributed
(Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2). With fifteen rounds these are
the fourth and the twelfth, which hold it in 96 of 100; with fewer than five there is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Final

CONFIDENCE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval."""

    value: float
    low: float | None
    """None where the rounds are too few for an interval."""
    high: float | None
    rounds: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Of one value for each round; None for none."""
    if not values:
        return None
    rank = rank_of(len(values))
    if rank is None:
        return Estimate(median(values), None, None, len(values))
    ordered = sorted(values)
    return Estimate(median(values), ordered[rank - 1], ordered[-rank], len(values))


def rank_of(count: int) -> int | None:
    """The k of the interval's ends among `count` values; None where even the extremes will not do.

    The median is outside with the probability that at most k - 1 of `count` fair coins are heads,
    twice.
    """
    outside, rank = 0.0, 0
    while True:
        outside += 2 * comb(count, rank) / 2**count
        if outside > 1 - CONFIDENCE:
            return rank or None
        rank += 1


def ratios(mine: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Of the rounds that both have, mine over the other's; rounds of nothing are left out."""
    return [mine[each] / other[each] for each in sorted(mine) if other.get(each)]


def added(mine: Mapping[int, float], direct: Mapping[int, float]) -> dict[int, float]:
    """What a target adds to asking directly, round by round."""
    return {each: mine[each] - direct[each] for each in mine if each in direct}
