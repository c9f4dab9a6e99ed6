"""Measure over HTTP, on simulated GPUs, what the controller does for clients.

python -m bench.live [--rounds N] [--measures low,saturation,step] [--json]
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.live import low, saturation, step
from bench.live.finding import Finding, Summary, summaries
from bench.live.pairs import CONTENTION, PROFILE, knowledge
from proxy import __version__
from proxy.errors import SpecswitchError
from proxy.tools.progress import Progress, progress

DONE, FAILED, INTERRUPTED = 0, 1, 130

MEASURES: Final = ("low", "saturation", "step")

Measure = Callable[[], Coroutine[None, None, list[Finding]]]


def main() -> int:
    """Run what the command line asks for; 1 if something does not hold or could not be measured."""
    asked = _parser().parse_args()
    console = Console(stderr=True)
    conditions = _conditions(asked)
    try:
        rounds = uvloop.run(_all(asked, console))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (SpecswitchError, httpx2.HTTPError, TimeoutError, OSError) as error:
        console.print(f"live: {error}", highlight=False, markup=False)
        return FAILED
    found = summaries(rounds)
    if asked.json:
        print(_as_json(found, conditions))  # noqa: T201 - this is what was asked for
    else:
        _show(Console(), found, conditions)
    return DONE if all(one.holds for one in found) else FAILED


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        found = text.split(",")
        if unknown := {*found} - {*MEASURES}:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return found

    def above_zero(text: str) -> float:
        value = float(text)
        if not 0.0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0, and finite")
        return value

    def count(text: str) -> int:
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError(f"{text} is below 1")
        return value

    parser = argparse.ArgumentParser(
        prog="python -m bench.live",
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 all holds, 1 something does not, 2 wrong usage, 130 interrupted.",
    )
    add = parser.add_argument
    add("--rounds", type=count, default=1, help="of all measures, each with its own seed (1)")
    add("--measures", type=words, default=list(MEASURES), help=",".join(MEASURES))
    add(
        "--requests",
        type=count,
        default=200,
        help="at 5 %% of capacity, 3 times as many at 10 %% (200)",
    )
    add("--low-scale", type=above_zero, default=8.0, help="how much faster than real `low` is (8)")
    add("--step-scale", type=above_zero, default=1.0, help="the same of `step` (1)")
    add("--seed", type=int, default=0, help="of the first round (0)")
    add("--json", action="store_true", help="one object instead of a table")
    return parser


async def _all(asked: argparse.Namespace, console: Console) -> list[list[Finding]]:
    """Round by round."""
    steps = asked.rounds * len(asked.measures)
    with progress(console, total=steps, what="measures", quiet=asked.json) as shown:
        return [await _round(asked, asked.seed + number, shown) for number in range(asked.rounds)]


async def _round(asked: argparse.Namespace, seed: int, shown: Progress) -> list[Finding]:
    """One of each: those with little to do at the same time, saturation alone."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        jobs = {
            "low": partial(
                low.run, folder, low.Settings(scale=asked.low_scale, requests=asked.requests), seed
            ),
            "step": partial(step.run, folder, step.Settings(scale=asked.step_scale), seed),
            "saturation": partial(saturation.run, folder, saturation.Settings(), seed),
        }
        found = await asyncio.gather(
            *(_one(name, jobs[name], shown) for name in ("low", "step") if name in asked.measures)
        )
        if "saturation" in asked.measures:
            found.append(await _one("saturation", jobs["saturation"], shown))
    return [finding for one in found for finding in one]


async def _one(name: str, job: Measure, shown: Progress) -> list[Finding]:
    found = await job()
    shown.step(1, name)
    return found


def _conditions(asked: argparse.Namespace) -> Mapping[str, object]:
    """What the figures hang on."""
    known = knowledge()
    return {
        "specswitch": __version__,
        "profile": PROFILE.name,
        "contention": CONTENTION,
        "crossover": {
            "in_flight": round(known.crossover, 3),
            "tokens_per_second": round(known.crossover_rate, 1),
        },
        "rounds": asked.rounds,
        "seed": asked.seed,
        "scale": {"low": asked.low_scale, "saturation": 1.0, "step": asked.step_scale},
        "requests": asked.requests,
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _show(console: Console, found: list[Summary], conditions: Mapping[str, object]) -> None:
    table = Table("", "median", "lowest", "highest", "bound", "holds", box=SIMPLE_HEAD)
    for one in found:
        table.add_row(
            one.name,
            *map(_number, (one.median, one.low, one.high)),
            _bound(one),
            _holds(one),
        )
    console.print(table)
    for name, value in conditions.items():
        console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _bound(one: Summary) -> str:
    if one.at_most is not None and one.at_most == one.at_least:
        return f"{one.at_most:.4g}"
    bounds = [("at most", one.at_most), ("at least", one.at_least)]
    return ", ".join(f"{word} {bound:.4g}" for word, bound in bounds if bound is not None)


def _holds(one: Summary) -> str:
    if one.at_most is None and one.at_least is None:
        return ""
    if one.holds:
        return "yes"
    return f"NO ({one.held} of {len(one.values)})"


def _as_json(found: list[Summary], conditions: Mapping[str, object]) -> str:
    results = [asdict(one) for one in found]
    holds = all(one.holds for one in found)
    return json.dumps({"holds": holds, "conditions": conditions, "results": results}, indent=2)


if __name__ == "__main__":
    sys.exit(main())
