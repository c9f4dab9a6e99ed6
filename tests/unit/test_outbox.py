"""What is written at the end of a turn, and what is not left lying for it."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from proxy.data.outbox import Outbox
from proxy.data.outgoing import HIGH_WATER_BYTES
from tests.harness.client import get, post
from tests.harness.pair import SPEC
from tests.harness.running import until
from tests.harness.upstream import event, reply, stream
from tests.harness.wire import LIMITS, Wire

ASKING = post("/generate", {"text": "a"})
STREAMING = post("/generate", {"text": "a", "stream": True})


@dataclass
class Noter:
    """Notes when it is asked to write."""

    name: str
    notes: list[str]
    faults: list[Exception] = field(default_factory=list)
    fault: Exception | None = None
    stubborn: bool = False

    def flush(self) -> None:
        """Note it, or fail."""
        if self.fault is not None:
            raise self.fault
        self.notes.append(self.name)

    def failed(self, fault: Exception) -> None:
        """Keep it, or fail again."""
        if self.stubborn:
            raise fault
        self.faults.append(fault)


async def test_all_is_written_at_the_end_of_the_turn() -> None:
    """In the order in which it was said, and not before."""
    outbox, notes = Outbox(), list[str]()
    for name in "abc":
        outbox.add(Noter(name, notes))
    assert notes == []

    await until(lambda: bool(notes), "it is written")

    assert notes == ["a", "b", "c"]


async def test_many_do_not_wait_for_the_end() -> None:
    """In a turn of a thousand none waits for all the others to be read."""
    outbox, notes = Outbox(most=3), list[str]()
    for name in "abcd":
        outbox.add(Noter(name, notes))
    assert notes == ["a", "b", "c"]

    await until(lambda: len(notes) == 4, "the rest is written")

    assert notes[-1] == "d"


async def test_a_fault_stays_with_its_connection() -> None:
    """The others say what they have to say."""
    outbox, notes, fault = Outbox(most=3), list[str](), OSError("odd")
    wrong = Noter("b", notes, fault=fault)
    for each in (Noter("a", notes), wrong, Noter("c", notes)):
        outbox.add(each)

    assert notes == ["a", "c"]
    assert wrong.faults == [fault]


async def test_one_that_cannot_even_give_up_takes_nobody_along() -> None:
    """The others are written all the same, a turn later."""
    outbox, notes, fault = Outbox(most=3), list[str](), OSError("odd")
    outbox.add(Noter("a", notes, fault=fault, stubborn=True))
    outbox.add(Noter("b", notes))
    with pytest.raises(OSError, match="odd"):
        outbox.add(Noter("c", notes))

    await until(lambda: len(notes) == 2, "they are written")

    assert notes == ["b", "c"]


def with_outbox(wire: Wire) -> Wire:
    """With an outbox as it is used: what is written waits for the end of the turn."""
    wire.front.outbox = Outbox()
    return wire


async def test_a_request_and_its_answer_wait_for_the_end_of_a_turn() -> None:
    """Each is written when the turn is over."""
    wire = with_outbox(Wire())
    wire.connection.data_received(ASKING)
    assert not wire.engine.written
    await until(lambda: bool(wire.engine.written), "the request is sent")

    wire.upstream.data_received(reply(b"{}"))
    assert not wire.client.written
    await until(lambda: wire.client.written.endswith(b"{}"), "the answer is sent")
    wire.connection.cut()


async def test_an_ending_leaves_nothing_unsaid() -> None:
    """What a client had been told before it is cut, in one turn, still goes to its socket."""
    wire = with_outbox(Wire())
    wire.connection.data_received(STREAMING)
    await until(lambda: bool(wire.engine.written), "the request is sent")
    wire.upstream.data_received(stream(event(1))[:-5])
    assert not wire.client.written

    wire.connection.cut()

    assert event(1) in wire.client.written


async def test_closing_leaves_nothing_unsaid() -> None:
    """An answer of this turn is written before an idle connection is closed, which is no cut."""
    wire = with_outbox(Wire())
    wire.connection.data_received(get("/livez"))
    assert not wire.client.written

    wire.connection.close()

    assert b"200" in wire.client.written
    assert wire.client.closed
    assert not wire.client.aborts


async def test_what_was_not_sent_is_not_sent_to_one_that_was_dropped() -> None:
    """A client that leaves in the turn of its request costs its engine nothing."""
    wire = with_outbox(Wire())
    wire.connection.data_received(ASKING)
    wire.connection.cut()
    later = Noter("later", [])
    wire.front.outbox.add(later)

    await until(lambda: bool(later.notes), "the turn is over")

    assert not wire.engine.written
    assert wire.engine.aborts


async def test_an_answer_before_its_request_was_sent_is_none() -> None:
    """The engine spoke unasked: nothing of it reaches the client, who gets another connection."""
    wire = with_outbox(Wire())
    wire.connection.data_received(ASKING)
    wire.upstream.data_received(reply(b"{}"))

    assert wire.engine.aborts
    assert not wire.engine.written
    assert not wire.client.written
    assert wire.pools[SPEC].busy
    wire.connection.cut()


async def test_much_is_written_at_once() -> None:
    """A turn that reads megabytes for a slow client must find out that it is slow."""
    wire = with_outbox(Wire(limits=replace(LIMITS, max_buffered_bytes=1 << 20)))
    wire.connection.data_received(ASKING)
    await until(lambda: bool(wire.engine.written), "the request is sent")

    wire.upstream.data_received(reply(b"x" * (HIGH_WATER_BYTES + 1)))

    assert len(wire.client.written) > HIGH_WATER_BYTES
    wire.connection.cut()


async def test_a_fault_in_sending_gives_the_request_up() -> None:
    """It is reported, and the client is not left waiting."""
    wire = with_outbox(Wire())
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, it: reported.append(it["exception"]))
    fault = RuntimeError("odd")
    wire.connection.data_received(ASKING)
    wire.engine.fault = fault

    await until(lambda: bool(wire.client.aborts), "it is given up")

    assert reported == [fault]


async def test_a_last_answer_is_said_before_its_client_stops_talking() -> None:
    """Both may come in one turn, and the loop closes the socket of one that has said goodbye."""
    wire = with_outbox(Wire())
    wire.connection.data_received(get("/livez", headers={"connection": "close"}))
    assert not wire.client.written

    wire.connection.eof_received()

    assert b"200" in wire.client.written
    assert wire.client.closed


async def test_the_last_word_comes_after_the_last_answer() -> None:
    """At the end of the turn, in one go."""
    wire = with_outbox(Wire())
    wire.connection.data_received(get("/livez", headers={"connection": "close"}))
    assert not wire.client.closed

    await until(lambda: wire.client.closed, "it is said")

    assert b"200" in wire.client.written
