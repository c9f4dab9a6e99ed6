"""Averages that forget: exponentially weighted, decayed when they are read."""

from math import exp


class DecayedAverage:
    """The average over time of a level that changes in steps.

    A level held for `window_seconds` has 63 % of the weight (1 - 1/e), one held for three windows
    95 %. Reading changes nothing, so reading twice gives the same.
    """

    __slots__ = ("_at", "_average", "_level", "_window_seconds")

    def __init__(self, window_seconds: float, *, now: float) -> None:
        self._window_seconds = window_seconds
        self._level = 0.0
        self._average = 0.0
        self._at = now

    def forget_over(self, window_seconds: float, now: float) -> None:
        """Forget over `window_seconds` from `now` on; what is remembered stays."""
        self.set(self._level, now)
        self._window_seconds = window_seconds

    def set(self, level: float, now: float) -> None:
        """The level is `level` from `now` on."""
        self._average = self.value(now)
        self._level = level
        self._at = now

    def value(self, now: float) -> float:
        """The average at `now`."""
        weight_of_past = exp(-max(0.0, now - self._at) / self._window_seconds)
        return self._level + (self._average - self._level) * weight_of_past
