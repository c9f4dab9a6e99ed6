"""Counts and spreads that a request moves, as plain numbers; families for Prometheus at a scrape.

The library's own counters take a lock and several calls for each step, which every request pays a
dozen times over. Requests and scrapes share one thread, so no lock is needed. It knows no
prometheus_client either: `metrics` makes its families from what is here.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")


class Counts(Generic[K]):
    """How often each thing happened; those of a closed set are there from the start, at 0."""

    __slots__ = ("by",)

    def __init__(self, known: Iterable[K]) -> None:
        self.by: dict[K, int] = dict.fromkeys(known, 0)

    def add(self, what: K, count: int = 1) -> None:
        """It happened `count` times more."""
        self.by[what] = self.by.get(what, 0) + count


@dataclass(frozen=True, slots=True)
class Sum:
    """How many values there were, and what they add up to."""

    count: int
    total: float

    def __sub__(self, before: "Sum") -> "Sum":
        """Those that came after `before`."""
        return Sum(self.count - before.count, self.total - before.total)


class Spread:
    """How values spread over buckets; bucket i holds those up to and with bound i."""

    __slots__ = ("_bounds", "_in_bucket", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._in_bucket = [0] * (len(self._bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def add(self, value: float) -> None:
        """One value more."""
        self._in_bucket[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def so_far(self) -> Sum:
        """All values until now."""
        return Sum(sum(self._in_bucket), self.total)

    def cumulative(self) -> Iterator[int]:
        """Values up to each bound, and then all of them."""
        count = 0
        for each in self._in_bucket:
            count += each
            yield count
