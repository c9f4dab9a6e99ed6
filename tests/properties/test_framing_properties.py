"""A body that passes in the framing it came in: only where that is the framing we would write."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.data.outbox import Outbox
from proxy.data.pool import over_tcp
from proxy.data.response import ResponseHead
from proxy.data.upstream import EngineConnection
from proxy.errors import Refusal
from tests.harness.wire import FakeTransport, pool_with

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Taker:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.framed: list[tuple[list[bytes], bytes]] = []
        """Pieces that came with their framing, and it."""
        self.ended = False
        self.lost: str | None = None

    def engine_connected(self, engine: EngineConnection, *, reused: bool) -> None:
        """It is there from the start."""

    def engine_not_connected(self, why: str) -> None:
        """Nor this."""

    def engine_refused(self, refusal: Refusal) -> None:
        """Nor this."""

    def engine_head(self, head: ResponseHead) -> None:
        """Of no interest here."""

    def engine_body(self, pieces: list[bytes], framed: bytes | None) -> None:
        """Keep it."""
        self.pieces += pieces
        if framed is not None:
            self.framed.append((pieces, framed))

    def engine_ended(self, *, reusable: bool) -> None:
        """Note it."""
        del reusable
        self.ended = True

    def engine_lost(self, *, silent: bool, why: str) -> None:
        """Note it."""
        del silent
        self.lost = why

    def engine_flush(self) -> None:
        """Of no interest here."""

    def engine_failed(self, fault: Exception) -> None:
        """Nothing may fail here."""
        raise fault


def taken(reads: list[bytes]) -> Taker:
    """What a sink gets of an answer that comes in these reads."""
    engine, sink = EngineConnection(pool_with(over_tcp)), Taker()
    engine.connection_made(FakeTransport())
    engine.send(sink, b"", b"", Outbox(most=1))
    for read in reads:
        engine.data_received(read)
    return sink


def as_we_frame(pieces: list[bytes]) -> bytes:
    """A chunk for each piece."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


PAYLOADS = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from((b"\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"\r\n\r\n", b"x" * 300)),
)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A payload, and a chunk that holds it in one of the ways in which that may be written."""
    payload = draw(PAYLOADS)
    size = draw(st.sampled_from((b"%x", b"%X", b"0%x", b"%x;ext=1", b"%x;a")))
    return payload, size % len(payload) + b"\r\n" + payload + b"\r\n"


@given(st.lists(chunks(), max_size=8), st.data())
def test_what_passes_as_it_came_is_what_we_would_write(
    written: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """However the chunks are written and cut into reads; and no byte is lost or doubled."""
    whole = b"".join(chunk for _, chunk in written) + LAST
    ends = {0, len(whole), *_ends([chunk for _, chunk in written])}
    cuts = data.draw(st.sets(st.integers(0, len(whole)) | st.sampled_from(sorted(ends))))
    marks = sorted({0, len(whole), *cuts})
    reads = [whole[start:end] for start, end in pairwise(marks)]

    sink = taken([HEAD, *reads] if data.draw(st.booleans()) else _joined([HEAD, *reads]))

    assert sink.ended
    assert sink.lost is None
    assert b"".join(sink.pieces) == b"".join(payload for payload, _ in written)
    for pieces, framed in sink.framed:
        assert framed.lower() == as_we_frame(pieces).lower()


def _joined(reads: list[bytes]) -> list[bytes]:
    """The first two as one."""
    return [b"".join(reads[:2]), *reads[2:]]


def _ends(chunks: list[bytes]) -> list[int]:
    found, at = [], 0
    for chunk in chunks:
        at += len(chunk)
        found.append(at)
    return found


@given(st.lists(st.lists(PAYLOADS, min_size=1, max_size=4), min_size=1, max_size=6))
def test_whole_chunks_pass_as_they_came(reads: list[list[bytes]]) -> None:
    """As servers write them: each read some whole ones, so none is framed anew."""
    sink = taken([HEAD, *map(as_we_frame, reads), LAST])

    assert sink.framed == [(pieces, as_we_frame(pieces)) for pieces in reads]


@given(st.lists(st.lists(PAYLOADS, min_size=1, max_size=4), min_size=1, max_size=6))
def test_whole_chunks_may_come_with_the_head(reads: list[list[bytes]]) -> None:
    """Servers write the head and the first of a stream at once, which says nothing of the rest."""
    first, *rest = map(as_we_frame, reads)

    sink = taken([HEAD + first, *rest, LAST])

    assert sink.framed == [(pieces, as_we_frame(pieces)) for pieces in reads[1:]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"100\r\n" + b"x" * 5, b"x" * 251 + b"\r\n00005\r\nhello\r\n"),
        (b"3\r\nabc\r\n00005\r\n", b"hello\r\n0003\r\nabc\r\n"),
    ],
    ids=["within a payload", "behind a size"],
)
def test_lengths_that_fit_by_chance(first: bytes, second: bytes) -> None:
    """A head's read that ends within a chunk; the next one is as long as whole chunks would be."""
    sink = taken([HEAD + first, second, LAST])

    assert sink.ended
    assert sink.framed == []
