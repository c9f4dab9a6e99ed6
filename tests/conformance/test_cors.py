"""CORS over real sockets: which web pages may call the endpoint, and none the admin listener.

Other gateways refused every browser, and then let every page do everything: jwadow/kiro-gateway#6,
GewoonJaap/gemini-cli-openai#32, icebear0828/codex-proxy#447; and one skipped its keys for OPTIONS:
kcolemangt/llm-router#13. So it is off unless configured, a preflight is the only request that needs
no key, and every answer of ours says as much as an engine's.
"""

import asyncio
import json

import httpx2
import pytest

from proxy.core.endpoints import ENDPOINTS
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, Response, get, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import DONE, END, STREAM_HEAD, Gate, Reset, Send, chunk, event, reply

CHATS = "https://chat.example"
OTHER = "https://evil.example"
HERE = {"origin": CHATS}
KEY = {"authorization": "Bearer sk-right"}
EXPOSED = "x-request-id, x-specswitch-upstream, x-specswitch-reason, retry-after"
ASKING = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
FOR_ALL = [each for each in ENDPOINTS if not each.reserved]
PATHS = [
    each.template.replace("{id}", "resp_1" if "responses" in each.template else "tiny")
    for each in FOR_ALL
]
MORE_ADMIN = ("/", "/openapi.json", "/docs", "/admin/decisions", "/admin/reload", "/nowhere")

# What SGLang's own middleware sends, and what a page could be misled with.
SGLANG = {
    "access-control-allow-origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "access-control-expose-headers": "*",
}


async def told(it: Rig, request: bytes) -> Response:
    """What comes back on a connection of its own."""
    client = await it.client()
    client.send(request)
    return await client.response(head_only=request.startswith(b"HEAD"))


def options(path: str, origin: str | None, **more: str) -> bytes:
    """A preflight, or with `access_control_request_method=""` a plain OPTIONS."""
    headers = {**ASKING, **{name.replace("_", "-"): value for name, value in more.items()}}
    if origin is not None:
        headers["origin"] = origin
    return get(path, method="OPTIONS", headers={n: v for n, v in headers.items() if v})


def cors(response: Response) -> dict[str, str]:
    """What it says of CORS; no line twice."""
    found = [
        (n.lower(), v)
        for n, v in response.headers
        if n.lower().startswith("access-control-") or n.lower() == "vary"
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


ALLOWED = {
    "access-control-allow-origin": CHATS,
    "access-control-expose-headers": EXPOSED,
    "vary": "Origin",
}


# Off -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"team": "sk-right"}])
async def test_off_every_options_is_refused(keys: dict[str, str]) -> None:
    """405 as JSON on every path, 404 elsewhere, 401 before both; and nothing of CORS."""
    async with rig(auth__api_keys=keys) as it:
        for path in (*PATHS, "/nowhere", "/flush_cache"):
            response = await told(it, options(path, CHATS))
            known = 404 if path in {"/nowhere", "/flush_cache"} else 405
            assert response.status == (401 if keys else known), path
            assert "error" in json.loads(response.body)
            assert cors(response) == {}
        assert not it.spec.requests
        assert not it.base.requests


async def test_off_answers_say_nothing_even_where_the_engine_does() -> None:
    """An engine's permission is not ours to pass on; its Vary is."""
    async with rig() as it:
        it.spec.script(Send(reply(b"{}", headers={**SGLANG, "Vary": "Origin"})))
        response = await told(it, post("/generate", {}, headers={"origin": CHATS}))
        assert response.status == 200
        assert cors(response) == {"vary": "Origin"}


# Preflights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"team": "sk-right"}])
async def test_a_preflight_is_answered_without_a_key(keys: dict[str, str]) -> None:
    """204 on every path that is served, with its methods; it never reaches an engine."""
    async with rig(auth__api_keys=keys, listen__cors_origins=[CHATS]) as it:
        client = await it.client()
        for endpoint, path in zip(FOR_ALL, PATHS, strict=True):
            client.send(options(path, CHATS))
            response = await client.response()
            assert response.status == 204
            assert response.header("content-length") is None
            assert response.count("x-request-id") == 1
            assert cors(response) == {
                "access-control-allow-origin": CHATS,
                "access-control-allow-methods": ", ".join(endpoint.methods),
                "access-control-allow-headers": "authorization,content-type",
                "access-control-max-age": "600",
                "vary": "Origin",
            }
        assert not it.spec.requests
        assert not it.base.requests


async def test_any_origin() -> None:
    """`*` is said as such, to a page of no origin too, and never with credentials."""
    async with rig(listen__cors_origins=["*"]) as it:
        for origin in (CHATS, OTHER, "null"):
            response = await told(it, options("/v1/models", origin))
            assert response.status == 204
            assert cors(response)["access-control-allow-origin"] == "*"
            assert "vary" not in cors(response)
            assert "access-control-allow-credentials" not in cors(response)
        it.spec.script(Send(reply(b"{}", headers=SGLANG)))
        response = await told(it, post("/generate", {}))
        assert cors(response) == {
            "access-control-allow-origin": "*",
            "access-control-expose-headers": EXPOSED,
        }


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (options("/v1/models", OTHER), "method_not_allowed"),
        (options("/v1/models", "null"), "method_not_allowed"),
        (options("/v1/models", None), "method_not_allowed"),
        (options("/v1/models", CHATS, access_control_request_method=""), "method_not_allowed"),
        (options("/nowhere", CHATS), "not_found"),
        (options("/flush_cache", CHATS), "not_found"),
        (options("/admin/state", CHATS), "not_found"),
        (options("/metrics", CHATS), "not_found"),
    ],
)
async def test_what_is_no_preflight_of_ours(request_bytes: bytes, code: str) -> None:
    """Of another origin, without an origin, without a method, for no path: refused as ever."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        assert (await told(it, request_bytes)).code == code


async def test_only_options_is_a_preflight() -> None:
    """A request that merely carries its headers is served."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        it.spec.script(Send(reply(b"good")))
        response = await told(it, post("/generate", {}, headers={**ASKING, **HERE}))
        assert response.body == b"good"


async def test_other_options_need_a_key() -> None:
    """What is no preflight is a request like any other."""
    async with rig(auth__api_keys={"team": "sk-right"}, listen__cors_origins=[CHATS]) as it:
        for request in (options("/v1/models", OTHER), options("/nowhere", CHATS)):
            assert (await told(it, request)).code == "invalid_api_key"


async def test_a_preflight_with_a_body() -> None:
    """It is passed over, and the connection goes on."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        client = await it.client()
        asked = options("/generate", CHATS).removesuffix(b"\r\n")
        client.send(asked + b"Content-Length: 5\r\n\r\nhello" + get("/livez"))
        assert (await client.response()).status == 204
        assert (await client.response()).status == 200
        client.send(asked + b"Content-Length: 5\r\n\r\nhe")
        response = await client.response()
        assert response.status == 204
        assert response.header("connection") == "close"


async def test_preflights_are_counted() -> None:
    """As requests that ended well, at no upstream; those of the health paths as those are: not."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        for path in ("/generate", "/generate", "/livez"):
            assert (await told(it, options(path, CHATS))).status == 204
        labels = {"upstream": "none", "endpoint": "/generate", "outcome": "ok"}
        assert it.metric("requests_total", **labels) == 2
        assert it.metric("responses_total", upstream="none", code="204") == 2
        assert it.metric("requests_started_total") == 2


# Answers ---------------------------------------------------------------------------------------


async def test_a_stream_is_allowed() -> None:
    """Its head says so, once, instead of what the engine says; its own Vary stays."""
    head = STREAM_HEAD.removesuffix(b"\r\n")
    engine = "".join(f"{n}: {v}\r\n" for n, v in SGLANG.items()).encode()
    async with rig(listen__cors_origins=[CHATS]) as it:
        it.spec.script(
            Send(head + engine + b"Vary: Accept\r\n\r\n" + chunk(event(1)) + chunk(DONE) + END)
        )
        asking = post("/v1/chat/completions", CHAT_STREAM, headers={"Origin": CHATS})
        response = await told(it, asking)
        assert response.complete
        assert [v for n, v in response.headers if n.lower() == "vary"] == ["Accept", "Origin"]
        assert response.header("access-control-allow-origin") == CHATS
        assert response.header("access-control-expose-headers") == EXPOSED
        assert response.count("access-control-allow-origin") == 1
        assert response.count("access-control-allow-credentials") == 0


async def test_vary_is_not_doubled() -> None:
    """An engine that says it already is enough."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        it.spec.script(Send(reply(b"{}", headers={"vary": "origin"})))
        response = await told(it, post("/generate", {}, headers={"Origin": CHATS}))
        assert cors(response) == {**ALLOWED, "vary": "origin"}


@pytest.mark.parametrize("origin", [OTHER, "null", None])
async def test_another_origin_is_not_allowed(origin: str | None) -> None:
    """Its request is served like any (CORS is no fence for servers), and its page may not read."""
    headers = {} if origin is None else {"Origin": origin}
    async with rig(listen__cors_origins=[CHATS]) as it:
        it.spec.script(Send(reply(b"{}", headers=SGLANG)))
        response = await told(it, post("/generate", {}, headers=headers))
        assert response.status == 200
        assert cors(response) == {"vary": "Origin"}


BIG = post("/generate", b"x" * 5000, headers={**KEY, **HERE})
REFUSED: dict[int, bytes] = {
    401: post("/generate", {}, headers=HERE),
    404: get("/nowhere", headers={**KEY, **HERE}),
    405: get("/generate", headers={**KEY, **HERE}),
    413: BIG,
}


@pytest.mark.parametrize("status", REFUSED)
async def test_refusals_are_allowed(status: int) -> None:
    """A page can read why it was refused."""
    async with rig(
        listen__cors_origins=[CHATS],
        limits__max_body_bytes=4096,
        auth__api_keys={"team": "sk-right"},
    ) as it:
        response = await told(it, REFUSED[status])
        assert response.status == status
        assert cors(response) == ALLOWED


async def test_a_body_that_dribbles() -> None:
    """408 in the middle of a body still knows whose page it was."""
    async with rig(listen__cors_origins=[CHATS], limits__body_timeout=0.1) as it:
        response = await told(it, post("/generate", {"text": "a"}, headers=HERE)[:-1])
        assert response.status == 408
        assert cors(response) == ALLOWED


async def test_no_head_no_origin() -> None:
    """What was refused before its head was read cannot name whom it allows."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        response = await told(it, b"GET / HTTP/1.1\r\nOrigin: " + CHATS.encode() + b"\r\n\r\n")
        assert response.status == 400
        assert cors(response) == {"vary": "Origin"}


async def test_the_waiting_room_is_full() -> None:
    """429 with Retry-After, which the page may read."""
    async with rig(
        listen__cors_origins=[CHATS],
        upstreams__base__max_in_flight=1,
        policy__control="base",
        limits__queue_size=0,
    ) as it:
        gate = asyncio.Event()
        it.base.script(Gate(gate), Send(reply(b"{}")))
        first = await it.client()
        first.send(post("/generate", {}))
        await it.base.received(1)
        response = await told(it, post("/generate", {}, headers=HERE))
        assert response.code == "overloaded"
        assert response.header("retry-after") is not None
        assert cors(response) == ALLOWED
        gate.set()
        assert (await first.response()).status == 200


@pytest.mark.parametrize("status", [502, 500])
async def test_an_upstream_that_fails(status: int) -> None:
    """Our own 502 and an engine's 500 can be read alike."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        failing = reply(b"{}", status="500 Oops", headers=SGLANG)
        it.spec.script(Reset() if status == 502 else Send(failing))
        response = await told(it, post("/generate", {}, headers=HERE))
        assert response.status == status
        assert cors(response) == ALLOWED


async def test_draining() -> None:
    """503, and the health paths say as much."""
    async with rig(listen__cors_origins=[CHATS]) as it:
        it.app.dispatcher.drain()
        asking = post("/v1/chat/completions", CHAT, headers=HERE)
        for request in (asking, get("/readyz", headers=HERE)):
            response = await told(it, request)
            assert response.status == 503
            assert cors(response) == ALLOWED


# The admin listener ----------------------------------------------------------------------------


@pytest.mark.parametrize("origins", [["*"], [CHATS]])
async def test_never_on_the_admin_listener(origins: list[str]) -> None:
    """No route, whatever it is asked by a page, says a word of CORS; OPTIONS is refused."""
    async with rig(listen__cors_origins=origins) as it:
        async with await RawClient.connect(it.app.admin_port) as reader:
            reader.send(get("/openapi.json"))
            routes = json.loads((await reader.response()).body)["paths"]
        assert "/admin/control" in routes
        for path in {*(each.replace("{name}", "spec") for each in routes), *MORE_ADMIN}:
            for method in ("OPTIONS", "GET", "HEAD", "PUT", "POST"):
                async with await RawClient.connect(it.app.admin_port) as client:
                    headers = {**ASKING, "origin": CHATS}
                    client.send(get(path, method=method, headers=headers))
                    response = await client.response(head_only=method == "HEAD")
                named = [n.lower() for n, _ in response.headers]
                assert not [n for n in named if n.startswith("access-control-")], (path, method)
                if method == "OPTIONS":
                    assert response.status >= 400


async def test_a_client_library_sees_it_all() -> None:
    """An ordinary client takes the 204 and the answer after it on one connection."""
    async with (
        rig(listen__cors_origins=[CHATS]) as it,
        httpx2.AsyncClient(base_url=it.app.url, trust_env=False) as client,
    ):
        asked = await client.options("/v1/models", headers={**ASKING, "origin": CHATS})
        assert (asked.status_code, asked.content) == (204, b"")
        it.base.script(Send(reply(b"{}")))
        told_after = await client.get("/v1/models", headers={"origin": CHATS})
        assert told_after.headers["access-control-allow-origin"] == CHATS


async def test_no_page_reads_what_is_for_some_only() -> None:
    """Metrics of the pair and administration: no preflight is answered, no answer names a page."""
    async with rig(
        listen__cors_origins=[CHATS], listen__metrics=True, upstreams__admin_api_key="admin-secret"
    ) as it:
        client = await it.client()
        client.send(options("/metrics", CHATS))
        refused = await client.response()
        assert (refused.status, refused.code) == (405, "method_not_allowed")
        key = {"Origin": CHATS, "Authorization": "Bearer admin-secret"}
        answered = []
        for raw in (
            get("/metrics", headers={"Origin": CHATS}),
            post("/flush_cache", {}, headers=key),
            post("/update_weights_from_disk", {}, headers=key),
        ):
            client.send(raw)
            answered.append(await client.response())
        for each in (refused, *answered):
            assert each.header("access-control-allow-origin") is None
        assert answered[2].status == 501
