"""The pair: who may go where, now. The one place where choosing and counting meet.

Everything here is synchronous, so choosing a place and counting it cannot be torn apart, and takes
`now`, so the simulator can run it unchanged. It owns the leases, the health of both upstreams, the
controller, the waiting room and the operator's word; it knows nothing of sockets or bytes.
"""

from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import floor, inf
from typing import Final, TypeGuard

from proxy.core.drift import drifts
from proxy.core.eligibility import SpecLimits, Verdict
from proxy.core.fingerprint import differences
from proxy.core.identity import Identity, mismatches
from proxy.core.inflight import InFlight, Lease
from proxy.core.lengths import Lengths
from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.observer import Observer
from proxy.core.places import UNTOLD, Answer, Evidence, Place, Settings, Ticket, Waiter
from proxy.core.refusals import (
    base_unusable,
    nobody_usable,
    room_full,
    too_heavy,
    waited_too_long,
)
from proxy.core.route import Decision, Need, Never, Pair, Reason, Wait, Why, decide, has_room
from proxy.core.signals import EngineSignals
from proxy.core.upstream import Upstream
from proxy.core.waiting import WaitingRoom
from proxy.core.words import (
    AdminState,
    Control,
    Health,
    RetryCause,
    SwitchReason,
    Topology,
    UpstreamName,
)
from proxy.errors import Draining, Refusal

SPEC: Final = UpstreamName.SPEC
BASE: Final = UpstreamName.BASE

_GOOD: Final = Evidence.GOOD
_PROBATION: Final = Health.PROBATION

CONFIGURED: Final = "configuration"
"""Who has set the control, where no operator has."""


class Dispatcher:
    """The pair and its waiting room."""

    def __init__(self, settings: Settings, observer: Observer, *, now: float) -> None:
        self.settings = settings
        self.in_flight = InFlight()
        self.controller = Controller(settings.thresholds, now=now)
        self.lengths = Lengths(settings.expected_tokens)
        self.calibration_faults: tuple[str, ...] = ()
        """In what the servers are not those that the thresholds were measured on, as sentences."""
        self.drift = drifts(settings.curves)
        self.room: WaitingRoom[Ticket] = WaitingRoom(settings.queue_size)
        self.spec = Upstream(SPEC, settings.health, settings.spec_cap)
        self.base = Upstream(BASE, settings.health, settings.base_cap)
        self.control = Control.AUTO
        self.control_set_by = CONFIGURED
        self.mode = BASE
        self.draining = False
        self.adapters: frozenset[str] | None = None
        """Names of LoRA adapters; None while that of one of the two is not known."""
        self.spec_limits: SpecLimits | None = None
        """How much of the context spec has for a request; None where as much as base."""
        self._observer = observer
        self._mode_seconds = {SPEC: 0.0, BASE: 0.0}
        self._mode_since = now
        self._none_since: float = now
        """Since when no upstream is usable; inf while one is."""
        self._base_gone_since: float = now
        self._awaited: set[UpstreamName] = set()
        """Whose places those in the waiting room wait for.

        Not those who wait for room over both: they are passed over by whoever is lighter, or one
        request of very many sequences would hold up all others.
        """
        self._offering = False
        self._stopped = False
        self._held_until = -inf
        """Until when it was told last that the mode is held on base."""
        self._by_count = False
        """Whether the average of what is in flight decides, since λ* is unknown."""
        self._pair = Pair(
            spec=self.spec.view,
            base=self.base.view,
            base_in_maint=False,
            control=self.control,
            mode=self.controller.mode,
            calibrated=False,
            places=0,
            spill=None,
        )
        self._look(now)

    def upstream(self, name: UpstreamName) -> Upstream:
        """The upstream called `name`."""
        return self.spec if name is SPEC else self.base

    @property
    def _both(self) -> tuple[Upstream, Upstream]:
        return self.spec, self.base

    @property
    def usable(self) -> bool:
        """Whether any upstream is in service."""
        return self.spec.in_service or self.base.in_service

    @property
    def mode_reason(self) -> SwitchReason:
        """Why the mode is what it is."""
        return self._wanted(self.controller.reason)[1]

    def mode_seconds(self, mode: UpstreamName, now: float) -> float:
        """Seconds spent in `mode` until `now`."""
        running = now - self._mode_since if mode is self.mode else 0.0
        return self._mode_seconds[mode] + running

    # Requests ----------------------------------------------------------------------------------

    def arrive(self, need: Need, waiter: Waiter, now: float) -> Place | Ticket | Refusal:
        """A request is here, whole: give it a place, a stand in the waiting room, or a refusal."""
        weight = need.weight
        if self.draining or weight > self.settings.max_in_flight:
            return self._refuse_at_once(need)
        if not self.room.empty and self._step(0, 0.0, now):
            self._offer(now)  # time alone has changed the mode, and those waiting come first
        if weight:
            self._step(weight, weight * (self.lengths.output_tokens or 0.0), now)
        choice = self._choose(need)
        # Who arrives while places are given out is asked in its turn.
        if (
            isinstance(choice, Decision)
            and not self._offering
            and (not self._awaited or _is_open(choice, need, self._awaited))
        ):
            return self._place(need, choice, now)
        return self._wait(need, choice, waiter, now)

    def _wait(
        self, need: Need, choice: Decision | Wait | Never, waiter: Waiter, now: float
    ) -> Ticket | Refusal:
        """No place now: a stand in the waiting room, if it may wait."""
        if isinstance(choice, Never):
            return base_unusable(need, self._both)
        why = choice.why if isinstance(choice, Wait) else Why.FULL
        refusal = self._refuse_to_wait(need, why, now)
        if refusal is not None:
            return refusal
        ticket = Ticket(need, waiter, now)
        self.room.enter(ticket)
        if choice.upstream is not None:
            self._awaited.add(choice.upstream)
        return ticket

    def retry(
        self, place: Place, need: Need, cause: RetryCause, evidence: Evidence, now: float
    ) -> Place | None:
        """Exchange `place` for one at the other upstream; None, and `place` stays, if none is free.

        On GPUs that both share, a refusal by base is not retried on spec: spec would then run
        beside a base that is full.
        """
        other = place.upstream.other
        only_base = need.eligibility.verdict is Verdict.BASE
        shared = self.settings.thresholds.topology is Topology.SHARED
        if other is SPEC and (only_base or (shared and cause is RetryCause.REFUSAL)):
            return None
        view = self.upstream(other).view
        view.in_flight = self.in_flight.at(other)
        awaited = need.weight > 0 and other in self._awaited
        if not view.usable or awaited or not has_room(need, view):
            return None
        self._observer.retried(cause)
        self.in_flight.give_back(place.lease, now)
        taken = self._place(need, Decision(other, Reason.RETRY), now)
        self._learn(place.lease, evidence, now)
        self._after_change(now)
        return taken

    def wait_for_other(
        self, place: Place, need: Need, waiter: Waiter, arrived: float
    ) -> Ticket | None:
        """A stand in front, for a place at the other upstream, once `retry` has given none.

        For what could not be connected to: nothing was sent, so it is not lost while the other one
        serves. Ahead of all who wait, since it had its turn before them. None if it may not wait.
        `place` stays; the caller gives it back when it has taken note.
        """
        other = self.upstream(place.upstream.other)
        only_base = need.eligibility.verdict is Verdict.BASE
        may = need.weight > 0 and other.in_service and not (other is self.spec and only_base)
        if not may or self.room.full or self.settings.queue_timeout <= 0:
            return None
        ticket = Ticket(need._replace(avoid=place.upstream), waiter, arrived, again=True)
        self.room.enter(ticket, again=True)
        self._awaited.add(other.name)
        return ticket

    def end(self, lease: Lease, evidence: Evidence, now: float, answer: Answer = UNTOLD) -> None:
        """A request is over: give its place back, learn from it, and give the place to another."""
        self.in_flight.give_back(lease, now)
        if self._by_count:
            self.controller.level(self.in_flight.total, now)
        good = evidence is _GOOD and lease.weight > 0
        if good:
            tokens, seconds_per_token = answer
            self.lengths.ended(now - lease.at, tokens, lease.weight)
            if seconds_per_token is not None:
                self._watch_speed(lease, seconds_per_token, now)
        if lease.trial or not good:
            self._learn(lease, evidence, now)
            self._after_change(now)
            return
        upstream = self.spec if lease.upstream is SPEC else self.base
        if lease.work is upstream.work:
            upstream.health.request_succeeded(trial=False)
        if self.controller.ended(self.in_flight.total, now):
            self._step(0, 0.0, now)
        if not self.room.empty:
            self._offer(now)

    def trial_speaks(self, lease: Lease, now: float) -> None:
        """The one request of a probation has brought a token: the others need not wait for its end.

        What goes wrong with it later counts as with any other.
        """
        self._learn(lease, Evidence.GOOD, now)
        lease.trial = False
        self._after_change(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """A waiting client has gone; its stand is free and it will never reach an engine."""
        if self.room.leave(ticket):
            self._offer(now)

    # Time and the operator ---------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Let time pass: ejections end, patience runs out, silence grows, the average falls."""
        self.controller.level(self.in_flight.total, now)
        self.controller.served_in(self.lengths.service_seconds, now)
        for upstream in self._both:
            if upstream.health.advance(now):
                upstream.work.forgive(now)
                self._tell(upstream, "its ejection is over; one request may try it")
            silence = upstream.work.silence()
            if upstream.health.silent(silence, now):
                self._tell(upstream, f"it has work and showed no sign of life for {silence:.0f} s")
        self._after_change(now)
        self._expire(now)

    def set_control(self, control: Control, *, by: str, now: float) -> None:
        """The operator's override of the mode."""
        self.control = control
        self.control_set_by = by
        self._settle(SwitchReason.CONTROL, self.in_flight.total, now)
        self._after_change(now)

    def set_admin_state(self, name: UpstreamName, state: AdminState, now: float) -> None:
        """The operator takes an upstream out, or puts it back."""
        self.upstream(name).admin_state = state
        self._after_change(now)

    def apply(
        self,
        settings: Settings,
        *,
        renewed: AbstractSet[UpstreamName],
        control: Control,
        now: float,
    ) -> None:
        """Go by `settings` and `control` from now on.

        The `renewed` are other servers, of which nothing is known. What is in flight, what was
        counted and what the operator said of an upstream stay. Nobody is decided by a half of it.
        """
        before, self.settings = self.settings, settings
        self.control = control
        self.lengths.assumed = settings.expected_tokens
        if settings.curves != before.curves or renewed:
            self.drift = drifts(settings.curves)
        if SPEC in renewed:
            self.controller.forget_server()
        self.room.size = settings.queue_size
        self.spec = self._set_to(self.spec, settings.spec_cap, fresh=SPEC in renewed)
        self.base = self._set_to(self.base, settings.base_cap, fresh=BASE in renewed)
        self._know_pair()
        self._check_calibration(now)
        for name in renewed:
            self._lift(name)
        self._after_change(now)

    def _set_to(self, upstream: Upstream, cap: int | None, *, fresh: bool) -> Upstream:
        if fresh:
            new = Upstream(upstream.name, self.settings.health, cap)
            new.admin_state = upstream.admin_state
            self._tell(new, "it is another server now, of which nothing is known yet")
            return new
        upstream.health.rules = self.settings.health
        upstream.configured_cap = cap
        return upstream

    def drain(self) -> None:
        """Take nothing new; those waiting are still served."""
        self.draining = True

    def stop(self) -> None:
        """Give no more places to those waiting: all are about to be cut.

        Or each that is cut would give its place to one who waits, whose request would be sent to an
        engine only to be cut there.
        """
        self._stopped = True

    # Probes ------------------------------------------------------------------------------------

    def wants_identity(self, name: UpstreamName) -> bool:
        """Whether a good probe of `name` must come with its identity.

        Always while it is not healthy: what comes back from a timed ejection may be another server,
        and no rise stands between it and its first request. And after a failed probe, which may be
        all that is seen of a quick restart.
        """
        upstream = self.upstream(name)
        return upstream.doubted or upstream.health.state is not Health.HEALTHY

    def probe_failed(
        self, name: UpstreamName, detail: str, now: float, *, unanswered_since: float | None = None
    ) -> None:
        """A probe of `name` failed.

        One without an answer since `unanswered_since` says nothing if a part of a request's answer
        has come meanwhile: an engine in long prefills leaves its probes waiting.
        """
        upstream = self.upstream(name)
        if unanswered_since is not None and upstream.work.heard_at >= unanswered_since:
            return
        upstream.doubted = True
        if upstream.health.probe_failed():
            self._tell(upstream, detail)
        self._after_change(now)

    def load_read(self, name: UpstreamName, stamp: float, now: float) -> None:
        """The load of `name` was read; it wrote it at `stamp`, by its own clock."""
        self.upstream(name).work.load_read(stamp, now)

    def signals_read(self, name: UpstreamName, signals: EngineSignals, now: float) -> None:
        """What the server of `name` says of itself while it runs."""
        if name is SPEC:
            self.controller.signals(signals, now)
            self._after_change(now)

    def lengths_read(self, output_tokens: float, sequences: int) -> None:
        """A server's own counters: `output_tokens` over `sequences` that ended lately."""
        self.lengths.counted(output_tokens, sequences)

    def probe_succeeded(self, name: UpstreamName, identity: Identity | None, now: float) -> None:
        """A probe of `name` was good; `identity` is what it said, where it was asked."""
        upstream = self.upstream(name)
        if identity is not None:
            self._identified(upstream, identity)
            self._check_calibration(now)
        if upstream.faults and identity is not None:
            if upstream.health.misconfigured():
                self._tell(upstream, "; ".join(upstream.faults))
        elif upstream.health.probe_succeeded():
            upstream.work.forgive(now)
            self._lift(name)
            self._tell(upstream, "")
        self._after_change(now)

    def _identified(self, upstream: Upstream, identity: Identity) -> None:
        other = self.upstream(upstream.name.other)
        # A server that is down may come back as another; what it was condemns nobody.
        other_stands = other.health.state is not Health.EJECTED or other.health.until is not None
        upstream.identity = identity
        upstream.doubted = False
        upstream.faults = mismatches(
            upstream.name, identity, other.identity if other_stands else None
        )
        self._know_pair()

    def _check_calibration(self, now: float) -> None:
        """Go by the thresholds if both servers are those that they were measured on, else by none.

        A server that has not said yet what it is takes no requests either.
        """
        faults = [
            f"{upstream.name}: {fault}"
            for upstream in self._both
            if upstream.identity is not None and upstream.name in self.settings.made_for
            for fault in differences(self.settings.made_for[upstream.name], upstream.identity)
        ]
        if tuple(faults) != self.calibration_faults:
            self.calibration_faults = tuple(faults)
            if self.settings.made_for:
                self._observer.calibration_checked(self.calibration_faults)
        thresholds = self.settings.thresholds
        if faults:
            thresholds = replace(thresholds, crossover=None, crossover_rate=None)
        if thresholds != self.controller.thresholds:
            self.controller.set_to(thresholds, now)

    def _know_pair(self) -> None:
        both = (self.spec.identity, self.base.identity)
        known = [identity.adapters for identity in both if identity is not None]
        self.adapters = frozenset().union(*known) if len(known) == len(both) else None
        self.spec_limits = SpecLimits.of(self.spec.identity)

    def _lift(self, name: UpstreamName) -> None:
        """`name` is there again, or is another server: who found nobody there may try it."""
        for ticket in self.room:
            if ticket.need.avoid is name:
                self.room.leave(ticket)
                ticket.lift()
                self.room.enter(ticket, again=True)

    # Within ------------------------------------------------------------------------------------

    def _choose(self, need: Need) -> Decision | Wait | Never:
        if need.avoid is not None and not self.upstream(need.avoid.other).in_service:
            need = need._replace(avoid=None)  # it is that one or none
        pair, counts = self._pair, self.in_flight
        pair.spec.in_flight = counts.spec
        pair.base.in_flight = counts.base
        pair.places = self.settings.max_in_flight - counts.total
        pair.mode = self.controller.mode
        return decide(need, pair)

    def _look(self, now: float) -> None:
        """Bring the picture in line with what was said of the servers, and by the operator.

        What each request changes is not in it: see `_choose`.
        """
        pair, spec, base = self._pair, self.spec, self.base
        spec.look()
        base.look()
        pair.spec, pair.base = spec.view, base.view
        pair.base_in_maint = base.admin_state is AdminState.MAINT
        pair.control = self.control
        thresholds = self.controller.thresholds
        pair.calibrated = thresholds.crossover is not None
        pair.spill = _spill(thresholds)
        self._by_count = thresholds.crossover_rate is None
        self.controller.server(usable=spec.in_service, cap=spec.cap)
        self._none_since = inf if self.usable else min(self._none_since, now)
        self._base_gone_since = inf if base.in_service else min(self._base_gone_since, now)

    def _place(self, need: Need, decision: Decision, now: float) -> Place:
        name, weight = decision.upstream, need.weight
        upstream = self.spec if name is SPEC else self.base
        # What is no load proves nothing of generation: an engine whose scheduler is dead still
        # counts tokens.
        trial = upstream.health.state is _PROBATION and weight > 0
        if trial:
            upstream.health.trial_started()
            upstream.look()
        lease = self.in_flight.take(name, weight, upstream.work, trial=trial, now=now)
        in_flight = self.in_flight.total
        if self._by_count:
            self.controller.level(in_flight, now)
        self._observer.decided(name, decision.reason)
        return Place(name, decision.reason, self.mode, lease, in_flight, now)

    def _refuse_at_once(self, need: Need) -> Refusal:
        if self.draining:
            return Draining("specswitch is shutting down")
        return too_heavy(need, self.settings)

    def _refuse_to_wait(self, need: Need, why: Why, now: float) -> Refusal | None:
        settings = self.settings
        patience = settings.wait_for_upstream
        if why is Why.NO_UPSTREAM and now - self._none_since >= patience:
            return nobody_usable(self._both, self.settings)
        if why is Why.INELIGIBLE and now - self._base_gone_since >= patience:
            return base_unusable(need, self._both)
        if settings.queue_timeout <= 0:
            return waited_too_long(len(self.room), self.in_flight, self.settings)
        if self.room.full:
            return room_full(len(self.room), self.in_flight, settings)
        return None

    def _watch_speed(self, lease: Lease, seconds_per_token: float, now: float) -> None:
        drift = self.drift.get(lease.upstream)
        if drift is None or not drift.looks(now):
            return
        in_flight = self.in_flight.alone(lease, now)
        if in_flight is not None:
            drift.add(seconds_per_token, in_flight)

    def _learn(self, lease: Lease, evidence: Evidence, now: float) -> None:
        upstream = self.upstream(lease.upstream)
        if lease.work is not upstream.work:
            return  # it was at the server that this upstream was before a reload
        if evidence is Evidence.NONE or lease.weight == 0:
            upstream.health.request_said_nothing(trial=lease.trial)
        elif evidence is _GOOD:
            if upstream.health.request_succeeded(trial=lease.trial):
                self._tell(upstream, "its trial request succeeded")
        elif upstream.health.request_failed(trial=lease.trial, now=now):
            self._tell(upstream, "its requests failed")

    def _after_change(self, now: float) -> None:
        """Bring everything in line with what has just changed."""
        self._look(now)
        if not self._step(0, 0.0, now):
            self._settle(self.controller.reason, self.in_flight.total, now)
        if not self.room.empty:
            self._offer(now)

    def _step(self, arriving: int, work: float, now: float) -> bool:
        """Let the controller look; whether it has changed its mind.

        `arriving` are sequences, `work` what they offer if it was not counted before.
        """
        controller, in_flight = self.controller, self.in_flight.total
        switch = controller.step(in_flight, arriving, work, now)
        if controller.held_until > self._held_until:
            self._held_until = controller.held_until
            self._observer.held(self._held_until - now)
        if switch is None:
            return False
        self._settle(switch.reason, in_flight + arriving, now)
        if self.mode is not switch.to:
            self._observer.wanted(switch)
        return True

    def _settle(self, reason: SwitchReason, in_flight: int, now: float) -> None:
        """Let the mode follow the operator, the controller and what is in service."""
        mode, reason = self._wanted(reason)
        if mode is self.mode:
            return
        self._mode_seconds[self.mode] += now - self._mode_since
        self._mode_since = now
        self.mode = mode
        self._observer.switched(Switch(mode, reason, now, in_flight))

    def _wanted(self, reason: SwitchReason) -> tuple[UpstreamName, SwitchReason]:
        """The mode that there should be and why, where the controller's reason is `reason`."""
        mode = self.controller.mode
        if self.control is not Control.AUTO:
            mode = SPEC if self.control is Control.SPEC else BASE
            reason = SwitchReason.CONTROL
        if not self.upstream(mode).in_service and self.upstream(mode.other).in_service:
            mode, reason = mode.other, SwitchReason.HEALTH
        return mode, reason

    def _offer(self, now: float) -> None:
        """Give free places to those waiting, in order; nobody takes what one in front waits for."""
        if self._stopped:
            return
        if self._offering:
            return  # who was told just now has changed something; the line is asked again anyway
        self._offering = True
        try:
            while (helped := self._first_helped(now)) is not None:
                self._call(*helped, now)
        finally:
            self._offering = False

    def _first_helped(self, now: float) -> tuple[Ticket, Decision | Never] | None:
        """The oldest who need wait no longer, and what there is for it.

        Only those in front are asked: who stands behind another with the same need would hear the
        same.
        """
        awaited: set[UpstreamName] = set()
        for ticket in self.room.fronts():
            need = ticket.need
            choice = self._choose(need)
            if _is_open(choice, need, awaited) and self._step(need.weight, 0.0, now):
                choice = self._choose(need)  # it counts now as if it had just come
            if isinstance(choice, Never) or _is_open(choice, need, awaited):
                return ticket, choice
            if choice.upstream is not None:
                awaited.add(choice.upstream)
        self._awaited = awaited
        return None

    def _call(self, ticket: Ticket, choice: Decision | Never, now: float) -> None:
        """Tell `ticket` its place, or that there will be none."""
        self.room.leave(ticket)
        if isinstance(choice, Never):
            ticket.waiter.refused(base_unusable(ticket.need, self._both))
            return
        if ticket.again:
            self._observer.retried(RetryCause.CONNECT)
        ticket.waiter.placed(self._place(ticket.need, choice, now))

    def _expire(self, now: float) -> None:
        settings = self.settings
        none = now - self._none_since >= settings.wait_for_upstream
        no_base = now - self._base_gone_since >= settings.wait_for_upstream
        told = False
        for ticket in self.room:
            refusal: Refusal | None = None
            if no_base and ticket.need.eligibility.verdict is Verdict.BASE:
                refusal = base_unusable(ticket.need, self._both)
            elif none:
                refusal = nobody_usable(self._both, self.settings)
            elif now - ticket.arrived >= settings.queue_timeout:
                refusal = waited_too_long(len(self.room), self.in_flight, self.settings)
            if refusal is not None and self.room.leave(ticket):
                told = True
                ticket.waiter.refused(refusal)
        if told:
            self._offer(now)  # nobody may be kept back by one who waits no longer

    def _tell(self, upstream: Upstream, detail: str) -> None:
        health = upstream.health
        self._observer.health_changed(upstream.name, health.state, health.cause, detail)


def _spill(thresholds: Thresholds) -> float | None:
    """Sequences that spec is best for, on GPUs of its own; None where it shares them."""
    if thresholds.topology is Topology.SHARED or thresholds.crossover is None:
        return None
    return inf if thresholds.crossover == inf else floor(thresholds.crossover)


def _is_open(
    choice: Decision | Wait | Never, need: Need, awaited: AbstractSet[UpstreamName]
) -> TypeGuard[Decision]:
    """Whether `choice` is a place that nobody in front waits for; what is no load takes none."""
    if not isinstance(choice, Decision):
        return False
    return need.weight == 0 or choice.upstream not in awaited
