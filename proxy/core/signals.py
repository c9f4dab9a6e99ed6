"""What an engine says of itself while it runs: values with an age; unknown is None.

An engine counts from its start, and a mean since then hardly moves after a day. What is lately so
is the difference between two readings of what it counted.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

_ENOUGH_ROUNDS: Final = 20
"""Verify rounds before their mean is said: tokens of one round differ by about half their mean, so
20 give it to about 12 %."""

_TWO: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSignals:
    """One reading of an engine."""

    waiting: int | None
    """Requests in its own queue."""
    token_usage: float | None
    """Share of the KV cache in use, 0 to 1."""
    acceptance_length: float | None
    """Tokens of a verify round, lately: from what was counted between two readings."""
    at: float
    """When it was read; seconds, monotonic."""
    age_seconds: float
    """How old the oldest part of it was then, by the engine's own clock."""
    stale_after: float
    """Age in seconds above which it says nothing."""

    def fresh(self, now: float) -> bool:
        """Whether it still says something; a stale reading is an unknown one."""
        return self.age(now) <= self.stale_after

    def age(self, now: float) -> float:
        """Seconds since the engine wrote the oldest part of it."""
        return now - self.at + self.age_seconds


@dataclass(frozen=True, slots=True)
class Totals:
    """Two things that a server has counted since its start; the mean is tokens / times."""

    tokens: float
    """Output tokens."""
    times: float
    """What yielded them: verify rounds of a sequence, or sequences."""

    def since(self, before: "Totals") -> "Totals | None":
        """What was counted after `before`; None if either went back: the server started anew."""
        tokens, times = self.tokens - before.tokens, self.times - before.times
        return Totals(tokens, times) if tokens >= 0 and times >= 0 else None  # never true of NaN


class Lately:
    """What was counted within the last `seconds`, from readings of running totals.

    Between the last two readings at least, however seldom they are made.
    """

    __slots__ = ("_readings", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._readings: deque[tuple[float, Totals]] = deque()

    def read(self, totals: Totals | None, now: float) -> None:
        """Take note of a reading made at `now`; None: the server does not say."""
        readings = self._readings
        if totals is None or (readings and totals.since(readings[-1][1]) is None):
            readings.clear()
        if totals is not None:
            readings.append((now, totals))
        while len(readings) > _TWO and now - readings[0][0] > self._seconds:
            readings.popleft()

    def forget(self) -> None:
        """What was read says nothing any more."""
        self._readings.clear()

    def acceptance_length(self) -> float | None:
        """Tokens of a verify round; None where too few were counted or the figures make no sense.

        Each round yields a token at least, so a mean below 1 is no acceptance length.
        """
        if not self._readings:
            return None
        counted = self._readings[-1][1].since(self._readings[0][1])
        if counted is None or counted.times < _ENOUGH_ROUNDS:
            return None
        mean = counted.tokens / counted.times
        return mean if mean >= 1 else None
