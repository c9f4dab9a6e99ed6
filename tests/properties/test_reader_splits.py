"""How bytes are cut makes no difference to what is read from them."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.data.reader import RequestHead, RequestReader
from proxy.errors import BadRequest, BodyTooLarge, HeadersTooLarge, Refusal

MAX_HEADER, MAX_BODY = 2000, 4000

# Bodies full of what could be taken for framing.
BODY = st.lists(
    st.sampled_from([b"\r\n\r\n", b"\r\n", b"\r", b"\n", b"0\r\n\r\n", b"a", b"{}", b"5;x\r\n"])
    | st.binary(max_size=5),
    max_size=12,
).map(b"".join)
EXTENSION = st.sampled_from([b"", b"", b";a", b";a=b", b';a="b c"'])
TRAILERS = st.sampled_from([b"", b"", b"X-T: 1\r\n", b"X-T: 1\r\nHost: b\r\nX-E:\r\n"])
OFFER = st.sampled_from(
    [
        b"",
        b"",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    ]
)


@dataclass(frozen=True)
class Request:
    """A request on the wire, and what must be read from it."""

    wire: bytes
    target: bytes
    body: bytes


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request with a body that is counted, chunked, empty or not there."""
    target = draw(st.sampled_from([b"/", b"/generate", b"/v1/models?a=b"]))
    head = draw(st.sampled_from([b"", b"", b"\r\n", b"\r\n\r\n\r\n"]))
    head += b"POST " + target + b" HTTP/1.1\r\nHost: a\r\n" + draw(OFFER)
    body = draw(st.none() | BODY)
    if body is None:
        return Request(head + b"\r\n", target, b"")
    if draw(st.booleans()):
        return Request(head + b"Content-Length: %d\r\n\r\n" % len(body) + body, target, body)
    wire, rest = head + b"Transfer-Encoding: chunked\r\n\r\n", body
    while rest:
        size = draw(st.integers(1, len(rest)))
        wire += b"%X" % size + draw(EXTENSION) + b"\r\n" + rest[:size] + b"\r\n"
        rest = rest[size:]
    return Request(wire + b"0" + draw(EXTENSION) + b"\r\n" + draw(TRAILERS) + b"\r\n", target, body)


NOISE = st.lists(
    st.sampled_from(
        [
            b"\r\n",
            b"\r",
            b"\n",
            b"\0",
            b" ",
            b":",
            b";",
            b"0",
            b"0\r\n\r\n",
            b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Host: b\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ]
    )
    | st.binary(min_size=1, max_size=3),
    min_size=1,
    max_size=4,
).map(b"".join)
PIPELINE = st.lists(requests(), min_size=1, max_size=5)
CUTS = st.lists(st.integers(0, 2000), max_size=25)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` at these places, counted round and round."""
    places = sorted({0, len(data), *(place % len(data) for place in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def read(
    pieces: list[bytes], *, max_header: int = MAX_HEADER, max_body: int = MAX_BODY
) -> list[tuple[bytes, bytes] | bytes | type[Refusal]]:
    """Feed piece by piece, and tell what is read: a head, a body, or a kind of refusal."""
    reader = RequestReader(max_header_bytes=max_header, max_body_bytes=max_body)
    found: list[tuple[bytes, bytes] | bytes | type[Refusal]] = []
    for piece in pieces:
        reader.feed(piece)
        while (item := reader.next()) is not None or reader.unread:
            if item is None:
                continue
            if isinstance(item, RequestHead):
                found.append((item.target, b"\n".join(map(b":".join, item.headers))))
            else:
                found.append(type(item) if isinstance(item, Refusal) else bytes(item))
    return found


@given(PIPELINE, CUTS)
def test_the_same_requests_at_any_split(pipeline: list[Request], cuts: list[int]) -> None:
    """Every target and every body, in order, and nothing else."""
    wire = b"".join(request.wire for request in pipeline)

    found = read(cut(wire, cuts))

    heads, bodies = found[::2], found[1::2]
    assert [head[0] for head in heads if isinstance(head, tuple)] == [r.target for r in pipeline]
    assert bodies == [request.body for request in pipeline]
    assert found == read([wire])


@given(PIPELINE, CUTS)
def test_what_is_ahead_stays_unread(pipeline: list[Request], cuts: list[int]) -> None:
    """After each body exactly the bytes of the later requests are left."""
    wire = b"".join(request.wire for request in pipeline)
    reader = RequestReader(max_header_bytes=MAX_HEADER, max_body_bytes=MAX_BODY)
    pieces = cut(wire, cuts)
    fed = consumed = 0
    for request in pipeline:
        consumed += len(request.wire)
        got: list[object] = []
        while len(got) < 2:
            item = reader.next()
            if item is None:
                piece = pieces.pop(0)
                fed += len(piece)
                reader.feed(piece)
            else:
                got.append(item)
        assert reader.ahead == fed - consumed


@given(requests(), NOISE, CUTS, st.integers(0, 200))
def test_noise_is_read_alike_at_any_split(
    request: Request, noise: bytes, cuts: list[int], place: int
) -> None:
    """Bytes put somewhere into a request give the same requests and the same refusal."""
    wire = (
        request.wire[:place] + noise + request.wire[place:] + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    )

    assert read(cut(wire, cuts)) == read([wire]) == read(cut(wire, list(range(len(wire)))))


@given(requests(), NOISE, CUTS, st.integers(0, 200))
def test_nothing_follows_a_refusal(
    request: Request, noise: bytes, cuts: list[int], place: int
) -> None:
    """Where one is told it is the last thing told, whatever else is sent."""
    wire = request.wire[:place] + noise + request.wire[place:] + request.wire * 2

    found = read(cut(wire, cuts))

    assert BadRequest not in found[:-1]


@given(requests(), CUTS, st.integers(20, 300), st.integers(0, 60))
def test_limits_hold_at_any_split(
    request: Request, cuts: list[int], max_header: int, max_body: int
) -> None:
    """A head or a body over its limit is refused, one within it is not, however it was cut."""
    whole = read([request.wire], max_header=max_header, max_body=max_body)
    parts = read(cut(request.wire, cuts), max_header=max_header, max_body=max_body)

    assert parts == whole
    end = request.wire.index(b"\r\n\r\n", request.wire.index(b"POST")) + 4
    if end > max_header:
        assert whole == [HeadersTooLarge]
    elif len(request.body) > max_body:
        assert whole[1:] == [BodyTooLarge]
    else:
        assert whole[1:] == [request.body]
