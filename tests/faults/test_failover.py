"""One engine fails in some way: the other carries on, and nothing is sent twice or lost unsaid.

Every generation path goes the same way through the exchange, so what depends on the path is tried
on each of them, and what does not on one that is held until its first event and one that is not.
"""

import asyncio
import json
from collections import Counter
from statistics import median

import pytest

from proxy.core.endpoints import ENDPOINTS, Kind
from proxy.core.words import EjectionCause, Health, UpstreamName
from tests.harness.client import CHAT_STREAM, RawClient, Response, get, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    DONE,
    STREAM_HEAD,
    ByHand,
    Gate,
    Send,
    Silence,
    Step,
    chunk,
    event,
    reply,
    stream,
)

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
CHATTING = post("/v1/chat/completions", CHAT_STREAM)
ASKING = post("/generate", {"text": "a"})
PATHS = [each.template for each in ENDPOINTS if each.kind is Kind.GENERATION]
FULL = b'{"object":"error","message":"The request queue is full.","code":503}'
FULL_EVENT = event({"error": {"message": "The request queue is full.", "code": 503}})
ONE_TOKEN = event({"choices": [{"delta": {"content": "a"}}]})
NEVER = 100_000
"""Failed probes in a row: spec is not taken out by them before the test has asked."""


class Clock:
    """Monotonic seconds that only the test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now


def stopped(it: Rig) -> Clock:
    """Stop the time that specswitch sees; probes go on, and only the test moves it."""
    clock = Clock(it.app.clock())
    it.app.clock = it.app.front.clock = clock
    for link in map(it.app.links.__getitem__, UpstreamName):
        link.pool._clock = link.prober._clock = clock
    return clock


def jump(it: Rig, clock: Clock, seconds: float) -> None:
    """Let time pass, and have all that waits for a time look at it."""
    clock.now += seconds
    it.app.dispatcher.tick(clock.now)
    for connection in tuple(it.app.front.connections):
        connection._time_passed()


async def answer(it: Rig, request: bytes = ASKING) -> Response:
    """What one request on a connection of its own comes to."""
    async with await RawClient.connect(it.app.port) as client:
        client.send(request)
        return await client.response()


async def asked(it: Rig, count: int, request: bytes = ASKING) -> list[RawClient]:
    """`count` clients that have sent `request`."""
    clients = [await it.client() for _ in range(count)]
    for client in clients:
        client.send(request)
    return clients


def health(it: Rig, name: UpstreamName) -> tuple[Health, EjectionCause | None]:
    """What is thought of an upstream, and why."""
    told = it.app.dispatcher.upstream(name).health
    return told.state, told.cause


# It cannot be connected to -------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_refused_connection_goes_to_the_other(path: str, *, streamed: bool) -> None:
    """On every generation path the other serves, and gets the request once, body and all."""
    body = {"model": "m", "stream": streamed}
    async with rig(health__fall=NEVER) as it:
        it.base.script(Send(stream(ONE_TOKEN, DONE) if streamed else reply(b"{}")))
        await it.spec.stop()
        response = await answer(it, post(path, body))

        assert (response.status, response.complete) == (200, True)
        assert response.header("x-specswitch-upstream") == "base"
        assert response.header("x-specswitch-reason") == "retry"
        (request,) = it.base.requests
        assert (request.path, json.loads(request.body)) == (path, body)


async def test_failover_adds_little() -> None:
    """A refused connection costs its request under 50 ms (vllm-project/production-stack#382)."""
    loop = asyncio.get_running_loop()
    took: dict[str, list[float]] = {"base": [], "retry": []}
    async with rig(
        policy__allow_override=True, health__fall=NEVER, health__passive_failures=NEVER
    ) as it:
        await it.spec.stop()
        client = await it.client()
        for _ in range(60):
            for name, headers in (("base", {"x-specswitch-route": "base"}), ("retry", {})):
                began = loop.time()
                client.send(post("/generate", {"text": "a"}, headers=headers))
                assert (await client.response()).status == 200
                took[name].append(loop.time() - began)

        assert it.metric("retries_total", cause="connect") == 60
        assert median(took["retry"]) - median(took["base"]) < 0.050


async def test_a_closed_port_is_not_tried_for_every_request() -> None:
    """After `passive_failures` it is left alone, well probed or not (BerriAI/litellm#27610)."""
    async with rig(health__passive_failures=5, health__ejection=60.0, health__fall=NEVER) as it:
        await it.spec.stop()
        reasons = [(await answer(it)).header("x-specswitch-reason") for _ in range(20)]

        assert reasons == ["retry"] * 5 + ["health"] * 15
        assert health(it, SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)
        await it.spec.start()
        probes = it.spec.probes
        await it.until(lambda: it.spec.probes > probes + 5, "its probes are good again")
        assert (await answer(it)).header("x-specswitch-reason") == "health"
        assert not it.spec.requests


# It answers, and badly -----------------------------------------------------------------------


@pytest.mark.parametrize("victim", UpstreamName)
@pytest.mark.parametrize(
    ("request_bytes", "bad"),
    [
        (ASKING, reply(b"{}", status="500 Internal Server Error")),
        (CHATTING, reply(b"{}", status="502 Bad Gateway")),
        (CHATTING, stream(event({"error": {"code": 500}}), DONE)),
    ],
)
async def test_what_fails_at_once_does_not_attract_all(
    victim: UpstreamName, request_bytes: bytes, bad: bytes
) -> None:
    """An engine that fails in no time always looks idle (thushan/olla#144): it is ejected."""
    async with rig(policy__control=victim.value, health__ejection=60.0) as it:
        it.upstream(victim).always(Send(bad))
        for _ in range(50):
            await answer(it, request_bytes)

        assert len(it.upstream(victim).requests) == 5
        assert len(it.upstream(victim.other).requests) == 45
        assert health(it, victim) == (Health.EJECTED, EjectionCause.REQUESTS)


async def test_probation_lets_one_in_and_ejection_grows() -> None:
    """Of 20 at once one tries it; if that fails it is out for twice as long, at most 60 s."""
    async with rig(health__passive_failures=2, policy__control="spec") as it:
        clock = stopped(it)
        it.spec.always(Send(reply(b"{}", status="500 Internal Server Error")))
        told = it.app.dispatcher.spec.health
        for _ in range(2):
            await answer(it)
        lengths = []
        for count in range(3, 9):
            assert told.until is not None
            lengths.append(told.until - clock.now)
            jump(it, clock, lengths[-1])
            assert told.state is Health.PROBATION
            clients = await asked(it, 20)
            statuses = Counter([(await client.response()).status for client in clients])
            assert statuses == {200: 19, 500: 1}
            assert len(it.spec.requests) == count
        assert lengths == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]

        it.spec.always(Send(reply(b"{}")))
        jump(it, clock, 60.0)
        assert (await answer(it)).header("x-specswitch-upstream") == "spec"
        assert health(it, SPEC) == (Health.HEALTHY, None)


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Unprocessable"])
@pytest.mark.parametrize("request_bytes", [ASKING, CHATTING])
async def test_a_clients_fault_is_not_its_engines(status: str, request_bytes: bytes) -> None:
    """50 answers of 4xx say nothing of an engine's health (sgl-project/sglang#25811)."""
    async with rig() as it:
        it.spec.always(Send(reply(b'{"detail":"too long"}', status=status)))
        for _ in range(50):
            assert (await answer(it, request_bytes)).status == int(status[:3])
        it.spec.always(Send(reply(b"{}")))

        assert (await answer(it, request_bytes)).header("x-specswitch-upstream") == "spec"
        assert it.total("ejections_total") == 0
        assert len(it.spec.requests) == 51


REFUSALS = [
    (ASKING, reply(FULL, status="503 Service Unavailable")),
    (ASKING, reply(FULL, status="429 Too Many Requests")),
    (CHATTING, reply(FULL, status="503 Service Unavailable")),
    (CHATTING, stream(FULL_EVENT, DONE)),
    (post("/v1/completions", {"prompt": "a", "stream": True}), stream(FULL_EVENT, DONE)),
]


@pytest.mark.parametrize(("request_bytes", "refusal"), REFUSALS)
async def test_a_storm_of_refusals_by_spec(request_bytes: bytes, refusal: bytes) -> None:
    """A full spec is no ill one: each is tried once on base, and none counts against its health."""
    async with rig(policy__control="spec") as it:
        it.spec.always(Send(refusal))
        for _ in range(20):
            response = await answer(it, request_bytes)
            assert (response.status, response.body) == (200, b"{}")
            assert response.header("x-specswitch-reason") == "retry"

        assert len(it.spec.requests) == len(it.base.requests) == 20
        assert it.metric("retries_total", cause="refusal") == 20
        assert it.total("ejections_total") == 0


@pytest.mark.parametrize(("request_bytes", "refusal"), REFUSALS)
async def test_a_storm_of_refusals_by_base(request_bytes: bytes, refusal: bytes) -> None:
    """A full base passes as it came, each once: spec does not run beside it on the same GPUs."""
    async with rig(policy__control="base") as it:
        it.base.always(Send(refusal))
        for _ in range(20):
            response = await answer(it, request_bytes)
            assert response.complete
            assert FULL in response.body or response.body == FULL_EVENT + DONE

        assert (len(it.spec.requests), len(it.base.requests)) == (0, 20)
        assert it.total("ejections_total") == 0


async def test_a_storm_of_refusals_by_both() -> None:
    """Each is sent twice and not more, and the client learns what the second said."""
    refusal = Send(reply(FULL, status="503 Service Unavailable"))
    async with rig() as it:
        it.spec.always(refusal)
        it.base.always(refusal)
        for _ in range(20):
            assert (await answer(it)).body == FULL

        attempts = [r.header("x-specswitch-attempt") for r in it.spec.requests + it.base.requests]
        assert Counter(attempts) == {"1": 20, "2": 20}
        assert it.total("ejections_total") == 0


# It answers late, or never -------------------------------------------------------------------


@pytest.mark.parametrize(("request_bytes", "patience"), [(CHATTING, 600.0), (ASKING, 3600.0)])
async def test_a_slow_head_is_waited_for(request_bytes: bytes, patience: float) -> None:
    """A long prefill or queue is not cut by the defaults (BerriAI/litellm#34374)."""
    async with rig() as it:
        clock = stopped(it)
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(reply(b"{}")))
        (client,) = await asked(it, 1, request_bytes)
        await it.spec.received(1)
        jump(it, clock, patience - 1)
        assert it.app.dispatcher.in_flight.spec == 1
        gate.set()

        assert (await client.response()).status == 200
        assert it.total("ejections_total") == 0


@pytest.mark.parametrize(
    ("request_bytes", "patience", "said"),
    [(CHATTING, 600.0, b""), (CHATTING, 600.0, STREAM_HEAD), (ASKING, 3600.0, b"")],
)
async def test_an_engine_that_only_looks_alive(
    request_bytes: bytes, patience: float, said: bytes
) -> None:
    """Probes good, requests hang (smg-project/smg#2136, sgl-project/sglang#6624): 504, let go, out.

    The probes of a server whose scheduler is dead go on being answered; that it fails its requests
    must count all the same, and for the whole time of the ejection.
    """
    async with rig(policy__crossover=10.0) as it:
        clock = stopped(it)
        it.spec.always(Send(said), Silence())
        clients = await asked(it, 5, request_bytes)
        requests = await it.spec.received(5)
        if said:
            await it.until(lambda: _holding(it) == 5, "their heads are held")
        jump(it, clock, patience)
        for client in clients:
            response = await client.response()
            assert (response.status, response.code) == (504, "upstream_timeout")
            assert json.loads(response.body)["error"]["type"] == "upstream_error"
        for request in requests:
            await asyncio.wait_for(request.gone.wait(), 5)
        assert health(it, SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)
        assert it.app.dispatcher.in_flight.total == 0

        probes = it.spec.probes
        await it.until(lambda: it.spec.probes > probes + 5, "its probes go on being good")
        assert (await answer(it, request_bytes)).header("x-specswitch-reason") == "health"


def _holding(it: Rig) -> int:
    relays = [each._relay for each in it.app.front.connections]
    return sum(each is not None and each.exchange.status is not None for each in relays)


# It closes, or its client idles --------------------------------------------------------------


async def test_a_server_that_closes_what_is_idle() -> None:
    """300 requests at a server that closes while the next is on its way: none fails, each once.

    A kept connection that the server is just closing is the usual cause of errors between two
    servers that are both well (open-webui/terminals#24).
    """
    async with rig() as it:
        client = await it.client()
        for number in range(300):
            it.spec.script(ByHand())
            client.send(post("/generate", {"text": "a"}, headers={"x-request-id": str(number)}))
            request = (await it.spec.received(number + 1))[-1]
            request.say(reply(b"{}"))
            assert (await client.response()).status == 200
            request.reset()  # in the same turn of the loop as the next request

        assert [each.header("x-request-id") for each in it.spec.requests] == [
            str(number) for number in range(300)
        ]
        assert not it.base.requests
        assert it.metric("retries_total", cause="stale_connection") > 0


async def test_a_client_may_idle_for_over_a_minute() -> None:
    """Agents think for long and do not repeat a POST that was reset (Kludex/uvicorn#2097)."""
    async with rig() as it:
        clock = stopped(it)
        client = await it.client()
        for seconds in (4.9, 5.1, 30.0, 70.0):
            jump(it, clock, seconds)
            client.send(ASKING)
            assert (await client.response()).status == 200


# It dies under load --------------------------------------------------------------------------


def _begun(kind: str) -> tuple[Step, ...]:
    """What a request has got when its engine dies."""
    said = STREAM_HEAD + chunk(ONE_TOKEN) if kind == "streaming" else b""
    return (Send(said), Gate(asyncio.Event()))


@pytest.mark.parametrize("victim", UpstreamName)
async def test_an_engine_is_killed_under_200_requests(victim: UpstreamName) -> None:
    """Of those not yet sent none is lost; those that were end at once, and say how."""
    async with rig(
        policy__control=victim.value, limits__max_in_flight=100, upstreams__spec__max_in_flight=0
    ) as it:
        dying, other = it.upstream(victim), it.upstream(victim.other)
        for count in range(100):
            dying.script(*_begun("streaming" if count % 2 else "waiting"))
        clients = await asked(it, 200, CHATTING)
        await dying.received(100)
        await it.until(lambda: len(it.app.dispatcher.room) == 100, "100 wait")
        await it.until(lambda: _holding(it) == 50, "50 stream")
        await dying.stop()
        responses = [await client.response() for client in clients]
        late = [await answer(it, CHATTING) for _ in range(20)]

        ends = Counter((each.status, each.complete) for each in responses)
        assert ends == {(200, True): 100, (502, True): 50, (200, False): 50}
        broken = [each for each in responses if not each.complete]
        assert all(b"upstream_reset" in each.body for each in broken)
        assert not any(b"[DONE]" in each.body for each in broken)
        assert {each.code for each in responses if each.status == 502} == {"upstream_reset"}
        assert {each.status for each in late} == {200}
        assert (len(dying.requests), len(other.requests)) == (100, 120)


# What lives in one of them -------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/v1/responses", {"model": "m", "input": "a", "previous_response_id": "resp_1"}),
        post("/v1/responses", {"model": "m", "input": "a", "store": True}),
        post("/v1/responses", {"model": "m", "input": "a", "background": True}),
        get("/v1/responses/resp_1"),
        post("/v1/responses/resp_1/cancel", b""),
        post("/open_session", {"capacity_of_str_len": 1000}),
        post("/generate", {"text": "a", "session_params": {"id": "s"}}),
    ],
)
async def test_state_is_never_looked_for_elsewhere(request_bytes: bytes) -> None:
    """A conversation stays where its state lives (BerriAI/litellm#10193), and fails without it."""
    async with rig(policy__control="spec", timeouts__wait_for_upstream=0.1) as it:
        assert (await answer(it, request_bytes)).header("x-specswitch-upstream") == "base"
        plain = await answer(it, post("/v1/responses", {"model": "m", "input": "a"}))
        assert plain.header("x-specswitch-upstream") == "spec"
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.base.in_service, "base is out")
        response = await answer(it, request_bytes)

        assert (response.status, response.code) == (503, "ineligible")
        assert len(it.spec.requests) == 1


async def test_one_body_kept_for_another_try() -> None:
    """The body that a retry sends is the one that came, byte for byte."""
    body = b'{ "b": 1e400, "a":1, "a" : 2, "\xc3\xa9":"\\ud83d" }'
    async with rig(health__fall=NEVER) as it:
        await it.spec.stop()
        await answer(it, post("/v1/chat/completions", body))
        it.spec.always(Send(reply(FULL, status="503 Service Unavailable")))
        await it.spec.start()
        await answer(it, post("/v1/chat/completions", body))

        assert [each.body for each in it.base.requests] == [body, body]
        assert [each.body for each in it.spec.requests] == [body]
