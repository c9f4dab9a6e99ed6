"""The short form: has specswitch become twice as slow?

Two minutes beside sglang-router, which the same machine slows down as much: CPU time for each
request or chunk, as a ratio in pairs, and memory. Times on the clock are not judged, since a noisy
machine moves them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.reliability.peers import PeerMissingError, install
from bench.speed.errors import BenchError
from bench.speed.intervals import Estimate, estimate, ratios
from bench.speed.results import Run
from bench.speed.rounds import run_all, turns
from bench.speed.stage import Stage
from bench.speed.table import samples_of, text_of
from bench.speed.targets import SGLANG_ROUTER, SPECSWITCH, TARGETS
from bench.speed.works import WORKS, Work

HOLDS, MISSED = 0, 1
PAIRS: Final = 5

ALLOWED: Final = 1.6
"""Times what is expected. A regression to twice as much is above it; what moves the median of five
pairs of short runs on a busy machine, 15 % at most, is far below."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How a figure stands to that of sglang-router."""

    work: str
    figure: str
    expected: float
    reason: str

    @property
    def most(self) -> float:
        """Above it something is wrong."""
        return self.expected * ALLOWED


BOUNDS: Final = (
    Bound("requests-32", "cpu_us", 0.61, "measured, in 15 pairs; the target is 1.6x its req/s"),
    Bound("renew-32", "cpu_us", 0.78, "measured, in 15 pairs; the target is 1.3x its req/s"),
    Bound("body-1mb", "cpu_us", 0.92, "measured, in 15 pairs; the target is 1.0"),
    Bound("streams-256", "cpu_us", 1.01, "measured, in 15 pairs; the target is 1.0"),
    Bound("streams-256", "peak_mib", 0.65, "measured: 65 MiB where it has 105"),
)

SHORTER: Final[Mapping[str, Mapping[str, int]]] = {
    "requests-32": {"seconds": 1},
    "renew-32": {"seconds": 1},
    "body-1mb": {"seconds": 1},
    "streams-256": {"ramp_ms": 500, "chunks": 75},
}
"""What differs from the works of the same name."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found for a bound; None where nothing was."""

    bound: Bound
    found: Estimate | None

    @property
    def holds(self) -> bool:
        """Whether it is known, and within."""
        return self.found is not None and self.found.value <= self.bound.most

    def __str__(self) -> str:
        bound = self.bound
        word = "holds" if self.holds else "MISSED"
        return (
            f"{word}: {bound.work} {bound.figure}, {text_of(self.found)} of {SGLANG_ROUTER}'s, "
            f"at most {bound.most:.2f} ({ALLOWED:g} x {bound.expected:g}: {bound.reason})"
        )


def check(peers: Path, say: Say) -> int:
    """Run it; 1 if a bound is missed twice or a byte was wrong once. Raises BenchError."""
    try:
        install(peers, SGLANG_ROUTER)
    except PeerMissingError as error:
        raise BenchError(f"the smoke run needs it to compare with: {error}") from error
    with Stage(peers) as stage:
        runs = _run(stage, works())
        again = {verdict.bound.work for verdict in judged(runs) if not verdict.holds}
        if again:
            say(f"once more, since a bound was missed: {', '.join(sorted(again))}")
            kept = [run for run in runs if run.work not in again]
            runs = kept + _run(stage, [work for work in works() if work.name in again])
    verdicts, wrong = judged(runs), faults(runs)
    for line in (*map(str, verdicts), *wrong):
        say(line)
    return MISSED if wrong or not all(verdict.holds for verdict in verdicts) else HOLDS


def works() -> list[Work]:
    """The short ones."""
    return [
        replace(WORKS[name], load={**WORKS[name].load, **options})
        for name, options in SHORTER.items()
    ]


def _run(stage: Stage, todo: Sequence[Work]) -> list[Run]:
    targets = [TARGETS[name] for name in (SPECSWITCH, SGLANG_ROUTER)]
    planned = list(turns(todo, targets, PAIRS, thin=False))
    return [run for _, run in run_all(stage, planned, patient=False)]


def judged(runs: Sequence[Run]) -> list[Verdict]:
    """What the runs say to each bound."""
    verdicts = []
    for bound in BOUNDS:
        samples = samples_of(runs, bound.work)
        pair = [
            samples[name].values(bound.figure) if name in samples else {}
            for name in (SPECSWITCH, SGLANG_ROUTER)
        ]
        verdicts.append(Verdict(bound, estimate(ratios(*pair))))
    return verdicts


def faults(runs: Sequence[Run]) -> list[str]:
    """What may not happen even once, a line each."""
    lines = []
    for run in runs:
        if run.target != SPECSWITCH:
            continue
        if run.fault is not None:
            lines.append(f"{run.work}: {run.fault}")
        lines += [
            f"{run.work}: {count:g} {name} answers or chunks"
            for name in ("errors", "refused", "altered", "wrong")
            if (count := run.figures.get(name))
        ]
    return lines
