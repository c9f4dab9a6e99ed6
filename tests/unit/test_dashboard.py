"""The dashboard as code: what is committed is what it makes, and what it shows exists."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana import dashboard, parts
from tests.docs.test_docs_metrics import scraped
from tests.harness.dashboards import Asked, Shown, read

DEPLOY = Path(__file__).parents[2] / "deploy"
SHOWN = read(dashboard.FILE)
PANELS = list(SHOWN.panels())
QUERIES = list(SHOWN.queries())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
RECORDED = yaml.safe_load((DEPLOY / "prometheus" / "recording.yml").read_text(encoding="utf-8"))

KNOWN_UNITS = {value for value in vars(units).values() if isinstance(value, str)}
OF_PROMETHEUS = {"job", "instance"}
OTHERS = {
    "up": {"upstream"},
    "ALERTS": {"alertname", "alertstate", "severity"},
    "sglang:gen_throughput": {"upstream", "model_name"},
    "sglang:num_running_reqs": {"upstream", "model_name"},
}
"""Those that are not specswitch's; in tests/deploy a pair of SGLang's shape has to answer them."""
NAME = r"[A-Za-z_]\w*(?::\w+)*"


def known() -> dict[str, set[str]]:
    """Every metric that a query may name, with its labels."""
    found = dict(OTHERS)
    for name, (kind, labels) in scraped().items():
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + end: set(labels) | ({"le"} if end == "_bucket" else set()) for end in ends}
    recorded = [rule["record"] for group in RECORDED["groups"] for rule in group["rules"]]
    return found | {name: set() for name in recorded}


def test_what_is_committed_is_what_it_makes() -> None:
    """`python -m deploy.grafana.dashboard` writes it."""
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.text()


def test_it_goes_through_the_library_and_back() -> None:
    """What Grafana's schema does not know would be lost."""
    plugins.register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(dict(SHOWN.json))))
    assert again == SHOWN.json


def test_ids_are_given_once() -> None:
    """Panels by their ids, and queries of a panel by their letters."""
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    assert all(ids)
    for panel in PANELS:
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(refs) == len(set(refs))


def test_panels_do_not_overlap() -> None:
    """On Grafana's 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize(
    "panel", [each for each in PANELS if each["type"] != "row"], ids=lambda panel: panel["title"]
)
def test_a_panel_says_what_it_is(panel: dict[str, Any]) -> None:
    """A title, a sentence, a known unit, and the variable's data source everywhere."""
    assert panel["title"]
    assert panel["description"].partition("\n")[0].endswith(".")
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == source
    assert panel["targets"]
    assert all(each["datasource"] == source for each in panel["targets"])
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if panel["type"] != "state-timeline":
        assert unit in KNOWN_UNITS | {parts.TOKENS_PER_SECOND}


@pytest.mark.parametrize("asked", QUERIES, ids=lambda asked: asked.where)
def test_what_is_asked_for_exists(asked: Asked) -> None:
    """Metrics and labels, in selectors and in groupings."""
    metrics = known()
    selected = re.findall(rf"({NAME})\{{([^}}]*)\}}", asked.expr)
    assert selected
    labels = set(OF_PROMETHEUS)
    for name, matchers in selected:
        assert name in metrics, name
        labels |= metrics[name]
        used = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers))
        assert used <= metrics[name] | OF_PROMETHEUS, name
    grouped = re.findall(r"\b(?:by|on|ignoring|group_left) \(([^)]*)\)", asked.expr)
    for names in grouped:
        assert set(filter(None, re.split(r",\s*", names))) <= labels, asked.expr


@pytest.mark.parametrize(
    ("panel", "legend"),
    [
        pytest.param(
            panel, target["legendFormat"], id=f"{panel['title']}: {target['legendFormat']}"
        )
        for panel in PANELS
        if panel["type"] == "timeseries"
        for target in panel["targets"]
        if re.search(r"\{\{(upstream|to)\}\}", target["legendFormat"])
    ],
)
def test_an_upstream_has_one_color(panel: dict[str, Any], legend: str) -> None:
    """In every panel, whatever else the name of the curve says."""
    for upstream, color in parts.UPSTREAMS.items():
        named = re.sub(r"\{\{(upstream|to)\}\}", upstream, legend)
        name = re.sub(r"\{\{\w+\}\}", "eligibility:min_p", named)
        given = [
            chosen["value"]["fixedColor"]
            for override in panel["fieldConfig"]["overrides"]
            if override["matcher"]["id"] == "byRegexp"
            and re.search(override["matcher"]["options"].strip("/"), name)
            for chosen in override["properties"]
            if chosen["id"] == "color"
        ]
        assert given == [color], name


@pytest.mark.parametrize("asked", QUERIES, ids=lambda asked: asked.where)
def test_no_variable_is_missing(asked: Asked) -> None:
    """Each that a query names is one of the dashboard's or Grafana's own."""
    ours = (variable.name for variable in SHOWN.variables())
    filled = Shown(SHOWN.json, dict.fromkeys([*ours, "__rate_interval"], "1m"))
    assert "$" not in filled.filled(asked.expr)


def test_legends_name_labels_that_are_left() -> None:
    """What a query has summed away cannot be shown."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            if wanted and grouped:
                kept = set(re.split(r",\s*", grouped[-1])) - {"le"}
                assert wanted <= kept, target["expr"]


def test_alerts_and_panels_know_each_other() -> None:
    """Each alert names the panel that shows its matter, and that panel names the alert."""
    alerts = {
        (rule["alert"], rule["annotations"]["dashboard"])
        for group in RULES["groups"]
        for rule in group["rules"]
    }
    shown = {
        (alert, f"/d/{dashboard.UID}?viewPanel={panel['id']}")
        for panel in PANELS
        for alert in re.findall(r"^(Specswitch\w+):", panel.get("description", ""), re.MULTILINE)
    }
    assert shown == alerts
    linked = {
        (link["title"], f"/d/{dashboard.UID}?viewPanel={panel['id']}")
        for panel in PANELS
        for link in panel.get("links", ())
    }
    assert linked == alerts


def provisioned(kind: str) -> dict[str, Any]:
    """A file that Grafana reads at its start."""
    file = DEPLOY / "grafana" / "provisioning" / kind / "specswitch.yml"
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def data_sources() -> dict[str, dict[str, Any]]:
    """The data sources by type, of which there is one each."""
    given = provisioned("datasources")["datasources"]
    found = {source["type"]: source for source in given}
    assert len(found) == len(given) == len({source["uid"] for source in given})
    return found


def test_grafana_is_given_the_alertmanager_that_prometheus_tells() -> None:
    """By its own API, where Prometheus has it; silences of Prometheus's rules are made there."""
    sources = data_sources()
    assert set(sources) == {"prometheus", "alertmanager"}
    source = sources["alertmanager"]
    assert source["jsonData"]["implementation"] == "prometheus"
    assert sources["prometheus"]["jsonData"]["alertmanagerUid"] == source["uid"]
    telling = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["alerting"]
    ((told,),) = (each["static_configs"] for each in telling["alertmanagers"])
    assert [source["url"]] == [f"http://{target}" for target in told["targets"]]


def test_grafana_is_given_what_the_dashboard_names() -> None:
    """The data source's uid, the folder of dashboards, and the scrape interval."""
    source = data_sources()["prometheus"]
    assert source["isDefault"]
    (first, *_) = SHOWN.json["templating"]["list"]
    assert (first["type"], first["query"]) == ("datasource", source["type"])
    assert first["current"] == {"selected": True, "text": source["name"], "value": source["uid"]}
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]
    (provider,) = provisioned("dashboards")["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert [path.name for path in dashboard.FILE.parent.iterdir()] == [dashboard.FILE.name]


MOUNTS = {
    "prometheus": {"./deploy/prometheus:/etc/prometheus:ro"},
    "alertmanager": {"./deploy/alertmanager:/etc/alertmanager:ro"},
    "grafana": {
        "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro",
        "./deploy/grafana/dashboards:/var/lib/grafana/dashboards:ro",
    },
}


@pytest.mark.parametrize("service", MOUNTS)
def test_the_stack_mounts_what_is_here(service: str) -> None:
    """Where the files say that they are read from, and for reading only."""
    stack = DEPLOY.parent / "docker-compose.yml"
    services = yaml.safe_load(stack.read_text(encoding="utf-8"))["services"]
    assert MOUNTS[service] <= {each for each in services[service]["volumes"] if ":" in each}
