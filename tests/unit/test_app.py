"""The root: what is started ends, a failure is said, and stopping drains before it cuts."""

import asyncio
import gc
import logging
import socket
from collections.abc import Iterator
from time import time_ns

import pytest

from proxy.app import App, running
from proxy.config import Config, load
from proxy.errors import SpecswitchError
from tests.harness.client import CHAT, CHAT_STREAM, get, post
from tests.harness.process import free_port
from tests.harness.running import Rig, rig, until
from tests.harness.upstream import DONE, END, STREAM_HEAD, Gate, Send, chunk, event

STREAMING = post("/v1/chat/completions", CHAT_STREAM)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on loopback that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def config(**keys: object) -> Config:
    """In front of two servers that are not there; `keys` with `__` for the dot."""
    base = {
        "listen.host": "127.0.0.1",
        "listen.port": 0,
        "listen.admin_port": 0,
        "upstreams.spec.url": f"http://127.0.0.1:{free_port()}",
        "upstreams.base.url": f"http://127.0.0.1:{free_port()}",
    }
    overrides = {name.replace("__", "."): value for name, value in keys.items()}
    return load(file=None, env={}, overrides={**base, **overrides})


def built() -> App:
    """Built, and not running."""
    clock = asyncio.get_running_loop().time
    return App(config(), clock=clock, wall=time_ns, log=None, load=None)


class Clock:
    """The loop's time, until it is told to break."""

    def __init__(self) -> None:
        self.broken = False

    def __call__(self) -> float:
        """Monotonic seconds."""
        if self.broken:
            raise RuntimeError("the clock is broken")
        return asyncio.get_running_loop().time()


async def streaming(it: Rig) -> asyncio.Event:
    """A client in the middle of a stream; the event lets its engine finish."""
    gate = asyncio.Event()
    first = chunk(event({"choices": [{"delta": {"content": "a"}}]}))
    it.spec.script(Send(STREAM_HEAD + first), Gate(gate), Send(chunk(DONE) + END))
    client = await it.client()
    client.send(STREAMING)
    status, _ = await client.head()
    assert status == 200
    return gate


# Listening -----------------------------------------------------------------------------------


async def test_a_taken_port_is_said(taken: int) -> None:
    """An endpoint that cannot listen is an error with the address and the reason."""
    with pytest.raises(SpecswitchError) as raised:
        async with running(config(listen__port=taken)):
            pass
    message = str(raised.value)
    place = f"127.0.0.1 port {taken}"
    assert message == f"cannot listen on {place}: address already in use; --port takes another"


async def test_a_taken_admin_port_is_said_and_leaves_nothing_behind(taken: int) -> None:
    """An admin listener that cannot listen ends the endpoint too."""
    port = free_port()
    with pytest.raises(SpecswitchError) as raised:
        async with running(config(listen__port=port, listen__admin_port=taken)):
            pass
    message = str(raised.value)
    assert message == (
        f"cannot open the admin listener: 127.0.0.1 port {taken}: Address already in use"
    )
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_an_unknown_host_is_said() -> None:
    """A name that is no address is an error with the name."""
    with pytest.raises(SpecswitchError, match=r"cannot listen on nowhere\.invalid port 0: "):
        async with running(config(listen__host="nowhere.invalid")):
            pass


async def test_what_was_started_has_ended() -> None:
    """After it has run no task is left and both ports are free."""
    before = asyncio.all_tasks()
    async with running(config()) as app:
        ports = app.port, app.admin_port
        assert len(asyncio.all_tasks() - before) > 2
    assert asyncio.all_tasks() == before
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_a_failure_inside_passes_through() -> None:
    """What goes wrong while it runs is not hidden by its ending."""
    with pytest.raises(ZeroDivisionError):
        async with running(config()):
            raise ZeroDivisionError


# Background tasks ----------------------------------------------------------------------------


async def test_a_background_death_ends_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    """A ticker or prober that dies stops everything at once, with the reason in log and error."""

    async def until_it_ends() -> int:
        clock = Clock()
        async with running(config(health__interval=0.05), clock=clock) as app:
            clock.broken = True
            async with asyncio.timeout(5):
                await app.stopping.wait()
            clock.broken = False
            return await app.until_stopped()

    with pytest.raises(SpecswitchError, match="died: RuntimeError") as raised:
        await until_it_ends()
    assert "the clock is broken" in str(raised.value)
    critical = [each for each in caplog.records if each.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert "the clock is broken" in critical[0].getMessage()
    assert critical[0].exc_info is not None


async def test_a_second_death_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """What one fault does to several tasks goes astray in none, and is one reason to stop."""
    app = built()

    async def dies() -> None:
        raise RuntimeError("so it goes")

    for name in ("one", "two"):
        app._run(dies(), name).add_done_callback(app.background_ended)
    await until(lambda: not app.tasks, "both have died")
    gc.collect()

    told = [each.getMessage() for each in caplog.records]
    assert told == [
        "one died: RuntimeError('so it goes'); stopping",
        "two died, too: RuntimeError('so it goes')",
    ]


async def test_a_background_death_cuts(caplog: pytest.LogCaptureFixture) -> None:
    """There is no draining without probes and time: what runs is cut."""

    async def until_it_ends() -> None:
        async with rig() as it:
            await streaming(it)
            await _die(it.app)
            assert await it.app.until_stopped() == 1

    with pytest.raises(SpecswitchError, match="the test died: KeyError"):
        await until_it_ends()
    assert "cut 1 unfinished answer\n" in caplog.text


async def test_a_background_task_that_returns_has_died() -> None:
    """They run for ever: one that ends without an error is as dead."""
    app = built()
    task = asyncio.get_running_loop().create_task(asyncio.sleep(0), name="the test")
    await task
    app.background_ended(task)
    assert str(app.failure) == "the test died: None"
    assert app.stopping.is_set()


async def test_our_own_stopping_is_no_death() -> None:
    """A task that we have cancelled is not reported."""
    app = built()
    task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
    task.cancel()
    await asyncio.wait({task})
    app.background_ended(task)  # type: ignore[arg-type]
    assert app.failure is None
    assert not app.stopping.is_set()


async def _die(app: App) -> None:
    async def dying() -> None:
        raise KeyError("gone")

    task = asyncio.get_running_loop().create_task(dying(), name="the test")
    await asyncio.wait({task})
    app.background_ended(task)


# Stopping ------------------------------------------------------------------------------------


async def test_stopping_lets_what_runs_end() -> None:
    """A stream that runs goes to its end, new requests are refused, and the exit code is 0."""
    async with rig() as it:
        gate = await streaming(it)
        ending = asyncio.get_running_loop().create_task(it.app.until_stopped())
        it.app.stop()
        await it.until(lambda: it.app.dispatcher.draining, "it drains")

        late = await it.client()
        late.send(get("/readyz"))
        assert (await late.response()).status == 503
        late.send(post("/v1/chat/completions", CHAT))
        refused = await late.response()
        assert refused.status == 503
        assert refused.code == "draining"
        assert refused.header("connection") == "close"
        assert not ending.done()

        gate.set()
        assert await it.clients[0].chunk() is not None
        assert await it.clients[0].chunk() == DONE
        assert await it.clients[0].chunk() is None
        async with asyncio.timeout(5):
            assert await ending == 0


async def test_stopping_twice_cuts() -> None:
    """The second word ends what runs, and the exit code says so."""
    async with rig() as it:
        await streaming(it)
        it.app.stop()
        it.app.stop()
        async with asyncio.timeout(5):
            assert await it.app.until_stopped() == 1


async def test_draining_has_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """After `timeouts.drain` what still runs is cut; both are said, with their number."""
    caplog.set_level(logging.INFO)
    async with rig(timeouts__drain=0.3) as it:
        await streaming(it)
        await streaming(it)
        it.app.stop()
        async with asyncio.timeout(5):
            assert await it.app.until_stopped() == 1
    said = [record.getMessage() for record in caplog.records if record.name == "proxy.app"]
    assert said == ["draining: 2 unfinished answers", "cut 2 unfinished answers"]


async def test_stopping_an_idle_one_takes_no_time(caplog: pytest.LogCaptureFixture) -> None:
    """Kept connections are not waited for, and nothing sounds like a loss."""
    caplog.set_level(logging.INFO)
    async with rig() as it:
        client = await it.client()
        client.send(get("/livez"))
        assert (await client.response()).status == 200
        it.app.stop()
        async with asyncio.timeout(1):
            assert await it.app.until_stopped() == 0
    said = [record.getMessage() for record in caplog.records if record.name == "proxy.app"]
    assert said == ["draining: nothing is running"]


async def test_a_running_one_serves() -> None:
    """Its addresses are the ones that answer."""
    async with rig() as it:
        assert it.app.url == f"http://127.0.0.1:{it.app.port}"
        assert it.app.admin_url == f"http://127.0.0.1:{it.app.admin_port}"
        await until(lambda: it.app.dispatcher.usable, "usable")
