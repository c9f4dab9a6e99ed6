"""Raw results: one JSON object in a line for each run, the conditions in the first."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from bench.speed.errors import BenchError
from bench.speed.measuring import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One work of one target in one round."""

    work: str
    target: str
    round: int
    attempt: int = 1
    """Above 1 where others had disturbed the one before."""
    disturbed: bool = False
    """Others used the machine; it counts only where nothing better is there."""
    fault: str | None = None
    """Why it says nothing, or not all."""
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Results:
    """All of one bench, or of several together."""

    conditions: Sequence[Mapping[str, object]]
    runs: Sequence[Run]


def write_conditions(to: TextIO, conditions: Mapping[str, object]) -> None:
    """The first line."""
    _write(to, {"conditions": conditions})


def write_run(to: TextIO, run: Run) -> None:
    """One line, at once: what was measured stays, whatever happens next."""
    _write(to, asdict(run))


def _write(to: TextIO, value: Mapping[str, object]) -> None:
    to.write(json.dumps(value) + "\n")
    to.flush()


def read(files: Iterable[Path]) -> Results:
    """Raises BenchError where a file is none of ours."""
    conditions: list[Mapping[str, object]] = []
    runs: list[Run] = []
    for file in files:
        try:
            lines = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
            conditions += [line["conditions"] for line in lines if "conditions" in line]
            runs += [Run(**line) for line in lines if "conditions" not in line]
        except (OSError, ValueError, TypeError) as error:
            raise BenchError(f"{file} holds no results: {error}") from error
    return Results(conditions, runs)
