"""Many exchanges on one real dispatcher, in any order of events: each ends once, no lease is lost.

Each request is played without sockets: what its exchange commands is done to the dispatcher, and to
nothing else. `test_exchange_machine` looks at one exchange alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from proxy.core.dispatch import Dispatcher
from proxy.core.errands import Reply, Result
from proxy.core.peek import Dialect
from proxy.core.places import Place, Ticket
from proxy.core.route import Need
from proxy.core.sse import StreamWatch
from proxy.core.words import AdminState, Control, Health, Outcome, RetryCause, UpstreamName
from proxy.data import events as ev
from proxy.data.exchange import Exchange, State
from proxy.errors import NoUpstream, Overloaded, Refusal
from tests.harness.pair import BASE, SETTINGS, SPEC, Pair, need, only_base, prefers_base
from tests.harness.talk import TIMEOUTS

SMALL = replace(
    SETTINGS,
    spec_cap=3,
    base_cap=3,
    max_in_flight=5,
    queue_size=3,
    health=replace(SETTINGS.health, passive_failures=2, fall=1, rise=1),
)
NAMES = st.sampled_from((SPEC, BASE))
NEEDS = st.builds(
    lambda make, weight: make(weight),
    st.sampled_from((need, need, only_base, prefers_base)),
    st.sampled_from((0, 1, 1, 2)),
)
PIECES = st.sampled_from(
    (b'data: {"choices": []}\n\n', b'data: {"error": {"code": 503}}\n\n', b"data: half")
)


@dataclass(eq=False)
class Player:
    """One request: its exchange, and what that has done to the dispatcher. It is its own waiter."""

    pair: Pair
    need: Need
    exchange: Exchange
    ticket: Ticket | None = None
    connection: bool = False
    place: Place | None = None
    """The place that it is holding now."""
    places: list[Place] = field(default_factory=list)
    """All that it was given, the last one last."""
    said: list[ev.Command] = field(default_factory=list)

    @property
    def state(self) -> State:
        """Where it stands."""
        return self.exchange.state

    def count(self, *kinds: type[ev.Command]) -> int:
        """How many commands of `kinds` there were."""
        return sum(isinstance(command, kinds) for command in self.said)

    def tell(self, event: ev.Event) -> None:
        """Tell the exchange, and do what it commands."""
        for command in self.exchange.process(event, self.pair.now):
            assert self.state is not State.ENDED or isinstance(command, LAST)
            self.said.append(command)
            self._do(command)

    def _do(self, command: ev.Command) -> None:
        dispatcher, now = self.pair.dispatcher, self.pair.now
        match command:
            case ev.Ask():
                self._hear(dispatcher.arrive(self.need, self, now))
            case ev.AskOther():
                self._ask_other(command)
            case ev.GiveBack(place, evidence):
                self.place = None
                dispatcher.end(place.lease, evidence, now)
            case ev.LeaveRoom():
                assert self.ticket is not None
                dispatcher.leave(self.ticket, now)
            case ev.Connect() | ev.DropEngine() | ev.KeepEngine():
                assert not (self.connection and isinstance(command, ev.Connect))
                self.connection = isinstance(command, ev.Connect)
            case ev.Finish(_, evidence, held, _):
                assert not self.connection
                assert held is self.place
                self.place = None
                if held is not None:
                    dispatcher.end(held.lease, evidence, now)
            case _:
                pass  # the client's side, of which the dispatcher knows nothing

    def _ask_other(self, command: ev.AskOther) -> None:
        """As the relay does: what was never sent may wait."""
        dispatcher, place, cause = self.pair.dispatcher, command.place, command.cause
        other = dispatcher.retry(place, self.need, cause, command.evidence, self.pair.now)
        if other is not None:
            self.placed(other)
            return
        if cause is RetryCause.CONNECT:
            self.ticket = dispatcher.wait_for_other(place, self.need, self, self.pair.now)
        self.tell(ev.NotPlaced() if self.ticket is None else ev.Queued())

    def _hear(self, answer: Place | Ticket | Refusal) -> None:
        if isinstance(answer, Place):
            self.placed(answer)
        elif isinstance(answer, Ticket):
            self.ticket = answer
        else:
            self.refused(answer)

    def placed(self, place: Place) -> None:
        """A place came free, now or after waiting."""
        self.ticket = None
        self.place = place
        self.places.append(place)
        self.tell(ev.Placed(place))

    def refused(self, refusal: Refusal) -> None:
        """None did."""
        self.ticket = None
        self.tell(ev.Refused(refusal))


LAST = (
    ev.DropEngine,
    ev.KeepEngine,
    ev.LeaveRoom,
    ev.SendHead,
    ev.CancelErrand,
    ev.Finish,
    ev.Answer,
    ev.Tell,
    ev.EndAnswer,
    ev.Cut,
)
"""What may be commanded with an ending: letting go, counting, and telling the client."""
RESULTS: tuple[Result, ...] = (
    Reply(status=200, content_type="text/plain", body=b""),
    NoUpstream("both down"),
)
ASKED = (State.ERRAND, State.CONNECTING, State.AWAITING, State.HOLDING, State.RELAYING)
"""Where a deadline runs."""


SOMETIMES = st.sampled_from((False, False, False, True))
"""For what ends a request early, so that many come far."""


def _read_body(player: Player, data: st.DataObject) -> None:
    fits = not data.draw(SOMETIMES)
    if fits and data.draw(SOMETIMES):
        player.tell(ev.ErrandRead())
        return
    player.tell(ev.RequestRead() if fits else ev.Refused(Overloaded("too much")))


def _end_errand(player: Player, data: st.DataObject) -> None:
    player.tell(ev.ErrandOver(data.draw(st.sampled_from(RESULTS))))


def _connect(player: Player, data: st.DataObject) -> None:
    how = data.draw(st.sampled_from(("kept", "new", "new", "none", "no descriptor")))
    if how == "none":
        player.connection = False
        player.tell(ev.ConnectFailed("refused"))
    elif how == "no descriptor":
        player.connection = False
        player.tell(ev.Refused(Overloaded("no file descriptor is free")))
    else:
        player.tell(ev.Connected(how == "kept"))


def _answer(player: Player, data: st.DataObject) -> None:
    if data.draw(SOMETIMES):
        player.tell(ev.EngineLost(data.draw(st.booleans()), "reset"))
        return
    status = data.draw(st.sampled_from((200, 200, 200, 404, 429, 500, 503)))
    watched = data.draw(st.booleans())
    player.tell(ev.HeadRead(status, StreamWatch(Dialect.OPENAI_CHAT) if watched else None))


def _go_on(player: Player, data: st.DataObject) -> None:
    what = data.draw(st.sampled_from(("piece", "piece", "end", "end", "break")))
    if what == "end":
        player.tell(ev.ResponseEnded(data.draw(st.booleans())))
    elif what == "break":
        player.tell(ev.EngineLost(silent=False, why="reset"))
    else:
        player.exchange.passing([data.draw(PIECES)], player.pair.now)
        watch = player.exchange.watch
        if player.state is State.HOLDING and watch is not None and watch.events:
            player.tell(ev.FirstEventRead())


STEPS: dict[State, Callable[[Player, st.DataObject], None]] = {
    State.READING: _read_body,
    State.ERRAND: _end_errand,
    State.CONNECTING: _connect,
    State.AWAITING: _answer,
    State.HOLDING: _go_on,
    State.RELAYING: _go_on,
}
"""What comes next, where it is not the dispatcher that says so."""


class Crowd(RuleBasedStateMachine):
    """Clients, engines, an operator and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(SMALL)
        self.players: list[Player] = []

    @property
    def dispatcher(self) -> Dispatcher:
        """The one that they share."""
        return self.pair.dispatcher

    def who(self, *states: State) -> list[Player]:
        """Those who stand there."""
        return [player for player in self.players if player.state in states]

    @initialize(control=st.sampled_from(Control))
    def begin(self, control: Control) -> None:
        """The operator has said something, or nothing."""
        self.pair.control(control)

    @precondition(lambda self: len(self.players) < 24)
    @rule(
        wanted=st.lists(NEEDS, min_size=1, max_size=4), streams=st.booleans(), holds=st.booleans()
    )
    def come(self, wanted: list[Need], *, streams: bool, holds: bool) -> None:
        """Requests, whole but for the last."""
        for each in wanted:
            exchange = Exchange(TIMEOUTS, holds_head=holds)
            exchange.streams = streams
            self.players.append(Player(self.pair, each, exchange))
        for player in self.players[-len(wanted) : -1]:
            player.tell(ev.RequestRead())

    @precondition(lambda self: self.who(*STEPS))
    @rule(data=st.data())
    def goes_on(self, data: st.DataObject) -> None:
        """The next step of somebody: the rest of a body, a connection, a head, a piece, an end."""
        player = data.draw(st.sampled_from(self.who(*STEPS)))
        STEPS[player.state](player, data)

    @precondition(lambda self: self.who(*STEPS))
    @rule(data=st.data(), steps=st.integers(2, 6))
    def goes_far(self, data: st.DataObject, steps: int) -> None:
        """Several steps of one."""
        player = data.draw(st.sampled_from(self.who(*STEPS)))
        for _ in range(steps):
            if player.state in STEPS:
                STEPS[player.state](player, data)

    @precondition(lambda self: self.who(State.WAITING, *STEPS))
    @rule(data=st.data(), goes=SOMETIMES)
    def leaves(self, data: st.DataObject, *, goes: bool) -> None:
        """A client goes, wherever its request stands."""
        player = data.draw(st.sampled_from(self.who(State.WAITING, *STEPS)))
        if goes:
            player.tell(ev.ClientGone())

    @precondition(lambda self: self.who(*ASKED))
    @rule(data=st.data(), late=SOMETIMES)
    def is_late(self, data: st.DataObject, *, late: bool) -> None:
        """An engine's deadline passes."""
        player = data.draw(st.sampled_from(self.who(*ASKED)))
        if late and player.exchange.deadline < inf:
            self.pair.now = max(self.pair.now, player.exchange.deadline)
            player.tell(ev.Expired())

    @rule(seconds=st.sampled_from((0.05, 1.0, 6.0, 31.0)))
    def time_passes(self, seconds: float) -> None:
        """Ejections end, patience runs out."""
        self.pair.later(seconds)

    @rule(name=NAMES, good=st.booleans())
    def is_probed(self, name: UpstreamName, *, good: bool) -> None:
        """A server falls or rises."""
        self.pair.up(name) if good else self.pair.down(name, probes=1)

    @rule(word=st.sampled_from(Control), name=NAMES, state=st.sampled_from(AdminState))
    def operator(self, word: Control, name: UpstreamName, state: AdminState) -> None:
        """The operator overrides the mode, takes a server out or puts it back."""
        self.pair.control(word)
        self.pair.say(name, state)

    @rule(spec_cap=st.integers(1, 4), base_cap=st.integers(0, 4), queue=st.integers(0, 4))
    def reload(self, spec_cap: int, base_cap: int, queue: int) -> None:
        """Other limits, from now on."""
        changed = replace(SMALL, spec_cap=spec_cap, base_cap=base_cap, queue_size=queue)
        control = self.dispatcher.control
        self.dispatcher.apply(changed, renewed=set(), control=control, now=self.pair.now)

    @precondition(lambda self: len(self.players) > 12)
    @rule(going=SOMETIMES)
    def drains(self, *, going: bool) -> None:
        """We are going."""
        if going:
            self.dispatcher.drain()

    @invariant()
    def every_lease_is_somebodys(self) -> None:
        """In flight is what those hold who have not ended; the room is those who wait."""
        for name in (SPEC, BASE):
            held = [p for p in self.players if p.place is not None and p.place.upstream is name]
            weight = sum(player.need.weight for player in held)
            assert self.dispatcher.in_flight.at(name) == weight
            assert self.dispatcher.upstream(name).work.expected == weight
        waiting = [player for player in self.players if player.state is State.WAITING]
        assert len(self.dispatcher.room) == len(waiting)
        assert {player.ticket for player in waiting} == {*self.dispatcher.room}

    @invariant()
    def one_ending_each(self) -> None:
        """And one head at most, and what is given back is not held by anybody."""
        for player in self.players:
            over = player.state is State.ENDED
            assert player.count(ev.Finish) == over
            assert player.count(ev.SendHead) <= 1
            assert player.count(ev.AskOther) <= 1
            assert player.count(ev.Answer, ev.EndAnswer, ev.Cut, ev.Tell) <= over
            for place in player.places:
                assert place.lease.open == (place is player.place)

    @invariant()
    def told_of_each_place(self) -> None:
        """Decisions are places given; retries are the second ones."""
        given = [place for player in self.players for place in player.places]
        assert len(self.pair.told.decisions) == len(given)
        again = [
            cause for cause in self.pair.told.retries if cause is not RetryCause.STALE_CONNECTION
        ]
        assert len(again) == sum(max(0, len(player.places) - 1) for player in self.players)

    @invariant()
    def one_trial_at_a_time(self) -> None:
        """In probation a server has one request for a trial, and knows that it is out."""
        for name in (SPEC, BASE):
            health = self.dispatcher.upstream(name).health
            trials = [p.place for p in self.players if p.place is not None and p.place.lease.trial]
            out = [place for place in trials if place.upstream is name]
            assert len(out) <= 1
            assert health._trial_out == bool(out)
            if out and health.state is Health.PROBATION:
                assert not health.usable

    def teardown(self) -> None:
        """Everybody leaves: nothing is left."""
        for player in self.players:
            if player.state is not State.ENDED:
                player.tell(ev.ClientGone())
        self.every_lease_is_somebodys()
        self.one_ending_each()
        self.one_trial_at_a_time()
        assert self.dispatcher.in_flight.total == 0
        assert len(self.dispatcher.room) == 0
        outcomes = [c.outcome for p in self.players for c in p.said if isinstance(c, ev.Finish)]
        assert len(outcomes) == len(self.players)
        assert {*outcomes} <= {*Outcome}


Crowd.TestCase.settings = settings(
    max_examples=min(300, settings().max_examples),  # each is a long one: 60 ms
    stateful_step_count=60,
)
TestCrowd = Crowd.TestCase
