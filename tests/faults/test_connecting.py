"""Connections that do not come about: an address that takes none, a client that leaves."""

import asyncio
import errno
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from proxy.core.words import UpstreamName
from proxy.data.pool import Connecting, Pool
from proxy.data.response import ResponseHead
from proxy.data.upstream import EngineConnection
from proxy.errors import Refusal
from tests.harness.client import post
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import Send, reply
from tests.harness.wire import FakeTransport, pool_with

ASKING = post("/generate", {"text": "a"})
FAR = 1000.0


@contextmanager
def swallowing(port: int) -> Iterator[None]:
    """Listen on `port` with a full backlog: further connections are neither taken nor refused."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            waiting.append(client)
        try:
            yield
        finally:
            for client in waiting:
                client.close()


async def without_spec(it: Rig) -> int:
    """Take spec away, without specswitch noticing; the port that is free then."""
    await it.spec.stop()
    return it.spec.port


async def test_no_connection_in_time_goes_to_the_other() -> None:
    """An upstream that takes no connection in time: the other serves, with reason `retry`."""
    async with rig(health__fall=1000, health__timeout=0.2, timeouts__connect=0.2) as it:
        it.base.script(Send(reply(b"good")))
        with swallowing(await without_spec(it)):
            client = await it.client()
            client.send(ASKING)
            response = await client.response()

        assert response.body == b"good"
        assert response.header("x-specswitch-reason") == "retry"


async def test_client_leaves_while_connecting() -> None:
    """A client that leaves before there is a connection ends the attempt."""
    async with rig(health__fall=1000, health__timeout=0.2, timeouts__connect=30.0) as it:
        with swallowing(await without_spec(it)):
            client = await it.client()
            client.send(ASKING)
            await it.until(lambda: it.app.dispatcher.in_flight.spec == 1, "it has a place")
            client.close()
            await it.until(lambda: it.app.front.open_requests == 0, "it is over")
            pool = it.app.links[UpstreamName.SPEC].pool
            await it.until(lambda: not pool._connecting, "nobody connects")

        labels = {"upstream": "spec", "endpoint": "/generate", "outcome": "abandoned"}
        assert it.metric("requests_total", **labels) == 1


async def test_shutdown_while_connecting() -> None:
    """Going down ends attempts that are under way."""
    async with rig(health__fall=1000, health__timeout=0.2, timeouts__connect=30.0) as it:
        with swallowing(await without_spec(it)):
            client = await it.client()
            client.send(ASKING)
            pool = it.app.links[UpstreamName.SPEC].pool
            await it.until(lambda: bool(pool._connecting), "it connects")
            pool.close()
            await it.until(lambda: not pool._connecting, "nobody connects")
            client.close()


class Hearer:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.flushed = asyncio.Event()

    def engine_connected(self, engine: EngineConnection, *, reused: bool) -> None:
        """Keep it."""
        del engine
        self.heard.append(f"connected, {'reused' if reused else 'new'}")

    def engine_not_connected(self, why: str) -> None:
        """Keep it."""
        self.heard.append(why)

    def engine_refused(self, refusal: Refusal) -> None:
        """Keep it."""
        self.heard.append(f"refused: {refusal}")

    def engine_head(self, head: ResponseHead) -> None:
        """Keep it."""
        self.heard.append(f"head {head.status}")

    def engine_body(self, pieces: list[bytes], framed: bytes | None) -> None:
        """Keep it."""
        self.heard.append(f"body {len(pieces)}{' framed' if framed else ''}")

    def engine_ended(self, *, reusable: bool) -> None:
        """Keep it."""
        self.heard.append(f"ended {reusable}")

    def engine_lost(self, *, silent: bool, why: str) -> None:
        """Keep it."""
        self.heard.append(f"lost {silent} {why}")

    def engine_tunnelled(self, data: bytes) -> None:
        """Keep it."""
        self.heard.append(f"tunnelled {data!r}")

    def engine_slow(self) -> None:
        """Keep it."""
        self.heard.append("slow")

    def engine_caught_up(self) -> None:
        """Keep it."""
        self.heard.append("caught up")

    def engine_flush(self) -> None:
        """Keep it."""
        self.flushed.set()

    def engine_failed(self, fault: Exception) -> None:
        """Keep it."""
        self.heard.append(f"failed {fault!r}")


async def lost_at_once(engine: EngineConnection, *_: object) -> None:
    """Dial and be closed in the same moment."""
    transport = FakeTransport()
    engine.connection_made(transport)
    transport.abort()
    engine.connection_lost(None)


async def test_a_connection_that_is_lost_as_soon_as_it_is_made() -> None:
    """It is as good as none; written to, it would swallow the request without a word."""
    sink = Hearer()
    pool = pool_with(lost_at_once)
    pool.obtain(sink, fresh=True)
    await sink.flushed.wait()

    assert sink.heard == ["it was closed as soon as it was made"]
    assert pool.active == 0


async def test_a_fault_of_ours_in_connecting_is_reported() -> None:
    """What is no failure of the network does not vanish in a task."""
    strays: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: strays.append(context))

    async def odd(*_: object) -> None:
        raise KeyError("odd")

    pool = pool_with(odd)
    pool.obtain(Hearer(), fresh=True)
    await until(lambda: bool(strays), "it is reported")

    assert isinstance(strays[0]["exception"], KeyError)


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_kept_connection_that_ends(*, speaks: bool) -> None:
    """Closed or speaking out of turn, it is not used again."""
    pool = pool_with(lost_at_once)
    engine = EngineConnection(pool)
    engine.connection_made(FakeTransport())
    engine.keep()
    assert pool.idle == 1
    if speaks:
        engine.data_received(reply(b"{}"))
    else:
        engine.connection_lost(None)
    assert pool.idle == 0


class Slow:
    """A pool that makes connections when the test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.fails = False
        self.pool = pool_with(self.dial)

    async def dial(self, engine: EngineConnection, *_: object) -> None:
        """Wait for the word."""
        await self.go.wait()
        if self.fails:
            raise ConnectionRefusedError("nobody")
        engine.connection_made(FakeTransport())


def used(pool: Pool) -> EngineConnection:
    """A connection of `pool` that is open."""
    engine = EngineConnection(pool)
    engine.connection_made(FakeTransport())
    return engine


async def test_one_that_comes_free_is_sooner() -> None:
    """The request that has waited longest gets it; the one made for it is kept for the next."""
    first, second, slow = Hearer(), Hearer(), Slow()
    pool = slow.pool
    for sink in (first, second):
        pool.obtain(sink, fresh=False)

    engine = used(pool)
    engine.served = True
    engine.keep()
    assert (first.heard, second.heard) == (["connected, reused"], [])
    assert (pool.active, pool.idle) == (1, 0)

    slow.go.set()
    await second.flushed.wait()
    await until(lambda: pool.idle == 1, "the one that nobody waits for is kept")
    assert first.heard == ["connected, reused"]
    assert second.heard == ["connected, new"]


async def test_one_made_for_nobody_goes_to_whoever_waits() -> None:
    """Its own request has had another; the next in line has not."""
    first, second, slow = Hearer(), Hearer(), Slow()
    pool = slow.pool
    pool.obtain(first, fresh=False)
    used(pool).keep()
    pool.obtain(second, fresh=False)
    slow.go.set()
    await second.flushed.wait()

    assert len(second.heard) == 1
    assert pool.active == 2


async def test_who_wants_a_fresh_one_gets_no_other() -> None:
    """It replaces one that had been kept too long; another kept one could be the same."""
    sink, slow = Hearer(), Slow()
    pool = slow.pool
    pool.obtain(sink, fresh=True)
    used(pool).keep()

    assert sink.heard == []
    assert pool.idle == 1
    slow.go.set()
    await sink.flushed.wait()
    assert sink.heard == ["connected, new"]


async def test_who_has_given_up_is_passed_over() -> None:
    """What comes free then is kept."""
    sink, slow = Hearer(), Slow()
    pool = slow.pool
    connecting = pool.obtain(sink, fresh=False)
    assert isinstance(connecting, Connecting)
    connecting.drop()
    used(pool).keep()

    assert sink.heard == []
    assert pool.idle == 1


async def test_one_made_for_nobody_that_fails_is_nobodys_trouble() -> None:
    """Its request has had another, and hears nothing of it."""
    sink, slow = Hearer(), Slow()
    pool = slow.pool
    pool.obtain(sink, fresh=False)
    used(pool).keep()
    slow.fails = True
    slow.go.set()
    await until(lambda: not pool._connecting, "it has ended")

    assert sink.heard == ["connected, new"]


async def test_one_that_speaks_out_of_turn_goes_to_nobody() -> None:
    """What it says would pass for the answer to the next request."""
    sink, slow = Hearer(), Slow()
    pool = slow.pool
    pool.obtain(sink, fresh=False)
    engine = used(pool)
    near, far = socket.socketpair()
    with near, far:
        engine._waiting.register(near, select.POLLIN)
        far.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        engine.keep()

    assert sink.heard == []
    assert (pool.idle, engine.lost) == (0, True)
    slow.go.set()
    await sink.flushed.wait()


async def test_nobody_is_remembered_who_waits_no_longer() -> None:
    """An engine that closes each connection gives none back, for as long as it lives."""
    sinks, slow = [Hearer() for _ in range(3)], Slow()
    pool = slow.pool
    slow.go.set()
    for sink in sinks:
        pool.obtain(sink, fresh=False)
    given_up = pool.obtain(Hearer(), fresh=False)
    assert isinstance(given_up, Connecting)
    given_up.drop()
    for sink in sinks:
        await sink.flushed.wait()
    await until(lambda: not pool._connecting, "all are made")

    assert not pool._waiting


async def test_one_made_for_nobody_and_lost_is_not_kept() -> None:
    """Its request has had another, and nobody could use it."""
    sink, pool = Hearer(), pool_with(lost_at_once)
    pool.obtain(sink, fresh=False)
    used(pool).keep()
    await until(lambda: not pool._connecting, "it has ended")

    assert sink.heard == ["connected, new"]
    assert pool.idle == 0


async def never(*_: object) -> None:
    """Dial an engine that neither takes nor refuses."""
    await asyncio.Event().wait()


async def test_one_made_for_nobody_is_given_up_in_time() -> None:
    """Its request has had another, and has no deadline for it any more."""
    sink, pool = Hearer(), pool_with(never, connect=0.02)
    pool.obtain(sink, fresh=False)
    used(pool).keep()
    pool.retire()
    for engine in tuple(pool._active):
        engine.drop()
    assert pool.busy
    await until(lambda: not pool.busy, "nothing is in the making")

    assert sink.heard == ["connected, new"]


async def test_the_pool_tells_what_the_request_would_say() -> None:
    """Whichever of both deadlines is seen first."""
    sink, pool = Hearer(), pool_with(never, connect=0.02)
    pool.obtain(sink, fresh=False)
    await until(sink.flushed.is_set, "it is told")

    assert sink.heard == ["no connection within 0.02 s"]


async def test_that_the_kernel_gives_up_first_is_told_in_its_words() -> None:
    """It is a TimeoutError, too."""

    async def unreachable(*_: object) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    sink, pool = Hearer(), pool_with(unreachable)
    pool.obtain(sink, fresh=False)
    await until(sink.flushed.is_set, "it is told")

    assert sink.heard == [f"[Errno {errno.ETIMEDOUT}] Connection timed out"]


async def test_another_time_is_for_those_made_from_then_on() -> None:
    """A reload gives it to the pool that there is."""
    sink, pool = Hearer(), pool_with(never, connect=FAR)
    pool.timeouts = replace(pool.timeouts, connect=0.02)
    pool.obtain(sink, fresh=True)
    await until(sink.flushed.is_set, "it is told")

    assert sink.heard == ["no connection within 0.02 s"]


@pytest.mark.parametrize("ending", ["dropped", "closed", "too late"])
async def test_one_that_came_up_as_it_was_given_up(ending: str) -> None:
    """It is closed: nobody else knows of it."""
    made: list[FakeTransport] = []

    async def up_and_silent(engine: EngineConnection, *_: object) -> None:
        made.append(FakeTransport())
        engine.connection_made(made[0])
        await asyncio.Event().wait()

    pool = pool_with(up_and_silent, connect=0.02 if ending == "too late" else FAR)
    connecting = pool.obtain(Hearer(), fresh=False)
    assert isinstance(connecting, Connecting)
    await until(lambda: bool(made), "it is up")
    if ending == "dropped":
        connecting.drop()
    elif ending == "closed":
        pool.close()
    await until(lambda: not pool.busy, "nothing is in the making")

    assert made[0].aborts == 1
