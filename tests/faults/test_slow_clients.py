"""Clients that send slowly, read slowly, or come in crowds: each meets a deadline or a bound.

specswitch is a process of its own here, so that its memory and its answers are its own; clients and
engines are in the test's loop.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from tests.harness.client import CHAT, CHAT_STREAM, RawClient, Response, get, post
from tests.harness.memory import MIB, growth, resident
from tests.harness.process import Specswitch
from tests.harness.running import until
from tests.harness.upstream import (
    END,
    STREAM_HEAD,
    Gate,
    Received,
    ScriptedUpstream,
    Send,
    chunk,
    reply,
)

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60.0
ASKING = post("/v1/chat/completions", CHAT)


@dataclass
class Pair:
    """specswitch as a process, and its two upstreams in the test's loop."""

    process: Specswitch
    spec: ScriptedUpstream
    base: ScriptedUpstream

    @property
    def requests(self) -> list[Received]:
        """All that have come to either."""
        return self.spec.requests + self.base.requests

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels."""
        return await asyncio.to_thread(lambda: self.process.metric(name, **labels))

    async def until_metric(self, name: str, value: float, **labels: str) -> None:
        """Wait until a metric has a value."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while (found := await self.metric(name, **labels)) != value:
            assert asyncio.get_running_loop().time() < deadline, f"{name} is {found}, not {value}"

    async def nothing_is_left(self) -> None:
        """No request is open, none in flight or waiting, and the books balance."""
        for name in ("open_requests", "in_flight", "queue_depth"):
            await self.until_metric(name, 0)
        await self.until_metric("upstream_connections", 0, state="active")
        started = await self.metric("requests_started_total")
        await self.until_metric("requests_total", started)


@asynccontextmanager
async def pair(tmp_path: Path, **settings: object) -> AsyncIterator[Pair]:
    """A process with two upstreams, both healthy; nothing may be left of it."""
    async with ScriptedUpstream(speculative=True) as spec, ScriptedUpstream(speculative=False) as b:
        process = Specswitch(
            tmp_path / "log",
            spec_url=spec.url,
            base_url=b.url,
            **{"policy_crossover": 4, **settings},
        )
        async with process:
            made = Pair(process, spec, b)
            await until(lambda: admin_listens(process), "the admin listener is there")
            await made.until_metric("upstream_healthy", 2)
            yield made
            await made.nothing_is_left()


def admin_listens(process: Specswitch) -> bool:
    """Whether the admin listener takes connections: it may begin after the endpoint."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", process.admin_port)) == 0


@asynccontextmanager
async def clients(port: int, count: int, **options: int) -> AsyncIterator[list[RawClient]]:
    """`count` connections."""
    made: list[RawClient] = []
    try:
        while len(made) < count:
            client = await RawClient.connect(port, **options)
            made.append(client)
        yield made
    finally:
        for each in made:
            each.close()


# Slow to send -------------------------------------------------------------------------------

SLOW = 300
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"


async def latency(client: RawClient) -> float:
    """The median time of a few ordinary requests, in seconds."""
    times = []
    for _ in range(30):
        begun = perf_counter()
        client.send(ASKING)
        assert (await client.response()).status == 200
        times.append(perf_counter() - begun)
    return median(times)


async def dribble(slow: list[RawClient], over: Callable[[], bool]) -> None:
    """Send a byte of a head, over and over, for each."""
    while not over():
        for client in slow:
            client.send(b"x")
        await asyncio.sleep(0.1)  # the pace of a client that is meant to be slow


async def test_slow_senders_meet_their_deadline(tmp_path: Path) -> None:
    """300 sockets that dribble a head and 300 that stop within a body: 408, and no one is held up.

    Kludex/uvicorn#157, xorbitsai/inference#5213: where there is no such deadline, a byte now and
    then holds a socket for ever.
    """
    settings = {"limits_header_timeout": 3, "limits_body_timeout": 3}
    async with pair(tmp_path, **settings) as it, clients(it.process.port, 2 * SLOW + 1) as made:
        normal, heads, bodies = made[0], made[1 : SLOW + 1], made[SLOW + 1 :]
        alone = await latency(normal)
        with growth(it.process.pid) as grown:
            for client in heads:
                client.send(b"GET /v1/models HTTP/1.1\r\nX: ")
            for client in bodies:
                client.send(HEAD + b"x" * 500)
            answers = asyncio.gather(*(each.response() for each in heads + bodies))
            dribbling = asyncio.gather(answers, dribble(heads, answers.done))
            await it.until_metric("open_requests", SLOW)
            among_slow = await latency(normal)
            responses: list[Response] = (await dribbling)[0]

        assert Counter(each.status for each in responses) == {408: 2 * SLOW}
        assert {each.code for each in responses} == {"request_timeout"}
        assert all([await each.at_end() for each in heads + bodies])
        assert among_slow < 10 * alone + 0.01
        assert grown.peak < 30 * MIB
        assert len(it.requests) == 60


async def test_a_crowd_of_large_uploads(tmp_path: Path) -> None:
    """2,000 bodies of 1 MiB where 32 MiB may be held: each is answered, with 200 or a reason.

    A refused client is still sending; it gets its 429 whole all the same.
    """
    settings = {
        "limits_max_body_bytes": "2MiB",
        "limits_max_buffered_bytes": "32MiB",
        "limits_max_connections": 1500,
    }
    body = b" " * (MIB - 2) + b"{}"
    gate = asyncio.Event()
    answered: list[Response] = []
    async with pair(tmp_path, policy_control="base", **settings) as it:
        it.base.always(Gate(gate), Send(reply(b"{}")))

        async def upload() -> None:
            async with await RawClient.connect(it.process.port) as client:
                client.send(post("/v1/chat/completions", body))
                answered.append(await client.response())

        before = resident(it.process.pid)
        with growth(it.process.pid) as grown:
            crowd = asyncio.gather(*(upload() for _ in range(2000)))
            await until(
                lambda: len(answered) + len(it.requests) >= 2000, "all are there or refused", 60
            )
            gate.set()
            await crowd
            await it.nothing_is_left()

        counts = Counter(each.status for each in answered)
        refused = [each for each in answered if each.status == 429]
        assert sum(counts.values()) == 2000
        assert counts.keys() == {200, 429}
        assert counts[200] == len(it.requests)
        assert {each.code for each in refused} == {"overloaded"}
        assert all(each.header("retry-after") for each in refused)
        why = Counter("connections" if b"connections" in each.body else "bytes" for each in refused)
        assert why["connections"] >= 500
        assert why["bytes"] > 0
        assert grown.peak < 96 * MIB
        # Those who were refused are let go a second later, with what they had sent.
        await until(lambda: resident(it.process.pid) - before < 80 * MIB, "memory is given back")
        assert await it.metric("requests_total", outcome="rejected") == len(refused)


# Slow to read -------------------------------------------------------------------------------

DEAF = 50
MEGABYTE = b"x" * MIB
LONG = 24
"""MiB of an answer: more than the kernel takes by itself, on both legs together."""
HIGH_WATER_BYTES = 65536
"""Above which a scripted upstream waits; asyncio's own."""


@pytest.mark.parametrize("framing", ["chunked", "counted", "events"])
async def test_clients_that_stop_reading(framing: str, tmp_path: Path) -> None:
    """Each costs at most 1 MiB, its engine has to wait, and after `client_write` it is cut.

    Its place is given back with it, so that those who sleep cannot hold the mode.
    """
    pieces = {
        "chunked": (Send(STREAM_HEAD), *[Send(chunk(MEGABYTE))] * LONG, Send(END)),
        "counted": (
            Send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (LONG * MIB)),
            *[Send(MEGABYTE)] * LONG,
        ),
        "events": (
            Send(STREAM_HEAD),
            *[Send(chunk(b'data: {"a":"' + b"x" * 100 + b'"}\n\n') * 8000)] * LONG,
            Send(END),
        ),
    }
    async with pair(tmp_path, limits_client_write=10, policy_control="auto") as it:
        for upstream in (it.spec, it.base):
            upstream.always(*pieces[framing])
        before = resident(it.process.pid)
        async with clients(it.process.port, DEAF, receive_bytes=4096) as made:
            for client in made:
                client.stop_reading()
                client.send(post("/v1/chat/completions", CHAT_STREAM))
            await until(lambda: len(it.requests) == DEAF, "all have reached an engine")
            assert await it.metric("mode", mode="base") == 1
            assert await it.metric("in_flight") == DEAF
            await until(lambda: all(map(blocked, it.requests)), "each engine's send blocks")
            assert resident(it.process.pid) - before < DEAF * MIB

            await it.until_metric("requests_total", DEAF, outcome="abandoned")
            assert await it.metric("in_flight") == 0
            await until(lambda: all(each.gone.is_set() for each in it.requests), "all are closed")
            client = await RawClient.connect(it.process.port)
            client.send(get("/livez"))
            assert (await client.response()).status == 200
            client.close()


def blocked(request: Received) -> bool:
    """Whether the engine has more to send than its kernel takes."""
    return request.writer.transport.get_write_buffer_size() > HIGH_WATER_BYTES
