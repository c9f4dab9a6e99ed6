"""The controller: from the load to the mode, with its reason.

On GPUs that both servers share the best rule is one mode at a time (docs/policy.md): speculation
while load is low, base while it is not, and never both for long. Load is judged twice. What is in
flight tells of a burst at once. But the same load has more in flight on the slower server, so the
way back cannot be found by counting alone: it asks for the rate of offered work, which does not
depend on the mode. While the rate at which the curves cross is unknown, an average of the count has
to do.

Leaving is never delayed and returning is slow: simulated, a dwell on both sides costs up to 38 % of
end-to-end time because it blocks the escape. A breaker bounds how often the mode may change.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from proxy.core.rates import DecayedAverage, DecayedRate
from proxy.core.signals import EngineSignals
from proxy.core.strain import Strain
from proxy.core.tolerance import Bounds, Tolerance
from proxy.core.words import SwitchReason, Topology, UpstreamName

_AVERAGE_SLACK = 1.01
"""An average that forgets comes near to a level held and never to it. With a gate of one sequence
a lone user's one sequence after a burst would hold the average above the gate for ever, so one
percent above counts as there."""


_ALIKE = 0.05
"""Windows that differ by less are the same: this is asked at each end of a request."""


_FEWEST = 2.0
"""Sequences that are never too many where speculation pays at all: a lone user and another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the controller is set to; sequences, output tokens/s and seconds."""

    crossover: float | None
    """N*, a real number of sequences, never rounded; None while it is unknown.

    inf where speculation always pays, 0 where it never does.
    """
    crossover_rate: float | None
    """λ*, offered output tokens/s; None while it is unknown: then the count alone decides."""
    topology: Topology
    tolerance: Bounds
    """Leave above this share of N*, where λ* is known."""
    gate_factor: float
    """Load is calm at or below this share of what is too much, and never below one sequence."""
    rate_up: float
    """Leave above this share of λ*, unless few are in flight; goes with the tolerance."""
    rate_down: float
    """Return below this share of λ*."""
    fast_window: float
    """Seconds over which the rate is taken that leads away."""
    slow_window: float
    """The same for the rate that leads back. Both are at least a mean service time."""
    count_window: float
    """Seconds over which the count is averaged where λ* is unknown."""
    return_dwell: float
    """Seconds after leaving speculation before it may return."""
    least_acceptance: float
    """Tokens of a verify round below which speculation does not pay; 0 for no bound."""
    flap_limit: int
    """Changes of mode within `flap_window` that are never exceeded; at least 2."""
    flap_window: float
    flap_hold: float
    """Seconds on base once the limit is reached."""

    def __post_init__(self) -> None:
        if self.flap_limit < 2:  # noqa: PLR2004 - a return and the leaving that may follow it
            raise ValueError(f"flap_limit must be at least 2, is {self.flap_limit}")
        for figure in (self.crossover, self.crossover_rate):
            if figure is not None and not figure >= 0.0:
                raise ValueError(f"crossover must be at least 0, is {figure}")

    @property
    def pays(self) -> bool:
        """Whether speculation pays for anybody, as far as is known."""
        return self.crossover is not None and self.crossover >= 1.0

    def most(self, cap: int | None, share: float) -> float:
        """Sequences above which speculation is left, where the server runs `cap` at once."""
        crossover = self.crossover or 0.0
        if self.crossover_rate is None:
            return crossover
        most = max(_FEWEST, share * crossover)
        return most if cap is None else min(most, cap)

    def gate(self, cap: int | None, share: float) -> float:
        """Sequences at or below which load counts as calm."""
        return max(1.0, self.gate_factor * self.most(cap, share))


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of mode."""

    to: UpstreamName
    reason: SwitchReason
    at: float
    in_flight: int


class Load(NamedTuple):
    """What is in flight, and who is just arriving; sequences."""

    in_flight: int
    arriving: int = 0
    work: float = 0.0
    """Output tokens that those who arrive are expected to ask for; 0 where they were counted."""


class Spec(NamedTuple):
    """What the controller needs to know of the speculative server."""

    usable: bool
    cap: int | None
    """Sequences; None for no cap."""


class Controller:
    """Where generation should go, by load. A function of what it was told and of nothing else."""

    __slots__ = (
        "_average",
        "_changes",
        "_fast",
        "_held_until",
        "_left_at",
        "_slow",
        "mode",
        "reason",
        "strain",
        "thresholds",
        "tolerance",
    )

    def __init__(self, thresholds: Thresholds, *, now: float) -> None:
        self.thresholds = thresholds
        self.mode = UpstreamName.BASE
        self.reason = (
            SwitchReason.UNCALIBRATED if thresholds.crossover is None else SwitchReason.HEALTH
        )
        self.strain = Strain(thresholds.least_acceptance)
        self.tolerance = Tolerance(thresholds.tolerance)
        self._average = DecayedAverage(thresholds.count_window, now=now)
        self._fast = DecayedRate(thresholds.fast_window, now=now)
        self._slow = DecayedRate(thresholds.slow_window, now=now)
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
        self.strain.least_acceptance = thresholds.least_acceptance
        self.tolerance.set_to(thresholds.tolerance)
        self._average.forget_over(thresholds.count_window, now)
        self._fast.forget_over(thresholds.fast_window, now)
        self._slow.forget_over(thresholds.slow_window, now)

    def served_in(self, seconds: float, now: float) -> None:
        """A request takes `seconds` on average: no window is shorter.

        Or a lone user whose answers take longer than the window would look like one who sends much
        and then nothing.
        """
        for rate, least in (
            (self._fast, self.thresholds.fast_window),
            (self._slow, self.thresholds.slow_window),
        ):
            window = max(least, seconds)
            if abs(window - rate.window_seconds) > _ALIKE * window:
                rate.forget_over(window, now)

    def signals(self, signals: EngineSignals, now: float) -> None:
        """The speculative server's own word on how it is doing."""
        self.strain.read(signals, now)

    def level(self, in_flight: int, now: float) -> None:
        """The sequences in flight are `in_flight` from `now` on."""
        self._average.set(in_flight, now)

    def average(self, now: float) -> float:
        """Sequences in flight, averaged over `count_window`."""
        return self._average.value(now)

    def offered_fast(self, now: float) -> float:
        """Offered output tokens/s, over the fast window."""
        return self._fast.value(now)

    def offered_slow(self, now: float) -> float:
        """Offered output tokens/s, over the slow window."""
        return self._slow.value(now)

    def step(self, load: Load, spec: Spec, now: float) -> Switch | None:
        """Decide the mode for those who arrive; the change, if any.

        The way back is judged without the work of those who arrive, the way away with it: a lone
        user with long outputs would else hold his own rate above the threshold for ever.
        """
        self.tolerance.offered(load.work, now, self.thresholds.crossover_rate or 0.0)
        returns = self.mode is UpstreamName.BASE and self._may_return(load, spec, now)
        if load.work:
            self._fast.add(load.work, now)
            self._slow.add(load.work, now)
        if self.mode is UpstreamName.SPEC:
            reason = self._why_leave(load, spec, now)
            if reason is SwitchReason.IN_FLIGHT or reason is SwitchReason.RATE:
                self.tolerance.left(now)
            return None if reason is None else self._leave(reason, load, now)
        return self._return(load, now) if returns else None

    def _why_leave(self, load: Load, spec: Spec, now: float) -> SwitchReason | None:
        thresholds = self.thresholds
        if thresholds.crossover is None:
            return SwitchReason.UNCALIBRATED
        if not spec.usable:
            return SwitchReason.HEALTH
        if self.strain.shows(now):
            return SwitchReason.ENGINE
        if not thresholds.pays:
            return SwitchReason.IN_FLIGHT
        if thresholds.topology is Topology.SEPARATE:
            return None  # both serve at once, see route.py
        in_flight = load.in_flight + load.arriving
        if in_flight > self.most(spec.cap):
            return SwitchReason.IN_FLIGHT
        rate = thresholds.crossover_rate
        if rate is None or in_flight <= self.gate(spec.cap):
            return None
        return SwitchReason.RATE if self._fast.value(now) > self._rate_up * rate else None

    def most(self, cap: int | None) -> float:
        """Sequences above which speculation is left now, where the server runs `cap` at once."""
        return self.thresholds.most(cap, self.tolerance.share)

    def gate(self, cap: int | None) -> float:
        """Sequences at or below which load counts as calm now."""
        return self.thresholds.gate(cap, self.tolerance.share)

    @property
    def _rate_up(self) -> float:
        """The share of λ* is for the tolerance that it begins with, and goes with it."""
        share = self.tolerance.share / self.thresholds.tolerance.first
        return max(1.0, self.thresholds.rate_up * share)

    def _may_return(self, load: Load, spec: Spec, now: float) -> bool:
        thresholds = self.thresholds
        if thresholds.crossover is None:
            self.reason = SwitchReason.UNCALIBRATED  # nothing says that speculation pays
            return False
        if not thresholds.pays:
            self.reason = SwitchReason.IN_FLIGHT  # one request is too many: it never pays
            return False
        rested = now - self._left_at >= thresholds.return_dwell
        if not spec.usable or not rested or self.strain.shows(now):
            return False
        return thresholds.topology is Topology.SEPARATE or self._is_calm(load, spec, now)

    def _is_calm(self, load: Load, spec: Spec, now: float) -> bool:
        """Low now and lately, and not about to leave again for this very arrival."""
        thresholds = self.thresholds
        gate = self.gate(spec.cap)
        if thresholds.crossover_rate is None:
            low = load.in_flight <= gate and self.average(now) <= gate * _AVERAGE_SLACK
            return low and load.in_flight + load.arriving <= self.most(spec.cap)
        # Whoever comes next counts: it would be decoded beside those still on base.
        calm = load.in_flight + max(1, load.arriving) <= gate
        return calm and self._slow.value(now) < thresholds.rate_down * thresholds.crossover_rate

    def _leave(self, reason: SwitchReason, load: Load, now: float) -> Switch:
        self._left_at = now
        return self._change(UpstreamName.BASE, reason, load, now)

    def _return(self, load: Load, now: float) -> Switch | None:
        if now < self._held_until:
            return None
        while self._changes and now - self._changes[0] >= self.thresholds.flap_window:
            self._changes.popleft()
        # Leaving is never delayed, so room for it is kept: a return needs two changes to spare.
        if len(self._changes) + 2 > self.thresholds.flap_limit:
            self._held_until = now + self.thresholds.flap_hold
            self.reason = SwitchReason.FLAP
            return None
        return self._change(UpstreamName.SPEC, SwitchReason.CALM, load, now)

    def _change(self, to: UpstreamName, reason: SwitchReason, load: Load, now: float) -> Switch:
        self.mode = to
        self.reason = reason
        self._changes.append(now)
        return Switch(to, reason, now, load.in_flight + load.arriving)
