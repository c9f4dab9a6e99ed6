"""Odd paths, hosts, sizes and words: what a client may ask for, and what it can not write.

A path has one spelling. What is not on the allow-list is answered 404 and no engine hears of it.
"""

import asyncio
import json
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.harness.client import CHAT, RawClient, get, post
from tests.harness.process import Specswitch
from tests.harness.running import rig
from tests.harness.upstream import ScriptedUpstream, Send, chunk, reply

LAST = b"0\r\n\r\n"
CHUNKED = b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def line(first: bytes, *headers: bytes) -> bytes:
    """A request without a body."""
    return b"\r\n".join((first, *headers, b"", b""))


CLIMBING = [
    "/flush_cache",
    "/abort_request",
    "/update_weights_from_disk",
    "/release_memory_occupation",
    "/start_profile",
    "/v1/../flush_cache",
    "/v1/%2e%2e/flush_cache",
    "/v1/%2E%2E/flush_cache",
    "/v1/.%2e/flush_cache",
    "/v1/..%2fflush_cache",
    "/v1/..%5cflush_cache",
    "/v1/%252e%252e/flush_cache",
    "/v1/..;/flush_cache",
    "/v1/..\\flush_cache",
    "/./flush_cache",
    "//flush_cache",
    "///",
    "/v1/models/../../flush_cache",
    "/v1/models/%2e%2e/%2e%2e/flush_cache",
    "/v1/models/..%2f..%2fflush_cache",
    "/v1/models/%2fflush_cache/..",
    "/v1/models/%00",
    "/v1/models/a%0d%0ab",
    "/v1/models//flush_cache",
    "/v1/responses/../flush_cache",
    "/v1/responses/..",
    "/v1/responses/a/../../flush_cache",
    "/v1/responses/a/cancel/../../../flush_cache",
    "/v1/chat/completions/../../x",
    "/v1/chat/completions/../../../flush_cache",
    "/v1/chat/completions/",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%2f",
    "/v1/chat/completions%00",
    "/v1/chat/completions#fragment",
    "/v1/chat/completions\\",
    "/V1/CHAT/COMPLETIONS",
    "/v1/chat%2fcompletions",
    "/%76%31/chat/completions",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/models/",
    "//v1//models",
    "/chat/completions",
    "/v1/v1/chat/completions",
    "/",
    "/*",
    "/http://evil/",
    "/livez/",
    "/livez%20",
    "/livez;",
    "/openapi.json",
    "/docs",
    "/metrics",
    "/admin/state",
    "/v1/realtime/",
]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_no_other_path_and_no_other_spelling(method: str) -> None:
    """404 naming the path that was tried, never a redirect, and no engine hears of it.

    mrobinson2/AzureAgentForge#23: a proxy that passes prefixes on exposes an engine's own
    administration. vllm-project/aibrix#1691, open-webui/open-webui#1483: a slash too many or a
    `/v1` forgotten is answered 404, which says what was asked for.
    """
    async with rig() as it:
        client = await it.client()
        for path in CLIMBING:
            client.send(get(path, method=method))
            response = await client.response()
            message = json.loads(response.body)["error"]["message"]

            assert (response.status, response.code) == (404, "not_found"), path
            hint = "; `listen.metrics` is off" if path == "/metrics" else ""
            assert message == f"{path} is not served here{hint}"
            assert response.header("location") is None
        assert not it.spec.requests
        assert not it.base.requests


@pytest.mark.parametrize("host", ["evil", "evil:80", "127.0.0.1:1", "", "a b", "[::1]", "\xe9"])
async def test_no_host_chooses_the_upstream(host: str) -> None:
    """Portkey-AI/gateway#1718: the engine gets its own name, whatever the client calls it."""
    async with rig() as it:
        client = await it.client()
        forwarded = {"X-Forwarded-Host": "evil", "Forwarded": "host=evil", "X-Original-URL": "/x"}
        client.send(
            post("/generate", CHAT, headers=forwarded).replace(
                b"Host: test", f"Host: {host}".encode("latin-1")
            )
        )
        response = await client.response()
        (request,) = it.spec.requests

        assert response.status == 200
        assert request.line == "POST /generate HTTP/1.1"
        assert [v for n, v in request.headers if n.lower() == "host"] == [
            f"127.0.0.1:{it.spec.port}"
        ]


async def test_a_websocket_is_not_served() -> None:
    """llm-d/llm-d-router#1532: where there is nothing, an upgrade is answered 404 and not hung."""
    async with rig() as it:
        client = await it.client()
        offer = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        client.send(get("/v1/realtimes", headers=offer) + get("/livez"))

        assert [(await client.response()).status for _ in range(2)] == [404, 200]


# Limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        line(b"GET /livez HTTP/1.1", b"Host: a", b"X-Request-Id: " + b"x" * (1 << 20)),
        line(b"GET /livez HTTP/1.1", b"Host: a", *[b"X%d: y" % i for i in range(10_000)]),
        line(b"GET /livez HTTP/1.1", b"Host: a", b"X" * 100_000 + b": y"),
        line(b"GET /" + b"x" * 100_000 + b" HTTP/1.1", b"Host: a"),
        CHUNKED + b"1;" + b"x" * 100_000 + b"\r\na\r\n" + LAST,
        CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        CHUNKED + b"0" * 100_000 + b"1\r\na\r\n" + LAST,
        b"\r\n" * 50_000 + get("/livez"),
    ],
    ids=["id", "many", "name", "target", "extension", "trailers", "zeros", "empty lines"],
)
async def test_a_head_has_a_limit(data: bytes) -> None:
    """431 for a head, and what is like one, beyond `max_header_bytes`; the answer survives.

    vllm-project/vllm#10968: a request id of a megabyte was echoed in every chunk.
    """
    async with rig() as it:
        client = await it.client()
        client.send(data + post("/generate", {}))
        response = await client.response()

        assert (response.status, response.code) == (431, "headers_too_large")
        assert response.header("x-request-id") is None
        assert await client.at_end()
        assert not it.spec.requests


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/tokenize"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_has_a_limit(path: str, chunked: bool) -> None:  # noqa: FBT001 - a parameter
    """413 that says how much is allowed, declared or chunked, and the upstream is untouched.

    sgl-project/sglang#6622, agentgateway/agentgateway#2715: others answer 404, 500, or what no
    client can read. The client is still sending here, and gets the whole answer all the same.
    """
    async with rig(limits__max_body_bytes=100_000) as it:
        client = await it.client()
        body = b"x" * 1_000_000
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode()
        if chunked:
            client.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(body) + LAST)
        else:
            client.send(head + b"Content-Length: 1000000\r\n\r\n" + body)
        response = await client.response()
        error = json.loads(response.body)["error"]

        assert response.status == 413
        assert "100000" in error["message"]
        assert response.header("content-type") == "application/json"
        assert await client.at_end()
        assert not it.spec.requests
        assert not it.base.requests


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nowhere"])
async def test_a_client_that_only_sends_gets_its_answer(path: str) -> None:
    """Whoever reads nothing before all is sent must be let send: a reset would be all it hears."""
    async with rig(limits__max_body_bytes=100_000) as it:

        def ask() -> tuple[int, bytes]:
            with closing(HTTPConnection("127.0.0.1", it.app.port, timeout=10)) as client:
                client.request("POST", path, body=b"x" * 20_000_000)
                response = client.getresponse()
                return response.status, response.read()

        status, body = await asyncio.to_thread(ask)

        assert status == (413 if path.startswith("/v1") else 404)
        assert json.loads(body)["error"]["message"]


# Logs ---------------------------------------------------------------------------------------

FORGED = 'x\nLEVEL=ERROR "forged" \x1b[31m\r\n\u2028'


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
async def test_no_request_can_write_a_log_line(form: str, tmp_path: Path) -> None:
    """What a client chooses never begins a line of its own, and never colours a screen."""
    async with ScriptedUpstream(speculative=True) as spec, ScriptedUpstream(speculative=False) as b:
        spec.always(Send(reply(json.dumps({"error": FORGED}).encode(), status="400 Bad")))
        process = Specswitch(
            tmp_path / "log", spec_url=spec.url, base_url=b.url, log_format=form, policy_crossover=4
        )
        async with process, await RawClient.connect(process.port) as client:
            client.send(post("/v1/chat/completions", {**CHAT, "model": FORGED}))
            await client.response()
            odd = get(
                "/x%0aLEVEL=ERROR", headers={"X-Request-Id": "a\u00e9", "User-Agent": "LEVEL"}
            )
            client.send(odd)
            await client.response()
            client.send(b"GET /\x1b[31m LEVEL=ERROR HTTP/1.1\r\n\r\n")
            await client.response()
        lines = process.log.read_text().splitlines()

    assert len(lines) > 3
    assert not any(each.startswith("LEVEL") for each in lines)
    assert not any("\x1b" in each for each in lines)
    if form == "json":
        assert all("message" in json.loads(each) for each in lines)
