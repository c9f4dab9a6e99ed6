"""specswitch in the test's own loop, in front of two scripted upstreams; and the check afterwards.

After every test, within two seconds, nothing may be left: no sequence in flight, nobody waiting, no
request open, no byte of a body held, no connection in use or unknown to the pool (as the upstreams
see it, too), no task but those that live as long as specswitch does; the books must balance; and no
exception may have gone astray, in the loop or where the interpreter itself reports them.
"""

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.samples import Sample

from proxy.app import App, running
from proxy.config import load
from proxy.core.words import Health, UpstreamName
from tests.harness import books
from tests.harness.client import RawClient, Response
from tests.harness.upstream import ScriptedUpstream

DEADLINE_SECONDS = 10.0
SETTLED_SECONDS = 2.0
"""Within which nothing may be left after a test."""


@dataclass
class Rig:
    """specswitch between a test's clients and its upstreams."""

    app: App
    spec: ScriptedUpstream
    base: ScriptedUpstream
    keys: dict[str, object]
    """What is configured; a reload reads it again."""
    lifetime: AsyncExitStack
    clients: list[RawClient] = field(default_factory=list)

    async def client(self, *, receive_bytes: int | None = None) -> RawClient:
        """A new connection; `receive_bytes` is what the kernel may take for it unread."""
        client = await RawClient.connect(self.app.port, receive_bytes=receive_bytes)
        self.clients.append(client)
        return client

    def upstream(self, name: str) -> ScriptedUpstream:
        """The upstream called `name`."""
        return self.spec if name == "spec" else self.base

    async def admin(self, method: str, path: str, body: object = None) -> Response:
        """Ask the admin listener, as an operator does."""
        data = json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        async with await RawClient.connect(self.app.admin_port) as client:
            client.send(head.encode() + data)
            return await client.response()

    async def end(self) -> None:
        """Go down now, as `serve` does once it has drained: who is still there is cut."""
        await self.lifetime.aclose()

    def metric(self, name: str, **labels: str) -> float:
        """The value of a series, 0 where it does not exist."""
        for sample in samples(self.app):
            if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
        return 0.0

    def total(self, name: str, **labels: str) -> float:
        """The sum of all series with these labels."""
        return sum(
            float(sample.value)
            for sample in samples(self.app)
            if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items()
        )

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait until `true`; an AssertionError with `what` where it does not become so."""
        await until(true, what)

    def healthy(self, name: UpstreamName) -> bool:
        """Whether specswitch takes the upstream for healthy."""
        return self.app.dispatcher.upstream(name).health.state is Health.HEALTHY


def samples(app: App) -> Iterator[Sample]:
    """What a scrape would say, without its text: writing and reading that takes 8 ms each time."""
    for family in app.metrics._registry.collect():
        yield from family.samples


async def until(true: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until `true`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not true():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(0.002)


DEFAULTS: dict[str, object] = {
    "listen.host": "127.0.0.1",
    "listen.port": 0,
    "listen.admin_port": 0,
    "policy.crossover": 4.0,
    "health.interval": 0.05,
    "health.timeout": 1.0,
}


@asynccontextmanager
async def rig(
    *,
    spec: ScriptedUpstream | None = None,
    base: ScriptedUpstream | None = None,
    wait: bool = True,
    **overrides: object,
) -> AsyncIterator[Rig]:
    """Run specswitch between two upstreams; `overrides` are configuration keys, `.` as `__`.

    With `wait`, both are healthy before the test begins.
    """
    before = asyncio.all_tasks()
    spec = spec or ScriptedUpstream(speculative=True)
    base = base or ScriptedUpstream(speculative=False)
    with no_strays():
        async with spec, base, AsyncExitStack() as lifetime:
            ends = {"upstreams.spec.url": spec.url, "upstreams.base.url": base.url}
            given = {name.replace("__", "."): value for name, value in overrides.items()}
            keys = {**DEFAULTS, **ends, **given}
            configured = partial(load, file=None, env={}, overrides=keys)
            app = await lifetime.enter_async_context(running(configured(), load=configured))
            made = Rig(app, spec, base, keys, lifetime)
            if wait:
                await until(
                    lambda: all(map(made.healthy, UpstreamName)), "both upstreams are healthy"
                )
            alive = asyncio.all_tasks() - spec.tasks - base.tasks
            try:
                yield made
                await _nothing_left(made, alive)
            finally:
                for client in made.clients:
                    client.close()
        await _settled(lambda: _tasks_left(before))


@contextmanager
def no_strays() -> Iterator[None]:
    """Fail on an exception that nobody has caught, in the loop or in the interpreter.

    That is how a task's unretrieved exception, a coroutine that was never awaited and a transport
    that was never closed show: some only when they are collected, hence the collection at the end.
    """
    strays: list[object] = []
    loop, hook = asyncio.get_running_loop(), sys.unraisablehook
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: strays.append(context))
    sys.unraisablehook = lambda unraisable: strays.append(unraisable.exc_value or unraisable)
    gc.freeze()  # what was there before need not be looked at by that collection
    try:
        yield
        gc.collect()
    finally:
        gc.unfreeze()
        sys.unraisablehook = hook
        loop.set_exception_handler(handler)
    assert not strays, strays[:5]


async def _nothing_left(made: Rig, alive: set[asyncio.Task[object]]) -> None:
    for client in made.clients:
        client.close()

    def left() -> list[str]:
        # Further tasks that may be: probers since a reload, and the upstreams' own.
        known = alive.union(made.app.tasks, made.spec.tasks, made.base.tasks)
        return [*_requests_left(made.app), *_connections_left(made), *_tasks_left(known)]

    await _settled(left)
    wrong = books.faults(samples(made.app))
    assert not wrong, "; ".join(wrong)


async def _settled(left: Callable[[], list[str]]) -> None:
    """Wait until nothing is left; an AssertionError that says what is."""
    deadline = asyncio.get_running_loop().time() + SETTLED_SECONDS
    while found := left():
        assert asyncio.get_running_loop().time() < deadline, f"left behind: {', '.join(found)}"
        await asyncio.sleep(0.002)


def _counted(what: dict[str, int]) -> list[str]:
    return [f"{count} {name}" for name, count in what.items() if count]


def _requests_left(app: App) -> list[str]:
    dispatcher, front = app.dispatcher, app.front
    ups = (dispatcher.spec, dispatcher.base)
    return _counted(
        {
            "open requests": front.open_requests,
            "sequences in flight": dispatcher.in_flight.total,
            "in the waiting room": len(dispatcher.room),
            "bytes of bodies held": front.buffered,
            "clients connected": len(front.connections),
            "trials of a probation": sum(upstream.health._trial_out for upstream in ups),
            "sequences expected of the engines": sum(upstream.work.expected for upstream in ups),
        }
    )


def _connections_left(made: Rig) -> list[str]:
    """Connections in use or in the making, and those of which an upstream knows more than we do."""
    found = []
    for name in UpstreamName:
        upstream = made.upstream(name)
        pools = [pool for pool in made.app.links.pools if pool.name is name]
        idle = sum(pool.idle for pool in pools)
        found += _counted(
            {
                f"connections to {name} in use": sum(pool.active for pool in pools),
                f"connections to {name} in the making": sum(len(p._connecting) for p in pools),
                f"requests that {name} still answers": upstream.answering,
                f"connections that {name} has and we do not": upstream.for_requests - idle,
            }
        )
    return found


def _tasks_left(known: set[asyncio.Task[object]]) -> list[str]:
    return [repr(task) for task in asyncio.all_tasks() - known]
