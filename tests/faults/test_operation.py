"""What an operator and a machine do to a running specswitch: signals, reloads, clocks, full pipes.

Where signals, exit codes or a log's pipe matter it is a real process; its upstreams are in the
test's own loop.
"""

import ast
import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from time import time_ns

import pytest

import proxy
from proxy.app import running
from proxy.config import load
from proxy.core.words import Control, Health, UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, Response, get, post
from tests.harness.process import Specswitch, free_port
from tests.harness.running import DEFAULTS, Rig, rig, until
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    ByHand,
    Gate,
    Received,
    ScriptedUpstream,
    Send,
    chunk,
    event,
    reply,
)

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
ASKING = post("/v1/chat/completions", CHAT)
STREAMING = post("/v1/chat/completions", CHAT_STREAM)
CLOSING = post("/v1/chat/completions", CHAT, headers={"Connection": "close"})
ONE_TOKEN = chunk(event({"choices": [{"delta": {"content": "a"}}]}))


@asynccontextmanager
async def process(
    tmp_path: Path, **settings: object
) -> AsyncIterator[tuple[Specswitch, ScriptedUpstream]]:
    """A specswitch that sends all to spec; and spec."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    plain = {"policy_control": "spec", "upstreams_spec_max_in_flight": 0, "health_interval": 0.2}
    async with spec, base:
        it = Specswitch(
            tmp_path / "specswitch.log",
            spec_url=spec.url,
            base_url=base.url,
            **{**plain, **settings},
        )
        async with it:
            await until_state(it, lambda state: state["mode"] == "spec")
            yield it, spec


async def until_state(it: Specswitch, true: Callable[[dict[str, object]], bool]) -> None:
    """Wait until the state of the pair is so."""
    async with asyncio.timeout(20):
        while not true(await asyncio.to_thread(it.state)):
            continue


async def until_not_ready(it: Specswitch) -> None:
    """Wait until it says that it takes nothing more."""
    async with asyncio.timeout(10):
        while (await answer(it.port, get("/readyz"))).status != 503:
            continue


async def answer(port: int, request: bytes) -> Response:
    """What one request on a connection of its own comes to."""
    async with await RawClient.connect(port) as client:
        client.send(request)
        return await client.response()


async def streams(it: Specswitch, spec: ScriptedUpstream, count: int) -> list[RawClient]:
    """`count` clients in the middle of streams, which go on when the test says so."""
    before = len(spec.requests)
    clients = []
    for _ in range(count):
        spec.script(ByHand())
        clients.append(await RawClient.connect(it.port))
        clients[-1].send(STREAMING)
    for request in (await spec.received(before + count))[before:]:
        request.say(STREAM_HEAD + ONE_TOKEN)
    for client in clients:
        assert (await client.head())[0] == 200
    return clients


def finish(requests: list[Received]) -> None:
    """Bring their streams to a good end."""
    for request in requests:
        request.say(chunk(DONE) + END)
        request.over()


async def rest(client: RawClient) -> tuple[bytes, bool]:
    """What is still to come of a stream, and whether it came to its end."""
    pieces = []
    try:
        while (piece := await client.chunk()) is not None:
            pieces.append(piece)
    except ConnectionError:
        return b"".join(pieces), False
    finally:
        client.close()
    return b"".join(pieces), True


# Stopping ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_signal_under_load(tmp_path: Path) -> None:
    """100 streams finish, what is new is refused at once, and it ends well before its deadline."""
    async with process(tmp_path, timeouts_drain=60) as (it, spec):
        clients = await streams(it, spec, 100)
        it.send(signal.SIGTERM)
        await until_not_ready(it)
        assert (await answer(it.port, get("/livez"))).status == 200
        for late in (ASKING, STREAMING, get("/v1/models"), post("/v1/messages", {})):
            refused = await answer(it.port, late)
            assert refused.status == 503
            assert refused.header("connection") == "close"
            assert b"draining" in refused.body
        for request in spec.requests:
            request.say(ONE_TOKEN)
        finish(spec.requests)
        ends = [await rest(client) for client in clients]
        assert {complete for _, complete in ends} == {True}
        assert all(body.endswith(DONE) for body, _ in ends)
        assert await asyncio.to_thread(it.ended, 10.0) == 0
    assert "draining: 100 unfinished answers" in [line["message"] for line in it.lines()]


@pytest.mark.slow
async def test_who_asks_at_its_very_end_is_told(tmp_path: Path) -> None:
    """Clients that ask without a pause, each on a new connection: served, told, or not taken."""
    async with process(tmp_path) as (it, spec):
        spec.always(Send(reply(b"{}")))
        heard: Counter[str] = Counter()
        async with asyncio.timeout(20), asyncio.TaskGroup() as clients:
            for _ in range(20):
                clients.create_task(_ask_until_refused(it.port, heard))
            await spec.received(200)
            it.send(signal.SIGTERM)
        assert await asyncio.to_thread(it.ended) == 0
    assert heard.keys() <= {"200", "503", "refused"}, heard


async def _ask_until_refused(port: int, heard: Counter[str]) -> None:
    while not heard["refused"]:
        try:
            came = await answer(port, CLOSING)
        except ConnectionRefusedError:
            heard["refused"] += 1
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            heard[type(error).__name__] += 1
        else:
            heard[str(came.status)] += 1


@pytest.mark.slow
@pytest.mark.parametrize("told_again", [True, False])
async def test_what_does_not_end_is_cut(tmp_path: Path, *, told_again: bool) -> None:
    """At a second signal at once, else at the deadline: broken streams, and exit code 1."""
    async with process(tmp_path, timeouts_drain=60 if told_again else 0.5) as (it, spec):
        it.exit_code = 1
        clients = await streams(it, spec, 100)
        it.send(signal.SIGTERM)
        if told_again:
            await until_not_ready(it)
            it.send(signal.SIGTERM)
        ends = [await rest(client) for client in clients]
        assert {complete for _, complete in ends} == {False}
        assert not any(DONE in body for body, _ in ends)
        assert await asyncio.to_thread(it.ended, 10.0) == 1
        for request in spec.requests:
            await asyncio.wait_for(request.gone.wait(), 5)
    assert "cut 100 unfinished answers" in [line["message"] for line in it.lines()]


# Reloading -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_reloads_under_running_streams(tmp_path: Path) -> None:
    """By signal and by request, good files and bad ones: 50 streams notice none of them."""
    file = tmp_path / "specswitch.toml"
    good = "[policy]\ncrossover = {}\n[auth.api_keys]\nme = {!r}\n"
    file.write_text(good.format(3.0, "first").replace("'", '"'))
    async with process(tmp_path) as (it, spec):
        keyed = STREAMING.replace(b"Host:", b"Authorization: Bearer first\r\nHost:")
        assert (await answer(it.port, STREAMING)).status == 401
        spec.script(ByHand())
        client = await RawClient.connect(it.port)
        client.send(keyed)
        (request,) = await spec.received(1)
        request.say(STREAM_HEAD + ONE_TOKEN)
        assert (await client.head())[0] == 200
        for count in range(1, 11):
            file.write_text(good.format(float(count + 3), "second").replace("'", '"'))
            it.send(signal.SIGHUP)
            await until_state(it, lambda state, n=count: _crossover(state) == n + 3)  # type: ignore[misc]
            request.say(ONE_TOKEN)
        assert (await answer(it.port, keyed)).status == 401  # the key of before
        file.write_text('[policy]\ncrossover = -1\nkontrol = "spec"\n')
        it.send(signal.SIGHUP)
        async with asyncio.timeout(20):
            while await asyncio.to_thread(it.metric, "config_reloads_total", result="rejected") < 1:
                continue
        refused = await _reload(it)
        assert refused.status == 422
        errors = {each["path"]: each["message"] for each in json.loads(refused.body)["errors"]}
        assert set(errors) == {"policy.crossover", "policy.kontrol"}
        assert "control" in errors["policy.kontrol"]
        assert _crossover(await asyncio.to_thread(it.state)) == 13
        finish([request])
        body, complete = await rest(client)
        assert complete
        assert body.count(b"data: {") == 11
    said = [str(line["message"]) for line in it.lines()]
    assert sum(each.startswith("reload refused: policy.crossover") for each in said) == 2


def _crossover(state: dict[str, object]) -> object:
    crossover = state["crossover"]
    assert isinstance(crossover, dict)
    return crossover["in_flight"]


async def _reload(it: Specswitch) -> Response:
    request = post("/admin/reload", {}).replace(b"Host: test", b"Host: localhost")
    return await answer(it.admin_port, request)


async def _three_waiting(it: Rig, gate: asyncio.Event) -> list[RawClient]:
    """One that runs at base until `gate` opens, and three that wait for its place."""
    it.base.always(Gate(gate), Send(reply(b"{}")))
    clients = [await it.client() for _ in range(4)]
    for client in clients:
        client.send(ASKING)
    await it.until(lambda: len(it.app.dispatcher.room) == 3, "three wait")
    return clients


async def test_those_who_wait_meet_what_is_new() -> None:
    """A cap that is raised takes in who waits, at once."""
    async with rig(policy__control="base", upstreams__base__max_in_flight=1) as it:
        gate = asyncio.Event()
        clients = await _three_waiting(it, gate)
        it.keys["upstreams.base.max_in_flight"] = 3
        await it.app.reload()
        await it.until(lambda: len(it.base.requests) == 3, "two more are taken in")
        assert len(it.app.dispatcher.room) == 1
        gate.set()
        assert {(await client.response()).status for client in clients} == {200}


async def test_nobody_is_decided_by_half_of_a_reload() -> None:
    """Who waits is placed by the new cap and the new control, not by the new cap and the old."""
    async with rig(policy__control="base", upstreams__base__max_in_flight=1) as it:
        gate = asyncio.Event()
        clients = await _three_waiting(it, gate)
        it.keys |= {"upstreams.base.max_in_flight": 3, "policy.control": "spec"}
        await it.app.reload()
        gate.set()
        upstreams = [(await each.response()).header("x-specswitch-upstream") for each in clients]
        assert upstreams == ["base", "spec", "spec", "spec"]


async def test_a_threshold_counts_from_the_next_decision() -> None:
    """What runs stays where it is; the next request is decided by the new N*."""
    async with rig(policy__crossover=1.0) as it:
        it.spec.script(ByHand())
        first = await it.client()
        first.send(ASKING)
        (request,) = await it.spec.received(1)
        it.keys["policy.crossover"] = 8.0
        await it.app.reload()
        assert (await answer(it.app.port, ASKING)).header("x-specswitch-upstream") == "spec"
        it.keys["policy.crossover"] = 1.0
        await it.app.reload()
        assert (await answer(it.app.port, ASKING)).header("x-specswitch-upstream") == "base"
        request.say(reply(b"{}"))
        request.over()
        assert (await first.response()).header("x-specswitch-upstream") == "spec"


async def test_a_request_that_waits_is_served_by_the_new_server() -> None:
    """An operator who corrects a wrong URL serves those who have waited for it."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    async with rig(spec=spec, base=base, wait=False, upstreams__spec__url=nowhere) as it:
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.usable, "nothing is usable")
        client = await it.client()
        client.send(ASKING)
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "it waits")
        it.keys["upstreams.spec.url"] = spec.url
        await it.app.reload()
        assert (await client.response()).header("x-specswitch-upstream") == "spec"


async def test_a_new_servers_key_never_goes_to_the_old() -> None:
    """A request that is connecting to the old server while its URL and key are exchanged."""
    patient = rig(timeouts__connect=20.0, upstreams__spec__api_key="old-key", health__fall=1000)
    async with patient as it, ScriptedUpstream(speculative=True) as new:
        old_host = it.spec.url.removeprefix("http://")
        async with it.spec.taking_none():
            client = await it.client()
            client.send(ASKING)
            pool = it.app.links[SPEC].pool
            await it.until(lambda: bool(pool._connecting), "it connects")
            it.keys |= {"upstreams.spec.url": new.url, "upstreams.spec.api_key": "new-key"}
            await it.app.reload()
        assert (await client.response()).status == 200
        (request,) = it.spec.requests
        assert request.header("authorization") == "Bearer old-key"
        assert request.header("host") == old_host
        assert not new.requests


# Clocks --------------------------------------------------------------------------------------

_TIME_OF_DAY = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}
_MAY_TELL_IT = {
    ("app.py", "running"),
    ("sim/server.py", "start"),
    ("tools/calibrate/run.py", "_state"),
}
"""For people to read, and a simulated engine's own clock; neither measures anything."""


def test_nothing_measures_with_the_time_of_day() -> None:
    """A wall clock that jumps cannot matter to what does not read it (durations are monotonic)."""
    root = Path(proxy.__file__).parent
    readers = {
        (str(path.relative_to(root)), owner)
        for path in root.rglob("*.py")
        for owner in _readers(ast.parse(path.read_text()))
    }
    assert readers == _MAY_TELL_IT


def _readers(module: ast.Module) -> Iterator[str]:
    """The functions of a module that read the time of day, or hand its clock on."""
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(_is_time_of_day(each) for each in ast.walk(function)):
            yield function.name


def _is_time_of_day(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr not in _TIME_OF_DAY:
        return False
    owner = node.value
    return isinstance(owner, ast.Name) and owner.id in {"time", "datetime", "date"}


async def test_a_time_of_day_that_jumps_does_nothing() -> None:
    """An hour forward or back at every look: requests, patience and ejections do not notice."""
    looks = 0

    def wall() -> int:
        nonlocal looks
        looks += 1
        return time_ns() + (1 if looks % 2 else -1) * 3600 * 1_000_000_000

    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    async with spec, base:
        ends = {"upstreams.spec.url": spec.url, "upstreams.base.url": base.url}
        config = load(file=None, env={}, overrides={**DEFAULTS, **ends})
        async with running(config, wall=wall) as app:
            health = app.dispatcher.spec.health
            await until(lambda: health.state is Health.HEALTHY, "spec is healthy")
            spec.script(ByHand())
            async with await RawClient.connect(app.port) as client:
                client.send(STREAMING)
                (request,) = await spec.received(1)
                for word in (Control.BASE, Control.SPEC, Control.AUTO):
                    app.pair.set_control(word, by="the test")
                    app.pair.state()
                    assert (await answer(app.port, ASKING)).status == 200
                request.say(STREAM_HEAD + ONE_TOKEN + chunk(DONE) + END)
                request.over()
                assert (await client.response()).complete
            assert looks > 3
            assert health.state is Health.HEALTHY


# A log that nobody reads ---------------------------------------------------------------------


@contextmanager
def unread(path: Path) -> Iterator[None]:
    """A pipe at `path` that is held open and never read."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
    finally:
        os.close(reader)


@pytest.mark.slow
async def test_a_full_log_pipe_blocks_nothing(tmp_path: Path) -> None:
    """Nobody reads the log: requests go on, what is dropped is counted, and it still ends well."""
    requests, ahead = 16_000, 100
    with unread(tmp_path / "specswitch.log"):
        async with process(tmp_path, log_level="debug") as (it, _):
            it.log = tmp_path / "nothing.log"  # what a failure of this test would read
            it.log.write_text("its log went into a full pipe")
            async with await RawClient.connect(it.port) as client:
                for _ in range(requests // ahead):
                    client.send(get("/nowhere") * ahead)
                    for _ in range(ahead):
                        assert (await client.response()).status == 404
            assert (await answer(it.port, ASKING)).status == 200
            dropped = await asyncio.to_thread(it.metric, "log_lines_dropped_total")
            started = await asyncio.to_thread(it.metric, "requests_started_total")
            assert started == requests + 1
            # Written or waiting to be: what the pipe holds, one batch, and the buffer.
            assert requests - 13_000 <= dropped < requests
            it.send(signal.SIGTERM)
            assert await asyncio.to_thread(it.ended, 15.0) == 0


# The loop under load -------------------------------------------------------------------------


@pytest.mark.slow
async def test_it_answers_probes_under_load(tmp_path: Path) -> None:
    """With 200 streams flowing it answers its own probes (vllm-project/production-stack#448)."""
    loop = asyncio.get_running_loop()
    async with process(tmp_path) as (it, spec):
        clients = await streams(it, spec, 200)
        took = []
        for _ in range(50):
            for request in spec.requests:
                request.say(ONE_TOKEN * 2)
            began = loop.time()
            assert (await answer(it.port, get("/livez"))).status == 200
            took.append(loop.time() - began)
        assert sorted(took)[45] < 0.2
        finish(spec.requests)
        ends = [await rest(client) for client in clients]
        assert {body.count(b"data: {") for body, _ in ends} == {101}
        assert {complete for _, complete in ends} == {True}


# What is no request of ours ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /v1/realtimes HTTP/1.1", 404),
        ("GET /v1/chat/completions HTTP/1.1", 405),
        ("GET /v1/models HTTP/1.1", 200),
    ],
)
async def test_a_websocket_is_not_left_hanging(line: str, status: int) -> None:
    """An upgrade is answered as the plain request that it also is (llm-d/llm-d-router#1532)."""
    upgrade = (
        "Host: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with rig() as it:
        client = await it.client()
        client.send(f"{line}\r\n{upgrade}".encode())
        response = await client.response()

        assert response.status == status
        assert response.header("upgrade") is None
        for request in it.base.requests:
            assert request.header("upgrade") is None
            assert request.header("connection") is None


@pytest.mark.slow
async def test_a_reload_at_a_bad_moment_ends_nothing(tmp_path: Path) -> None:
    """SIGHUP before there is anything to reload, and when all is over, is passed over."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    async with spec, base:
        it = Specswitch(tmp_path / "specswitch.log", spec_url=spec.url, base_url=base.url)
        it.wait = False
        async with it:
            await asyncio.to_thread(it.until_up)
            for _ in range(20):
                it.send(signal.SIGHUP)
            await until_state(it, lambda _: True)
            it.send(signal.SIGTERM)
            with suppress(ProcessLookupError):
                for _ in range(200):
                    it.send(signal.SIGHUP)
            assert await asyncio.to_thread(it.ended) == 0
