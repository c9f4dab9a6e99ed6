"""A report that somebody can keep: one HTML file with charts as SVG, and nothing from elsewhere.

No script, no font and no address in it: it opens in ten years, from a mail, and prints. Charts are
drawn by matplotlib, which only reports need: `pip install 'specswitch[report]'`. Colours are those
of Okabe and Ito (2008), which people with any kind of colour vision can tell apart; each series has
its own dashes and markers too, so that a print in grey is still read.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias

from proxy.errors import SpecswitchError

if TYPE_CHECKING:  # the extra may not be installed
    from matplotlib.axes import Axes

INSTALL = "pip install matplotlib"

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#a67600")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (1, 1.5), (6, 2, 1, 2), (3, 1.5))
_MARKED = 60
"""With more points than that the markers of a line become a smear, and are left out."""
_INK = "#1a1a1a"
_WIDTH, _HEIGHT = 8.0, 4.2
"""Inches, of which matplotlib counts 72 points each: the width of a printed page."""
_SETTINGS: dict[str, object] = {
    "svg.fonttype": "none",  # text stays text: small, selectable, and read out aloud
    "text.parse_math": False,  # a dollar in a label is a dollar
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
}
_UNSIGNED = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""No metadata: a report of the same data is the same file."""

_NAMED_GROUP = re.compile(r'<g id="[^"]*">')
"""Every chart would name its groups alike, and a page may hold a name once. Nothing refers to them.
What is referred to (markers, clips) is named after its chart's number and what it holds, so the
same data gives the same file."""


class Style(StrEnum):
    """How a series is drawn."""

    LINE = "line"  # points joined
    POINTS = "points"  # measured, and not joined
    CURVE = "curve"  # a fitted curve: no markers
    STEPS = "steps"  # holds its value until the next point


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) of one name, which has one colour in the whole report.

    Two series of one chart may share a name: what was measured, and the curve fitted to it.
    A point that is not finite is a gap, and so is one at or below 0 on a logarithmic axis. `band`
    is (x, low, high): an interval, drawn as a shade behind the line.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] | None = None
    style: Style = Style.LINE


@dataclass(frozen=True, slots=True)
class Vertical:
    """A line across a chart at one x, with its interval where it has one: a crossover."""

    at: float
    label: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over one pair of axes; labels name the unit."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    verticals: Sequence[Vertical] = field(default=())
    note: str = ""


Cell: TypeAlias = str | float | None
"""A number is shown to four digits and at the right; None is unknown. Else format it yourself."""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table; each row has a cell for each column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                wanted = len(self.columns)
                raise ValueError(f"row {number} has {len(row)} cells for {wanted} columns")


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Prose as it is; an empty line parts paragraphs."""

    text: str


Block: TypeAlias = Chart | TableBlock | Heading | Text


def require() -> None:
    """Raise SpecswitchError if no chart can be drawn; ask before an hour of work, not after."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra that only reports need
    except ImportError as exc:
        raise SpecswitchError(
            f"a report needs matplotlib, which is not installed: {INSTALL}"
        ) from exc


def html(title: str, blocks: Sequence[Block]) -> str:
    """The report as one file; raises SpecswitchError where the extra is not installed."""
    require()
    charts = [block for block in blocks if isinstance(block, Chart)]
    names = [_subject(each) for chart in charts for each in chart.series]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    parts = [_block(block, places, str(number)) for number, block in enumerate(blocks)]
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return _PAGE.format(title=escape(title), style=_CSS, body=body)


def _subject(series: Series) -> str:
    """What has one colour in the whole report: `spec` and `spec, measured` are of one thing."""
    return series.name.partition(",")[0]


def _block(block: Block, places: dict[str, int], salt: str) -> str:
    match block:
        case Chart():
            return _figure(block, places, salt)
        case TableBlock():
            return _table(block)
        case Heading():
            return f"<h2>{escape(block.text)}</h2>"
        case Text():
            return _paragraphs(block.text)


def _paragraphs(text: str) -> str:
    parts = [part.strip() for part in text.split("\n\n")]
    return "\n".join(f"<p>{escape(part)}</p>" for part in parts if part)


def _note(text: str, tag: str) -> str:
    return f"<{tag}>{escape(text)}</{tag}>" if text else ""


def _table(block: TableBlock) -> str:
    numbers = [
        all(isinstance(cell, int | float | None) for cell in column)
        for column in zip(*block.rows, strict=True)
    ] or [False] * len(block.columns)
    kinds = [' class="n"' if number else "" for number in numbers]

    def line(tag: str, cells: Sequence[Cell]) -> str:
        return "".join(
            f"<{tag}{kind}>{_cell(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)
        )

    rows = "\n".join(f"<tr>{line('td', row)}</tr>" for row in block.rows)
    head = f"<thead><tr>{line('th', block.columns)}</tr></thead>"
    return (
        f'<div class="wide"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'
        f"{_note(block.note, 'p')}"
    )


def _cell(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not isfinite(cell)):
        return "\N{EN DASH}"
    return escape(cell) if isinstance(cell, str) else _number(cell)


def _number(value: float) -> str:
    """Four digits, without an exponent where a person would not write one."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"  # noqa: PLR2004


def _figure(chart: Chart, places: dict[str, int], salt: str) -> str:
    caption = _note(chart.note, "figcaption")
    label = escape(f"{chart.title}: {chart.y_label} against {chart.x_label}", quote=True)
    return (
        f"<figure><h3>{escape(chart.title)}</h3>"
        f'<div role="img" aria-label="{label}">{_svg(chart, places, salt)}</div>{caption}</figure>'
    )


def _svg(chart: Chart, places: dict[str, int], salt: str) -> str:
    # Figure and its own SVG writer, not pyplot: no window system, no state of the whole process.
    from matplotlib import style  # noqa: PLC0415 - an extra that only reports need
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    out = io.StringIO()
    settings = _SETTINGS | {"svg.hashsalt": salt}
    with style.context(["default", settings]):  # whatever matplotlibrc says
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
        _scale(axes, chart)
        drawn = [_draw(axes, chart, each, places[_subject(each)]) for each in chart.series]
        for vertical in chart.verticals:
            _mark(axes, chart, vertical)
        if not any(drawn):
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center")
            axes.set(xticks=[], yticks=[])
        lines, labels = axes.get_legend_handles_labels()
        named = dict(zip(reversed(labels), reversed(lines), strict=True))  # the first of a name
        if named:
            figure.legend(
                list(named.values())[::-1],
                list(named)[::-1],
                loc="outside upper left",
                ncols=3,
                frameon=False,
            )
        figure.savefig(out, format="svg", metadata=_UNSIGNED)
    drawing = _NAMED_GROUP.sub("<g>", out.getvalue())
    return drawing[drawing.index("<svg") :]  # inside a page there is no XML declaration


def _scale(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - as above

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis, log in ((axes.xaxis, chart.log_x), (axes.yaxis, chart.log_y)):
        if log:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(plain)


def _draw(axes: "Axes", chart: Chart, series: Series, place: int) -> bool:
    """Whether there was anything to draw."""
    points = [(x, y) if _fits(chart, x, y) else (x, float("nan")) for x, y in series.points]
    points = [(x, y) for x, y in points if _fits_x(chart, x)]
    colour = _COLOURS[place % len(_COLOURS)]
    few = len(points) <= _MARKED and series.style not in {Style.CURVE, Style.STEPS}
    marked = few or series.style is Style.POINTS or _isolated(points)
    (line,) = axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        label=series.name if not series.name.startswith("_") else f"\u200b{series.name}",
        linewidth=1.6,
        marker=_MARKERS[place % len(_MARKERS)] if marked else "",
        markersize=4.5,
        linestyle="none" if series.style is Style.POINTS else "-",
        drawstyle="steps-post" if series.style is Style.STEPS else "default",
    )
    if series.style not in {Style.POINTS, Style.STEPS}:
        line.set_dashes(_DASHES[place % len(_DASHES)])
    band = [(x, low, high) for x, low, high in series.band or () if _fits(chart, x, low, high)]
    if band:
        xs, lows, highs = zip(*band, strict=True)
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.18, linewidth=0)
    return bool(band) or any(isfinite(y) for _, y in points)


def _mark(axes: "Axes", chart: Chart, vertical: Vertical) -> None:
    if not _fits_x(chart, vertical.at):
        return
    axes.axvline(vertical.at, color=_INK, linewidth=1.0, dashes=(4, 3))
    low, high = vertical.low, vertical.high
    if low is not None and high is not None and _fits_x(chart, low) and _fits_x(chart, high):
        axes.axvspan(low, high, color=_INK, alpha=0.08, linewidth=0)
    axes.annotate(
        vertical.label,
        (vertical.at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
        fontsize=9,
    )


def _fits_x(chart: Chart, x: float) -> bool:
    return isfinite(x) and (x > 0 or not chart.log_x)


def _fits(chart: Chart, x: float, *ys: float) -> bool:
    return _fits_x(chart, x) and all(isfinite(y) and (y > 0 or not chart.log_y) for y in ys)


def _isolated(points: Sequence[tuple[float, float]]) -> bool:
    """Whether no two neighbours are there to be joined: a line alone would show nothing."""
    return not any(isfinite(left[1]) and isfinite(right[1]) for left, right in pairwise(points))


_CSS = """\
:root { color-scheme: light; }
body { background: #fff; color: #1a1a1a; font: 16px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
figure { margin: 1.5rem 0; break-inside: avoid; }
figure svg { width: 100%; height: auto; }
figcaption, .wide + p { color: #444; font-size: 0.9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ccc; padding: 0.25rem 0.9rem 0.25rem 0; text-align: left; }
th { border-bottom: 2px solid #1a1a1a; } .n { text-align: right; }
tr { break-inside: avoid; }
@media print {
  body { font-size: 11pt; margin: 0; max-width: none; }
  h2, h3 { break-after: avoid; }
}
"""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
