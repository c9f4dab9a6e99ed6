"""Reports: one file, everything escaped, nothing from elsewhere, and no misread data."""

import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from proxy.errors import SpecswitchError
from proxy.tools.report import (
    Block,
    Chart,
    Heading,
    Series,
    Style,
    TableBlock,
    Text,
    Vertical,
    html,
    require,
)

NAN = float("nan")


def chart(*series: Series, log: bool = False, verticals: tuple[Vertical, ...] = ()) -> Chart:
    """A chart of `series`."""
    return Chart("Rate", "in flight", "tokens/s", series, log_x=log, log_y=log, verticals=verticals)


def svgs(page: str) -> list[str]:
    """The drawings of a page."""
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def words(page: str) -> list[str]:
    """The text in the drawings of a page, piece by piece."""
    trees = [ET.fromstring(svg) for svg in svgs(page)]  # noqa: S314 - our own drawing
    return [each.text or "" for tree in trees for each in tree.iter() if each.tag.endswith("}text")]


class Tags(HTMLParser):
    """Whether what is opened is closed again."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.spoken: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what was opened."""
        self.seen.add(tag)
        self.spoken += [value or "" for name, value in attrs if name == "aria-label"]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        names = {"href", "src", "xlink:href", "action"}
        self.links += [value or "" for name, value in attrs if name in names]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opened and closed in one."""
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Only the last one opened may be closed."""
        assert self.open.pop() == tag


def read(page: str) -> Tags:
    """The page's tags; fails where one is not closed."""
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


EVERYTHING: list[Block] = [
    Heading("Load"),
    Text("One.\n\nTwo."),
    chart(
        Series("spec", [(1, 10), (2, 20)], band=[(1, 9, 11), (2, 18, 22)]),
        Series("spec", [(1, 10), (1.5, 14), (2, 20)], style=Style.CURVE),
        Series("base", [(1, 5), (2, NAN), (3, 9)]),
        Series("steps", [(i, i % 7) for i in range(100)], style=Style.STEPS),
        Series("seen", [(1, 3)], style=Style.POINTS),
        verticals=(Vertical(1.7, "N* 1.7", 1.5, 1.9), Vertical(2.0, "cap")),
    ),
    chart(Series("base", [(1, 5), (2, 6)]), log=True),
    TableBlock(["cell", "tok/s"], [["spec", 353.98], ["base", None]], note="medians"),
]


def test_a_report_is_one_well_formed_file_with_nothing_from_elsewhere() -> None:
    """Tags close, names are unique, and no script, style sheet, picture or address is loaded."""
    page = html("Calibration", EVERYTHING)
    tags = read(page)
    assert tags.seen.isdisjoint({"script", "link", "img", "iframe", "object", "image"})
    assert all(link.startswith("#") for link in tags.links)
    assert not re.search(r"@import|url\((?!#)", page)
    assert len(tags.ids) == len(set(tags.ids))
    assert {f"#{name}" for name in tags.ids} >= set(tags.links)
    assert len(page) < 60_000
    assert len(svgs(page)) == 2


def test_the_same_data_gives_the_same_file() -> None:
    """No date and no random name: two reports can be compared."""
    assert html("x", EVERYTHING) == html("x", EVERYTHING)


def test_the_report_reads_nothing_of_a_matplotlibrc() -> None:
    """A user's own settings, TeX for one, do not reach the report, and theirs are left as set."""
    import matplotlib as mpl  # noqa: PLC0415 - only here

    plain = html("x", EVERYTHING)
    with mpl.rc_context({"text.usetex": True, "svg.fonttype": "path", "axes.facecolor": "black"}):
        assert html("x", EVERYTHING) == plain
        assert mpl.rcParams["text.usetex"] is True


HOSTILE = "<script>alert('1')</script> & \"$x_1$\" _"


def test_everything_that_is_shown_is_escaped() -> None:
    """Titles, prose, labels, names, notes and cells may hold anything, and are shown as it is."""
    drawn = Chart(
        HOSTILE,
        HOSTILE,
        HOSTILE,
        [Series(HOSTILE, [(1, 1)]), Series("_hidden", [(1, 2)])],
        verticals=[Vertical(1.0, HOSTILE)],
        note=HOSTILE,
    )
    table = TableBlock([HOSTILE], [[HOSTILE]], note=HOSTILE)
    page = html(HOSTILE, [Heading(HOSTILE), Text(HOSTILE), drawn, table])
    tags = read(page)
    assert "script" not in tags.seen
    assert tags.spoken == [f"{HOSTILE}: {HOSTILE} against {HOSTILE}"]
    # x and y label, the name in the legend, the vertical's label
    assert words(page).count(HOSTILE) == 4
    assert any(word.endswith("_hidden") for word in words(page))


def test_one_name_has_one_colour_in_the_whole_report() -> None:
    """Spec is spec in each chart, whatever else is drawn; a name stands in a legend once."""
    page = html(
        "x",
        [
            chart(Series("spec", [(1, 1), (2, 2)]), Series("base", [(1, 1), (2, 2)])),
            chart(Series("base", [(1, 1), (2, 2)]), Series("base", [(1, 3)], style=Style.POINTS)),
        ],
    )
    first, second = svgs(page)
    assert "#0072b2" in first
    assert "#d55e00" in first
    assert "#d55e00" in second
    assert "#0072b2" not in second
    assert words(page).count("base") == 2


def test_what_was_measured_of_a_thing_has_its_colour() -> None:
    """The name up to a comma is the thing; both stand in the legend."""
    measured = Series("spec, measured", [(1, 1), (2, 2)], style=Style.POINTS)
    page = html("x", [chart(Series("spec", [(1, 1), (2, 2)]), measured)])
    (only,) = svgs(page)
    assert "#0072b2" in only
    assert "#d55e00" not in only


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize(
    "points", [[], [(1.0, NAN)], [(NAN, 1.0)], [(float("inf"), 1.0)], [(1.0, float("-inf"))]]
)
def test_a_chart_without_data_says_so(points: list[tuple[float, float]], *, log: bool) -> None:
    """Empty, NaN and infinite data give an empty chart with a word, not an error or a line."""
    shown = words(html("x", [chart(Series("spec", points), log=log)]))
    assert sorted(shown) == ["in flight", "no data", "spec", "tokens/s"]


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm() -> None:
    """Zero and below are gaps there, in points, bands and verticals, and no warning."""
    page = html(
        "x",
        [
            chart(
                Series("spec", [(0, 1), (1, 0), (2, 3), (4, 5)], band=[(0, 1, 2), (2, 0, 1)]),
                log=True,
                verticals=(Vertical(0.0, "at zero"), Vertical(3.0, "N*", 0.0, 4.0)),
            )
        ],
    )
    assert "N*" in words(page)
    assert "at zero" not in words(page)
    assert "no data" not in words(page)


def test_axes_show_plain_numbers() -> None:
    """A concurrency of 100 is written 100, not as a power."""
    page = html("x", [chart(Series("spec", [(1, 0.002), (100, 0.5)]), log=True)])
    assert {"1", "10", "100", "0.005"} <= set(words(page))


def markers(points: list[tuple[float, float]], style: Style) -> int:
    """How many points of a series are marked, its place in the legend aside."""
    (svg,) = svgs(html("x", [chart(Series("spec", points, style=style))]))
    return max(0, len(re.findall(r"<use [^>]*fill: #0072b2", svg)) - 1)


def test_a_lone_point_is_seen() -> None:
    """A line of one point, or one cut by gaps, gets a marker, whatever its style."""
    for style in Style:
        assert markers([(1, 1), (2, NAN)], style) == 1
        assert markers([(1, 1), (2, NAN), (3, 1)], style) == 2
    joined = {style: markers([(1, 1), (2, 1), (3, 1)], style) for style in Style}
    assert joined == {Style.LINE: 3, Style.POINTS: 3, Style.CURVE: 0, Style.STEPS: 0}


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, "\N{EN DASH}"),
        (NAN, "\N{EN DASH}"),
        (float("inf"), "\N{EN DASH}"),
        (0, "0"),
        (1.23456, "1.235"),
        (353.98, "354"),
        (12345.6, "12346"),
        (-1234.5, "-1234"),
        (0.00012, "0.00012"),
        (3e12, "3e+12"),
        ("a<b", "a&lt;b"),
    ],
)
def test_cells(cell: str | float | None, shown: str) -> None:
    """A number to four digits without a needless exponent; unknown is a dash."""
    assert f">{shown}</td>" in html("x", [TableBlock(["c"], [[cell]])])


def test_numbers_stand_at_the_right() -> None:
    """A column of numbers is aligned by their ends, one with text is not; no rows are no error."""
    page = html("x", [TableBlock(["a", "b"], [["x", 1], ["y", None]])])
    assert '<th class="n">b</th>' in page
    assert "<th>a</th>" in page
    read(html("x", [TableBlock(["a", "b"], [])]))


def test_a_row_of_another_length_is_refused() -> None:
    """The mistake is named where it is made."""
    with pytest.raises(ValueError, match="row 2 has 1 cells for 2 columns"):
        TableBlock(["a", "b"], [["x", 1], ["y"]])


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is missing the error holds the command."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SpecswitchError, match=r"pip install matplotlib"):
        require()
    with pytest.raises(SpecswitchError):
        html("x", [])
