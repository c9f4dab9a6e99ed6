"""What clients of HTTP/1.0 and 1.1 may expect, over real sockets."""

import asyncio
import json

import pytest

from tests.harness.client import CHAT, CHAT_STREAM, get, post
from tests.harness.running import rig
from tests.harness.upstream import (
    DONE,
    STREAM_HEAD,
    Fin,
    Gate,
    Send,
    chunk,
    event,
    reply,
    stream,
)

GENERATION_PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/generate",
    "/api/chat",
    "/api/generate",
    "/invocations",
]
MODEL_POSTS = [
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/classify",
    "/encode",
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/messages/count_tokens",
    "/v1/audio/transcriptions",
    "/api/show",
]
MODEL_GETS = ["/v1/models/tiny", "/v1/models", "/api/tags", "/model_info", "/get_model_info"]

ODD_BODY = (
    b' {"max_tokens" : 8,\t"x":{"deep":[1e-7,18446744073709551617]},"a":1,"a":2,'
    b'"prompt":"\\u0000\xe2\x82\xac","model":"m" } \n'
)
"""Spaces, a huge integer, a duplicate key, an escape: what a re-serialising proxy would change."""


@pytest.mark.parametrize("path", GENERATION_PATHS)
async def test_generation_passes_unchanged(path: str) -> None:
    """Request and response bodies pass byte for byte on every generation path, counted as load."""
    answer = b'{ "odd" : 1.0, "odd":2 ,"text":"\\u00e9" }\n'
    async with rig() as it:
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(reply(answer)))
        client = await it.client()
        client.send(post(path + "?x=1", ODD_BODY))
        (request,) = await it.spec.received(1)
        assert it.app.dispatcher.in_flight.spec == 1
        gate.set()
        response = await client.response()

        assert request.line == f"POST {path}?x=1 HTTP/1.1"
        assert request.body == ODD_BODY
        assert response.status == 200
        assert response.body == answer
        assert response.header("x-specswitch-upstream") == "spec"
        assert response.header("x-specswitch-reason") == "mode"
        assert it.app.dispatcher.in_flight.spec == 0


@pytest.mark.parametrize("path", MODEL_POSTS)
async def test_model_posts_go_to_base_and_are_no_load(path: str) -> None:
    """Model paths go to base first and are not counted in flight."""
    async with rig() as it:
        gate = asyncio.Event()
        it.base.script(Gate(gate), Send(reply(b"[]")))
        client = await it.client()
        client.send(post(path, b"\x00raw"))
        (request,) = await it.base.received(1)
        assert it.app.dispatcher.in_flight.total == 0
        assert it.app.front.open_requests == 1
        gate.set()

        assert (await client.response()).body == b"[]"
        assert request.body == b"\x00raw"


@pytest.mark.parametrize("path", MODEL_GETS)
async def test_model_gets(path: str) -> None:
    """A GET passes without a body and without a length of our making."""
    async with rig() as it:
        it.base.script(Send(reply(b"{}")))
        client = await it.client()
        client.send(get(path))

        assert (await client.response()).status == 200
        (request,) = it.base.requests
        assert request.header("content-length") is None
        assert request.header("transfer-encoding") is None


async def test_head_is_a_get_without_a_body() -> None:
    """HEAD goes out as GET; the client gets the head with its length, and the next answer."""
    async with rig() as it:
        it.base.always(Send(reply(b"0123456789")))
        client = await it.client()
        client.send(get("/v1/models", method="HEAD"))
        response = await client.response(head_only=True)
        client.send(get("/livez", method="HEAD") + get("/livez"))
        own = await client.response(head_only=True)
        after = await client.response()

        assert it.base.requests[0].line.startswith("GET ")
        assert response.header("content-length") == "10"
        assert own.header("content-length") == "3"
        assert after.body == b"ok\n"


async def test_http_1_0_gets_no_chunks() -> None:
    """A stream to an HTTP/1.0 client has no chunks and ends with the connection."""
    async with rig() as it:
        it.spec.script(Send(stream(event(1), DONE)))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
        response = await client.response()

        assert response.header("transfer-encoding") is None
        assert response.header("connection") == "close"
        assert response.body == event(1) + DONE
        assert response.complete


async def test_http_1_0_keep_alive() -> None:
    """An HTTP/1.0 client that asks for it, and whose answer has a length, keeps its connection."""
    async with rig() as it:
        it.spec.always(Send(reply(b"{}")))
        client = await it.client()
        request = post("/v1/chat/completions", CHAT, headers={"Connection": "keep-alive"})
        for _ in range(2):
            client.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert (await client.response()).header("connection") == "keep-alive"


async def test_keep_alive_and_connection_reuse() -> None:
    """Requests one after the other use one connection on either side."""
    async with rig() as it:
        client = await it.client()
        for _ in range(5):
            client.send(post("/v1/chat/completions", CHAT))
            assert (await client.response()).status == 200

        assert {request.connection for request in it.spec.requests} == {
            it.spec.requests[0].connection
        }


async def test_connection_close_is_honoured() -> None:
    """`Connection: close` ends the connection after the answer."""
    async with rig() as it:
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT, headers={"Connection": "close"}))
        response = await client.response()

        assert response.header("connection") == "close"
        assert await client.at_end()


async def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests sent ahead are served one at a time and answered in the order they came."""
    async with rig() as it:
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(stream(event("first"), DONE)))
        it.spec.script(Send(reply(b'"second"')))
        client = await it.client()
        client.send(
            post("/v1/chat/completions", CHAT_STREAM)
            + post("/v1/completions", CHAT)
            + get("/livez")
            + get("/nowhere")
            + post("/nowhere", {})
            + get("/readyz")
        )
        await it.spec.received(1)
        assert it.app.front.open_requests == 1
        gate.set()
        responses = [await client.response() for _ in range(6)]

        assert [r.status for r in responses] == [200, 200, 200, 404, 404, 200]
        assert responses[0].body == event("first") + DONE
        assert responses[1].body == b'"second"'


async def test_pipelining_is_bounded() -> None:
    """A client that sends far ahead gets the answer it waits for, and then the connection ends."""
    async with rig() as it:
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(reply(b"1")))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT))
        await it.spec.received(1)
        client.send(get("/livez") * 10_000)
        (connection,) = it.app.front.connections
        await it.until(lambda: not connection.keep_alive, "it is far ahead")
        gate.set()

        assert (await client.response()).body == b"1"
        assert await client.at_end()


async def test_expect_continue() -> None:
    """`Expect: 100-continue` is answered at once, and not passed on."""
    async with rig() as it:
        client = await it.client()
        whole = post("/v1/chat/completions", CHAT, headers={"Expect": "100-continue"})
        head, _, body = whole.partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert (await client.head())[0] == 100
        client.send(body)

        assert (await client.response()).status == 200
        assert it.spec.requests[0].header("expect") is None


async def test_no_continue_for_what_is_refused() -> None:
    """A request that is refused at its head is not asked for its body."""
    async with rig() as it:
        client = await it.client()
        whole = post("/flush_cache", CHAT, headers={"Expect": "100-continue"})
        client.send(whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        response = await client.response()

        assert response.status == 404
        assert response.header("connection") == "close"
        assert await client.at_end()


async def test_chunked_upload_becomes_counted() -> None:
    """A chunked request body reaches the engine whole, with a length, and counts in the peek."""
    body = json.dumps({**CHAT, "min_p": 0.5}).encode()
    async with rig() as it:
        client = await it.client()
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"".join(chunk(body[i : i + 7]) for i in range(0, len(body), 7))
            + b"0\r\nX-Trailer: y\r\n\r\n"
            + get("/livez")
        )
        first, second = await client.response(), await client.response()

        assert first.header("x-specswitch-reason") == "eligibility:min_p"
        assert second.body == b"ok\n"
        (request,) = it.base.requests
        assert request.body == body
        assert request.header("content-length") == str(len(body))
        assert request.header("transfer-encoding") is None
        assert request.header("x-trailer") is None


async def test_pieces_pass_as_they_come() -> None:
    """Each event reaches the client before the engine has written the next."""
    async with rig() as it:
        gates = [asyncio.Event() for _ in range(3)]
        it.spec.script(
            Send(STREAM_HEAD + chunk(event(0))),
            Gate(gates[0]),
            Send(chunk(event(1))),
            Gate(gates[1]),
            Send(chunk(DONE) + b"0\r\n\r\n"),
        )
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM))
        await client.head()
        assert await client.chunk() == event(0)
        gates[0].set()
        assert await client.chunk() == event(1)
        gates[1].set()
        assert await client.chunk() == DONE
        assert await client.chunk() is None


async def test_head_of_generate_stream_passes_at_once() -> None:
    """Where SGLang sends the head before the first token, so do we."""
    async with rig() as it:
        gate = asyncio.Event()
        it.spec.script(Send(STREAM_HEAD), Gate(gate), Send(chunk(DONE) + b"0\r\n\r\n"))
        client = await it.client()
        client.send(post("/generate", {"text": "a", "stream": True}))
        assert (await client.head())[0] == 200
        gate.set()
        assert await client.chunk() == DONE
        assert await client.chunk() is None


async def test_answer_until_close_is_chunked_for_1_1() -> None:
    """An engine that marks the end by closing is passed on with the end marked by a last chunk."""
    async with rig() as it:
        it.spec.script(Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nabc"), Fin())
        client = await it.client()
        client.send(post("/generate", {"text": "a"}))
        response = await client.response()

        assert response.header("transfer-encoding") == "chunked"
        assert response.body == b"abc"
        assert response.complete


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answers_without_a_body(status: str) -> None:
    """204 and 304 have no body and leave the connection usable."""
    async with rig() as it:
        it.base.script(Send(f"HTTP/1.1 {status}\r\n\r\n".encode()))
        client = await it.client()
        client.send(get("/v1/models") + get("/livez"))
        response = await client.response()

        assert response.header("transfer-encoding") is None
        assert (await client.response()).body == b"ok\n"


async def test_interim_answers_are_dropped() -> None:
    """A 1xx from an engine is for us; the client gets the answer itself."""
    async with rig() as it:
        it.spec.script(Send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + reply(b"{}")))
        client = await it.client()
        client.send(post("/generate", {"text": "a"}))
        response = await client.response()

        assert (response.status, response.body) == (200, b"{}")
        assert response.header("link") is None


async def test_encoded_bodies_pass_as_they_are() -> None:
    """A compressed answer is neither opened nor watched."""
    async with rig() as it:
        it.spec.script(
            Send(
                reply(
                    b"\x1f\x8bnot really",
                    content_type="text/event-stream",
                    headers={"content-encoding": "gzip"},
                )
            )
        )
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM, headers={"Accept-Encoding": "gzip"}))
        response = await client.response()

        assert response.body == b"\x1f\x8bnot really"
        assert response.header("content-encoding") == "gzip"
        assert it.spec.requests[0].header("accept-encoding") == "gzip"


async def test_headers_pass_but_for_those_that_are_ours() -> None:
    """End-to-end headers pass both ways, once; hop-by-hop ones and ours do not."""
    async with rig() as it:
        it.spec.script(
            Send(
                reply(
                    b"{}",
                    headers={
                        "X-Up": "1",
                        "Connection": "X-Hop",
                        "X-Hop": "1",
                        "Keep-Alive": "timeout=5",
                        "x-request-id": "theirs",
                        "x-specswitch-upstream": "forged",
                    },
                )
            )
        )
        client = await it.client()
        client.send(
            post(
                "/generate",
                {"text": "a"},
                headers={
                    "X-Down": "1",
                    "Connection": "X-Hop",
                    "X-Hop": "1",
                    "TE": "trailers",
                    "Proxy-Authorization": "secret",
                    "Authorization": "Bearer client",
                    "X-Request-Id": "mine",
                    "X-Specswitch-Route": "base",
                    "X-Specswitch-Attempt": "9",
                },
            )
        )
        response = await client.response()
        (request,) = it.spec.requests

        assert request.header("x-down") == "1"
        for gone in ("connection", "x-hop", "te", "proxy-authorization", "x-specswitch-route"):
            assert request.header(gone) is None, gone
        assert request.header("authorization") == "Bearer client"
        assert (request.header("x-request-id"), request.count("x-request-id")) == ("mine", 1)
        assert request.header("x-specswitch-attempt") == "1"
        assert request.count("host") == 1
        assert request.count("content-length") == 1
        assert response.header("x-up") == "1"
        for gone in ("connection", "x-hop", "keep-alive"):
            assert response.header(gone) is None, gone
        assert (response.header("x-request-id"), response.count("x-request-id")) == ("mine", 1)
        assert response.header("x-specswitch-upstream") == "spec"


@pytest.mark.parametrize("offered", ["", "x" * 129, "with space"])
async def test_bad_request_ids_are_replaced(offered: str) -> None:
    """An id that is empty, long or not visible is replaced by one of ours, the same to both."""
    async with rig() as it:
        client = await it.client()
        client.send(post("/generate", {"text": "a"}, headers={"X-Request-Id": offered}))
        response = await client.response()
        given = response.header("x-request-id")

        assert given is not None
        assert given != offered
        assert given == it.spec.requests[0].header("x-request-id")


async def test_upstream_keys_replace_the_clients() -> None:
    """Where an upstream has a key of its own, the client's is not passed on in any header."""
    async with rig(upstreams__spec__api_key="ours") as it:
        client = await it.client()
        keys = {"Authorization": "Bearer client", "X-Api-Key": "client", "Api-Key": "client"}
        client.send(post("/generate", {"text": "a"}, headers=keys))
        await client.response()
        (request,) = it.spec.requests

        assert request.header("authorization") == "Bearer ours"
        assert request.count("authorization") == 1
        assert request.header("x-api-key") is None
        assert request.header("api-key") is None


async def test_client_keys_are_checked_and_not_passed_on() -> None:
    """With keys configured: none or a wrong one is 401 before anything else, a right one passes."""
    async with rig(auth__api_keys={"team": "right"}) as it:
        client = await it.client()
        for path in ("/v1/chat/completions", "/nowhere"):
            client.send(post(path, CHAT))
            response = await client.response()
            assert (response.status, response.code) == (401, "invalid_api_key")
        for name, value in (("Authorization", "Bearer right"), ("x-api-key", "right")):
            client.send(post("/v1/chat/completions", CHAT, headers={name: value}))
            assert (await client.response()).status == 200
            assert it.spec.requests[-1].header(name.lower()) is None
        client.send(get("/readyz"))
        assert (await client.response()).status == 200


async def test_state_lives_in_base() -> None:
    """Sessions and stored responses go to base, whatever the mode, and are no load."""
    async with rig() as it:
        client = await it.client()
        client.send(
            get("/v1/responses/resp_1")
            + post("/v1/responses/resp_1/cancel", {})
            + post("/open_session", {})
        )
        for _ in range(3):
            response = await client.response()
            assert response.header("x-specswitch-reason") == "eligibility:stored_state"

        assert len(it.base.requests) == 3


@pytest.mark.parametrize(
    ("allowed", "wanted", "expected"),
    [
        (True, "base", ("base", "override")),
        (True, "spec", ("spec", "override")),
        (True, "elsewhere", ("spec", "mode")),
        (False, "base", ("spec", "mode")),
    ],
)
async def test_override(allowed: bool, wanted: str, expected: tuple[str, str]) -> None:  # noqa: FBT001 - a parameter
    """The client's wish counts only where it is allowed, and only if it names an upstream."""
    async with rig(policy__allow_override=allowed) as it:
        client = await it.client()
        client.send(post("/generate", {"text": "a"}, headers={"X-Specswitch-Route": wanted}))
        response = await client.response()

        assert response.header("x-specswitch-upstream") == expected[0]
        assert response.header("x-specswitch-reason") == expected[1]


async def test_bodies_too_large_to_peek_prefer_base() -> None:
    """A body over `max_peek_bytes` is not read to decide; base serves it."""
    async with rig(limits__max_peek_bytes=50) as it:
        client = await it.client()
        client.send(post("/generate", {"text": "a" * 100}))

        assert (await client.response()).header("x-specswitch-reason") == "eligibility:unpeeked"


async def test_usage_becomes_metrics() -> None:
    """Tokens and time per token come from usage, streamed or not."""
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    async with rig() as it:
        it.spec.script(Send(stream(event(1), event(2), event({"choices": [], **usage}), DONE)))
        it.spec.script(Send(reply(json.dumps(usage).encode())))
        it.spec.script(Send(reply(b'{"usage":' + b" " * 70_000 + b"{}}")))
        client = await it.client()
        for request in (CHAT_STREAM, CHAT, CHAT):
            client.send(post("/v1/chat/completions", request))
            await client.response()

        assert it.metric("output_tokens_total", upstream="spec") == 10
        assert it.metric("time_per_output_token_seconds_count", upstream="spec") == 1
        assert it.metric("time_to_first_token_seconds_count", upstream="spec") == 1
