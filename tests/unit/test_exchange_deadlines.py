"""The exchange and time: what is waited for, for how long, and whose silence it is."""

from collections.abc import Callable
from math import inf

import pytest

from proxy.core.words import RetryCause
from proxy.data.events import (
    AskOther,
    ClientGone,
    Connect,
    Connected,
    DropEngine,
    Expired,
    FirstEventRead,
    Placed,
    Send,
    SendHead,
)
from tests.harness.talk import (
    ABANDONED,
    AT_BASE,
    AT_SPEC,
    BAD,
    BASE,
    FAILED,
    FULL,
    NONE,
    START,
    TOKEN,
    After,
    Answers,
    Cuts,
    Ends,
    Talk,
    awaiting,
    head,
    holding,
    relaying,
    stream,
    waiting,
)

REFUSAL = AskOther(AT_SPEC, RetryCause.REFUSAL, NONE)


def test_there_is_no_deadline_before_a_place_and_after_the_end() -> None:
    """Reading and waiting have those of others."""
    gone = awaiting()
    assert gone >> ClientGone() << DropEngine() << Ends(ABANDONED, NONE, AT_SPEC)
    for talk in (Talk(), waiting(), gone):
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
