"""Who may change something through the admin listener.

It is asked of every method but GET and HEAD, before any route is looked for, so a route that is
added later cannot forget it. The Host must be one of ours, because a web page can make its own name
lead to 127.0.0.1; an Origin must be that Host, and the body must be JSON, because a page of another
origin can send neither without asking first.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024
"""A change is a line of JSON."""
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^\[\]:/@?#\s]+))(?::\d+)?\Z")


class Fault(BaseModel):
    """What is wrong, in the shape that OpenAI's clients read."""

    message: str
    type: str
    param: str | None
    code: str


class FaultBody(BaseModel):
    """An answer that is a refusal."""

    error: Fault


def fault(status: int, message: str, code: str, *, param: str | None = None) -> Response:
    """A refusal of the admin listener."""
    kind = "api_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004 - RFC 9110
    body = FaultBody(error=Fault(message=message, type=kind, param=param, code=code))
    return JSONResponse(body.model_dump(), status_code=status)


class Guard:
    """Lets through what only reads, and what is meant to change something."""

    def __init__(
        self, app: ASGIApp, *, token: Callable[[], str | None], known_hosts: Iterable[str]
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.lower() for host in known_hosts} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or refuse it."""
        refusal = None
        if scope["type"] == "http" and scope["method"] not in {"GET", "HEAD"}:
            refusal = self._refusal(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        host = _only(headers, "host")
        if host is None or not self._is_known(host):
            return fault(403, "this Host is not known; see listen.admin_hosts", "unknown_host")
        if headers.getlist("origin") and not _is_same(_only(headers, "origin"), host):
            return fault(403, "a page of another origin may not change anything", "other_origin")
        token = self._token()
        if token is not None and not _is_bearer(_only(headers, "authorization"), token.encode()):
            answer = fault(401, "the admin token is needed: Authorization: Bearer", "invalid_token")
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        kind = (_only(headers, "content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return fault(415, "Content-Type must be application/json", "unsupported_media_type")
        if _is_long(_only(headers, "content-length")):
            return fault(413, f"at most {MAX_BODY_BYTES} bytes are taken", "body_too_large")
        return None

    def _is_known(self, host: str) -> bool:
        found = _HOST.match(host)
        if found is None:
            return False
        name = found["v6"] or found["name"]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self._hosts
        return True


def _only(headers: Headers, name: str) -> str | None:
    """The value of a header that is there once; None for none and for several."""
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else None


def _is_same(origin: str | None, host: str) -> bool:
    """Whether a page of `origin` came from `host`; browsers leave default ports out of both."""
    scheme, _, rest = (origin or "").partition("://")
    return scheme in {"http", "https"} and rest.lower() == host.lower()


def _is_bearer(header: str | None, token: bytes) -> bool:
    scheme, _, given = (header or "").partition(" ")
    # latin-1 gives back the bytes that were sent. Digests, because the time of a comparison still
    # tells how long the two are.
    same = compare_digest(_digest(given.strip().encode("latin-1")), _digest(token))
    return same and scheme.lower() == "bearer"


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


def _is_long(length: str | None) -> bool:
    """Whether a Content-Length is too much, or no number at all."""
    if length is None:
        return False
    digits = length.lstrip("0") or length[:1]
    longer = len(digits) > len(str(MAX_BODY_BYTES))  # before int(), which is slow on endless ones
    return longer or not digits.isdecimal() or int(digits) > MAX_BODY_BYTES
