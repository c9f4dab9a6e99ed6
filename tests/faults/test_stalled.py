"""Half-dead engines: `/ready` answers and requests hang, or probes hang and tokens flow."""

import asyncio
import json

from proxy.core.words import EjectionCause, Health, UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, post
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Gate,
    Received,
    ScriptedUpstream,
    Send,
    Silence,
    chunk,
    event,
    reply,
)

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
TOKEN = chunk(event({"choices": [{"delta": {"content": "a"}}]}))
STALLED = 0.3


class Engine(ScriptedUpstream):
    """A server whose account of its load can move or stand still, and whose probes can hang."""

    def __init__(self, *, speculative: bool) -> None:
        super().__init__(speculative=speculative)
        self.stamp = 1.0
        self.moves = False
        self.hangs = False
        self.tells_load = True

    def _probe_answer(self, request: Received) -> bytes | None:
        answer = super()._probe_answer(request)
        if answer is None:
            return None
        if self.hangs:
            return b""
        if not request.path.startswith("/v1/loads"):
            return answer
        if not self.tells_load:
            return reply(b"", status="404 Not Found")
        self.stamp += self.moves
        rank = {"dp_rank": 0, "timestamp": self.stamp, "num_running_reqs": 1}
        return reply(json.dumps({"loads": [rank]}).encode())


def state(it: Rig) -> tuple[Health, EjectionCause | None]:
    """What is thought of spec."""
    health = it.app.dispatcher.spec.health
    return health.state, health.cause


async def test_an_engine_that_takes_requests_and_answers_none_is_stalled() -> None:
    """It is ejected though `/ready` is well; new requests go to the other, and it is tried again.

    Its scheduler is dead: SGLang's `/ready` and `/health` answer on
    (sgl-project/sglang#6624).
    """
    engine = Engine(speculative=True)
    async with rig(
        spec=engine,
        health__stalled=STALLED,
        health__ejection=0.2,
        policy__return_dwell=0.0,
        policy__count_window=0.01,
    ) as it:
        engine.script(Silence())
        hung = await it.client()
        hung.send(post("/v1/chat/completions", CHAT))
        await until(lambda: state(it) == (Health.EJECTED, EjectionCause.STALLED), "it is stalled")
        assert it.metric("ejections_total", upstream="spec", cause="stalled") == 1
        other = await it.client()
        other.send(post("/v1/chat/completions", CHAT))
        answer = await other.response()
        assert (answer.status, answer.header("x-specswitch-reason")) == (200, "health")
        hung.close()
        await until(lambda: state(it)[0] is Health.PROBATION, "it may be tried")
        await until(lambda: it.app.dispatcher.mode is SPEC, "speculation is back")
        trial = await it.client()
        trial.send(post("/v1/chat/completions", CHAT))
        assert (await trial.response()).header("x-specswitch-upstream") == "spec"
        assert it.healthy(SPEC)


async def test_an_engine_whose_load_moves_is_not_stalled() -> None:
    """A long prefill sends no byte, and is work."""
    engine = Engine(speculative=True)
    engine.moves = True
    gate = asyncio.Event()
    async with rig(spec=engine, health__stalled=STALLED) as it:
        engine.script(Gate(gate), Send(reply(b"{}")))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT))
        (request,) = await engine.received(1)
        asked = engine.probes
        await until(lambda: engine.probes > asked + 30, "time passes")
        assert not request.gone.is_set()
        assert it.healthy(SPEC)
        gate.set()
        assert (await client.response()).status == 200


async def test_an_engine_that_waits_for_a_slow_client_is_not_stalled() -> None:
    """Its silence is ours."""
    engine = Engine(speculative=True)
    async with rig(spec=engine, health__stalled=STALLED) as it:
        many = chunk(event({"choices": [{"delta": {"content": "a" * 60_000}}]}))
        engine.script(Send(STREAM_HEAD), *(Send(many) for _ in range(300)), Send(END))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM))
        await client.head()
        client.stop_reading()
        await until(lambda: it.app.dispatcher.spec.work.expected == 0, "the engine is paused")
        asked = engine.probes
        await until(lambda: engine.probes > asked + 30, "time passes")
        assert it.healthy(SPEC)
        client.read_on()
        while await client.chunk() is not None:
            pass


async def test_tokens_prove_more_than_a_probe_that_hangs() -> None:
    """An engine in long prefills leaves its probes waiting (sgl-project/sglang#22511, #10856)."""
    engine = Engine(speculative=True)
    gates = [asyncio.Event() for _ in range(40)]
    async with rig(spec=engine, health__timeout=0.1, health__fall=2) as it:
        steps = [step for gate in gates for step in (Gate(gate), Send(TOKEN))]
        engine.script(Send(STREAM_HEAD + TOKEN), *steps, Send(chunk(DONE) + END))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM))
        await client.head()
        engine.hangs = True
        for gate in gates:
            asked = asyncio.get_running_loop().time()
            gate.set()
            await client.chunk()
            await until(
                lambda asked=asked: asyncio.get_running_loop().time() > asked + 0.02,  # type: ignore[misc]
                "a token each 20 ms",
            )
        faults = it.app.links[SPEC].prober.findings.fault
        assert faults is not None
        assert "did not answer" in faults
        assert it.healthy(SPEC)
        await until(lambda: state(it) == (Health.EJECTED, EjectionCause.PROBE), "now it is silent")
        engine.hangs = False
        while await client.chunk() is not None:
            pass


async def test_a_load_that_cannot_be_read_proves_nothing() -> None:
    """Once it could; a long answer on an engine that has stopped telling is not a stall."""
    engine = Engine(speculative=True)
    gate = asyncio.Event()
    async with rig(spec=engine, health__stalled=STALLED) as it:
        engine.tells_load = False
        engine.script(Gate(gate), Send(reply(b"{}")))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT))
        await engine.received(1)
        asked = engine.probes
        await until(lambda: engine.probes > asked + 30, "time passes")
        assert it.healthy(SPEC)
        gate.set()
        assert (await client.response()).status == 200


async def test_an_engine_in_maintenance_is_not_judged() -> None:
    """What runs there may end, however long it takes; it is not asked for its load."""
    engine = Engine(speculative=True)
    gate = asyncio.Event()
    async with rig(spec=engine, health__stalled=STALLED) as it:
        engine.script(Gate(gate), Send(reply(b"{}")))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT))
        await engine.received(1)
        await it.admin("PUT", "/admin/upstreams/spec", {"admin_state": "maint"})
        asked = it.base.probes
        await until(lambda: it.base.probes > asked + 30, "time passes")
        assert it.metric("ejections_total", upstream="spec", cause="stalled") == 0
        gate.set()
        assert (await client.response()).status == 200
