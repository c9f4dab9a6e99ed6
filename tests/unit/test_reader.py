"""A client's bytes to requests: what is read, where each ends, and what is refused."""

import gc
from collections.abc import Iterable

import pytest

from proxy.data.reader import LARGE_BODY, MAX_FEEDS, RequestHead, RequestReader
from proxy.errors import BadRequest, BodyTooLarge, HeadersTooLarge, Refusal

Item = RequestHead | bytes | bytearray | Refusal

GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /generate HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


def reader(*, header: int = 1000, body: int = 1000) -> RequestReader:
    """Return a reader with these limits, in bytes."""
    return RequestReader(max_header_bytes=header, max_body_bytes=body)


def pieces(data: bytes, size: int) -> Iterable[bytes]:
    """Cut `data` into pieces of `size`."""
    return (data[i : i + size] for i in range(0, len(data), size))


def read(source: RequestReader, *data: bytes) -> list[Item]:
    """Feed one after the other, and read all there is to read after each."""
    found = []
    for piece in data:
        source.feed(piece)
        while (item := source.next()) is not None or source.unread:
            found += [] if item is None else [item]
    return found


def told(items: Iterable[Item]) -> list[tuple[str, bytes] | bytes | type[Refusal]]:
    """Items as values: a head as its method and target, a refusal as its kind."""
    values: list[tuple[str, bytes] | bytes | type[Refusal]] = []
    for item in items:
        if isinstance(item, RequestHead):
            values.append((item.method, item.target))
        else:
            values.append(type(item) if isinstance(item, Refusal) else bytes(item))
    return values


def head_of(data: bytes) -> RequestHead:
    """Return the head that `data` begins with."""
    source = reader()
    source.feed(data)
    head = source.next()
    assert isinstance(head, RequestHead)
    return head


# Heads -------------------------------------------------------------------------------------


def test_a_head() -> None:
    """Its parts, headers in order and in the case in which they came, empty ones too."""
    head = head_of(
        b"POST /v1/x?a=b?c HTTP/1.1\r\nHOST: a\r\nX-Empty:\r\nx-Two:  1\r\nX-two: \xe4 2\r\n"
        b"Content-Length: 5\r\nExpect: 100-Continue\r\n\r\n"
    )

    assert (head.method, head.target, head.path) == ("POST", b"/v1/x?a=b?c", b"/v1/x")
    assert head.headers == [
        (b"HOST", b"a"),
        (b"X-Empty", b""),
        (b"x-Two", b"1"),
        (b"X-two", b"\xe4 2"),
        (b"Content-Length", b"5"),
        (b"Expect", b"100-Continue"),
    ]
    assert (head.version, head.keep_alive, head.expects_continue) == ("1.1", True, True)
    assert (head.content_length, head.chunked, head.has_body) == (5, False, True)


@pytest.mark.parametrize(
    ("lines", "length", "chunked", "has_body"),
    [
        (b"", None, False, False),
        (b"Content-Length: 0\r\n", 0, False, False),
        (b"Content-Length: 007 \r\n", 7, False, True),
        (b"Transfer-Encoding: chunked\r\n", None, True, True),
        (b"transfer-encoding: Chunked \r\n", None, True, True),
    ],
)
def test_how_a_body_ends(
    *, lines: bytes, length: int | None, chunked: bool, has_body: bool
) -> None:
    """Counted, chunked, or none."""
    head = head_of(POST + lines + b"\r\n")

    assert (head.content_length, head.chunked, head.has_body) == (length, chunked, has_body)


@pytest.mark.parametrize(
    ("data", "keep_alive"),
    [
        (GET, True),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (POST + b"Content-Length: 1\r\nConnection: close\r\n\r\n", False),
        (POST + b"Connection: keep-alive, close\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", True),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n",
            False,
        ),
    ],
)
def test_whether_the_connection_goes_on(*, data: bytes, keep_alive: bool) -> None:
    """Each version has its own default."""
    assert head_of(data).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("line", "version", "expects"),
    [
        (b"Expect: 100-continue\r\n", b"1.1", True),
        (b"Expect: 100-continue\r\n", b"1.0", False),
        (b"Expect: something-else\r\n", b"1.1", False),
        (b"", b"1.1", False),
    ],
)
def test_whether_a_client_waits_for_continue(*, line: bytes, version: bytes, expects: bool) -> None:
    """Only 100-continue, and only from a client whose version knows it."""
    data = b"POST / HTTP/" + version + b"\r\nHost: a\r\n" + line + b"Content-Length: 1\r\n\r\n"

    assert head_of(data).expects_continue is expects


# Bodies ------------------------------------------------------------------------------------

REQUESTS = [
    (GET, ("GET", b"/livez"), b""),
    (POST + b"\r\n", ("POST", b"/generate"), b""),
    (POST + b"Content-Length: 0\r\n\r\n", ("POST", b"/generate"), b""),
    (POST + b"Content-Length: 4\r\n\r\n\r\n\r\n", ("POST", b"/generate"), b"\r\n\r\n"),
    (POST + b"Content-Length: 2\r\n\r\n{}", ("POST", b"/generate"), b"{}"),
    (POST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx", ("POST", b"/generate"), b"x"),
    (CHUNKED + b"0\r\n\r\n", ("POST", b"/generate"), b""),
    (CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", ("POST", b"/generate"), b"abcde"),
    (CHUNKED + b"4\r\n\r\n\r\n\r\n4\r\n\r\n\r\n\r\n0\r\n\r\n", ("POST", b"/generate"), b"\r\n" * 4),
    (CHUNKED + b"3;a=b;c\r\n\r\n\r\r\n00;d\r\n\r\n", ("POST", b"/generate"), b"\r\n\r"),
    (CHUNKED + b"1\r\nx\r\n0\r\nX-T: 1\r\nHost: b\r\n\r\n", ("POST", b"/generate"), b"x"),
    (b"\r\n\r\n\r\n" + GET, ("GET", b"/livez"), b""),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n", ("GET", b"/"), b""),
    (POST + UPGRADE + b"Content-Length: 3\r\n\r\nabc", ("POST", b"/generate"), b"abc"),
    (
        POST + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
        ("POST", b"/generate"),
        b"abc",
    ),
]


@pytest.mark.parametrize(("data", "head", "body"), REQUESTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_request_at_any_split(
    data: bytes, head: tuple[str, bytes], body: bytes, size: int
) -> None:
    """Its head, then its whole body, once, however it was cut."""
    source = reader()

    assert told(read(source, *pieces(data, size))) == [head, body]
    assert (source.ahead, source.started, source.dead) == (0, False, False)


@pytest.mark.parametrize("size", [1, 2, 3, 64, 100_000])
def test_requests_that_are_sent_ahead(size: int) -> None:
    """They come in order, each with its own body; nothing leaks from one into the next."""
    data = b"".join(request for request, _, _ in REQUESTS * 2)

    found = told(read(reader(), *pieces(data, size)))

    assert found == [part for _, head, body in REQUESTS * 2 for part in (head, body)]


@pytest.mark.parametrize(("data", "head", "body"), REQUESTS)
def test_what_is_ahead_stays_unread(data: bytes, head: tuple[str, bytes], body: bytes) -> None:
    """While one request is answered, not a byte of the next is looked at."""
    following = b"not HTTP at all\r\n\r\n"
    source = reader()
    source.feed(data + following)

    first, second = source.next(), source.next()

    assert told(item for item in (first, second) if item is not None) == [head, body]
    assert source.ahead == len(following)


@pytest.mark.parametrize(
    ("head", "rest"),
    [(POST + b"Content-Length: 5\r\n\r\nab", b"cde"), (CHUNKED + b"5\r\nab", b"cde\r\n0\r\n\r\n")],
)
def test_what_comes_with_the_end_of_a_body_stays_unread(head: bytes, rest: bytes) -> None:
    """As what comes with its beginning does."""
    source = reader()
    read(source, head)
    source.feed(rest + GET[:9])
    source.feed(GET[9:])

    assert source.next() == b"abcde"
    assert source.ahead == len(GET)
    assert told(read(source, b"")) == [("GET", b"/livez"), b""]


def test_trailers_are_no_headers() -> None:
    """They end here, and change nothing of the head that went before."""
    source = reader()
    source.feed(CHUNKED + b"1\r\nx\r\n0\r\nAuthorization: Bearer sk\r\n\r\n")
    head, body = source.next(), source.next()

    assert isinstance(head, RequestHead)
    assert head.headers == [(b"Host", b"a"), (b"Transfer-Encoding", b"chunked")]
    assert body == b"x"


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (b"X-A: 1\r\nX-B: 2\r\n", {b"x-a": b"1", b"x-b": b"2"}),
        (b"X-A: 1\r\nx-a: 2\r\nX-B:\r\n", {b"x-a": b"1", b"x-b": b""}),
    ],
)
def test_the_first_value_of_each_header(lines: bytes, first: dict[bytes, bytes]) -> None:
    """By its name in lower case, however it was written; trailers are none."""
    source = reader()
    (head, _) = read(source, POST + lines + CHUNKED[len(POST) :] + b"0\r\nX-T: 1\r\n\r\n")

    assert isinstance(head, RequestHead)
    assert head.first == {b"host": b"a", b"transfer-encoding": b"chunked", **first}


def test_a_body_in_one_piece_is_not_copied() -> None:
    """What came as it is needed is passed on as it came."""
    body = b"x" * 900
    source = reader()
    source.feed(POST + b"Content-Length: 900\r\n\r\n")
    source.next()
    source.feed(body)

    assert source.next() == body
    assert source.body_bytes == 0


@pytest.mark.parametrize("more", [0, 1])
def test_a_large_body_is_copied_once(more: int) -> None:
    """It is told as it was gathered; the request behind it is read as ever."""
    size = LARGE_BODY + more
    source = reader(body=size)
    source.feed(POST + b"Content-Length: %d\r\n\r\n" % size)
    source.next()
    for at in range(0, size - 1, 1000):
        source.feed(b"x" * min(1000, size - 1 - at))
        assert source.next() is None
    gathered = source._body
    source.feed(b"y" + GET)
    body = source.next()
    assert body == b"x" * (size - 1) + b"y"
    assert (body is gathered) is bool(more)
    assert isinstance(body, bytearray) is bool(more)
    assert isinstance(source.next(), RequestHead)
    assert source.next() == b""


@pytest.mark.parametrize("size", [1, 1000])
def test_nothing_follows_a_last_request(size: int) -> None:
    """However its body came, what is sent behind it is refused."""
    request = POST + b"Connection: close\r\nContent-Length: 20\r\n\r\n" + b"x" * 20
    found = read(reader(), *pieces(request + GET, size))

    assert found[1] == b"x" * 20
    assert isinstance(found[2], BadRequest)


def test_how_much_of_a_body_is_held() -> None:
    """It is told while the body comes in, without the framing of chunks."""
    source = reader()
    read(source, CHUNKED, b"3;a=b\r\nab")

    assert source.body_bytes == 2
    read(source, b"c\r\n2\r\nde")
    assert source.body_bytes == 5


def test_many_small_chunks_weigh_no_more_than_their_body() -> None:
    """What a client cuts into crumbs is held as one."""
    source = reader(body=100_000)
    read(source, CHUNKED, b"2\r\nab\r\n" * 20_000)

    held = gc.get_referents(source)
    assert not any(isinstance(part, list) and len(part) > 100 for part in held)
    assert read(source, b"0\r\n\r\n") == [b"ab" * 20_000]


# Waiting -----------------------------------------------------------------------------------


def test_whether_a_request_has_begun() -> None:
    """From its first byte, fed or read, to its last; between requests it has not."""
    source = reader()

    assert [source.started] == [False]
    source.feed(b"G")
    assert [source.started] == [True]
    assert source.next() is None
    assert [source.started] == [True]
    source.feed(b"ET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert isinstance(source.next(), RequestHead)
    assert [source.started] == [True]
    assert source.next() == b""
    assert [source.started] == [False]


def test_empty_lines_begin_no_request() -> None:
    """An old client's CR LF after its body must not make it look like a dribbler."""
    source = reader()
    read(source, POST + b"Content-Length: 1\r\n\r\nx\r\n")

    assert not source.started
    assert told(read(source, b"\r\n" + GET)) == [("GET", b"/livez"), b""]


def test_nothing_to_read_is_nothing() -> None:
    """Without bytes there is neither a head nor a body."""
    source = reader()

    assert source.next() is None
    read(source, POST + b"Content-Length: 2\r\n\r\n")
    assert source.next() is None


# Refusals ----------------------------------------------------------------------------------

REFUSED = {
    "CL and TE": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE and CL": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    "the same length twice": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nabcde",
    "a signed length": POST + b"Content-Length: +5\r\n\r\nabcde",
    "a negative length": POST + b"Content-Length: -5\r\n\r\nabcde",
    "a hex length": POST + b"Content-Length: 0x5\r\n\r\nabcde",
    "a length with a point": POST + b"Content-Length: 5.0\r\n\r\nabcde",
    "an endless length": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nabcde",
    "no length": POST + b"Content-Length:\r\n\r\nabcde",
    "TE: xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "TE: gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "TE: chunked, gzip": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "TE: chunked, chunked": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "TE twice": POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "TE: identity": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "TE: identity, then chunked": POST
    + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE with a parameter": POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "TE with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "TE empty": POST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
    "TE in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF throughout": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF after a header": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\r\nHost: a\r\n\nGET / HTTP/1.1\r\n\r\n",
    "bare CR in a header": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "obs-fold": b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "obs-fold with a tab": b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tc\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "tab before the colon": POST + b"Content-Length\t: 5\r\n\r\nabcde",
    "space before the first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
    "NUL in a name": b"GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n",
    "NUL in the target": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a control byte in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n",
    "a control byte in the target": b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n",
    "a byte beyond ASCII in the target": b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "absolute-form": b"GET http://a/livez HTTP/1.1\r\nHost: a\r\n\r\n",
    "asterisk-form": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT": b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT to a path": b"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": b"GET / HTTP/0.9\r\nHost: a\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/2 by name": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "the method of the HTTP/2 preface": b"PRI / HTTP/1.1\r\n\r\nHost: a\r\n\r\n",
    "the HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "the HTTP/2 preface as HTTP/1.1": b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a method in lower case": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method of our own": b"GENERATE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "the same Host twice": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "noise": b"hello\r\n\r\n",
}

REFUSED_BODIES = {
    "a size that is none": b"x\r\nabc\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a hex prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "an endless size": b"f" * 20 + b"\r\nabc\r\n0\r\n\r\n",
    "a space after the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "a bare LF after the size": b"3\nabc\r\n0\r\n\r\n",
    "a bare LF after an extension": b"3;a\nabc\r\n0\r\n\r\n",
    "a line end in a quoted extension": b'0;a="\r\n\r\n"\r\n\r\n',
    "a chunk that is too long": b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare LF after the chunk": b"3\r\nabc\n0\r\n\r\n",
    "a bare LF at the end": b"3\r\nabc\r\n0\r\n\nGET / HTTP/1.1\r\n\r\n",
    "a bare LF in a trailer": b"0\r\nX: a\nY: b\r\n\r\n",
    "a trailer without a name": b"0\r\n: a\r\n\r\n",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_bad_head_ends_the_reading(name: str, size: int) -> None:
    """One refusal that says why, and what follows is never read: it could be another's request."""
    source = reader()
    found = read(source, *pieces(REFUSED[name] + GET, size))

    assert told(found) == [BadRequest]
    assert source.dead
    assert read(source, GET) == []
    assert source.ahead == 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_head_behind_a_good_request(name: str) -> None:
    """The good one is read, the bad one refused, and that is all."""
    assert told(read(reader(), GET + REFUSED[name] + GET)) == [
        ("GET", b"/livez"),
        b"",
        BadRequest,
    ]


@pytest.mark.parametrize("name", REFUSED_BODIES)
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("offer", [b"", UPGRADE], ids=["plain", "upgrade"])
def test_a_bad_body_ends_the_reading(name: str, size: int, offer: bytes) -> None:
    """As a bad head does; no part of it is passed on."""
    head = POST + offer + b"Transfer-Encoding: chunked\r\n\r\n"
    source = reader()
    found = read(source, *pieces(head + REFUSED_BODIES[name] + GET, size))

    assert told(found) == [("POST", b"/generate"), BadRequest]
    assert source.dead
    assert read(source, GET) == []


def test_a_refusal_says_why() -> None:
    """In words of ours or the parser's."""
    (refused,) = read(reader(), REFUSED["two Hosts"])
    (unread,) = read(reader(), REFUSED["bare LF throughout"])

    assert isinstance(refused, BadRequest)
    assert refused.message == "exactly one Host header is needed"
    assert isinstance(unread, BadRequest)
    assert unread.message.startswith("not HTTP that is accepted here: ")


@pytest.mark.parametrize(
    "line",
    [
        b"GET /\r\n",
        b"GET /v1/models\r\n",
        b"GET / HTTP/0.9\r\n",
        b"GET / HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"GET / RTSP/1.0\r\n",
        b"SOURCE / ICE/1.0\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_another_version_is_refused_at_its_line(line: bytes, size: int) -> None:
    """A client of HTTP/0.9 sends nothing more, and would wait until its head's deadline."""
    assert told(read(reader(), *pieces(line, size))) == [BadRequest]
    assert told(read(reader(), *pieces(b"\r\n" + GET[:-4], size))) == []


@pytest.mark.parametrize("size", [1, 5, 2000])
def test_another_version_with_a_head_too_large(size: int) -> None:
    """What is wrong first is what is told, however it comes."""
    data = b"GET /\r\nX: " + b"x" * 1500

    assert told(read(reader(), *pieces(data, size))) == [BadRequest]


def test_what_would_follow_a_close_is_not_read() -> None:
    """Whoever says that it closes and sends on is not believed twice."""
    last = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

    assert told(read(reader(), last + GET)) == [("GET", b"/"), b"", BadRequest]


# Limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize(
    ("limit", "kinds"), [(len(GET), [("GET", b"/livez"), b""]), (len(GET) - 1, [HeadersTooLarge])]
)
def test_the_limit_of_a_head(
    size: int, limit: int, kinds: list[tuple[str, bytes] | bytes | type[Refusal]]
) -> None:
    """To the byte, at any split, with its end."""
    source = reader(header=limit)

    assert told(read(source, *pieces(GET, size))) == kinds


def test_the_limit_is_for_each_head() -> None:
    """Neither a body nor the next request counts towards it."""
    request = POST + b"Content-Length: 500\r\n\r\n" + b"x" * 500
    found = read(reader(header=100), request + GET + request)

    assert len(found) == 6
    assert not any(isinstance(item, Refusal) for item in found)


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize("endless", [b"\r\n", b"GET /" + b"a" * 995, GET[:-2] + b"X: b\r\n" * 200])
def test_a_head_without_an_end(size: int, endless: bytes) -> None:
    """It is refused when it is over the limit, not when it ends."""
    data = (endless * 1000)[:1500]

    found = read(reader(), *pieces(data, size))

    assert told(found) == [HeadersTooLarge]


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (POST + b"Content-Length: 9\r\n\r\n" + b"x" * 9, b"x" * 9),
        (POST + b"Content-Length: 10\r\n\r\n" + b"x" * 10, BodyTooLarge),
        (CHUNKED + b"5\r\nxxxxx\r\n4\r\nxxxx\r\n0\r\n\r\n", b"x" * 9),
        (CHUNKED + b"5\r\nxxxxx\r\n5\r\nxxxxx\r\n0\r\n\r\n", BodyTooLarge),
        (CHUNKED + b"ffff\r\n" + b"x" * 10, BodyTooLarge),
    ],
)
def test_the_limit_of_a_body(size: int, data: bytes, kind: bytes | type[Refusal]) -> None:
    """To the byte, at any split, declared or chunked; what is one too many is never held whole."""
    source = reader(body=9)

    assert told(read(source, *pieces(data, size))) == [("POST", b"/generate"), kind]


def test_a_declared_length_is_refused_before_its_body_comes() -> None:
    """The head is enough, and the refusal tells both numbers."""
    source = reader(body=9)
    _, refusal = read(source, POST + b"Content-Length: 10\r\n\r\n")

    assert isinstance(refusal, BodyTooLarge)
    assert refusal.message == "the request body is 10 bytes, 9 bytes are allowed"


def test_a_body_that_is_too_large_before_it_is_wrong() -> None:
    """What came first is what is told."""
    source = reader(body=9)
    _, refusal = read(source, CHUNKED + b"a\r\n" + b"x" * 10 + b"no end")

    assert isinstance(refusal, BodyTooLarge)
    assert refusal.message == "the request body is more, 9 bytes are allowed"


def test_limits_may_change_between_requests() -> None:
    """What comes next is held to those that were told last."""
    source = reader()
    assert told(read(source, GET)) == [("GET", b"/livez"), b""]
    source.keep_to(max_header_bytes=len(POST) + 23, max_body_bytes=3)

    data = POST + b"Content-Length: %d\r\n\r\n"
    assert told(read(source, data % 3 + b"abc")) == [("POST", b"/generate"), b"abc"]
    assert told(read(source, data % 4 + b"abcd")) == [("POST", b"/generate"), BodyTooLarge]
    source = reader()
    source.keep_to(max_header_bytes=len(GET) - 1, max_body_bytes=3)
    assert told(read(source, GET)) == [HeadersTooLarge]


@pytest.mark.parametrize("size", [1, 100, 10_000])
@pytest.mark.parametrize(
    "endless",
    [b"1\r\nx\r\n0\r\nX: " + b"a" * 3000, b"0\r\n" + b"X: a\r\n" * 500, b"1;a=" + b"b" * 3000],
)
def test_trailers_and_extensions_are_bounded_like_a_head(size: int, endless: bytes) -> None:
    """They are no body, so its limit does not see them, and a trailer is held until it ends."""
    source = reader(header=1000, body=1000)

    found = read(source, CHUNKED, *pieces(endless, size))

    assert told(found) == [("POST", b"/generate"), HeadersTooLarge]


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_as_many_trailers_as_a_head_may_have_pass(size: int) -> None:
    """The bound is on what follows the body, not on the framing of a long one."""
    chunks = b"1\r\nx\r\n" * 900
    trailers = b"0\r\n" + b"X: a\r\n" * 160 + b"\r\n"

    found = read(reader(), *pieces(CHUNKED + chunks + trailers, size))

    assert told(found) == [("POST", b"/generate"), b"x" * 900]


# The end -----------------------------------------------------------------------------------


def test_after_the_end_nothing_is_read_or_held() -> None:
    """Closing twice is closing; what still comes is dropped."""
    source = reader()
    source.feed(GET)
    source.close()
    source.close()

    assert read(source, GET) == []
    assert source.ahead == 0


def test_a_closed_reader_holds_no_bytes() -> None:
    """Neither of a body that was coming in nor of what was sent ahead."""
    source = reader()
    read(source, CHUNKED + b"1\r\nx\r\n2\r\nyz\r\n")
    source.feed(b"3\r\n")
    source.close()

    assert not source._pending
    assert not source._first_piece
    assert not source._body
    assert source.body_bytes == 0


def readers() -> int:
    """How many there are; a compiled one cannot be watched by a weak reference."""
    return sum(isinstance(thing, RequestReader) for thing in gc.get_objects())


def test_a_closed_reader_is_free_at_once() -> None:
    """The parser and it hold each other, and connections do not wait for the collector."""
    gc.collect()
    gc.disable()
    try:
        before = readers()
        source = reader()
        read(source, GET + POST)
        assert readers() == before + 1
        source.close()
        del source
        assert readers() == before
    finally:
        gc.enable()


def test_a_body_in_crumbs_is_read_in_turns() -> None:
    """A chunked body that ends a line with each byte is not read in one go, and is read whole."""
    source = reader(body=100_000)
    body = b"\r\n\r\n" * 1000
    source.feed(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    assert isinstance(source.next(), RequestHead)
    turns = 0
    while (item := source.next()) is None:
        assert source.unread
        turns += 1

    assert item == body
    assert turns >= 1000 // MAX_FEEDS - 1
    assert not source.unread
