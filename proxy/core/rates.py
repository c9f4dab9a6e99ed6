"""Averages and rates that forget: exponentially weighted, decayed when they are read."""

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


class DecayedRate:
    """Amounts per second: what came within `window_seconds` counts most, what came before less.

    An amount that comes adds its share of a window, amount / window, and has decayed to 37 % of
    that (1/e) a window later. Reading changes nothing.
    """

    __slots__ = ("_at", "_rate", "window_seconds")

    def __init__(self, window_seconds: float, *, now: float) -> None:
        self.window_seconds = window_seconds
        self._rate = 0.0
        self._at = now

    def forget_over(self, window_seconds: float, now: float) -> None:
        """Forget over `window_seconds` from `now` on; the rate of this moment stays."""
        self.add(0.0, now)
        self.window_seconds = window_seconds

    def add(self, amount: float, now: float) -> None:
        """Take note that `amount` came at `now`."""
        self._rate = self.value(now) + amount / self.window_seconds
        self._at = now

    def value(self, now: float) -> float:
        """The rate at `now`, per second."""
        return self._rate * exp(-max(0.0, now - self._at) / self.window_seconds)
