"""The pair: who may go where, now. The one place where choosing and counting meet.

Everything here is synchronous, so choosing a place and counting it cannot be torn apart, and takes
`now`, so the simulator can run it unchanged. It knows nothing of sockets or bytes. It owns the
leases, the servers (servers.py), the mode (steering.py) and the line of those who wait (line.py),
and whatever is said of one of them is said here, so that the others hear of it.
"""

from collections.abc import Set as AbstractSet
from typing import Final

from proxy.core.drift import drifts
from proxy.core.eligibility import SpecLimits, Verdict
from proxy.core.identity import Identity
from proxy.core.inflight import InFlight, Lease
from proxy.core.lengths import Lengths
from proxy.core.line import Line, is_open
from proxy.core.modes import Controller
from proxy.core.observer import Observer
from proxy.core.places import UNTOLD, Answer, Evidence, Place, Settings, Ticket, Waiter
from proxy.core.refusals import base_unusable, too_heavy
from proxy.core.route import Decision, Need, Never, Reason, Wait, decide, has_room
from proxy.core.servers import Servers
from proxy.core.signals import EngineSignals
from proxy.core.steering import Steering
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
        self.drift = drifts(settings.curves)
        self.control_set_by = CONFIGURED
        self.draining = False
        self._observer = observer
        self._servers = Servers(settings, observer, now=now)
        self._steering = Steering(self._servers, self.controller, self.in_flight, observer, now=now)
        self._line = Line(settings, self._servers, self.in_flight)
        self._offering = False
        self._stopped = False

    # What others know of the pair --------------------------------------------------------------

    @property
    def spec(self) -> Upstream:
        """The speculative server."""
        return self._servers.spec

    @property
    def base(self) -> Upstream:
        """The plain one."""
        return self._servers.base

    def upstream(self, name: UpstreamName) -> Upstream:
        """The upstream called `name`."""
        return self._servers.upstream(name)

    @property
    def usable(self) -> bool:
        """Whether any upstream is in service."""
        return self._servers.usable

    @property
    def adapters(self) -> frozenset[str] | None:
        """Names of LoRA adapters; None while that of one of the two is not known."""
        return self._servers.adapters

    @property
    def spec_limits(self) -> SpecLimits | None:
        """How much of the context spec has for a request; None where as much as base."""
        return self._servers.spec_limits

    @property
    def store_responses(self) -> bool:
        """Whether a server keeps a response whose request does not say whether it should."""
        return self._servers.store_responses

    @property
    def calibration_faults(self) -> tuple[str, ...]:
        """In what the servers are not those that the thresholds were measured on, as sentences."""
        return self._servers.calibration_faults

    @property
    def room(self) -> WaitingRoom[Ticket]:
        """Those who wait, in their order."""
        return self._line.room

    @property
    def control(self) -> Control:
        """The operator's override of the mode."""
        return self._steering.control

    @property
    def mode(self) -> UpstreamName:
        """Where new generation goes."""
        return self._steering.mode

    @property
    def mode_reason(self) -> SwitchReason:
        """Why the mode is what it is."""
        return self._steering.reason

    def mode_seconds(self, mode: UpstreamName, now: float) -> float:
        """Seconds spent in `mode` until `now`."""
        return self._steering.seconds(mode, now)

    def doubt(self) -> None:
        """What the servers serve may be something else now; they are asked soon."""
        self._servers.doubt()

    # Requests ----------------------------------------------------------------------------------

    def arrive(self, need: Need, waiter: Waiter, now: float) -> Place | Ticket | Refusal:
        """A request is here, whole: give it a place, a stand in the waiting room, or a refusal."""
        weight = need.weight
        if self.draining or weight > self.settings.max_in_flight:
            return self._refuse_at_once(need)
        line, steering = self._line, self._steering
        if not line.room.empty and steering.step(0, 0.0, now):
            self._offer(now)  # time alone has changed the mode, and those waiting come first
        if weight:
            steering.step(weight, weight * (self.lengths.output_tokens or 0.0), now)
        choice = self._choose(need)
        # Who arrives while places are given out is asked in its turn.
        if (
            isinstance(choice, Decision)
            and not self._offering
            and (not line.awaited or is_open(choice, need, line.awaited))
        ):
            return self._place(need, choice, now)
        return line.enter(need, choice, waiter, now)

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
        view = self._servers.upstream(other).view
        view.in_flight = self.in_flight.at(other)
        awaited = need.weight > 0 and other in self._line.awaited
        if not view.usable or awaited or not has_room(need, view):
            return None
        self._observer.retried(cause)
        self.in_flight.give_back(place.lease, now)
        taken = self._place(need, Decision(other, Reason.RETRY), now)
        self._servers.ended(place.lease, evidence, now)
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
        return self._line.enter_again(need, place.upstream, waiter, arrived)

    def end(self, lease: Lease, evidence: Evidence, now: float, answer: Answer = UNTOLD) -> None:
        """A request is over: give its place back, learn from it, and give the place to another."""
        self.in_flight.give_back(lease, now)
        if self._steering.by_count:
            self.controller.level(self.in_flight.total, now)
        good = evidence is _GOOD and lease.weight > 0
        if good:
            tokens, seconds_per_token = answer
            self.lengths.ended(now - lease.at, tokens, lease.weight)
            if seconds_per_token is not None:
                self._watch_speed(lease, seconds_per_token, now)
        self._servers.ended(lease, evidence, now)
        if lease.trial or not good:
            self._after_change(now)
            return
        if self.controller.ended(self.in_flight.total, now):
            self._steering.step(0, 0.0, now)
        if not self._line.room.empty:
            self._offer(now)

    def trial_speaks(self, lease: Lease, now: float) -> None:
        """The one request of a probation has brought a token: the others need not wait for its end.

        What goes wrong with it later counts as with any other.
        """
        self._servers.ended(lease, Evidence.GOOD, now)
        lease.trial = False
        self._after_change(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """A waiting client has gone; its stand is free and it will never reach an engine."""
        if self._line.room.leave(ticket):
            self._offer(now)

    # Time and the operator ---------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Let time pass: ejections end, patience runs out, silence grows, the average falls."""
        self.controller.level(self.in_flight.total, now)
        self.controller.served_in(self.lengths.service_seconds, now)
        self._servers.time_passes(now)
        self._after_change(now)
        if self._line.expire(now):
            self._offer(now)  # nobody may be kept back by one who waits no longer

    def set_control(self, control: Control, *, by: str, now: float) -> None:
        """The operator's override of the mode."""
        self.control_set_by = by
        self._steering.set_control(control, now)
        self._after_change(now)

    def set_admin_state(self, name: UpstreamName, state: AdminState, now: float) -> None:
        """The operator takes an upstream out, or puts it back."""
        self._servers.upstream(name).admin_state = state
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
        self._steering.control = control
        self.lengths.assumed = settings.expected_tokens
        if settings.curves != before.curves or renewed:
            self.drift = drifts(settings.curves)
        if SPEC in renewed:
            self.controller.forget_server()
        self._line.set_to(settings)
        self._servers.set_to(settings, renewed)
        self._steering.go_by(settings.thresholds, now)
        self._after_change(now)

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

    def probe_failed(
        self, name: UpstreamName, detail: str, now: float, *, unanswered_since: float | None = None
    ) -> None:
        """A probe of `name` failed; if for want of an answer, there was none since then."""
        if self._servers.probe_failed(name, detail, unanswered_since=unanswered_since):
            self._after_change(now)

    def probe_succeeded(
        self,
        name: UpstreamName,
        identity: Identity | None,
        now: float,
        *,
        settles: int | None = None,
    ) -> None:
        """A probe of `name` was good; `identity` is what it said, where it was asked.

        It `settles` the doubts that there were when it was asked; None: all that there are.
        """
        is_back = self._servers.probe_succeeded(name, identity, now, settles=settles)
        self._steering.go_by(self.settings.thresholds, now)
        if is_back:
            self._line.lift(name)
        self._after_change(now)

    def load_read(self, name: UpstreamName, stamp: float, now: float) -> None:
        """The load of `name` was read; it wrote it at `stamp`, by its own clock."""
        self._servers.upstream(name).work.load_read(stamp, now)

    def signals_read(self, name: UpstreamName, signals: EngineSignals, now: float) -> None:
        """What the server of `name` says of itself while it runs."""
        if name is SPEC:
            self.controller.signals(signals, now)
            self._after_change(now)

    def lengths_read(self, output_tokens: float, sequences: int) -> None:
        """A server's own counters: `output_tokens` over `sequences` that ended lately."""
        self.lengths.counted(output_tokens, sequences)

    # Within ------------------------------------------------------------------------------------

    def _choose(self, need: Need) -> Decision | Wait | Never:
        if need.avoid is not None and not self._servers.upstream(need.avoid.other).in_service:
            need = need._replace(avoid=None)  # it is that one or none
        pair, counts = self._steering.pair, self.in_flight
        pair.spec.in_flight = counts.spec
        pair.base.in_flight = counts.base
        pair.places = self.settings.max_in_flight - counts.total
        pair.mode = self.controller.mode
        return decide(need, pair)

    def _place(self, need: Need, decision: Decision, now: float) -> Place:
        name, weight = decision.upstream, need.weight
        upstream = self._servers.upstream(name)
        # What is no load proves nothing of generation: an engine whose scheduler is dead still
        # counts tokens.
        trial = upstream.health.state is _PROBATION and weight > 0
        if trial:
            upstream.health.trial_started()
            upstream.look()
        lease = self.in_flight.take(name, weight, upstream.work, trial=trial, now=now)
        in_flight = self.in_flight.total
        if self._steering.by_count:
            self.controller.level(in_flight, now)
        self._observer.decided(name, decision.reason)
        return Place(name, decision.reason, self._steering.mode, lease, in_flight, now)

    def _refuse_at_once(self, need: Need) -> Refusal:
        if self.draining:
            return Draining("specswitch is shutting down")
        return too_heavy(need, self.settings)

    def _watch_speed(self, lease: Lease, seconds_per_token: float, now: float) -> None:
        drift = self.drift.get(lease.upstream)
        if drift is None or not drift.looks(now):
            return
        in_flight = self.in_flight.alone(lease, now)
        if in_flight is not None:
            drift.add(seconds_per_token, in_flight)

    def _after_change(self, now: float) -> None:
        """Bring everything in line with what has just changed."""
        self._servers.look(now)
        self._steering.follow(now)
        if not self._line.room.empty:
            self._offer(now)

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
        for ticket in self._line.room.fronts():
            need = ticket.need
            choice = self._choose(need)
            if is_open(choice, need, awaited) and self._steering.step(need.weight, 0.0, now):
                choice = self._choose(need)  # it counts now as if it had just come
            if isinstance(choice, Never) or is_open(choice, need, awaited):
                return ticket, choice
            if choice.upstream is not None:
                awaited.add(choice.upstream)
        self._line.awaited = awaited
        return None

    def _call(self, ticket: Ticket, choice: Decision | Never, now: float) -> None:
        """Tell `ticket` its place, or that there will be none."""
        self._line.room.leave(ticket)
        if isinstance(choice, Never):
            ticket.waiter.refused(base_unusable(ticket.need, self._servers.both))
            return
        if ticket.again:
            self._observer.retried(RetryCause.CONNECT)
        ticket.waiter.placed(self._place(ticket.need, choice, now))
