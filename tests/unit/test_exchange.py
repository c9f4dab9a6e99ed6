"""Conversations with the exchange: `>>` what happens, `<<` what it commands. No sockets.

assert (
    Talk()
    >> RequestRead()
    << Ask()
    >> ClientGone()
    << LeaveRoom()
    << Ends(Outcome.ABANDONED)
)
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple, Self

import pytest

from proxy.core.dispatch import Evidence, Place
from proxy.core.inflight import Lease
from proxy.core.peek import Dialect
from proxy.core.sse import StreamWatch
from proxy.core.words import Outcome, RetryCause, UpstreamName
from proxy.data.events import (
    Answer,
    Ask,
    AskOther,
    ClientGone,
    Command,
    Connect,
    Connected,
    ConnectFailed,
    Cut,
    DropEngine,
    EndAnswer,
    EngineLost,
    Event,
    Expired,
    Finish,
    FirstEventRead,
    HeadRead,
    KeepEngine,
    LeaveRoom,
    NotPlaced,
    Placed,
    Refused,
    RequestRead,
    ResponseEnded,
    Send,
    SendHead,
)
from proxy.data.exchange import Exchange, IllegalEvent, State
from proxy.data.settings import Timeouts
from proxy.errors import BodyTooLarge, Overloaded

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
OK, FAILED = Outcome.OK, Outcome.FAILED
ABANDONED, REJECTED = Outcome.ABANDONED, Outcome.REJECTED
GOOD, BAD, NONE = Evidence.GOOD, Evidence.BAD, Evidence.NONE

TIMEOUTS = Timeouts(
    header=10.0,
    body=60.0,
    client_write=60.0,
    client_keep_alive=75.0,
    connect=2.0,
    first_byte=600.0,
    between_chunks=120.0,
    response=3600.0,
    idle_connection=3.0,
)
START = 0.0
"""Nought, so that 0.1 s later is exactly 0.1."""

TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
FULL = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n'
DONE = b"data: [DONE]\n\n"


def place(upstream: UpstreamName) -> Place:
    """A place at `upstream`."""
    return Place(upstream, "mode", upstream, Lease(upstream, 1, since=START, trial=False))


AT_SPEC, AT_BASE = place(SPEC), place(BASE)


class Ends(NamedTuple):
    """`Finish`, with its refusal's code."""

    outcome: Outcome
    evidence: Evidence = NONE
    place: Place | None = None
    code: str | None = None


class Answers(NamedTuple):
    """`Answer`, with its refusal's code."""

    code: str


class Cuts(NamedTuple):
    """`Cut`, with its refusal's code."""

    code: str


class After(NamedTuple):
    """So many seconds pass."""

    seconds: float


Plain = Command | Ends | Answers | Cuts


def plain(command: Command) -> Plain:
    """`command`, comparable: refusals by their codes."""
    match command:
        case Finish(outcome, evidence, held, refusal):
            return Ends(outcome, evidence, held, None if refusal is None else refusal.code)
        case Answer(refusal):
            return Answers(refusal.code)
        case Cut(refusal):
            return Cuts(refusal.code)
        case _:
            return command


class Talk:
    """A conversation with an exchange; true when nothing that was commanded is left unsaid."""

    def __init__(self, *, streams: bool = True, holds_head: bool = True) -> None:
        self.exchange = Exchange(TIMEOUTS, holds_head=holds_head)
        self.exchange.streams = streams
        self.now = START
        self.said: list[Plain] = []
        self.last: tuple[Command, ...] = ()

    def __rshift__(self, event: Event | After | list[bytes]) -> Self:
        """This happens; all that was commanded before must have been said."""
        assert self.said == []
        if isinstance(event, After):
            self.now += event.seconds
        elif isinstance(event, list):
            self.exchange.passing(event, self.now)
        else:
            self.last = self.exchange.process(event, self.now)
            self.said = [plain(command) for command in self.last]
        return self

    def __lshift__(self, command: Plain) -> Self:
        """This is commanded next."""
        assert self.said
        assert self.said.pop(0) == command
        return self

    def __bool__(self) -> bool:
        assert self.said == []
        return True

    @property
    def deadline(self) -> float:
        """Seconds until the deadline."""
        return self.exchange.deadline - self.now

    @property
    def message(self) -> str:
        """What the last refusal says."""
        (refusal,) = {c.refusal for c in self.last if isinstance(c, Answer | Cut)}
        return refusal.message


def watch() -> StreamWatch:
    """A watch of a chat stream."""
    return StreamWatch(Dialect.OPENAI_CHAT)


def stream(status: int = 200) -> HeadRead:
    """The head of a stream that can be read."""
    return HeadRead(status, watch())


def head(status: int = 200) -> HeadRead:
    """The head of what is no stream."""
    return HeadRead(status, None)


def waiting(talk: Talk | None = None) -> Talk:
    """Up to WAITING."""
    talk = talk or Talk()
    assert talk >> RequestRead() << Ask()
    return talk


def connecting(talk: Talk | None = None, at: Place = AT_SPEC) -> Talk:
    """Up to CONNECTING."""
    talk = waiting(talk)
    assert talk >> Placed(at) << Connect(at.upstream, fresh=False)
    return talk


def awaiting(talk: Talk | None = None, at: Place = AT_SPEC, *, reused: bool = False) -> Talk:
    """Up to AWAITING."""
    talk = connecting(talk, at)
    assert talk >> Connected(reused) << Send(1)
    return talk


def holding(talk: Talk | None = None) -> Talk:
    """Up to HOLDING."""
    talk = awaiting(talk)
    assert talk >> stream()
    return talk


def retrying() -> Talk:
    """Up to RETRYING, for a refusal."""
    talk = awaiting()
    assert talk >> head(503) << AskOther(AT_SPEC, RetryCause.REFUSAL, NONE)
    return talk


def relaying(talk: Talk | None = None) -> Talk:
    """Up to RELAYING, with nothing of the body yet."""
    talk = awaiting(talk)
    assert talk >> head() << SendHead()
    return talk


def ended() -> Talk:
    """Up to ENDED."""
    talk = Talk()
    assert talk >> ClientGone() << Ends(ABANDONED)
    return talk


# The way that all is well ------------------------------------------------------------------------


def test_a_stream_from_its_head_to_its_end() -> None:
    """A place, a connection, the head with the first event, the pieces, the end; then kept."""
    talk = Talk()
    assert (
        talk
        >> RequestRead()
        << Ask()
        >> Placed(AT_SPEC)
        << Connect(SPEC, fresh=False)
        >> Connected(reused=True)
        << Send(1)
        >> stream()
        >> [TOKEN]
        >> FirstEventRead()
        << SendHead()
        >> [TOKEN, DONE]
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(OK, GOOD, AT_SPEC)
        << EndAnswer()
    )
    assert talk.exchange.attempts == 1
    assert talk.exchange.status == 200
    assert talk.exchange.watch is not None
    assert talk.exchange.watch.ended
    assert repr(talk.exchange) == "<Exchange ENDED at spec attempt 1>"


def test_an_answer_that_is_no_stream() -> None:
    """It passes as it comes; a connection that cannot serve again is closed."""
    assert (
        relaying()
        >> [b"{}"]
        >> ResponseEnded(reusable=False)
        << DropEngine()
        << Ends(OK, GOOD, AT_SPEC)
        << EndAnswer()
    )


def test_where_heads_are_not_held_a_streams_head_passes_at_once() -> None:
    """Only on chat and completions does SGLang send the head with the first event."""
    assert awaiting(Talk(holds_head=False)) >> stream() << SendHead()


@pytest.mark.parametrize("status", [300, 400, 404, 500])
def test_the_head_of_an_error_is_not_held(status: int) -> None:
    """What follows it is no stream of events to wait for."""
    assert awaiting() >> stream(status) << SendHead()


def test_a_stream_that_ends_within_its_first_event_passes_as_it_is() -> None:
    """Nothing more will come that could be waited for."""
    assert (
        holding()
        >> [b"data: {"]
        >> ResponseEnded(reusable=True)
        << SendHead()
        << KeepEngine()
        << Ends(OK, GOOD, AT_SPEC)
        << EndAnswer()
    )


def test_an_empty_exchange_describes_itself() -> None:
    """Its repr is a line for a log."""
    assert repr(Talk().exchange) == "<Exchange READING attempt 0>"
    assert Talk().exchange.sent_at is None
    assert awaiting().exchange.sent_at == START


# Before a place ----------------------------------------------------------------------------------


def test_a_request_refused_while_it_comes_in() -> None:
    """A limit of ours: the answer, and no upstream has heard of it."""
    refusal = BodyTooLarge("too large")
    talk = Talk()
    assert (
        talk
        >> Refused(refusal)
        << Ends(REJECTED, NONE, None, "body_too_large")
        << Answers("body_too_large")
    )
    assert talk.message == "too large"


def test_a_request_refused_while_it_waits() -> None:
    """No place came free."""
    assert (
        waiting()
        >> Refused(Overloaded("no room", retry_after=1))
        << Ends(REJECTED, NONE, None, "overloaded")
        << Answers("overloaded")
    )


def test_a_client_that_leaves_before_its_request_is_whole() -> None:
    """Nothing has happened."""
    assert Talk() >> ClientGone() << Ends(ABANDONED)


def test_a_client_that_leaves_while_it_waits() -> None:
    """Its stand is free."""
    assert waiting() >> ClientGone() << LeaveRoom() << Ends(ABANDONED)


# Connecting --------------------------------------------------------------------------------------

CONNECT = AskOther(AT_SPEC, RetryCause.CONNECT, BAD)


def test_a_connect_that_fails_is_retried_at_the_other() -> None:
    """Once; the request has not been sent before."""
    talk = connecting()
    assert (
        talk
        >> ConnectFailed("refused")
        << CONNECT
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> Connected(reused=False)
        << Send(1)
        >> head()
        << SendHead()
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(OK, GOOD, AT_BASE)
        << EndAnswer()
    )


def test_a_connect_that_takes_too_long_is_given_up_and_retried() -> None:
    """Silence is a failure, too."""
    talk = connecting()
    assert talk.deadline == 2.0
    assert talk >> After(2.0) >> Expired() << DropEngine() << CONNECT
    assert (
        talk
        >> NotPlaced()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_connect")
        << Answers("upstream_connect")
    )
    assert talk.message == "could not connect to spec: no connection within 2 s"


def test_a_second_connect_that_fails_is_the_end() -> None:
    """Nothing is tried a third time."""
    talk = connecting()
    assert (
        talk
        >> ConnectFailed("refused")
        << CONNECT
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> ConnectFailed("no route")
        << Ends(FAILED, BAD, AT_BASE, "upstream_connect")
        << Answers("upstream_connect")
    )
    assert talk.message == "could not connect to base: no route"


def test_a_client_that_leaves_while_we_connect() -> None:
    """The connection in the making is given up at once."""
    assert connecting() >> ClientGone() << DropEngine() << Ends(ABANDONED, NONE, AT_SPEC)


# Refusals ----------------------------------------------------------------------------------------

REFUSAL = AskOther(AT_SPEC, RetryCause.REFUSAL, NONE)


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_retried_at_the_other(status: int) -> None:
    """A head of 429 or 503: nothing has been done for this request."""
    talk = awaiting()
    assert (
        talk
        >> head(status)
        << REFUSAL
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> Connected(reused=True)
        << Send(2)
    )
    assert talk.exchange.status is None


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_passes_unchanged_when_there_is_no_other_place(status: int) -> None:
    """It is the engine's answer, neutral for its health, and a failed request."""
    assert (
        awaiting()
        >> head(status)
        << REFUSAL
        >> NotPlaced()
        << SendHead()
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(FAILED, NONE, AT_SPEC)
        << EndAnswer()
    )


@pytest.mark.parametrize("first", [head(429), stream(503)])
def test_when_both_refuse_the_second_refusal_passes(first: HeadRead) -> None:
    """One retry."""
    assert (
        awaiting()
        >> first
        << REFUSAL
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> Connected(reused=False)
        << Send(2)
        >> head(503)
        << SendHead()
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(FAILED, NONE, AT_BASE)
        << EndAnswer()
    )


def test_a_refusal_as_the_first_event_is_retried() -> None:
    """SGLang's full queue: 200, an error event with code 503, [DONE], all in one read."""
    assert (
        holding()
        >> [FULL + DONE]
        >> FirstEventRead()
        << REFUSAL
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> Connected(reused=False)
        << Send(2)
        >> stream()
        >> [TOKEN]
        >> FirstEventRead()
        << SendHead()
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(OK, GOOD, AT_BASE)
        << EndAnswer()
    )


def test_two_refusals_as_first_events_pass_and_count_as_failed() -> None:
    """The second one is the client's answer, unchanged; neutral for health."""
    assert (
        holding()
        >> [FULL]
        >> FirstEventRead()
        << REFUSAL
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> Connected(reused=False)
        << Send(2)
        >> stream()
        >> [FULL]
        >> FirstEventRead()
        << SendHead()
        >> [DONE]
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(FAILED, NONE, AT_BASE)
        << EndAnswer()
    )


@pytest.mark.parametrize(
    "first",
    [
        TOKEN + FULL,
        b'data: {"error": {"code": 400}}\n\n',
        b'data: {"error": {"code": 429}}\n\n',
        b'data: {"error": {"code": 500}}\n\n',
    ],
)
def test_what_is_no_refusal_passes(first: bytes) -> None:
    """Other errors, and one after a token: the engine had begun."""
    assert holding() >> [first] >> FirstEventRead() << SendHead()


def test_a_first_event_that_never_ends_passes() -> None:
    """Past the bound the head is let go with what was held."""
    assert holding() >> [b"data: "] >> FirstEventRead() << SendHead()


# Stale connections -------------------------------------------------------------------------------


def lost(*, silent: bool = True) -> EngineLost:
    """The engine's connection has broken."""
    return EngineLost(silent, "the connection was closed")


def test_a_stale_connection_is_replaced_by_a_fresh_one() -> None:
    """It was closed before we used it: the same upstream, the same place, once."""
    talk = awaiting(reused=True)
    assert (
        talk
        >> After(0.1)
        >> lost()
        << DropEngine()
        << Connect(SPEC, fresh=True)
        >> Connected(reused=False)
        << Send(2)
        >> lost()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_reset")
        << Answers("upstream_reset")
    )


def test_only_one_stale_connection_is_replaced() -> None:
    """Even if the fresh one calls itself reused."""
    assert (
        awaiting(reused=True)
        >> lost()
        << DropEngine()
        << Connect(SPEC, fresh=True)
        >> Connected(reused=True)
        << Send(2)
        >> lost()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_reset")
        << Answers("upstream_reset")
    )


def test_a_restarted_engine_is_no_loss() -> None:
    """Its kept connection is stale, a fresh one is refused, the other upstream takes it."""
    assert (
        awaiting(reused=True)
        >> lost()
        << DropEngine()
        << Connect(SPEC, fresh=True)
        >> ConnectFailed("refused")
        << CONNECT
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> Connected(reused=True)
        << Send(2)
    )


@pytest.mark.parametrize(
    ("reused", "after", "event"),
    [
        (False, 0.0, lost()),
        (True, 0.11, lost()),
        (True, 0.0, lost(silent=False)),
    ],
    ids=["a new connection", "later", "after a byte"],
)
def test_what_is_not_stale_is_not_sent_again(
    reused: bool,  # noqa: FBT001 - a column
    after: float,
    event: EngineLost,
) -> None:
    """The engine may have begun to work: 502, and it counts against it."""
    talk = awaiting(reused=reused)
    assert (
        talk
        >> After(after)
        >> event
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_reset")
        << Answers("upstream_reset")
    )
    assert talk.message == "spec broke off before its answer began: the connection was closed"


def test_an_engine_lost_with_the_head_held_is_a_502() -> None:
    """Nothing has gone to the client yet, and it is told the truth; not retried."""
    assert (
        holding()
        >> lost(silent=False)
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_reset")
        << Answers("upstream_reset")
    )


# The client leaves, the engine breaks off --------------------------------------------------------


@pytest.mark.parametrize("talk_to", [awaiting, holding, relaying])
def test_a_client_that_leaves_takes_the_engines_connection_with_it(
    talk_to: Callable[[], Talk],
) -> None:
    """Before or after the head; it says nothing of the upstream."""
    assert talk_to() >> ClientGone() << DropEngine() << Ends(ABANDONED, NONE, AT_SPEC)


def test_an_engine_that_breaks_off_its_answer() -> None:
    """What went out cannot be taken back: it is broken off, so that nobody is deceived."""
    talk = relaying()
    assert (
        talk
        >> [TOKEN]
        >> lost(silent=False)
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_reset")
        << Cuts("upstream_reset")
    )
    assert talk.message == "spec broke off its answer: the connection was closed"


# Deadlines ---------------------------------------------------------------------------------------


def test_there_is_no_deadline_before_a_place_and_after_the_end() -> None:
    """Reading and waiting have those of others."""
    for talk in (Talk(), waiting(), ended()):
        assert talk.deadline == inf


def test_a_streams_first_byte() -> None:
    """`first_byte` runs from the sending, and a head does not begin it anew."""
    talk = awaiting(Talk(holds_head=False))
    assert talk.deadline == 600.0
    assert talk >> After(500.0) >> stream() << SendHead()
    assert talk.deadline == 100.0
    assert (
        talk
        >> After(100.0)
        >> Expired()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_timeout")
        << Cuts("upstream_timeout")
    )
    assert talk.message == "spec has sent nothing for 600 s"


@pytest.mark.parametrize("talk_to", [awaiting, holding])
def test_silence_before_anything_went_to_the_client(talk_to: Callable[[], Talk]) -> None:
    """A 504 of ours, with the head held or not."""
    talk = talk_to()
    assert (
        talk
        >> After(talk.deadline)
        >> Expired()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_timeout")
        << Answers("upstream_timeout")
    )
    assert talk.message == "spec has sent nothing for 600 s"


def test_between_a_streams_pieces() -> None:
    """After the first piece `between_chunks` runs, from each piece anew."""
    talk = holding()
    assert talk >> After(500.0) >> [b"data: "]
    assert talk.deadline == 120.0
    assert talk >> After(100.0) >> [b"{}\n\n"] >> FirstEventRead() << SendHead()
    assert talk.deadline == 120.0
    assert talk >> After(100.0) >> [TOKEN]
    assert talk.deadline == 120.0
    assert (
        talk
        >> After(120.0)
        >> Expired()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_timeout")
        << Cuts("upstream_timeout")
    )
    assert talk.message == "spec has sent nothing for 120 s"


def test_silence_within_a_held_event() -> None:
    """What is said is how long nothing came, not how long ago all was sent."""
    talk = holding()
    assert (
        talk
        >> After(500.0)
        >> [b"data: "]
        >> After(120.0)
        >> Expired()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_timeout")
        << Answers("upstream_timeout")
    )
    assert talk.message == "spec has sent nothing for 120 s"


def test_an_answer_that_is_no_stream_has_one_deadline() -> None:
    """`response` for the whole of it, however it comes."""
    talk = awaiting(Talk(streams=False))
    assert talk.deadline == 3600.0
    assert talk >> After(1000.0) >> head() << SendHead() >> [b"{"]
    assert talk.deadline == 2600.0
    talk.exchange.pause()
    talk.exchange.resume(talk.now)
    assert talk.deadline == 2600.0
    assert (
        talk
        >> After(2600.0)
        >> Expired()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC, "upstream_timeout")
        << Cuts("upstream_timeout")
    )
    assert talk.message == "spec has not ended its answer within 3600 s"


def test_while_we_pause_the_engine_its_silence_is_ours() -> None:
    """No deadline runs; after it a whole `between_chunks`."""
    talk = relaying()
    assert talk >> [TOKEN]
    talk.exchange.pause()
    assert talk.deadline == inf
    assert talk >> [TOKEN]
    assert talk.deadline == inf
    assert talk >> After(1000.0)
    talk.exchange.resume(talk.now)
    assert talk.deadline == 120.0
    talk.exchange.resume(talk.now + 60.0)
    assert talk.deadline == 120.0


def test_a_pause_before_the_first_byte() -> None:
    """A client that is still reading its last answer: the first byte keeps its own deadline."""
    talk = relaying()
    talk.exchange.pause()
    assert talk >> After(1000.0)
    talk.exchange.resume(talk.now)
    assert talk.deadline == 600.0


def test_a_pause_before_the_head_is_no_pause_of_the_answer() -> None:
    """Nothing goes to the client yet, so there is nothing that it could be slow to take."""
    talk = awaiting()
    talk.exchange.pause()
    assert talk.deadline == 600.0
    talk.exchange.resume(talk.now + 5.0)
    assert talk.deadline == 600.0


def test_a_client_that_catches_up_after_the_end_starts_no_clock() -> None:
    """What has ended has no deadline."""
    talk = relaying()
    talk.exchange.pause()
    assert talk >> ClientGone() << DropEngine() << Ends(ABANDONED, NONE, AT_SPEC)
    talk.exchange.resume(talk.now)
    assert talk.deadline == inf


def test_a_retry_has_its_deadlines_anew() -> None:
    """What the first upstream sent is forgotten: `connect`, then `first_byte`."""
    talk = holding()
    assert (
        talk
        >> After(50.0)
        >> [FULL]
        >> FirstEventRead()
        << REFUSAL
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
    )
    assert talk.deadline == 2.0
    assert talk >> After(1.0) >> Connected(reused=False) << Send(2)
    assert talk.deadline == 600.0
    assert talk >> After(10.0) >> head() << SendHead()
    assert talk.deadline == 590.0
    assert talk.exchange.sent_at == START + 51.0


# Verdicts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "outcome", "evidence"),
    [
        (200, OK, GOOD),
        (204, OK, GOOD),
        (301, OK, GOOD),
        (400, OK, NONE),
        (404, OK, NONE),
        (422, OK, NONE),
        (500, FAILED, BAD),
        (501, FAILED, BAD),
        (599, FAILED, BAD),
    ],
)
def test_the_verdict_on_an_engines_own_answer(
    status: int, outcome: Outcome, evidence: Evidence
) -> None:
    """4xx is the client's, 5xx the upstream's; both pass as they came."""
    assert (
        awaiting()
        >> head(status)
        << SendHead()
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(outcome, evidence, AT_SPEC)
        << EndAnswer()
    )


@pytest.mark.parametrize(
    ("error", "evidence"),
    [
        (b'{"error": {"code": 400}}', NONE),
        (b'{"error": {"code": 429}}', NONE),
        (b'{"error": {"code": 500}}', BAD),
        (b'{"error": {"code": 503}}', NONE),
        (b'{"error": {"code": "broken"}}', BAD),
        (b'{"error": "broken"}', BAD),
    ],
)
@pytest.mark.parametrize("end", [b"\n\n", b""])
def test_an_error_event_inside_a_good_stream(error: bytes, evidence: Evidence, end: bytes) -> None:
    """The request failed; what that says of the upstream is as for a status."""
    assert (
        relaying_stream()
        >> [TOKEN, b"data: " + error + end]
        >> ResponseEnded(reusable=True)
        << KeepEngine()
        << Ends(FAILED, evidence, AT_SPEC)
        << EndAnswer()
    )


def relaying_stream() -> Talk:
    """Up to RELAYING, of a stream that can be read."""
    talk = awaiting(Talk(holds_head=False))
    assert talk >> stream() << SendHead()
    return talk


# The table ---------------------------------------------------------------------------------------

EVENTS: tuple[Event, ...] = (
    RequestRead(),
    Placed(AT_SPEC),
    NotPlaced(),
    Refused(Overloaded("no room")),
    Connected(reused=False),
    ConnectFailed("refused"),
    head(),
    FirstEventRead(),
    ResponseEnded(reusable=True),
    lost(),
    ClientGone(),
    Expired(),
)

LEGAL: dict[State, tuple[Callable[[], Talk], set[type[Event]]]] = {
    State.READING: (Talk, {RequestRead, Refused, ClientGone}),
    State.WAITING: (waiting, {Placed, Refused, ClientGone}),
    State.CONNECTING: (connecting, {Connected, ConnectFailed, ClientGone, Expired}),
    State.AWAITING: (awaiting, {HeadRead, EngineLost, ClientGone, Expired}),
    State.HOLDING: (holding, {FirstEventRead, ResponseEnded, EngineLost, ClientGone, Expired}),
    State.RETRYING: (retrying, {Placed, NotPlaced}),
    State.RELAYING: (relaying, {ResponseEnded, EngineLost, ClientGone, Expired}),
    State.ENDED: (ended, set()),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_what_a_state_does_not_expect_is_a_fault(state: State, event: Event) -> None:
    """Every pair that is not in the table raises, changes nothing, and says what happened."""
    reach, legal = LEGAL[state]
    exchange = reach().exchange
    assert exchange.state is state
    if type(event) in legal:
        exchange.process(event, START)
        return
    with pytest.raises(IllegalEvent, match=f"{type(event).__name__} in {state.name}"):
        exchange.process(event, START)
    assert exchange.state is state


def test_the_table_is_whole() -> None:
    """Every state has its row, and every event is expected somewhere."""
    assert set(Exchange.TRANSITIONS) == set(State)
    assert {state: set(row) for state, row in Exchange.TRANSITIONS.items()} == {
        state: legal for state, (_, legal) in LEGAL.items()
    }
    assert {event for row in Exchange.TRANSITIONS.values() for event in row} == {
        type(event) for event in EVENTS
    }
