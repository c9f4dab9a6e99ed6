"""The simulated pair over real sockets: connections, disconnects, back-pressure, life and death."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
import uvloop

from proxy.control.engine import connect, read_counters, read_load
from proxy.core.words import UpstreamName
from proxy.sim.engine import Limits
from proxy.sim.options import PairOptions
from proxy.sim.physics import FOUNDING
from proxy.sim.server import SimulatedPair

BASE, SPEC = UpstreamName.BASE, UpstreamName.SPEC

PATIENCE = 10.0
"""Seconds after which something will not come any more, also on a busy machine."""


@asynccontextmanager
async def _pair(**options: object) -> AsyncIterator[SimulatedPair]:
    """A pair that is fast unless it is told otherwise, and that leaves nothing behind."""
    before = asyncio.all_tasks()
    async with SimulatedPair(PairOptions(**{"time_scale": 100.0, **options})) as pair:  # type: ignore[arg-type]  # the test's own names
        yield pair
    assert asyncio.all_tasks() == before


class _Wire:
    """A client that writes and reads bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def post(self, path: str, body: object, *lines: str) -> None:
        raw = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *lines]
        head += [f"content-length: {len(raw)}", "", ""]
        self.writer.write("\r\n".join(head).encode() + raw)

    def get(self, path: str, *lines: str) -> None:
        self.writer.write("\r\n".join([f"GET {path} HTTP/1.1", "host: x", *lines, "", ""]).encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = raw.rstrip().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in fields.items()}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, fields = await self.head()
        return status, fields, await self.reader.readexactly(int(fields["content-length"]))

    async def chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def end(self) -> bytes:
        """What comes before the server closes."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def events(self) -> list[bytes]:
        """Chunks up to the last one."""
        pieces = []
        while piece := await self.chunk():
            pieces.append(piece)
        return pieces


@asynccontextmanager
async def _wire(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[_Wire]:
    host, port = url.removeprefix("http://").split(":")
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except OSError:
        sock.close()
        raise
    wire = _Wire(*await asyncio.open_connection(sock=sock))
    try:
        yield wire
    finally:
        wire.writer.transport.abort()
        with suppress(ConnectionError):
            await wire.writer.wait_closed()


async def _until(true: Callable[[], bool]) -> None:
    """Wait until the predicate holds."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110  the pair is asked as a client would, by its load
            await asyncio.sleep(0.001)


async def _metric(url: str, name: str) -> float:
    """The sum over the labels of a metric; 0 where it is not shown yet."""
    async with httpx2.AsyncClient() as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"sglang:{name}{{"))


def _chat(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


ENDLESS = {"max_tokens": 10_000, "ignore_eos": True}
"""Eighty seconds on an unhurried engine."""


async def test_speculative_and_plain_text_are_the_same() -> None:
    """Both engines say the same; one in a chunk for each token, the other in fewer."""
    contents, chunks = [], []
    async with _pair() as pair:
        for url in (pair.spec_url, pair.base_url):
            async with _wire(url) as wire:
                wire.post("/v1/chat/completions", _chat(stream=True, max_tokens=60))
                status, _ = await wire.head()
                assert status == 200
                made = await wire.events()
                assert made[-1] == b"data: [DONE]\n\n"
                deltas = [json.loads(one[6:])["choices"][0]["delta"] for one in made[1:-2]]
                contents.append("".join(delta["content"] for delta in deltas))
                chunks.append(len(deltas))
    assert contents[0] == contents[1]
    assert chunks[1] == 60
    assert chunks[0] < 40


async def test_both_pages_count_verify_rounds_alike() -> None:
    """Tokens of a verify round come out as in the profile, from the load and from the metrics."""
    async with _pair(seed=3) as pair:
        read = []
        for url in (pair.spec_url, pair.base_url):
            async with connect(url, api_key=None, tls=None, timeout=PATIENCE) as client:
                assert (await read_load(client)).decoded is None
                body = _chat(max_tokens=3_000, ignore_eos=True, n=2)
                (await client.post("/v1/chat/completions", json=body)).raise_for_status()
                read.append(((await read_load(client)).decoded, await read_counters(client)))
        (drafted, spec), (plain, base) = read
    assert drafted is not None
    assert plain is not None
    assert spec is not None
    assert base is not None
    mean = FOUNDING.acceptance_length
    assert drafted.tokens / drafted.times == pytest.approx(mean, rel=0.1)
    assert drafted.times == spec.rounds
    # What was accepted beyond an end is decoded, and no part of the answer.
    assert 0 <= drafted.tokens - spec.verified.tokens < 2 * 6
    assert plain.tokens == plain.times == 2 * 2_999
    assert (base.rounds, base.ended.tokens, base.ended.times) == (0, 6_000, 2)


async def test_latency_follows_the_model() -> None:
    """A plain reply of 100 tokens takes its prefill and 99 steps, at the pace of the pair."""
    async with _pair(time_scale=10.0) as pair, httpx2.AsyncClient() as client:
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        answer = (await client.post(f"{pair.base_url}/generate", json=body)).json()
    model = (0.003 + 99 * 0.008) / 10
    # Never sooner than the model; later by what a busy machine makes a timer late.
    assert 0.999 * model <= answer["meta_info"]["e2e_latency"] < model + 0.5


async def test_requests_on_one_connection() -> None:
    """A connection is kept, and pipelined requests are answered in their order."""
    async with _pair() as pair, _wire(pair.base_url) as wire:
        wire.get("/ready")
        assert (await wire.answer())[0] == 200
        wire.post("/v1/chat/completions", _chat(max_tokens=3, rid="first"))
        wire.post("/generate", {"text": "x", "stream": True, "rid": "second"})
        wire.get("/v1/models")
        wire.post("/v1/chat/completions", _chat(max_tokens=3, rid="last"))
        assert json.loads((await wire.answer())[2])["id"] == "first"
        assert (await wire.head())[1]["transfer-encoding"] == "chunked"
        assert b'"id":"second"' in (await wire.events())[0]
        assert json.loads((await wire.answer())[2])["object"] == "list"
        assert json.loads((await wire.answer())[2])["id"] == "last"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_wants_to_close(stream: bool) -> None:  # noqa: FBT001  a parameter of the test
    """With `Connection: close` the answer says so too and is the last."""
    async with _pair() as pair, _wire(pair.base_url) as wire:
        body = _chat(stream=stream, max_tokens=3)
        wire.post("/v1/chat/completions", body, "connection: close")
        _, fields = await wire.head()
        assert fields["connection"] == "close"
        rest = await wire.end()
        assert rest.endswith(b"0\r\n\r\n" if stream else b"}")


async def test_an_old_client() -> None:
    """HTTP/1.0 is answered and closed."""
    async with _pair() as pair, _wire(pair.base_url) as wire:
        wire.writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
        assert (await wire.answer())[0] == 200
        assert await wire.end() == b""


async def test_a_chunked_body() -> None:
    """Bodies may come in pieces."""
    async with _pair() as pair, _wire(pair.base_url) as wire:
        wire.writer.write(
            b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n8\r\n"
        )
        for piece in (b'{"text":', b"\r\n5\r\n", b'"hi"}', b"\r\n0\r\n\r\n"):
            wire.writer.write(piece)
        status, _, body = await wire.answer()
        assert status == 200
        assert json.loads(body)["meta_info"]["completion_tokens"] == 64


async def test_a_client_that_asks_first() -> None:
    """`Expect: 100-continue` gets its go-ahead before the body."""
    async with _pair() as pair, _wire(pair.base_url) as wire:
        wire.writer.write(
            b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"expect: 100-continue\r\ncontent-length: 12\r\n\r\n"
        )
        assert await wire.head() == (100, {})
        wire.writer.write(b'{"text":"x"}')
        assert (await wire.answer())[0] == 200


async def test_an_offer_of_an_upgrade() -> None:
    """Another protocol is not taken up; this request and the next are answered all the same."""
    async with _pair() as pair, _wire(pair.base_url) as wire:
        wire.get("/v1/models", "connection: upgrade", "upgrade: h2c")
        assert (await wire.answer())[0] == 200
        wire.get("/ready")
        assert (await wire.answer())[0] == 200


async def test_what_is_not_http() -> None:
    """The answer of uvicorn, then the end; what was under way is aborted."""
    async with _pair(time_scale=1.0) as pair, _wire(pair.base_url) as wire:
        wire.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 10_000}})
        wire.writer.write(b"nonsense\r\n\r\n")
        status, _, body = await wire.answer()
        assert (status, body) == (400, b"Invalid HTTP request received.")
        assert await wire.end() == b""
        assert pair.load(BASE).running + pair.load(BASE).waiting == 0


async def test_an_idle_connection_is_closed() -> None:
    """As SGLang does after five seconds; one that is being used is not."""
    async with _pair(keep_alive=0.05, time_scale=1.0) as pair, _wire(pair.base_url) as wire:
        wire.post("/v1/chat/completions", _chat(max_tokens=20))  # takes 160 ms
        assert (await wire.answer())[0] == 200
        assert await wire.end() == b""


async def test_a_request_that_comes_slowly() -> None:
    """A connection on which a request has begun is not idle, however long the rest takes."""
    async with (
        _pair(keep_alive=0.2) as pair,
        _wire(pair.base_url) as slow,
        _wire(pair.base_url) as idle,
    ):
        slow.get("/ready")
        await slow.answer()
        slow.writer.write(b"GET /ready HT")
        idle.get("/ready")
        await idle.answer()
        assert await idle.end() == b""
        slow.writer.write(b"TP/1.1\r\nhost: x\r\n\r\n")
        assert (await slow.answer())[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
async def test_when_the_head_comes(path: str) -> None:
    """Chat says nothing before its first token; /generate says 200 at once."""
    one = Limits(max_running=1)
    async with (
        _pair(base=one, time_scale=1.0) as pair,
        _wire(pair.base_url) as first,
        _wire(pair.base_url) as wire,
    ):
        first.post("/v1/chat/completions", _chat(**ENDLESS))
        await _until(lambda: pair.load(BASE).running == 1)
        wire.post(path, {**_chat(stream=True, max_tokens=2), "text": "x"})
        await _until(lambda: pair.load(BASE).waiting == 1)
        if path == "/generate":
            assert (await wire.head())[0] == 200
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wire.head(), timeout=0.05)
            first.writer.transport.abort()
            assert (await wire.head())[0] == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_a_client_that_leaves(how: str, stream: bool) -> None:  # noqa: FBT001  a parameter of the test
    """Its sequence is aborted at once, streamed or not, whether it closes or only says FIN."""
    async with _pair(time_scale=1.0) as pair:
        async with _wire(pair.spec_url) as wire:
            wire.post("/v1/chat/completions", _chat(stream=stream, n=2, **ENDLESS))
            if stream:
                await wire.head()
            await _until(lambda: pair.load(SPEC).running == 2)
            if how == "fin":
                wire.writer.write_eof()
            else:
                wire.writer.transport.abort()
            await _until(lambda: pair.load(SPEC).running == 0)
        assert pair.load(SPEC).counters.aborted == 2
        assert await _metric(pair.spec_url, "num_aborted_requests_total") == 2.0
        assert await _metric(pair.base_url, "num_aborted_requests_total") == 0.0


async def test_a_client_that_leaves_the_queue() -> None:
    """A sequence that waits is aborted as well."""
    one = Limits(max_running=1)
    async with _pair(base=one, time_scale=1.0) as pair, _wire(pair.base_url) as first:
        first.post("/v1/chat/completions", _chat(**ENDLESS))
        await _until(lambda: pair.load(BASE).running == 1)
        async with _wire(pair.base_url) as wire:
            wire.post("/v1/chat/completions", _chat(**ENDLESS))
            await _until(lambda: pair.load(BASE).waiting == 1)
        await _until(lambda: pair.load(BASE).waiting == 0)
        assert pair.load(BASE).running == 1


PATHS = ["/v1/chat/completions", "/v1/completions", "/generate"]


def _endless(path: str, rid: str, **fields: object) -> dict[str, object]:
    """A body for any of those paths, of a reply that does not end by itself."""
    params = {"max_new_tokens": 10_000, "ignore_eos": True}
    own = {"text": "x", "sampling_params": params} if path == "/generate" else {"prompt": "x"}
    return {**_chat(**ENDLESS), **own, "rid": rid, **fields}


def _reasons(path: str, told: dict[str, Any]) -> list[object]:
    """How the replies of a body, or of an event, have ended."""
    if path == "/generate":
        return [told["meta_info"]["finish_reason"]]
    return [choice["finish_reason"] for choice in told["choices"]]


def _abort_of(path: str, *, waits: bool) -> object:
    if path != "/generate":
        return "abort"
    if waits:
        return {"type": "abort", "message": "Abort in waiting queue"}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("body", [{"rid": "one"}, {"abort_all": True}])
@pytest.mark.parametrize("path", PATHS)
async def test_a_request_that_is_aborted(path: str, body: dict[str, object], waits: bool) -> None:  # noqa: FBT001  a parameter of the test
    """Its answer ends as if it were whole, with that reason; its place is free."""
    limits = Limits(max_running=1) if waits else Limits(max_running=2)
    async with _pair(base=limits, time_scale=1.0) as pair, _wire(pair.base_url) as first:
        first.post("/generate", _endless("/generate", "other"))
        await _until(lambda: pair.load(BASE).running == 1)
        async with _wire(pair.base_url) as wire, _wire(pair.base_url) as operator:
            wire.post(path, _endless(path, "one"))
            both = (1, 1) if waits else (2, 0)
            await _until(lambda: (pair.load(BASE).running, pair.load(BASE).waiting) == both)
            operator.post("/abort_request", body)
            assert (await operator.answer())[::2] == (200, b"")
            status, _, raw = await wire.answer()
            assert status == 200
            assert _reasons(path, json.loads(raw)) == [_abort_of(path, waits=waits)]
            left = 0 if "abort_all" in body else 1
            assert pair.load(BASE).running == left
            assert pair.load(BASE).waiting == 0
            assert pair.load(BASE).counters.aborted == 2 - left
            assert await _metric(pair.base_url, "num_aborted_requests_total") == 2.0 - left


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_is_aborted(path: str, waits: bool) -> None:  # noqa: FBT001  a parameter of the test
    """Its last event says so, once, and [DONE] follows; the connection goes on."""
    async with _pair(base=Limits(max_running=1), time_scale=1.0) as pair, AsyncExitStack() as stack:
        first, wire, operator = [
            await stack.enter_async_context(_wire(pair.base_url)) for _ in range(3)
        ]
        if waits:
            first.post("/generate", _endless("/generate", "other"))
            await _until(lambda: pair.load(BASE).running == 1)
        wire.post(path, _endless(path, "one", stream=True))
        wire.post("/generate", {"text": "y", "sampling_params": {"max_new_tokens": 1}})
        if waits:
            await _until(lambda: pair.load(BASE).waiting == 1)
        else:
            await _until(lambda: pair.load(BASE).counters.output_tokens > 3)
        operator.post("/abort_request", {"rid": "one"})
        assert (await operator.answer())[0] == 200
        assert (await wire.head())[0] == 200
        *made, done = await wire.events()
        assert done == b"data: [DONE]\n\n"
        reasons = [each for event in made for each in _reasons(path, json.loads(event[6:]))]
        assert [each for each in reasons if each] == [_abort_of(path, waits=waits)]
        assert reasons[-1]
        if waits:
            operator.post("/abort_request", {"rid": "other"})
        assert (await wire.answer())[0] == 200


@pytest.mark.parametrize(
    ("rid", "left"),
    [("a", 1), ("a1", 2), ("c", 3), ("a12", 3), ("", 3), (None, 3)],
)
async def test_which_requests_an_id_aborts(rid: str | None, left: int) -> None:
    """One that is known, and those whose ids begin so; on this engine alone."""
    async with _pair(time_scale=1.0) as pair, AsyncExitStack() as stack:
        for url, own in [(pair.base_url, each) for each in ("a", "a1", "b")] + [
            (pair.spec_url, "a")
        ]:
            wire = await stack.enter_async_context(_wire(url))
            wire.post("/generate", _endless("/generate", own))
        await _until(lambda: (pair.load(BASE).running, pair.load(SPEC).running) == (3, 1))
        operator = await stack.enter_async_context(_wire(pair.base_url))
        operator.post("/abort_request", {"rid": rid})
        assert (await operator.answer())[0] == 200
        assert (pair.load(BASE).running, pair.load(SPEC).running) == (left, 1)


async def test_a_cache_is_flushed_while_nothing_runs() -> None:
    """400 and SGLang's text while something does."""
    async with _pair(time_scale=1.0) as pair, httpx2.AsyncClient() as client:
        url = f"{pair.base_url}/flush_cache"
        async with _wire(pair.base_url) as wire:
            wire.post("/generate", _endless("/generate", "one"))
            await _until(lambda: pair.load(BASE).running == 1)
            answer = await client.post(url)
            assert (answer.status_code, answer.text) == (400, "Flush cache failed.\n")
            assert (await client.post(f"{pair.spec_url}/flush_cache")).status_code == 200
        await _until(lambda: pair.load(BASE).running == 0)
        assert (await client.get(url)).status_code == 200


async def test_a_slow_reader() -> None:
    """While a client does not read, its tokens gather; then they come, in fewer events."""
    async with _pair() as pair, _wire(pair.base_url, receive_buffer=4096) as wire:
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket transport
        params = {"max_new_tokens": 3000, "ignore_eos": True}
        wire.post("/generate", {"text": "x", "stream": True, "sampling_params": params})
        await _until(lambda: pair.load(BASE).counters.finished == 1)
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]  # a socket transport
        await wire.head()
        made = await wire.events()
        last = json.loads(made[-2][6:])
        assert last["meta_info"]["completion_tokens"] == len(last["output_ids"]) == 3000
        assert len(made) < 2000
        assert made[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
async def test_queue_full(path: str) -> None:
    """Without a stream 503; in a stream 200 and an event that says 503; nothing else changes."""
    full = Limits(max_running=1, max_queued=0)
    async with _pair(spec=full, time_scale=1.0) as pair, _wire(pair.spec_url) as first:
        first.post("/v1/chat/completions", _chat(**ENDLESS))
        await _until(lambda: pair.load(SPEC).running == 1)
        body = {**_chat(), "prompt": "x", "text": "x"}
        async with _wire(pair.spec_url) as wire:
            wire.post(path, body)
            status, fields, raw = await wire.answer()
            assert (status, fields["content-type"]) == (503, "application/json")
            assert json.loads(raw) == {
                "object": "error",
                "message": "The request queue is full.",
                "type": "503",
                "param": None,
                "code": 503,
            }
            wire.post(path, {**body, "stream": True})
            assert (await wire.head())[0] == 200
            refused, done = await wire.events()
            assert done == b"data: [DONE]\n\n"
            if path == "/generate":
                reason = json.loads(refused[6:])["meta_info"]["finish_reason"]
                assert (reason["type"], reason["status_code"]) == ("abort", 503)
            else:
                assert refused == (
                    b'data: {"error": {"object": "error", "message": "The request queue is full.", '
                    b'"type": "SERVICE_UNAVAILABLE", "param": null, "code": 503}}\n\n'
                )
        assert pair.load(SPEC).running == 1


async def test_a_request_that_is_refused_in_part() -> None:
    """Where one of several sequences finds no place, none is kept."""
    async with _pair(spec=Limits(max_running=2, max_queued=0), time_scale=1.0) as pair:
        async with httpx2.AsyncClient() as client:
            url = f"{pair.spec_url}/v1/chat/completions"
            assert (await client.post(url, json=_chat(n=3, **ENDLESS))).status_code == 503
        assert pair.load(SPEC).running + pair.load(SPEC).waiting == 0


async def test_a_killed_engine() -> None:
    """Its streams are cut by a reset, nothing listens, and the other engine carries on."""
    async with (
        _pair(time_scale=1.0) as pair,
        _wire(pair.spec_url) as lost,
        _wire(pair.base_url) as kept,
    ):
        for wire in (lost, kept):
            wire.post("/v1/chat/completions", _chat(stream=True, **ENDLESS))
            await wire.head()
        await pair.stop("spec")
        assert pair._servers[SPEC].connections == set()
        with pytest.raises(ConnectionResetError):
            await lost.events()
        with pytest.raises(ConnectionRefusedError):
            async with _wire(pair.spec_url):
                pass
        assert pair.load(SPEC).running == 0
        assert pair.load(BASE).running == 1
        assert await kept.chunk()


@pytest.mark.parametrize("turns", range(4))
async def test_a_client_that_comes_while_the_engine_dies(turns: int) -> None:
    """However far the loop has got with the new connection, it is reset and not left open."""
    async with _pair() as pair:
        host, port = pair.spec_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await pair.stop(SPEC)
            with pytest.raises(ConnectionResetError):
                await asyncio.get_running_loop().sock_recv(client, 1)


async def test_an_engine_that_comes_back() -> None:
    """On the same port, with counters at 0."""
    async with _pair() as pair, httpx2.AsyncClient() as client:
        url = pair.spec_url
        await client.post(f"{url}/v1/chat/completions", json=_chat())
        assert await _metric(url, "num_requests_total") == 1.0
        await pair.stop(SPEC)
        await pair.stop(SPEC)
        await pair.restart(SPEC)
        assert pair.spec_url == url
        assert await _metric(url, "num_requests_total") == 0.0
        answer = await client.post(f"{url}/v1/chat/completions", json=_chat())
        assert answer.status_code == 200


@pytest.mark.parametrize("name", [SPEC, BASE])
async def test_one_engine_alone(name: UpstreamName) -> None:
    """It serves, and waits for nobody, since the other is not on its GPU."""
    async with _pair(only=name) as pair, httpx2.AsyncClient() as client:
        assert list(pair.urls) == [name]
        answer = await client.post(f"{pair.urls[name]}/v1/chat/completions", json=_chat())
        assert answer.status_code == 200
        await pair.stop(name)
        await pair.restart(name)


async def test_a_port_that_is_taken() -> None:
    """The start fails, and what had been started is gone."""
    async with _pair() as pair:
        port = int(pair.base_url.rsplit(":", 1)[1])
        other = SimulatedPair(PairOptions(base_port=port))
        with pytest.raises(OSError, match="in use"):
            await other.start()
        with pytest.raises(ConnectionRefusedError):
            async with _wire(other.spec_url):
                pass


async def test_closing_under_load() -> None:
    """Every connection goes, whatever it is doing."""
    async with (
        _pair(time_scale=1.0) as pair,
        _wire(pair.spec_url) as busy,
        _wire(pair.base_url) as idle,
    ):
        busy.post("/v1/chat/completions", _chat(stream=True, **ENDLESS))
        await busy.head()
        idle.get("/ready")
        await idle.answer()
        await pair.close()
        for wire in (busy, idle):
            with pytest.raises(ConnectionResetError):
                await wire.events()


def test_closing_leaves_no_timer() -> None:
    """Neither the GPU nor an idle connection keeps a call in the loop."""
    timers = asyncio.run(_close_under_load())  # asyncio's own loop can be asked for its timers
    assert timers == []


async def _close_under_load() -> list[asyncio.TimerHandle]:
    async with _pair(time_scale=1.0) as pair, _wire(pair.spec_url) as busy:
        busy.post("/v1/chat/completions", _chat(stream=True, **ENDLESS))
        await busy.head()
        async with _wire(pair.base_url) as idle:
            idle.get("/ready")
            await idle.answer()
            await pair.close()
    timers: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # there is no public view of it
    return [timer for timer in timers if not timer.cancelled()]


async def test_closing_what_never_started() -> None:
    """There is nothing to close."""
    await SimulatedPair().close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_on_both_loops(run: Callable[[Coroutine[object, object, None]], None]) -> None:
    """The pair runs and dies the same way on asyncio's loop and on the one that specswitch uses."""
    run(test_a_killed_engine())
    run(test_a_client_that_leaves("fin", stream=True))
    run(test_a_slow_reader())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"time_scale": 0.0}, "time_scale"),
        ({"contention": 3.0}, "contention"),
        ({"context_length": 200_000}, "cache"),
    ],
)
def test_impossible_options(options: dict[str, float], reason: str) -> None:
    """What cannot be simulated is said at once."""
    with pytest.raises(ValueError, match=reason):
        PairOptions(**options)  # type: ignore[arg-type]  # the test's own names
