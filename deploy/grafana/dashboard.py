"""The dashboard of specswitch, as code: `python -m deploy.grafana.dashboard` writes its JSON.

Edit this and not the JSON; a test holds them together. The first row is for a glance: is
speculation paying right now? The ids of panels stay as they are, since alerts name them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.parts import SOURCE, Color, ours
from deploy.grafana.servers import health, itself, of_engines
from deploy.grafana.speculation import paying, routing

UID: Final = "specswitch"
FILE: Final = Path(__file__).parent / "dashboards" / "specswitch.json"


def variables() -> Iterator[build.DatasourceVariable | build.QueryVariable]:
    """Which Prometheus, and which specswitch in it; the pair behind it has a job of its own."""
    yield (
        build.DatasourceVariable("datasource")
        .label("Prometheus")
        .type("prometheus")
        .current(VariableOption(text="Prometheus", value="prometheus", selected=True))
    )
    for name, label, query in (
        ("job", "Job", "label_values(specswitch_build_info, job)"),
        ("instance", "Instance", 'label_values(specswitch_build_info{job="$job"}, instance)'),
        ("engines", "Engines' job", "label_values(sglang:num_running_reqs, job)"),
    ):
        yield (
            build.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .hide(VariableHide.DONT_HIDE)
        )


def annotations() -> Iterator[build.AnnotationQuery]:
    """What happened, as lines through every panel."""
    for name, expr, color, title, text in (
        (
            "Switches",
            f"sum by (to, reason) (increase({ours('mode_switches_total')}[1m])) > 0",
            Color.LINE,
            "to {{to}}",
            "{{reason}}",
        ),
        (
            "Reloads",
            f"increase({ours('config_reloads_total')}[1m]) > 0",
            Color.GOOD,
            "reload",
            "{{result}}",
        ),
        (
            "Ejections",
            f"sum by (upstream, cause) (increase({ours('ejections_total')}[1m])) > 0",
            Color.BAD,
            "{{upstream}} taken out",
            "{{cause}}",
        ),
    ):
        # The step is the window: what happened is seen once.
        query = prometheus.Dataquery().datasource(SOURCE).expr(expr).ref_id("Anno").interval("1m")
        yield (
            build.AnnotationQuery()
            .name(name)
            .datasource(SOURCE)
            .enable(enable=True)
            .icon_color(color)
            .target(query)
            .title_format(title)
            .text_format(text)
        )


ROWS: Final = (
    (100, "Is speculation paying right now?", paying),
    (200, "Routing", routing),
    (300, "Engines", of_engines),
    (400, "Health and failures", health),
    (500, "specswitch itself", itself),
)


def dashboard() -> build.Dashboard:
    """All of it."""
    made = (
        build.Dashboard("specswitch")
        .uid(UID)
        .description("A pair of SGLang servers, one with speculative decoding, behind specswitch.")
        .tags(["specswitch", "sglang"])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            build.DashboardLink("Alert rules")
            .type(DashboardLinkType.LINK)
            .icon("bell")
            .url("/alerting/list?search=Specswitch")
        )
    )
    for variable in variables():
        made.with_variable(variable)
    for annotation in annotations():
        made.annotation(annotation)
    for number, title, panels in ROWS:
        made.with_row(build.Row(title).id(number))
        for panel in panels():
            made.with_panel(panel)
    return made


def text() -> str:
    """The JSON, as it is committed."""
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard().build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
