"""CORS as values: which lines an answer gets, which preflights are answered."""

import pytest

from proxy.core.cors import MAX_ASKED_BYTES, Cors
from proxy.core.keys import Headers

CHAT = b"https://chat.example"
OFF = Cors()
ANY = Cors(frozenset({b"*"}))
SOME = Cors(frozenset({CHAT, b"http://localhost:3000"}))
EXPOSED = (
    b"access-control-expose-headers: "
    b"x-request-id, x-specswitch-upstream, x-specswitch-reason, retry-after"
)
VARY = b"vary: Origin"
ALLOWS_CHAT = b"access-control-allow-origin: " + CHAT
ALLOWS_ANY = b"access-control-allow-origin: *"


def of(origin: bytes, **more: bytes) -> Headers:
    """The headers of a request of a page of `origin`."""
    named = [(name.replace("_", "-").encode(), value) for name, value in more.items()]
    return [(b"Host", b"a"), (b"Origin", origin), *named]


def asking(origin: bytes, headers: bytes | None = None, method: bytes = b"POST") -> Headers:
    """Those of a preflight."""
    asked = {} if headers is None else {"Access_Control_Request_Headers": headers}
    return of(origin, Access_Control_Request_Method=method, **asked)


def test_off_it_says_nothing() -> None:
    """No line on any answer, no preflight answered."""
    assert OFF.lines(of(CHAT)) == ()
    assert OFF.preflight(asking(CHAT), ("POST",)) is None


@pytest.mark.parametrize("origin", [CHAT, b"HTTPS://Chat.Example", b"http://localhost:3000"])
def test_an_origin_of_the_list(origin: bytes) -> None:
    """It is named as it came, whatever its case; and the answer varies."""
    allowed = b"access-control-allow-origin: " + origin
    assert SOME.lines(of(origin + b" ")) == (allowed, EXPOSED, VARY)


@pytest.mark.parametrize(
    "origin",
    [
        b"null",
        b"",
        b"*",
        b"http://chat.example",
        b"https://chat.example:444",
        b"https://chat.example.evil",
        b"https://evil.example/https://chat.example",
        b"https://chat.example, https://evil.example",
        b"http://localhost",
        b"\xff",
    ],
)
def test_no_origin_of_the_list(origin: bytes) -> None:
    """It gets no permission, and a cache is told that another may."""
    assert SOME.lines(of(origin)) == (VARY,)
    assert SOME.preflight(asking(origin), ("POST",)) is None


def test_no_page_at_all() -> None:
    """An SDK sends no Origin; what it gets may still be kept for nobody else."""
    assert SOME.lines([(b"Host", b"a")]) == (VARY,)


def test_any_origin() -> None:
    """One answer for all: it does not vary."""
    for request in ((), of(CHAT), of(b"null")):
        assert ANY.lines(request) == (ALLOWS_ANY, EXPOSED)


@pytest.mark.parametrize(
    ("vary", "added"),
    [
        (b"Accept-Encoding", (VARY,)),
        (b"Accept-Encoding, origin", ()),
        (b"*", ()),
        (b"x-origin", (VARY,)),
        (b"", (VARY,)),
    ],
)
def test_an_engines_vary_is_not_doubled(vary: bytes, added: tuple[bytes, ...]) -> None:
    """What it says already is not said again."""
    lines = SOME.lines(of(CHAT), [(b"Content-Type", b"text/plain"), (b"Vary", vary)])
    assert lines == (ALLOWS_CHAT, EXPOSED, *added)


def test_a_preflight() -> None:
    """What the path takes, what was asked for, and for how long."""
    asked = b"authorization, content-type,x-stainless-lang"
    assert SOME.preflight(asking(CHAT, asked), ("GET", "HEAD")) == (
        ALLOWS_CHAT,
        b"access-control-allow-methods: GET, HEAD",
        b"access-control-max-age: 600",
        b"access-control-allow-headers: " + asked,
        VARY,
    )


def test_a_preflight_of_any() -> None:
    """It says `*`, and nothing of credentials."""
    assert ANY.preflight(asking(b"null"), ("POST",)) == (
        ALLOWS_ANY,
        b"access-control-allow-methods: POST",
        b"access-control-max-age: 600",
    )


@pytest.mark.parametrize("cors", [ANY, SOME])
def test_what_is_no_preflight(cors: Cors) -> None:
    """Without a method that is asked for, or without an origin, it is a plain OPTIONS."""
    assert cors.preflight(of(CHAT), ("POST",)) is None
    assert cors.preflight([(b"Access-Control-Request-Method", b"POST")], ("POST",)) is None


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"*()",
        b"a b",
        b"a,,b",
        b"a;b",
        b"a: b",
        b"caf\xc3\xa9",
        b"a" * (MAX_ASKED_BYTES + 1),
    ],
)
def test_header_names_that_are_none(asked: bytes) -> None:
    """They are not sent back."""
    lines = SOME.preflight(asking(CHAT, asked), ("POST",)) or ()
    assert lines
    assert not any(line.startswith(b"access-control-allow-headers") for line in lines)


def test_as_many_names_as_fit() -> None:
    """The bound is on bytes."""
    asked = b"a" * MAX_ASKED_BYTES
    lines = SOME.preflight(asking(CHAT, asked), ("POST",)) or ()
    assert b"access-control-allow-headers: " + asked in lines
