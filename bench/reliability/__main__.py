"""Measure how specswitch and its peers behave when things go wrong.

python -m bench.reliability [--targets specswitch,sglang-router,litellm] [--measures NAME,...]
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench.reliability import draining, failover, leaving, slow
from bench.reliability.asking import Numbers
from bench.reliability.peers import PINS, default_folder, program
from bench.reliability.targets import SPECSWITCH, TARGETS, Target, started
from proxy import __version__
from tests.soak.pair import Engines


@dataclass(frozen=True, slots=True)
class Measure:
    """One of them: what runs, and what of specswitch's configuration it needs."""

    run: Callable[[Target, Engines], Awaitable[Numbers]]
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One measure of one target in one round; what it said, or why it said nothing."""

    measure: str
    target: str
    round: int
    numbers: Numbers
    fault: str | None = None


def _measures(asked: argparse.Namespace) -> dict[str, Measure]:
    return {
        "leaving": Measure(partial(leaving.measure, count=asked.leavers)),
        "reads-nothing": Measure(partial(slow.one_reads_nothing, seconds=asked.slow_seconds)),
        "dribble": Measure(slow.many_dribble),
        "failover": Measure(failover.added_time),
        "kill-spec": _kill("spec", asked.kill_seconds),
        "kill-base": _kill("base", asked.kill_seconds),
        "drain": Measure(draining.measure),
    }


def _kill(name: str, seconds: float) -> Measure:
    run = partial(failover.killed_under_load, name=name, seconds=seconds)
    return Measure(run, failover.SETTINGS)


MEASURES: Final = (
    "leaving",
    "reads-nothing",
    "dribble",
    "failover",
    "kill-spec",
    "kill-base",
    "drain",
)


def main() -> int:
    """Run what is asked for; 0 if every run said something."""
    asked = _arguments()
    console = Console(stderr=True)
    runs = uvloop.run(_all(asked, console))
    if asked.json:
        sys.stdout.write(json.dumps(_as_json(runs), indent=2) + "\n")
    else:
        for name in asked.measures:
            Console().print(_table(name, asked.targets, runs))
    for run in runs:
        if run.fault is not None:
            console.print(f"{run.measure} of {run.target}: {run.fault}", style="red", markup=False)
    return 1 if any(run.fault for run in runs) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.reliability", description=__doc__)

    def words(text: str) -> list[str]:
        return text.split(",")

    targets, measures = ",".join(TARGETS), ",".join(MEASURES)
    parser.add_argument("--targets", type=words, default=words(SPECSWITCH), help=targets)
    parser.add_argument("--measures", type=words, default=list(MEASURES), help=measures)
    parser.add_argument("--rounds", type=int, default=1, help="of all, interleaved (1)")
    parser.add_argument("--leavers", type=int, default=500, help="clients at each place (500)")
    parser.add_argument("--slow-seconds", type=float, default=30.0, help="without reading (30)")
    parser.add_argument("--kill-seconds", type=float, default=8.0, help="of load (8)")
    parser.add_argument("--peers", type=Path, default=default_folder(), help="their environments")
    parser.add_argument("--json", action="store_true", help="print every run as JSON")
    asked = parser.parse_args()
    if unknown := {*asked.targets} - {*TARGETS} | {*asked.measures} - {*MEASURES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in PINS:
        if name in asked.targets and not program(asked.peers, name).exists():
            parser.error(f"{name} is missing: python -m bench.reliability.peers")
    return asked


async def _all(asked: argparse.Namespace, console: Console) -> list[Run]:
    measures = _measures(asked)
    todo = [
        (number, measure, target)
        for number in range(asked.rounds)
        for measure in asked.measures
        for target in asked.targets
    ]
    runs = []
    for done, (number, measure, target) in enumerate(todo, start=1):
        console.print(f"{done}/{len(todo)} round {number + 1}: {measure} of {target}")
        numbers, fault = await _one(measures[measure], target, asked.peers)
        runs.append(Run(measure, target, number, numbers, fault))
        for key, value in numbers.items():
            console.print(f"    {key}: {_text(value)}", highlight=False, markup=False)
    return runs


async def _one(measure: Measure, target: str, peers: Path) -> tuple[Numbers, str | None]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            async with (
                Engines(folder) as engines,
                started(target, engines, folder, peers, measure.settings) as it,
            ):
                return await measure.run(it, engines), None
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            return {}, f"{type(error).__name__}: {error}"


def _medians(name: str, target: str, runs: list[Run]) -> dict[str, float | None]:
    mine = [run.numbers for run in runs if (run.measure, run.target) == (name, target)]
    values: dict[str, list[float]] = {}
    for numbers in mine:
        for key, value in numbers.items():
            values.setdefault(key, []).extend([] if value is None else [value])
    return {key: statistics.median(each) if each else None for key, each in values.items()}


def _table(name: str, targets: list[str], runs: list[Run]) -> Table:
    columns = {target: _medians(name, target, runs) for target in targets}
    table = Table("measure (median of rounds)", *targets, title=name)
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    for key in keys:
        table.add_row(key, *(_text(columns[target].get(key)) for target in targets))
    return table


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"  # noqa: PLR2004


def _as_json(runs: list[Run]) -> dict[str, object]:
    return {
        "machine": {"cpus": os.cpu_count(), "system": platform.platform()},
        "versions": {SPECSWITCH: __version__, **PINS},
        "runs": [
            {
                "measure": run.measure,
                "target": run.target,
                "round": run.round,
                "numbers": run.numbers,
                "fault": run.fault,
            }
            for run in runs
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
