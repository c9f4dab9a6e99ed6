"""The soak: jobs by the thousand against a real specswitch, while engines die around it."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import httpx2

from tests.harness.process import Specswitch
from tests.harness.running import until
from tests.soak.clients import MAX_BODY_BYTES, Connection, Seen
from tests.soak.jobs import Job, Way, jobs
from tests.soak.pair import NAMES, ROOT, Engines
from tests.soak.reckoning import Evidence, Scrape, conservation, findings
from tests.soak.watched import MESSAGE

CLIENTS: Final = 40
"""More than may be in flight and wait together, so that some are refused."""

BACK_OFF_SECONDS: Final = 0.1
"""What a client waits after a refusal; without it those who are refused do all the jobs."""

SETTINGS: Final[dict[str, object]] = {
    "policy_crossover": 9.0,
    "policy_return_dwell": 0.2,
    "policy_count_window": 0.5,
    "policy_flap_limit": 1000,
    "upstreams_base_max_in_flight": 16,
    "limits_max_in_flight": 20,
    "limits_queue_size": 16,
    "limits_queue_timeout": 0.5,
    "limits_max_body_bytes": f"{MAX_BODY_BYTES // 1024}KiB",
    "limits_max_header_bytes": "16KiB",
    "limits_header_timeout": 5,
    "limits_body_timeout": 5,
    "limits_client_write": 1,
    "timeouts_connect": 1,
    "timeouts_first_byte": 1.5,
    "timeouts_between_chunks": 1,
    "timeouts_response": 2,
    "timeouts_wait_for_upstream": 1,
    "timeouts_client_keep_alive": 5,
    "timeouts_idle_connection": 2,
    "health_interval": 0.1,
    "health_timeout": 2,
    "health_fall": 2,
    "health_rise": 1,
    "health_ejection": 0.2,
}
"""Everything that takes minutes in production takes a second here, so that it happens often."""

QUIET_SECONDS: Final = 20.0
"""For everything to be let go of after the last job: the longest of the times above, and room."""

RSS_GROWTH_BYTES: Final = 48 * 1024 * 1024
"""From a quarter of the way to the end. What leaks a kilobyte a request is found by `held` before;
this is for what has no name. A few slow clients' buffers (1 MiB each) come and go."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has from the system, and what it says that it holds."""

    descriptors: int
    resident: int
    """Bytes."""
    tasks: list[str]
    held: dict[str, int]


@dataclass(slots=True)
class Result:
    """How it went."""

    seed: int
    evidence: Evidence
    before: Usage
    midway: int
    """Resident bytes a quarter of the way."""
    after: Usage
    kills: int
    reloads: int
    findings: list[str] = field(default_factory=list)


class Soak:
    """One soak: `count` jobs of `seed`, in `folder`. `progress` is told how many are done."""

    def __init__(
        self, seed: int, count: int, folder: Path, *, progress: Callable[[int], None]
    ) -> None:
        self._seed = seed
        self._count = count
        self._folder = folder
        self._progress = progress
        self._jobs = jobs(seed)
        self._seen: list[Seen] = []
        self._midway = 0
        self._reloads = 0
        self._torn: list[str] = []
        self._moved = asyncio.Event()

    async def run(self) -> Result:
        """Do it all; what does not agree is in the result."""
        async with Engines(self._folder) as engines, self._specswitch(engines) as it:
            before = await _usage(it)
            operator = asyncio.get_running_loop().create_task(self._operate(it, engines))
            try:
                async with asyncio.TaskGroup() as clients:
                    for _ in range(CLIENTS):
                        clients.create_task(self._client(it.port))
            finally:
                operator.cancel()
                await asyncio.gather(operator, return_exceptions=True)
            for name in NAMES:
                await engines.restore(name)
            after = await self._quiet(it, before)
            scrape = await _scrape(it)
        evidence = Evidence(
            seen=self._seen,
            log=it.lines(),
            ledger=list(engines.lines("R")),
            done=list(engines.lines("E")),
            scrape=scrape,
        )
        result = Result(
            self._seed, evidence, before, self._midway, after, engines.kills, self._reloads
        )
        result.findings = [*self._torn, *findings(evidence), *_of_usage(result)]
        if not operator.cancelled() and (fault := operator.exception()) is not None:
            result.findings.append(f"the operator: {fault!r}")
        return result

    @asynccontextmanager
    async def _specswitch(self, engines: Engines) -> AsyncIterator[Specswitch]:
        spec, base = (engines.url(name) for name in NAMES)
        log = self._folder / "specswitch.log"
        it = Specswitch(log, spec_url=spec, base_url=base, **SETTINGS)
        it.program = (sys.executable, str(ROOT / "tests/soak/watched.py"))
        async with it:
            yield it

    # clients

    async def _client(self, port: int) -> None:
        connection = Connection(port)
        while len(self._seen) < self._count:
            batch = self._next()
            seen = await connection.do(batch)
            self._seen += seen
            self._progress(len(self._seen))
            self._moved.set()
            if any(each.refused for each in seen):
                await asyncio.sleep(BACK_OFF_SECONDS)
        connection.close()

    def _next(self) -> list[Job]:
        """The next job; those who send ahead take the one or two behind them along."""
        batch = [next(self._jobs)]
        while batch[-1].way is Way.PIPELINE and len(batch) < _AHEAD:
            batch.append(next(self._jobs))
        return batch

    async def _done(self, count: int) -> None:
        """Wait until `count` jobs are done."""
        while len(self._seen) < count:
            self._moved.clear()
            await self._moved.wait()

    # the operator

    async def _operate(self, it: Specswitch, engines: Engines) -> None:
        """Now and then: kill, control, reload, scrape. By jobs done, not by time."""
        lots = Random(self._seed)
        every = max(_LEAST_BETWEEN, self._count // _INTERVENTIONS)
        acts = [self._kill_one, self._kill_one, self._kill_both, self._control, self._control]
        acts += [self._reload, self._reload]
        for number in range(every, self._count, every):
            await self._done(number)
            if not self._midway and number >= self._count // 4:
                self._midway = _resident(it.pid)
            self._torn += conservation(await _scrape(it))
            await lots.choice(acts)(it, engines, lots)

    async def _kill_one(self, it: Specswitch, engines: Engines, lots: Random) -> None:
        del it
        await self._outage(engines, [lots.choice(NAMES)], lots)

    async def _kill_both(self, it: Specswitch, engines: Engines, lots: Random) -> None:
        del it
        await self._outage(engines, list(NAMES), lots)

    async def _outage(self, engines: Engines, names: list[str], lots: Random) -> None:
        for name in names:
            await asyncio.to_thread(engines.kill, name)
        await self._done(len(self._seen) + lots.randint(1, CLIENTS))
        for name in names:
            await engines.start(name)

    async def _control(self, it: Specswitch, engines: Engines, lots: Random) -> None:
        del engines
        word = lots.choice(("auto", "auto", "spec", "base", "observe"))
        await asyncio.to_thread(it.control, word)

    async def _reload(self, it: Specswitch, engines: Engines, lots: Random) -> None:
        del engines, lots
        if await asyncio.to_thread(_can_reload, it):
            self._reloads += 1
            it.send(signal.SIGHUP)

    # the end

    async def _quiet(self, it: Specswitch, before: Usage) -> Usage:
        """Wait until specswitch holds nothing more than before; what it holds then, or at last."""
        deadline = asyncio.get_running_loop().time() + QUIET_SECONDS
        usage = await _usage(it)
        while list(_excess(before, usage)) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.2)
            usage = await _usage(it)
        return usage


_AHEAD: Final = 3
_INTERVENTIONS: Final = 120
_LEAST_BETWEEN: Final = 100


def _can_reload(it: Specswitch) -> bool:
    """Whether this specswitch knows how to reload: SIGHUP ends one that does not."""
    paths = httpx2.get(f"{it.admin_url}/openapi.json").raise_for_status().json()["paths"]
    return "/admin/reload" in paths


async def _scrape(it: Specswitch) -> Scrape:
    url = f"{it.admin_url}/metrics"
    answer = await asyncio.to_thread(httpx2.get, url)
    return Scrape(answer.raise_for_status().text)


async def _usage(it: Specswitch) -> Usage:
    """Ask it what it holds."""
    told = len(_reports(it))
    it.send(signal.SIGUSR1)
    await until(lambda: len(_reports(it)) > told, "specswitch says what it holds")
    report = _reports(it)[-1]
    tasks, held = report["tasks"], report["held"]
    assert isinstance(tasks, list)
    assert isinstance(held, dict)
    return Usage(_descriptors(it.pid), _resident(it.pid), tasks, held)


def _reports(it: Specswitch) -> list[dict[str, object]]:
    """What it has said so, as far as it is written: the last line may be on its way."""
    whole, _, _ = it.log.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if MESSAGE in line]


def _descriptors(pid: int) -> int:
    """Files and sockets that the process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _resident(pid: int) -> int:
    """Bytes of memory that the process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


_PROBES: Final = 2
"""Descriptors: each prober may have its connection, or be between two."""


def _excess(before: Usage, after: Usage) -> Iterator[str]:
    """What is held at the end and was not at the start."""
    if after.descriptors > before.descriptors + _PROBES:
        yield f"{after.descriptors} descriptors at the end, {before.descriptors} at the start"
    if len(after.tasks) > len(before.tasks):
        yield f"tasks at the end {after.tasks}, at the start {before.tasks}"
    if after.held:
        yield f"held at the end: {after.held}"


def _of_usage(result: Result) -> Iterator[str]:
    yield from _excess(result.before, result.after)
    growth = result.after.resident - result.midway
    if result.midway and growth > RSS_GROWTH_BYTES:
        yield f"memory grew by {growth / 2**20:.0f} MiB in the last three quarters"
