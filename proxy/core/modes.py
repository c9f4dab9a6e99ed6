"""The controller: from what is in flight to the mode, with its reason.

Only the crossover N* is known here, so this is the rule by count: leave speculation at once when
more than N* sequences are in flight, return when the average has been low for a while. The return
is slow on purpose and the leaving is not: simulated, a dwell on both sides costs up to 38 % of
end-to-end time because it blocks the escape. A load that sits at the threshold must not flap, so
the return asks for a quarter of N*, and a breaker bounds how often the mode may change.
"""

from collections import deque
from dataclasses import dataclass
from math import inf

from proxy.core.rates import DecayedAverage
from proxy.core.words import SwitchReason, UpstreamName

_AVERAGE_SLACK = 1.01
"""An average that forgets comes near to a level held and never to it. With a gate of one sequence
a lone user's one sequence after a burst would hold the average above the gate for ever, so one
percent above counts as there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the controller is set to; sequences and seconds."""

    crossover: float | None
    """N*, a real number of sequences, never rounded; None while it is unknown.

    inf where speculation always pays.
    """
    gate_factor: float
    """Return when the average is at or below this share of N* (and never below one sequence)."""
    count_window: float
    """Seconds over which that average is taken."""
    return_dwell: float
    """Seconds after leaving speculation before it may return."""
    flap_limit: int
    """Changes of mode within `flap_window` that are never exceeded; at least 2."""
    flap_window: float
    flap_hold: float
    """Seconds on base once the limit is reached."""

    def __post_init__(self) -> None:
        if self.flap_limit < 2:  # noqa: PLR2004 - a return and the leaving that may follow it
            raise ValueError(f"flap_limit must be at least 2, is {self.flap_limit}")
        if self.crossover is not None and not self.crossover >= 0.0:
            raise ValueError(f"crossover must be at least 0, is {self.crossover}")

    @property
    def gate(self) -> float:
        """Sequences at or below which load counts as calm."""
        return max(1.0, self.gate_factor * (self.crossover or 0.0))


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of mode."""

    to: UpstreamName
    reason: SwitchReason
    at: float
    in_flight: int


class Controller:
    """Where generation should go, by load. A function of what it was told and of nothing else."""

    __slots__ = ("_average", "_changes", "_held_until", "_left_at", "mode", "reason", "thresholds")

    def __init__(self, thresholds: Thresholds, *, now: float) -> None:
        self.thresholds = thresholds
        self.mode = UpstreamName.BASE
        self.reason = (
            SwitchReason.UNCALIBRATED if thresholds.crossover is None else SwitchReason.HEALTH
        )
        self._average = DecayedAverage(thresholds.count_window, now=now)
        self._left_at = -inf
        self._held_until = -inf
        self._changes: deque[float] = deque()

    @property
    def crossover(self) -> float | None:
        """N* that it goes by; None while it is unknown."""
        return self.thresholds.crossover

    def set_to(self, thresholds: Thresholds, now: float) -> None:
        """Go by `thresholds` from now on; what was observed stays."""
        self.thresholds = thresholds
        self._average.forget_over(thresholds.count_window, now)

    def level(self, in_flight: int, now: float) -> None:
        """The sequences in flight are `in_flight` from `now` on."""
        self._average.set(in_flight, now)

    def average(self, now: float) -> float:
        """Sequences in flight, averaged over `count_window`."""
        return self._average.value(now)

    def step(
        self, *, in_flight: int, arriving: int, spec_usable: bool, now: float
    ) -> Switch | None:
        """Decide the mode for `arriving` sequences more than `in_flight`; the change, if any."""
        crossover = self.thresholds.crossover
        if crossover is None:
            return self._unknown(in_flight, now)
        if self.mode is UpstreamName.SPEC:
            if not spec_usable:
                return self._leave(SwitchReason.HEALTH, in_flight, now)
            if in_flight + arriving > crossover:
                return self._leave(SwitchReason.IN_FLIGHT, in_flight + arriving, now)
            return None
        if crossover < 1.0:
            self.reason = SwitchReason.IN_FLIGHT  # one request is too many: it never pays
            return None
        if not spec_usable or not self._is_calm(in_flight, arriving, crossover, now):
            return None
        return self._return(in_flight + arriving, now)

    def _unknown(self, in_flight: int, now: float) -> Switch | None:
        """N* is not known, or not any more: nothing says that speculation pays."""
        if self.mode is UpstreamName.SPEC:
            return self._leave(SwitchReason.UNCALIBRATED, in_flight, now)
        self.reason = SwitchReason.UNCALIBRATED
        return None

    def _is_calm(self, in_flight: int, arriving: int, crossover: float, now: float) -> bool:
        """Low now and on average, and not about to leave again for this very arrival."""
        gate = self.thresholds.gate
        return (
            in_flight <= gate
            and in_flight + arriving <= crossover
            and self.average(now) <= gate * _AVERAGE_SLACK
            and now - self._left_at >= self.thresholds.return_dwell
        )

    def _leave(self, reason: SwitchReason, in_flight: int, now: float) -> Switch:
        self._left_at = now
        return self._change(UpstreamName.BASE, reason, in_flight, now)

    def _return(self, in_flight: int, now: float) -> Switch | None:
        if now < self._held_until:
            return None
        while self._changes and now - self._changes[0] >= self.thresholds.flap_window:
            self._changes.popleft()
        # Leaving is never delayed, so room for it is kept: a return needs two changes to spare.
        if len(self._changes) + 2 > self.thresholds.flap_limit:
            self._held_until = now + self.thresholds.flap_hold
            self.reason = SwitchReason.FLAP
            return None
        return self._change(UpstreamName.SPEC, SwitchReason.CALM, in_flight, now)

    def _change(self, to: UpstreamName, reason: SwitchReason, in_flight: int, now: float) -> Switch:
        self.mode = to
        self.reason = reason
        self._changes.append(now)
        return Switch(to, reason, now, in_flight)
