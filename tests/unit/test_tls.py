"""The TLS layer where sockets reach it only by luck; over real ones: conformance/test_tls_listener.

A client and the layer hold a whole handshake in memory.
"""

import ssl
from pathlib import Path

import pytest

from proxy.data.tls import Certificate, TlsConnection, TlsTransport
from tests.harness.client import get
from tests.harness.tls import Identity
from tests.harness.wire import FakeTransport, Wire


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """A certificate."""
    return Identity(tmp_path_factory.mktemp("tls"))


class Ends:
    """A client's TLS and ours, with nothing between."""

    def __init__(self, identity: Identity) -> None:
        self.wire = Wire()
        self.raw = FakeTransport()
        certificate = Certificate(identity.cert, identity.key)
        self.connection = TlsConnection(self.wire.front, certificate.context)
        self.connection.connection_made(self.raw)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = identity.context().wrap_bio(
            self._incoming, self._outgoing, server_hostname="127.0.0.1"
        )

    def pass_on(self) -> None:
        """What each has written, to the other."""
        self.connection.data_received(self._outgoing.read())
        self._incoming.write(self.raw.written)
        self.raw.written = b""

    def shake(self) -> None:
        """The whole handshake."""
        for _ in range(3):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.pass_on()
        self.pass_on()

    def say(self, data: bytes) -> bytes:
        """The client says `data`, and reads what comes back."""
        self.tls.write(data)
        self.pass_on()
        return self.tls.read(65536)

    @property
    def transport(self) -> TlsTransport:
        """What the client's connection writes to."""
        assert self.connection._transport is not None
        return self.connection._transport


async def test_a_request(identity: Identity) -> None:
    """It comes out, and its answer goes back."""
    ends = Ends(identity)
    ends.shake()
    assert ends.say(get("/livez")).startswith(b"HTTP/1.1 200 ")
    assert not ends.wire.front.handshakes


async def test_nothing_is_kept(identity: Identity) -> None:
    """What is unsent is where the socket's transport counts it."""
    ends = Ends(identity)
    ends.shake()
    ends.raw.unsent = 12345
    assert ends.transport.get_write_buffer_size() == 12345


async def test_the_socket_tells_when_it_is_full(identity: Identity) -> None:
    """Its flow control is the client connection's; during the handshake it concerns nobody."""
    ends = Ends(identity)
    ends.connection.pause_writing()
    ends.connection.resume_writing()
    ends.shake()
    client = ends.connection._client
    assert client is not None
    ends.connection.pause_writing()
    assert client.slow
    ends.connection.resume_writing()
    assert not client.slow


async def test_after_the_end_nothing_is_written(identity: Identity) -> None:
    """Neither after our goodbye nor to a socket that closes."""
    ends = Ends(identity)
    ends.shake()
    ends.pass_on()
    ends.transport.write_eof()
    said = ends.raw.written
    assert said
    assert ends.raw.eof
    ends.transport.write(b"more")
    assert ends.raw.written == said

    ends = Ends(identity)
    ends.shake()
    ends.pass_on()
    ends.transport.abort()
    assert ends.transport.is_closing()
    ends.transport.write(b"more")
    ends.transport.flush()
    ends.transport.close()
    assert ends.raw.written == b""


class Broken:
    """TLS that can write no more."""

    def write(self, _data: bytes) -> int:
        """Fail."""
        raise ssl.SSLError("broken")


def test_a_write_that_fails_is_an_end() -> None:
    """It is no fault of ours that goes up to whoever has written."""
    raw = FakeTransport()
    TlsTransport(raw, Broken(), ssl.MemoryBIO()).write(b"a")  # type: ignore[arg-type]
    assert raw.aborts == 1
    assert raw.written == b""


class Halting:
    """TLS that takes ten bytes at a time."""

    def __init__(self, outgoing: ssl.MemoryBIO) -> None:
        self._outgoing = outgoing

    def write(self, data: memoryview) -> int:
        """Take some."""
        return self._outgoing.write(data[:10])


def test_all_is_written() -> None:
    """What TLS does not take at once it is given again."""
    raw, outgoing = FakeTransport(), ssl.MemoryBIO()
    TlsTransport(raw, Halting(outgoing), outgoing).write(b"x" * 95)  # type: ignore[arg-type]
    assert raw.written == b"x" * 95


async def test_what_comes_after_the_end_is_for_nobody(identity: Identity) -> None:
    """Not even rubbish can then destroy an answer that is still being read."""
    ends = Ends(identity)
    ends.shake()
    ends.transport.write_eof()
    ends.connection.data_received(b"rubbish" * 100)
    assert ends.raw.aborts == 0


async def test_reading_is_the_sockets(identity: Identity) -> None:
    """A client that is too far ahead is not read."""
    ends = Ends(identity)
    ends.shake()
    ends.transport.pause_reading()
    ends.transport.resume_reading()
    assert ends.raw.reads[-2:] == [False, True]


async def test_fin_in_the_handshake(identity: Identity) -> None:
    """It ends the connection; nobody else needs to hear of it."""
    ends = Ends(identity)
    assert ends.connection.eof_received() is None
    ends.connection.connection_lost(None)
    assert not ends.wire.front.handshakes


def test_no_old_protocol_and_no_renegotiation(identity: Identity) -> None:
    """TLS 1.2 is the least, and a client cannot make us shake hands for ever."""
    context = Certificate(identity.cert, identity.key).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_no_passphrase_is_asked_for(identity: Identity, tmp_path: Path) -> None:
    """A file that cannot be used is a finding with its path."""
    with pytest.raises(Exception, match=r"listen\.tls_key: cannot be used"):
        Certificate(identity.cert, tmp_path / "none")


async def test_after_our_goodbye_nothing_is_held(identity: Identity) -> None:
    """A client that goes on sending past its last answer costs nothing, read or not."""
    ends = Ends(identity)
    ends.shake()
    ends.tls.write(b"x" * 16)
    more = ends._outgoing.read() * 1000
    ends.transport.write_eof()
    for _ in range(10):
        ends.connection.data_received(more)
    assert ends.connection._incoming.pending == 0
