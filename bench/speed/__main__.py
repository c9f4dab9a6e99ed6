"""Measure how fast specswitch and its peers pass bytes on.

python -m bench.speed [--peers a,b] [--work NAME,...] [--pairs 15] [--out FILE]
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.reliability.peers import DEBIAN, PINS, PeerMissingError, default_folder, install, program
from bench.speed import machine, smoke
from bench.speed.errors import BenchError
from bench.speed.processes import BUILD
from bench.speed.results import Results, Run, read, write_conditions, write_run
from bench.speed.rounds import Turn, run_all, turns
from bench.speed.stage import Stage
from bench.speed.table import markdown
from bench.speed.targets import (
    CORE,
    INTERPRETED,
    TARGETS,
    Target,
    is_compiled,
    is_stale,
    of_tree,
    versions,
)
from bench.speed.works import WORKS, Work

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
PAIRS: Final = 15
QUICK_PAIRS: Final = 5
"""The fewest with an interval."""


def main() -> int:
    """Run what is asked for; the exit code."""
    asked = _arguments()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        if asked.only_table:
            sys.stdout.write(markdown(read(asked.only_table)))
            return DONE
        if is_compiled() and is_stale():
            _say("the compiled specswitch is older than its sources; `make compiled` makes it anew")
        if asked.smoke:
            return smoke.check(asked.folder, _say)
        return _bench(asked)
    except BenchError as error:
        _say(str(error))
        return FAILED
    except KeyboardInterrupt:
        _say("interrupted; what was measured until then is in the file")
        return INTERRUPTED


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM ends as Ctrl-C does; a second one does not stop the ending of what was started."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.speed", description=__doc__)

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--peers", type=names, help=f"{','.join(TARGETS)} (all that can be had)")
    parser.add_argument("--work", type=names, help=f"{','.join(WORKS)} (all)")
    parser.add_argument("--pairs", type=int, help=f"rounds of each work ({PAIRS})")
    parser.add_argument(
        "--tree",
        type=_tree,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a folder with a specswitch in proxy/, as one more peer",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"the works that the targets are about, core peers, {QUICK_PAIRS} rounds",
    )
    parser.add_argument("--smoke", action="store_true", help="two minutes, with bounds; 1: missed")
    parser.add_argument(
        "--out", type=Path, help="raw results (bench/speed/build/results-DATE.jsonl)"
    )
    parser.add_argument(
        "--only-table",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: print the table of these raw results",
    )
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of the peers")
    asked = parser.parse_args()
    for given, known in ((asked.peers, TARGETS), (asked.work, WORKS)):
        if unknown := {*(given or ())} - {*known}:
            parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if asked.pairs is not None and asked.pairs < 1:
        parser.error("--pairs must be at least 1")
    return asked


def _tree(text: str) -> Target:
    name, _, folder = text.partition("=")
    if name in TARGETS:
        raise argparse.ArgumentTypeError(f"{text}: {name} is a peer already")
    if not (Path(folder) / "proxy" / "__main__.py").exists():
        raise argparse.ArgumentTypeError(f"{text}: NAME=DIR, and DIR has a specswitch in proxy/")
    return of_tree(name, Path(folder).resolve())


def _bench(asked: argparse.Namespace) -> int:
    works = _works(asked)
    targets = [*_there(asked), *asked.tree]
    pairs = asked.pairs or (QUICK_PAIRS if asked.quick else PAIRS)
    thin = asked.peers is None
    todo = list(turns(works, targets, pairs, thin=thin))
    conditions = {
        **machine.conditions(),
        "versions": versions([target.name for target in targets], asked.folder),
        "pairs": pairs,
    }
    out = asked.out or BUILD / f"results-{datetime.now(UTC):%Y-%m-%d-%H%M%S}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    runs = _run(todo, out, conditions, asked.folder)
    sys.stdout.write(markdown(Results([conditions], runs)))
    _say(f"raw results: {out}")
    return FAILED if any(run.fault and not run.figures for run in runs) else DONE


def _works(asked: argparse.Namespace) -> list[Work]:
    if asked.work is not None:
        return [WORKS[name] for name in asked.work]
    return [work for work in WORKS.values() if work.quick or not asked.quick]


def _there(asked: argparse.Namespace) -> list[Target]:
    """The targets that are wanted and that can be had; who cannot is said."""
    there = []
    for name in asked.peers or _usual(quick=asked.quick):
        try:
            if name in PINS or name in DEBIAN:
                if not program(asked.folder, name).exists():
                    _say(f"fetching {PINS.get(name, name)}")
                install(asked.folder, name)
            there.append(TARGETS[name])
        except PeerMissingError as error:
            _say(f"left out: {error}")
    return there


def _usual(*, quick: bool) -> Sequence[str]:
    """The names of those that are measured where nobody is named."""
    if quick:
        return CORE
    if is_compiled():
        return list(TARGETS)
    _say(f"left out: {INTERPRETED}; without `make compiled` specswitch itself is that")
    return [name for name in TARGETS if name != INTERPRETED]


def _run(todo: Sequence[Turn], out: Path, conditions: dict[str, object], peers: Path) -> list[Run]:
    runs = []
    with out.open("a") as file, Stage(peers) as stage:
        write_conditions(file, conditions)
        for number, run in run_all(stage, todo):
            write_run(file, run)
            runs.append(run)
            _say(_progress(number, len(todo), run))
    return runs


def _progress(number: int, count: int, run: Run) -> str:
    """A line for whoever waits."""
    shown = ("per_second", "us_p50", "us_p99", "cpu_us", "closed_ms_p50", "grown_mib", "start_s")
    found = [
        f"{name} {value:,.4g}" for name in shown if (value := run.figures.get(name)) is not None
    ]
    marks = [f"fault: {run.fault}"] if run.fault else []
    marks += ["disturbed"] if run.disturbed else []
    what = f"{number}/{count} {run.work} round {run.round + 1} {run.target}"
    return f"{what}: {', '.join([*found, *marks])}"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
