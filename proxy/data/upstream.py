"""The protocol facing an engine.

A connection serves one request at a time and tells its `Sink` what comes back. Whatever came in one
read is told in one batch that ends with `engine_flush`, so that the sink can write it in one call.
"""

import asyncio
import re
import select
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from proxy.core.http import transfer_codings
from proxy.core.upgrade import agrees
from proxy.data.outbox import Outbox
from proxy.data.response import ResponseHead
from proxy.errors import Refusal

if TYPE_CHECKING:  # the two hold each other
    from proxy.data.pool import Pool

MAX_HEAD_BYTES = 262144
"""How much an engine may send before its answer's head is whole; curl bounds heads at 300 KB."""

LARGE_BYTES = 65536
"""Of a request's body; smaller ones are written at once."""

_AROUND_A_CHUNK = 4
"""Two line ends."""

_BLANK_LINE = b"\r\n\r\n"
_LINE_END = b"\r\n"
_MOST_DIGITS = 16  # of a chunk's size
_CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What no reason phrase may hold: RFC 9112 section 4."""


class Sink(Protocol):
    """Who a connection works for."""

    def engine_connected(self, engine: "EngineConnection", *, reused: bool) -> None:
        """A connection is there; it is the sink's from now on. `reused` if it has served before."""

    def engine_not_connected(self, why: str) -> None:
        """There will be none."""

    def engine_refused(self, refusal: Refusal) -> None:
        """There will be none, and the engine has no part in it."""

    def engine_head(self, head: ResponseHead) -> None:
        """The response's head."""

    def engine_body(self, pieces: list[bytes], framed: bytes | None) -> None:
        """Pieces of its body, as they came; `framed` are the same in their chunks, if whole."""

    def engine_ended(self, *, reusable: bool) -> None:
        """The response is complete."""

    def engine_lost(self, *, silent: bool, why: str) -> None:
        """The connection broke before it was."""

    def engine_tunnelled(self, data: bytes) -> None:
        """Bytes out of a tunnel."""

    def engine_slow(self) -> None:
        """It takes what comes through its tunnel more slowly than that comes."""

    def engine_caught_up(self) -> None:
        """It has taken it."""

    def engine_flush(self) -> None:
        """That was all of one read."""

    def engine_failed(self, fault: Exception) -> None:
        """A fault of ours in telling it."""


def tell(sink: Sink, what: Callable[[Sink], None]) -> None:
    """Tell `sink` all of one read; a fault of ours in it must not leave a request hanging."""
    try:
        what(sink)
        sink.engine_flush()
    except Exception as fault:  # noqa: BLE001 - the sink reports it, and gives the request up
        sink.engine_failed(fault)


def plain_chunk(data: bytes) -> bytes | None:
    """The payload, where `data` is one chunk framed as we would; nearly every read of a stream."""
    end = data.find(_LINE_END, 1, _MOST_DIGITS + 1)  # -1, too, is where no such digits end
    size = len(data) - end - _AROUND_A_CHUNK
    if size <= 0 or data[:end] != b"%x" % size or not data.endswith(_LINE_END):
        return None
    return data[end + len(_LINE_END) : -len(_LINE_END)]


def framed_length(pieces: Sequence[bytes]) -> int:
    """Bytes that `pieces` take as one chunk each, sizes in hexadecimal and nothing beside them."""
    if len(pieces) == 1:  # nearly always
        size = len(pieces[0])
        return size + (size.bit_length() + 3) // 4 + _AROUND_A_CHUNK
    sizes = [len(piece) for piece in pieces]
    digits = sum((size.bit_length() + 3) // 4 for size in sizes)
    return sum(sizes) + digits + _AROUND_A_CHUNK * len(sizes)


class EngineConnection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_ahead",
        "_chunk_over",
        "_complete",
        "_fault",
        "_head",
        "_head_told",
        "_headers",
        "_headless",
        "_keeps_alive",
        "_offers_upgrade",
        "_out",
        "_parser",
        "_paused",
        "_phrase",
        "_pieces",
        "_pool",
        "_sent_bytes",
        "_silent",
        "_sink",
        "_transport",
        "_tunnels",
        "_waiting",
        "_whole_chunks",
        "idle_since",
        "served",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting = select.poll()
        """Sees what has come and is not read."""
        self._sink: Sink | None = None
        self._paused = False
        self._offers_upgrade = False
        """Whether a tunnel was asked for; then this connection serves nothing else."""
        self._tunnels = False
        """Whether the engine has agreed: nothing is HTTP any more."""
        self._ahead = b""
        self._out = b""
        self.served = False
        """Whether a request was ever sent over it."""
        self.idle_since = 0.0
        """Monotonic seconds; meaningful while it is kept."""
        self._reset()

    def _reset(self) -> None:
        self._silent = True
        self._phrase = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head: ResponseHead | None = None
        self._head_told = False
        self._pieces: list[bytes] = []
        self._complete = False
        self._keeps_alive = False
        self._fault: str | None = None
        self._sent_bytes = 0
        self._headless = 0
        """Bytes that have come without the answer's head being whole."""
        self._chunk_over = False
        """Whether the last piece of the body has ended its chunk."""
        self._whole_chunks = False
        """Whether the body has come as whole chunks so far, in each read some, framed as we would.

        A chunk that comes in two reads, an extension or a leading zero end that; what ends a chunk
        is the parser's to say, and no framing is shorter than ours.
        """

    @property
    def lost(self) -> bool:
        """Whether it is closed, or closing."""
        return self._transport is None or self._transport.is_closing()

    @property
    def restless(self) -> bool:
        """Whether something has come that is not read yet: its end, or what nobody has asked for.

        What comes after an answer, in the turn of the loop in which the connection is used again,
        would otherwise pass for the next answer.
        """
        return bool(self._waiting.poll(0))

    # what its sink does with it

    def send(self, sink: Sink, head: bytes, body: bytes | bytearray, outbox: Outbox) -> None:
        """Send a request for `sink`, by the `outbox` unless it is large."""
        self._reset()
        self.served = True
        self._sink = sink
        transport = self._open_transport()
        self._sent_bytes = len(body)
        if len(body) > LARGE_BYTES:  # joining would copy what is large already
            transport.write(head)
            transport.write(body)
        else:
            self._out = head + body
            outbox.add(self)

    def send_upgrade(self, sink: Sink, head: bytes, outbox: Outbox) -> None:
        """Send a request for a tunnel, for `sink`."""
        self._offers_upgrade = True
        self.send(sink, head, b"", outbox)

    def take_ahead(self) -> bytes:
        """What came out of the tunnel in the read that opened it."""
        ahead, self._ahead = self._ahead, b""
        return ahead

    def pass_on(self, data: bytes) -> None:
        """Send what came through the tunnel, as it came; nothing where it is about to end."""
        transport = self._open_transport()
        if not transport.is_closing():
            transport.write(data)

    def finish_sending(self) -> None:
        """Say that nothing more comes through the tunnel."""
        transport = self._open_transport()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()  # the loop's TLS has no half of an end

    def flush(self) -> None:
        """Send what waits in an outbox."""
        out, self._out = self._out, b""
        if out:
            self._open_transport().write(out)

    def failed(self, fault: Exception) -> None:
        """A fault of ours in sending: it is given up."""
        sink = self._sink
        assert sink is not None  # noqa: S101 - without one there is nothing to send
        sink.engine_failed(fault)

    def pause(self) -> None:
        """Stop reading, for a client that does not."""
        transport = self._open_transport()
        if not self._paused and not transport.is_closing():
            self._paused = True
            transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        transport = self._open_transport()
        if self._paused and not transport.is_closing():
            self._paused = False
            transport.resume_reading()

    def drop(self) -> None:
        """Close at once: whatever the engine is doing, it is for nobody."""
        self._sink = None
        self._out = b""
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def keep(self) -> None:
        """Put it back with those kept."""
        self._sink = None
        self.resume()
        self._pool.keep(self)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        # By cast: uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._waiting.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes from the engine."""
        sink = self._sink
        if sink is None or self._parser is None or self._out:
            self._beside_answers(sink, data)
            return
        self._silent = False
        # At a boundary, a chunk that is whole leaves the parser where it was: it need not see it.
        piece = plain_chunk(data) if self._whole_chunks else None
        if piece is None:
            self._parse(self._parser, data)
        try:
            if piece is None:
                self._deliver(sink, data)
            else:
                sink.engine_body([piece], data)
            sink.engine_flush()
        except Exception as fault:  # noqa: BLE001 - as in `tell`
            sink.engine_failed(fault)

    def eof_received(self) -> bool | None:
        """The engine has closed its side; for some answers that is the end."""
        sink = self._sink
        told = self._head if self._head_told and self._fault is None else None
        if sink is not None and told is not None and (told.until_close or self._tunnels):
            self._sink = None
            tell(sink, lambda sink: sink.engine_ended(reusable=False))
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        sink, self._sink = self._sink, None
        self._out = b""
        self._parser = None  # it and this hold each other
        self._pool.forget(self)
        if sink is not None:
            why = "the connection was closed" if exc is None else f"{exc}"
            tell(sink, lambda sink: sink.engine_lost(silent=self._silent, why=why))

    def pause_writing(self) -> None:
        """The engine reads more slowly than it is written to; a body waits where it is."""
        sink = self._sink
        if self._tunnels and sink is not None:
            sink.engine_slow()

    def resume_writing(self) -> None:
        """It has caught up."""
        sink = self._sink
        if self._tunnels and sink is not None:
            sink.engine_caught_up()

    # llhttp

    def on_message_begin(self) -> None:
        """A message begins; after the answer, what this connection says next cannot be trusted."""
        if self._complete:
            self._keeps_alive = False

    def on_status(self, phrase: bytes) -> None:
        """A part of the reason phrase."""
        self._phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; those after the head are trailers, which end here."""
        if self._head is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The end of a head; an interim one (1xx) is dropped."""
        assert self._parser is not None  # noqa: S101 - it is calling
        status = self._parser.get_status_code()
        if self._complete:
            return
        if _CONTROLS.search(self._phrase):  # llhttp lets pass what clients refuse
            self._broken("its reason phrase holds control characters")
        switches = status == 101 and self._may_switch(self._parser)  # noqa: PLR2004 - HTTP's
        if status < 100 or (status == 101 and not switches):  # noqa: PLR2004 - the same
            self._broken(f"its status is {status}")
        elif status >= 200 or switches:  # noqa: PLR2004 - an answer; 1xx is an interim one
            self._head = head = ResponseHead(status, self._phrase, self._headers)
            if head.chunked and transfer_codings(self._headers) != [b"chunked"]:
                self._broken("its transfer coding is not plain chunked")
        self._phrase = b""
        self._headers = []

    def on_body(self, piece: bytes) -> None:
        """A piece of the body; of a second answer to one request nothing is passed on."""
        self._chunk_over = False
        if not self._complete:
            self._pieces.append(piece)

    def on_chunk_complete(self) -> None:
        """The end of a chunk."""
        self._chunk_over = True

    def on_message_complete(self) -> None:
        """The end of an answer, of the final one if its head was."""
        assert self._parser is not None  # noqa: S101 - it is calling
        if self._head is not None and not self._complete:
            self._complete = True
            self._keeps_alive = self._parser.should_keep_alive()

    # within

    def _may_switch(self, parser: httptools.HttpResponseParser) -> bool:
        """Whether a 101 is the agreement to what was asked for, and to nothing else."""
        return self._offers_upgrade and parser.should_upgrade() and agrees(self._headers)

    def _beside_answers(self, sink: Sink | None, data: bytes) -> None:
        """What came is no part of an answer: out of a tunnel, or out of turn."""
        if self._tunnels and sink is not None:
            tell(sink, lambda sink: sink.engine_tunnelled(data))
        else:
            self._speaks_unasked(sink)

    def _speaks_unasked(self, sink: Sink | None) -> None:
        """Nothing that it says later can be trusted; one whose request has not left has lost it."""
        self.drop()
        if sink is not None:
            tell(sink, lambda sink: sink.engine_lost(silent=True, why="it spoke unasked"))

    def _parse(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Find what is in a read; `_deliver` tells of it."""
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            self._switched(self._head, data[switch.args[0] :])
        except httptools.HttpParserError as fault:
            self._broken(f"its answer is not HTTP: {fault}")
        if self._head is None:
            self._headless += len(data)
            if self._headless > MAX_HEAD_BYTES:
                self._broken(f"its head is larger than {MAX_HEAD_BYTES} bytes")
        elif self._whole_chunks:
            whole = self._chunk_over and framed_length(self._pieces) == len(data)
            self._whole_chunks = whole

    def _switched(self, head: ResponseHead | None, ahead: bytes) -> None:
        """Llhttp has read the end of HTTP here; `ahead` is what came behind it."""
        if head is None or head.status != 101:  # noqa: PLR2004 - one that nobody has asked for
            self._broken("it switched protocols unasked")
            return
        self._tunnels = True
        self._parser = None
        self._complete = False  # llhttp takes the head for the whole of it
        self._ahead = ahead

    def _deliver(self, sink: Sink, data: bytes) -> None:
        """Tell what has come; stop as soon as the sink has turned away."""
        framed: bytes | None = None
        if self._head_told:
            framed = data if self._whole_chunks else None
        elif self._head is not None and self._fault is None:
            self._head_told = True
            self._whole_chunks = self._head.chunked and self._goes_on_whole(data)
            sink.engine_head(self._head)
        if self._pieces and self._sink is sink and self._head_told:
            pieces, self._pieces = self._pieces, []
            sink.engine_body(pieces, framed)
        if self._sink is not sink:
            return
        if self._fault is not None:
            self._sink = None
            sink.engine_lost(silent=False, why=self._fault)
        elif self._complete:
            self._sink = None
            sink.engine_ended(reusable=self._is_reusable())

    def _goes_on_whole(self, data: bytes) -> bool:
        """Whether the read that ended the head holds whole chunks behind it, or nothing.

        Not where the head began in another read: then its blank line may not be whole in this one.
        """
        end = data.find(_BLANK_LINE) + len(_BLANK_LINE)  # if of an interim head, too much follows
        at_boundary = self._chunk_over or not self._pieces
        return not self._headless and at_boundary and len(data) == end + framed_length(self._pieces)

    def _broken(self, why: str) -> None:
        """What comes cannot be read on; a complete answer in front of it stands."""
        if self._complete:
            self._keeps_alive = False
        elif self._fault is None:
            self._fault = why

    def _is_reusable(self) -> bool:
        unsent = self._open_transport().get_write_buffer_size() > 0
        if self._pool.secure and self._sent_bytes > LARGE_BYTES:
            unsent = True  # the loop's TLS hides what of it is still to go
        kept = self._keeps_alive and self._fault is None and not unsent
        return kept and not self._offers_upgrade

    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None  # noqa: S101 - a sink gets it when it is connected
        return self._transport
