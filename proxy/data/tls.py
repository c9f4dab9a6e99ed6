"""TLS between a client's socket and its ClientConnection, which does not know the difference.

The event loop has a TLS layer of its own; it is not used because of what it hides. It shows a
client only after its handshake, so that those who never finish theirs are not counted. It keeps
unsent bytes where `get_write_buffer_size` does not see them, so that an answer passes for taken
whole when it is not. It cannot close one direction, and takes a client's FIN as a reason to send
all that is unsent first. Here nothing is kept: what is written is encrypted and handed to the
socket's transport in one call, so that its flow control, its counts and its endings are those of a
connection without TLS.
"""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from proxy.data.downstream import ClientConnection
from proxy.data.front import Front
from proxy.errors import BadRequest, ConfigError

_READ_BYTES: Final = 65536
"""More than a TLS record holds (16 KiB), so that each read empties one."""


class Certificate:
    """The endpoint's certificate and key, as the context for the next client."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load it; raises ConfigError where it cannot be."""
        self._certificate = certificate
        self._key = key
        self.context = self.read()
        """For the clients that connect from now on."""

    def read(self) -> ssl.SSLContext:
        """What both files hold now; raises ConfigError where they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without a word of ours, OpenSSL would ask for a passphrase on the terminal, and wait.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            why = f"cannot be used with listen.tls_cert: {error}"
            raise ConfigError([("listen.tls_key", why)]) from error
        return context


class TlsConnection(asyncio.Protocol):
    """One client: its handshake, and then what passes between its socket and its connection."""

    def __init__(self, front: Front, context: ssl.SSLContext) -> None:
        self._front = front
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport | None = None
        self._client: ClientConnection | None = None
        """None until the handshake is done."""
        self._transport: TlsTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; it counts from now on."""
        front = self._front
        # By cast: uvloop's transports are no subclasses of asyncio's.
        self._raw = raw = cast("asyncio.Transport", transport)
        if len(front.connections) + len(front.handshakes) >= front.max_connections + front.told:
            raw.abort()
            return
        front.handshakes.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(front.timeouts.header, raw.abort)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client's socket."""
        if self._transport is not None and self._transport.ended:
            return  # what comes after our goodbye is for nobody, and held for nobody
        self._incoming.write(data)
        if self._client is None and not self._shake():
            return
        self._read()

    def eof_received(self) -> bool | None:
        """FIN: with or without TLS's own goodbye, the client sends no more."""
        return None if self._client is None else self._client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._end_handshake()
        if self._client is not None:
            self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._client is not None:
            self._client.resume_writing()

    # the app

    def close(self) -> None:
        """Give the handshake up."""
        assert self._raw is not None  # noqa: S101 - only those connected are known
        self._raw.abort()

    # within

    def _shake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        raw = self._raw
        assert raw is not None  # noqa: S101 - it has just read
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            raw.write(self._outgoing.read())
            return False
        except ssl.SSLError as error:
            self._end_handshake()
            self._refuse(raw, error)
            return False
        raw.write(self._outgoing.read())
        self._end_handshake()
        self._client = ClientConnection(self._front)
        self._transport = TlsTransport(raw, self._tls, self._outgoing)
        self._client.connection_made(self._transport)
        return True

    def _refuse(self, raw: asyncio.Transport, error: ssl.SSLError) -> None:
        """End a handshake that failed: an everyday matter, which is nobody's log line.

        Whoever speaks HTTP without TLS is told so in HTTP, and counted as one who was refused.
        """
        if error.reason != "HTTP_REQUEST":
            raw.write(self._outgoing.read())  # TLS's own words for what is wrong
            raw.close()
            return
        client = ClientConnection(self._front)
        raw.set_protocol(client)
        client.connection_made(raw)
        client.refuse(BadRequest("this port takes HTTPS, and that was HTTP"))

    def _end_handshake(self) -> None:
        self._front.handshakes.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        """Hand on what has been said, and hear whether it was the last."""
        client, transport = self._client, self._transport
        assert client is not None  # noqa: S101 - the handshake is done
        assert transport is not None  # noqa: S101 - the same
        pieces: list[bytes] = []
        said_goodbye = False
        try:
            while self._incoming.pending or self._tls.pending():
                piece = self._tls.read(_READ_BYTES)
                if not piece:
                    said_goodbye = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except ssl.SSLError:
            transport.abort()  # not TLS any more; what stood before it cannot be answered
            return
        transport.flush()
        if pieces:
            client.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if said_goodbye and not client.eof_received():
            transport.close()


class TlsTransport(asyncio.Transport):
    """The client's socket, as its ClientConnection writes to it."""

    def __init__(self, raw: asyncio.Transport, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        super().__init__()
        self._raw = raw
        self._tls = tls
        self._outgoing = outgoing
        self.ended = False
        """Whether we have said that we say no more."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self.ended or self._raw.is_closing():
            return
        unsent = memoryview(data)
        try:
            while unsent:  # a record at a time
                unsent = unsent[self._tls.write(unsent) :]
        except ssl.SSLError:
            self.abort()  # it has ended from the other side
        else:
            self.flush()

    def flush(self) -> None:
        """Send what TLS has to say, of ours or of its own."""
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def write_eof(self) -> None:
        """Say goodbye in TLS, then FIN."""
        self._say_goodbye()
        self._raw.write_eof()

    def close(self) -> None:
        """Say goodbye and close."""
        self._say_goodbye()
        self._raw.close()

    def _say_goodbye(self) -> None:
        self.ended = True
        with suppress(ssl.SSLError):  # which says that the other side has not said its own yet
            self._tls.unwrap()
        self.flush()

    def can_write_eof(self) -> bool:
        """TLS allows it."""
        return True

    def abort(self) -> None:
        """Close without a goodbye, which nobody can take for an end."""
        self._raw.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or being closed."""
        return self._raw.is_closing()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What is known of the socket."""
        return self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Those of the socket."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that the client has not taken, as they are on the wire."""
        return self._raw.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Take nothing from the socket."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Take again."""
        self._raw.resume_reading()
