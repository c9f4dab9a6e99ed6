"""Header rules: what passes, what is removed, what is added; and which heads are refused.

Bytes in, bytes out. Header names keep the case in which they came: nothing here normalises what it
does not own.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from proxy.core.keys import KEY_HEADERS, Headers
from proxy.core.words import UpstreamName

# RFC 9110 section 7.6.1, and what older peers still send.
HOP_BY_HOP = frozenset(
    {
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
)
_NOT_TO_ENGINE = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"x-request-id",
    b"x-specswitch-attempt",
    b"x-specswitch-route",
}
# Whose pages may read an answer is the listener's business (core/cors): SGLang allows every origin.
_CORS = frozenset(
    {
        b"access-control-allow-credentials",
        b"access-control-allow-headers",
        b"access-control-allow-methods",
        b"access-control-allow-origin",
        b"access-control-allow-private-network",
        b"access-control-expose-headers",
        b"access-control-max-age",
    }
)
_NOT_TO_CLIENT = (
    HOP_BY_HOP
    | _CORS
    | {
        b"x-request-id",
        b"x-specswitch-upstream",
        b"x-specswitch-reason",
    }
)
_NOT_TO_ENGINE_WITHOUT_KEYS = _NOT_TO_ENGINE | KEY_HEADERS
_NOT_TO_CLIENT_WITHOUT_LENGTH = _NOT_TO_CLIENT | {b"content-length"}
_KEEP_ALIVE = frozenset({b"keep-alive", b"Keep-Alive"})
"""A `Connection` that names nothing that would pass: nearly every one there is."""
_ONCE = (b"host", b"content-length", b"transfer-encoding")
_WITHOUT_LENGTH = frozenset({101, 204})
"""What has no body, and no length either: RFC 9110 section 8.6."""
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")

_NONE_REPEATED: Final[frozenset[bytes]] = frozenset()


class Framing(StrEnum):
    """How the end of an answer's body is marked towards the client."""

    NONE = "none"  # no body: HEAD, 204, 304
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"  # by closing the connection: HTTP/1.0 without a length


def first_values(headers: Headers) -> dict[bytes, bytes]:
    """The first value of each name; names in lower case.

    As long as `headers`, unless a name stands there twice.
    """
    return {name.lower(): value for name, value in reversed(headers)}


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The lower-case header names that `Connection` declares hop-by-hop."""
    names: set[bytes] = set()
    for name, value in headers:
        if name.lower() == b"connection":
            names.update(part.strip().lower() for part in value.split(b","))
    return frozenset(names)


def header(headers: Headers, wanted: bytes) -> bytes | None:
    """The value of the first header called `wanted` (lower case), None without one."""
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return None


def transfer_codings(headers: Headers) -> list[bytes]:
    """The values of every Transfer-Encoding header, lower case."""
    return [v.strip().lower() for n, v in headers if n.lower() == b"transfer-encoding"]


def head_fault(
    method: str, target: bytes, version: str, headers: Headers, first: Mapping[bytes, bytes]
) -> str | None:
    """Why this request head is not accepted, None if it is; `first` are its `first_values`.

    The parser has refused malformed syntax before; this is what is well-formed and still has no
    place in front of an engine. A proxy that reads a length another way than the engine does lets
    requests be smuggled (RFC 9112 section 11.2), so anything that two readers could read in two
    ways is refused.
    """
    if not target.startswith(b"/"):
        return "the request target must be a path"
    if version not in {"1.0", "1.1"}:
        return f"HTTP/{version} is not spoken here"
    if method == "CONNECT":
        return "CONNECT is not served"
    return _framing_fault(version, headers, first)


def _framing_fault(version: str, headers: Headers, first: Mapping[bytes, bytes]) -> str | None:
    repeated = _NONE_REPEATED if len(first) == len(headers) else _repeated(headers)
    if b"host" in repeated or (b"host" not in first and version == "1.1"):
        return "exactly one Host header is needed"
    if b"content-length" in repeated:
        return "more than one Content-Length"
    coding = first.get(b"transfer-encoding")
    if coding is None:
        return None
    if b"content-length" in first or version == "1.0":
        return "Transfer-Encoding cannot stand beside Content-Length or in HTTP/1.0"
    if b"transfer-encoding" in repeated or coding.strip().lower() != b"chunked":
        return "chunked is the only transfer coding"
    return None


def _repeated(headers: Headers) -> frozenset[bytes]:
    """Which of the names that frame a request stand there more than once."""
    names = [name.lower() for name, _ in headers]
    return frozenset(name for name in _ONCE if names.count(name) > 1)


class RequestIds:
    """Request ids of our own: 32 hex digits, unique in this process and, by `prefix`, beyond it."""

    __slots__ = ("_count", "_prefix")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._count = 0

    def choose(self, offered: bytes | None) -> bytes:
        """Return `offered` if it is 1 to 128 visible ASCII characters, else a new one.

        White space around it is no part of it, and the parser leaves what stands behind it.
        """
        if offered is not None:
            wish = offered.strip(b" \t")
            if _REQUEST_ID.fullmatch(wish):
                return wish
        self._count += 1
        return b"%s%016x" % (self._prefix, self._count)


def _passing(headers: Headers, dropped: frozenset[bytes]) -> list[bytes]:
    """The lines of those that are neither `dropped` nor named by `Connection`.

    A length passes even if an engine's `Connection` names it: without it the end is not marked.
    """
    lines = []
    for pair in headers:
        name = pair[0].lower()
        if name not in dropped:
            lines.append(b": ".join(pair))
        elif name == b"connection" and pair[1] not in _KEEP_ALIVE:
            gone = dropped | (named_by_connection(headers) - {b"content-length"})
            return [b": ".join(each) for each in headers if each[0].lower() not in gone]
    return lines


def engine_head(
    method: bytes,
    target: bytes,
    headers: Headers,
    *,
    added: Sequence[bytes],
    body_length: int | None,
    drop_keys: bool,
) -> bytes:
    """The head of the request to an engine.

    `added` are whole header lines without their end (Host, our key, the request id). `body_length`
    None sends no length: a request that had no body has none.
    """
    lines = [b"%s %s HTTP/1.1" % (method, target), *added]
    lines += _passing(headers, _NOT_TO_ENGINE_WITHOUT_KEYS if drop_keys else _NOT_TO_ENGINE)
    if body_length is not None:
        lines.append(b"content-length: %d" % body_length)
    lines += (b"", b"")
    return b"\r\n".join(lines)


def client_head(
    status: int,
    phrase: bytes,
    headers: Headers,
    *,
    added: Sequence[bytes],
    framing: Framing,
) -> bytes:
    """The head of an answer to a client, from an engine's; `added` as in `engine_head`.

    Where there can be no body, a length has no place (RFC 9110 section 8.6).
    """
    dropped = _NOT_TO_CLIENT_WITHOUT_LENGTH if status in _WITHOUT_LENGTH else _NOT_TO_CLIENT
    lines = [b"HTTP/1.1 %d %s" % (status, phrase)]
    lines += _passing(headers, dropped)
    lines += added
    if framing is Framing.CHUNKED:
        lines.append(b"transfer-encoding: chunked")
    lines += (b"", b"")
    return b"\r\n".join(lines)


def decision_lines(request_id: bytes, upstream: UpstreamName, reason: str) -> tuple[bytes, ...]:
    """The header lines that tell a client where its request went and why."""
    return (
        b"x-request-id: " + request_id,
        b"x-specswitch-upstream: " + upstream.encode(),
        b"x-specswitch-reason: " + reason.encode(),
    )
