"""How much in flight is too much, in shares of N*: learned from what followed each leaving.

A count above N* is a burst that has only begun, or the crowd of a load that speculation carries
well. Nothing tells the two apart at once; what arrives in the seconds after does. So a leaving that
those seconds confirm (clearly more was offered than λ*) makes the next one come sooner, and one
that they do not makes it come later. Where bursts are the rule, few requests are then left behind
on spec; where load is steady, chance does not drive it to base (docs/policy.md has the figures).
"""

from dataclasses import dataclass
from typing import Final

_CONFIRM_SECONDS: Final = 10.0
"""After a leaving. Within the default dwell, so that nothing is lost by waiting for it."""

_CLEARLY: Final = 1.1
"""Shares of λ*: in ten seconds chance alone may offer a little more."""

_SOONER: Final = 0.6
_LATER: Final = 1.15
"""In balance where one leaving in five is confirmed: one that was right and late costs more than
one that was needless. Simulated, 0.4 to 0.7 and 1.15 to 1.4 differ by less than 1 %."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shares of N*: where it begins, and between which two it stays."""

    first: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= self.first <= self.most:
            raise ValueError(f"{self.first} must lie between {self.least} and {self.most}")


class Tolerance:
    """The share of N* above which speculation is left."""

    __slots__ = ("_left_at", "_offered", "bounds", "judges", "share")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.share = bounds.first
        self.judges = False
        """Whether a leaving waits for its judgement."""
        self._left_at = 0.0
        self._offered = 0.0

    def set_to(self, bounds: Bounds) -> None:
        """Stay within `bounds` from now on; with another beginning, begin anew."""
        if bounds.first != self.bounds.first:
            self.share = bounds.first
        self.bounds = bounds
        self.share = min(bounds.most, max(bounds.least, self.share))

    def begin_anew(self) -> None:
        """What was learned is of another server, or another N*."""
        self.share = self.bounds.first
        self.judges = False

    def left(self, now: float) -> None:
        """Speculation was left because of load."""
        self.judges = True
        self._left_at = now
        self._offered = 0.0

    def offered(self, work: float, now: float, rate: float) -> bool:
        """Output tokens that arrive at `now`, 0 where only time passes; `rate` is λ*.

        Whether a leaving is judged by it.
        """
        if not self.judges:
            return False
        self._offered += work
        seconds = now - self._left_at
        if seconds < _CONFIRM_SECONDS:
            return False
        self.judges = False
        factor = _SOONER if self._offered > _CLEARLY * rate * seconds else _LATER
        self.share = min(self.bounds.most, max(self.bounds.least, self.share * factor))
        return True
