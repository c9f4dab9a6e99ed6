"""The pair under any order of events: the books balance, caps hold, nobody is lost or forgotten.

Those who wait may act on being told at once, as the data plane's do: end, or come again.
"""

from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.core.eligibility import Verdict
from proxy.core.places import Evidence, Place, Ticket
from proxy.core.route import Decision, Need, Never, Reason
from proxy.core.words import AdminState, Control, RetryCause, UpstreamName
from proxy.errors import Refusal
from tests.harness.pair import (
    BASE,
    IDENTITIES,
    SETTINGS,
    SPEC,
    Pair,
    Standing,
    model_path,
    need,
    only_base,
    prefers_base,
)

CAPS = {SPEC: 4, BASE: 6}
LIMITED = replace(
    SETTINGS,
    spec_cap=CAPS[SPEC],
    base_cap=CAPS[BASE],
    max_in_flight=8,
    queue_size=5,
    queue_timeout=12.0,
    health=replace(SETTINGS.health, fall=2, passive_failures=2),
)

NAMES = st.sampled_from(UpstreamName)
WEIGHTS = st.sampled_from((1, 1, 1, 2, 3, 7, 9))
NEEDS = st.one_of(
    st.builds(need, WEIGHTS),
    st.builds(need, WEIGHTS, override=NAMES),
    st.builds(only_base, st.sampled_from((0, 1, 2, 7))),
    st.builds(prefers_base, WEIGHTS),
    st.builds(model_path),
)
ACTS = st.sampled_from(("stays", "stays", "ends", "comes again", "one ends", "one leaves"))
ANY = st.integers(0, 1 << 16)
"""An index into what there is, taken modulo."""


@dataclass(eq=False)
class Guest(Standing):
    """One request: what it wants, what it was told, and what it does when told."""

    wants: Need = field(default_factory=need)
    acts: str = "stays"
    machine: "DispatchMachine | None" = None
    ticket: Ticket | None = None
    left: bool = False
    held: Place | None = None

    def placed(self, place: Place) -> None:
        """Hold it, and act."""
        super().placed(place)
        assert self.machine is not None
        self.held = place
        self.machine.check(place)
        self.act()

    def refused(self, refusal: Refusal) -> None:
        """Act."""
        super().refused(refusal)
        self.act()

    def act(self) -> None:
        """Do at once what it does, or let another do it."""
        machine = self.machine
        assert machine is not None
        match self.acts:
            case "comes again":
                machine.come(self.wants, "stays")
            case "ends" if self.held is not None:
                machine.end_of(self, Evidence.GOOD)
            case "one ends" if machine.placed:
                machine.end_of(machine.placed[0], Evidence.GOOD)
            case "one leaves" if machine.waiting:
                machine.leave_of(machine.waiting[-1])


class DispatchMachine(RuleBasedStateMachine):
    """A pair, its guests, and what must hold after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(LIMITED, healthy=False)
        self.began = self.pair.now
        self.guests: list[Guest] = []

    @property
    def placed(self) -> list[Guest]:
        """Those who hold a place."""
        return [guest for guest in self.guests if guest.held is not None]

    @property
    def waiting(self) -> list[Guest]:
        """Those who have neither been told anything nor left."""
        return [
            guest
            for guest in self.guests
            if guest.ticket is not None and not guest.told and not guest.left
        ]

    def come(self, wants: Need, acts: str) -> None:
        """A request arrives."""
        guest = Guest(wants=wants, acts=acts, machine=self)
        self.guests.append(guest)
        answer = self.pair.come(wants, guest)
        if isinstance(answer, Place):
            guest.held = answer
            self.check(answer)
        elif isinstance(answer, Ticket):
            guest.ticket = answer

    def check(self, place: Place) -> None:
        """Look at a place that was given just now: by the mode, spec has no more than N*."""
        if place.upstream is SPEC and place.reason == Reason.MODE:
            assert self.pair.dispatcher.in_flight.total <= (SETTINGS.thresholds.crossover or 0.0)

    def end_of(self, guest: Guest, evidence: Evidence) -> None:
        """A request ends."""
        place, guest.held = guest.held, None
        assert place is not None
        self.pair.end(place, evidence)

    def leave_of(self, guest: Guest) -> None:
        """A waiting client goes."""
        assert guest.ticket is not None
        guest.left = True
        self.pair.dispatcher.leave(guest.ticket, self.pair.now)

    @initialize(up=st.sampled_from(((BASE, SPEC), (BASE, SPEC), (SPEC,), ())))
    def start(self, up: tuple[UpstreamName, ...]) -> None:
        """The servers are there, or nothing is known of them yet."""
        for name in up:
            self.pair.up(name)

    @rule(wants=NEEDS, acts=ACTS)
    def arrives(self, wants: Need, acts: str) -> None:
        """One request arrives."""
        self.come(wants, acts)

    @rule(wishes=st.lists(st.tuples(NEEDS, ACTS), min_size=2, max_size=10))
    def many_arrive(self, wishes: list[tuple[Need, str]]) -> None:
        """Several arrive at once."""
        for wants, acts in wishes:
            self.come(wants, acts)

    @precondition(lambda self: self.placed)
    @rule(index=ANY, evidence=st.sampled_from(Evidence))
    def ends(self, index: int, evidence: Evidence) -> None:
        """One ends."""
        self.end_of(self.placed[index % len(self.placed)], evidence)

    @precondition(lambda self: self.placed)
    @rule(count=st.integers(1, 8))
    def several_end(self, count: int) -> None:
        """The oldest end."""
        for guest in self.placed[:count]:
            if guest.held is not None:
                self.end_of(guest, Evidence.GOOD)

    @precondition(lambda self: self.placed)
    @rule(index=ANY, cause=st.sampled_from((RetryCause.CONNECT, RetryCause.REFUSAL)))
    def retries(self, index: int, cause: RetryCause) -> None:
        """One asks for a place at the other upstream."""
        guest = self.placed[index % len(self.placed)]
        first = guest.held
        assert first is not None
        evidence = Evidence.BAD if cause is RetryCause.CONNECT else Evidence.NONE
        guest.held = None  # while places are exchanged, the books of this test cannot be read
        second = self.pair.dispatcher.retry(first, guest.wants, cause, evidence, self.pair.now)
        guest.held = second or first
        assert first.lease.open is (second is None)
        if second is not None:
            assert second.upstream is first.upstream.other
            assert cause is RetryCause.CONNECT or second.upstream is BASE

    @precondition(lambda self: self.waiting)
    @rule(index=ANY)
    def leaves(self, index: int) -> None:
        """A waiting client goes."""
        self.leave_of(self.waiting[index % len(self.waiting)])

    @rule(seconds=st.sampled_from((0.0, 0.25, 1.0, 5.0, 12.0)))
    def time_passes(self, seconds: float) -> None:
        """A tick."""
        self.pair.later(seconds)

    @rule(seconds=st.sampled_from((0.1, 3.0)))
    def time_passes_unseen(self, seconds: float) -> None:
        """Between two ticks."""
        self.pair.now += seconds

    @rule(
        name=NAMES, said=st.sampled_from(("well", "well twice", "silent", "silent twice", "twin"))
    )
    def probe_ends(self, name: UpstreamName, said: str) -> None:
        """A server is well, or silent, or is what the other one should be."""
        match said.split():
            case ["well", *more]:
                self.pair.up(name, probes=1 + len(more))
            case ["silent", *more]:
                self.pair.down(name, probes=1 + len(more))
            case _:
                self.pair.up(name, IDENTITIES[name.other])

    @rule(name=NAMES, word=st.sampled_from(AdminState) | st.sampled_from(Control))
    def operator_says(self, name: UpstreamName, word: AdminState | Control) -> None:
        """The operator overrides the mode, takes a server out, or puts it back."""
        dispatcher, now = self.pair.dispatcher, self.pair.now
        if isinstance(word, Control):
            dispatcher.set_control(word, by="the test", now=now)
        else:
            dispatcher.set_admin_state(name, word, now)

    @invariant()
    def books_balance(self) -> None:
        """In flight is what the open leases weigh; caps hold but for one that is heavier alone."""
        counts = self.pair.dispatcher.in_flight
        held = [guest.held.lease for guest in self.placed if guest.held is not None]
        assert all(lease.open for lease in held)
        for name in UpstreamName:
            weights = [lease.weight for lease in held if lease.upstream is name and lease.weight]
            assert counts.at(name) == sum(weights)
            assert counts.at(name) <= CAPS[name] or len(weights) == 1
        loads = [lease.weight for lease in held if lease.weight]
        assert counts.total <= LIMITED.max_in_flight or len(loads) == 1

    @invariant()
    def told_once(self) -> None:
        """One is told once, or has left, or stands in the room; what is base's stays there."""
        room = self.pair.dispatcher.room
        assert len(room) <= LIMITED.queue_size
        assert [guest.ticket for guest in self.waiting] == list(room)
        for guest in self.guests:
            assert len(guest.told) <= (guest.ticket is not None and not guest.left)
            if guest.held is not None and guest.wants.eligibility.verdict is Verdict.BASE:
                assert guest.held.upstream is BASE

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        """In the order of arrival, nobody could have a place that nobody in front waits for."""
        awaited: set[UpstreamName | None] = set()
        for guest in self.waiting:
            choice = self.pair.dispatcher._choose(guest.wants)
            assert not isinstance(choice, Never)
            if isinstance(choice, Decision):
                assert guest.wants.weight
                assert awaited & {None, choice.upstream}
            awaited.add(choice.upstream)

    @invariant()
    def the_picture_is_kept(self) -> None:
        """What decisions are made from is what was said of the servers, and by the operator."""
        pair = self.pair.dispatcher
        for upstream in (pair.spec, pair.base):
            kept = upstream.view
            seen = (kept.usable, kept.why_not, kept.cap, kept.trial)
            upstream.look()
            assert seen == (kept.usable, kept.why_not, kept.cap, kept.trial)
        picture = pair._steering.pair
        assert (picture.spec, picture.base) == (pair.spec.view, pair.base.view)
        assert picture.control is pair.control
        assert picture.base_in_maint is (pair.base.admin_state is AdminState.MAINT)
        assert pair.mode is pair._steering._wanted(pair.controller.reason)[0]
        assert pair.usable is (pair._servers.none_since == inf)
        assert pair.base.in_service is (pair._servers.base_gone_since == inf)
        assert pair.room.empty is (len(pair.room) == 0)

    @invariant()
    def time_is_accounted_for(self) -> None:
        """The seconds in both modes are the seconds that have passed."""
        seconds = [self.pair.dispatcher.mode_seconds(m, self.pair.now) for m in UpstreamName]
        assert abs(sum(seconds) - (self.pair.now - self.began)) < 1e-6

    def teardown(self) -> None:
        """When all is well again and all have ended, nothing is left."""
        for name in UpstreamName:
            self.operator_says(name, AdminState.READY)
            self.pair.down(name, probes=2)
        self.operator_says(SPEC, Control.AUTO)
        self.pair.later(60.0)
        for name in (BASE, SPEC):
            self.pair.up(name, probes=2)
        while self.placed or self.waiting:
            assert self.placed, "all wait, and no place is taken"
            self.ends(0, Evidence.GOOD)
        self.books_balance()
        self.told_once()
        assert self.pair.dispatcher.in_flight.total == 0
        assert len(self.pair.dispatcher.room) == 0
        place = self.pair.place()
        assert place.lease.open


DispatchMachine.TestCase.settings = settings(
    max_examples=max(200, settings().max_examples),  # a run is short
    stateful_step_count=40,
)
TestDispatch = DispatchMachine.TestCase
