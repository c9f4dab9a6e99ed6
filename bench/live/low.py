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
from proxy.tools.bench.plan import DEFAULT_OBJECTIVE, Endpoint, Level, Options
from proxy.tools.bench.run import measure
from proxy.tools.bench.standing import Cell
from proxy.tools.bench.watching import per_minute
from proxy.tools.progress import progress

LEVELS: Final = {"poisson-05": 1, "poisson-10": 3}
"""Workloads, and how many times as many requests as at the first.

At 10 % a few in flight at one time make the controller leave, about once in half an hour. With
160 requests that is never or once, and once costs 3 %; with more it counts for what it is.
"""
SLOWER: Final = 1.05
"""Mean end-to-end time, relative to always-spec: at most that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured, and how fast."""

    scale: float = 8.0
    requests: int = 200
    """At 5 % of capacity, see LEVELS."""
    levels: Sequence[str] = tuple(LEVELS)
    slower: float = SLOWER


async def run(folder: Path, settings: Settings, seed: int) -> list[Finding]:
    """Measure all levels at the same time, each on pairs of its own."""
    found = await asyncio.gather(
        *(_measured(folder, name, settings, seed) for name in settings.levels)
    )
    return [finding for one in found for finding in one]


async def _measured(folder: Path, name: str, settings: Settings, seed: int) -> list[Finding]:
    rate = _rate(name, settings.scale)
    async with AsyncExitStack() as ends:
        ours = await ends.enter_async_context(both(folder, settings.scale))
        alone = await ends.enter_async_context(simulated(folder, settings.scale))
        options = Options(
            endpoints=[
                Endpoint(name="specswitch", url=ours.url, admin_url=ours.admin_url),
                Endpoint(name="always-spec", url=alone.spec_url),
            ],
            rates=[rate],
            together=True,
            model=MODEL,
        )
        levels = [_level(rate, name, settings, seed)]
        with progress(Console(stderr=True), total=1, what="requests", quiet=True) as shown:
            first, other = await measure(
                options, levels, shown, asyncio.Event(), clock=time.monotonic
            )
    return _findings(name, first, other, settings, seed)


def _rate(name: str, scale: float) -> float:
    """Requests a second."""
    return (WORKLOADS[name].load or 0.0) * capacity(PROFILE) * scale


def _level(rate: float, name: str, settings: Settings, seed: int) -> Level:
    planned = requests(WORKLOADS[name], PROFILE, settings.requests * LEVELS[name], seed)
    return Level(rate, [shots(planned, settings.scale)])


def _findings(name: str, ours: Cell, alone: Cell, settings: Settings, seed: int) -> list[Finding]:
    slower = ratio(
        values(ours.fired, end_to_end_of),
        values(alone.fired, end_to_end_of),
        Random(seed),  # noqa: S311 - an interval that can be repeated
    )
    mine, theirs = (figures(cell.fired, DEFAULT_OBJECTIVE) for cell in (ours, alone))
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
