"""Multipart audio: the form passes untouched, and what is streamed for it is a stream to us."""

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from tests.harness.client import RawClient
from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    ByHand,
    Received,
    Send,
    chunk,
    event,
    reply,
    stream,
)

PATH = "/v1/audio/transcriptions"
BOUNDARY = "----a'(b)+_,-./:=?"
SHORT = 0.2
DELTA = event({"object": "transcription.chunk", "choices": [{"delta": {"content": "hello"}}]})
LAST = event(
    {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
)


def form(audio: bytes, *, streamed: bool = False) -> bytes:
    """A form as a client writes it, with a file that may hold anything."""
    fields = {"model": "tiny", **({"stream": "true"} if streamed else {})}
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="ä.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), audio, f"\r\n--{BOUNDARY}--\r\n".encode()])


def head(framing: str) -> bytes:
    """The head of an upload."""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: test\r\n"
        f'Content-Type: multipart/form-data; boundary="{BOUNDARY}"\r\n{framing}\r\n\r\n'
    ).encode()


def counted(body: bytes) -> bytes:
    """An upload whose length is known."""
    return head(f"Content-Length: {len(body)}") + body


def chunked(body: bytes, size: int) -> Iterator[bytes]:
    """The same in chunks."""
    yield head("Transfer-Encoding: chunked")
    for start in range(0, len(body), size):
        yield chunk(body[start : start + size])
    yield END


async def asked(it: Rig, body: bytes) -> tuple[RawClient, Received]:
    """A client that has sent a form, which base answers by hand."""
    it.base.script(ByHand())
    client = await it.client()
    client.send(counted(body))
    return client, (await it.base.received(1))[0]


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
@pytest.mark.parametrize("in_chunks", [False, True])
async def test_the_form_passes_untouched(size: int, in_chunks: bool) -> None:  # noqa: FBT001 - a parameter
    """Boundary, binary, large, and also what an upload without a length sends."""
    body = form(os.urandom(size) + b"\r\n--" + b"\0\xff\r\n\r\n")
    async with rig() as it:
        it.base.script(Send(reply(b'{"text":"hello"}')))
        client = await it.client()
        for piece in chunked(body, 70_000) if in_chunks else [counted(body)]:
            client.send(piece)
        response = await client.response()
        assert (response.status, response.body) == (200, b'{"text":"hello"}')
        (request,) = it.base.requests
        assert request.body == body
        assert request.header("content-type") == f'multipart/form-data; boundary="{BOUNDARY}"'
        assert request.header("content-length") == str(len(body))
        assert request.count("transfer-encoding") == 0
        assert not it.spec.requests
        assert it.total("in_flight") == 0


async def test_too_large_a_form() -> None:
    """413 as on every path; no engine has seen it."""
    async with rig(limits__max_body_bytes=1000) as it:
        client = await it.client()
        client.send(counted(form(b"x" * 1000)))
        assert (await client.response()).code == "body_too_large"
        assert not it.base.requests


async def test_a_stream_passes_piece_by_piece() -> None:
    """And is no generation: its tokens and times are not counted as that."""
    async with rig() as it:
        client, request = await asked(it, form(b"a", streamed=True))
        request.say(STREAM_HEAD)
        assert (await client.head())[0] == 200
        for piece in (DELTA, LAST, DONE):
            request.say(chunk(piece))
            assert await client.chunk() == piece
        request.say(END)
        request.over()
        assert await client.chunk() is None
        await it.until(
            lambda: it.total("requests_total", endpoint=PATH, outcome="ok") == 1, "counted"
        )
        assert it.total("output_tokens_total") == 0
        assert it.total("time_to_first_token_seconds_count") == 0


async def test_a_stream_that_falls_silent() -> None:
    """Its patience is that of streams from its head on, and it ends as they do: with an event."""
    async with rig(timeouts__between_chunks=SHORT) as it:
        client, request = await asked(it, form(b"a", streamed=True))
        request.say(STREAM_HEAD + chunk(DELTA))
        response = await asyncio.wait_for(client.response(), 5)
        assert not response.complete
        assert response.chunks[0] == DELTA
        assert json.loads(response.chunks[1][6:])["error"]["code"] == "upstream_timeout"
        await asyncio.wait_for(request.gone.wait(), 1)


async def test_a_stream_without_a_first_piece() -> None:
    """`first_byte` runs from its head on."""
    async with rig(timeouts__first_byte=SHORT) as it:
        client, request = await asked(it, form(b"a", streamed=True))
        request.say(STREAM_HEAD)
        response = await asyncio.wait_for(client.response(), 5)
        assert json.loads(response.body[6:])["error"]["code"] == "upstream_timeout"


async def test_what_is_not_streamed_has_its_time() -> None:
    """Neither of the two runs while a whole answer is made."""
    async with rig(timeouts__between_chunks=SHORT, timeouts__first_byte=SHORT) as it:
        client, request = await asked(it, form(b"a"))
        await asyncio.sleep(2 * SHORT)  # the time is what is tested
        request.say(reply(b'{"text":"late"}'))
        request.over()
        assert (await client.response()).body == b'{"text":"late"}'


async def test_an_engine_that_dies_in_a_stream() -> None:
    """An event says so, and the end is none."""
    async with rig() as it:
        client, request = await asked(it, form(b"a", streamed=True))
        request.say(STREAM_HEAD + chunk(DELTA))
        assert (await client.head())[0] == 200
        assert await client.chunk() == DELTA
        request.reset()
        told = await client.chunk()
        assert told is not None
        assert json.loads(told[6:])["error"]["code"] == "upstream_reset"
        with pytest.raises(ConnectionError):
            await client.chunk()


async def test_an_error_in_a_stream_is_a_failure() -> None:
    """It passes as it came, and is counted for what it is."""
    error = event({"error": {"message": "no", "type": "InternalServerError", "code": 500}})
    async with rig() as it:
        it.base.script(Send(stream(error, DONE)))
        client = await it.client()
        client.send(counted(form(b"a", streamed=True)))
        response = await client.response()
        assert (response.complete, response.chunks) == (True, [error, DONE])
        await it.until(
            lambda: it.total("requests_total", endpoint=PATH, outcome="failed") == 1, "counted"
        )
