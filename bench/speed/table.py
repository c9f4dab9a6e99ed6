"""The runs as Markdown: a table for each work, a row for each target."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from bench.speed.columns import BESIDES, Beside, Column, columns_of
from bench.speed.intervals import Estimate, added, estimate, ratios
from bench.speed.results import Results, Run
from bench.speed.targets import DIRECT, SGLANG_ROUTER, TARGETS
from bench.speed.works import WORKS, Work

_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True)
class Sample:
    """The runs of one target in one work that count, a run for each round."""

    runs: Mapping[int, Run]
    disturbed: bool
    """Whether some of them were disturbed, because there are too few better ones."""
    faults: Sequence[str]

    def values(self, figure: str) -> dict[int, float]:
        """A figure, by round."""
        return {
            number: value
            for number, run in self.runs.items()
            if (value := run.figures.get(figure)) is not None
        }


Samples = Mapping[str, Sample]
"""Of one work, by target."""


def samples_of(runs: Sequence[Run], work: str) -> dict[str, Sample]:
    """What counts of each target that took part in `work`, in the order of the table."""
    names = dict.fromkeys(run.target for run in runs if run.work == work)
    ordered = sorted(names, key=lambda name: [*TARGETS].index(name) if name in TARGETS else 1)
    return {
        name: _sample([run for run in runs if (run.work, run.target) == (work, name)])
        for name in ordered
    }


def _sample(runs: Sequence[Run]) -> Sample:
    """Of each round the last attempt; without those that stayed disturbed, if that leaves half."""
    last = {run.round: run for run in runs if run.figures}
    calm = {number: run for number, run in last.items() if not run.disturbed}
    kept = calm if 2 * len(calm) >= len(last) else last
    return Sample(
        kept,
        disturbed=any(run.disturbed for run in kept.values()),
        faults=[run.fault for run in runs if run.fault is not None],
    )


def markdown(results: Results, reference: str = SGLANG_ROUTER) -> str:
    """All tables, with the conditions before them; ratios are to `reference`."""
    by_work = {name: samples_of(results.runs, name) for name in WORKS}
    lines = [f"Ratios are to {reference}.", "", *_conditions(results.conditions)]
    for name, samples in by_work.items():
        if samples:
            lines += ["", *_one(WORKS[name], samples, reference)]
    lines += _besides(by_work)
    return "\n".join(lines) + "\n"


def _conditions(conditions: Sequence[Mapping[str, object]]) -> Iterator[str]:
    for each in conditions:
        for name, value in each.items():
            yield f"- {name.replace('_', ' ')}: {_text(value)}"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _one(work: Work, samples: Samples, reference: str) -> Iterator[str]:
    shown = [
        column if reference in samples else replace(column, compared=False)
        for column in columns_of(work)
        if _has_values(column, samples)
    ]
    head = ["", "rounds"]
    for column in shown:
        head += [column.title, "ratio"] if column.compared else [column.title]
    yield f"### {work.name}: {work.title}"
    yield ""
    yield _row(head)
    yield _row(["---", *["---:"] * (len(head) - 1)])
    for name, mine in samples.items():
        cells = [f"{name}{' *' if mine.disturbed else ''}", str(len(mine.runs))]
        for column in shown:
            cells += _cells(column, samples, name, reference)
        yield _row(cells)
    for name, mine in samples.items():
        for fault in dict.fromkeys(mine.faults):
            times = mine.faults.count(fault)
            yield f"\n{name}, in {times} of its runs: {' / '.join(fault.splitlines())}"


def _has_values(column: Column, samples: Samples) -> bool:
    return any(_values(column, samples, name) for name in samples)


def _cells(column: Column, samples: Samples, name: str, reference: str) -> list[str]:
    mine = _values(column, samples, name)
    cells = [f"{median(mine.values()) * column.scale:,.{column.digits}f}" if mine else _UNKNOWN]
    if column.compared:
        compared = name not in (reference, DIRECT)
        other = _values(column, samples, reference) if compared else {}
        cells.append(text_of(estimate(ratios(mine, other))))
    return cells


def _values(column: Column, samples: Samples, name: str) -> dict[int, float]:
    own = samples[name].values(column.figure)
    if not column.above_direct:
        return own
    if name == DIRECT or DIRECT not in samples:
        return {}
    return added(own, samples[DIRECT].values(column.figure))


def text_of(found: Estimate | None) -> str:
    """A figure with its interval."""
    if found is None:
        return _UNKNOWN
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _besides(by_work: Mapping[str, Samples]) -> Iterator[str]:
    """What lies between two works of a group, round by round."""
    rows = [row for beside in BESIDES for row in _beside(beside, by_work)]
    if rows:
        yield from ("", "### between works", "", _row(["", "", "rounds", "figure"]))
        yield _row(["---", "---", "---:", "---:"])
        yield from rows


def _beside(beside: Beside, by_work: Mapping[str, Samples]) -> Iterator[str]:
    others = by_work[beside.other]
    for name, mine in by_work[beside.work].items():
        if name in others:
            pair = mine.values(beside.figure), others[name].values(beside.figure)
            values = [ms / 1e3 for ms in added(*pair).values()] if beside.minus else ratios(*pair)
            if (found := estimate(values)) is not None:
                yield _row([beside.title, name, str(found.rounds), text_of(found)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
