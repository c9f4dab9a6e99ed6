"""The files of the status page, as they are shipped in the package, with what goes out beside them.

The page loads nothing from elsewhere and runs no script but its own. Nothing of it is made at run
time, so nothing of the pair's state can become a part of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

_NAMES = {
    "/": "index.html",
    "/page/page.css": "page.css",
    "/page/page.js": "page.js",
    "/page/control.js": "control.js",
    "/page/history.js": "history.js",
    "/page/plots.js": "plots.js",
    "/page/words.js": "words.js",
    "/page/icon.svg": "icon.svg",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",  # who is framed can be made to click
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",  # text stays text: there is no way to make markup of it
)
HEADERS = {
    # Asked for again each time, and mostly answered with 304: after an update no old script is
    # left in front of a new specswitch.
    "cache-control": "no-cache",
    "content-security-policy": "; ".join(_POLICY),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""OWASP's secure headers, as far as they mean something without TLS."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page."""

    path: str
    """Where it is served."""
    body: bytes
    headers: dict[str, str]

    def is_known_to(self, tags: str | None) -> bool:
        """Whether an If-None-Match names it: RFC 9110 section 13.1.2."""
        named = [tag.strip().removeprefix("W/") for tag in (tags or "").split(",")]
        return "*" in named or self.headers["etag"] in named


def page_files() -> Iterator[PageFile]:
    """All of them, read from the package."""
    folder = files("proxy.control") / "page"
    for path, name in _NAMES.items():
        body = (folder / name).read_bytes()
        own = {"etag": f'"{sha256(body).hexdigest()[:32]}"', "content-type": _TYPES[_kind(name)]}
        yield PageFile(path, body, {**HEADERS, **own})


def _kind(name: str) -> str:
    return name.rpartition(".")[2]
