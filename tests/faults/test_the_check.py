"""The check after every test, checked: what it is for must not slip through it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proxy.core.places import Place
from proxy.core.words import UpstreamName
from tests.harness import running as harness
from tests.harness.client import RawClient, post
from tests.harness.pair import need
from tests.harness.process import Specswitch
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import ScriptedUpstream, Send, Silence, reply

ASKING = post("/generate", {"text": "a"})


class Waits:
    """A waiter that is never told."""

    def placed(self, place: Place) -> None:
        """Of no interest."""

    def refused(self, refusal: object) -> None:
        """Of no interest."""


async def _lease(it: Rig) -> None:
    it.app.dispatcher.arrive(need(), Waits(), it.app.clock())


async def _request(it: Rig) -> None:
    it.app.front.opened()


async def _bytes(it: Rig) -> None:
    it.app.front.buffered += 1


async def _trial(it: Rig) -> None:
    it.app.dispatcher.base.health.trial_started()


async def _pool(it: Rig) -> None:
    """A connection that is in use by nobody."""
    it.spec.script(Send(reply(b"{}")))
    client = await it.client()
    client.send(ASKING)
    await client.response()
    pool = it.app.links[UpstreamName.SPEC].pool
    engine, _ = pool._idle.popitem()
    pool._active.add(engine)


async def _forgotten(it: Rig) -> None:
    """One that the pool has forgotten, and the engine has not."""
    await _pool(it)
    it.app.links[UpstreamName.SPEC].pool._active.clear()


async def _task(it: Rig) -> None:
    it.keys["kept"] = asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="stray")


async def _count(it: Rig) -> None:
    it.app.metrics.started()


async def _decision(it: Rig) -> None:
    it.app.metrics.decided(UpstreamName.SPEC, "mode")


async def _exception(it: Rig) -> None:
    async def fails() -> None:
        raise KeyError("unretrieved")

    task = asyncio.get_running_loop().create_task(fails())
    await it.until(task.done, "it has failed")


async def _coroutine(it: Rig) -> None:
    async def never() -> None:
        """Of no use."""

    never()  # type: ignore[unused-coroutine]  # that is the fault


LEFT: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "sequences in flight": _lease,
    "open requests": _request,
    "bytes of bodies held": _bytes,
    "trials of a probation": _trial,
    "connections to spec in use": _pool,
    "connections that spec has and we do not": _forgotten,
    "stray": _task,
    "requests_started_total is 1, not 0": _count,
    "decisions_total is 1, not 0 to 0": _decision,
    "KeyError": _exception,
    "never awaited": _coroutine,
}


@pytest.mark.parametrize("what", LEFT)
async def test_what_is_left_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing that the check is for fails the test that leaves it, and is named."""
    monkeypatch.setattr(harness, "SETTLED_SECONDS", 0.2)  # it will not settle
    with pytest.raises(AssertionError, match=what):
        async with rig() as it:
            await LEFT[what](it)
    for task in asyncio.all_tasks():
        if task.get_name() == "stray":
            task.cancel()


async def test_a_whole_test_passes_it() -> None:
    """Clients may stay connected, and engines' connections be kept."""
    async with rig() as it:
        it.spec.script(Send(reply(b"{}")))
        client = await it.client()
        client.send(ASKING)
        assert (await client.response()).status == 200


@pytest.mark.slow
async def test_a_process_that_leaves_something_is_found(tmp_path: Path) -> None:
    """Over its metrics: a request that runs fails the check, and one that has ended does not."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    log = tmp_path / "specswitch.log"
    async with spec, base, Specswitch(log, spec_url=spec.url, base_url=base.url) as it:
        it.leaves_nothing = True
        async with await RawClient.connect(it.port) as client:
            for upstream in (spec, base):
                upstream.always(Silence())
            client.send(ASKING)
            await until(lambda: bool(spec.requests + base.requests), "it runs")
            with pytest.raises(AssertionError):
                await asyncio.to_thread(it.nothing_left)
        await asyncio.to_thread(it.nothing_left)
