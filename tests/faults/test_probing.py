"""Probes over real sockets: what is asked, how often at a time, and what their answers change."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from proxy.core.words import EjectionCause, Health, UpstreamName
from tests.harness.client import RawClient, Response, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import Received, ScriptedUpstream, Send, reply

SPEC = UpstreamName.SPEC
ASKING = post("/generate", {"text": "a"})


async def answer(it: Rig) -> Response:
    """What one request on a connection of its own comes to."""
    async with await RawClient.connect(it.app.port) as client:
        client.send(ASKING)
        return await client.response()


def health(it: Rig) -> tuple[Health, EjectionCause | None]:
    """What is thought of spec, and why."""
    told = it.app.dispatcher.spec.health
    return told.state, told.cause


class Probed(ScriptedUpstream):
    """Keeps which paths were probed, and answers some of them as a test says; b"" hangs."""

    def __init__(self) -> None:
        super().__init__(speculative=True)
        self.paths: Counter[str] = Counter()
        self.odd: dict[str, Callable[[Received], bytes]] = {}

    def _probe_answer(self, request: Received) -> bytes | None:
        plain = super()._probe_answer(request)
        if plain is None:
            return None
        self.paths[request.path] += 1
        odd = self.odd.get(request.path)
        return plain if odd is None else odd(request)


WELL = reply(b"")
ILL = reply(b"", status="503 Service Unavailable")


def _two_of_three() -> Iterator[bytes]:
    while True:
        yield from (WELL, WELL, ILL)


async def test_a_dropped_probe_changes_nothing() -> None:
    """One of three fails, for long (sgl-project/sglang#9198): no ejection, no change of route."""
    spec = Probed()
    async with rig(spec=spec, health__interval=0.01) as it:
        says = _two_of_three()
        spec.odd["/ready"] = lambda _: next(says)
        done = spec.paths["/ready"]
        while spec.paths["/ready"] < done + 60:
            assert (await answer(it)).header("x-specswitch-upstream") == "spec"
        assert it.total("ejections_total") == 0
        assert it.app.dispatcher.mode is SPEC

        spec.odd["/ready"] = lambda _: ILL
        await it.until(lambda: it.total("ejections_total") == 1, "three in a row are too many")
        assert health(it) == (Health.EJECTED, EjectionCause.PROBE)
        del spec.odd["/ready"]
        await it.until(lambda: it.healthy(SPEC), "good ones bring it back")


async def test_probes_never_pile_up() -> None:
    """A server that takes probes and never answers has one of them at a time."""
    spec = Probed()
    async with rig(spec=spec, health__timeout=0.1, health__interval=0.02):
        spec.odd["/ready"] = lambda _: b""
        done, most = spec.paths["/ready"], 0
        while spec.paths["/ready"] < done + 8:
            most = max(most, spec.open_connections)
            await asyncio.sleep(0)  # look at each turn of the loop, not after a time

        assert 1 <= most <= 2  # the one, and one that is just being let go


@pytest.mark.slow
async def test_a_slow_probe_is_a_good_one() -> None:
    """SGLang may take a second to say that it is well (mostlygeek/llama-swap#276)."""

    def late(request: Received) -> bytes:
        asyncio.get_running_loop().call_later(1.2, request.say, WELL)
        return b""

    spec = Probed()
    spec.odd["/ready"] = late
    async with rig(spec=spec, health__timeout=5.0) as it:
        done = spec.paths["/ready"]
        await it.until(lambda: spec.paths["/ready"] > done, "it is probed again")

        assert it.total("ejections_total") == 0


@pytest.mark.parametrize("has_ready", [True, False])
async def test_probes_ask_for_nothing_that_generates(*, has_ready: bool) -> None:
    """Whatever state it is in, only paths that cost an engine nothing are probed."""
    spec = Probed()
    if not has_ready:
        spec.odd["/ready"] = lambda _: reply(b"{}", status="404 Not Found")
    async with rig(spec=spec, health__ejection=0.2) as it:
        spec.always(Send(reply(b"{}", status="500 Internal Server Error")))
        while health(it)[1] is not EjectionCause.REQUESTS:
            await answer(it)
        await it.until(lambda: health(it)[0] is Health.PROBATION, "it is tried")
        requests, probes = len(spec.requests), spec.probes
        await it.until(lambda: spec.probes > probes + 10, "it is probed in probation")

        free = {"/ready", "/server_info", "/v1/models", "/v1/loads", "/metrics"}
        assert set(spec.paths) == free
        assert len(spec.requests) == requests


@pytest.mark.parametrize(
    "said",
    [
        reply(b"", status="404 Not Found"),
        reply(b"{}", status="500 Internal Server Error"),
        reply(b"not JSON"),
        reply(b'{"loads":[{"num_running_reqs":NaN,"num_waiting_reqs":-1}]}'),
        b"",
    ],
)
async def test_a_load_that_says_nothing_stops_nothing(said: bytes) -> None:
    """A broken or hung reading is an unknown one (llm-d/llm-d-router#2100): routing goes on."""
    spec = Probed()
    async with rig(spec=spec, health__timeout=0.1, health__fall=1) as it:
        spec.odd["/v1/loads"] = lambda _: said
        done = spec.paths["/v1/loads"]
        await it.until(lambda: spec.paths["/v1/loads"] > done + 4, "it is read again and again")

        assert (await answer(it)).header("x-specswitch-upstream") == "spec"
        assert it.total("ejections_total") == 0
