"""File descriptors run out: said at start, then refused with a reason; nothing is lost or blamed.

The limits are those of a real process: lowered before it starts (`ulimit -n`), or, to run out
beyond what is provided for, while it runs. In the test's own process one failure is pretended.
"""

import asyncio
import errno
import os
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from proxy.core.words import UpstreamName
from proxy.data.descriptors import MOST_TOLD, RESERVE
from proxy.data.pool import Pool
from proxy.data.upstream import EngineConnection, Sink
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, get, post
from tests.harness.process import Specswitch
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Send,
    chunk,
    event,
)
from tests.harness.wire import FakeTransport, pool_with

STREAMING = post("/v1/chat/completions", CHAT_STREAM)
ASKING = post("/v1/chat/completions", CHAT)
FIRST = STREAM_HEAD + chunk(event({"choices": [{"delta": {"content": "a"}}]}))
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
sys.argv = ["specswitch", "serve"]
from proxy.cli import main
main()
"""
WARNING = "file descriptors: "
SHORT = "out of file descriptors"
NOFILE = resource.RLIMIT_NOFILE


@asynccontextmanager
async def limited(
    tmp_path: Path, soft: int, hard: int, **settings: object
) -> AsyncIterator[tuple[Specswitch, ScriptedUpstream]]:
    """A specswitch that starts under `ulimit -n`, everything on base; and base."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    quick = {"health_interval": 0.2, "policy_control": "base"}
    log = tmp_path / "specswitch.log"
    async with spec, base:
        it = Specswitch(log, spec_url=spec.url, base_url=base.url, **{**quick, **settings})
        it.program = (sys.executable, "-c", LIMITED.format(soft=soft, hard=hard))
        async with it:
            yield it, base


def said(it: Specswitch, what: str) -> list[str]:
    """The lines that begin so."""
    lines = [str(line["message"]) for line in it.lines()]
    return [line for line in lines if line.startswith(what)]


async def arrive(it: Specswitch, left: AsyncExitStack) -> RawClient:
    """A client, who leaves when the test does."""
    return await left.enter_async_context(await RawClient.connect(it.port))


async def metric(it: Specswitch, name: str, **labels: str) -> float:
    """A metric, while the upstreams go on."""
    return await asyncio.to_thread(it.metric, name, **labels)


async def none_free(*_: object) -> None:
    """Dial without a descriptor for the connection."""
    raise OSError(errno.EMFILE, "Too many open files")


def without_descriptor(it: Rig, name: UpstreamName) -> None:
    """From now on there is none for a connection to the upstream."""
    links = it.app.links
    old = links[name].side
    pool = Pool(
        name,
        ("127.0.0.1", 1),
        tls=None,
        timeouts=it.app.front.timeouts,
        clock=it.app.clock,
        dial=none_free,
    )
    links.exchange(name, replace(links[name], side=replace(old, pool=pool)))
    it.app.front.engines = links.sides


async def test_no_descriptor_for_a_connection() -> None:
    """429 with a reason; not tried at the other, no mark against the engine, its place free."""
    async with rig(health__passive_failures=1) as it:
        without_descriptor(it, UpstreamName.SPEC)
        client = await it.client()
        for _ in range(3):
            client.send(ASKING)
            response = await client.response()
            assert response.code == "overloaded"
            assert response.header("retry-after") == "1"
            assert b"no file descriptor is free for a connection to spec" in response.body
            assert it.app.dispatcher.in_flight.total == 0
        assert it.healthy(UpstreamName.SPEC)
        assert not it.base.requests
        assert it.total("requests_total", outcome="rejected") == 3
        assert it.total("retries_total") == 0
        assert it.app.front.connects_without_descriptor == 3


async def test_no_descriptor_for_a_second_connection() -> None:
    """A retry that fails so ends like that, and only the upstream that was down is blamed."""
    async with rig(health__fall=1000) as it:
        await it.spec.stop()
        without_descriptor(it, UpstreamName.BASE)
        client = await it.client()
        client.send(ASKING)
        assert (await client.response()).code == "overloaded"
        assert it.total("retries_total", cause="connect") == 1
        assert it.healthy(UpstreamName.BASE)


@pytest.mark.slow
async def test_the_limit_is_raised(tmp_path: Path) -> None:
    """A soft limit that is too low is raised as far as needed, without a word."""
    soft, hard = 256, 4096
    async with limited(tmp_path, soft, hard, limits_max_connections=300) as (it, _):
        assert resource.prlimit(it.pid, NOFILE) == (600 + RESERVE + MOST_TOLD, hard)
        assert not said(it, WARNING)


@pytest.mark.slow
async def test_a_limit_that_is_too_low_is_said(tmp_path: Path) -> None:
    """One line with the numbers and what to do; above what fits clients get 429, nobody is lost."""
    clients = 20
    hard = 192  # an eighth for those who are told, and the reserve
    assert (hard - hard // 8 - RESERVE) // 2 == clients
    async with limited(tmp_path, hard // 2, hard) as (it, base), AsyncExitStack() as left:
        await until(lambda: bool(said(it, WARNING)), "it is said")
        (warning,) = said(it, WARNING)
        assert resource.prlimit(it.pid, NOFILE) == (hard, hard)
        needed = 2 * 8192 + RESERVE + MOST_TOLD
        for part in (f"{hard} are allowed", f"needs {needed}", f"more than {clients} clients"):
            assert part in warning
        for remedy in (f"ulimit -n {needed}", f"LimitNOFILE={needed}", f"nofile: {needed}"):
            assert remedy in warning

        gate = asyncio.Event()
        base.always(Send(FIRST), Gate(gate), Send(chunk(DONE) + END))
        served = [await arrive(it, left) for _ in range(clients - 1)]  # one asks for /readyz
        for client in served:
            client.send(STREAMING)
            assert (await client.head())[0] == 200
        for _ in range(2 * clients):
            async with await RawClient.connect(it.port) as late:
                response = await late.response()
                assert response.code == "overloaded"
                assert response.header("retry-after") == "1"
        assert await asyncio.to_thread(it.readyz) == 200
        assert await metric(it, "open_requests") == clients - 1
        gate.set()
        for client in served:
            while await client.chunk() is not None:
                continue
        assert not said(it, SHORT)
        assert await metric(it, "requests_total", outcome="ok") == clients - 1


def cpu_seconds(it: Specswitch) -> float:
    """User and system time of the process, from /proc."""
    fields = Path(f"/proc/{it.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
async def test_they_run_out(tmp_path: Path) -> None:
    """What runs goes on, a request without one is told so, clients wait, no engine is blamed.

    The limit is set to nothing at all, so that the loop has not even the one that it keeps for
    sending clients away; it must not try to take them over and over again.
    """
    plenty = limited(tmp_path, 2048, 2048, limits_max_connections=100)
    async with plenty as (it, base), AsyncExitStack() as left:
        gate = asyncio.Event()
        base.script(Send(FIRST), Gate(gate), Send(chunk(DONE) + END))
        running = await arrive(it, left)
        running.send(STREAMING)
        assert (await running.head())[0] == 200
        kept = await arrive(it, left)
        kept.send(get("/livez"))
        assert (await kept.response()).status == 200

        resource.prlimit(it.pid, NOFILE, (3, 2048))
        waiting = await arrive(it, left)
        waiting.send(get("/livez"))
        for _ in range(3):
            kept.send(ASKING)
            refused = await kept.response()
            assert refused.code == "overloaded"
            assert refused.header("retry-after") == "1"
            assert b"file descriptor" in refused.body
        await until(lambda: len(said(it, SHORT)) == 1, "it is said")
        before, since = cpu_seconds(it), asyncio.get_running_loop().time()
        await until(lambda: len(said(it, SHORT)) == 3, "it is said again")
        elapsed = asyncio.get_running_loop().time() - since
        assert cpu_seconds(it) - before < elapsed / 2
        assert elapsed > 1.8, "no more than one line a second"

        gate.set()
        assert [await running.chunk() is not None, await running.chunk()] == [True, DONE]
        assert await running.chunk() is None
        resource.prlimit(it.pid, NOFILE, (2048, 2048))
        assert (await waiting.response()).status == 200
        kept.send(ASKING)
        assert (await kept.response()).status == 200

        labels = {"upstream": "none", "outcome": "rejected"}
        assert await metric(it, "requests_total", **labels) == 3
        assert await metric(it, "upstream_healthy", upstream="base") == 1
        assert await metric(it, "ejections_total") == 0
        assert await metric(it, "retries_total") == 0
        assert await metric(it, "requests_total", outcome="failed") == 0
        assert await metric(it, "in_flight") == 0


async def test_what_is_kept_is_let_go_when_there_is_none() -> None:
    """An idle connection has a descriptor that the next request can use."""
    pool, transport = pool_with(none_free), FakeTransport()
    kept = EngineConnection(pool)
    kept.connection_made(transport)
    kept.keep()
    told = asyncio.Event()
    sink = SimpleNamespace(engine_refused=lambda _refusal: told.set(), engine_flush=lambda: None)
    assert pool.idle == 1
    pool.obtain(cast("Sink", sink), fresh=True)
    async with asyncio.timeout(5):
        await told.wait()
    assert (pool.idle, transport.aborts) == (0, 1)
