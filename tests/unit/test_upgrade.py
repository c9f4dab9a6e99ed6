"""WebSocket's head rules on values: what must be said, whose page it may be, where a key stands."""

import pytest

from proxy.core.cors import Cors
from proxy.core.http import first_values
from proxy.core.upgrade import (
    agrees,
    offered_key,
    origin_refusal,
    upgrade_refusal,
    without_offered_key,
)
from tests.harness.tunnels import OFFER

PROTOCOL = b"Sec-WebSocket-Protocol"
KEY = b"openai-insecure-api-key.sk-1"


def lines(**changed: str) -> list[tuple[bytes, bytes]]:
    """A fitting offer with some headers changed; `_` stands for `-`."""
    headers = {**OFFER, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def code(headers: list[tuple[bytes, bytes]], version: str = "1.1", *, body: bool = False) -> str:
    """The code of the refusal, `""` for none."""
    refusal = upgrade_refusal("/v1/realtime", version, headers, has_body=body)
    return "" if refusal is None else refusal.code


def test_a_fitting_offer() -> None:
    """That of RFC 6455 section 1.3, also over several lines."""
    assert code(lines()) == ""
    assert code([*lines(), (b"connection", b"keep-alive"), (b"upgrade", b"h2c")]) == ""
    assert (
        code(lines(Connection="keep-alive , UPGRADE", Upgrade="h2c,WebSocket/13, websocket")) == ""
    )


def test_what_is_none() -> None:
    """The two ways in which it is none, and what it must not have."""
    assert code(lines(), "1.0") == "upgrade_required"
    assert code(lines(Upgrade="websocket/13")) == "upgrade_required"
    assert code(lines(Connection="close")) == "upgrade_required"
    assert code(lines(Sec_WebSocket_Version="12")) == "upgrade_required"
    assert code(lines(Sec_WebSocket_Key="x")) == "bad_request"
    assert code(lines(), body=True) == "bad_request"


@pytest.mark.parametrize(
    ("origin", "host", "cors", "refused"),
    [
        (None, b"a", Cors(), False),
        (b"http://a", b"a", Cors(), False),
        (b" http://A:80 ", b"a:80\t", Cors(), False),
        (b"http://a:80", b"a", Cors(), True),
        (b"http://b", b"a", Cors(), True),
        (b"http://b", b"a", Cors(frozenset({b"http://b"})), False),
        (b"http://c", b"a", Cors(frozenset({b"http://b"})), True),
        (b"null", b"null", Cors(), True),
        (b"http://", b"", Cors(), True),
        (b"http://\xff", b"a", Cors(), True),
    ],
)
def test_whose_page_it_is(origin: bytes | None, host: bytes, cors: Cors, refused: bool) -> None:  # noqa: FBT001 - a table
    """Of this host, of one that is listed, or of none at all."""
    headers = [(b"Host", host), *([] if origin is None else [(b"Origin", origin)])]
    assert (origin_refusal(headers, first_values(headers), cors) is not None) is refused


def test_a_key_among_the_subprotocols() -> None:
    """The first; one that is empty is none, and what is behind the prefix keeps its case."""
    assert offered_key([]) is None
    assert offered_key([(PROTOCOL, b"realtime")]) is None
    assert offered_key([(PROTOCOL, b"realtime, " + KEY + b".B")]) == b"sk-1.B"
    assert offered_key([(PROTOCOL, b"a"), (PROTOCOL, KEY)]) == b"sk-1"
    assert offered_key([(PROTOCOL, b"openai-insecure-api-key.")]) is None


def test_it_is_taken_out() -> None:
    """All else stays as it came, order and spelling."""
    other = (b"X-Other", KEY)
    headers = [(PROTOCOL, b"a,b"), other, (PROTOCOL, KEY), (PROTOCOL.lower(), b"c," + KEY + b", d")]
    assert without_offered_key(headers) == [
        (PROTOCOL, b"a,b"),
        other,
        (PROTOCOL.lower(), b"c, d"),
    ]


def test_what_an_engine_may_agree_to() -> None:
    """To WebSocket, in any case, and to nothing beside it."""
    assert agrees([(b"Upgrade", b"WebSocket")])
    assert not agrees([])
    assert not agrees([(b"Upgrade", b"websocket, h2c")])
    assert not agrees([(b"Upgrade", b"websocket"), (b"upgrade", b"h2c")])
