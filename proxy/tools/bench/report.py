"""What a bench found, for people: a table on a terminal, and a report to keep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from proxy.errors import SpecswitchError
from proxy.tools import report
from proxy.tools.asking import Sample
from proxy.tools.bench.objective import (
    Figures,
    Ratio,
    Spread,
    end_to_end_of,
    first_token_of,
    per_token_of,
    percentile,
    values,
)
from proxy.tools.bench.standing import Cell, Standing
from proxy.tools.report import Block, Chart, Heading, Series, Style, TableBlock, Text

_UNKNOWN: Final = "-"
_CURVE_POINTS: Final = 100
_NOTES: Final = (
    "E2E, TTFT and TPOT are of requests that ended well; TPOT is from usage. Goodput is the "
    "requests a second that met the objective: those that failed, were refused or were not sent "
    "have not. Goodput and tok/s are over the time up to the last answer. Intervals are of 90 %, "
    "from a block bootstrap over the requests that ended well at both."
)


def show(
    console: Console,
    found: Sequence[Standing],
    conditions: Mapping[str, object],
    *,
    interrupted: bool,
) -> None:
    """Print a table for each rate: a column for each endpoint."""
    for rate in dict.fromkeys(one.rate for one in found):
        level = [one for one in found if one.rate == rate]
        # A title of the table's own is broken to the table's width.
        console.print(_title(rate, conditions), style="bold", highlight=False, soft_wrap=True)
        table = Table(box=None)
        table.add_column("", no_wrap=True)
        for one in level:
            table.add_column(one.endpoint, justify="right", overflow="fold")
        for name, cells in _rows(level):
            table.add_row(name, *cells)
        console.print(table)
    for line in warnings(found, interrupted=interrupted):
        console.print(line, style="bold red", markup=False, highlight=False, soft_wrap=True)


def warnings(found: Sequence[Standing], *, interrupted: bool) -> list[str]:
    """Return what whoever reads the figures must know, a line each."""
    lines = ["interrupted: what had ended by then is shown"] if interrupted else []
    if not found:
        lines.append("nothing was measured")
    for one in found:
        figures = one.figures
        where = one.endpoint if one.rate is None else f"{one.endpoint} at {one.rate:g}/s"
        lines += [f"{where}: {line}" for line in _doubts(figures)]
        if one.admin_missed:
            lines.append(f"{where}: its admin listener did not answer {one.admin_missed} times")
    return lines


def write(
    path: Path,
    found: Sequence[Standing],
    cells: Sequence[Cell],
    conditions: Mapping[str, object],
    *,
    interrupted: bool,
) -> None:
    """Write the report; raises SpecswitchError where it cannot be written or made."""
    doubts = warnings(found, interrupted=interrupted)
    page = report.html("specswitch bench", [*_blocks(found, cells, conditions, doubts)])
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SpecswitchError(f"{path} cannot be written: {error.strerror}") from error


def _doubts(figures: Figures) -> Iterator[str]:
    if figures.late and figures.lateness is not None:
        late = _milliseconds(figures.lateness.p99)
        yield f"the generator was late ({late} at p99): do not trust these figures"
    if figures.unsent:
        yield (
            f"{figures.unsent} of {figures.planned} requests were NOT SENT, since --max-in-flight "
            "of them were under way: the load was less than planned"
        )
    if figures.uncounted:
        yield f"{figures.uncounted} answers without usage: what hangs on token counts is unknown"
    if not figures.ok:
        yield "nothing was measured: no request ended well"
    for kind, count in figures.faults.items():
        yield f"{count} failed: {kind}"
    for message in figures.messages:
        yield f"  {message}"


def _title(rate: float | None, conditions: Mapping[str, object]) -> str:
    at = "as recorded" if rate is None else f"at {rate:g} requests/s"
    return f"{conditions['workload']} {at}"


_Row = tuple[str, list[str]]


def _rows(level: Sequence[Standing]) -> Iterator[_Row]:
    yield from _count_rows(level)
    yield _row("goodput, a second", level, lambda one: _number(one.figures.goodput))
    yield _row("met the objective", level, lambda one: _share(one.figures.met))
    yield _row("tok/s", level, lambda one: _number(one.figures.tokens_per_second))
    for name, pick in _SPREADS.items():
        for stat, of in _STATS.items():
            yield f"{name} {stat}", [_time(pick(one.figures), of) for one in level]
    yield _row("served by spec", level, lambda one: _share(one.figures.spec_share))
    yield _row("switches a minute", level, lambda one: _number(one.switches_per_minute))
    yield _row("both active", level, lambda one: _share(one.both_active_share))
    yield _row("generator late, p99", level, lambda one: _late(one.figures))
    if len(level) > 1:
        yield from _ratio_rows(level)


def _count_rows(level: Sequence[Standing]) -> Iterator[_Row]:
    yield _row("requests", level, lambda one: str(one.figures.planned))
    yield _row("ended well", level, lambda one: str(one.figures.ok))
    yield _row("failed", level, lambda one: str(one.figures.failed))
    yield _row("refused (429, 503)", level, lambda one: str(one.figures.refused))
    if any(one.figures.unsent for one in level):
        yield _row("NOT SENT", level, lambda one: str(one.figures.unsent))


def _ratio_rows(level: Sequence[Standing]) -> Iterator[_Row]:
    to = f"to {level[0].endpoint}"
    ratios = {
        "E2E": lambda one: _ratio(one.ratios and one.ratios.end_to_end),
        "TTFT": lambda one: _ratio(one.ratios and one.ratios.first_token),
        "TPOT": lambda one: _ratio(one.ratios and one.ratios.per_token),
        "objective": lambda one: _ratio(one.ratios and one.ratios.met),
        "tok/s": lambda one: _number(one.ratios and one.ratios.tokens_per_second),
    }
    for name, cell in ratios.items():
        yield _row(f"{name} {to}", level, cell)


def _row(name: str, level: Sequence[Standing], cell: Callable[[Standing], str]) -> _Row:
    return name, [cell(one) for one in level]


_SPREADS: Final[Mapping[str, Callable[[Figures], Spread | None]]] = {
    "E2E": lambda figures: figures.end_to_end,
    "TTFT": lambda figures: figures.first_token,
    "TPOT": lambda figures: figures.per_token,
}
_STATS: Final[Mapping[str, Callable[[Spread], float]]] = {
    "mean": lambda spread: spread.mean,
    "p50": lambda spread: spread.p50,
    "p95": lambda spread: spread.p95,
    "p99": lambda spread: spread.p99,
}
_VALUES: Final[Mapping[str, Callable[[Sample], float | None]]] = {
    "E2E": end_to_end_of,
    "TTFT": first_token_of,
    "TPOT": per_token_of,
}


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"  # noqa: PLR2004 - three digits say enough


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1%}"


def _milliseconds(seconds: float) -> str:
    return f"{_number(seconds * 1000.0)} ms"


def _time(spread: Spread | None, of: Callable[[Spread], float]) -> str:
    return _UNKNOWN if spread is None else _milliseconds(of(spread))


def _late(figures: Figures) -> str:
    if figures.lateness is None:
        return _UNKNOWN
    return _milliseconds(figures.lateness.p99) + (" LATE" if figures.late else "")


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return _UNKNOWN
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _blocks(
    found: Sequence[Standing],
    cells: Sequence[Cell],
    conditions: Mapping[str, object],
    doubts: Sequence[str],
) -> Iterator[Block]:
    rates = list(dict.fromkeys(one.rate for one in found))
    yield Text("\n\n".join(doubts) or "Nothing stood in the way of this measurement.")
    if len(rates) > 1:
        yield from _ladder(found)
    for rate in rates:
        level = [one for one in found if one.rate == rate]
        yield Heading(_title(rate, conditions))
        yield TableBlock(
            ["", *(one.endpoint for one in level)],
            [[name, *row] for name, row in _rows(level)],
            note=_NOTES,
        )
        yield from _distributions([cell for cell in cells if cell.rate == rate])
        yield from _over_time([cell for cell in cells if cell.rate == rate])
    yield Heading("Conditions")
    yield TableBlock(["what", "value"], [[name, str(value)] for name, value in conditions.items()])


def _ladder(found: Sequence[Standing]) -> Iterator[Block]:
    charts: Mapping[str, Callable[[Standing], float | None]] = {
        "goodput, requests/s": lambda one: one.figures.goodput,
        "tok/s": lambda one: one.figures.tokens_per_second,
        "mean E2E, seconds": lambda one: _mean(one.figures.end_to_end),
        "mean TPOT, seconds": lambda one: _mean(one.figures.per_token),
    }
    names = list(dict.fromkeys(one.endpoint for one in found))
    yield Heading("Over the load")
    for label, value in charts.items():
        series = [Series(name, _points(found, name, value)) for name in names]
        yield Chart(label.partition(",")[0], "offered requests/s", label, series)


def _points(
    found: Sequence[Standing], name: str, value: Callable[[Standing], float | None]
) -> list[tuple[float, float]]:
    points = [(one.rate, value(one)) for one in found if one.endpoint == name]
    return sorted((x, y) for x, y in points if x is not None and y is not None)


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _distributions(cells: Sequence[Cell]) -> Iterator[Block]:
    for name, value in _VALUES.items():
        series = []
        for cell in cells:
            known = sorted(one for one in values(cell.fired, value) if one is not None)
            if known:
                series.append(Series(cell.endpoint, _quantiles(known), style=Style.CURVE))
        if series:
            yield Chart(name, f"{name}, seconds", "share of requests at or below", series)


def _quantiles(known: Sequence[float]) -> list[tuple[float, float]]:
    shares = [step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1)]
    return [(percentile(known, share), share) for share in shares]


def _over_time(cells: Sequence[Cell]) -> Iterator[Block]:
    """In flight at each upstream, as the admin listeners told it; rounds one after the other."""
    for cell in cells:
        readings, before = [], 0.0
        for watched in cell.watched:
            if watched.readings:
                start = watched.readings[0].at
                readings += [(before + one.at - start, one) for one in watched.readings]
                before += watched.seconds
        series = [
            Series(name, [(at, one.in_flight.get(name, 0.0)) for at, one in readings])
            for name in ("spec", "base")
        ]
        if readings:
            title = f"In flight of {cell.endpoint}"
            yield Chart(title, "seconds", "sequences in flight", series)
