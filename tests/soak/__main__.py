"""The long soak, on a terminal: python -m tests.soak [--requests 20000] [--seed N] [--json]."""

import argparse
import json
import secrets
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.soak.reckoning import tally
from tests.soak.soak import Result, Soak

SHOWN = 40
"""Findings that are printed; one cause has many."""


def main() -> int:
    """Run it; 0 if everything agrees."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--keep", type=Path, help="an empty folder for the log and the ledgers")
    asked = parser.parse_args()
    console = Console(stderr=True)
    console.print(f"soak of {asked.requests} requests, seed {asked.seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            parser.error(f"{folder} is not empty")
        result = _run(asked.seed, asked.requests, folder, console)
    report = _report(result, time.monotonic() - began)
    if asked.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        for name, value in report.items():
            console.print(f"[bold]{name}[/bold] {value}", highlight=False)
    for finding in result.findings[:SHOWN]:
        console.print(finding, style="red", highlight=False, markup=False)
    if result.findings:
        console.print(f"{len(result.findings)} findings with --seed {result.seed}", style="red")
    return 1 if result.findings else 0


def _run(seed: int, count: int, folder: Path, console: Console) -> Result:
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*bars, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("requests", total=count)

        async def run() -> Result:
            soak = Soak(seed, count, folder, progress=lambda n: progress.update(bar, completed=n))
            return await soak.run()

        return uvloop.run(run())


def _report(result: Result, seconds: float) -> dict[str, object]:
    growth = (result.after.resident - result.midway) / 2**20
    return {
        "seed": result.seed,
        "requests": len(result.evidence.seen),
        "seconds": round(seconds, 1),
        **asdict(tally(result.evidence)),
        "kills": result.kills,
        "reloads": result.reloads,
        "descriptors": [result.before.descriptors, result.after.descriptors],
        "rss_growth_mib": round(growth, 1),
        "held": result.after.held,
        "findings": len(result.findings),
    }


if __name__ == "__main__":
    sys.exit(main())
