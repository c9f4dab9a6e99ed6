"""Simulate 1 to 64 pairs behind a router: which rule of spreading is worth what.

python -m bench.scaling [--profiles founding,tree] [--pairs 1,4,16] [--json | --markdown]
python -m bench.scaling --from runs.json --docs docs/scaling.md
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.scaling.plan import (
    LOADS,
    PAIRS,
    REFERENCE,
    RULES,
    SHOWN,
    Cell,
    Figures,
    Plan,
    as_objects,
    of_objects,
    run_all,
)  # fmt: skip
from bench.scaling.table import markdown, put_between, ratio
from proxy import __version__
from proxy.sim.measures import CONTENTION
from proxy.sim.physics import PROFILES
from proxy.sim.workloads import WORKLOADS
from proxy.tools.progress import progress

DONE, FAILED, INTERRUPTED = 0, 1, 130
LEVELS: Final = [name for name, workload in WORKLOADS.items() if workload.load is not None]


def main() -> int:
    """Do what the command line asks for; 1 if a file cannot be read or written."""
    asked = _parser().parse_args()
    console = Console(stderr=True)
    try:
        found = _read(asked.source) if asked.source else _simulated(asked, console)
        if asked.docs:
            asked.docs.write_text(put_between(asked.docs.read_text(), markdown(found)))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, ValueError, KeyError, TypeError) as error:
        console.print(f"scaling: {error}", highlight=False, markup=False)
        return FAILED
    if asked.json:
        print(json.dumps({"conditions": _conditions(asked), "runs": as_objects(found)}))  # noqa: T201 - this is what was asked for
    elif asked.markdown:
        print(markdown(found), end="")  # noqa: T201 - the same
    elif not asked.docs:
        _show(Console(), found)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scaling",
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 done, 1 a file cannot be used, 2 wrong usage, 130 interrupted.",
    )
    add = parser.add_argument
    add("--profiles", type=_among(PROFILES), default=("founding",), help=",".join(PROFILES))
    add("--workloads", type=_among(LEVELS), default=LOADS, help=f"the level of a pair: {LOADS}")
    add("--pairs", type=_counts, default=PAIRS, help="sizes of the fleet (1,2,4,8,16,32,64)")
    add("--rules", type=_among(RULES), default=SHOWN, help=",".join(RULES))
    add("--seeds", type=_count, default=5, help="runs of each (5)")
    add("--seconds", type=float, default=180.0, help="of arrivals, in virtual time (180)")
    add("--processes", type=_count, default=os.cpu_count() or 1, help="at a time (all CPUs)")
    add("--from", dest="source", type=Path, nargs="+", help="take these files of --json instead")
    add("--docs", type=Path, help="put the tables between the marks of this page")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every run, as one object")
    form.add_argument("--markdown", action="store_true", help="the tables of docs/scaling.md")
    return parser


def _among(known: Mapping[str, object] | list[str]) -> Callable[[str], tuple[str, ...]]:
    def words(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        if unknown := {*found} - {*known}:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return found

    return words


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(word) for word in text.split(","))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _simulated(asked: argparse.Namespace, console: Console) -> dict[Cell, Figures]:
    plan = Plan(
        profiles=asked.profiles,
        workloads=asked.workloads,
        pairs=asked.pairs,
        rules=asked.rules,
        seeds=asked.seeds,
        seconds=asked.seconds,
    )
    found: dict[Cell, Figures] = {}
    with progress(console, total=len(plan.cells), what="fleets", quiet=asked.json) as shown:
        for cell, figures in run_all(plan, processes=asked.processes):
            found[cell] = figures
            shown.step(1, f"{cell.pairs} pairs, {cell.profile}, {cell.workload}, {cell.rule}")
    return dict(sorted(found.items()))


def _read(files: list[Path]) -> dict[Cell, Figures]:
    found: dict[Cell, Figures] = {}
    for file in files:
        found |= of_objects(json.loads(file.read_text())["runs"])
    return dict(sorted(found.items()))


def _conditions(asked: argparse.Namespace) -> Mapping[str, object]:
    return {"specswitch": __version__, "contention": CONTENTION, "seconds": asked.seconds}


def _show(console: Console, found: Mapping[Cell, Figures]) -> None:
    rules = [name for name in RULES if name != REFERENCE and any(c.rule == name for c in found)]
    table = Table("profile", "workload", "pairs", *rules, box=SIMPLE_HEAD)
    for place in dict.fromkeys((cell.profile, cell.workload, cell.pairs) for cell in found):
        ratios = [ratio(found, Cell(*place, rule, 0)) for rule in rules]
        shown = ["" if one is None else f"{one.value:.3f}" for one in ratios]
        table.add_row(*map(str, place), *shown)
    console.print(table)
    console.print(f"mean E2E to {REFERENCE}, median over the seeds", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
