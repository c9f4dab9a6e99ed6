"""The order of runs: interleaved, so that what the machine does meanwhile meets all alike."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from bench.speed import machine
from bench.speed.errors import BenchError
from bench.speed.measuring import measure
from bench.speed.results import Run
from bench.speed.stage import Stage
from bench.speed.targets import CORE, TARGETS, Target
from bench.speed.works import Work

DISTURBED: Final = 0.15
"""Cores that others keep busy, above which a run is repeated. Half of that may fall on the core of
the proxy: 7 %, about what the medians of fifteen pairs can tell apart."""

REPEATS: Final = 2
"""Of a disturbed run; the last one then counts as disturbed."""

CONTEXT_EVERY: Final = 5
"""Targets beside the core take part in each fifth round: they are context, not what is aimed at."""

_CALM_LOOK: Final = 0.25
_CALM_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Who does what next."""

    work: Work
    target: Target
    round: int


def turns(
    works: Sequence[Work], targets: Sequence[Target], rounds: int, *, thin: bool
) -> Iterator[Turn]:
    """All of them: a group's rounds one after the other, forward and backward by turns.

    `thin`: of `TARGETS` those that are not of the core take part in each fifth round only.
    """
    for group in _groups(works):
        for number in range(rounds):
            there = [
                Turn(work, target, number)
                for work in group
                for target in targets
                if number < (work.most_rounds or rounds) and takes_part(work, target)
                if not thin or number % CONTEXT_EVERY == 0 or _in_every_round(target)
            ]
            yield from reversed(there) if number % 2 else there


def _in_every_round(target: Target) -> bool:
    """The core, and trees: who names one wants to compare it."""
    return target.name in CORE or target.name not in TARGETS


def _groups(works: Sequence[Work]) -> list[list[Work]]:
    """Works that take turns, each group where its first one stands."""
    found: dict[str, list[Work]] = {}
    for work in works:
        found.setdefault(work.group or work.name, []).append(work)
    return list(found.values())


def takes_part(work: Work, target: Target) -> bool:
    """Whether the work is for the target; what is started anew has to be a process of its own."""
    if work.only is not None and (target.like or target.name) not in work.only:
        return False
    return not (work.fresh and target.command is None)


def run_all(
    stage: Stage, todo: Sequence[Turn], *, patient: bool = True
) -> Iterator[tuple[int, Run]]:
    """Do them, each again while it is disturbed; a run comes with the number of its turn.

    If not `patient`, nothing is waited for, and nothing counts as disturbed.
    """
    for number, turn in enumerate(todo, start=1):
        for attempt in range(1, (REPEATS if patient else 0) + 2):
            if patient:
                _await_calm()
            run = _one(stage, turn, attempt)
            if not patient:
                run = replace(run, disturbed=False)
            yield number, run
            if not run.disturbed:
                break


def _one(stage: Stage, turn: Turn, attempt: int) -> Run:
    work, target = turn.work, turn.target
    try:
        running = stage.running(target, fresh=work.fresh)
        figures = measure(stage, running, work)
        fault = None
        if not stage.quiet(running):
            fault = "was still at work 20 s after; started anew"
            stage.end(target)
        stage.forget_log(running)
    except (BenchError, OSError) as error:
        stage.end(target)
        return Run(
            work=work.name,
            target=target.name,
            round=turn.round,
            attempt=attempt,
            fault=str(error) or repr(error),
        )
    return Run(
        work=work.name,
        target=target.name,
        round=turn.round,
        attempt=attempt,
        disturbed=(figures.get("foreign") or 0.0) > DISTURBED,
        fault=fault,
        figures=figures,
    )


def _await_calm() -> None:
    """Until others leave the machine alone, but not for ever."""
    deadline = monotonic() + _CALM_SECONDS
    while monotonic() < deadline:
        before = machine.others({os.getpid()})
        machine.pause(_CALM_LOOK)
        if (machine.others({os.getpid()}) - before) / _CALM_LOOK < DISTURBED:
            return
