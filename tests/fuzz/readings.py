"""How h11 reads what is on the wire: the second opinion on both protocols."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import h11

_MOST = 1 << 24
"""h11's own bound on a head is no business of the oracle."""

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True, kw_only=True)
class Request:
    """A whole request."""

    method: bytes
    target: bytes
    version: bytes
    headers: Headers
    body: bytes
    keep_alive: bool


@dataclass(slots=True, kw_only=True)
class Requests:
    """What a strict server reads."""

    whole: list[Request]
    fault: str | None = None
    """Why it refuses what follows."""
    partial: bool = False
    """Whether bytes are left that are no whole request."""
    headed: bool = False
    """Whether it had read the head of what it refuses, or of what is not whole."""


def requests_in(wire: bytes) -> Requests:
    """Read requests until one is refused, or is the last that its connection allows.

    Empty lines in front of a request are passed over, as RFC 9112 section 2.2 asks; h11 refuses
    them.
    """
    found = Requests(whole=[])
    rest = wire.lstrip(b"\r\n")
    try:
        while rest:
            request, rest = _one_request(rest, found)
            if request is None:
                found.partial = True
                break
            found.whole.append(request)
            if not request.keep_alive:
                break
            rest = rest.lstrip(b"\r\n")
    except h11.RemoteProtocolError as fault:
        found.fault = str(fault)
    return found


def _one_request(wire: bytes, found: Requests) -> tuple[Request | None, bytes]:
    """Read one request, and what stands behind it; None if it is not whole."""
    conn = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST)
    conn.receive_data(wire)
    head: h11.Request | None = None
    body: list[bytes] = []
    found.headed = False
    while True:
        event = conn.next_event()
        if isinstance(event, h11.Request):
            head = event
            found.headed = True
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        elif not isinstance(event, h11.EndOfMessage) or head is None:
            return None, b""
        else:
            break
    if f"{conn.their_state}" == "MIGHT_SWITCH_PROTOCOL":  # declined, as we do
        conn.send(h11.Response(status_code=400, headers=[(b"content-length", b"0")]))
    request = Request(
        method=head.method,
        target=head.target,
        version=head.http_version,
        headers=list(head.headers),
        body=b"".join(body),
        keep_alive=conn.their_state is not h11.MUST_CLOSE,
    )
    return request, bytes(conn.trailing_data[0])


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a client reads in answer to one request."""

    status: int | None = None
    """None: not even a head."""
    headers: Headers
    body: bytes = b""
    complete: bool = False
    fault: str | None = None
    """Why it refuses what came."""
    interim: int = 0
    rest: bytes = b""
    """What follows a complete answer."""

    def value(self, name: bytes) -> bytes | None:
        """A header's value."""
        return next((value for each, value in self.headers if each == name), None)


def answer_in(wire: bytes, method: bytes, *, fin: bool) -> Answer:
    """Read the answer to a request of `method`; `fin`: nothing follows, and the end was clean."""
    conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST)
    conn.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    conn.send(h11.EndOfMessage())
    found = Answer(headers=[])
    try:
        conn.receive_data(wire)
        if not _read_on(conn, found) and fin:
            conn.receive_data(b"")
            _read_on(conn, found)
    except h11.RemoteProtocolError as fault:
        if not str(fault).startswith(_CUT_SHORT):
            found.fault = str(fault)
    return found


def switch_in(wire: bytes) -> Answer:
    """Read the answer to the offer of a WebSocket: complete if it is 101, with what follows."""
    conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST)
    offer = [("host", "a"), ("connection", "upgrade"), ("upgrade", "websocket")]
    conn.send(h11.Request(method="GET", target="/", headers=offer))
    conn.send(h11.EndOfMessage())
    found = Answer(headers=[])
    try:
        conn.receive_data(wire)
        while isinstance(event := conn.next_event(), h11.InformationalResponse):
            if event.status_code == 101:
                found.status, found.headers = event.status_code, list(event.headers)
                found.complete, found.rest = True, bytes(conn.trailing_data[0])
                break
            found.interim += 1
    except h11.RemoteProtocolError as fault:
        found.fault = str(fault)
    return found


_CUT_SHORT = (
    "peer closed",
    "peer unexpectedly closed",
    "can't handle event type ConnectionClosed",
)
"""What h11 says where an answer breaks off, or never begins."""


def _read_on(conn: h11.Connection, found: Answer) -> bool:
    """Note what comes; whether that was the end."""
    body = [found.body]
    try:
        while True:
            event = conn.next_event()
            if isinstance(event, h11.InformationalResponse):
                found.interim += 1
            elif isinstance(event, h11.Response):
                found.status, found.headers = event.status_code, list(event.headers)
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                found.complete = True
                found.rest = bytes(conn.trailing_data[0])
                return True
            else:
                return isinstance(event, h11.ConnectionClosed)
    finally:
        found.body = b"".join(body)


_LINES = {
    "illegal request line": re.compile(rb"[!-~]+ +[!-~]+ +HTTP/1\.[01]\Z"),
    "illegal chunk header": re.compile(rb"0+[0-9A-Fa-f]{1,16}(\r\n|;)"),
}
_TRAILERS = (
    "Only Transfer-Encoding: chunked is supported",
    "multiple Transfer-Encoding headers",
    "bad Content-Length",
    "conflicting Content-Length headers",
)


def is_lenient(fault: str | None, *, headed: bool) -> bool:
    """Whether h11 refuses what may be accepted all the same; `headed`: after a head.

    - More than one space between the parts of a request line: RFC 9112 section 3 lets a server take
      it as one, and an engine gets a line of ours.
    - A chunk's size with more than 20 digits, nought in front: the size is the same.
    - Framing headers in trailers: trailers end here, so nobody reads them (RFC 9110 section 6.5.1).
    """
    if fault is None:
        return False
    what, _, line = fault.partition(": bytearray(")
    if what in _LINES:
        return _LINES[what].match(ast.literal_eval(line.removesuffix(")"))) is not None
    return headed and fault.startswith(_TRAILERS)


_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}


def end_to_end(headers: Sequence[tuple[bytes, bytes]], *also: bytes) -> Headers:
    """What has to pass of `headers` (lower case), but for those in `also`.

    Content-Length is left out: the framing of each side is that side's own.
    """
    named = {
        part.strip(b" \t").lower()
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    }
    drop = _HOP_BY_HOP | named | set(also) | {b"content-length"}
    return [(name, value.strip(b" \t")) for name, value in headers if name not in drop]
