"""The exchange of a tunnel: how it is opened, what keeps it open, and each of its ends."""

import pytest

from proxy.core.words import RetryCause
from proxy.data.events import (
    AskOther,
    ClientFinished,
    ClientGone,
    DropEngine,
    EndAnswer,
    EngineLost,
    Event,
    Expired,
    FinishSending,
    OpenTunnel,
    ResponseEnded,
    SendHead,
)
from proxy.data.exchange import HALF_CLOSED_SECONDS, State
from tests.harness.talk import (
    AT_SPEC,
    FAILED,
    NONE,
    OK,
    TIMEOUTS,
    After,
    Ends,
    Talk,
    awaiting,
    head,
    tunnel,
)

OVER = ResponseEnded(reusable=False)
LOST = EngineLost(silent=False, why="reset")


def half_closed() -> Talk:
    """A tunnel whose client sends nothing more."""
    talk = tunnel()
    assert talk >> ClientFinished() << FinishSending()
    return talk


def test_an_agreement_opens_it() -> None:
    """Head first, then whatever comes; nothing is held or retried."""
    talk = awaiting()
    assert talk >> head(101) << SendHead() << OpenTunnel()
    assert talk.exchange.state is State.TUNNEL


@pytest.mark.parametrize("status", [200, 403, 404, 500])
def test_any_other_answer_is_an_answer(status: int) -> None:
    """An engine that has no such endpoint says so, and that passes."""
    talk = awaiting()
    assert talk >> head(status) << SendHead()
    assert talk.exchange.state is State.RELAYING


def test_a_refusal_is_retried_as_any_other() -> None:
    """Nothing has gone to the client yet."""
    talk = awaiting()
    assert talk >> head(503) << AskOther(AT_SPEC, RetryCause.REFUSAL, NONE)


@pytest.mark.parametrize("event", [OVER, ClientGone()], ids=["engine", "client"])
def test_either_side_ends_it_well(event: Event) -> None:
    """It has served; the engine's connection goes, and the client's after it."""
    assert tunnel() >> event << DropEngine() << Ends(OK, NONE, AT_SPEC) << EndAnswer()


def test_an_engine_that_breaks_it() -> None:
    """A failure, which says nothing of the engine's health; and no word of ours to the client."""
    talk = tunnel()
    end = Ends(FAILED, NONE, AT_SPEC, "upstream_reset")
    assert talk >> LOST << DropEngine() << end << EndAnswer()
    assert talk.message == "spec broke off the tunnel: reset"


def test_silence_both_ways() -> None:
    """What goes through, either way, puts the end off by `between_chunks`."""
    talk = tunnel()
    assert talk.deadline == TIMEOUTS.between_chunks
    assert talk >> After(100.0)
    talk.exchange.tunnelled(talk.now)
    assert talk.deadline == TIMEOUTS.between_chunks
    assert talk >> After(TIMEOUTS.between_chunks)
    end = Ends(FAILED, NONE, AT_SPEC, "upstream_timeout")
    assert talk >> Expired() << DropEngine() << end << EndAnswer()
    assert talk.message == "nothing has gone through the tunnel for 120 s"


def test_a_slow_client_stops_no_clock() -> None:
    """Pings go the other way, so that a tunnel in which nothing moves is dead."""
    talk = tunnel()
    talk.exchange.pause()
    assert talk.deadline == TIMEOUTS.between_chunks
    talk.exchange.resume(talk.now)
    assert talk.deadline == TIMEOUTS.between_chunks


def test_a_client_that_sends_no_more() -> None:
    """It is passed on, once; the engine has a while to end, whatever it sends."""
    talk = half_closed()
    assert talk.deadline == HALF_CLOSED_SECONDS
    assert talk >> After(4.0)
    talk.exchange.tunnelled(talk.now)
    assert talk >> ClientFinished()
    assert talk.deadline == HALF_CLOSED_SECONDS - 4.0


@pytest.mark.parametrize("event", [OVER, LOST, ClientGone(), Expired()], ids=repr)
def test_after_that_every_end_is_a_good_one(event: Event) -> None:
    """Whoever answers a client that has finished may be cut off by it."""
    assert half_closed() >> event << DropEngine() << Ends(OK, NONE, AT_SPEC) << EndAnswer()
