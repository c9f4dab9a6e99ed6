"""How long prompts and replies are: distributions to draw from, with their moments.

A length is a whole number of tokens, at least 1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from random import Random
from typing import Final, Protocol


class Lengths(Protocol):
    """A distribution of lengths."""

    @property
    def mean(self) -> float:
        """Tokens, before they are rounded to whole ones."""
        ...

    def at(self, share: float) -> int:
        """The length that `share` of all are at most as long as: 0 the shortest, below 1."""
        ...


def draw(lengths: Lengths, random: Random) -> int:
    """One length."""
    return lengths.at(random.random())


def spread(lengths: Lengths, count: int, random: Random) -> list[int]:
    """So many lengths, evenly over the distribution and shuffled: few have its moments too."""
    drawn = [lengths.at((place + 0.5) / count) for place in range(count)]
    random.shuffle(drawn)
    return drawn


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Lengths between known quantiles, evenly spread from one to the next."""

    knots: tuple[tuple[float, float], ...]
    """(share, tokens), both ascending, from share 0 to share 1."""

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.knots]
        tokens = [length for _, length in self.knots]
        if shares[0] != 0.0 or shares[-1] != 1.0 or tokens[0] < 1.0:
            raise ValueError("quantiles go from share 0 to share 1 and start at a token")
        if not _ascending(shares) or not _ascending(tokens):
            raise ValueError("quantiles are not in ascending order")

    @property
    def mean(self) -> float:
        """Tokens."""
        return sum(
            (share - before) * (length + shorter) / 2
            for (before, shorter), (share, length) in pairwise(self.knots)
        )

    def at(self, share: float) -> int:
        """On the straight line between the two quantiles around it."""
        place = bisect_right(self.knots, share, key=lambda knot: knot[0])
        (before, shorter), (after, longer) = self.knots[place - 1], self.knots[place]
        return round(shorter + (longer - shorter) * (share - before) / (after - before))


def _ascending(values: Sequence[float]) -> bool:
    return all(one <= following for one, following in pairwise(values))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Lengths without memory: what value iteration assumes."""

    mean: float

    def at(self, share: float) -> int:
        """As it falls, but none shorter than a token."""
        return max(1, round(-self.mean * log(1.0 - share)))


@dataclass(frozen=True, slots=True)
class Constant:
    """All of the same length."""

    tokens: int

    @property
    def mean(self) -> float:
        """Tokens."""
        return float(self.tokens)

    def at(self, share: float) -> int:  # noqa: ARG002 - it is the same for all
        """The length."""
        return self.tokens


# The quantiles are those of the conversation trace of 2023 in the Azure public dataset (CC-BY,
# 19,366 requests), read off at these shares. The trace is uneven: replies crowd around 90 and
# around 400 tokens, prompts around 400 and around 1,050, so no lognormal fits it. Its own moments:
# prompts mean 1154.7, median 1020; replies mean 211.1, median 129, 95 % at most 451. Between the
# two lengths of a request there is next to no correlation (-0.11), so they are drawn apart.

CONVERSATION_PROMPTS: Final = Quantiles(
    (
        (0.0, 2),
        (0.01, 29),
        (0.05, 181),
        (0.1, 207),
        (0.15, 372),
        (0.35, 414),
        (0.38, 433),
        (0.4, 703),
        (0.45, 984),
        (0.5, 1020),
        (0.7, 1130),
        (0.8, 1315),
        (0.82, 1369),
        (0.85, 1877),
        (0.9, 2735),
        (0.91, 3292),
        (0.92, 4073),
        (0.95, 4083),
        (0.99, 4142),
        (0.999, 6212),
        (0.9999, 7930),
        (1.0, 14050),
    )
)

CONVERSATION_REPLIES: Final = Quantiles(
    (
        (0.0, 7),
        (0.01, 16),
        (0.05, 41),
        (0.1, 54),
        (0.2, 77),
        (0.3, 91),
        (0.4, 103),
        (0.45, 113),
        (0.5, 129),
        (0.6, 177),
        (0.65, 217),
        (0.66, 237),
        (0.67, 371),
        (0.7, 384),
        (0.8, 400),
        (0.9, 424),
        (0.95, 451),
        (0.98, 540),
        (0.99, 601),
        (0.999, 954),
        (1.0, 1000),
    )
)
