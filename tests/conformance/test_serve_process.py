"""specswitch as an operator runs it: a process that starts, serves, drains, and says what is wrong.

Its upstreams are scripted, or simulated engines; all are in the test's own loop.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from proxy.core.words import UpstreamName
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, get, post
from tests.harness.process import Specswitch, free_port
from tests.harness.running import until
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Send,
    chunk,
    event,
    reply,
)

pytestmark = pytest.mark.slow

N_STAR = 3.1
STREAMING = post("/v1/chat/completions", CHAT_STREAM)
ASKING = post("/v1/chat/completions", CHAT)
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Why?"}]

TOLD = """
import signal
import sys
from proxy.control.admin import AdminServer

start = AdminServer.start

def told_to_stop(self):
    signal.raise_signal(signal.SIGTERM)
    return start(self)

AdminServer.start = told_to_stop

from proxy.cli import main

sys.argv = ["specswitch", "serve"]
main()
"""
"""A specswitch that is told to stop when its listener is open and its admin listener is not."""

DYING = """
import sys
from {module} import {owner}

calls = []

{kind} {name}(self, *args):
    calls.append(None)
    if len(calls) > 3:
        raise RuntimeError("a fault that nobody foresaw")
    {wait}

{owner}.{name} = {name}

from proxy.cli import main

sys.argv = ["specswitch", "serve"]
main()
"""
"""A specswitch in which a method of a background task raises, the fourth time that it is called."""


def process(tmp_path: Path, spec_url: str, base_url: str, **settings: object) -> Specswitch:
    """A specswitch that is quick to notice what its upstreams do."""
    quick = {"policy_crossover": N_STAR, "health_interval": 0.2, "health_timeout": 2}
    log = tmp_path / "specswitch.log"
    return Specswitch(log, spec_url=spec_url, base_url=base_url, **{**quick, **settings})


@asynccontextmanager
async def scripted(
    tmp_path: Path, **settings: object
) -> AsyncIterator[tuple[Specswitch, ScriptedUpstream]]:
    """A specswitch between two scripted upstreams, with speculation on; and the speculative one."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    async with spec, base, process(tmp_path, spec.url, base.url, **settings) as it:
        await speculating(it)
        yield it, spec


@asynccontextmanager
async def simulated(tmp_path: Path) -> AsyncIterator[tuple[Specswitch, AsyncOpenAI]]:
    """A specswitch in front of a simulated pair, and the official client, which never retries."""
    async with (
        SimulatedPair(PairOptions(time_scale=4.0)) as pair,
        process(tmp_path, pair.spec_url, pair.base_url) as it,
        AsyncOpenAI(base_url=f"{it.url}/v1", api_key="x", max_retries=0, timeout=60) as client,
    ):
        await speculating(it)
        yield it, client


async def state(it: Specswitch) -> dict[str, object]:
    """GET /admin/state, while the upstreams go on."""
    return await asyncio.to_thread(it.state)


async def speculating(it: Specswitch) -> None:
    """Wait until new requests go to spec."""
    async with asyncio.timeout(20):
        while (await state(it))["mode"] != "spec":
            continue


async def health(it: Specswitch, name: str) -> tuple[object, object]:
    """The health of an upstream, and why."""
    upstreams = (await state(it))["upstreams"]
    assert isinstance(upstreams, dict)
    return upstreams[name]["health"], upstreams[name]["cause"]


async def in_a_stream(it: Specswitch, spec: ScriptedUpstream) -> tuple[RawClient, asyncio.Event]:
    """A client in the middle of a stream; the event lets its engine finish."""
    gate = asyncio.Event()
    first = chunk(event({"choices": [{"delta": {"content": "a"}}]}))
    spec.script(Send(STREAM_HEAD + first), Gate(gate), Send(chunk(DONE) + END))
    client = await RawClient.connect(it.port)
    client.send(STREAMING)
    assert (await client.head())[0] == 200
    assert await client.chunk() is not None
    return client, gate


async def to_the_end(client: RawClient) -> None:
    """Read a stream to its last chunk."""
    while await client.chunk() is not None:
        continue


async def answer(it: Specswitch, request: bytes) -> tuple[int, bytes, str | None]:
    """Status, body and `Connection` of one request on a connection of its own."""
    async with await RawClient.connect(it.port) as client:
        client.send(request)
        response = await client.response()
        return response.status, response.body, response.header("connection")


# Signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(number: signal.Signals, tmp_path: Path) -> None:
    """Not ready at once, what runs ends well, new requests are refused, and the exit code is 0."""
    async with scripted(tmp_path) as (it, spec):
        client, gate = await in_a_stream(it, spec)
        assert (await answer(it, get("/readyz")))[0] == 200
        it.send(number)
        async with asyncio.timeout(10):
            while (await answer(it, get("/readyz")))[0] != 503:
                continue
        status, body, connection = await answer(it, ASKING)
        assert (status, connection) == (503, "close")
        assert b'"draining"' in body
        assert (await answer(it, get("/livez")))[0] == 200

        gate.set()
        assert await client.chunk() == DONE
        assert await client.chunk() is None
        client.close()
        assert await asyncio.to_thread(it.ended) == 0
    said = [line["message"] for line in it.lines()]
    assert said.count("draining: 1 unfinished answer") == 1


async def test_a_second_signal_cuts(tmp_path: Path) -> None:
    """What still runs is cut at once, its client sees a broken stream, and the exit code is 1."""
    async with scripted(tmp_path) as (it, spec):
        it.exit_code = 1
        client, _ = await in_a_stream(it, spec)
        it.send(signal.SIGTERM)
        async with asyncio.timeout(10):
            while (await answer(it, get("/readyz")))[0] != 503:
                continue
        it.send(signal.SIGTERM)
        with pytest.raises(ConnectionError):
            await to_the_end(client)
        client.close()
        assert await asyncio.to_thread(it.ended) == 1
    assert "cut 1 unfinished answer" in [line["message"] for line in it.lines()]


async def test_an_idle_one_stops_at_once(tmp_path: Path) -> None:
    """Nothing runs, so there is nothing to wait for, whatever connections are kept."""
    async with scripted(tmp_path) as (it, _), await RawClient.connect(it.port) as client:
        client.send(ASKING)
        assert (await client.response()).status == 200
        it.send(signal.SIGTERM)
        assert await asyncio.to_thread(it.ended, 5.0) == 0


async def test_a_signal_while_it_starts(tmp_path: Path) -> None:
    """The listener is open already and the rest is not: it ends as an idle one does."""
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    it = process(tmp_path, *urls)
    it.program = (sys.executable, "-c", TOLD)
    it.wait = False
    async with it:
        assert await asyncio.to_thread(it.ended) == 0
    assert "draining: nothing is running" in [line["message"] for line in it.lines()]


# Upstreams -----------------------------------------------------------------------------------


async def test_streams_that_are_closed_are_not_taken_by_sockets(tmp_path: Path) -> None:
    """A supervisor may start us without them; libuv ends a process that closes a socket there."""
    spec, base = (f"http://127.0.0.1:{free_port()}" for _ in UpstreamName)
    it = process(tmp_path, spec, base)
    it.program = ("sh", "-c", 'exec "$@" <&- >&-', "sh", *it.program)
    it.wait = False
    async with it:
        await asyncio.to_thread(it.until_up)
        streams = [os.readlink(f"/proc/{it.pid}/fd/{each}") for each in (0, 1)]  # noqa: PTH115 - in a loop
        assert streams == [os.devnull, os.devnull]


async def test_it_starts_without_its_upstreams(tmp_path: Path) -> None:
    """Both down: it is up, not ready, says why, and serves as soon as they are there."""
    options = PairOptions(spec_port=free_port(), base_port=free_port())
    urls = [f"http://127.0.0.1:{port}" for port in (options.spec_port, options.base_port)]
    it = process(tmp_path, urls[0], urls[1], timeouts_wait_for_upstream=0.2)
    it.wait = False
    async with it:
        await asyncio.to_thread(it.until_up)
        assert (await answer(it, get("/readyz")))[0] == 503
        assert (await answer(it, get("/livez")))[0] == 200
        status, body, _ = await answer(it, ASKING)
        assert status == 503
        assert b'"no_upstream"' in body
        async with SimulatedPair(options):
            await asyncio.to_thread(it.until_ready)
            assert (await answer(it, ASKING))[0] == 200
    said = [str(line["message"]) for line in it.lines() if line["level"] == "warning"]
    assert sum(each.startswith("probe of spec failed: ") for each in said) == 1
    assert sum(each.startswith("probe of base failed: ") for each in said) == 1


async def test_swapped_upstreams_are_found_out(tmp_path: Path) -> None:
    """Spec and base exchanged: neither is usable, the log says it loudly, and it stays up."""
    async with SimulatedPair() as pair:
        it = process(tmp_path, pair.base_url, pair.spec_url, timeouts_wait_for_upstream=0.2)
        it.wait = False
        async with it:
            await asyncio.to_thread(it.until_up)
            async with asyncio.timeout(20):
                for name in ("spec", "base"):
                    while await health(it, name) != ("ejected", "misconfigured"):
                        continue
            status, body, _ = await answer(it, ASKING)
            assert status == 503
            assert b'"no_upstream"' in body
            assert (await answer(it, get("/livez")))[0] == 200
            assert pair.load("spec").running == pair.load("base").running == 0
    loud = [line for line in it.lines() if line.get("cause") == "misconfigured"]
    assert {line["upstream"] for line in loud} == {"spec", "base"}
    assert {line["level"] for line in loud} == {"warning"}
    assert all("specul" in str(line["detail"]) for line in loud)


async def test_a_misconfigured_upstream_mends_itself(tmp_path: Path) -> None:
    """A server that was wrong and is right after a restart is taken without a word of ours."""
    spec, base = ScriptedUpstream(speculative=False), ScriptedUpstream(speculative=False)
    async with spec, base, process(tmp_path, spec.url, base.url, health_rise=1) as it:
        async with asyncio.timeout(20):
            while await health(it, "spec") != ("ejected", "misconfigured"):
                continue
        assert (await answer(it, ASKING))[0] == 200
        assert spec.info is not None
        spec.info["speculative_algorithm"] = "EAGLE3"
        await speculating(it)


# The official client -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_client(stream: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Streamed or not, an answer comes whole, with its usage and where it was decided."""
    async with simulated(tmp_path) as (_, client):
        raw = client.chat.completions.with_raw_response
        if stream:
            streamed = await raw.create(
                model="simulated",
                messages=MESSAGES,
                max_tokens=32,
                extra_body={"ignore_eos": True},
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [each async for each in streamed.parse()]
            usage, headers = chunks[-1].usage, streamed.headers
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        else:
            whole = await raw.create(
                model="simulated",
                messages=MESSAGES,
                max_tokens=32,
                extra_body={"ignore_eos": True},
            )
            completion = whole.parse()
            usage, headers = completion.usage, whole.headers
            text = completion.choices[0].message.content or ""
        assert usage is not None
        assert usage.completion_tokens == 32
        assert text
        assert headers["x-specswitch-upstream"] == "spec"
        assert headers["x-specswitch-reason"] == "mode"
        assert len(headers["x-request-id"]) == 32


async def test_the_official_client_understands_our_refusals(tmp_path: Path) -> None:
    """Our own errors are those of OpenAI: the client raises what it would there, with the code."""
    async with simulated(tmp_path) as (_, client):
        with pytest.raises(openai.NotFoundError) as raised:
            await client.files.list()
        assert raised.value.code == "not_found"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(
                model="simulated", messages=MESSAGES, max_tokens=-1
            )


async def test_a_burst_goes_to_base(tmp_path: Path) -> None:
    """Of 24 at once at most N* go to spec, the rest to base, none is refused; the books agree."""
    async with simulated(tmp_path) as (it, client):

        async def ask() -> str:
            answer = await client.chat.completions.with_raw_response.create(
                model="simulated", messages=MESSAGES, max_tokens=48
            )
            return f"{answer.headers['x-specswitch-upstream']}"

        went = Counter(await asyncio.gather(*(ask() for _ in range(24))))
        assert 1 <= went["spec"] <= N_STAR
        assert went["base"] == 24 - went["spec"]
        assert (await state(it))["mode"] == "base"
        for name in ("spec", "base"):
            labels = {"upstream": name, "outcome": "ok"}
            assert await asyncio.to_thread(it.metric, "requests_total", **labels) == went[name]
        assert (await state(it))["in_flight"] == {"spec": 0, "base": 0}


# The log and the end -------------------------------------------------------------------------


async def test_the_log_of_a_request(tmp_path: Path) -> None:
    """On a pipe every line is an object; one for the request, without its body or a key."""
    async with scripted(tmp_path, upstreams_spec_api_key="sk-engine") as (it, spec):
        spec.script(Send(reply(b'{"usage":{"completion_tokens":5}}')))
        secret = post("/v1/chat/completions", CHAT, headers={"x-request-id": "mine"})
        assert (await answer(it, secret))[0] == 200
    (line,) = [line for line in it.lines() if line["message"] == "request"]
    assert line["request_id"] == "mine"
    assert line["upstream"] == "spec"
    assert line["outcome"] == "ok"
    assert line["output_tokens"] == 5
    assert "hello" not in it.log.read_text()
    assert "sk-engine" not in it.log.read_text()
    messages = [str(line["message"]) for line in it.lines()]
    assert any(f"serves at {it.url}, admin at {it.admin_url}" in each for each in messages)


@pytest.mark.parametrize(
    ("owner", "program", "who"),
    [
        (
            "Dispatcher",
            {"module": "proxy.core.dispatch", "kind": "def", "name": "tick", "wait": "pass"},
            "the ticker",
        ),
        (
            "Prober",
            {
                "module": "proxy.control.prober",
                "kind": "async def",
                "name": "run",
                "wait": "raise RuntimeError('at once')",
            },
            "the prober of spec",
        ),
    ],
)
async def test_a_background_death_ends_it_loudly(
    owner: str, program: dict[str, str], who: str, tmp_path: Path
) -> None:
    """A proxy that no longer probes or lets time pass must not look alive: exit code 1, and why."""
    code = DYING.format(owner=owner, **program)
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    it = process(tmp_path, *urls)
    it.program = (sys.executable, "-c", code)
    it.wait = False
    it.exit_code = 1
    async with it:
        assert await asyncio.to_thread(it.ended) == 1
    critical = [line for line in it.lines() if line["level"] == "critical"]
    assert [str(line["message"]).partition(" died: RuntimeError")[0] for line in critical] == [
        who,
        f"ended: {who}",
    ]
    assert "Traceback" in str(critical[0]["exception"])


async def test_what_it_never_says(tmp_path: Path) -> None:
    """Nothing goes astray: a run with requests, refusals and a departed client logs no error."""
    async with scripted(tmp_path) as (it, spec):
        client, _ = await in_a_stream(it, spec)
        client.reset()
        (request,) = spec.requests
        await until(request.gone.is_set, "the engine is let go")
        assert (await answer(it, b"nonsense\r\n\r\n"))[0] == 400
        assert (await answer(it, get("/nowhere")))[0] == 404
    assert {line["level"] for line in it.lines()} <= {"info", "warning"}
