"""One figure with its bound, and whether it holds; of several rounds the median."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one round says of one thing."""

    name: str
    value: float | None
    """None where nothing was measured; that does not hold."""
    low: float | None = None
    high: float | None = None
    """Of the interval of 90 %, where there is one."""
    at_most: float | None = None
    at_least: float | None = None
    """Where neither is given it is there for the reader, and holds."""

    @property
    def holds(self) -> bool:
        """Whether it is within its bounds with all of its interval."""
        if self.at_most is None and self.at_least is None:
            return True
        if self.value is None:
            return False
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        above = self.at_least is None or low >= self.at_least
        return above and (self.at_most is None or high <= self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The same thing over all rounds."""

    name: str
    values: tuple[float | None, ...]
    """One of each round."""
    median: float | None
    low: float | None
    """The lowest end of an interval, or the lowest value."""
    high: float | None
    at_most: float | None
    """The strictest, where it hangs on what came in a round."""
    at_least: float | None
    held: int
    """Rounds in which it held."""
    holds: bool
    """Whether it did in all of them."""


def summaries(rounds: Sequence[Sequence[Finding]]) -> list[Summary]:
    """Each thing once, in the order in which it first came."""
    names = dict.fromkeys(finding.name for one in rounds for finding in one)
    return [
        _summary(name, [finding for one in rounds for finding in one if finding.name == name])
        for name in names
    ]


def _summary(name: str, found: Sequence[Finding]) -> Summary:
    values = tuple(one.value for one in found)
    known = [value for value in values if value is not None]
    lows = [one.value if one.low is None else one.low for one in found]
    highs = [one.value if one.high is None else one.high for one in found]
    held = sum(one.holds for one in found)
    return Summary(
        name=name,
        values=values,
        median=median(known) if known else None,
        low=min((one for one in lows if one is not None), default=None),
        high=max((one for one in highs if one is not None), default=None),
        at_most=min((one.at_most for one in found if one.at_most is not None), default=None),
        at_least=max((one.at_least for one in found if one.at_least is not None), default=None),
        held=held,
        holds=held == len(found),
    )
