"""What the dashboard is made of: queries with the variables in them, and panels of one look.

`dashboard.py` says what is shown. Wherever a color stands for an upstream it is the same one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLink,
    DashboardLinkType,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
TOKENS_PER_SECOND: Final = "suffix: tok/s"
"""A unit of our own, in the form that Grafana takes for such."""
_RUNBOOKS: Final = "docs/operations.md"


class Color(StrEnum):
    """Named colors of Grafana's palette, which it adapts to a light and a dark theme."""

    SPEC = "blue"
    BASE = "orange"
    GOOD = "green"
    WARN = "yellow"
    BAD = "red"
    LINE = "purple"  # a threshold that is itself measured: N*, λ*


Panels = Sequence[timeseries.Panel | statetimeline.Panel | stat.Panel]

UPSTREAMS: Final[Mapping[str, Color]] = {"spec": Color.SPEC, "base": Color.BASE}


# Queries ---------------------------------------------------------------------------------------


def ours(name: str, matchers: str = "") -> str:
    """A selector of one of specswitch's series, or of a recording rule about them."""
    full = name if ":" in name else f"specswitch_{name}"
    given = f",{matchers}" if matchers else ""
    return f'{full}{{job="$job",instance="$instance"{given}}}'


def engines(name: str) -> str:
    """A selector of one of SGLang's own series."""
    return f'sglang:{name}{{job="$engines"}}'


def rate(selector: str) -> str:
    """How fast a counter grows, a second."""
    return f"rate({selector}[$__rate_interval])"


def quantile(share: float, histogram: str, by: str = "") -> str:
    """A quantile of one of specswitch's histograms."""
    labels = f"le,{by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate(ours(f'{histogram}_bucket'))}))"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    expr: str
    legend: str

    def target(self, ref: str) -> prometheus.Dataquery:
        """As Grafana has it; `ref` names it within its panel."""
        made = prometheus.Dataquery().datasource(SOURCE).ref_id(ref)
        return made.expr(self.expr).legend_format(self.legend).range()


def grown(counter: str) -> str:
    """What was counted since the point before, as near as two scrapes can tell."""
    return f"increase({ours(counter)}[$__rate_interval])"


def by_code(matchers: str) -> str:
    """Answers by their status, without those that there are none of."""
    return f"sum by (code) ({rate(ours('responses_total', matchers))}) > 0"


# Panels ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What every panel says of itself."""

    id: int
    """Alerts name a panel by it, so it stays."""
    title: str
    what: str
    """How to read it, in a sentence or two."""
    width: int
    """Of 24 columns."""
    height: int = 8
    alerts: Sequence[str] = ()
    """The alerts whose matter is shown."""

    @property
    def description(self) -> str:
        """With the alerts and their runbooks."""
        lines = [f"{alert}: see {_RUNBOOKS}#{alert.lower()}" for alert in self.alerts]
        return "\n\n".join([self.what, *lines])

    @property
    def links(self) -> list[Builder[DashboardLink]]:
        """To the alert rules, within the same Grafana."""
        return [
            build.DashboardLink(alert)
            .type(DashboardLinkType.LINK)
            .url(f"/alerting/list?search={alert}")
            .target_blank(target_blank=True)
            for alert in self.alerts
        ]


def lines(about: About, unit: str, *queries: Query, most: float | None = None) -> timeseries.Panel:
    """Curves over time; `most` is the top of the axis, where there is one."""
    panel = (
        timeseries.Panel()
        .id(about.id)
        .title(about.title)
        .description(about.description)
        .links(about.links)
        .span(about.width)
        .height(about.height)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .line_width(1.5)
        .fill_opacity(8)
        .show_points(VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    if most is not None:
        panel.max(most)
    for place, query in enumerate(queries):
        panel.with_target(query.target(_ref(place)))
    for name, color in UPSTREAMS.items():
        panel.override_by_regexp(f"/^{name}( p[0-9]+)?$/", [fixed(color)])
        # One of several curves of an upstream: "spec idle", "calm, to spec".
        panel.override_by_regexp(f"/^{name}(:| (?!p[0-9])).+|, to {name}$/", [shade(color)])
    return panel


def stacked(about: About, unit: str, *queries: Query) -> timeseries.Panel:
    """Areas on top of each other: parts of a whole."""
    panel = lines(about, unit, *queries)
    return panel.fill_opacity(35).stacking(
        common.StackingConfig().mode(StackingMode.NORMAL).group("A")
    )


def marked(panel: timeseries.Panel, *names: str) -> timeseries.Panel:
    """The curves of these names drawn as what they are: thresholds, not parts of the load."""
    for name in names:
        panel.override_by_name(
            name,
            [
                fixed(Color.LINE),
                DynamicConfigValue("custom.fillOpacity", 0),
                DynamicConfigValue("custom.lineWidth", 2),
                DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
                DynamicConfigValue("custom.stacking", {"mode": "none", "group": "A"}),
            ],
        )
    return panel


def late(panel: timeseries.Panel, *names: str) -> timeseries.Panel:
    """The curves whose name ends so dashed: the slow end of what the others are the middle of."""
    for name in names:
        panel.override_by_regexp(
            f"/ {name}$/",
            [DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 4]})],
        )
    return panel


def limited(panel: timeseries.Panel, *limits: tuple[float | None, Color]) -> timeseries.Panel:
    """With a line where an alert is."""
    style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    return panel.thresholds(steps(*limits)).thresholds_style(style)


def events(about: About, *queries: Query) -> timeseries.Panel:
    """A bar for what happened since the one before."""
    return (
        lines(about, units.Short, *queries)
        .draw_style(GraphDrawStyle.BARS)
        .fill_opacity(60)
        .line_width(0)
        .decimals(0)
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    )


def bands(about: About, *queries: Query) -> statetimeline.Panel:
    """A band over time for each query; what its values mean is for `meaning` to say."""
    panel = (
        statetimeline.Panel()
        .id(about.id)
        .title(about.title)
        .description(about.description)
        .links(about.links)
        .span(about.width)
        .height(about.height)
        .datasource(SOURCE)
        .show_value(VisibilityMode.AUTO)
        .row_height(0.85)
        .merge_values(merge_values=True)
        .fill_opacity(80)
        .line_width(0)
        .color_scheme(build.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .legend(
            common.VizLegendOptions()
            .show_legend(show_legend=False)
            .display_mode(LegendDisplayMode.LIST)
        )
    )
    for place, query in enumerate(queries):
        panel.with_target(query.target(_ref(place)))
    return panel


def figure(about: About, unit: str, query: Query) -> stat.Panel:
    """One number, as it is now, above its course."""
    return (
        stat.Panel()
        .id(about.id)
        .title(about.title)
        .description(about.description)
        .links(about.links)
        .span(about.width)
        .height(about.height)
        .datasource(SOURCE)
        .unit(unit)
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query.target("A"))
    )


def meaning(words: Mapping[int, tuple[str, Color]]) -> list[ValueMapping]:
    """What numbers mean, and in which color."""
    shown = {
        str(value): ValueMappingResult(text=text, color=color, index=place)
        for place, (value, (text, color)) in enumerate(words.items())
    }
    return [ValueMap(options=shown)]


def steps(*limits: tuple[float | None, Color]) -> build.ThresholdsConfig:
    """Colors from a value upwards; the first one is from everywhere."""
    return build.ThresholdsConfig().steps([Threshold(value, color) for value, color in limits])


def fixed(color: Color) -> DynamicConfigValue:
    """An override: this color."""
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})


def shade(color: Color) -> DynamicConfigValue:
    """An override: this color, lighter or darker from curve to curve."""
    return DynamicConfigValue("color", {"mode": FieldColorModeId.SHADES, "fixedColor": color})


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
    )


def _ref(place: int) -> str:
    return chr(ord("A") + place)
