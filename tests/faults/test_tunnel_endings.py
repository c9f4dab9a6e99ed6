"""How tunnels end: what each side sees, what is counted, and that nothing is left."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from proxy.core.words import UpstreamName
from proxy.data.downstream import MAX_AHEAD_BYTES
from tests.harness.client import get
from tests.harness.running import Rig, rig
from tests.harness.tunnels import PATH, SWITCH, offer, opened
from tests.harness.upstream import ByHand, Gate, Reset, ScriptedUpstream, Send, Tunnel, reply

SHORT = 0.2


async def ended(it: Rig, outcome: str, upstream: str = "base") -> None:
    """Wait until one has ended so, and nothing is open."""
    labels = {"endpoint": PATH, "outcome": outcome, "upstream": upstream}
    await it.until(lambda: it.metric("requests_total", **labels) == 1, f"counted as {labels}")
    assert it.total("requests_total", endpoint=PATH) == 1
    assert it.metric("open_requests") == 0


def failures(it: Rig) -> int:
    """Failures in a row that base's health has counted."""
    return it.app.dispatcher.base.health._failed_requests


# Either side ends it ---------------------------------------------------------------------------


async def test_the_engine_ends_it() -> None:
    """What it said last is heard, then FIN; nothing is added, and it was a good one."""
    async with rig() as it:
        client, request = await opened(it)
        request.say(b"last words")
        request.fin()
        assert await client.reader.read() == b"last words"
        await ended(it, "ok")
        assert it.metric("responses_total", upstream="base", code="101") == 1


async def test_the_client_is_gone() -> None:
    """A reset: the engine's connection is closed at once."""
    async with rig() as it:
        client, request = await opened(it)
        client.reset()
        await asyncio.wait_for(request.gone.wait(), 1)
        await ended(it, "ok")
        assert failures(it) == 0


async def test_the_client_sends_no_more() -> None:
    """Its FIN is passed on behind its last words, and what the engine answers comes back."""
    async with rig() as it:
        client, request = await opened(it, Tunnel(stays=True))
        client.send(b"goodbye")
        client.half_close()
        await asyncio.wait_for(request.finished.wait(), 5)
        assert request.came == b"goodbye"
        request.say(b"goodbye to you")
        request.over()
        assert await client.reader.read() == b"goodbye to you"
        await ended(it, "ok")


@pytest.mark.slow
async def test_an_engine_that_does_not_heed_it() -> None:
    """It has ten seconds, and may talk in them as it likes; then both are closed."""
    async with rig() as it:
        client, request = await opened(it, Tunnel(stays=True))
        began = asyncio.get_running_loop().time()
        client.half_close()
        await asyncio.wait_for(request.finished.wait(), 5)
        request.say(b"no")
        assert await asyncio.wait_for(client.reader.read(), 15) == b"no"
        assert 9.0 < asyncio.get_running_loop().time() - began < 12.0
        await ended(it, "ok")
        request.over()


async def test_the_engine_breaks() -> None:
    """Failed, and seen in the metrics, but not held against its health; the client sees an end."""
    async with rig() as it:
        client, request = await opened(it)
        request.say(b"half a fr")
        assert await client.reader.readexactly(9) == b"half a fr"
        request.reset()
        assert await client.reader.read() == b""
        await ended(it, "failed")
        assert it.total("midstream_failures_total") == 1
        assert it.metric("responses_total", upstream="base", code="101") == 1
        assert failures(it) == 0


async def test_a_half_open_tunnel() -> None:
    """Nothing goes through, either way, for `between_chunks`: both are closed."""
    async with rig(timeouts__between_chunks=SHORT) as it:
        client, request = await opened(it)
        assert await asyncio.wait_for(client.reader.read(), 5) == b""
        await asyncio.wait_for(request.gone.wait(), 5)
        await ended(it, "failed")
        assert failures(it) == 0


@pytest.mark.parametrize("who", ["client", "engine"])
async def test_either_sides_bytes_keep_it_open(who: str) -> None:
    """Pings are bytes, too."""
    async with rig(timeouts__between_chunks=1.0) as it:
        client, request = await opened(it)
        for _ in range(5):
            await asyncio.sleep(0.25)  # the time is what is tested; a busy machine sleeps longer
            if who == "client":
                client.send(b"ping")
            else:
                request.say(b"ping")
        if who == "client":
            await it.until(lambda: request.came == b"ping" * 5, "all have come")
        else:
            assert await client.reader.readexactly(20) == b"ping" * 5
        client.close()
        await ended(it, "ok")


# Before there is one ---------------------------------------------------------------------------


async def test_the_engine_breaks_before_it_agrees() -> None:
    """502 as on every path, and the connection goes on."""
    async with rig() as it:
        it.base.script(Reset())
        client = await it.client()
        client.send(offer())
        response = await client.response()
        assert (response.status, response.code) == (502, "upstream_reset")
        await ended(it, "failed")
        client.send(get("/livez"))
        assert (await client.response()).status == 200


async def test_the_client_leaves_before_it_agrees() -> None:
    """Abandoned, and the engine's connection is closed at once."""
    async with rig() as it:
        it.base.script(ByHand())
        client = await it.client()
        client.send(offer())
        (request,) = await it.base.received(1)
        client.close()
        await asyncio.wait_for(request.gone.wait(), 1)
        await ended(it, "abandoned")


async def test_an_engine_that_says_nothing() -> None:
    """`first_byte` is for tunnels, too; else it would be `response`, an hour."""
    async with rig(timeouts__first_byte=SHORT) as it:
        it.base.script(ByHand())
        client = await it.client()
        client.send(offer())
        assert (await client.response()).code == "upstream_timeout"
        await ended(it, "failed")


async def test_a_refusal_passes() -> None:
    """A full server is not retried from base to spec, on shared GPUs."""
    async with rig() as it:
        it.base.script(Send(reply(b"full", status="503 Service Unavailable")))
        client = await it.client()
        client.send(offer())
        assert (await client.response()).status == 503
        await ended(it, "failed")


async def test_base_that_is_not_there() -> None:
    """Nothing was sent, so spec gets it."""
    async with rig() as it:
        await it.base.stop()
        it.spec.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer())
        status, headers = await client.head()
        named = {name.lower(): value for name, value in headers}
        assert (status, named["x-specswitch-upstream"]) == (101, "spec")
        client.close()
        await ended(it, "ok", "spec")


async def test_what_is_sent_ahead_is_passed_on() -> None:
    """Behind the request and before the agreement: held, and sent after it, once, in order."""
    async with rig() as it:
        gate = asyncio.Event()
        it.base.script(Gate(gate), Send(SWITCH + b"engine's"), Tunnel())
        client = await it.client()
        client.send(offer() + b"first ")
        client.send(b"second ")
        (request,) = await it.base.received(1)
        assert not request.came
        gate.set()
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(8) == b"engine's"
        client.send(b"third")
        await it.until(lambda: request.came == b"first second third", "all of it has come")
        client.close()
        await ended(it, "ok")


async def test_too_much_is_sent_ahead() -> None:
    """What could not be held would be missed, so the client is cut."""
    async with rig() as it:
        it.base.script(ByHand())
        client = await it.client()
        client.send(offer())
        (request,) = await it.base.received(1)
        client.send(b"x" * (MAX_AHEAD_BYTES + 1))
        assert await client.at_end()
        await asyncio.wait_for(request.gone.wait(), 1)
        await ended(it, "abandoned")


# Slow sides ------------------------------------------------------------------------------------


async def test_a_slow_client_slows_its_engine() -> None:
    """And gets all of it, once it reads."""
    size = 8 << 20
    async with rig() as it:
        client, request = await opened(it, client=await it.client(receive_bytes=4096))
        client.stop_reading()
        request.say(b"x" * size)
        transport = request.writer.transport
        await _stands_still(transport.get_write_buffer_size)
        assert transport.get_write_buffer_size() > size // 4
        client.read_on()
        assert len(await client.reader.readexactly(size)) == size
        client.close()
        await ended(it, "ok")


async def test_a_slow_engine_slows_its_client() -> None:
    """Nothing is held for it without a bound; the other direction still works, and all arrives."""
    size = 32 << 20
    async with rig() as it:
        gate = asyncio.Event()
        it.base.script(Send(SWITCH), Gate(gate), Tunnel())
        client = await it.client()
        client.send(offer())
        assert (await client.head())[0] == 101
        (request,) = await it.base.received(1)
        engine = cast("asyncio.Transport", request.writer.transport)
        engine.pause_reading()
        client.send(b"y" * size)
        await _stands_still(client.writer.transport.get_write_buffer_size)
        held = [each._open_transport() for pool in it.app.links.pools for each in pool._active]
        assert sum(each.get_write_buffer_size() for each in held) < 1 << 20
        assert client.writer.transport.get_write_buffer_size() > 1 << 20
        request.say(b"still here")
        assert await client.reader.readexactly(10) == b"still here"
        gate.set()
        engine.resume_reading()
        await it.until(lambda: len(request.came) >= size - 1, "all of it has come")
        client.close()
        await ended(it, "ok")


async def _stands_still(measure: Callable[[], int]) -> None:
    """Wait until nothing moves any more."""
    last, same = -1, 0
    while same < 20:
        await asyncio.sleep(0.005)  # a look at the kernel's buffers, which tell nobody
        now = measure()
        same = same + 1 if now == last else 0
        last = now


async def test_a_reload_with_another_base() -> None:
    """An open tunnel stays where it is; the next one goes to the new server, and none is lost."""
    async with rig() as it, ScriptedUpstream(speculative=False) as other:
        client, request = await opened(it)
        it.keys["upstreams.base.url"] = other.url
        assert (await it.admin("POST", "/admin/reload")).status == 200
        await it.until(lambda: it.healthy(UpstreamName.BASE), "the new one is healthy")
        other.script(Send(SWITCH), Tunnel())
        another = await it.client()
        another.send(offer())
        assert (await another.head())[0] == 101
        (beside,) = await other.received(1)
        for each, there in ((client, request), (another, beside)):
            each.send(b"still here")
            await it.until(lambda there=there: there.came == b"still here", "it is heard")  # type: ignore[misc]  # bound now
            each.close()
            await asyncio.wait_for(there.gone.wait(), 1)
        await it.until(lambda: it.total("requests_total", endpoint=PATH, outcome="ok") == 2, "both")


async def test_a_client_that_takes_nothing_is_cut() -> None:
    """After `client_write`, as on every path; its engine is let go, whatever it has to say."""
    async with rig(limits__client_write=SHORT) as it:
        client, request = await opened(it, client=await it.client(receive_bytes=4096))
        client.stop_reading()
        request.say(b"x" * (8 << 20))
        await asyncio.wait_for(request.gone.wait(), 5)
        await ended(it, "ok")
