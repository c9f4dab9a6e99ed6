"""Who gets a tunnel: what a request must say, whose page it may be, and where keys may stand."""

from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.harness.client import get, post
from tests.harness.running import Rig, rig
from tests.harness.tls import Identity, secured
from tests.harness.tunnels import ACCEPT, PATH, SWITCH, echo, offer, served
from tests.harness.upstream import ByHand, Send, Tunnel, reply

KEY = "sk-right"
PAGE = "http://page.example"


async def refused(it: Rig, request: bytes) -> tuple[int, str]:
    """Status and code of what is answered here, after which the next request is served."""
    client = await it.client()
    client.send(request)
    response = await client.response(head_only=request.startswith(b"HEAD"))
    assert response.header("x-specswitch-upstream") is None
    if response.status == 400:
        assert await client.at_end()
    else:
        client.send(get("/livez"))
        assert (await client.response()).status == 200
    assert not it.base.requests
    assert not it.spec.requests
    if response.status == 426:
        assert response.header("upgrade") == "websocket"
        assert response.header("connection") == "Upgrade"
        assert response.header("sec-websocket-version") == "13"
    return response.status, response.code if response.body else ""


# What the request must say ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "without"),
    [
        ({}, "Upgrade"),
        ({}, "Connection"),
        ({"Connection": "keep-alive"}, ""),
        ({"Upgrade": "h2c"}, ""),
        ({"Upgrade": "websockets"}, ""),
        ({"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}, ""),
        ({}, "Sec-WebSocket-Version"),
        ({"Sec-WebSocket-Version": "8"}, ""),
        ({"Sec-WebSocket-Version": "13, 8"}, ""),
        ({"sec-websocket-version": "8"}, ""),
    ],
)
async def test_what_asks_for_no_websocket_of_ours(headers: dict[str, str], without: str) -> None:
    """426 says what would be served; an upgrade that `Connection` does not name is none."""
    async with rig() as it:
        told = await refused(it, offer(headers=headers, without=without))
        assert told == (426, "upgrade_required")
        assert it.metric("requests_total", endpoint=PATH, upstream="none", outcome="rejected") == 1


async def test_an_older_http_cannot_upgrade() -> None:
    """RFC 9110 section 7.8: an upgrade in HTTP/1.0 is none."""
    async with rig() as it:
        client = await it.client()
        client.send(offer().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await client.response()).status == 426
        assert not it.base.requests


@pytest.mark.parametrize(
    "request_bytes",
    [
        offer(without="Sec-WebSocket-Key"),
        offer(headers={"Sec-WebSocket-Key": "short"}),
        offer(headers={"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="[:-1] + "!"}),
        offer(headers={"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}),
        offer(headers={"Content-Length": "5"}) + b"hello",
        offer(headers={"Transfer-Encoding": "chunked"}) + b"0\r\n\r\n",
    ],
    ids=["no key", "short key", "bad key", "two keys", "a body", "chunks"],
)
async def test_what_is_no_fitting_request(request_bytes: bytes) -> None:
    """400, and the connection ends: what follows may mean anything."""
    async with rig() as it:
        assert await refused(it, request_bytes) == (400, "bad_request")


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "DELETE", "OPTIONS"])
async def test_a_websocket_is_a_get(method: str) -> None:
    """Whatever else it offers."""
    async with rig() as it:
        status, _ = await refused(it, offer().replace(b"GET ", f"{method} ".encode(), 1))
        assert status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"Connection": "keep-alive, Upgrade"},
        {"Connection": "upgrade"},
        {"Upgrade": "WebSocket"},
        {"Upgrade": "h2c, websocket"},
        {"Content-Length": "0"},
    ],
)
async def test_other_ways_to_ask_for_one(headers: dict[str, str]) -> None:
    """Lists and any case are HTTP's; the engine gets it in one spelling."""
    async with rig() as it:
        it.base.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer(headers=headers))
        assert (await client.head())[0] == 101
        (request,) = await it.base.received(1)
        assert request.header("upgrade") == "websocket"
        assert request.header("connection") == "Upgrade"
        assert request.count("upgrade") == request.count("connection") == 1


# What the engine sees and what comes back -------------------------------------------------------


async def test_heads_pass_both_ways() -> None:
    """What is hop-by-hop is replaced, what is ours to say is said, everything else stays."""
    async with rig() as it:
        it.base.script(
            Send(
                b"HTTP/1.1 101 Fine\r\nUpgrade: WebSocket\r\nConnection: Upgrade, X-Hop\r\n"
                b"X-Hop: 1\r\nContent-Length: 0\r\nX-Request-Id: theirs\r\nServer: theirs\r\n"
                b"Access-Control-Allow-Origin: *\r\n"
                b"Sec-WebSocket-Accept: " + ACCEPT.encode() + b"\r\n\r\n"
            ),
            Tunnel(),
        )
        client = await it.client()
        client.send(
            offer(
                f"{PATH}?model=a%20b",
                headers={"Authorization": "Bearer mine", "Host": "evil", "X-Request-Id": "id-1"},
            ).replace(b"Host: test\r\n", b"", 1)
        )
        status, headers = await client.head()
        assert status == 101
        assert {name.lower(): value for name, value in headers} == {
            "server": "theirs",
            "sec-websocket-accept": ACCEPT,
            "x-request-id": "id-1",
            "x-specswitch-upstream": "base",
            "x-specswitch-reason": "mode",
            "connection": "Upgrade",
            "upgrade": "websocket",
        }
        (request,) = await it.base.received(1)
        assert request.line == f"GET {PATH}?model=a%20b HTTP/1.1"
        assert request.header("host") == f"127.0.0.1:{it.base.port}"
        assert request.header("x-request-id") == "id-1"
        assert request.header("x-specswitch-attempt") == "1"
        assert request.header("authorization") == "Bearer mine"
        assert request.count("content-length") == 0


async def test_no_kept_connection_is_used_and_none_is_kept() -> None:
    """A tunnel has a connection of its own from the first byte, whatever is answered."""
    async with rig() as it:
        client = await it.client()
        for request in (post("/tokenize", {}), offer(), post("/tokenize", {})):
            client.send(request)
            assert (await client.response()).status == 200
        used = [request.connection for request in it.base.requests]
        assert used[0] == used[2]
        assert used[1] != used[0]
        assert it.app.links.pools
        await it.until(lambda: it.base.for_requests == 1, "one is kept")


@pytest.mark.parametrize("status", ["200 OK", "403 Forbidden", "404 Not Found"])
async def test_an_answer_that_is_no_agreement(status: str) -> None:
    """It passes as it came, and the connection goes on as HTTP."""
    async with rig() as it:
        it.base.script(Send(reply(b'{"detail":"x"}', status=status)))
        client = await it.client()
        client.send(offer() + get("/livez"))
        response = await client.response()
        assert (str(response.status), response.body) == (status[:3], b'{"detail":"x"}')
        assert (await client.response()).body == b"ok\n"
        await it.until(
            lambda: it.total("requests_total", endpoint=PATH, outcome="ok") == 1, "counted"
        )


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Fine\r\n\r\n",
        b"HTTP/1.1 101 Fine\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
    ],
)
async def test_an_agreement_to_something_else(head: bytes) -> None:
    """It cannot be what was asked for, and is not passed on."""
    async with rig() as it:
        it.base.script(Send(head + b"more"), ByHand())
        client = await it.client()
        client.send(offer())
        response = await client.response()
        assert (response.status, response.code) == (502, "upstream_reset")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
async def test_an_agreement_that_nobody_asked_for(path: str) -> None:
    """On any other path an upgrade is not passed on, so an engine that takes it is broken."""
    async with rig() as it:
        for upstream in (it.base, it.spec):
            upstream.always(Send(SWITCH + b"more"), ByHand())
        client = await it.client()
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        request = get(path, headers=upgrade) if path == "/v1/models" else post(path, {})
        client.send(request)
        response = await client.response()
        assert (response.status, response.code) == (502, "upstream_reset")


async def test_an_agreement_after_an_answer() -> None:
    """What comes behind a whole answer is not passed on, whatever it says."""
    async with rig() as it:
        it.base.script(Send(reply(b"{}") + SWITCH + b"more"), ByHand())
        client = await it.client()
        client.send(get("/v1/models"))
        assert (await client.response()).body == b"{}"
        client.send(get("/livez"))
        assert (await client.response()).body == b"ok\n"


async def test_interim_answers_before_the_agreement() -> None:
    """They end here, as on every path."""
    async with rig() as it:
        it.base.script(Send(b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCH + b"hi"), Tunnel())
        client = await it.client()
        client.send(offer())
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(2) == b"hi"


# Keys and pages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Sec-WebSocket-Protocol": "realtime"},
        {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key."},
        {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.wrong"},
        {
            "Authorization": "Bearer wrong",
            "Sec-WebSocket-Protocol": f"openai-insecure-api-key.{KEY}",
        },
    ],
)
async def test_without_a_key_there_is_none(headers: dict[str, str]) -> None:
    """SGLang asks nobody on this path; a key in a header is the one that counts."""
    async with rig(auth__api_keys={"team": KEY}) as it:
        assert await refused(it, offer(headers=headers)) == (401, "invalid_api_key")
        assert await refused(it, offer(f"{PATH}?api-key={KEY}", headers=headers)) == (
            401,
            "invalid_api_key",
        )


@pytest.mark.parametrize(
    ("offered", "passed"),
    [
        (f"realtime, openai-insecure-api-key.{KEY}, openai-beta.x", "realtime, openai-beta.x"),
        (f"openai-insecure-api-key.{KEY}", None),
    ],
)
async def test_a_key_as_a_subprotocol(offered: str, passed: str | None) -> None:
    """As OpenAI's clients in browsers send it; it ends here, and any page may use it."""
    async with rig(auth__api_keys={"team": KEY}) as it:
        it.base.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer(headers={"Sec-WebSocket-Protocol": offered, "Origin": PAGE}))
        assert (await client.head())[0] == 101
        (request,) = await it.base.received(1)
        assert request.header("sec-websocket-protocol") == passed
        assert not any(KEY in value for _, value in request.headers)


async def test_a_key_as_a_subprotocol_is_for_tunnels_only() -> None:
    """Elsewhere a client can set a header."""
    async with rig(auth__api_keys={"team": KEY}) as it:
        headers = {"Sec-WebSocket-Protocol": f"openai-insecure-api-key.{KEY}"}
        assert await refused(it, get("/v1/models", headers=headers)) == (401, "invalid_api_key")


async def test_a_key_of_theirs_passes_where_none_is_asked_for() -> None:
    """Both in a header and as a subprotocol: it may be the engine's."""
    offered = {"Sec-WebSocket-Protocol": "realtime,openai-insecure-api-key.theirs"}
    async with rig() as it:
        it.base.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer(headers={**offered, "x-api-key": "theirs"}))
        assert (await client.head())[0] == 101
        (request,) = await it.base.received(1)
        assert request.header("sec-websocket-protocol") == offered["Sec-WebSocket-Protocol"]
        assert request.header("x-api-key") == "theirs"


async def test_an_upstreams_own_key_takes_its_place() -> None:
    """As on every path."""
    offered = {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.theirs"}
    async with rig(upstreams__base__api_key="engine-key") as it:
        it.base.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer(headers={**offered, "Authorization": "Bearer theirs"}))
        assert (await client.head())[0] == 101
        (request,) = await it.base.received(1)
        assert request.header("sec-websocket-protocol") == "realtime"
        assert request.header("authorization") == "Bearer engine-key"
        assert request.count("authorization") == 1


@pytest.mark.parametrize("origin", [PAGE, "null", "http://test.example", "", "://", "http://"])
async def test_pages_of_other_origins_are_refused(origin: str) -> None:
    """Browsers ask nobody before they open a WebSocket, so somebody has to say no."""
    async with rig() as it:
        told = await refused(it, offer(headers={"Origin": origin}))
        assert told == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    ("origin", "settings"),
    [
        ("http://test", {}),
        ("HTTPS://TEST", {}),
        (PAGE, {"listen__cors_origins": [PAGE]}),
        (PAGE, {"listen__cors_origins": ["*"]}),
        (PAGE, {"auth__api_keys": {"team": KEY}}),
        (None, {}),
    ],
)
async def test_pages_that_may(origin: str | None, settings: dict[str, object]) -> None:
    """Those of this very host, those that are listed, those that have a key, and no pages."""
    headers = {"Authorization": f"Bearer {KEY}", **({"Origin": origin} if origin else {})}
    async with rig(**settings) as it:  # type: ignore[arg-type]  # keys of the configuration
        it.base.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer(headers=headers))
        assert (await client.head())[0] == 101


# TLS -------------------------------------------------------------------------------------------


async def test_by_tls(tmp_path: Path) -> None:
    """Wss to us, with everything that a WebSocket does."""
    identity = Identity(tmp_path)
    async with secured(identity) as it, served(it, echo, subprotocols=["realtime"]):
        url = f"wss://127.0.0.1:{it.app.port}{PATH}"
        subprotocols = [Subprotocol("realtime")]
        tls = identity.context()
        async with connect(url, ssl=tls, proxy=None, subprotocols=subprotocols) as socket:
            assert socket.subprotocol == "realtime"
            for said in ("hello", b"x" * 1_000_000):
                await socket.send(said)
                assert await socket.recv() == said
            await socket.close(4321, "done")
            assert socket.close_code == 4321
        await it.until(
            lambda: it.total("requests_total", endpoint=PATH, outcome="ok") == 1, "counted"
        )
