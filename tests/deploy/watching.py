"""A specswitch that Prometheus watches: through load that crosses N*, and the death of an engine.

The pair is simulated and runs four times as fast as real; specswitch is a process of its own, with
a calibration of the pair. Everything that the dashboard shows happens once.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import uvloop

from bench.live.pairs import CONTENTION, PROFILE, Pair, served
from proxy.core.words import UpstreamName
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from proxy.tools.asking import Sample, ask, chat, connect
from tests.harness.process import Specswitch, free_port
from tests.harness.prometheus import Alertmanager, Prometheus, alertmanager, prometheus

SCALE: Final = 4.0
DEADLINE_SECONDS: Final = 60.0
_CROWD: Final = 12
"""At once, four times N*."""
_ENOUGH: Final = 30
_FOR_SHORTENED: Final = 20
"""An alert that waits for a minute waits for three seconds here."""
_MODEL: Final = "simulated"
_SETTINGS: Final[dict[str, object]] = {
    # Some of the crowd have to wait, and some of those are refused.
    "upstreams_base_max_in_flight": _CROWD - 4,
    "limits_queue_size": 2,
    # A dead engine is taken out within two seconds, after it was tried.
    "health_interval": 0.5,
    "timeouts_drain": 5.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is left of it: Prometheus with all that it saw, and Alertmanager."""

    prometheus: Prometheus
    alertmanager: Alertmanager
    started: float
    """Time of day, as Prometheus has it."""
    ended: float
    targets: dict[str, str]
    """Their health while all ran."""
    told: list[tuple[dict[str, str], dict[str, str]]]
    """What Alertmanager had been told while one engine was dead."""
    served_meanwhile: int
    """Answers that clients had while one engine was dead."""


@contextmanager
def watched(programs: tuple[str, str], folder: Path) -> Iterator[Watched]:
    """Let it all happen; `programs` are prometheus and prometheus-alertmanager."""
    with ExitStack() as ends, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run(_happening(programs, folder, ends))


async def _happening(programs: tuple[str, str], folder: Path, ends: ExitStack) -> Watched:
    options = PairOptions(profile=PROFILE, contention=CONTENTION, time_scale=SCALE)
    async with SimulatedPair(options) as pair, AsyncExitStack() as lives:
        both = Pair(pair.spec_url, pair.base_url, SCALE)
        ours = await lives.enter_async_context(served(folder, both, **_SETTINGS))
        client = await lives.enter_async_context(connect(ours.url))
        port = free_port()
        # In a thread, since the pair has to answer meanwhile.
        told = await asyncio.to_thread(ends.enter_context, alertmanager(programs[1], folder, port))
        watching = prometheus(
            programs[0], folder, _addresses(ours, both, port), shorter=_FOR_SHORTENED
        )
        seen = await asyncio.to_thread(ends.enter_context, watching)
        scene = _Scene(pair, ours, client, seen, told)
        return await scene.play()


def _addresses(ours: Specswitch, pair: Pair, alerts: int) -> dict[str, str]:
    """Where what is deployed under these names is, here."""
    return {
        "specswitch:8001": ours.admin_url.removeprefix("http://"),
        "spec:30001": pair.spec_url.removeprefix("http://"),
        "base:30000": pair.base_url.removeprefix("http://"),
        "alertmanager:9093": f"127.0.0.1:{alerts}",
        # It watches itself at its own port, which nobody knows before; another target is as good.
        "localhost:9090": f"127.0.0.1:{alerts}",
    }


@dataclass(frozen=True, slots=True)
class _Scene:
    pair: SimulatedPair
    ours: Specswitch
    client: httpx2.AsyncClient
    prometheus: Prometheus
    alertmanager: Alertmanager

    async def play(self) -> Watched:
        """Alone, a crowd, alone again, a reload, and the death of spec."""
        started = time.time()  # noqa: TID251 - Prometheus keeps the time of day
        await self._until(lambda: set(self.prometheus.health().values()) == {"up"}, "all are up")
        targets = self.prometheus.health()
        await self._alone()
        await self._crowd()
        await self._oddities()
        self.ours.send(signal.SIGHUP)
        await self._until(lambda: self.ours.state()["mode"] == "spec", "it speculates again")
        served = await self._death()
        await self._until(self._fires("SpecswitchUpstreamEjected"), "the alert fires")
        told = self.alertmanager.alerts()
        over = time.time()  # noqa: TID251 - see above
        # So that the last of it has a rate.
        await self._until(lambda: self._scraped_since(over, times=2), "two more scrapes")
        return Watched(
            prometheus=self.prometheus,
            alertmanager=self.alertmanager,
            started=started,
            ended=time.time(),  # noqa: TID251 - see above
            targets=targets,
            told=told,
            served_meanwhile=served,
        )

    async def _alone(self) -> None:
        """One at a time, until there were enough of them to be compared with spec's curve."""

        def compared() -> bool:
            return any(
                sample.name == "specswitch_drift_ratio" and sample.labels["upstream"] == "spec"
                for sample in self.ours.samples()
            )

        deadline = time.monotonic() + DEADLINE_SECONDS
        while not await asyncio.to_thread(compared):
            assert time.monotonic() < deadline, "never: drift is known"
            await self._ask(48)

    async def _crowd(self) -> None:
        """Many at a time, until base alone has had enough of them to be compared with its curve."""

        async def one() -> None:
            for _ in range(_ENOUGH // 2):
                await self._ask(48)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_CROWD):
                tasks.create_task(one())

    async def _oddities(self) -> None:
        """What no engine is asked, and what an engine refuses."""
        for path in ("/nowhere", "/v1/models/another"):
            await self.client.get(path)
        # A request that only base may serve, while spec has one: both are at work.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask(200))
            tasks.create_task(self._ask(200, min_p=0.1))

    async def _death(self) -> int:
        """Spec dies with streams on it; who comes next is served by base."""
        running = [asyncio.get_running_loop().create_task(self._ask(4000)) for _ in range(2)]
        await self._until(
            lambda: self.ours.metric("in_flight", upstream="spec") == len(running), "spec is busy"
        )
        await self.pair.stop(UpstreamName.SPEC)
        after = [await self._ask(24) for _ in range(5)]
        await asyncio.gather(*running)
        return sum(sample.ok for sample in after)

    async def _ask(self, tokens: int, **extra: object) -> Sample:
        said = [{"role": "user", "content": "Go on."}]
        asked = chat(said, model=_MODEL, max_tokens=tokens, ignore_eos=True, extra=extra)
        return await ask(self.client, asked, clock=time.monotonic)

    def _scraped_since(self, then: float, *, times: int) -> bool:
        """Whether each target has been asked so many times later than that; an answer or none."""
        now = time.time()  # noqa: TID251 - Prometheus keeps the time of day
        asked = self.prometheus.query("timestamp(up)", then, now)
        seen = [{text for _, text in each.values if float(text) > then} for each in asked]
        return bool(seen) and all(len(each) >= times for each in seen)

    def _fires(self, name: str) -> Callable[[], bool]:
        return lambda: any(labels["alertname"] == name for labels, _ in self.alertmanager.alerts())

    async def _until(self, true: Callable[[], bool], what: str) -> None:
        """Poll, in a thread of its own, since what is polled blocks."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not await asyncio.to_thread(true):
            assert time.monotonic() < deadline, (
                f"never: {what}: {self.ours.log.read_text()[-2000:]}"
            )
            await asyncio.sleep(0.1)
