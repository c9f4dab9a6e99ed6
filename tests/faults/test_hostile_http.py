"""What a client must not get past us: ambiguous framing, odd targets, other protocols.

Each attempt carries a whole second request behind it, which no reader may take for one: it is
answered once, the connection ends, and neither engine has heard of it.
"""

import asyncio
import hashlib
import re

import pytest

from tests.harness.client import RawClient, get, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import chunk

SMUGGLED = post("/generate", {"text": "smuggled"})
"""What stands behind each attempt."""

HOST = b"Host: a\r\n"
POST = b"POST /generate HTTP/1.1\r\n" + HOST
LAST = b"0\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.1 \d{3} [A-Za-z ]+")
CLOSING = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def line(first: bytes, *headers: bytes) -> bytes:
    """A request without a body."""
    return b"\r\n".join((first, *headers, b"", b""))


FRAMING = {
    "CL and TE": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST,
    "TE and CL": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + LAST,
    "TE and CL 0": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + LAST,
    "two CL": POST + b"Content-Length: 4\r\nContent-Length: 0\r\n\r\nabcd",
    "one CL twice": POST + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    "CL of other case": POST + b"Content-Length: 4\r\ncontent-length: 0\r\n\r\nabcd",
    "a list of CL": POST + b"Content-Length: 4, 4\r\n\r\nabcd",
    "a signed CL": POST + b"Content-Length: +4\r\n\r\nabcd",
    "a negative CL": POST + b"Content-Length: -1\r\n\r\nabcd",
    "a CL with a space in it": POST + b"Content-Length: 4 4\r\n\r\nabcd",
    "a CL in hex": POST + b"Content-Length: 0x4\r\n\r\nabcd",
    "a CL with an underscore": POST + b"Content-Length: 1_0\r\n\r\nabcd",
    "a CL in other digits": POST + "Content-Length: \u0664\r\n\r\nabcd".encode(),
    "a CL in quotes": POST + b'Content-Length: "4"\r\n\r\nabcd',
    "a CL beyond 64 bits": POST + b"Content-Length: 18446744073709551620\r\n\r\nabcd",
    "a CL of nothing": POST + b"Content-Length: \r\n\r\nabcd",
    "a CL before a vertical tab": POST + b"Content-Length: 4\x0b\r\n\r\nabcd",
    "a space before its colon": POST + b"Content-Length : 4\r\n\r\nabcd",
    "a tab before its colon": POST + b"Transfer-Encoding\t: chunked\r\n\r\n" + LAST,
    "TE identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "TE gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + LAST,
    "TE xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + LAST,
    "TE chunkedx": POST + b"Transfer-Encoding: chunkedx\r\n\r\n" + LAST,
    "TE chunked, chunked": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + LAST,
    "TE chunked twice": POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + LAST,
    "TE identity, then chunked": POST
    + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n"
    + LAST,
    "TE after a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + LAST,
    "TE after a NUL": POST + b"Transfer-Encoding: \x00chunked\r\n\r\n" + LAST,
    "TE in quotes": POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + LAST,
    "TE in a folded line": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + LAST,
    "TE behind a bare LF": POST + b"X: a\nTransfer-Encoding: chunked\r\n\r\n" + LAST,
    "TE behind a bare CR": POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n" + LAST,
    "TE in HTTP/1.0": b"POST /generate HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST,
}
CHUNKS = {
    "a negative size": b"-1\r\na\r\n" + LAST,
    "a hex prefix": b"0x1\r\na\r\n" + LAST,
    "a size beyond 64 bits": b"10000000000000001\r\na\r\n" + LAST,
    "no size": b"\r\na\r\n" + LAST,
    "a size that is none": b"g\r\na\r\n" + LAST,
    "a space before the size": b" 1\r\na\r\n" + LAST,
    "a space after the size": b"1 \r\na\r\n" + LAST,
    "a bare LF after the size": b"1\na\r\n" + LAST,
    "a bare CR after the size": b"1\ra\r\n" + LAST,
    "a bare LF after an extension": b"1;a=b\na\r\n" + LAST,
    "a bare CR in an extension": b"1;a\rb\r\na\r\n" + LAST,
    "a line end in a quoted extension": b'1;a="\r\n"\r\na\r\n' + LAST,
    "no line end after the data": b"1\r\na" + LAST,
    "two bytes too many": b"1\r\naXX\r\n" + LAST,
    "a bare LF after the data": b"1\r\na\n" + LAST,
    "a bare LF at the end": b"1\r\na\r\n0\r\n\n",
    "a bare LF in a trailer": b"1\r\na\r\n0\r\nX: y\n\r\n",
    "a length in a trailer": b"1\r\na\r\n0\r\nContent-Length: 9\r\n\r\n",
    "a trailer that is folded": b"1\r\na\r\n0\r\nX: y\r\n z\r\n\r\n",
}
HEADS = {
    "bare LF throughout": b"GET /livez HTTP/1.1\nHost: a\n\n",
    "a bare LF at the end": b"GET /livez HTTP/1.1\r\nHost: a\r\n\n",
    "a folded line": line(b"GET /livez HTTP/1.1", b"Host: a", b"X: b\r\n c"),
    "a space before the first header": line(b"GET /livez HTTP/1.1", b" Host: a"),
    "a space before a colon": line(b"GET /livez HTTP/1.1", b"Host : a"),
    "a header without a name": line(b"GET /livez HTTP/1.1", b"Host: a", b": b"),
    "a header without a colon": line(b"GET /livez HTTP/1.1", b"Host: a", b"X"),
    "NUL in a name": line(b"GET /livez HTTP/1.1", b"Host: a", b"X\0: b"),
    "NUL in a value": line(b"GET /livez HTTP/1.1", b"Host: a", b"X: b\0"),
    "a control byte in a name": line(b"GET /livez HTTP/1.1", b"Host: a", b"X\x01: b"),
    "a control byte in a value": line(b"GET /livez HTTP/1.1", b"Host: a", b"X: \x08"),
    "DEL in a value": line(b"GET /livez HTTP/1.1", b"Host: a", b"X: \x7f"),
    "a byte beyond ASCII in a name": line(b"GET /livez HTTP/1.1", b"Host: a", b"X\xe9: b"),
    "no Host": line(b"GET /livez HTTP/1.1"),
    "two Hosts": line(b"GET /livez HTTP/1.1", b"Host: a", b"Host: b"),
    "one Host twice": line(b"GET /livez HTTP/1.1", b"Host: a", b"Host: a"),
}
LINES = {
    "absolute-form": b"GET http://evil/livez HTTP/1.1",
    "absolute-form of ours": b"POST http://a/generate HTTP/1.1",
    "another scheme": b"GET file:///etc/passwd HTTP/1.1",
    "CONNECT": b"CONNECT evil:443 HTTP/1.1",
    "CONNECT to a path": b"CONNECT /generate HTTP/1.1",
    "authority-form": b"GET evil:443 HTTP/1.1",
    "asterisk-form": b"OPTIONS * HTTP/1.1",
    "no target": b"GET  HTTP/1.1",
    "no slash": b"GET livez HTTP/1.1",
    "a space in the target": b"GET /li vez HTTP/1.1",
    "a tab in the target": b"GET /li\tvez HTTP/1.1",
    "NUL in the target": b"GET /livez\0 HTTP/1.1",
    "a control byte in the target": b"GET /livez\x01 HTTP/1.1",
    "DEL in the target": b"GET /livez\x7f HTTP/1.1",
    "a byte beyond ASCII in the target": b"GET /livez\xc3\xa9 HTTP/1.1",
    "HTTP/0.9": b"GET /livez",
    "HTTP/0.9 by name": b"GET /livez HTTP/0.9",
    "HTTP/1.2": b"GET /livez HTTP/1.2",
    "HTTP/2.0": b"GET /livez HTTP/2.0",
    "HTTP/3": b"GET /livez HTTP/3",
    "HTTP/11.1": b"GET /livez HTTP/11.1",
    "http in lower case": b"GET /livez http/1.1",
    "RTSP": b"GET /livez RTSP/1.0",
    "RTSP with a body": b"POST /generate RTSP/1.0",
    "ICE": b"SOURCE /livez ICE/1.0",
    "words behind the version": b"GET /livez HTTP/1.1 x",
    "a method in lower case": b"get /livez HTTP/1.1",
    "an unknown method": b"FETCH /livez HTTP/1.1",
    "a very long method": b"G" * 10_000 + b" /livez HTTP/1.1",
    "a line that only ends": b"hello",
}
PROTOCOLS = {
    "the HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 100,
    "an SSH greeting": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a Redis command": b"*1\r\n$4\r\nPING\r\n",
    "noise": bytes(range(256)),
}
BAD = {
    **FRAMING,
    **{f"chunks: {name}": CHUNKED + body for name, body in CHUNKS.items()},
    **{f"head: {name}": head for name, head in HEADS.items()},
    **{f"line: {name}": line(first, b"Host: a") for name, first in LINES.items()},
    **PROTOCOLS,
}


async def said(client: RawClient) -> list[bytes]:
    """The status lines of all that comes until the connection ends."""
    async with asyncio.timeout(5):
        whole = await client.reader.read(-1)
    return STATUS_LINE.findall(whole)


async def attempt(it: Rig, data: bytes) -> str:
    """What is wrong with how `data` is answered; nothing if it is refused as it should be."""
    client = await it.client()
    client.send(data + SMUGGLED + get("/livez"))
    try:
        lines = await said(client)
    except TimeoutError:
        return "the connection stays open"
    except ConnectionError:
        return "the answer was destroyed by a reset"
    if lines != [b"HTTP/1.1 400 Bad Request"]:
        return f"answered {lines}"
    engines = it.spec.requests + it.base.requests
    return f"an engine got {engines}" if engines else ""


async def test_what_is_ambiguous_is_refused_once_and_for_all() -> None:
    """400 at once, the connection ends, and nothing behind it is a request (CVE-2025-43859)."""
    async with rig() as it:
        wrong = {name: what for name, data in BAD.items() if (what := await attempt(it, data))}

        assert wrong == {}
        rejected = {"upstream": "none", "outcome": "rejected"}
        heads = sum(not name.startswith("chunks: ") for name in BAD)
        assert it.metric("requests_total", endpoint="other", **rejected) == heads
        assert it.metric("requests_total", endpoint="/generate", **rejected) == len(CHUNKS)


async def test_behind_a_good_request_on_the_same_connection() -> None:
    """Where trust has been built up first: the good one is served, and then no more."""
    wrong: dict[str, object] = {}
    async with rig() as it:
        for count, (name, data) in enumerate(BAD.items(), 1):
            client = await it.client()
            client.send(post("/v1/tokenize", {}) + data + SMUGGLED)
            lines = await said(client)
            if lines != [b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request"]:
                wrong[name] = lines
            if len(it.base.requests) != count or it.spec.requests:
                wrong[name] = it.base.requests[count:] + it.spec.requests

    assert wrong == {}


@pytest.mark.parametrize(
    "first", [b"GET /livez\r\n", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01\x02\x00"]
)
async def test_other_protocols_need_not_wait(first: bytes) -> None:
    """HTTP/0.9, HTTP/2 without an upgrade, TLS: refused at what they begin with, not at a deadline.

    sgl-project/sglang#38735: meshes speak h2c, and to hang is worse than to say no.
    """
    async with rig() as it:
        client = await it.client()
        client.send(first)
        response = await asyncio.wait_for(client.response(), 2)

        assert (response.status, response.code) == (400, "bad_request")
        assert response.header("connection") == "close"
        assert await client.at_end()


GOOD = {
    "a length": (b"Content-Length: 5\r\n\r\nhello", b"hello"),
    "a length with zeros in front": (b"Content-Length: 005\r\n\r\nhello", b"hello"),
    "white space around the length": (b"Content-Length: \t 5 \t\r\n\r\nhello", b"hello"),
    "a length of nought": (b"Content-Length: 0\r\n\r\n", b""),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "chunked in capitals": (b"TRANSFER-ENCODING: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "a tab before it": (b"Transfer-Encoding:\tchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "a size with zeros in front": (
        b"Transfer-Encoding: chunked\r\n\r\n0000000005\r\nhello\r\n000\r\n\r\n",
        b"hello",
    ),
    "a size in capitals": (
        b"Transfer-Encoding: chunked\r\n\r\nA\r\nhellohello\r\n0\r\n\r\n",
        b"hellohello",
    ),
    "extensions": (
        b'Transfer-Encoding: chunked\r\n\r\n5;a=b;c="d"\r\nhello\r\n0;e\r\n\r\n',
        b"hello",
    ),
    "trailers": (
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 99\r\n\r\n",
        b"hello",
    ),
    "a request within the body": (
        b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
        SMUGGLED,
    ),
    "a request within a chunk": (
        b"Transfer-Encoding: chunked\r\n\r\n" + chunk(SMUGGLED) + LAST,
        SMUGGLED,
    ),
    "an offer of h2c": (
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
}


async def test_what_is_accepted_is_one_request() -> None:
    """Odd and unambiguous: one request, its very body, a length of ours; what follows follows."""
    async with rig(policy__control="base") as it:
        for name, (rest, body) in GOOD.items():
            client = await it.client()
            client.send(POST + rest + CLOSING)
            lines = await said(client)
            request = it.base.requests.pop()

            assert lines == [b"HTTP/1.1 200 OK"] * 2, name
            assert it.base.requests == [], name
            assert request.body == body, name
            assert request.line == "POST /generate HTTP/1.1", name
            assert request.header("content-length") == str(len(body)), name
            for gone in ("transfer-encoding", "upgrade", "connection"):
                assert request.header(gone) is None, name


def test_every_attempt_is_another() -> None:
    """A table that repeats itself tests less than it seems to."""
    digests = {hashlib.sha256(data).digest() for data in BAD.values()}

    assert len(digests) == len(BAD)
    assert len(BAD) >= 100
