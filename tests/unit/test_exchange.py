"""The exchange: what it commands when a request goes well, and when it does not."""

from collections.abc import Callable
from math import inf

import pytest

from proxy.core.errands import Reply
from proxy.core.places import Evidence
from proxy.core.words import Outcome, RetryCause
from proxy.data.events import (
    Ask,
    AskOther,
    CancelErrand,
    ClientFinished,
    ClientGone,
    Connect,
    Connected,
    ConnectFailed,
    DropEngine,
    EndAnswer,
    EngineLost,
    ErrandOver,
    ErrandRead,
    Event,
    Expired,
    FirstEventRead,
    GiveBack,
    HeadRead,
    KeepEngine,
    LeaveRoom,
    NotPlaced,
    Placed,
    Queued,
    Refused,
    RequestRead,
    ResponseEnded,
    Send,
    SendHead,
    Tell,
)
from proxy.data.exchange import ERRAND_GRACE_SECONDS, TRANSITIONS, State
from proxy.errors import (
    BodyTooLarge,
    IllegalEvent,
    InternalError,
    NoUpstream,
    Overloaded,
    PartialFailure,
    Refusal,
)
from tests.harness.talk import (
    ABANDONED,
    AT_BASE,
    AT_SPEC,
    BAD,
    BASE,
    DONE,
    FAILED,
    FULL,
    GOOD,
    NONE,
    OK,
    REJECTED,
    REPLY,
    SPEC,
    START,
    TIMEOUTS,
    TOKEN,
    After,
    Answers,
    Cuts,
    Ends,
    Talk,
    asking,
    awaiting,
    connecting,
    ended,
    head,
    holding,
    relaying,
    retrying,
    stream,
    tunnel,
    waiting,
)

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


def test_what_could_not_be_sent_may_wait_for_the_other() -> None:
    """Its place goes back with what it has learned; it is tried once more, and no third time."""
    talk = connecting()
    assert (
        talk
        >> ConnectFailed("refused")
        << CONNECT
        >> Queued()
        << DropEngine()
        << GiveBack(AT_SPEC, BAD)
        >> Placed(AT_BASE)
        << Connect(BASE, fresh=False)
        >> ConnectFailed("no route")
        << Ends(FAILED, BAD, AT_BASE, "upstream_connect")
        << Answers("upstream_connect")
    )


def test_who_waits_again_may_be_refused_or_leave() -> None:
    """As if it had never had a place."""
    talk = connecting()
    assert (
        talk
        >> ConnectFailed("refused")
        << CONNECT
        >> Queued()
        << DropEngine()
        << GiveBack(AT_SPEC, BAD)
        >> ClientGone()
        << LeaveRoom()
        << Ends(ABANDONED, NONE, None)
    )


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


def test_a_request_that_is_given_up_while_another_place_is_asked_for() -> None:
    """Asking takes no time, so only a fault of ours in it leads here; the place is given back."""
    assert retrying() >> ClientGone() << DropEngine() << Ends(ABANDONED, NONE, AT_SPEC)


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


def test_of_a_refusal_that_was_retried_nothing_is_kept() -> None:
    """What is told of the request at its end is of the second attempt, also if that has no head."""
    talk = holding()
    assert (
        talk
        >> [FULL]
        >> FirstEventRead()
        << REFUSAL
        >> Placed(AT_BASE)
        << DropEngine()
        << Connect(BASE, fresh=False)
        >> ClientGone()
        << DropEngine()
        << Ends(ABANDONED, NONE, AT_BASE)
    )
    assert (talk.exchange.status, talk.exchange.watch) == (None, None)


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


def test_a_client_that_leaves_at_the_end_of_its_stream_has_been_served() -> None:
    """OpenAI's for Python closes at [DONE]; what the engine still had to say is not waited for."""
    assert (
        relaying_stream()
        >> [TOKEN, DONE]
        >> ClientGone()
        << DropEngine()
        << Ends(OK, GOOD, AT_SPEC)
        << EndAnswer()
    )
    assert (
        relaying_stream()
        >> [TOKEN, b'data: {"error": {"code": 500}}\n\n', DONE]
        >> ClientGone()
        << DropEngine()
        << Ends(FAILED, BAD, AT_SPEC)
        << EndAnswer()
    )


def test_a_client_that_leaves_just_before_that_has_not() -> None:
    """It has seen no end."""
    assert (
        relaying_stream()
        >> [TOKEN]
        >> ClientGone()
        << DropEngine()
        << Ends(ABANDONED, NONE, AT_SPEC)
    )


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


# Errands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, OK), (404, OK), (429, FAILED), (503, FAILED), (500, FAILED), (502, FAILED)],
)
def test_an_errand_ends_with_its_answer(status: int, outcome: Outcome) -> None:
    """Counted as an engine's own would be, without a place; and then told."""
    reply = Reply(status=status, content_type="text/plain", body=b"")
    assert asking() >> ErrandOver(reply) << Ends(outcome) << Tell(reply)


def test_an_answer_that_is_an_error_of_ours_is_counted_as_that() -> None:
    """Its code goes into the record."""
    refusal = PartialFailure("spec alone")
    reply = Reply(status=502, content_type="text/plain", body=b"", refusal=refusal)
    assert asking() >> ErrandOver(reply) << Ends(FAILED, code="partial_failure") << Tell(reply)


@pytest.mark.parametrize(
    ("refusal", "outcome"),
    [(NoUpstream("both down"), REJECTED), (InternalError("a fault of ours"), FAILED)],
)
def test_an_errand_without_an_answer_is_refused(refusal: Refusal, outcome: Outcome) -> None:
    """That nobody could be asked is nobody's failure; our own fault is one."""
    code = refusal.code
    assert asking() >> ErrandOver(refusal) << Ends(outcome, code=code) << Answers(code)


def test_nobody_is_asked_for_a_client_that_has_left() -> None:
    """What runs is cancelled."""
    assert asking() >> ClientGone() << CancelErrand() << Ends(ABANDONED)


def test_an_errand_has_a_deadline() -> None:
    """A little past that of any answer, since it ends by itself and knows more then."""
    talk = asking()
    assert talk.deadline == TIMEOUTS.response + ERRAND_GRACE_SECONDS
    assert (
        talk
        >> After(talk.deadline)
        >> Expired()
        << CancelErrand()
        << Ends(FAILED, code="upstream_timeout")
        << Answers("upstream_timeout")
    )
    assert "3605 s" in talk.message
    assert talk.deadline == inf


# The table ---------------------------------------------------------------------------------------

EVENTS: tuple[Event, ...] = (
    RequestRead(),
    ErrandRead(),
    ErrandOver(REPLY),
    Placed(AT_SPEC),
    NotPlaced(),
    Queued(),
    Refused(Overloaded("no room")),
    Connected(reused=False),
    ConnectFailed("refused"),
    head(),
    FirstEventRead(),
    ResponseEnded(reusable=True),
    lost(),
    ClientGone(),
    ClientFinished(),
    Expired(),
)

LEGAL: dict[State, tuple[Callable[[], Talk], set[type[Event]]]] = {
    State.READING: (Talk, {RequestRead, ErrandRead, Refused, ClientGone}),
    State.ERRAND: (asking, {ErrandOver, ClientGone, Expired}),
    State.WAITING: (waiting, {Placed, Refused, ClientGone}),
    State.CONNECTING: (connecting, {Connected, ConnectFailed, Refused, ClientGone, Expired}),
    State.AWAITING: (awaiting, {HeadRead, EngineLost, ClientGone, Expired}),
    State.HOLDING: (holding, {FirstEventRead, ResponseEnded, EngineLost, ClientGone, Expired}),
    State.RETRYING: (retrying, {Placed, NotPlaced, Queued, ClientGone}),
    State.RELAYING: (relaying, {ResponseEnded, EngineLost, ClientGone, Expired}),
    State.TUNNEL: (tunnel, {ResponseEnded, EngineLost, ClientFinished, ClientGone, Expired}),
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
    assert set(TRANSITIONS) == set(State)
    assert {state: set(row) for state, row in TRANSITIONS.items()} == {
        state: legal for state, (_, legal) in LEGAL.items()
    }
    assert {event for row in TRANSITIONS.values() for event in row} == {
        type(event) for event in EVENTS
    }
