"""A body that passes in the framing it came in: only where that is the framing we would write."""

from itertools import combinations, pairwise

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

    def engine_tunnelled(self, data: bytes) -> None:
        """Nor is there a tunnel."""

    def engine_slow(self) -> None:
        """Nor this."""

    def engine_caught_up(self) -> None:
        """Nor this."""

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
    whole = HEAD + b"".join(chunk for _, chunk in written) + LAST
    ends = {0, len(whole), *_ends([HEAD, *(chunk for _, chunk in written)])}
    near = st.integers(len(HEAD) - 5, min(len(HEAD) + 30, len(whole)))
    cut = st.integers(0, len(whole)) | near | st.sampled_from(sorted(ends))
    marks = sorted({0, len(whole), *data.draw(st.sets(cut))})

    sink = taken([whole[start:end] for start, end in pairwise(marks)])

    assert sink.ended
    assert sink.lost is None
    assert b"".join(sink.pieces) == b"".join(payload for payload, _ in written)
    for pieces, framed in sink.framed:
        assert framed.lower() == as_we_frame(pieces).lower()


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"100\r\n" + b"x" * 5, b"x" * 251 + b"\r\n00005\r\nhello\r\n"),
        (b"104\r\n" + b"x" * 5 + b"\r\n\r\n", b"x" * 251 + b"\r\n00005\r\nhello\r\n"),
        (b"3\r\nabc\r\n00005\r\n", b"hello\r\n0003\r\nabc\r\n"),
        (b"00005\r\n", b"hello\r\n0003\r\nabc\r\n"),
    ],
    ids=["in a payload", "in one, as if it were the head's end", "behind a size", "no payload yet"],
)
def test_lengths_that_fit_by_chance(first: bytes, second: bytes) -> None:
    """What came with the head ends within a chunk; the next read is as long as whole ones are."""
    sink = taken([HEAD + first, second, LAST])

    assert sink.ended
    assert sink.framed == []


def test_every_cut_of_a_small_answer() -> None:
    """In up to four reads, from the last bytes of the head on."""
    pieces = [b"hello", b"world"]
    whole = HEAD + as_we_frame(pieces) + LAST
    for cuts in combinations(range(len(HEAD) - 6, len(whole)), 3):
        sink = taken([whole[start:end] for start, end in pairwise((0, *cuts, len(whole)))])

        assert sink.ended
        assert b"".join(sink.pieces) == b"".join(pieces)
        assert all(framed == as_we_frame(them) for them, framed in sink.framed), cuts


@pytest.mark.parametrize(
    "wrong",
    [b"5\r\nhelloxy", b"5\rhello\r\n", b"\r\nhello\r\n", b"-5\r\nhello\r\n", b"0x5\r\nhello\r\n"],
)
def test_what_is_no_chunk_does_not_pass(wrong: bytes) -> None:
    """Nearly one: it is not for the client to find out."""
    sink = taken([HEAD, as_we_frame([b"abc"]), wrong])

    assert sink.lost is not None
    assert sink.framed == [([b"abc"], as_we_frame([b"abc"]))]
