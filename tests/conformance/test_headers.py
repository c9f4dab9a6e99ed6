"""Headers and framing: nothing doubled, lost or invented, and every end marked as HTTP marks it."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.client import CHAT_STREAM, get, post
from tests.harness.running import rig
from tests.harness.upstream import (
    DONE,
    Fin,
    Gate,
    Send,
    event,
    reply,
    stream,
)

CHAT_PATH = "/v1/chat/completions"
RECORDED = (Path(__file__).parent.parent / "data" / "chat-stream-usage.sse").read_bytes()


END_TO_END = [
    ("Accept", "*/*"),
    ("accept", "text/event-stream"),
    ("User-Agent", "OpenAI/Python 3"),
    ("X-Empty", ""),
    ("X-Odd", 'a, \tb;c="d" \xe9\xff'),
    ("Cookie", "a=b; c=d"),
    ("Cookie", "e=f"),
    ("Authorization", "Bearer key"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("X-Forwarded-For", "1.2.3.4"),
    ("X-UPPER", "kept"),
    ("Content-Type", "application/json; charset=utf-8"),
    ("Range", "bytes=0-1"),
    ("If-None-Match", '"x"'),
]
HOP_BY_HOP = [
    ("Connection", "X-Foo, keep-alive"),
    ("X-Foo", "1"),
    ("Keep-Alive", "timeout=5"),
    ("TE", "trailers"),
    ("Trailer", "X-Sum"),
    ("Upgrade", "h2c"),
    ("Proxy-Authorization", "Basic x"),
    ("Proxy-Connection", "keep-alive"),
]


def with_headers(first: str, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """A message with exactly these headers and a length."""
    lines = [first, *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body


async def test_the_headers_of_a_request() -> None:
    """Nothing is doubled, lost or invented: the whole list, its order, its spelling.

    plabayo/rama#1150, vaadin/flow#24092: what is for one hop, by itself or because `Connection`
    names it, does not pass.
    """
    lines = [("Host", "theirs"), *END_TO_END[:6], *HOP_BY_HOP, *END_TO_END[6:]]
    async with rig() as it:
        client = await it.client()
        client.send(with_headers("POST /generate HTTP/1.1", [*lines, ("X-Request-Id", "r")], b"{}"))
        await client.response()
        (request,) = it.spec.requests

        assert request.headers == [
            ("host", f"127.0.0.1:{it.spec.port}"),
            ("x-request-id", "r"),
            ("x-specswitch-attempt", "1"),
            *END_TO_END,
            ("content-length", "2"),
        ]


async def test_the_headers_of_an_answer() -> None:
    """The engine's whole list as it came, and then the three that are ours.

    mostlygeek/llama-swap#236: what tells other hops not to hold a stream back is the engine's to
    say; it passes, once. Nothing of the kind is invented.
    """
    lines = [
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("server", "uvicorn"),
        ("X-Accel-Buffering", "no"),
        ("Cache-Control", "no-cache"),
        ("Set-Cookie", "a=b"),
        ("Set-Cookie", "c=d"),
        ("X-Odd", 'a;b="c" \xe9'),
        ("X-Empty", ""),
        ("WWW-Authenticate", "Bearer"),
    ]
    hop = [("Connection", "X-Foo, keep-alive"), ("X-Foo", "1"), ("Keep-Alive", "timeout=5")]
    async with rig() as it:
        it.spec.script(
            Send(with_headers("HTTP/1.1 200 Fine", [*lines[:4], *hop, *lines[4:]], b"{}"))
        )
        client = await it.client()
        client.send(post("/generate", {"text": "a"}, headers={"X-Request-Id": "r"}))
        response = await client.response()

        assert response.headers == [
            *lines,
            ("content-length", "2"),
            ("x-request-id", "r"),
            ("x-specswitch-upstream", "spec"),
            ("x-specswitch-reason", "mode"),
        ]


async def test_the_headers_of_a_stream() -> None:
    """A stream's framing is ours, and nothing else is added."""
    async with rig() as it:
        it.spec.script(Send(stream(event(1), DONE)))
        client = await it.client()
        client.send(post(CHAT_PATH, CHAT_STREAM, headers={"X-Request-Id": "r"}))
        response = await client.response()

        assert response.headers == [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("x-request-id", "r"),
            ("x-specswitch-upstream", "spec"),
            ("x-specswitch-reason", "mode"),
            ("transfer-encoding", "chunked"),
        ]


async def test_one_id_for_two_requests() -> None:
    """vllm-project/vllm#10583: ids are for people; two requests with one id are two requests."""
    async with rig() as it:
        gates = [asyncio.Event(), asyncio.Event()]
        clients = [await it.client() for _ in gates]
        for number, (client, gate) in enumerate(zip(clients, gates, strict=True)):
            it.spec.script(Gate(gate), Send(reply(b"%d" % number)))
            client.send(post("/generate", {"text": "a"}, headers={"X-Request-Id": "same"}))
            await it.spec.received(number + 1)
        assert it.app.dispatcher.in_flight.total == 2
        for number, (client, gate) in reversed(list(enumerate(zip(clients, gates, strict=True)))):
            gate.set()
            response = await client.response()

            assert (response.body, response.header("x-request-id")) == (b"%d" % number, "same")


# Framing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", []),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", []),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", []),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", []),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", [b"5"]),
    ],
)
async def test_answers_without_a_body_leave_the_connection_usable(
    answer: bytes, length: list[bytes]
) -> None:
    """RFC 9112 section 6.3: no body, whatever length is announced; the next answer is the next."""
    async with rig() as it:
        it.base.always(Send(answer))
        client = await it.client()
        for method in ("GET", "HEAD"):
            client.send(get("/v1/models", method=method) + get("/livez"))
            first, _, rest = (await client.reader.readuntil(b"ok\n")).partition(b"\r\n\r\n")

            assert re.findall(rb"content-length: (\d+)", first) == length
            assert b"transfer-encoding" not in first
            assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("framing", ["chunked", "counted", "closed"])
async def test_head_has_no_body(framing: str) -> None:
    """However the engine marks the end of what it answers to the GET."""
    answers = {
        "chunked": (Send(stream(b"body")),),
        "counted": (Send(reply(b"body")),),
        "closed": (Send(b"HTTP/1.1 200 OK\r\n\r\nbody"), Fin()),
    }
    async with rig() as it:
        it.base.always(*answers[framing])
        client = await it.client()
        for _ in range(2):
            client.send(get("/v1/models", method="HEAD") + get("/livez"))
            first, _, rest = (await client.reader.readuntil(b"ok\n")).partition(b"\r\n\r\n")

            assert (b"content-length: 4" in first) is (framing == "counted")
            assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("stream_it", [False, True])
async def test_http_1_0(stream_it: bool) -> None:  # noqa: FBT001 - a parameter
    """confidential-dot-ai/c8s#144: no chunks to who cannot read them, and no byte missing."""
    body = RECORDED
    async with rig() as it:
        it.spec.script(Send(stream(RECORDED) if stream_it else reply(body)))
        client = await it.client()
        client.send(post(CHAT_PATH, CHAT_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
        response = await client.response()

        assert response.header("transfer-encoding") is None
        assert response.header("connection") == "close"
        assert response.body == body
        assert await client.at_end()


@pytest.mark.parametrize(
    ("size", "key", "status"),
    [(500, "right", 100), (500, "wrong", 401), (2000, "right", 413)],
)
async def test_continue_is_said_only_where_the_body_is_wanted(
    size: int, key: str, status: int
) -> None:
    """Kludex/uvicorn#88: at once where we take the body, and never where the head is refused."""
    async with rig(limits__max_body_bytes=1000, auth__api_keys={"team": "right"}) as it:
        client = await it.client()
        headers = {"Expect": "100-Continue", "Authorization": f"Bearer {key}"}
        head, blank, body = post(CHAT_PATH, b"x" * size, headers=headers).partition(b"\r\n\r\n")
        client.send(head + blank)

        assert (await client.head())[0] == status
        if status == 100:
            client.send(body)
            assert (await client.response()).status == 200
        assert [request.header("expect") for request in it.spec.requests] == [None] * (
            status == 100
        )
