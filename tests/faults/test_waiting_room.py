"""Waiting and refusing: who waits, for what and how long, who is refused, and what it is told."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from proxy.app import App, running
from proxy.config import load
from proxy.core.words import EjectionCause, Health, UpstreamName
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from tests.harness.client import CHAT, RawClient, Response, get, post
from tests.harness.process import free_port
from tests.harness.running import DEFAULTS, Rig, rig, until
from tests.harness.upstream import Gate, Received, ScriptedUpstream, Send, reply

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
ASKING = post("/generate", {"text": "a"})
BASE_ONLY = post("/v1/chat/completions", {**CHAT, "min_p": 0.1})


def one_place(**overrides: object) -> AbstractAsyncContextManager[Rig]:
    """All goes to base, which has one place."""
    cap: dict[str, object] = {"upstreams__base__max_in_flight": 1, "policy__control": "base"}
    return rig(spec=None, base=None, wait=True, **cap, **overrides)


def numbered(number: int) -> bytes:
    """A request that can be told from others where it arrives."""
    return post("/generate", {"text": "a"}, headers={"x-request-id": str(number)})


def numbers(requests: list[Received]) -> list[str | None]:
    """Which of them arrived, in order."""
    return [each.header("x-request-id") for each in requests]


async def held(it: Rig, upstream: ScriptedUpstream, count: int) -> asyncio.Event:
    """Take `count` places at `upstream`; the event gives them back."""
    gate = asyncio.Event()
    before = len(upstream.requests)
    for _ in range(count):
        upstream.script(Gate(gate), Send(reply(b"{}")))
        (await it.client()).send(ASKING)
    await upstream.received(before + count)
    return gate


async def waiting(it: Rig, request: bytes = ASKING) -> RawClient:
    """A client that stands in the waiting room."""
    before = len(it.app.dispatcher.room)
    client = await it.client()
    client.send(request)
    await it.until(lambda: len(it.app.dispatcher.room) == before + 1, "it waits")
    return client


async def answer(it: Rig, request: bytes = ASKING) -> Response:
    """What one request on a connection of its own comes to."""
    async with await RawClient.connect(it.app.port) as client:
        client.send(request)
        return await client.response()


def message(response: Response) -> str:
    """The words of an error in OpenAI's shape."""
    text = json.loads(response.body)["error"]["message"]
    assert isinstance(text, str)
    return text


def retry_after(response: Response) -> int:
    """Whole seconds for which a client is asked to wait: at least 1, and no more than a minute."""
    seconds = int(response.header("retry-after") or "")
    assert 1 <= seconds <= 60
    return seconds


# Caps ----------------------------------------------------------------------------------------


async def test_an_upstream_over_its_cap_gets_nothing_more() -> None:
    """Spec full goes to base, both full wait, and the room full is 429 (ai-dynamo/dynamo#9688)."""
    async with rig(
        policy__control="spec",
        upstreams__spec__max_in_flight=1,
        upstreams__base__max_in_flight=1,
        limits__queue_size=1,
    ) as it:
        gates = [await held(it, it.spec, 1), await held(it, it.base, 1)]
        waits = await waiting(it)
        refused = await answer(it)
        assert (refused.status, refused.code) == (429, "overloaded")
        assert (len(it.spec.requests), len(it.base.requests)) == (1, 1)
        client = await it.client()
        client.send(
            get("/readyz") + get("/livez")
        )  # busy is not ill (text-generation-inference#3241)
        assert [(await client.response()).status for _ in range(2)] == [200, 200]
        for gate in gates:
            gate.set()

        assert (await waits.response()).status == 200


async def test_twenty_at_ten_places_and_five_stands() -> None:
    """Ten run, five wait and five are refused at once (vllm-project/production-stack#855)."""
    async with rig(
        policy__control="base", upstreams__base__max_in_flight=10, limits__queue_size=5
    ) as it:
        gate = asyncio.Event()
        it.base.always(Gate(gate), Send(reply(b"{}")))
        clients = [await it.client() for _ in range(20)]
        for number, client in enumerate(clients):
            client.send(numbered(number))
            await it.until(lambda n=number: _known(it) == n + 1, "it is there")  # type: ignore[misc]
        for client in clients[15:]:
            assert (await client.response()).code == "overloaded"
        assert len(it.base.requests) == 10
        gate.set()

        assert {(await client.response()).status for client in clients[:15]} == {200}
        assert set(numbers(it.base.requests[:10])) == {*map(str, range(10))}
        assert it.metric("queue_depth") == 0


def _known(it: Rig) -> int:
    return int(it.total("requests_started_total"))


async def test_first_come_first_served() -> None:
    """Equals are served in the order in which they came, one place at a time."""
    async with one_place() as it:
        gate = await held(it, it.base, 1)
        clients = [await waiting(it, numbered(number)) for number in range(12)]
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200

        assert numbers(it.base.requests[1:]) == [str(number) for number in range(12)]


async def test_an_upstream_that_is_full_keeps_nobody_from_the_other() -> None:
    """Who waits for base alone does not hold up those that spec can serve."""
    async with rig(policy__control="spec", upstreams__base__max_in_flight=1) as it:
        gate = asyncio.Event()
        it.base.script(Gate(gate), Send(reply(b"{}")))
        holder = await it.client()
        holder.send(BASE_ONLY)
        await it.base.received(1)
        waits = await waiting(it, BASE_ONLY)
        assert (await answer(it)).header("x-specswitch-upstream") == "spec"
        gate.set()

        assert (await waits.response()).header("x-specswitch-upstream") == "base"


# Leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_who_leaves_frees_its_stand_and_reaches_no_engine(how: str) -> None:
    """However a waiting client leaves, its stand goes to another and its request nowhere."""
    async with one_place(limits__queue_size=2) as it:
        gate = await held(it, it.base, 1)
        stays, leaver = await waiting(it, numbered(0)), await waiting(it, numbered(1))
        assert (await answer(it)).status == 429
        getattr(leaver, how)()
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "it has left")
        comes = await waiting(it, numbered(2))
        gate.set()

        assert (await stays.response()).status == (await comes.response()).status == 200
        assert numbers(it.base.requests[1:]) == ["0", "2"]
        assert it.total("requests_total", upstream="none", outcome="abandoned") == 1


async def test_all_who_wait_leave_at_once() -> None:
    """A hundred that leave together leave nothing behind, and hold nobody up."""
    async with one_place() as it:
        gate = await held(it, it.base, 1)
        leavers = [await waiting(it, numbered(number)) for number in range(100)]
        last = await waiting(it, numbered(100))
        for leaver in leavers:
            leaver.reset()
        gate.set()

        assert (await last.response()).status == 200
        arrived = numbers(it.base.requests)
        assert arrived[-1] == "100"
        # One that the freed place found before its leaving was known may have been begun.
        assert len(arrived) < 100


# Patience ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "code"),
    [("limits__queue_size", "overloaded"), ("limits__queue_timeout", "queue_timeout")],
)
async def test_waiting_switched_off(setting: str, code: str) -> None:
    """With no room, or no patience, who finds no place is refused at once."""
    off: dict[str, object] = {setting: 0}
    async with one_place(**off) as it:
        gate = await held(it, it.base, 1)
        response = await answer(it)
        assert response.code == code
        assert retry_after(response) == 1
        assert it.total("queue_wait_seconds_count") == 0
        gate.set()


@pytest.mark.parametrize(
    ("queue_timeout", "wait_for_upstream", "code"),
    [(0.3, 20.0, "queue_timeout"), (20.0, 0.3, "no_upstream")],
)
async def test_whichever_patience_ends_first(
    queue_timeout: float, wait_for_upstream: float, code: str
) -> None:
    """With nothing usable, a request waits for the shorter of the two and not for both."""
    async with rig(
        limits__queue_timeout=queue_timeout, timeouts__wait_for_upstream=wait_for_upstream
    ) as it:
        await it.spec.stop()
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.usable, "nothing is usable")
        response = await answer(it)

        assert (response.status, response.code) == (503, code)
        assert retry_after(response) >= 1


async def test_patience_for_an_upstream_runs_from_when_the_last_one_went() -> None:
    """Once it is over, who comes later is refused at once."""
    async with rig(timeouts__wait_for_upstream=0.2) as it:
        await it.spec.stop()
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.usable, "nothing is usable")
        assert (await answer(it)).code == "no_upstream"
        client = await it.client()
        client.send(ASKING)
        assert (await client.response()).code == "no_upstream"
        assert it.total("queue_wait_seconds_count") == 1  # the first


# Nothing is usable ---------------------------------------------------------------------------


async def test_both_down_and_one_back_in_time() -> None:
    """A rolling restart costs its clients a wait and no error (vllm-project/router#140)."""
    async with rig(limits__queue_size=20, timeouts__wait_for_upstream=20.0) as it:
        await it.spec.stop()
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.usable, "nothing is usable")
        clients = [await waiting(it, numbered(number)) for number in range(20)]
        refused = await answer(it)
        assert refused.code == "overloaded"
        assert "20 of 20 waiting" in message(refused)
        clients[3].close()
        await it.until(lambda: len(it.app.dispatcher.room) == 19, "one has left")
        await it.base.start()
        for client in clients[:3] + clients[4:]:
            response = await client.response()
            assert (response.status, response.header("x-specswitch-reason")) == (200, "health")

        assert Counter(numbers(it.base.requests)) == Counter(map(str, {*range(20)} - {3}))


async def test_both_ejected_by_their_requests() -> None:
    """Where all are resting, requests wait for the first that may be tried (BerriAI/litellm#3646).

    Others fail open to the least bad one; here a request is not given to what is known to fail, and
    the wait is bounded: `wait_for_upstream`.
    """
    async with rig(health__passive_failures=1, health__ejection=0.5) as it:
        bad = Send(reply(b"{}", status="500 Internal Server Error"))
        it.spec.script(bad)
        it.base.script(bad)
        assert [(await answer(it)).status for _ in range(2)] == [500, 500]
        assert {it.app.dispatcher.upstream(name).health.cause for name in UpstreamName} == {
            EjectionCause.REQUESTS
        }
        response = await answer(it)

        assert response.status == 200
        upstream = it.app.dispatcher.upstream(
            UpstreamName(response.header("x-specswitch-upstream") or "")
        )
        assert upstream.health.state is Health.HEALTHY


class Late(ScriptedUpstream):
    """An upstream whose port is known before it is there."""

    def __init__(self, *, speculative: bool) -> None:
        super().__init__(speculative=speculative)
        self.port = free_port()
        self.there = False

    async def start(self) -> None:
        """Listen, once it is said to be there."""
        if self.there:
            await super().start()


@pytest.mark.parametrize("comes", UpstreamName)
async def test_specswitch_starts_first(comes: UpstreamName) -> None:
    """One server comes later and the other never: it is served from as soon as it is there.

    Other routers die at a deadline, or must be started last (sgl-project/sglang#2778, #12621).
    """
    ends = {"spec": Late(speculative=True), "base": Late(speculative=False)}
    async with rig(spec=ends["spec"], base=ends["base"], wait=False) as it:
        waits = await waiting(it)
        late = ends[comes.value]
        late.there = True
        await late.start()
        response = await waits.response()

        assert response.header("x-specswitch-upstream") == comes.value
        assert response.header("x-specswitch-reason") == "health"
        client = await it.client()
        client.send(get("/readyz"))
        assert (await client.response()).status == 200


# What a refusal says -------------------------------------------------------------------------


async def test_every_refusal_says_why_with_counts() -> None:
    """Reason, load and limits are in the words of each (ai-dynamo/dynamo#8189)."""
    async with one_place(
        limits__queue_size=1,
        limits__queue_timeout=0.3,
        limits__max_in_flight=30,
        timeouts__wait_for_upstream=0.2,
    ) as it:
        gate = await held(it, it.base, 1)
        waits = await waiting(it)
        load = r"1 of 1 waiting, 0 sequences in flight on spec and 1 on base, 30 allowed"
        assert re.search(load, message(await answer(it)))
        heavy = await answer(it, post("/v1/completions", {"prompt": ["a"] * 31}))
        assert heavy.status == 429
        assert "31 sequences, 30 are allowed" in message(heavy)
        late = await waits.response()
        assert re.search(r"within 0\.3 s: .* 1 on base, 30 allowed", message(late))
        gate.set()
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.base.in_service, "base is out")
        ineligible = await answer(it, BASE_ONLY)
        assert re.search(r"\(min_p\): spec is .*healthy.*, base is .*ejected", message(ineligible))
        assert retry_after(ineligible) >= 1
        await it.spec.stop()
        await it.until(lambda: not it.app.dispatcher.usable, "nothing is usable")
        none = await answer(it)
        assert re.search(r"for 0\.2 s: spec is .*ejected.*, base is .*ejected", message(none))


# Draining and many ---------------------------------------------------------------------------


async def test_draining_serves_those_who_wait() -> None:
    """Who waits when it is told to stop is served in its turn, and the exit code is 0."""
    async with one_place() as it:
        gate = await held(it, it.base, 1)
        clients = [await waiting(it, numbered(number)) for number in range(5)]
        it.app.stop()
        ended = asyncio.get_running_loop().create_task(it.app.until_stopped())
        await it.until(lambda: it.app.dispatcher.draining, "it drains")
        refused = await answer(it)
        assert (refused.code, refused.header("connection")) == ("draining", "close")
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200

        assert numbers(it.base.requests[1:]) == list("01234")
        assert await ended == 0


@asynccontextmanager
async def simulated(**overrides: object) -> AsyncIterator[App]:
    """Run specswitch in front of a simulated pair that is much faster than a real one."""
    async with SimulatedPair(PairOptions(time_scale=40.0)) as pair:
        keys = {name.replace("__", "."): value for name, value in overrides.items()}
        ends = {"upstreams.spec.url": pair.spec_url, "upstreams.base.url": pair.base_url}
        config = load(file=None, env={}, overrides={**DEFAULTS, **ends, **keys})
        async with running(config) as app:
            health = (app.dispatcher.spec.health, app.dispatcher.base.health)
            await until(
                lambda: {each.state for each in health} == {Health.HEALTHY}, "both are healthy"
            )
            yield app


@pytest.mark.slow
@pytest.mark.parametrize("base_cap", [8, 64])
async def test_a_thousand_at_once_lose_none(base_cap: int) -> None:
    """1,000 requests at infinite rate at a pair with caps: all are served, each once."""
    body = {**CHAT, "max_tokens": 4, "stream": True}
    # Clients, engines and specswitch share a loop here, whose own delay must not pass for theirs.
    patience: dict[str, object] = {"timeouts__connect": 30.0, "limits__queue_timeout": 50.0}
    async with simulated(upstreams__base__max_in_flight=base_cap, **patience) as app:
        clients = [await RawClient.connect(app.port) for _ in range(1000)]
        try:
            for client in clients:
                client.send(post("/v1/chat/completions", body))
            ends: Counter[tuple[int, bool, bool]] = Counter()
            for client in clients:
                async with asyncio.timeout(50):
                    response = await client.response()
                ends[response.status, response.complete, b"[DONE]" in response.body] += 1
        finally:
            for client in clients:
                client.close()

        assert ends == {(200, True, True): 1000}
        assert app.dispatcher.in_flight.total == len(app.dispatcher.room) == 0
