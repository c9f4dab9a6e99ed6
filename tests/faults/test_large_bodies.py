"""Bodies of many megabytes pass in flat memory, and nobody else has to wait for them.

specswitch is a process of its own, whose peak of memory the kernel keeps.
"""

import asyncio
import hashlib
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.harness.client import CHAT_STREAM, RawClient, post
from tests.harness.memory import MIB, growth
from tests.harness.process import Specswitch
from tests.harness.upstream import END, STREAM_HEAD, ScriptedUpstream, Send, chunk, event

pytestmark = pytest.mark.slow

CHAT_PATH = "/v1/chat/completions"
LINE = b"".join(b"%07x " % number for number in range(MIB // 8))
"""A MiB without a line end, no two words of it alike."""

EVENTS = b"".join(event({"choices": [{"delta": {"content": "x" * 200}}]}) for _ in range(4000))


@asynccontextmanager
async def serving(
    tmp_path: Path, **settings: object
) -> AsyncIterator[tuple[Specswitch, ScriptedUpstream]]:
    """A process that sends everything to base, and that base."""
    async with ScriptedUpstream(speculative=True) as spec, ScriptedUpstream(speculative=False) as b:
        process = Specswitch(
            tmp_path / "log",
            spec_url=spec.url,
            base_url=b.url,
            policy_control="base",
            policy_crossover=4,
            **settings,
        )
        async with process:
            yield process, b


def counted(size: int) -> bytes:
    """The head of an answer with a length."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % size


ANSWERS = {
    "counted": (counted(100 * MIB), LINE, 100, b""),
    "chunked": (STREAM_HEAD.replace(b"event-stream", b"plain"), chunk(LINE), 100, END),
    "events": (STREAM_HEAD, chunk(EVENTS), 100, END),
    "one event": (STREAM_HEAD, chunk(LINE), 200, END),
    "one line, counted": (
        counted(200 * MIB).replace(b"text/plain", b"text/event-stream"),
        LINE,
        200,
        b"",
    ),
}


async def digest(client: RawClient) -> tuple[str, int]:
    """The sha256 and the length of the body that comes, chunks taken off."""
    _, headers = await client.head()
    seen, size = hashlib.sha256(), 0
    length = dict(headers).get("content-length")
    if length is not None:
        while size < int(length):
            piece = await client.reader.read(MIB)
            assert piece
            seen.update(piece)
            size += len(piece)
        return seen.hexdigest(), size
    while (data := await client.chunk()) is not None:
        seen.update(data)
        size += len(data)
    return seen.hexdigest(), size


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_large_answer(kind: str, tmp_path: Path) -> None:
    """100 MiB, or 200 without a line end, byte for byte, with less than 20 MiB of memory.

    NousResearch/hermes-agent#58471: who waits for the end of a line holds all of it. Here the watch
    gives up on an event that is too long; the relay goes on.
    """
    head, piece, times, end = ANSWERS[kind]
    payload = piece if not end else piece[piece.index(b"\r\n") + 2 : -2]
    expected = hashlib.sha256()
    for _ in range(times):
        expected.update(payload)
    async with serving(tmp_path) as (process, base):
        base.script(Send(head), *[Send(piece)] * times, *([Send(end)] if end else []))
        async with await RawClient.connect(process.port) as client:
            with growth(process.pid) as grown:
                client.send(post(CHAT_PATH, CHAT_STREAM))
                found = await digest(client)

        assert found == (expected.hexdigest(), times * len(payload))
        assert grown.peak < 20 * MIB


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_request(chunked: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """64 MiB, the default limit: held once, copied once, and given back."""
    body = LINE * 64
    request = post(CHAT_PATH, body)
    if chunked:
        head = (
            f"POST {CHAT_PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        request = head + chunk(LINE) * 64 + END
    async with serving(tmp_path) as (process, base):
        async with await RawClient.connect(process.port) as client:
            with growth(process.pid) as grown:
                client.send(request)
                response = await client.response()

        assert response.status == 200
        assert response.header("x-specswitch-upstream") == "base"
        assert hashlib.sha256(base.requests[0].body).digest() == hashlib.sha256(body).digest()
        assert grown.peak < 2.3 * len(body)
        assert grown.left < 40 * MIB


@pytest.mark.parametrize("size", [1.0, 8.5, 32.0, 63.9, 64.1, 100.0])
async def test_sizes_that_pictures_have(size: float, tmp_path: Path) -> None:
    """sgl-project/sglang#38735, sgl-project/sglang#6622: up to `max_body_bytes`, and then 413.

    Its default is 64 MiB; who needs 100 sets it.
    """
    body = b'{"messages":[],"x":"' + b"A" * (int(size * MIB) - 22) + b'"}'
    settings = {"limits_max_body_bytes": "100MiB"} if size == 100 else {}
    async with serving(tmp_path, **settings) as (process, base):
        async with await RawClient.connect(process.port) as client:
            client.send(post(CHAT_PATH, body))
            response = await client.response()

        fits = size < 64 or bool(settings)
        assert response.status == (200 if fits else 413)
        assert [request.body == body for request in base.requests] == [True] * fits


LIVEZ = """
import select, socket, sys, time
took = []
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as client:
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and not took[5000:]:
        begun = time.perf_counter()
        client.sendall(b"GET /livez HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
        answer = client.recv(1000)
        while not answer.endswith(b"ok\\n"):
            answer += client.recv(1000)
        took.append(time.perf_counter() - begun)
        time.sleep(0.005)  # the pace at which it asks
        if select.select([sys.stdin], [], [], 0)[0]:
            break
took.sort()
print(len(took), took[int(len(took) * 0.99)])
"""
"""Asks /livez every 5 ms until its input ends, and tells the 99th percentile in seconds."""


async def test_twenty_large_requests_at_once(tmp_path: Path) -> None:
    """20 bodies of 30 MiB: memory is bounded by what is held, and /livez answers meanwhile.

    vllm-project/production-stack#448: parsed where they come in, they would hold the loop for
    seconds; over `max_peek_bytes` they are not.
    """
    body = LINE * 30
    async with serving(tmp_path) as (process, base):
        asking = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LIVEZ, str(process.port), stdin=PIPE, stdout=PIPE
        )
        assert asking.stdout is not None
        assert await asking.stdout.readline() == b"ready\n"
        with growth(process.pid) as grown:
            heads = await asyncio.gather(*(uploaded(process.port, body) for _ in range(20)))
        told, _ = await asking.communicate(b"over")

        count, p99 = told.split()
        assert all(head.startswith(b"HTTP/1.1 200 OK\r\n") for head in heads)
        assert [request.body == body for request in base.requests] == [True] * 20
        assert grown.peak < 20 * len(body) * 1.5 + 60 * MIB
        assert int(count) > 20
        assert float(p99) < 0.25


async def uploaded(port: int, body: bytes) -> bytes:
    """The head of the answer to `body`."""
    async with await RawClient.connect(port) as client:
        client.send(post(CHAT_PATH, body))
        return await client.reader.readuntil(b"\r\n\r\n")


PLAIN = b'{"messages":[{"content":"' + b"x" * (8 * MIB - 30) + b'"}]}'
ODD = {
    "NaN": (CHAT_PATH, b'{"x":NaN,"y":[' + b"[[]]," * (8 * MIB // 5 - 20) + b"1]}"),
    "spaces": ("/v1/completions", b'{"prompt":[' + b" " * (8 * MIB - 20) + b"1]}"),
    "keys": (CHAT_PATH, b"{" + b'"n":1,' * (8 * MIB // 6 - 10) + b'"n":1}'),
    "sampling": ("/generate", b'{"sampling_params":[' + b"[]," * 250_000 + b"{}]}"),
    "sampling, NaN": ("/generate", b'{"sampling_params":[' + b"0," * 65_000 + b"NaN,{}]}"),
    "sampling each": ("/generate", b'{"sampling_params":[' + b'{"x":NaN},' * 4000 + b"{}]}"),
}


@pytest.mark.parametrize("kind", ODD)
async def test_odd_json_holds_nobody_up(kind: str, tmp_path: Path) -> None:
    """What is laborious to read costs some 10 ms a MiB and no more, or is not read at all.

    A reader that builds every value takes a second for what `max_peek_bytes` lets in, and nobody
    else is served meanwhile.
    """
    async with (
        serving(tmp_path) as (process, base),
        await RawClient.connect(process.port) as client,
    ):

        async def overhead(path: str, body: bytes) -> float:
            """Seconds from having a body to having sent it on."""
            found = []
            for _ in range(3):
                before = await asyncio.to_thread(process.metric, "proxy_overhead_seconds_sum")
                client.send(post(path, body))
                assert (await client.response()).status == 200
                assert base.requests.pop().body == body
                after = await asyncio.to_thread(process.metric, "proxy_overhead_seconds_sum")
                found.append(after - before)
            return min(found)

        path, body = ODD[kind]
        plain = await overhead(CHAT_PATH, PLAIN)
        assert await overhead(path, body) < 15 * plain + 0.1
