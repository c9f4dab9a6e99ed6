"""specswitch in the test's own loop, in front of two scripted upstreams; and the check afterwards.

After every test, within two seconds, nothing may be left: no sequence in flight, nobody waiting, no
upstream connection in use, no request open, no byte of a body held; the books must balance, and no
exception may have gone astray in the loop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client.samples import Sample

from proxy.app import App, running
from proxy.config import load
from proxy.core.words import Health, UpstreamName
from tests.harness.client import RawClient
from tests.harness.upstream import ScriptedUpstream

DEADLINE_SECONDS = 10.0


@dataclass
class Rig:
    """specswitch between a test's clients and its upstreams."""

    app: App
    spec: ScriptedUpstream
    base: ScriptedUpstream
    clients: list[RawClient] = field(default_factory=list)

    async def client(self) -> RawClient:
        """A new connection."""
        client = await RawClient.connect(self.app.port)
        self.clients.append(client)
        return client

    def upstream(self, name: str) -> ScriptedUpstream:
        """The upstream called `name`."""
        return self.spec if name == "spec" else self.base

    def metric(self, name: str, **labels: str) -> float:
        """The value of a series, 0 where it does not exist."""
        for sample in samples(self.app):
            if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
        return 0.0

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
    strays: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: strays.append(context))
    spec = spec or ScriptedUpstream(speculative=True)
    base = base or ScriptedUpstream(speculative=False)
    async with spec, base:
        keys = {name.replace("__", "."): value for name, value in overrides.items()}
        ends = {"upstreams.spec.url": spec.url, "upstreams.base.url": base.url}
        config = load(file=None, env={}, overrides={**DEFAULTS, **ends, **keys})
        async with running(config) as app:
            made = Rig(app, spec, base)
            if wait:
                await until(
                    lambda: all(map(made.healthy, UpstreamName)), "both upstreams are healthy"
                )
            try:
                yield made
                await _nothing_left(made)
            finally:
                for client in made.clients:
                    client.close()
    assert not strays, strays


async def _nothing_left(made: Rig) -> None:
    app = made.app
    for client in made.clients:
        client.close()
    await until(lambda: app.front.open_requests == 0, "no request is open", 2.0)
    await until(lambda: not app.front.connections, "no client is connected", 2.0)
    assert app.dispatcher.in_flight.total == 0
    assert len(app.dispatcher.room) == 0
    assert app.front.buffered == 0
    assert all(pool.active == 0 for pool in app.pools.values())
    sums = {"requests_started_total": 0.0, "requests_total": 0.0, "open_requests": 0.0}
    for sample in samples(app):
        name = sample.name.removeprefix("specswitch_")
        if name in sums:
            sums[name] += sample.value
    assert sums["requests_started_total"] == sums["requests_total"] + sums["open_requests"]
