"""What fails within us: one request is given up, nothing it held is left behind, and it is said.

Each of the commands that a request is made of raises once, before it has done anything or after;
transports raise, and whoever is told of a request. None of this should happen. Where the count is
the routing signal, "should not" is not enough: one lease that is not given back moves the mode for
as long as the process lives.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from proxy.core.observer import Record
from proxy.core.words import Outcome, UpstreamName
from proxy.data import events as ev
from proxy.data.exchange import State
from proxy.data.pool import Connecting
from proxy.data.relay import TABLE, Relay
from proxy.data.upstream import EngineConnection, tell
from tests.harness.client import CHAT_STREAM, get, post
from tests.harness.pair import BASE, SPEC, Recorder, only_base
from tests.harness.talk import REPLY
from tests.harness.tunnels import SWITCH, offer
from tests.harness.upstream import DONE, STREAM_HEAD, chunk, event, reply, stream
from tests.harness.wire import FakeTransport, Wire

ASKING = post("/generate", {"text": "a"})
STREAMING = post("/generate", {"text": "a", "stream": True})
CHATTING = post("/v1/chat/completions", CHAT_STREAM)
FULL = reply(b"{}", status="503 Service Unavailable")


class Fault(RuntimeError):  # noqa: N818 - the word of proxy for what is ours
    """A fault that cannot be foreseen."""


@pytest.fixture
async def reported() -> list[dict[str, object]]:
    """What the loop's exception handler is told."""
    strays: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: strays.append(context))
    return strays


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """What is given back is given back at once, not when the collector comes by."""
    gc.disable()
    yield
    gc.enable()


def from_client(wire: Wire, data: bytes) -> None:
    """Bytes from the client; what raises in reading them the loop reports, and closes with it."""
    try:
        wire.connection.data_received(data)
    except Fault as fault:
        asyncio.get_running_loop().call_exception_handler({"exception": fault})
        wire.connection.connection_lost(fault)


def kept(wire: Wire, name: UpstreamName) -> EngineConnection:
    """A kept connection to `name`, of a transport of its own."""
    made = EngineConnection(wire.pools[name])
    made.connection_made(FakeTransport())
    made.keep()
    return made


# Conversations that lead to each command -------------------------------------------------------


def _streams(wire: Wire) -> None:
    from_client(wire, STREAMING)
    wire.upstream.data_received(stream(event(1), DONE))


def _breaks_off(wire: Wire) -> None:
    from_client(wire, STREAMING)
    wire.upstream.data_received(STREAM_HEAD + chunk(event(1)))
    wire.upstream.connection_lost(OSError("reset by peer"))


def _is_reset(wire: Wire) -> None:
    from_client(wire, ASKING)
    wire.pair.now += 1.0
    wire.upstream.connection_lost(OSError("reset by peer"))


def _moves(wire: Wire) -> None:
    base = kept(wire, BASE)
    from_client(wire, CHATTING)
    wire.upstream.data_received(FULL)
    base.data_received(stream(event(1), DONE))


def _leaves(wire: Wire) -> None:
    from_client(wire, STREAMING)
    wire.upstream.data_received(STREAM_HEAD + chunk(event(1)))
    wire.connection.connection_lost(None)


def _leaves_the_room(wire: Wire) -> None:
    settings = wire.front.dispatcher.settings
    wire.front.dispatcher.settings = replace(settings, max_in_flight=1)
    held = wire.pair.place()
    from_client(wire, ASKING)
    wire.connection.connection_lost(None)
    wire.pair.end(held)


def _waits_again(wire: Wire) -> None:
    """Spec cannot be connected to, and base has no place free."""
    wire.front.dispatcher.base.configured_cap = 1
    wire.front.dispatcher.base.look()
    held = wire.pair.place(only_base())
    wire.upstream.drop()
    from_client(wire, ASKING)
    if (relay := wire.connection._relay) is not None:
        tell(relay, lambda sink: sink.engine_not_connected("refused"))
    if (relay := wire.connection._relay) is not None:
        assert relay.exchange.state is State.WAITING
        wire.connection.cut()
    wire.pair.end(held)


def _is_late(wire: Wire) -> None:
    from_client(wire, STREAMING)
    wire.pass_time(600.0)


def _is_told(wire: Wire) -> None:
    """What was asked for at the desk is there."""
    from_client(wire, get("/server_info"))
    if wire.desk.started and not wire.desk.cancelled:
        _, asker = wire.desk.started[0]
        asker.errand_over(REPLY)


def _leaves_the_desk(wire: Wire) -> None:
    from_client(wire, get("/server_info"))
    wire.connection.connection_lost(None)


def _tunnels(wire: Wire) -> None:
    """Through a connection of its own, made by hand; then its client sends no more."""
    from_client(wire, offer())
    relay = wire.connection._relay
    assert relay is not None
    assert isinstance(relay._engine, Connecting)
    sink = relay._engine.take_sink()
    assert sink is not None
    engine = EngineConnection(wire.pools[BASE])
    engine.connection_made(FakeTransport())
    wire.pools[BASE]._active.add(engine)
    tell(sink, lambda sink: sink.engine_connected(engine, reused=False))
    engine.data_received(SWITCH)
    wire.connection.eof_received()


CONVERSATIONS: dict[type[ev.Command], tuple[Callable[[Wire], None], ...]] = {
    ev.Ask: (_streams,),
    ev.RunErrand: (_is_told,),
    ev.CancelErrand: (_leaves_the_desk,),
    ev.Tell: (_is_told,),
    ev.AskOther: (_moves, _waits_again),
    ev.GiveBack: (_waits_again,),
    ev.LeaveRoom: (_leaves_the_room,),
    ev.Connect: (_streams,),
    ev.Send: (_streams,),
    ev.DropEngine: (_is_reset, _breaks_off, _moves, _leaves, _is_late, _waits_again),
    ev.KeepEngine: (_streams,),
    ev.SendHead: (_streams,),
    ev.EndAnswer: (_streams,),
    ev.Answer: (_is_reset, _is_late),
    ev.Cut: (_breaks_off,),
    ev.OpenTunnel: (_tunnels,),
    ev.FinishSending: (_tunnels,),
}


@dataclass(frozen=True)
class Break:
    """A command that raises in a conversation."""

    command: type[ev.Command]
    talk: Callable[[Wire], None]
    done: bool
    """Whether it has done what it should before it raises."""


def name_of(broken: Break) -> str:
    """It as a test's name."""
    when = "after" if broken.done else "before"
    return f"{when}-{broken.command.__name__}-{broken.talk.__name__.strip('_')}"


BREAKS = [
    Break(command, talk, done)
    for command, talks in CONVERSATIONS.items()
    for talk in talks
    for done in (False, True)
    if done or command not in {ev.LeaveRoom, ev.GiveBack}  # one call of the dispatcher, no more
]


def test_every_command_is_broken() -> None:
    """But for `Finish`, whose parts raise below."""
    assert {*CONVERSATIONS, ev.Finish} == {*TABLE}


def broken(command: type[ev.Command], *, done: bool) -> Callable[..., ev.Event | None]:
    """The command's method, that raises once."""
    method = TABLE[command]
    faults = [Fault(command.__name__)]

    def raising(relay: Relay, told: ev.Command, now: float) -> ev.Event | None:
        fault = faults.pop() if faults else None
        following = method(relay, told, now) if done or fault is None else None
        if fault is None:
            return following
        if following is not None:
            relay._process(following)  # what it led to is done, too
        raise fault

    return raising


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("fault", BREAKS, ids=name_of)
async def test_a_command_that_fails(
    fault: Break, reported: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is, the request ends, its client is given up, and nothing is left."""
    wire = Wire()
    method = broken(fault.command, done=fault.done)
    monkeypatch.setitem(TABLE, fault.command, method)
    fault.talk(wire)

    assert [type(stray["exception"]) for stray in reported] == [Fault]
    nothing_left(wire)


def nothing_left(wire: Wire) -> None:
    """Of a request that failed, while what ran it may still be referred to."""
    front = wire.front
    assert wire.client.aborts or wire.connection not in front.connections
    assert front.open_requests == 0
    assert front.buffered == 0
    assert front.dispatcher.in_flight.total == 0
    assert len(front.dispatcher.room) == 0
    for upstream in (front.dispatcher.spec, front.dispatcher.base):
        assert upstream.work.expected == 0
    for pool in wire.pools.values():
        assert pool.active == 0
        pool.close()
    wire.connection.connection_lost(None)


# Transports that raise -------------------------------------------------------------------------


class Failing(FakeTransport):
    """A transport that raises once `mark` is written, or when it is aborted."""

    def __init__(self, *, mark: bytes = b"", abort: bool = False) -> None:
        super().__init__()
        self.mark = mark
        self.fails_to_abort = abort

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Raise as a socket does."""
        if self.mark and self.mark in bytes(data):
            raise Fault("broken pipe")
        super().write(data)

    def abort(self) -> None:
        """Raise once it has closed."""
        super().abort()
        if self.fails_to_abort:
            raise Fault("it was closed already")


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("mark", [b"HTTP/1.1 200 OK", b"data: 1", b"0\r\n\r\n"])
async def test_writing_to_the_client_fails(mark: bytes, reported: list[dict[str, object]]) -> None:
    """At the head, the first piece or the end: counted once, and given back at once.

    As in vllm-project/production-stack#1072, where four of six such cases left a count behind.
    """
    wire = Wire(client=Failing(mark=mark))
    told = Ended()
    wire.front.observer = told
    from_client(wire, STREAMING)
    relay = wire.connection._relay
    for piece in (STREAM_HEAD, chunk(event(1)), chunk(DONE) + b"0\r\n\r\n"):
        if not wire.client.aborts:
            wire.upstream.data_received(piece)

    assert relay is not None
    assert [type(stray["exception"]) for stray in reported] == [Fault]
    assert len(told.records) == 1
    assert (told.records[0].outcome is Outcome.OK) == (mark == b"0\r\n\r\n")
    nothing_left(wire)


async def test_writing_to_the_engine_fails(reported: list[dict[str, object]]) -> None:
    """The request was not sent whole: its client is given up."""
    wire = Wire(engine=Failing(mark=b"POST"))
    from_client(wire, STREAMING)

    assert [type(stray["exception"]) for stray in reported] == [Fault]
    nothing_left(wire)


@pytest.mark.parametrize("talk", [_breaks_off, _leaves, _is_late])
async def test_closing_the_engines_connection_fails(
    talk: Callable[[Wire], None], reported: list[dict[str, object]]
) -> None:
    """The place is given back all the same, and the outcome counted once.

    As in sgl-project/sglang-omni#931, where the line that counted down stood after the closing.
    """
    wire = Wire(engine=Failing(abort=True))
    told = Ended()
    wire.front.observer = told
    with suppress(Fault):
        talk(wire)

    assert len(told.records) == 1
    assert len(reported) <= 1
    nothing_left(wire)


class Ended(Recorder):
    """An observer that keeps the records, and raises after it where a test wants it."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.fault = fault

    def ended(self, record: Record) -> None:
        """Keep it."""
        self.records.append(record)
        if self.fault is not None:
            raise self.fault


@pytest.mark.parametrize("talk", [_streams, _is_reset, _breaks_off, _moves, _leaves, _is_late])
async def test_who_is_told_of_an_ending_fails(
    talk: Callable[[Wire], None], reported: list[dict[str, object]]
) -> None:
    """Metrics or the log may fail; the place is given back, and one request is told of once."""
    wire = Wire()
    told = Ended(Fault("told"))
    wire.front.observer = told
    with suppress(Fault):
        talk(wire)

    assert len(told.records) == 1
    assert len(reported) <= 1
    nothing_left(wire)


async def test_everything_ends_at_once(reported: list[dict[str, object]]) -> None:
    """The client leaves, is cut twice, its engine is lost and the pools close: it ends once.

    As in FlashML-org/FreeToken#222, where a clean-up was itself cancelled.
    """
    wire = Wire()
    told = Ended()
    wire.front.observer = told
    from_client(wire, STREAMING)
    wire.upstream.data_received(STREAM_HEAD + chunk(event(1)))
    wire.connection.cut()
    wire.connection.cut()
    wire.pools[SPEC].close()
    wire.upstream.drop()
    wire.upstream.connection_lost(None)
    wire.connection.connection_lost(None)
    wire.connection.cut()

    assert [record.outcome for record in told.records] == [Outcome.ABANDONED]
    assert wire.engine.aborts
    assert reported == []
    nothing_left(wire)
