"""A tunnel over transports that keep what is written: the moments that sockets reach by luck."""

import ssl

import pytest

from proxy.data.upstream import EngineConnection
from tests.harness.pair import BASE
from tests.harness.running import until
from tests.harness.tunnels import SWITCH, offer
from tests.harness.wire import FakeTransport, Wire


class Tunnelled(Wire):
    """A tunnel over base, whose connection is made as it is asked for."""

    def __post_init__(self) -> None:
        """As any wire; base is dialled."""
        super().__post_init__()
        self.far = FakeTransport()
        self.other: EngineConnection | None = None
        self.pools[BASE]._dial = self._dial

    async def _dial(
        self, engine: EngineConnection, _host: str, _port: int, _tls: ssl.SSLContext | None
    ) -> None:
        self.other = engine
        engine.connection_made(self.far)

    async def asked(self) -> EngineConnection:
        """The engine's connection, once the request is on it."""
        self.connection.data_received(offer())
        await until(lambda: bool(self.far.written), "the request is sent")
        assert self.other is not None
        return self.other

    async def opened(self) -> EngineConnection:
        """The same, once the engine has agreed."""
        engine = await self.asked()
        engine.data_received(SWITCH)
        self.far.written = self.client.written = b""
        return engine


async def test_bytes_go_both_ways() -> None:
    """Each read is one write."""
    wire = Tunnelled()
    engine = await wire.opened()
    wire.connection.data_received(b"there")
    engine.data_received(b"back")
    assert (wire.far.written, wire.client.written) == (b"there", b"back")
    wire.connection.cut()
    assert wire.far.aborts == wire.client.aborts == 1


async def test_a_slow_engine() -> None:
    """Its client is not read until it has caught up; a slow reader of a body is no matter."""
    wire = Tunnelled()
    engine = await wire.asked()
    engine.pause_writing()
    engine.resume_writing()
    assert wire.client.reads == [True]
    engine.data_received(SWITCH)
    engine.pause_writing()
    assert wire.client.reads == [True, False]
    engine.resume_writing()
    assert wire.client.reads == [True, False, True]
    wire.connection.cut()


async def test_an_engine_that_ends_while_it_is_slow() -> None:
    """Its client is read again, or its own end would not be seen."""
    wire = Tunnelled()
    engine = await wire.opened()
    engine.pause_writing()
    engine.eof_received()
    assert wire.client.reads == [True, False, True]
    assert wire.client.eof
    assert wire.far.aborts == 1
    engine.pause_writing()  # of a connection that is for nobody any more
    engine.resume_writing()
    assert wire.client.reads == [True, False, True]
    wire.pass_time(2.0)
    assert wire.client.aborts == 1


async def test_what_comes_for_an_engine_that_is_going_is_dropped() -> None:
    """Its end is about to be told; a write would only be an error."""
    wire = Tunnelled()
    engine = await wire.opened()
    wire.far.close()
    wire.connection.data_received(b"too late")
    assert not wire.far.written
    engine.connection_lost(None)
    assert wire.client.eof
    assert wire.front.open_requests == 0
    wire.connection.cut()


@pytest.mark.parametrize("takes_eof", [True, False])
async def test_a_client_that_sends_no_more(takes_eof: bool) -> None:  # noqa: FBT001 - a parameter
    """The engine is told in TCP; TLS cannot say half of it, so that it is all of it."""
    wire = Tunnelled()
    wire.far.takes_eof = takes_eof
    engine = await wire.opened()
    assert wire.connection.eof_received()
    assert (wire.far.eof, wire.far.closed) == (takes_eof, not takes_eof)
    assert wire.connection.eof_received()  # TLS says goodbye, and then FIN
    engine.connection_lost(None)
    assert wire.client.eof
    assert wire.front.open_requests == 0
    wire.connection.cut()


async def test_a_client_that_is_closed_already() -> None:
    """It cannot be held back, and need not be."""
    wire = Tunnelled()
    await wire.opened()
    wire.connection.connection_lost(None)
    wire.connection.hold_back()
    wire.connection.go_on()
    assert wire.client.reads == [True]
    assert wire.far.aborts == 1


async def test_who_is_held_back_twice() -> None:
    """Is held back."""
    wire = Tunnelled()
    await wire.opened()
    wire.connection.hold_back()
    wire.connection.hold_back()
    assert wire.client.reads == [True, False]
    wire.connection.cut()


async def test_an_agreement_in_two_reads() -> None:
    """What comes with its end goes through, once."""
    wire = Tunnelled()
    engine = await wire.asked()
    whole = SWITCH + b"first"
    engine.data_received(whole[:40])
    engine.data_received(whole[40:])
    engine.data_received(b" second")
    assert wire.client.written.endswith(b"\r\n\r\nfirst second")
    wire.connection.cut()
