"""WebSocket: whether a request asks for one as RFC 6455 wants it, and who may.

Pure: header lines in, header lines out, without their ends. A frame is never looked at.

A browser opens a WebSocket to anywhere: there is no preflight, and no page has to be allowed to
read what comes. Where client keys are configured the key decides. Where none are, any page that
somebody behind this endpoint opens would get a tunnel to the engines, so a page of another origin
is refused unless `listen.cors_origins` has it.
"""

import re
from collections.abc import Mapping
from typing import Final

from proxy.core.cors import Cors
from proxy.core.http import named_by_connection
from proxy.core.keys import Headers
from proxy.errors import BadRequest, OriginNotAllowed, Refusal, UpgradeRequired

UPGRADE_LINES: Final = (b"connection: Upgrade", b"upgrade: websocket")
"""What either side is told of the upgrade that the other asks for, or has agreed to."""

_WEBSOCKET = b"websocket"
_VERSION = b"13"
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
"""16 bytes in base64: RFC 6455 section 4.1."""
_SUBPROTOCOL = b"sec-websocket-protocol"
_CARRIES_KEY = b"openai-insecure-api-key."
"""Browsers can set no header on a WebSocket: OpenAI's clients there offer a subprotocol of this
name, with the key behind it, beside the one that they want."""


def upgrade_refusal(
    template: str, version: str, headers: Headers, *, has_body: bool
) -> Refusal | None:
    """Why a GET of a tunnel's path is no valid request for a WebSocket, None if it is one.

    An upgrade is hop-by-hop: one that `Connection` does not name is none, nor is one in HTTP/1.0
    (RFC 9110 section 7.8).
    """
    asks = version == "1.1" and b"upgrade" in named_by_connection(headers)
    if not asks or _WEBSOCKET not in _tokens(headers, b"upgrade"):
        return UpgradeRequired(f"{template} is a WebSocket, and none was asked for")
    if _values(headers, b"sec-websocket-version") != [_VERSION]:
        return UpgradeRequired("version 13 of WebSocket is spoken here (RFC 6455)")
    keys = _values(headers, b"sec-websocket-key")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        return BadRequest("one Sec-WebSocket-Key of 16 bytes in base64 is needed")
    if has_body:
        return BadRequest("a request for a WebSocket has no body")
    return None


def origin_refusal(headers: Headers, first: Mapping[bytes, bytes], cors: Cors) -> Refusal | None:
    """Why the page that asks must not have a tunnel where no key is asked for, None if it may.

    What sends no Origin is no browser. A page of the very host that it asks has come from here, or
    from what stands in front of us and speaks for us.
    """
    origin = first.get(b"origin")
    if origin is None or cors.allows(headers):
        return None
    host = origin.strip(b" \t").partition(b"://")[2]
    if host and host.lower() == first.get(b"host", b"").strip(b" \t").lower():
        return None
    told = origin.decode("ascii", "replace")
    return OriginNotAllowed(
        f"pages of {told} may not open a WebSocket here: neither is the origin in "
        "listen.cors_origins nor are keys asked for"
    )


def offered_key(headers: Headers) -> bytes | None:
    """The key that is offered as a subprotocol, None without one."""
    for token in _tokens(headers, _SUBPROTOCOL, lower=False):
        if token.startswith(_CARRIES_KEY):
            return token.removeprefix(_CARRIES_KEY) or None
    return None


def without_offered_key(headers: Headers) -> list[tuple[bytes, bytes]]:
    """`headers` without the subprotocol that carries a key; lines without one as they came."""
    kept = []
    for name, value in headers:
        passes = value
        if name.lower() == _SUBPROTOCOL and _CARRIES_KEY in value:
            tokens = [token.strip(b" \t") for token in value.split(b",")]
            passes = b", ".join(each for each in tokens if not each.startswith(_CARRIES_KEY))
            if not passes:
                continue
        kept.append((name, passes))
    return kept


def agrees(headers: Headers) -> bool:
    """Whether a 101 with these headers switches to WebSocket, which is all that was asked for."""
    return _tokens(headers, b"upgrade") == [_WEBSOCKET]


def _values(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value.strip(b" \t") for name, value in headers if name.lower() == wanted]


def _tokens(headers: Headers, wanted: bytes, *, lower: bool = True) -> list[bytes]:
    """The tokens of every header called `wanted`."""
    values = b",".join(_values(headers, wanted))
    tokens = [token.strip(b" \t") for token in values.split(b",")]
    return [token.lower() if lower else token for token in tokens if token]
