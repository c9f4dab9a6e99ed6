"""A body passes as it is: whatever a client sends, and whatever an engine answers.

The JSON of a body is the engine's to judge; compression is between it and the client.
"""

import asyncio
import gzip
import hashlib
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import cast

import pytest

from tests.harness.client import CHAT_STREAM, post
from tests.harness.running import rig
from tests.harness.upstream import (
    END,
    Received,
    ScriptedUpstream,
    Send,
    Silence,
    chunk,
    reply,
)

CHAT_PATH = "/v1/chat/completions"
RECORDED = (Path(__file__).parent.parent / "data" / "chat-stream-usage.sse").read_bytes()
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


ODD_BODIES = {
    "unknown fields": b'{"rid":"r","chat_template_kwargs":{"x":[{}]},"priority":1,"z":null}',
    "order and spaces": b' {"b":1 ,\t"a" : [ 1 , 2 ] }\r\n',
    "a huge integer": b'{"seed":18446744073709551617,"x":-9223372036854775809}',
    "numbers as written": b'{"temperature":1e-7,"top_p":1.0,"x":1E+2,"y":-0.0,"z":0.10}',
    "an infinite number": b'{"temperature":1e999}',
    "NaN": b'{"temperature":NaN,"x":-Infinity}',
    "duplicate keys": b'{"n":1,"n":2,"stream":false,"model":"a","model":"b"}',
    "NUL": b'{"model":"a\\u0000b","prompt":"\\u0000"}',
    "half a pair": b'{"prompt":"\\ud800","text":"\\udc00\\ud800"}',
    "escapes as written": b'{"prompt":"\\u0041\\/\\u00e9\xc3\xa9"}',
    "a byte order mark": b'\xef\xbb\xbf{"prompt":"a"}',
    "UTF-16": '{"prompt":"é"}'.encode("utf-16"),
    "UTF-32": '{"prompt":"é"}'.encode("utf-32"),
    "bytes that are no UTF-8": b'{"prompt":"\xff\xfe\x80"}',
    "control bytes": b'{"prompt":"\x00\x01\x1f"}',
    "deep nesting": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nesting without end": b'{"a":' * 100_000,
    "half a body": b'{"model":"a","messages":[{"role"',
    "nothing": b"",
    "an open brace": b"{",
    "a list": b"[]",
    "null": b"null",
    "a string": b'"x"',
    "no model": b'{"messages":[]}',
    "an odd stream": b'{"stream":"yes","n":"2","max_tokens":"9"}',
    "wrong kinds": b'{"model":{},"messages":3,"n":[],"stream":[1],"sampling_params":"x"}',
    "XML": b"<?xml version='1.0'?><a/>",
    "gzip": gzip.compress(b'{"prompt":"a"}', mtime=0),
    "all bytes": bytes(range(256)) * 300,
}


@pytest.mark.parametrize("path", GENERATION_PATHS)
async def test_a_body_arrives_as_it_is(path: str) -> None:
    """Whatever it is, byte for byte, counted and chunked; the engine judges it, and nobody else.

    vllm-project/router#161, sgl-project/sglang#8500: typed parsing drops what it does not know.
    vllm-project/production-stack#1017: malformed JSON was a 500 of the proxy's own.
    """
    answer = reply(b'{"object":"error", "code":400}', status="400 Bad Request")
    async with rig() as it:
        it.spec.always(Send(answer))
        it.base.always(Send(answer))
        client = await it.client()
        for name, body in ODD_BODIES.items():
            for request in (post(path, body), in_chunks(path, body)):
                client.send(request)
                response = await client.response()
                (received,) = it.spec.requests + it.base.requests
                it.spec.requests.clear()
                it.base.requests.clear()

                assert hashlib.sha256(received.body).digest() == hashlib.sha256(body).digest(), name
                assert response.status == 400, name
                assert response.body == b'{"object":"error", "code":400}', name


def in_chunks(path: str, body: bytes) -> bytes:
    """A POST whose body comes in chunks of 1,000 bytes, and says that it is something else."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/x-odd\r\n"
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    chunks = b"".join(map(chunk, pieces))
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + END


@pytest.mark.parametrize("path", GENERATION_PATHS)
async def test_a_compressed_body_is_not_inflated(path: str) -> None:
    """getsentry/relay#5624: 10 MB of zeros arrive as the 10 kB that they are, and unpeeked.

    An engine may inflate them (SGLang knows zstd), so base is preferred: it serves anything right.
    """
    bomb = gzip.compress(b'{"min_p":0.1,"x":"' + b"0" * 10_000_000 + b'"}', mtime=0)
    async with rig(limits__max_body_bytes=100_000) as it:
        client = await it.client()
        client.send(post(path, bomb, headers={"Content-Encoding": "gzip"}))
        response = await client.response()
        (received,) = it.base.requests

        assert response.header("x-specswitch-reason") == "eligibility:unpeeked"
        assert received.body == bomb
        assert received.header("content-encoding") == "gzip"


async def test_a_form_arrives_as_it_is() -> None:
    """gpustack/gpustack#5226: 8 MiB of audio in a form, `model` behind it, boundary and all."""
    boundary = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
    audio = Random(1).randbytes(8 << 20)
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n".encode()
        + audio
        + f'\r\n--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper'
        f"\r\n--{boundary}--\r\n".encode()
    )
    kind = f"multipart/form-data; boundary={boundary}"
    async with rig() as it:
        client = await it.client()
        request = post("/v1/audio/transcriptions", body)
        client.send(request.replace(b"application/json", kind.encode(), 1))
        response = await client.response()
        (received,) = it.base.requests

        assert response.status == 200
        assert received.header("content-type") == kind
        assert received.body == body


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("asked", [None, "gzip", "br;q=1.0, *;q=0", ""])
async def test_compression_is_between_client_and_engine(streamed: bool, asked: str | None) -> None:  # noqa: FBT001 - a parameter
    """A compressed answer passes as it is; the engine sees what the client asked for, or nothing.

    vllm-project/production-stack#827: the answer was inflated and still called gzip.
    radixark/miles#851: its length was the old one.
    """
    plain = RECORDED
    packed = gzip.compress(plain, mtime=0)
    headers = {} if asked is None else {"Accept-Encoding": asked}
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
    chunks = b"transfer-encoding: chunked\r\n\r\n" + b"".join(
        chunk(packed[at : at + 100]) for at in range(0, len(packed), 100)
    )
    length = b"content-length: %d\r\n\r\n" % len(packed) + packed
    async with rig() as it:
        it.spec.script(Send(head + (chunks + END if streamed else length)))
        client = await it.client()
        client.send(post(CHAT_PATH, CHAT_STREAM, headers=headers))
        response = await client.response()
        (request,) = it.spec.requests

        assert request.header("accept-encoding") == asked
        assert response.body == packed
        assert response.header("content-encoding") == "gzip"
        assert gzip.decompress(response.body) == plain


# Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GENERATION_PATHS)
@pytest.mark.parametrize("stream_it", [False, True])
async def test_an_engines_error_is_the_clients(path: str, stream_it: bool) -> None:  # noqa: FBT001 - a parameter
    """BerriAI/litellm#18756, lingyuins/octopus#152: status, type and bytes, streamed or not."""
    body = b'{"object":"error","message":"context_length_exceeded", "code" :400}\n'
    async with rig() as it:
        client = await it.client()
        for status in ("400 Bad Request", "401 X", "404 X", "413 X", "422 X", "429 X", "503 X"):
            answer = reply(body, status=status, headers={"retry-after": "7"})
            it.spec.script(Send(answer))
            if status[:3] in {"429", "503"}:  # a refusal by spec is tried at base
                it.base.script(Send(answer))
            client.send(post(path, {"model": "m", "stream": stream_it}))
            response = await client.response()

            assert response.status == int(status[:3])
            assert response.body == body
            assert response.header("content-type") == "application/json"
            assert response.header("retry-after") == "7"


@pytest.mark.parametrize("status", [413, 401, 400])
async def test_an_engine_that_answers_before_it_has_read(status: int) -> None:
    """dotnet/yarp#1624: its answer is passed on, not a 502, while we are still sending the body."""
    answer = reply(b'{"early":true}', status=f"{status} Early", headers={"connection": "close"})
    async with rig(spec=Early(answer), policy__control="spec") as it:
        for _ in range(5):
            client = await it.client()
            client.send(post("/generate", b"x" * (20 << 20)))
            response = await client.response()

            assert (response.status, response.body) == (status, b'{"early":true}')
            client.close()


class Early(ScriptedUpstream):
    """An engine that answers after the first 64 KiB of a body, reads no more, and closes."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(speculative=True)
        self._answer = answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._answer_early(reader, writer)
        self._tasks.discard(task)
        writer.close()

    async def _answer_early(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("POST"):
                break
            probe = self._probe_answer(Received(head.partition("\r")[0], [], b"", 0, writer))
            writer.write(probe or reply(b'{"data":[]}'))
        await reader.readexactly(1 << 16)
        cast("asyncio.Transport", writer.transport).pause_reading()
        writer.write(self._answer)
        await writer.drain()


async def test_half_an_answer_in_time() -> None:
    """sgl-project/sglang#39463: too late is not broken, and is told apart wherever it is told.

    After the head nothing can be answered any more, be it 502 or 504: the client sees an answer
    that is cut short, and the books a failure in mid-stream.
    """
    async with rig(timeouts__response=0.1) as it:
        it.spec.script(Send(reply(b'{"half":1}')[:-4]), Silence())
        client = await it.client()
        client.send(post("/generate", {"text": "a"}))
        response = await client.response()

        assert (response.status, response.complete) == (200, False)
        assert it.metric("midstream_failures_total", upstream="spec") == 1
        assert it.total("requests_total", upstream="spec", outcome="failed") == 1
