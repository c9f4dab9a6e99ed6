"""A calibration for people: a table on a terminal, and the parts of a page to keep."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from proxy.calibration import Calibration, Interval
from proxy.core.words import UpstreamName
from proxy.tools.calibrate.cells import Part
from proxy.tools.calibrate.conclusion import Conclusion
from proxy.tools.report import (
    Block,
    Chart,
    Heading,
    Series,
    Style,
    TableBlock,
    Text,
    Vertical,
)

_POINTS = 60
"""Of a drawn curve."""

_COLUMNS = ("in flight", "server", "requests", "tokens/s", "TPOT ms", "TTFT ms")


def show(found: Calibration, console: Console) -> None:
    """Print the verdict, the cells, and what else there is to say."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "server" else "right")
    for row in _rows(found):
        table.add_row(*(each if isinstance(each, str) else f"{each:.4g}" for each in row))
    console.print(table)
    for sentence in sentences(found):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def sentences(found: Calibration) -> list[str]:
    """What was found, each in a sentence; the verdict first."""
    result = [found.verdict.sentence]
    spec = found.servers.spec
    if spec.acceptance_length is not None:
        result.append(f"Acceptance length {spec.acceptance_length:.2f}.")
    if found.contention is not None:
        both = found.contention
        result.append(
            f"Both at once, {both.concurrency:.0f} each: {both.sum:.2f} of one alone in sum; "
            f'topology = "{both.topology}".'
        )
    if found.long_context is not None:
        long = found.long_context
        where = "none found, as far as was measured"
        if long.crossover is not None:
            where = _interval(long.crossover)
        result.append(f"With prompts of {long.prompt_tokens:.0f} tokens: crossover {where}.")
    notes = found.conditions.get("notes")
    return [*result, *([f"Notes: {notes}"] if notes else [])]


def blocks(found: Calibration, conclusion: Conclusion) -> list[Block]:
    """The page."""
    return [
        Text("\n\n".join(sentences(found))),
        _rate_chart(found, conclusion),
        _time_chart(found, conclusion),
        Heading("What was measured"),
        TableBlock(
            _COLUMNS,
            list(_rows(found)),
            note="One server at a time, a closed loop. TPOT and TTFT are medians as a client sees "
            "them, other requests' prompts included; the curves are without those.",
        ),
        *_both_block(conclusion),
        Heading("Conditions"),
        TableBlock(
            ("what", "value"),
            [(name, str(value)) for name, value in found.conditions.items() if value is not None],
        ),
    ]


def _rows(found: Calibration) -> Iterator[tuple[float | str, ...]]:
    cells = [(cell, name) for name in UpstreamName for cell in found.server(name).cells]
    for cell, name in sorted(cells, key=lambda pair: pair[0].concurrency):
        first = cell.first_token_seconds
        yield (
            cell.concurrency,
            str(name),
            float(cell.requests),
            cell.tokens_per_second,
            cell.seconds_per_token * 1e3,
            "" if first is None else first * 1e3,
        )


def _rate_chart(found: Calibration, conclusion: Conclusion) -> Chart:
    """Total output rate of decoding, with bands, and where the curves cross."""
    series: list[Series] = []
    for name in UpstreamName:
        curve = found.server(name).decode.curve
        band = [
            (n, n / slow, n / fast) for n, fast, slow in conclusion.findings.bands[name] if fast > 0
        ]
        line = [(n, curve.rate(n)) for n in _steps(conclusion)]
        series.append(Series(f"{name}", line, band, Style.CURVE))
        points = [(c.concurrency, c.tokens_per_second) for c in found.server(name).cells]
        series.append(Series(f"{name}, measured with prompts", points, style=Style.POINTS))
    both = [
        (float(m.place.concurrency), m.rate)
        for name in UpstreamName
        for m in conclusion.state.of(Part.BOTH, name)
    ]
    if both:
        level = both[0][0]
        total = sum(rate for _, rate in both)
        series.append(Series("both at once, in sum", [(level, total)], style=Style.POINTS))
    return Chart(
        "Total output rate",
        "sequences in flight (each server)",
        "output tokens/s",
        series,
        log_x=True,
        verticals=_verticals(found),
        note="Curves: decoding alone, as fitted, with a 90 % band.",
    )


def _time_chart(found: Calibration, conclusion: Conclusion) -> Chart:
    series: list[Series] = []
    for name in UpstreamName:
        curve = found.server(name).decode.curve
        band = [(n, low * 1e3, high * 1e3) for n, low, high in conclusion.findings.bands[name]]
        line = [(n, curve.seconds_per_token(n) * 1e3) for n in _steps(conclusion)]
        series.append(Series(f"{name}", line, band, Style.CURVE))
        points = [
            (point.concurrency, point.seconds * 1e3)
            for point in conclusion.findings.fits[name].points
        ]
        series.append(Series(f"{name}, measured", points, style=Style.POINTS))
    return Chart(
        "Time per output token",
        "sequences in flight",
        "ms per token of one sequence",
        series,
        log_x=True,
        verticals=_verticals(found),
        note="Other requests' prompts are taken out, as they are of the curve.",
    )


def _both_block(conclusion: Conclusion) -> Sequence[Block]:
    rows = []
    for name in UpstreamName:
        for together in conclusion.state.of(Part.BOTH, name):
            alone = [
                m.rate
                for m in conclusion.state.of(Part.SWEEP, name)
                if m.place.concurrency == together.place.concurrency
            ]
            rate = sum(alone) / len(alone) if alone else None
            share = None if rate is None else together.rate / rate
            rows.append((str(name), together.place.concurrency, rate, together.rate, share))
    if not rows:
        return ()
    columns = ("server", "in flight", "alone tokens/s", "both tokens/s", "share")
    return (Heading("Both servers at once"), TableBlock(columns, rows))


def _steps(conclusion: Conclusion) -> list[float]:
    reach = conclusion.findings.reach
    return [reach ** (step / _POINTS) for step in range(_POINTS + 1)]


def _verticals(found: Calibration) -> list[Vertical]:
    crossing = found.crossover.in_flight
    if crossing is None:
        return []
    return [
        Vertical(crossing.value, f"N* {crossing.value:.1f}", crossing.low, crossing.high),
    ]


def _interval(found: Interval) -> str:
    return f"at {found.value:.1f} in flight (90 %: {found.low:.1f} to {found.high:.1f})"
