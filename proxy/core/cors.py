"""CORS: whose web pages may read our answers (https://fetch.spec.whatwg.org/#http-cors-protocol).

A browser asks before it lets a page of another origin send what a form could not (the preflight),
and reads in each answer whether the page may see it. Both are the listener's business, never an
engine's: SGLang allows every origin. Credentials in the sense of Fetch (cookies) are never allowed;
a page sends its key as a header, by name.

Pure: header lines in, header lines out, without their ends.
"""

import re
from dataclasses import dataclass
from typing import Final

from proxy.core.http import header
from proxy.core.keys import Headers

MAX_AGE_SECONDS: Final = 600
"""For which a browser need not ask again; Chromium keeps no answer for more than 7,200."""

MAX_ASKED_BYTES: Final = 1024
"""Of the header names that a preflight asks for; what SDKs send is below 500."""

_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+([ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_ANY = b"*"
_EXPOSED = (
    b"access-control-expose-headers: "
    b"x-request-id, x-specswitch-upstream, x-specswitch-reason, retry-after"
)
_VARY = b"vary: Origin"


@dataclass(frozen=True, slots=True)
class Cors:
    """Which origins may read; none: CORS is off, and nothing is ever said of it."""

    origins: frozenset[bytes] = frozenset()
    """As browsers write them, in lower case; or `*`."""

    def lines(self, request: Headers, answer: Headers = ()) -> tuple[bytes, ...]:
        """What an answer to `request` says; `answer` are the headers that it has from an engine.

        With a list, every answer varies by origin, whoever asked: a cache must not give a page the
        answer that was meant for another. An engine's own Vary stays, and ours is a line beside it,
        which RFC 9110 section 5.3 reads as one list; it is left out where the engine says as much.
        """
        if not self.origins:
            return ()
        if _ANY in self.origins:
            return (b"access-control-allow-origin: *", _EXPOSED)
        vary = () if _varies(answer) else (_VARY,)
        origin = self._allowed(request)
        if origin is None:
            return vary
        return (b"access-control-allow-origin: " + origin, _EXPOSED, *vary)

    def preflight(self, request: Headers, methods: tuple[str, ...]) -> tuple[bytes, ...] | None:
        """What the answer to an OPTIONS request says, where `methods` are what its path takes.

        None where it is no preflight, or one of an origin that is not allowed.
        """
        if not self.origins or header(request, b"access-control-request-method") is None:
            return None
        origin = self._allowed(request)
        if origin is None:
            return None
        lines = [
            b"access-control-allow-origin: " + (_ANY if _ANY in self.origins else origin),
            b"access-control-allow-methods: " + ", ".join(methods).encode(),
            b"access-control-max-age: %d" % MAX_AGE_SECONDS,
        ]
        asked = (header(request, b"access-control-request-headers") or b"").strip(b" \t")
        if len(asked) <= MAX_ASKED_BYTES and _NAMES.fullmatch(asked):
            lines.append(b"access-control-allow-headers: " + asked)
        if _ANY not in self.origins:
            lines.append(_VARY)
        return tuple(lines)

    def allows(self, request: Headers) -> bool:
        """Whether `request` says that it comes from an origin whose pages may read our answers."""
        return self._allowed(request) is not None

    def _allowed(self, request: Headers) -> bytes | None:
        """The origin of `request` as it came, None without one that is allowed."""
        origin = header(request, b"origin")
        if origin is None:
            return None
        origin = origin.strip(b" \t")
        return origin if _ANY in self.origins or origin.lower() in self.origins else None


def _varies(answer: Headers) -> bool:
    """Whether an engine's answer already says that it varies by origin, or by everything."""
    named = (v.split(b",") for n, v in answer if n.lower() == b"vary")
    return any(part.strip().lower() in {b"origin", b"*"} for parts in named for part in parts)
