"""At low load: is a client served as fast as by the speculative server alone?

Both get the same requests at the same times. The speculative server is asked directly, so what
specswitch itself costs is in the figure.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from bench.live.clients import MODEL, shots
from bench.live.finding import Finding
from bench.live.pairs import PROFILE, both, simulated
from proxy.sim.workloads import WORKLOADS, capacity, requests
from proxy.tools.bench.objective import Figures, end_to_end_of, figures, ratio, values
from proxy.tools.bench.plan import Endpoint, Level, Options
from proxy.tools.bench.run import measure
from proxy.tools.bench.standing import Cell
from proxy.tools.bench.watching import per_minute
from proxy.tools.progress import progress

LEVELS: Final = ("poisson-05", "poisson-10")
_LEAST_LOAD: Final = 0.05
"""Of the levels."""
SLOWER: Final = 1.05
"""Mean end-to-end time, relative to always-spec: at most that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured, and how fast."""

    scale: float = 8.0
    requests: int = 200
    """At 5 % of capacity; at another level so many more that it takes as long."""
    levels: Sequence[str] = LEVELS
    slower: float = SLOWER


async def run(folder: Path, settings: Settings, seed: int) -> list[Finding]:
    """Measure all levels, one after the other."""
    names = {_rate(name, settings.scale): name for name in settings.levels}
    async with AsyncExitStack() as ends:
        ours = await ends.enter_async_context(both(folder, settings.scale))
        alone = await ends.enter_async_context(simulated(folder, settings.scale))
        options = Options(
            endpoints=[
                Endpoint(name="specswitch", url=ours.url, admin_url=ours.admin_url),
                Endpoint(name="always-spec", url=alone.spec_url),
            ],
            rates=list(names),
            together=True,
            model=MODEL,
        )
        levels = [_level(rate, name, settings, seed) for rate, name in names.items()]
        with progress(Console(stderr=True), total=1, what="requests", quiet=True) as shown:
            cells = await measure(options, levels, shown, asyncio.Event(), clock=time.monotonic)
    found = []
    for rate, name in names.items():
        first, theirs = (cell for cell in cells if cell.rate == rate)
        found += _findings(name, first, theirs, options, settings, seed)
    return found


def _rate(name: str, scale: float) -> float:
    """Requests a second."""
    return (WORKLOADS[name].load or 0.0) * capacity(PROFILE) * scale


def _level(rate: float, name: str, settings: Settings, seed: int) -> Level:
    number = round(settings.requests * (WORKLOADS[name].load or 0.0) / _LEAST_LOAD)
    planned = requests(WORKLOADS[name], PROFILE, number, seed)
    return Level(rate, [shots(planned, settings.scale)])


def _findings(
    name: str, ours: Cell, alone: Cell, options: Options, settings: Settings, seed: int
) -> list[Finding]:
    slower = ratio(
        values(ours.fired, end_to_end_of),
        values(alone.fired, end_to_end_of),
        Random(seed),  # noqa: S311 - an interval that can be repeated
    )
    mine, theirs = (figures(cell.fired, options.objective) for cell in (ours, alone))
    switches = per_minute(ours.watched)
    return [
        Finding(
            name=f"{name}: E2E to always-spec",
            value=None if slower is None else slower.value,
            low=None if slower is None else slower.low,
            high=None if slower is None else slower.high,
            at_most=settings.slower,
        ),
        Finding(name=f"{name}: mean E2E, s", value=_mean(mine, settings.scale)),
        Finding(name=f"{name}: mean E2E of always-spec, s", value=_mean(theirs, settings.scale)),
        Finding(name=f"{name}: share served by spec", value=mine.spec_share),
        Finding(
            name=f"{name}: switches a minute",
            value=None if switches is None else switches / settings.scale,
        ),
        Finding(name=f"{name}: no good end", value=_bad(mine) + _bad(theirs), at_most=0.0),
        Finding(
            name=f"{name}: generator late, p99, ms",
            value=None if mine.lateness is None else 1000.0 * mine.lateness.p99,
        ),
    ]


def _mean(found: Figures, scale: float) -> float | None:
    """Seconds as they are at the real speed of the GPU."""
    return None if found.end_to_end is None else found.end_to_end.mean * scale


def _bad(found: Figures) -> int:
    return found.planned - found.ok
