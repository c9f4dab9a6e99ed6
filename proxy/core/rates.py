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
        seconds = now - self._at
        past = self._average - self._level
        if seconds > 0.0 and past:
            past *= exp(-seconds / self._window_seconds)
        return self._level + past


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
        seconds, window = now - self._at, self.window_seconds
        rate = self._rate * exp(-seconds / window) if seconds > 0.0 else self._rate
        self._rate = rate + amount / window
        self._at = now

    def value(self, now: float) -> float:
        """The rate at `now`, per second."""
        seconds = now - self._at
        return self._rate * exp(-seconds / self.window_seconds) if seconds > 0.0 else self._rate
