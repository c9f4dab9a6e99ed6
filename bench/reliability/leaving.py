"""A client goes: how soon is the connection to its engine closed?

Before the head (the engine is at its prefill), in a stream with a chunk each 20 ms, and in one that
is silent just then. Client and engine read the machine's one monotonic clock. What is not closed
while the engine still works counts as `HORIZON_SECONDS`, which is a lower bound.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from bench.reliability.asking import Numbers, milliseconds, percentile, request
from bench.reliability.targets import Target
from tests.harness.client import RawClient
from tests.harness.running import until
from tests.soak.pair import Engines
from tests.soak.plans import Act, Plan

CLIENTS: Final = 8
"""At a time; a target that does not close goes on with those that have left, too."""

HORIZON_SECONDS: Final = 6.0
"""How long an engine works for a client that has left."""

_SILENT: Final = Act.SILENT_MID
_STAYS_SECONDS: Final = (0.1, 0.2)
_LOOK_EVERY: Final = 0.02


@dataclass(slots=True)
class _Book:
    """What has happened, by the id of a request: seconds of the machine's clock."""

    engines: Engines
    left: dict[str, float] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)

    async def follow(self) -> None:
        """Read on and on what the engines have received."""
        while True:
            self.received.update(line.id for line in self.engines.lines("R"))
            await asyncio.sleep(_LOOK_EVERY)


def _before_head(name: str) -> Plan:
    return Plan(id=name, before=int(HORIZON_SECONDS * 1000), pieces=1, stream=True)


def _streaming(name: str) -> Plan:
    return Plan(id=name, pieces=int(HORIZON_SECONDS * 50), between=20, stream=True)


def _silent(name: str) -> Plan:
    return Plan(id=name, spec=_SILENT, base=_SILENT, pieces=8, stream=True)


KINDS: Final[dict[str, Callable[[str], Plan]]] = {
    "before the head": _before_head,
    "mid-stream, 20 ms a chunk": _streaming,
    "mid-stream, silent": _silent,
}


async def measure(target: Target, engines: Engines, *, count: int) -> Numbers:
    """Have `count` clients leave at each place."""
    numbers: Numbers = {}
    for kind, plan in KINDS.items():
        book = _Book(engines)
        lots = Random(count)  # noqa: S311 - no secret
        names = iter([f"{target.name}-{plan.__name__}-{number}" for number in range(count)])
        follower = asyncio.get_running_loop().create_task(book.follow())
        try:
            async with asyncio.TaskGroup() as clients:
                for _ in range(CLIENTS):
                    clients.create_task(_leave_all(target.port, names, plan, book, lots))
        finally:
            follower.cancel()
        await asyncio.sleep(HORIZON_SECONDS + 0.5)  # the engines' time, not ours
        times = _closing_times(book)
        numbers[f"{kind}: p50 ms"] = milliseconds(percentile(times, 0.5))
        numbers[f"{kind}: p99 ms"] = milliseconds(percentile(times, 0.99))
        numbers[f"{kind}: never, of {count}"] = float(sum(t >= HORIZON_SECONDS for t in times))
        numbers[f"{kind}: measured"] = float(len(times))
    return numbers


async def _leave_all(
    port: int, names: Iterator[str], plan: Callable[[str], Plan], book: _Book, lots: Random
) -> None:
    for name in names:
        # One that is refused or cut has nothing to leave.
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            async with await RawClient.connect(port) as client:
                client.send(request(plan(name)))
                await until(lambda: name in book.received, "it is at its engine")  # noqa: B023
                if plan is not _before_head:
                    await client.head()
                    await client.chunk()
                await _read_for(client, lots.uniform(*_STAYS_SECONDS))
                book.left[name] = time.monotonic()


async def _read_for(client: RawClient, seconds: float) -> None:
    """Take what comes, for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await client.reader.read(65536):
                continue


def _closing_times(book: _Book) -> list[float]:
    """Seconds for each client, `HORIZON_SECONDS` for a connection that was not closed in them."""
    closed = {line.id: line.at for line in book.engines.lines("G")}
    return [
        min(max(0.0, closed.get(name, at + HORIZON_SECONDS) - at), HORIZON_SECONDS)
        for name, at in book.left.items()
    ]
