"""The pair: who may go where, now. The one place where choosing and counting meet.

Everything here is synchronous, so choosing a place and counting it cannot be torn apart, and takes
`now`, so the simulator can run it unchanged. It owns the leases, the health of both upstreams, the
controller, the waiting room and the operator's word; it knows nothing of sockets or bytes.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import NamedTuple, Protocol, TypeGuard

from proxy.core.eligibility import Rules, Verdict
from proxy.core.health import HealthRules
from proxy.core.identity import Identity, mismatches
from proxy.core.inflight import InFlight, Lease
from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.observer import Observer
from proxy.core.route import Decision, Need, Never, Pair, Reason, Wait, Why, decide, has_room
from proxy.core.upstream import Upstream
from proxy.core.waiting import WaitingRoom
from proxy.core.words import (
    AdminState,
    Control,
    Health,
    RetryCause,
    SwitchReason,
    UpstreamName,
)
from proxy.errors import Draining, Ineligible, NoUpstream, Overloaded, QueueTimeout, Refusal

SPEC = UpstreamName.SPEC
BASE = UpstreamName.BASE

RETRY_AFTER_BUSY = 1
"""Seconds: a place comes free with the next request that ends."""
RETRY_AFTER_DOWN = 5
"""Seconds: about what an engine needs to be seen as back."""


class Evidence(Enum):
    """What the end of a request says about its upstream."""

    GOOD = auto()
    BAD = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the pair is set to; sequences and seconds."""

    thresholds: Thresholds
    health: HealthRules
    rules: Rules
    spec_cap: int | None
    """Sequences; 0 for no cap, None for what the server reports."""
    base_cap: int | None
    max_in_flight: int
    queue_size: int
    queue_timeout: float
    wait_for_upstream: float


class Place(NamedTuple):
    """A place at an upstream, counted."""

    upstream: UpstreamName
    reason: str
    mode: UpstreamName
    lease: Lease


class Waiter(Protocol):
    """Who waits for a place; is told once."""

    def placed(self, place: Place) -> None:
        """Here is your place; it is held for you from now on."""

    def refused(self, refusal: Refusal) -> None:
        """There will be none."""


class Ticket:
    """A stand in the waiting room; `arrived` is the one stamp that counts."""

    __slots__ = ("arrived", "need", "waiter")

    def __init__(self, need: Need, waiter: Waiter, arrived: float) -> None:
        self.need = need
        self.waiter = waiter
        self.arrived = arrived

    @property
    def want(self) -> Need:
        """What any place would suit alike."""
        return self.need


class Dispatcher:
    """The pair and its waiting room."""

    def __init__(self, settings: Settings, observer: Observer, *, now: float) -> None:
        self.settings = settings
        self.in_flight = InFlight()
        self.controller = Controller(settings.thresholds, now=now)
        self.room: WaitingRoom[Ticket] = WaitingRoom(settings.queue_size)
        self.spec = Upstream(SPEC, settings.health, settings.spec_cap)
        self.base = Upstream(BASE, settings.health, settings.base_cap)
        self.control = Control.AUTO
        self.control_set_by = "configuration"
        self.mode = BASE
        self.mode_reason: SwitchReason = self.controller.reason
        self.draining = False
        self.adapters: frozenset[str] = frozenset()
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

    def upstream(self, name: UpstreamName) -> Upstream:
        """The upstream called `name`."""
        return self.spec if name is SPEC else self.base

    @property
    def usable(self) -> bool:
        """Whether any upstream is in service."""
        return self.spec.in_service or self.base.in_service

    def mode_seconds(self, mode: UpstreamName, now: float) -> float:
        """Seconds spent in `mode` until `now`."""
        running = now - self._mode_since if mode is self.mode else 0.0
        return self._mode_seconds[mode] + running

    # Requests ----------------------------------------------------------------------------------

    def arrive(self, need: Need, waiter: Waiter, now: float) -> Place | Ticket | Refusal:
        """A request is here, whole: give it a place, a stand in the waiting room, or a refusal."""
        at_once = self._refuse_at_once(need)
        if at_once is not None:
            return at_once
        if len(self.room) and self._step(0, now):
            self._offer(now)  # time alone has changed the mode, and those waiting come first
        if need.weight:
            self._step(need.weight, now)
        choice = self._choose(need)
        if isinstance(choice, Never):
            return self._ineligible(need)
        # Who arrives while places are given out is asked in its turn.
        if not self._offering and _is_open(choice, need, self._awaited):
            return self._place(need, choice, now)
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
        if other is SPEC and (only_base or cause is RetryCause.REFUSAL):
            return None
        view = self.upstream(other).view(self.in_flight.at(other))
        awaited = need.weight > 0 and other in self._awaited
        if not view.usable or awaited or not has_room(need, view):
            return None
        self._observer.retried(cause)
        self.in_flight.give_back(place.lease, now)
        taken = self._place(need, Decision(other, Reason.RETRY), now)
        self._learn(place.lease, evidence, now)
        self._after_change(now)
        return taken

    def end(self, lease: Lease, evidence: Evidence, now: float) -> None:
        """A request is over: give its place back, learn from it, and give the place to another."""
        self.in_flight.give_back(lease, now)
        self.controller.level(self.in_flight.total, now)
        self._learn(lease, evidence, now)
        self._after_change(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """A waiting client has gone; its stand is free and it will never reach an engine."""
        if self.room.leave(ticket):
            self._offer(now)

    # Time and the operator ---------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Let time pass: ejections end, patience runs out, the average falls."""
        for upstream in (self.spec, self.base):
            if upstream.health.advance(now):
                self._tell(upstream, "its ejection is over; one request may try it")
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

    def drain(self) -> None:
        """Take nothing new; those waiting are still served."""
        self.draining = True

    # Probes ------------------------------------------------------------------------------------

    def wants_identity(self, name: UpstreamName) -> bool:
        """Whether a good probe of `name` must come with its identity.

        Always while it is not healthy: what comes back from a timed ejection may be another server,
        and no rise stands between it and its first request.
        """
        return self.upstream(name).health.state is not Health.HEALTHY

    def probed(
        self, name: UpstreamName, *, good: bool, identity: Identity | None, detail: str, now: float
    ) -> None:
        """A probe of `name` ended; `identity` is what it said, where it was asked."""
        upstream = self.upstream(name)
        if not good:
            if upstream.health.probe_failed():
                self._tell(upstream, detail)
            self._after_change(now)
            return
        if identity is not None:
            self._identified(upstream, identity)
        if upstream.faults and identity is not None:
            if upstream.health.misconfigured():
                self._tell(upstream, "; ".join(upstream.faults))
        elif upstream.health.probe_succeeded():
            self._tell(upstream, "")
        self._after_change(now)

    def _identified(self, upstream: Upstream, identity: Identity) -> None:
        other = self.upstream(upstream.name.other)
        # A server that is down may come back as another; what it was condemns nobody.
        other_stands = other.health.state is not Health.EJECTED or other.health.until is not None
        upstream.identity = identity
        upstream.faults = mismatches(
            upstream.name, identity, other.identity if other_stands else None
        )
        both = (self.spec.identity, self.base.identity)
        self.adapters = frozenset().union(*(i.adapters for i in both if i is not None))

    # Within ------------------------------------------------------------------------------------

    def _choose(self, need: Need) -> Decision | Wait | Never:
        counts = self.in_flight
        return decide(
            need,
            Pair(
                self.spec.view(counts.spec),
                self.base.view(counts.base),
                self.base.admin_state is AdminState.MAINT,
                self.control,
                self.controller.mode,
                self.settings.thresholds.crossover is not None,
                self.settings.max_in_flight - counts.total,
            ),
        )

    def _place(self, need: Need, decision: Decision, now: float) -> Place:
        health = self.upstream(decision.upstream).health
        # What is no load proves nothing of generation: an engine whose scheduler is dead still
        # counts tokens.
        trial = health.state is Health.PROBATION and need.weight > 0
        if trial:
            health.trial_started()
        lease = self.in_flight.take(decision.upstream, need.weight, trial=trial, now=now)
        self.controller.level(self.in_flight.total, now)
        self._observer.decided(decision.upstream, decision.reason)
        return Place(decision.upstream, decision.reason, self.mode, lease)

    def _refuse_at_once(self, need: Need) -> Refusal | None:
        if self.draining:
            return Draining("specswitch is shutting down")
        if need.weight > self.settings.max_in_flight:
            return Overloaded(
                f"this request counts as {need.weight} sequences, "
                f"{self.settings.max_in_flight} are allowed at a time"
            )
        return None

    def _refuse_to_wait(self, need: Need, why: Why, now: float) -> Refusal | None:
        settings = self.settings
        patience = settings.wait_for_upstream
        if why is Why.NO_UPSTREAM and now - self._none_since >= patience:
            return self._no_upstream()
        if why is Why.INELIGIBLE and now - self._base_gone_since >= patience:
            return self._ineligible(need)
        if settings.queue_timeout <= 0:
            return self._queue_timeout()
        if self.room.full:
            return Overloaded(
                f"the waiting room is full: {self._load()}", retry_after=RETRY_AFTER_BUSY
            )
        return None

    def _learn(self, lease: Lease, evidence: Evidence, now: float) -> None:
        upstream = self.upstream(lease.upstream)
        if evidence is Evidence.NONE or lease.weight == 0:
            upstream.health.request_said_nothing(trial=lease.trial)
        elif evidence is Evidence.GOOD:
            before = upstream.health.state
            upstream.health.request_succeeded(trial=lease.trial)
            if upstream.health.state is not before:
                self._tell(upstream, "its trial request succeeded")
        elif upstream.health.request_failed(trial=lease.trial, now=now):
            self._tell(upstream, "its requests failed")

    def _after_change(self, now: float) -> None:
        """Bring everything in line with what has just changed."""
        self._none_since = inf if self.usable else min(self._none_since, now)
        self._base_gone_since = inf if self.base.in_service else min(self._base_gone_since, now)
        self._step(0, now)
        if len(self.room):
            self._offer(now)

    def _step(self, arriving: int, now: float) -> bool:
        """Let the controller look; whether it has changed its mind."""
        switch = self.controller.step(
            in_flight=self.in_flight.total,
            arriving=arriving,
            spec_usable=self.spec.in_service,
            now=now,
        )
        self._settle(self.controller.reason, self.in_flight.total + arriving, now)
        if switch is not None and self.mode is not switch.to:
            self._observer.wanted(switch)
        return switch is not None

    def _settle(self, reason: SwitchReason, in_flight: int, now: float) -> None:
        """Let the mode follow the operator, the controller and what is in service."""
        mode = self.controller.mode
        if self.control is not Control.AUTO:
            mode = SPEC if self.control is Control.SPEC else BASE
            reason = SwitchReason.CONTROL
        if not self.upstream(mode).in_service and self.upstream(mode.other).in_service:
            mode, reason = mode.other, SwitchReason.HEALTH
        self.mode_reason = reason
        if mode is self.mode:
            return
        self._mode_seconds[self.mode] += now - self._mode_since
        self._mode_since = now
        self.mode = mode
        self._observer.switched(Switch(mode, reason, now, in_flight))

    def _offer(self, now: float) -> None:
        """Give free places to those waiting, in order; nobody takes what one in front waits for."""
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
            if _is_open(choice, need, awaited) and self._step(need.weight, now):
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
            ticket.waiter.refused(self._ineligible(ticket.need))
        else:
            ticket.waiter.placed(self._place(ticket.need, choice, now))

    def _expire(self, now: float) -> None:
        settings = self.settings
        none = now - self._none_since >= settings.wait_for_upstream
        no_base = now - self._base_gone_since >= settings.wait_for_upstream
        told = False
        for ticket in self.room:
            refusal: Refusal | None = None
            if no_base and ticket.need.eligibility.verdict is Verdict.BASE:
                refusal = self._ineligible(ticket.need)
            elif none:
                refusal = self._no_upstream()
            elif now - ticket.arrived >= settings.queue_timeout:
                refusal = self._queue_timeout()
            if refusal is not None and self.room.leave(ticket):
                told = True
                ticket.waiter.refused(refusal)
        if told:
            self._offer(now)  # nobody may be kept back by one who waits no longer

    def _tell(self, upstream: Upstream, detail: str) -> None:
        health = upstream.health
        self._observer.health_changed(upstream.name, health.state, health.cause, detail)

    # Words for refusals ------------------------------------------------------------------------

    def _load(self) -> str:
        counts = self.in_flight
        return (
            f"{len(self.room)} of {self.room.size} waiting, "
            f"{counts.spec} sequences in flight on spec and {counts.base} on base, "
            f"{self.settings.max_in_flight} allowed"
        )

    def _states(self) -> str:
        return ", ".join(f"{each.name} is {each}" for each in (self.spec, self.base))

    def _no_upstream(self) -> NoUpstream:
        seconds = self.settings.wait_for_upstream
        return NoUpstream(
            f"no upstream was usable for {seconds:g} s: {self._states()}",
            retry_after=RETRY_AFTER_DOWN,
        )

    def _ineligible(self, need: Need) -> Ineligible:
        return Ineligible(
            f"only base may serve this request ({need.eligibility.rule}): {self._states()}",
            retry_after=RETRY_AFTER_DOWN,
        )

    def _queue_timeout(self) -> QueueTimeout:
        return QueueTimeout(
            f"no place came free within {self.settings.queue_timeout:g} s: {self._load()}",
            retry_after=RETRY_AFTER_BUSY,
        )


def _is_open(
    choice: Decision | Wait | Never, need: Need, awaited: AbstractSet[UpstreamName]
) -> TypeGuard[Decision]:
    """Whether `choice` is a place that nobody in front waits for; what is no load takes none."""
    if not isinstance(choice, Decision):
        return False
    return need.weight == 0 or choice.upstream not in awaited
