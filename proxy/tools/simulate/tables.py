"""What a simulation found, for people and programs: tables, an object, the blocks of a report."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text as Line

from proxy.core.words import UpstreamName
from proxy.sim.compare import Comparison, Figure, mean_e2e, p95_e2e
from proxy.sim.measures import POISSON, Measure
from proxy.sim.policies import Policy, Setting
from proxy.sim.results import Result
from proxy.sim.run import Moment, Run
from proxy.sim.workloads import Workload
from proxy.tools.report import Block, Chart, Heading, Series, Style, TableBlock, Text

JSON: TypeAlias = "str | float | int | bool | list[JSON] | dict[str, JSON] | None"

Shown: TypeAlias = tuple[Comparison, Workload | None, Run | None]
"""A comparison, and one run of ours out of it that is shown over time."""

_WORDS: Final = frozenset({"policy", "profile", "measure"})
"""Columns of words; all others are figures."""

_MOST_POINTS: Final = 1500
"""Of one line in a chart; more are not seen."""

_Detail: TypeAlias = tuple[str, Figure, str]

_TIMES: Final[tuple[_Detail, ...]] = (
    ("p50", lambda r: r.e2e.p50, "{:.2f}"),
    ("p95", p95_e2e, "{:.2f}"),
    ("p99", lambda r: r.e2e.p99, "{:.2f}"),
    ("quiet", lambda r: r.quiet, "{:.2f}"),
    ("busy", lambda r: r.busy, "{:.2f}"),
    ("TTFT p95", lambda r: r.first_token.p95, "{:.2f}"),
    ("TPOT ms", lambda r: 1000.0 * r.per_token.mean, "{:.1f}"),
)
_SHARES: Final[tuple[_Detail, ...]] = (
    ("tok/s", lambda r: r.tokens_per_second, "{:.0f}"),
    ("good", lambda r: r.goodput, "{:.0%}"),
    ("per min", lambda r: r.switches_per_minute, "{:.2f}"),
    ("both active", lambda r: r.both_active, "{:.0%}"),
    ("on spec", lambda r: r.on_spec, "{:.0%}"),
)
_OF_TWO: Final = frozenset({"per min", "both active", "on spec"})
"""Columns that mean nothing where there are no two engines."""
_OF_TWO_FIELDS: Final = frozenset({"switches_per_minute", "both_active", "on_spec", "peak_spec"})
"""The same of a result."""
_ONE_ENGINE: Final = frozenset({Policy.IDEAL, Policy.IDEAL_10})

_LEGEND: Final = (
    "Mean end-to-end seconds. to ideal: relative to one engine that switches speculation at every "
    "step, geometric mean over workloads and seeds. tail: p95 relative to always-base, worst "
    "workload. per min: switches a minute. good: the share of requests within the objective. quiet "
    "and busy: mean of the half with the fewest and the most requests around them."
)


def compared(comparison: Comparison) -> list[Group]:
    """Mean times by workload, what they amount to, and with one workload its details."""
    names = [workload.name for workload in comparison.plan.workloads]
    levels = [name for name in names if name.startswith(POISSON)]
    others = [name for name in names if name not in levels]
    # Apart, so that each fits a terminal.
    shown = [
        _table(_title(comparison), *_ladder(comparison, part)) for part in (levels, others) if part
    ]
    if len(names) == 1:
        return shown + [
            _table(f"{names[0]}: {title}", *_details(comparison, names[0], details))
            for title, details in (("seconds", _TIMES), ("shares", _SHARES))
        ]
    return [*shown, _table("all workloads", *_overall(comparison))]


def measures_table(found: Sequence[Measure]) -> Group:
    """Each measure with its bound."""
    return _table("measures", *_measures(found))


def blocks(shown: Sequence[Shown], found: Sequence[Measure]) -> list[Block]:
    """The whole report."""
    parts: list[Block] = [Text(_LEGEND)]
    if found:
        parts += [Heading("Measures"), TableBlock(*_measures(found))]
    for comparison, workload, one_run in shown:
        parts += _comparison_blocks(comparison)
        if workload is not None and one_run is not None:
            parts += _run_blocks(comparison.plan.setting, workload, one_run)
    return parts


def as_json(comparisons: Sequence[Comparison], found: Sequence[Measure]) -> dict[str, JSON]:
    """Everything; what is infinite, or means nothing of that policy, is null."""
    return {
        "comparisons": [_comparison_json(comparison) for comparison in comparisons],
        "measures": [
            {
                "profile": one.profile,
                "what": one.what,
                "figure": _finite(one.figure),
                "bound": one.bound,
                "holds": one.holds,
            }
            for one in found
        ],
    }


def _comparison_json(comparison: Comparison) -> JSON:
    plan = comparison.plan
    known = plan.setting.knowledge
    return {
        "profile": plan.setting.profile.name,
        "contention": plan.setting.contention,
        "engine": plan.setting.engines,
        "crossover": {
            "in_flight": _finite(known.crossover),
            "tokens_per_second": _finite(known.crossover_rate),
        },
        "objective": asdict(plan.objective),
        "results": [
            {
                "policy": key.policy,
                "workload": key.workload,
                "seed": key.seed,
                **_result_json(key.policy, result),
            }
            for key, result in comparison.ordered()
        ],
    }


def _result_json(policy: Policy, result: Result) -> dict[str, JSON]:
    known = {name: _strict(value) for name, value in asdict(result).items()}
    return known | dict.fromkeys(_OF_TWO_FIELDS if policy in _ONE_ENGINE else ())


def _strict(value: float | dict[str, float]) -> JSON:
    """A figure or a spread: a time of no request at all is infinite, and so not known."""
    if isinstance(value, dict):
        return {name: _finite(figure) for name, figure in value.items()}
    return _finite(value)


def _finite(figure: float) -> float | None:
    """JSON has no infinity."""
    return figure if isfinite(figure) else None


def _title(comparison: Comparison) -> str:
    plan = comparison.plan
    known = plan.setting.knowledge
    return (
        f"{plan.setting.profile.name}: mean E2E, s; N* {known.crossover:.2f}, "
        f"λ* {known.crossover_rate:.0f} tok/s, eta {plan.setting.contention:g}"
    )


_Rows: TypeAlias = tuple[list[str], list[list[str]]]


def _ladder(comparison: Comparison, names: Sequence[str]) -> _Rows:
    """Policies by workloads."""
    columns = ["policy", *(name.removeprefix(POISSON) for name in names)]
    rows = [
        [policy, *(f"{comparison.mean(policy, name, mean_e2e):.2f}" for name in names)]
        for policy in comparison.plan.policies
    ]
    if comparison.has_fixed:
        best = [f"{comparison.best_fixed(name, mean_e2e):.2f}" for name in names]
        rows.append(["best fixed mode", *best])
    return columns, rows


def _overall(comparison: Comparison) -> _Rows:
    columns = ["policy", "to ideal", "worst", "tail", "per min", "both active", "on spec"]
    return columns, [[policy, *_summary(comparison, policy)] for policy in comparison.plan.policies]


def _summary(comparison: Comparison, policy: Policy) -> list[str]:
    names = [workload.name for workload in comparison.plan.workloads]
    cells = ["", "", ""]
    if Policy.IDEAL in comparison.plan.policies:
        to_ideal = [comparison.ratio(policy, Policy.IDEAL, name, mean_e2e) for name in names]
        whole = comparison.ratio_over(policy, Policy.IDEAL, names, mean_e2e)
        cells[:2] = [f"{whole:.3f}", f"{max(to_ideal):.2f}"]
    if Policy.ALWAYS_BASE in comparison.plan.policies:
        tail = max(comparison.ratio(policy, Policy.ALWAYS_BASE, name, p95_e2e) for name in names)
        cells[2] = f"{tail:.2f}"
    of_two = [
        _cell(policy, detail, comparison.overall(policy, detail[1]))
        for detail in _SHARES
        if detail[0] in _OF_TWO
    ]
    return [*cells, *of_two]


def _details(comparison: Comparison, workload: str, details: Sequence[_Detail]) -> _Rows:
    columns = ["policy", *(name for name, _, _ in details)]
    rows = [
        [
            policy,
            *(_cell(policy, one, comparison.mean(policy, workload, one[1])) for one in details),
        ]
        for policy in comparison.plan.policies
    ]
    return columns, rows


def _cell(policy: Policy, detail: _Detail, figure: float) -> str:
    """The figure as it is shown; blank where it means nothing or is of no request at all."""
    name, _, form = detail
    means = isfinite(figure) and not (name in _OF_TWO and policy in _ONE_ENGINE)
    return form.format(figure) if means else ""


def _measures(found: Sequence[Measure]) -> _Rows:
    rows = [
        [
            one.profile,
            one.what,
            f"{one.figure:.3f}",
            f"{one.bound:.2f}",
            "yes" if one.holds else "NO",
        ]
        for one in found
    ]
    return ["profile", "measure", "figure", "at most", "holds"], rows


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Group:
    """A line and a table: a title of the table's own is broken to the table's width."""
    table = Table(box=SIMPLE_HEAD)
    for place, column in enumerate(columns):
        side: JustifyMethod = "left" if column in _WORDS else "right"
        table.add_column(column, justify=side, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    return Group(Line(title, style="bold"), table)


def _comparison_blocks(comparison: Comparison) -> list[Block]:
    names = [workload.name for workload in comparison.plan.workloads]
    ladder = TableBlock(*_ladder(comparison, names))
    parts: list[Block] = [Heading(_title(comparison)), ladder]
    if len(names) > 1:
        parts.append(TableBlock(*_overall(comparison)))
    parts += [
        TableBlock(
            *_details(comparison, workload.name, _TIMES + _SHARES),
            note=f"{workload.name}: {workload.what}",
        )
        for workload in comparison.plan.workloads
    ]
    levels = [w for w in comparison.plan.workloads if w.name.startswith(POISSON)]
    if len(levels) > 1:
        parts.insert(1, _ladder_chart(comparison, levels))
    return parts


def _ladder_chart(comparison: Comparison, levels: Sequence[Workload]) -> Chart:
    series = [
        Series(
            policy,
            [
                (100.0 * (level.load or 0.0), comparison.mean(policy, level.name, mean_e2e))
                for level in levels
            ],
        )
        for policy in comparison.plan.policies
    ]
    return Chart(
        title="Load ladder",
        x_label="offered load, % of base's capacity",
        y_label="mean end-to-end time, s",
        series=series,
        log_y=True,
    )


def _run_blocks(setting: Setting, workload: Workload, one_run: Run) -> list[Block]:
    moments = _thinned(one_run.moments)
    spec = [(moment.at, float(moment.spec)) for moment in moments]
    base = [(moment.at, float(moment.base)) for moment in moments]
    chart = Chart(
        title=f"One run of ours on {workload.name}: {len(one_run.changes)} switches",
        x_label="virtual time, s",
        y_label="sequences in flight",
        series=[
            Series("spec", spec, style=Style.STEPS),
            Series("base", base, style=Style.STEPS),
            Series("mode (raised: spec)", _mode(one_run), style=Style.STEPS),
        ],
        note=f"N* is {setting.knowledge.crossover:.2f} sequences.",
    )
    return [chart]


def _mode(one_run: Run) -> list[tuple[float, float]]:
    """A line below the axis that is up while new requests go to spec."""
    ups = {UpstreamName.SPEC: -1.0, UpstreamName.BASE: -2.0}
    points = [(change.at, ups[change.to]) for change in one_run.changes]
    if not one_run.moments:
        return points
    first, last = one_run.moments[0], one_run.moments[-1]
    begins = ups[UpstreamName.SPEC if first.spec else UpstreamName.BASE]
    return [(first.at, begins), *points, (last.at, points[-1][1] if points else begins)]


def _thinned(moments: Sequence[Moment]) -> Sequence[Moment]:
    """Every so-manieth."""
    return moments[:: max(1, len(moments) // _MOST_POINTS)]
