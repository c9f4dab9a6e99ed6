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
from typing import Final

from proxy.core.rates import DecayedAverage, DecayedRate
from proxy.core.signals import EngineSignals
from proxy.core.strain import Strain
from proxy.core.tolerance import Bounds, Tolerance
from proxy.core.words import SwitchReason, Topology, UpstreamName

SPEC: Final = UpstreamName.SPEC
BASE: Final = UpstreamName.BASE

_IN_FLIGHT: Final = SwitchReason.IN_FLIGHT
_RATE: Final = SwitchReason.RATE

_AVERAGE_SLACK = 1.01
"""An average that forgets comes near to a level held and never to it. With a gate of one sequence
a lone user's one sequence after a burst would hold the average above the gate for ever, so one
percent above counts as there."""

_ALIKE = 0.05
"""Windows that differ by less are the same: this is asked at each tick."""

_LONGEST_WINDOWS = 10.0
"""How many times its configured length a window may become."""

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


class Controller:
    """Where generation should go, by load. A function of what it was told and of nothing else."""

    __slots__ = (
        "_average",
        "_cap",
        "_changes",
        "_crowded_at",
        "_fast",
        "_gate",
        "_leaves_for",
        "_left_at",
        "_left_for",
        "_most",
        "_most_on_spec",
        "_most_rate",
        "_service_seconds",
        "_slow",
        "_stays_for",
        "_usable",
        "held_until",
        "mode",
        "reason",
        "strain",
        "thresholds",
        "tolerance",
    )

    def __init__(self, thresholds: Thresholds, *, now: float) -> None:
        self.thresholds = thresholds
        self.mode = BASE
        self.reason = (
            SwitchReason.UNCALIBRATED if thresholds.crossover is None else SwitchReason.HEALTH
        )
        """Why the mode is what it is."""
        self.strain = Strain(thresholds.least_acceptance)
        self.tolerance = Tolerance(thresholds.tolerance)
        self.held_until = -inf
        """Until when it stays on base because the mode has changed too often."""
        self._average = DecayedAverage(thresholds.count_window, now=now)
        self._fast = DecayedRate(thresholds.fast_window, now=now)
        self._slow = DecayedRate(thresholds.slow_window, now=now)
        self._service_seconds = 0.0
        self._crowded_at = -inf
        """When more than the gate were last in flight."""
        self._left_at = -inf
        self._left_for = SwitchReason.HEALTH
        self._changes: deque[float] = deque()
        self._usable = False
        self._cap: int | None = None
        # What follows from the thresholds, the server and the tolerance, which change seldom.
        self._most = 0.0
        self._gate = 0.0
        self._most_on_spec = 0.0
        self._most_rate = 0.0
        self._leaves_for: SwitchReason | None = None
        self._stays_for: SwitchReason | None = None
        self._settle()

    @property
    def crossover(self) -> float | None:
        """N* that it goes by; None while it is unknown."""
        return self.thresholds.crossover

    def set_to(self, thresholds: Thresholds, now: float) -> None:
        """Go by `thresholds` from now on; what was observed of the load stays.

        What was learned of an N* and λ* does not say anything of others.
        """
        before, self.thresholds = self.thresholds, thresholds
        self.strain.least_acceptance = thresholds.least_acceptance
        self.tolerance.set_to(thresholds.tolerance)
        if (before.crossover, before.crossover_rate) != (
            thresholds.crossover,
            thresholds.crossover_rate,
        ):
            self.tolerance.begin_anew()
        self._settle()
        self._average.forget_over(thresholds.count_window, now)
        self.served_in(self._service_seconds, now)

    def server(self, *, usable: bool, cap: int | None) -> None:
        """Whether the speculative server is to be used, and for how many sequences at once."""
        if usable is not self._usable or cap != self._cap:
            self._usable = usable
            self._cap = cap
            self._settle()

    def forget_server(self) -> None:
        """The speculative server is another one, of which nothing is known."""
        self.strain.forget()
        self.tolerance.begin_anew()
        self._settle()

    def served_in(self, seconds: float, now: float) -> None:
        """A request takes `seconds` on average: no window is shorter.

        Or a lone user whose answers take longer than the window would look like one who sends much
        and then nothing. Up to a bound, or one answer of an hour would blind it for hours.
        """
        self._service_seconds = seconds
        thresholds = self.thresholds
        longest = _LONGEST_WINDOWS * thresholds.slow_window
        for rate, least in (
            (self._fast, thresholds.fast_window),
            (self._slow, thresholds.slow_window),
        ):
            window = max(least, min(seconds, longest))
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

    def most(self, cap: int | None) -> float:
        """Sequences above which speculation is left now, where the server runs `cap` at once."""
        return self.thresholds.most(cap, self.tolerance.share)

    def gate(self, cap: int | None) -> float:
        """Sequences at or below which load counts as calm now."""
        return self.thresholds.gate(cap, self.tolerance.share)

    def step(self, in_flight: int, arriving: int, work: float, now: float) -> Switch | None:
        """Decide the mode for those who arrive; the change, if any.

        `arriving` are sequences beside those `in_flight`, and `work` the output tokens that they
        are expected to ask for, 0 where they were counted. The way back is judged without the work
        of those who arrive, the way away with it: a lone user with long outputs would else hold his
        own rate above the threshold for ever.
        """
        several = in_flight + arriving
        if several > self._gate:
            self._crowded_at = now
        if self.tolerance.judges and self.tolerance.offered(
            work, now, self.thresholds.crossover_rate or 0.0
        ):
            self._settle()
        on_base = self.mode is BASE
        returns = on_base and self._may_return(in_flight, arriving, now)
        if work:
            self._fast.add(work, now)
            self._slow.add(work, now)
        if not on_base:
            reason = self._why_leave(several, now)
            return None if reason is None else self._leave(reason, several, now)
        if returns and (switch := self._return(several, now)) is not None:
            return switch
        self.reason = self._why_stay(several, now)
        return None

    def ended(self, in_flight: int, now: float) -> bool:
        """Some have ended, and so many are in flight; whether a step may change anything.

        No end leads away from speculation: there are fewer, and the rates have fallen. Only a
        judgement of the tolerance could, and all else that could is told apart.
        """
        if self.mode is not SPEC or self.tolerance.judges:
            return True
        if in_flight > self._gate:
            self._crowded_at = now
        return False

    def _settle(self) -> None:
        """Work out what each step asks for and what changes seldom."""
        thresholds, share = self.thresholds, self.tolerance.share
        self._most = self._most_on_spec = thresholds.most(self._cap, share)
        self._gate = thresholds.gate(self._cap, share)
        # The share of λ* is for the tolerance that it begins with, and goes with it.
        rate_up = max(1.0, thresholds.rate_up * (share / thresholds.tolerance.first))
        rate = thresholds.crossover_rate
        self._most_rate = inf if rate is None else rate_up * rate
        pays = thresholds.pays
        if not pays:
            self._most_on_spec = -1.0
        elif thresholds.topology is Topology.SEPARATE:
            self._most_on_spec = self._most_rate = inf  # both serve at once, see route.py
        unusable = None if self._usable else SwitchReason.HEALTH
        if thresholds.crossover is None:
            # Nothing says that speculation pays.
            self._leaves_for = self._stays_for = SwitchReason.UNCALIBRATED
        else:
            self._leaves_for = unusable
            self._stays_for = unusable if pays else _IN_FLIGHT  # one request is too many

    def _why_leave(self, several: int, now: float) -> SwitchReason | None:
        if self._leaves_for is not None:
            return self._leaves_for
        if self.strain.suspect and self.strain.shows(now):
            return SwitchReason.ENGINE
        if several > self._most_on_spec:
            return _IN_FLIGHT
        if several <= self._gate:
            return None
        return _RATE if self._fast.value(now) > self._most_rate else None

    def _may_return(self, in_flight: int, arriving: int, now: float) -> bool:
        if self._stays_for is not None or now - self._left_at < self.thresholds.return_dwell:
            return False
        shared = self.thresholds.topology is Topology.SHARED
        if shared and not self._is_calm(in_flight, arriving, now):
            return False
        return not (self.strain.suspect and self.strain.shows(now))

    def _is_calm(self, in_flight: int, arriving: int, now: float) -> bool:
        """Low now and lately, and not about to leave again for this very arrival."""
        rate = self.thresholds.crossover_rate
        if rate is None:
            gate = self._gate
            low = in_flight <= gate and self.average(now) <= gate * _AVERAGE_SLACK
            return low and in_flight + arriving <= self._most
        # Whoever comes next counts: it would be decoded beside those still on base.
        if in_flight + (arriving or 1) > self._gate:
            return False
        # So few for so long: one who asks again and again, whom speculation serves best whatever
        # he offers. With a small N* a lone user on base may offer more than λ*.
        if now - self._crowded_at >= self._slow.window_seconds:
            return True
        return self._slow.value(now) < self.thresholds.rate_down * rate

    def _why_stay(self, several: int, now: float) -> SwitchReason:
        """Why it is on base, and not on spec."""
        if self._stays_for is not None:
            return self._stays_for
        if now < self.held_until:
            return SwitchReason.FLAP
        left_for = self._left_for
        if left_for is _IN_FLIGHT or left_for is _RATE:
            return left_for
        if self.strain.suspect and self.strain.shows(now):
            return SwitchReason.ENGINE
        if now - self._left_at < self.thresholds.return_dwell:
            return left_for
        rated = self.thresholds.crossover_rate is not None
        return _RATE if rated and several <= self._gate else _IN_FLIGHT

    def _leave(self, reason: SwitchReason, several: int, now: float) -> Switch:
        self._left_at = now
        self._left_for = reason
        if (reason is _IN_FLIGHT or reason is _RATE) and self._teaches():
            self.tolerance.left(now)
        return self._change(BASE, reason, several, now)

    def _teaches(self) -> bool:
        """Whether it was N* or λ* that led away: of a server's cap nothing can be learned."""
        thresholds = self.thresholds
        rate = thresholds.crossover_rate
        bound = self.tolerance.share * (thresholds.crossover or 0.0)
        within = self._cap is None or bound <= self._cap
        return rate is not None and 0.0 < rate < inf and within

    def _return(self, several: int, now: float) -> Switch | None:
        if now < self.held_until:
            return None
        while self._changes and now - self._changes[0] >= self.thresholds.flap_window:
            self._changes.popleft()
        # Leaving is never delayed, so room for it is kept: a return needs two changes to spare.
        if len(self._changes) + 2 > self.thresholds.flap_limit:
            self.held_until = now + self.thresholds.flap_hold
            return None
        return self._change(SPEC, SwitchReason.CALM, several, now)

    def _change(self, to: UpstreamName, reason: SwitchReason, several: int, now: float) -> Switch:
        self.mode = to
        self.reason = reason
        self._changes.append(now)
        return Switch(to, reason, now, several)
