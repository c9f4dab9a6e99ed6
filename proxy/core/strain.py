"""Whether the speculative server itself says that it has too much, or guesses too badly.

Three signals, each of which leads away from speculation and bars the way back: it queues, its KV
cache is nearly full, its drafts are hardly accepted. A signal has an age: a stale one is unknown,
and what is unknown says nothing.
"""

from math import inf
from typing import Final

from proxy.core.signals import EngineSignals

_QUEUED_READINGS: Final = 2
"""A prefill that happens to be read leaves one reading with a queue."""

_FULL: Final = 0.9
"""Share of the KV cache above which SGLang is about to take sequences back."""

_POOR_SECONDS: Final = 30.0
"""For which acceptance must be low: it differs from prompt to prompt."""

_REST_SECONDS: Final = 60.0
"""Without speculation nothing is accepted and nothing can be read, so after poor acceptance the way
back is barred for this long, and then tried."""


class Strain:
    """What the readings of the speculative server add up to."""

    __slots__ = (
        "_poor_at",
        "_poor_since",
        "_queued",
        "_rests_until",
        "_signals",
        "least_acceptance",
        "suspect",
    )

    def __init__(self, least_acceptance: float) -> None:
        self.least_acceptance = least_acceptance
        """Tokens of a verify round below which speculation does not pay; 0 for no bound."""
        self._signals: EngineSignals | None = None
        self._queued = 0
        self._poor_since = inf
        self._poor_at = -inf
        """When acceptance was last known to be poor."""
        self._rests_until = -inf
        self.suspect = False
        """Whether it showed when it was last read; what it shows then only ends with time."""

    def read(self, signals: EngineSignals, now: float) -> None:
        """Take note of a reading made at `now`."""
        self._note(signals, now)
        self.suspect = self.shows(now)

    def _note(self, signals: EngineSignals, now: float) -> None:
        before, self._signals = self._signals, signals
        if before is not None and not before.fresh(now):
            self._queued = 0  # what was between the two is unknown
        self._queued = self._queued + 1 if signals.waiting else 0
        accepted = signals.acceptance_length
        if accepted is None:
            return
        if accepted >= self.least_acceptance:
            self._poor_since = inf
            return
        if now - self._poor_at > _POOR_SECONDS:
            self._poor_since = now  # too long ago to be one with this
        self._poor_at = now
        self._poor_since = min(self._poor_since, now)
        if now - self._poor_since >= _POOR_SECONDS:
            self._poor_since = inf
            self._rests_until = now + _REST_SECONDS

    def forget(self) -> None:
        """It is another server now."""
        self._signals = None
        self._queued = 0
        self._poor_since = inf
        self._rests_until = -inf
        self.suspect = False

    def shows(self, now: float) -> bool:
        """Whether speculation should be left, or not gone back to."""
        if now < self._rests_until:
            return True
        signals = self._signals
        if signals is None or not signals.fresh(now):
            return False
        full = signals.token_usage is not None and signals.token_usage > _FULL
        return full or self._queued >= _QUEUED_READINGS
