"""The states of a client's connection that real sockets reach only by luck."""

import asyncio
from dataclasses import replace

import pytest

from proxy.core.endpoints import find
from proxy.core.errands import Reply
from proxy.core.observer import Record
from proxy.core.places import Evidence, Place
from proxy.data.downstream import (
    LINGER_SECONDS,
    MAX_AHEAD_BYTES,
    TURN,
    ClientConnection,
)
from proxy.data.exchange import State
from proxy.data.ledger import PLAIN
from proxy.data.outbox import Outbox
from proxy.data.reader import LARGE_BODY
from proxy.data.upstream import EngineConnection
from proxy.errors import PartialFailure, Refusal
from tests.harness.client import get, post
from tests.harness.pair import BASE, SPEC, Recorder
from tests.harness.running import until
from tests.harness.talk import TIMEOUTS
from tests.harness.upstream import DONE, END, STREAM_HEAD, chunk, event, reply, stream
from tests.harness.wire import LIMITS, FakeTransport, Wire

ASKING = post("/generate", {"text": "a"})
STREAMING = post("/generate", {"text": "a", "stream": True})


def waiting(wire: Wire) -> Place:
    """A request that waits for a place; the place it waits for."""
    wire.front.dispatcher.settings = replace(wire.front.dispatcher.settings, max_in_flight=1)
    held = wire.pair.place()
    wire.connection.data_received(ASKING)
    assert len(wire.front.dispatcher.room) == 1
    return held


async def test_slow_from_the_answer_before() -> None:
    """A client that has not read one answer pauses the engine of the next as soon as it speaks."""
    wire = Wire()
    held = waiting(wire)
    wire.connection.pause_writing()
    wire.pair.end(held)
    wire.upstream.data_received(reply(b"{}")[:-1])

    assert wire.connection.slow
    assert wire.engine.reads == [True, False]
    wire.connection.resume_writing()
    assert wire.engine.reads == [True, False, True]
    wire.upstream.data_received(b"}")
    assert wire.client.written.endswith(b"{}")


async def test_slow_clients_are_not_read_on() -> None:
    """Requests that cost nothing to ask are not answered beyond what their client reads."""
    wire = Wire()
    wire.connection.pause_writing()
    wire.connection.data_received(get("/livez"))
    assert not wire.client.written
    wire.connection.resume_writing()

    assert wire.client.written.endswith(b"ok\n")


async def test_catching_up_while_waiting() -> None:
    """A client may catch up while its next request waits for a place."""
    wire = Wire()
    held = waiting(wire)
    wire.connection.pause_writing()
    wire.connection.resume_writing()
    assert not wire.connection.slow
    wire.pair.end(held)

    assert wire.engine.written.startswith(b"POST /generate")
    wire.connection.connection_lost(None)


async def test_slow_client_with_progress_is_kept() -> None:
    """`client_write` is a time without a byte taken; any byte starts it anew."""
    wire = Wire()
    wire.connection.data_received(STREAMING)
    wire.upstream.data_received(stream(event(1))[:-5])
    wire.client.unsent = 1000
    wire.connection.pause_writing()
    wire.client.unsent = 900
    wire.pass_time(TIMEOUTS.client_write)
    assert wire.client.aborts == 0
    wire.pass_time(TIMEOUTS.client_write)

    assert wire.client.aborts > 0
    assert wire.engine.aborts > 0
    assert wire.front.open_requests == 0


async def test_last_answer_may_be_read_to_its_end() -> None:
    """After a last answer a client that is still reading has `client_write`, any other a second."""
    wire = Wire()
    wire.client.unsent = 1000
    wire.connection.data_received(get("/livez", headers={"Connection": "close"}))
    assert wire.client.eof
    assert not wire.client.closed
    assert wire.connection.eof_received() is True
    wire.pass_time(LINGER_SECONDS)
    assert wire.client.aborts == 0
    wire.client.unsent = 500
    wire.pass_time(TIMEOUTS.client_write)
    assert wire.client.aborts == 0
    wire.pass_time(TIMEOUTS.client_write)
    assert wire.client.aborts > 0


async def test_last_answer_is_read_and_the_client_stays() -> None:
    """A client that sends on behind its last request is closed a second after the answer to it."""
    wire = Wire()
    wire.connection.data_received(get("/livez", headers={"Connection": "close"}) + b"more")
    assert wire.client.eof
    assert not wire.client.closed
    assert wire.connection.eof_received() is False
    wire.connection.data_received(b"more, which nobody reads")
    wire.pass_time(LINGER_SECONDS)

    assert wire.client.aborts > 0


async def test_without_half_close() -> None:
    """TLS cannot close one side: the connection is closed whole."""
    wire = Wire()
    wire.client.takes_eof = False
    wire.connection.data_received(b"no HTTP at all\r\n\r\n")

    assert wire.client.closed
    assert not wire.client.eof


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_who_sends_no_more_is_not_waited_for(version: bytes) -> None:
    """Nothing that such a client sends could destroy its answer, so it is closed at once."""
    wire = Wire()
    close = b"" if version == b"HTTP/1.0" else b"Connection: close\r\n"
    wire.connection.data_received(b"GET /livez " + version + b"\r\nHost: a\r\n" + close + b"\r\n")

    assert wire.client.written.endswith(b"ok\n")
    assert wire.client.closed
    assert not wire.client.eof
    assert wire.client.aborts == 0


async def test_who_breaks_its_word_is_waited_for() -> None:
    """What came behind a last request, while it ran, would destroy its answer."""
    wire = Wire()
    wire.connection.data_received(post("/generate", b"{}", headers={"Connection": "close"}))
    wire.connection.data_received(b"x" * (MAX_AHEAD_BYTES + 1))
    wire.upstream.data_received(reply(b"1"))

    assert b"HTTP/1.1 200 " in wire.client.written
    assert wire.client.eof
    assert not wire.client.closed


async def test_who_breaks_its_word_in_the_same_turn_is_waited_for() -> None:
    """As the answer is written."""
    wire = Wire()
    wire.front.outbox = Outbox()
    wire.connection.data_received(get("/livez", headers={"Connection": "close"}))
    wire.connection.data_received(b"x")
    await until(lambda: wire.client.eof, "it is said")

    assert not wire.client.closed


async def test_who_is_refused_before_its_body_is_waited_for() -> None:
    """Its body is on the way, also where it has said that nothing follows that."""
    wire = Wire()
    asked = post("/nowhere", {"a": "b"}, headers={"Connection": "close"})
    wire.connection.data_received(asked[:-3])

    assert wire.client.written.startswith(b"HTTP/1.1 404 ")
    assert wire.client.eof
    assert not wire.client.closed


async def test_http_1_0_keep_alive_of_our_own_answers() -> None:
    """Our own answers say that the connection stays, where HTTP/1.0 would not assume it."""
    wire = Wire()
    asked = get("/livez", headers={"Connection": "keep-alive"}).replace(b"HTTP/1.1", b"HTTP/1.0")
    wire.connection.data_received(asked)

    assert b"connection: keep-alive\r\n" in wire.client.written
    assert not wire.client.eof


async def test_own_paths_pass_over_bodies() -> None:
    """A health path with a body is answered; a body that has not come ends the connection."""
    wire = Wire()
    asked = get("/livez", headers={"Content-Length": "3"})
    wire.connection.data_received(asked + b"abc" + get("/livez"))
    assert wire.client.written.count(b"200 OK") == 2
    wire.connection.data_received(asked)

    assert wire.client.eof


async def test_early_timer_looks_again() -> None:
    """A timer that comes before anything is due changes nothing."""
    wire = Wire()
    wire.pass_time(1.0)
    wire.connection.data_received(ASKING[:10])
    wire.pass_time(1.0)

    assert not wire.client.written
    assert wire.client.aborts == 0
    wire.connection.connection_lost(None)


async def test_answer_with_a_full_connection_table_is_not_counted_twice() -> None:
    """A client over `max_connections` is told, and one that leaves makes room."""
    wire = Wire(limits=replace(LIMITS, max_connections=1))
    transport = FakeTransport()
    second = ClientConnection(wire.front)
    second.connection_made(transport)
    assert b"429 Too Many Requests" in transport.written
    second.connection_lost(None)
    wire.connection.connection_lost(None)
    third = ClientConnection(wire.front)
    third.connection_made(FakeTransport())

    assert len(wire.front.connections) == 1
    assert wire.front.open_requests == 0
    third.connection_lost(None)


async def test_cut_http_1_0_after_its_client_has_gone() -> None:
    """A reset that comes after the client has left has nobody to tell."""
    wire = Wire()
    wire.connection.data_received(STREAMING.replace(b"HTTP/1.1", b"HTTP/1.0"))
    wire.upstream.data_received(stream(event(1))[:-5])
    wire.connection._out.transport = None
    wire.upstream.connection_lost(None)

    assert wire.front.open_requests == 0


async def test_engine_that_speaks_out_of_turn_is_dropped() -> None:
    """A kept connection on which bytes come that nobody asked for is not used again."""
    wire = Wire()
    wire.upstream.data_received(reply(b"{}"))

    assert wire.engine.aborts > 0
    assert wire.pools["spec"].idle == 0  # type: ignore[index]  # a StrEnum is its value


async def test_second_answer_to_one_request_ends_the_connection() -> None:
    """An engine that answers twice is read once, and its connection is not kept."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.upstream.data_received(reply(b"1") + reply(b"2"))

    assert wire.client.written.endswith(b"\r\n\r\n1")
    assert wire.engine.aborts > 0


async def test_unsent_request_ends_the_connection() -> None:
    """An engine that answers before it has read the request keeps no connection."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.engine.unsent = 10
    wire.upstream.data_received(reply(b"1"))

    assert wire.engine.aborts > 0


async def test_old_kept_connections_are_closed() -> None:
    """A kept connection older than `idle_connection` is swept, and never used."""
    wire = Wire()
    pool = wire.pools["spec"]  # type: ignore[index]  # a StrEnum is its value
    wire.pair.now += TIMEOUTS.idle_connection + 0.1
    pool.sweep(wire.pair.now)
    assert wire.engine.aborts > 0
    old = FakeTransport()
    stale = EngineConnection(pool)
    stale.connection_made(old)
    stale.keep()
    wire.pair.now += TIMEOUTS.idle_connection + 0.1
    wire.connection.data_received(ASKING)

    assert old.aborts > 0
    assert not old.written
    wire.connection.cut()


async def test_large_bodies_are_written_apart() -> None:
    """A large body is not copied to be joined with its head."""
    wire = Wire(limits=replace(LIMITS, max_body_bytes=1 << 20, max_buffered_bytes=1 << 20))
    body = b"x" * 100_000
    wire.connection.data_received(post("/generate", body))

    assert wire.engine.written.endswith(b"\r\n\r\n" + body)
    wire.connection.cut()


LARGE = post("/generate", b'{"text":"%s"}' % (b"x" * (LARGE_BODY + 1)))


def wire_for_large() -> Wire:
    """One whose limits let a large body pass."""
    return Wire(limits=replace(LIMITS, max_body_bytes=1 << 20, max_buffered_bytes=1 << 20))


def send(wire: Wire, what: bytes) -> None:
    """Have the client send `what` in two reads."""
    wire.connection.data_received(what[:-1])
    wire.connection.data_received(what[-1:])


async def test_a_large_body_is_looked_into_in_a_turn_of_its_own() -> None:
    """Until then nothing else of its client is read; then it is sent as it came."""
    wire = wire_for_large()
    send(wire, LARGE)
    wire.connection.data_received(get("/livez"))
    assert not wire.engine.written
    assert not wire.client.written
    await until(lambda: bool(wire.engine.written), "it is sent")
    assert wire.engine.written.endswith(LARGE.partition(b"\r\n\r\n")[2])
    wire.upstream.data_received(reply(b"1"))
    assert wire.client.written.count(b"HTTP/1.1 200 ") == 2
    assert wire.front.buffered == 0


async def test_a_client_leaves_before_its_large_body_is_looked_into() -> None:
    """It reaches no engine, nothing of it is held, and that is no fault."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    wire = wire_for_large()
    send(wire, LARGE)
    wire.connection.connection_lost(None)
    passed: list[bool] = []
    wire.front.lane.add(lambda: passed.append(True))
    await until(lambda: bool(passed), "its turn is over")
    assert told == []
    assert not wire.engine.written
    assert wire.front.buffered == 0
    assert wire.front.open_requests == 0


async def test_a_large_body_for_which_there_is_no_room() -> None:
    """Refused with its last byte, it is not looked into."""
    size = len(LARGE.partition(b"\r\n\r\n")[2])
    wire = Wire(limits=replace(LIMITS, max_body_bytes=1 << 20, max_buffered_bytes=size - 1))
    send(wire, LARGE)
    assert b" 429 " in wire.client.written
    assert not wire.front.lane._waiting
    assert wire.front.buffered == 0


async def test_a_fault_of_ours_with_a_large_body() -> None:
    """It is reported, and ends that request alone."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    wire = wire_for_large()
    wire.engine.fault = ZeroDivisionError()
    send(wire, LARGE)
    await until(lambda: bool(told), "it is reported")
    assert wire.client.aborts > 0
    assert wire.front.open_requests == 0


async def test_paused_engine_that_closes() -> None:
    """Pausing an engine whose connection is closing is not a fault."""
    wire = Wire()
    wire.connection.data_received(STREAMING)
    wire.upstream.data_received(stream(event(1))[:-5])
    wire.engine.closed = True
    wire.connection.pause_writing()
    wire.connection.resume_writing()
    wire.upstream.connection_lost(OSError("reset by peer"))

    assert b"reset by peer" in wire.client.written


async def test_the_fault_of_one_who_waits_is_its_own() -> None:
    """A request that fails within us as it gets its place leaves the one that made room alone."""

    def broken() -> float:
        raise KeyError("a fault that cannot be")

    strays: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: strays.append(context))
    wire = Wire()
    wire.front.dispatcher.settings = replace(wire.front.dispatcher.settings, max_in_flight=1)
    other_transport = FakeTransport()
    other = ClientConnection(wire.front)
    other.connection_made(other_transport)
    wire.connection.data_received(ASKING)
    other.data_received(ASKING)
    assert len(wire.front.dispatcher.room) == 1
    wire.pools[SPEC]._clock = broken
    wire.upstream._pool = wire.pools[BASE]
    wire.upstream.data_received(reply(b"{}"))

    assert wire.client.written.endswith(b"{}")
    assert [type(stray["exception"]) for stray in strays] == [KeyError]
    assert other_transport.aborts > 0
    assert wire.front.open_requests == 0
    assert wire.front.dispatcher.in_flight.total == 0


async def test_unfinished_is_also_what_has_not_been_taken() -> None:
    """A drain waits for a client that still reads its answer; who is finished is closed gently."""
    wire = Wire()
    wire.connection.data_received(get("/livez"))
    wire.client.unsent = 10
    assert wire.front.unfinished == 1
    wire.client.unsent = 0
    assert wire.front.unfinished == 0
    wire.connection.close()
    assert (wire.client.closed, wire.client.aborts) == (True, 0)
    wire.connection.connection_lost(None)
    wire.connection.close()


async def test_closing_cuts_what_is_unfinished() -> None:
    """At the end a request that runs is cut, and its engine let go."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.connection.close()

    assert wire.client.aborts > 0
    assert wire.engine.aborts > 0


async def test_a_little_ahead_is_read_in_its_turn() -> None:
    """What a client sends ahead, within bounds, waits for its turn."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.connection.data_received(get("/livez"))
    assert not wire.client.written
    wire.upstream.data_received(reply(b"1"))

    assert wire.client.written.endswith(b"ok\n")


async def test_nothing_is_left_after_a_fault_at_the_very_end() -> None:
    """A request whose end fails within us has ended all the same; its client may then leave."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    relay = wire.connection._relay
    assert relay is not None
    relay.exchange.state = State.ENDED
    wire.connection.connection_lost(None)

    assert wire.front.connections == set()
    wire.front.dispatcher.end(relay._place.lease, Evidence.NONE, wire.pair.now)
    wire.upstream.drop()


async def test_own_paths_need_no_place() -> None:
    """What is answered by us is never asked for."""
    endpoint = find(b"/livez")
    assert endpoint is not None
    with pytest.raises(ValueError, match="answered by us"):
        Wire().front.need(endpoint, PLAIN, None)


class Keeping(Recorder):
    """An observer that keeps the records."""

    def __init__(self, told: list[Record]) -> None:
        super().__init__()
        self.told = told

    def ended(self, record: Record) -> None:
        """Keep it."""
        self.told.append(record)


async def test_time_per_token_needs_more_than_one() -> None:
    """A stream of one token has no time between tokens; several sequences share their tokens."""
    wire = Wire()
    told: list[Record] = []
    wire.front.observer = Keeping(told)
    usage = {"choices": [], "usage": {"completion_tokens": 4}}
    for n in (4, 2):
        body = {"n": n, "stream": True}
        wire.connection.data_received(post("/v1/chat/completions", body))
        wire.upstream.data_received(STREAM_HEAD + chunk(event(1)))
        wire.pair.now += 3.0
        wire.upstream.data_received(chunk(event(usage)) + chunk(DONE) + END)
        wire.pair.now -= 3.0

    assert [record.seconds_per_token for record in told] == [None, 3.0]


@pytest.mark.parametrize("refusal", [None, PartialFailure("spec alone")])
async def test_an_error_that_the_desk_tells_breaks_nothing_off(refusal: Refusal | None) -> None:
    """Its status stands in the record, and no client had been told of a success before."""
    wire = Wire()
    told: list[Record] = []
    wire.front.observer = Keeping(told)
    wire.connection.data_received(get("/server_info"))
    ((_, asker),) = wire.desk.started
    asker.errand_over(Reply(status=502, content_type="text/plain", body=b"no", refusal=refusal))
    code = None if refusal is None else "partial_failure"
    assert [(each.status, each.code, each.midstream) for each in told] == [(502, code, False)]
    assert wire.client.written.endswith(b"no")


async def test_others_have_their_turn() -> None:
    """Thousands of requests sent at once are answered in turns, and the rest of the loop runs."""
    wire = Wire()
    count = 10 * TURN
    wire.connection.data_received(get("/livez") * count)
    assert wire.client.written.count(b"200 OK") == TURN
    wire.connection.request_moved()  # as when a slow client has caught up: a turn like any other
    assert wire.client.written.count(b"200 OK") == 2 * TURN
    turns = 0
    while wire.client.written.count(b"200 OK") < count:
        turns += 1
        await asyncio.sleep(0)

    assert turns >= 8


async def test_what_is_far_ahead_waits_unread() -> None:
    """With nothing running, a client that is far ahead is not read until there is room."""
    wire = Wire()
    ahead = get("/livez") * (2 * MAX_AHEAD_BYTES // len(get("/livez")))
    wire.connection.data_received(ahead)
    assert wire.client.reads == [True, False]
    wire.connection.data_received(get("/livez"))
    await until(lambda: len(wire.client.reads) > 2, "it is read again")
    assert wire.client.reads == [True, False, True]
    wire.connection.connection_lost(None)
    await asyncio.sleep(0)


async def test_what_is_far_ahead_of_an_answer_is_dropped() -> None:
    """While a request runs we go on reading; what is beyond the bound ends the connection after."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.connection.data_received(b"x" * (MAX_AHEAD_BYTES + 1))
    wire.connection.data_received(b"x" * (MAX_AHEAD_BYTES + 1))
    assert wire.client.reads == [True]
    wire.upstream.data_received(reply(b"1"))

    assert wire.client.written.endswith(b"1")
    assert wire.client.eof


async def test_idle_client_that_reads_slowly() -> None:
    """An idle client that still reads its answer is not closed; one that reads nothing more is."""
    wire = Wire()
    wire.connection.data_received(get("/livez"))
    wire.client.unsent = 1000
    wire.pass_time(TIMEOUTS.client_keep_alive)
    assert wire.client.aborts == 0
    wire.client.unsent = 900
    wire.pass_time(TIMEOUTS.client_write)
    assert wire.client.aborts == 0
    wire.pass_time(TIMEOUTS.client_write)

    assert wire.client.aborts > 0


async def test_slow_reader_of_a_last_answer_has_time() -> None:
    """A client that is slow when the last answer ends is not cut after the second of lingering."""
    wire = Wire()
    wire.connection.pause_writing()
    wire.client.unsent = 100_000
    wire.connection.data_received(b"nonsense\r\n\r\n")
    wire.connection.resume_writing()
    wire.connection.pause_writing()
    wire.pass_time(LINGER_SECONDS)
    assert wire.client.aborts == 0
    wire.client.unsent = 0
    wire.connection.resume_writing()
    wire.pass_time(LINGER_SECONDS)

    assert wire.client.aborts > 0


async def test_answer_and_nonsense_in_one_read() -> None:
    """What follows a complete answer ends the connection and not the answer."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.upstream.data_received(reply(b"1") + b"nonsense")

    assert wire.client.written.endswith(b"\r\n\r\n1")
    assert wire.engine.aborts > 0
    assert wire.front.open_requests == 0


async def test_answer_and_the_beginning_of_another() -> None:
    """A begun second answer must not be read as the head of the next request's."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.upstream.data_received(reply(b"1") + b"HTTP/1.1 200 OK\r\nX-Evil: ")

    assert wire.engine.aborts > 0


async def test_fault_with_a_whole_answer_in_one_read() -> None:
    """An answer that cannot be passed is 502 even if all of it came at once; nobody hangs."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    wire.upstream.data_received(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    )

    assert b"502 Bad Gateway" in wire.client.written
    assert wire.front.dispatcher.in_flight.total == 0


@pytest.mark.parametrize("status", [b"099 Odd", b"101 Switching Protocols"])
async def test_odd_status(status: bytes) -> None:
    """What is neither interim nor an answer is 502."""
    wire = Wire()
    wire.connection.data_received(ASKING)
    head = b"HTTP/1.1 " + status + b"\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    wire.upstream.data_received(head)

    assert b"502 Bad Gateway" in wire.client.written


async def test_a_fault_of_ours_in_an_answer_ends_that_request() -> None:
    """What fails within us while an answer is passed does not leave its client waiting."""
    strays: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: strays.append(context))
    wire = Wire()
    wire.connection.data_received(ASKING)
    relay = wire.connection._relay
    assert relay is not None
    relay.account.endpoint = None  # a fault that cannot be
    wire.upstream.data_received(reply(b"1"))

    assert [type(stray["exception"]) for stray in strays] == [AssertionError]
    assert wire.client.aborts > 0
    assert wire.front.open_requests == 0
    assert wire.front.dispatcher.in_flight.total == 0


async def test_continue_is_only_said_for_a_body_that_is_wanted() -> None:
    """Neither for one that is too large, nor where there is none."""
    wire = Wire()
    large = {"Expect": "100-continue", "Content-Length": str(LIMITS.max_body_bytes + 1)}
    wire.connection.data_received(get("/v1/models", headers={"Expect": "100-continue"}))
    assert b"100 Continue" not in wire.client.written
    wire.connection.cut()
    other = Wire()
    other.connection.data_received(get("/generate", method="POST", headers=large))

    assert b"100 Continue" not in other.client.written
    assert b"413 " in other.client.written
    wire.pools[BASE].close()


async def test_lost_without_a_timer() -> None:
    """A connection may be lost in the very moment in which its timer has fired."""
    wire = Wire()
    timer, wire.connection._alarm._timer = wire.connection._alarm._timer, None
    assert timer is not None
    timer.cancel()
    wire.connection.connection_lost(None)

    assert not wire.front.connections


async def test_lost_while_it_is_not_read() -> None:
    """A client that leaves while it has to wait for its turn leaves nothing behind."""
    wire = Wire()
    wire.connection.data_received(get("/livez") * 4000)
    assert wire.client.reads == [True, False]
    wire.connection.connection_lost(None)
    await asyncio.sleep(0)

    assert wire.client.reads == [True, False]
    assert not wire.front.connections


async def test_a_fault_of_ours_in_a_chunk() -> None:
    """It is reported, and its request given up."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, it: reported.append(it["exception"]))
    fault = RuntimeError("odd")
    wire = Wire()
    wire.connection.data_received(STREAMING)
    wire.upstream.data_received(STREAM_HEAD)
    wire.upstream.data_received(chunk(event(1)))
    clock = wire.front.clock

    def fails_once() -> float:
        wire.front.clock = clock
        raise fault

    wire.front.clock = fails_once
    wire.upstream.data_received(chunk(event(2)))

    assert reported == [fault]
    assert wire.client.aborts
