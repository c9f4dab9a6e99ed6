"""An exchange that is told any legal events: one head, one ending, and nothing left behind."""

from collections.abc import Callable
from itertools import chain
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.core.errands import Reply, Result
from proxy.core.peek import Dialect
from proxy.core.sse import StreamWatch
from proxy.core.words import Outcome, RetryCause, UpstreamName
from proxy.data.events import (
    Answer,
    Ask,
    AskOther,
    CancelErrand,
    ClientFinished,
    ClientGone,
    Command,
    Connect,
    Connected,
    ConnectFailed,
    Cut,
    DropEngine,
    EndAnswer,
    EngineLost,
    ErrandOver,
    ErrandRead,
    Event,
    Expired,
    Finish,
    FinishSending,
    FirstEventRead,
    GiveBack,
    HeadRead,
    KeepEngine,
    LeaveRoom,
    NotPlaced,
    OpenTunnel,
    Placed,
    Queued,
    Refused,
    RequestRead,
    ResponseEnded,
    RunErrand,
    Send,
    SendHead,
    Tell,
)
from proxy.data.exchange import TRANSITIONS, Exchange, State
from proxy.errors import InternalError, NoUpstream, Overloaded
from tests.harness.talk import TIMEOUTS, place

PIECES = st.sampled_from(
    (
        b'data: {"choices": []}\n\n',
        b'data: {"error": {"code": 503}}\n\n',
        b'data: {"error": {"code": 500}}\n\n',
        b"data: half",
        b"\n\n",
        b"data: [DONE]\n\n",
    )
)
RESULTS: tuple[Result, ...] = (
    *(Reply(status=status, content_type="text/plain", body=b"") for status in (200, 404, 502)),
    NoUpstream("both down"),
    InternalError("a fault of ours"),
)
STATUSES = st.sampled_from((101, 200, 200, 200, 404, 429, 500, 503))


class Book:
    """One exchange, what it has commanded, and what must hold of that at every moment."""

    def __init__(self, *, holds_head: bool, streams: bool) -> None:
        self.now = 1000.0
        self.exchange = Exchange(TIMEOUTS, holds_head=holds_head)
        self.exchange.streams = streams
        self.commands: list[Command] = []
        self.connection = False
        """Whether an engine's connection is there, or in the making, for this request."""
        self.errand = False
        """Whether somebody is asked for its answer."""

    @property
    def state(self) -> State:
        """Where the exchange stands."""
        return self.exchange.state

    def expects(self, kind: type[Event]) -> bool:
        """Whether the exchange may be told such an event now."""
        return kind in TRANSITIONS[self.state]

    def count(self, *kinds: type[Command]) -> int:
        """How many commands of `kinds` there were."""
        return sum(isinstance(command, kinds) for command in self.commands)

    @property
    def asked_with(self) -> AskOther:
        """The last question for a place at the other upstream."""
        return next(each for each in reversed(self.commands) if isinstance(each, AskOther))

    @property
    def may_wait(self) -> bool:
        """Whether it may wait for that: only what was never sent."""
        return self.expects(Queued) and self.asked_with.cause is RetryCause.CONNECT

    def place(self) -> Placed:
        """A place; for a retry at the other upstream."""
        held = self.exchange.place
        name = UpstreamName.SPEC if held is None else held.upstream.other
        return Placed(place(name))

    def tell(self, event: Event) -> None:
        """Tell the exchange, and note what it commands in turn."""
        if isinstance(event, ConnectFailed | Refused):
            self.connection = False  # there is nothing to drop
        if isinstance(event, ErrandOver):
            self.errand = False
        for command in self.exchange.process(event, self.now):
            self.note_for_engine(command)
            self.note_for_desk(command)
            self.note_for_tunnel(command)
            self.note_for_client(command)
            self.commands.append(command)
        self.check()

    def pass_on(self, *pieces: bytes) -> None:
        """The engine goes on; as the relay does, tell when a first event is whole."""
        self.exchange.passing([*pieces], self.now)
        watch = self.exchange.watch
        if self.state is State.HOLDING and watch is not None and watch.events:
            self.tell(FirstEventRead())

    def note_for_engine(self, command: Command) -> None:
        """What is commanded of the engine's side makes sense after what went before."""
        match command:
            case Connect(upstream):
                assert not self.connection
                assert self.exchange.place is not None
                assert upstream is self.exchange.place.upstream
                self.connection = True
            case Send(attempt):
                assert self.connection
                assert attempt == self.count(Send) + 1
            case KeepEngine():
                assert self.connection
                self.connection = False
            case DropEngine():
                self.connection = False
            case Ask() | AskOther():
                assert self.count(type(command), SendHead, Finish) == 0
            case LeaveRoom():
                assert not self.connection
            case GiveBack(place):
                assert not self.connection
                assert self.exchange.place is None
                assert place is self.asked_with.place
                assert self.asked_with.cause is RetryCause.CONNECT
                assert self.count(GiveBack) == 0
                assert self.count(Send) <= 1  # over a connection that was stale
            case _:
                pass  # the other half is below

    def note_for_desk(self, command: Command) -> None:
        """What is commanded of the desk makes sense after what went before."""
        match command:
            case RunErrand():
                assert self.count(RunErrand, Ask, Finish) == 0
                self.errand = True
            case CancelErrand():
                assert self.errand
                self.errand = False
            case _:
                pass  # the others are below and above

    def note_for_tunnel(self, command: Command) -> None:
        """A tunnel is opened once, after its head, and finished once."""
        if isinstance(command, OpenTunnel | FinishSending):
            assert self.connection
            assert self.count(SendHead) == 1
            assert self.count(type(command), Finish) == 0

    def note_for_client(self, command: Command) -> None:
        """What is commanded of the client's side makes sense after what went before."""
        match command:
            case Finish(_, _, place, _):
                assert not self.connection
                assert not self.errand
                assert place is self.exchange.place
                assert self.count(Finish) == 0
            case SendHead():
                assert self.connection
                assert self.count(SendHead, Finish) == 0
            case Answer() | Tell():
                assert self.count(SendHead, Answer, Tell) == 0
                assert self.count(Finish) == 1
            case EndAnswer() | Cut():
                assert self.count(SendHead) == self.count(Finish) == 1
                assert self.count(EndAnswer, Cut) == 0
            case _:
                pass  # the other half is above

    def check(self) -> None:
        """Once is once, who has a connection has a deadline, and the end is the end."""
        assert self.count(Finish) == (self.state is State.ENDED)
        assert self.count(SendHead) or self.state is not State.RELAYING
        assert self.count(SendHead) <= 1
        assert self.count(AskOther) <= 1
        assert self.count(Send) == self.exchange.attempts <= 3
        runs = self.exchange.deadline < inf
        assert self.count(OpenTunnel) or self.state is not State.TUNNEL
        running = {State.CONNECTING, State.AWAITING, State.HOLDING, State.TUNNEL, State.ERRAND}
        if self.state in running:
            assert runs
        assert self.errand == (self.state is State.ERRAND)
        assert not self.count(RunErrand) or not self.count(Ask, Connect, Send)
        if self.state in {State.READING, State.WAITING, State.ENDED}:
            assert not runs
        if self.state is State.ENDED:
            assert not self.connection
            (finish,) = (each for each in self.commands if isinstance(each, Finish))
            left = finish.outcome is Outcome.ABANDONED
            assert self.count(Answer, EndAnswer, Cut, Tell) == (not left)


def watch() -> StreamWatch:
    """A watch of a chat stream."""
    return StreamWatch(Dialect.OPENAI_CHAT)


def expects(*kinds: type[Event]) -> Callable[["ExchangeMachine"], bool]:
    """Whether one of such events may be told now."""
    return lambda machine: any(machine.book.expects(kind) for kind in kinds)


class ExchangeMachine(RuleBasedStateMachine):
    """Plays the client, the dispatcher and the engine of one request."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(holds_head=True, streams=True)

    @initialize(holds_head=st.booleans(), streams=st.booleans())
    def begin(self, holds_head: bool, streams: bool) -> None:  # noqa: FBT001 - drawn
        """A request's head is here."""
        self.book = Book(holds_head=holds_head, streams=streams)

    @precondition(expects(RequestRead))
    @rule()
    def request_is_read(self) -> None:
        """The whole request is here."""
        self.book.tell(RequestRead())

    @precondition(expects(ErrandRead))
    @rule()
    def errand_is_read(self) -> None:
        """The whole request is here, and somebody is to be asked for its answer."""
        self.book.tell(ErrandRead())

    @precondition(expects(ErrandOver))
    @rule(result=st.sampled_from(RESULTS))
    def errand_is_over(self, result: Result) -> None:
        """There is an answer, or none."""
        self.book.tell(ErrandOver(result))

    @precondition(expects(Placed))
    @rule()
    def placed(self) -> None:
        """The dispatcher has a place."""
        self.book.tell(self.book.place())

    @precondition(expects(NotPlaced))
    @rule()
    def not_placed(self) -> None:
        """The dispatcher has none."""
        self.book.tell(NotPlaced())

    @precondition(lambda self: self.book.may_wait)
    @rule()
    def queued(self) -> None:
        """The dispatcher has none yet."""
        self.book.tell(Queued())

    @precondition(expects(Refused))
    @rule()
    def refused(self) -> None:
        """We have no room."""
        self.book.tell(Refused(Overloaded("no room")))

    @precondition(expects(Connected))
    @rule(reused=st.booleans())
    def connected(self, reused: bool) -> None:  # noqa: FBT001 - drawn
        """There is a connection."""
        self.book.tell(Connected(reused))

    @precondition(expects(ConnectFailed))
    @rule()
    def connect_failed(self) -> None:
        """There is none."""
        self.book.tell(ConnectFailed("refused"))

    @precondition(expects(HeadRead))
    @rule(status=STATUSES, watched=st.booleans())
    def head_read(self, status: int, watched: bool) -> None:  # noqa: FBT001 - drawn
        """The engine answers."""
        self.book.tell(HeadRead(status, watch() if watched else None))

    @precondition(expects(ResponseEnded))
    @rule(pieces=st.lists(PIECES, min_size=1, max_size=3))
    def pieces_pass(self, pieces: list[bytes]) -> None:
        """The engine goes on."""
        self.book.pass_on(*pieces)

    @precondition(expects(ResponseEnded))
    @rule(reusable=st.booleans())
    def response_ended(self, reusable: bool) -> None:  # noqa: FBT001 - drawn
        """The engine has ended its answer."""
        self.book.tell(ResponseEnded(reusable))

    @precondition(expects(EngineLost))
    @rule(silent=st.booleans())
    def engine_lost(self, silent: bool) -> None:  # noqa: FBT001 - drawn
        """The engine is gone."""
        self.book.tell(EngineLost(silent, "reset"))

    @precondition(expects(ClientGone))
    @rule(gone=st.sampled_from((False, False, False, True)))
    def client_gone(self, gone: bool) -> None:  # noqa: FBT001 - drawn
        """The client leaves, now and then."""
        if gone:
            self.book.tell(ClientGone())

    @precondition(expects(ClientFinished))
    @rule()
    def client_finished(self) -> None:
        """The client of a tunnel sends no more."""
        self.book.tell(ClientFinished())

    @precondition(expects(ClientFinished))
    @rule()
    def bytes_go_through(self) -> None:
        """Either side of a tunnel says something."""
        self.book.exchange.tunnelled(self.book.now)

    @precondition(lambda self: self.book.expects(Expired) and self.book.exchange.deadline < inf)
    @rule()
    def expired(self) -> None:
        """Nobody moves until the deadline."""
        self.book.now = max(self.book.now, self.book.exchange.deadline)
        self.book.tell(Expired())

    @rule(seconds=st.sampled_from((0.05, 1.0)))
    def time_passes(self, seconds: float) -> None:
        """A moment."""
        self.book.now += seconds

    @rule()
    def client_is_slow(self) -> None:
        """The client takes less than the engine gives."""
        self.book.exchange.pause()

    @rule()
    def client_catches_up(self) -> None:
        """The client takes more again."""
        self.book.exchange.resume(self.book.now)

    @invariant()
    def all_holds(self) -> None:
        """Also when nothing was commanded."""
        self.book.check()


ExchangeMachine.TestCase.settings = settings(
    max_examples=max(200, settings().max_examples),  # a run is short
    stateful_step_count=25,
)
TestExchange = ExchangeMachine.TestCase


STEPS: dict[str, Callable[[Book], None]] = {
    "body": lambda book: book.tell(RequestRead()),
    "errand": lambda book: book.tell(ErrandRead()),
    "told": lambda book: book.tell(ErrandOver(RESULTS[0])),
    "untold": lambda book: book.tell(ErrandOver(RESULTS[-1])),
    "refused": lambda book: book.tell(Refused(Overloaded("no room"))),
    "place": lambda book: book.tell(book.place()),
    "no place": lambda book: book.tell(NotPlaced()),
    "waits": lambda book: book.tell(Queued()),
    "old": lambda book: book.tell(Connected(reused=True)),
    "new": lambda book: book.tell(Connected(reused=False)),
    "no connection": lambda book: book.tell(ConnectFailed("refused")),
    "200": lambda book: book.tell(HeadRead(200, None)),
    "503": lambda book: book.tell(HeadRead(503, None)),
    "101": lambda book: book.tell(HeadRead(101, None)),
    "finished": lambda book: book.tell(ClientFinished()),
    "stream": lambda book: book.tell(HeadRead(200, watch())),
    "token": lambda book: book.pass_on(b'data: {"choices": []}\n\n'),
    "full": lambda book: book.pass_on(b'data: {"error": {"code": 503}}\n\n'),
    "end": lambda book: book.tell(ResponseEnded(reusable=True)),
    "lost": lambda book: book.tell(EngineLost(silent=True, why="reset")),
    "gone": lambda book: book.tell(ClientGone()),
    "late": lambda book: book.tell(Expired()),
}
NEXT: dict[State, tuple[str, ...]] = {
    State.READING: ("body", "errand", "refused", "gone"),
    State.ERRAND: ("told", "untold", "gone", "late"),
    State.WAITING: ("place", "refused", "gone"),
    State.CONNECTING: ("old", "new", "no connection", "refused", "gone", "late"),
    State.AWAITING: ("200", "101", "stream", "503", "lost", "gone", "late"),
    State.HOLDING: ("token", "full", "end", "lost", "gone", "late"),
    State.RETRYING: ("place", "no place", "gone"),
    State.RELAYING: ("end", "lost", "gone", "late"),
    State.TUNNEL: ("end", "lost", "gone", "late"),
    State.ENDED: (),
}


def after(path: tuple[str, ...]) -> Book:
    """What there is at the end of `path`."""
    book = Book(holds_head=True, streams=True)
    for step in path:
        STEPS[step](book)
    return book


def test_every_path_ends_once() -> None:
    """All paths, to their ends: none is endless, and on each all holds at every step."""
    paths: list[tuple[str, ...]] = [()]
    ends: list[tuple[str, ...]] = []
    while paths:
        path = paths.pop()
        book = after(path)
        if book.state is State.ENDED:
            ends.append(path)
        steps = (*NEXT[book.state], *(("waits",) if book.may_wait else ()))
        if book.state is State.TUNNEL and not book.count(FinishSending):
            steps = (*steps, "finished")
        paths += [(*path, step) for step in steps]
    assert {*chain(*ends)} == {*STEPS}
    longest = max(ends, key=len)
    assert longest.count("old") + longest.count("new") == 3
    assert len(ends) > 500
