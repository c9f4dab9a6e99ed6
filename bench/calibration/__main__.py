"""Measure how often the live `calibrate` is right, on simulated pairs over HTTP.

python -m bench.calibration [--seeds N] [--profiles founding,tree] [--scale X] [--json]
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Final

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.calibration.profiles import CASES
from bench.calibration.runs import NEAR, Plan, Run, run
from proxy import __version__
from proxy.sim.physics import FOUNDING, TREE
from proxy.tools.progress import Progress, progress

DONE, FAILED, INTERRUPTED = 0, 1, 130

OF_TWENTY: Final = 0.95
"""The share of seeds in which N* is near."""

CROSSING: Final = (FOUNDING.name, TREE.name)
"""Profiles with one crossover."""

ONLY_ALONE: Final = ("--no-contention", "--long-tokens", "0")
"""What hangs on neither is left out, which halves the time."""


def main() -> int:
    """Run what the command line asks for; 1 where a measure does not hold."""
    asked = _parser().parse_args()
    console = Console(stderr=True)
    try:
        seeds, verdicts = uvloop.run(_all(asked, console))
    except KeyboardInterrupt:
        return INTERRUPTED
    holds = _seeds_hold(seeds) and _verdicts_hold(verdicts)
    conditions = _conditions(asked)
    if asked.json:
        print(_as_json(holds, conditions, seeds, verdicts))  # noqa: T201 - this is what was asked for
    else:
        _show(Console(), seeds, verdicts, conditions)
    return DONE if holds else FAILED


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        if unknown := {*found} - {*CROSSING}:
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
        prog="python -m bench.calibration",
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 all holds, 1 something does not, 2 wrong usage, 130 interrupted.",
    )
    add = parser.add_argument
    add("--seeds", type=count, default=20, help="of each profile (20)")
    add("--first-seed", type=int, default=0, help="the first of them (0)")
    add("--profiles", type=words, default=[FOUNDING.name], help=f"{','.join(CROSSING)} (founding)")
    add("--scale", type=above_zero, default=4.0, help="how much faster than real the GPU is (4)")
    add("--at-once", type=count, default=1, help="calibrations side by side, each its own pair (1)")
    add("--no-verdicts", action="store_true", help="leave out the pairs made for each verdict")
    add("--json", action="store_true", help="one object instead of tables")
    return parser


async def _all(asked: argparse.Namespace, console: Console) -> tuple[list[Run], list[Run]]:
    """Seeds first, then each verdict."""
    numbers = range(asked.first_seed, asked.first_seed + asked.seeds)
    seeds = [(profile, seed) for profile in asked.profiles for seed in numbers]
    verdicts = [] if asked.no_verdicts else [(name, asked.first_seed) for name in CASES]
    total = len(seeds) + len(verdicts)
    with progress(console, total=total, what="calibrations", quiet=asked.json) as shown:
        room = asyncio.Semaphore(asked.at_once)
        plan = Plan(scale=asked.scale, words=ONLY_ALONE)
        found = await asyncio.gather(
            *(_one(profile, seed, plan, room, shown) for profile, seed in (*seeds, *verdicts))
        )
    return found[: len(seeds)], found[len(seeds) :]


async def _one(
    profile: str, seed: int, plan: Plan, room: asyncio.Semaphore, shown: Progress
) -> Run:
    async with room:
        found = await run(profile, seed, plan)
    shown.step(1, f"{profile} {seed}: {found.verdict or 'failed'}")
    return found


def _seeds_hold(seeds: Sequence[Run]) -> bool:
    """Whether N* was near often enough, on each profile."""
    return all(
        sum(each.near for each in own) >= ceil(OF_TWENTY * len(own)) for own in _by_profile(seeds)
    )


def _verdicts_hold(verdicts: Sequence[Run]) -> bool:
    return all(each.verdict in CASES[each.profile].verdicts for each in verdicts)


def _by_profile(runs: Sequence[Run]) -> list[list[Run]]:
    names = dict.fromkeys(each.profile for each in runs)
    return [[each for each in runs if each.profile == name] for name in names]


def _conditions(asked: argparse.Namespace) -> dict[str, object]:
    """What the figures hang on."""
    return {
        "specswitch": __version__,
        "scale": asked.scale,
        "at_once": asked.at_once,
        "options": " ".join(ONLY_ALONE),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _show(
    console: Console,
    seeds: Sequence[Run],
    verdicts: Sequence[Run],
    conditions: dict[str, object],
) -> None:
    for own in _by_profile(seeds):
        _show_seeds(console, own)
    if verdicts:
        _show_verdicts(console, verdicts)
    for name, value in conditions.items():
        console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)


def _show_seeds(console: Console, runs: Sequence[Run]) -> None:
    table = Table(
        "seed", "verdict", "N*", "90 %", "off", "λ* tok/s", "late ms", "goes", "s", box=SIMPLE_HEAD
    )
    for each in runs:
        table.add_row(*_seed_row(each))
    console.print(table)
    near, held = sum(each.near for each in runs), sum(each.held for each in runs)
    truth = next((each.truth for each in runs if each.truth is not None), None)
    bound = ceil(OF_TWENTY * len(runs))
    console.print(
        f"{runs[0].profile}: true N* {_number(truth)}; within {NEAR:.0%} in {near} of {len(runs)} "
        f"(at least {bound}: {'yes' if near >= bound else 'NO'}); the interval holds it in {held}",
        highlight=False,
        soft_wrap=True,
    )


def _seed_row(each: Run) -> tuple[str, ...]:
    found = each.crossover
    return (
        str(each.seed),
        each.error or str(each.verdict),
        "" if found is None else _number(found.value),
        "" if found is None else f"{found.low:.2f} to {found.high:.2f}",
        "" if each.off is None else f"{each.off:+.1%}",
        "" if each.rate is None else f"{each.rate.value:.0f}",
        "" if each.late_seconds is None else f"{each.late_seconds * 1e3:.1f}",
        str(each.goes),
        f"{each.seconds:.0f}",
    )


def _show_verdicts(console: Console, runs: Sequence[Run]) -> None:
    table = Table("pair", "speculation is", "verdict", "right", box=SIMPLE_HEAD)
    for each in runs:
        case = CASES[each.profile]
        right = "yes" if each.verdict in case.verdicts else "NO"
        table.add_row(each.profile, case.what, each.error or str(each.verdict), right)
    console.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _as_json(
    holds: bool,  # noqa: FBT001 - what is printed first
    conditions: dict[str, object],
    seeds: Sequence[Run],
    verdicts: Sequence[Run],
) -> str:
    found = {
        "holds": holds,
        "conditions": conditions,
        "seeds": [_fields(each) for each in seeds],
        "verdicts": [_fields(each) for each in verdicts],
    }
    return json.dumps(found, indent=2)


def _fields(each: Run) -> dict[str, object]:
    intervals = {
        name: None if value is None else value.model_dump()
        for name, value in (("crossover", each.crossover), ("rate", each.rate))
    }
    known = {name: value for name, value in asdict(each).items() if name not in intervals}
    truth = each.truth if each.truth != float("inf") else None
    return {**known, "truth": truth, **intervals, "off": each.off, "near": each.near}


if __name__ == "__main__":
    sys.exit(main())
