"""The dashboard and the alerts in a live Prometheus, which watches specswitch under load.

Every query of every panel has to answer, with the variables filled as Grafana would.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite

import pytest

from tests.deploy.conftest import program
from tests.deploy.watching import Watched, watched
from tests.harness.dashboards import Asked, Shown, UnknownVariableError, read
from tests.harness.prometheus import DEPLOY, QueryError

pytestmark = pytest.mark.timeout(280)

SHOWN = read(DEPLOY / "grafana" / "dashboards" / "specswitch.json")
QUERIES = list(SHOWN.queries())
RATE_INTERVAL = "8s"
"""Grafana takes four scrape intervals or more."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """It happens once; everything here asks what Prometheus saw of it."""
    programs = (
        program("prometheus", "prometheus"),
        program("prometheus-alertmanager", "prometheus-alertmanager"),
    )
    with watched(programs, tmp_path_factory.mktemp("watched")) as one:
        yield one


@pytest.fixture(scope="module")
def shown(seen: Watched) -> Shown:
    """The dashboard, with its variables filled from Prometheus, in their order."""
    filled = Shown(SHOWN.json, {"__rate_interval": RATE_INTERVAL, "datasource": "prometheus"})
    for variable in filled.variables():
        values = seen.prometheus.label_values(variable.label, filled.filled(variable.selector))
        assert len(values) == 1, variable
        filled.values[variable.name] = values[0]
    return filled


def finite(seen: Watched, shown: Shown, expr: str) -> list[float]:
    """The points of all series that `expr` answered in all that time."""
    found = seen.prometheus.query(shown.filled(expr), seen.started, seen.ended)
    return [v for series in found for _, text in series.values if isfinite(v := float(text))]


def test_every_target_is_scraped(seen: Watched) -> None:
    """specswitch, both engines and Prometheus's own job."""
    assert seen.targets == {
        "specswitch": "up",
        "sglang spec": "up",
        "sglang base": "up",
        "prometheus": "up",
    }


@pytest.mark.parametrize("asked", QUERIES, ids=lambda asked: asked.where)
def test_every_query_answers(asked: Asked, seen: Watched, shown: Shown) -> None:
    """A wrong name or label answers nothing, and a panel is empty for ever."""
    assert finite(seen, shown, asked.expr)


def test_what_is_wrong_is_noticed(seen: Watched, shown: Shown) -> None:
    """A metric, a label and a variable that do not exist, and a query that is none."""
    assert not finite(seen, shown, 'specswitch_mood{job="$job"}')
    assert not finite(seen, shown, 'specswitch_mode{job="$job",mood="spec"}')
    with pytest.raises(UnknownVariableError, match=r"\$jobs"):
        finite(seen, shown, 'specswitch_mode{job="$jobs"}')
    with pytest.raises(QueryError, match="parse error"):
        finite(seen, shown, 'rate(specswitch_mode{job="$job"}[$__rate_interval]')


def test_the_first_row_tells_what_happened(seen: Watched, shown: Shown) -> None:
    """The mode was both, more than N* was in flight, and either server was measured."""
    mode = 'specswitch_mode{mode="spec"}'
    assert set(finite(seen, shown, mode)) == {0.0, 1.0}
    over = f"max_over_time(sum(specswitch_in_flight)[{RATE_INTERVAL}:1s]) > "
    assert finite(seen, shown, f"{over} scalar(specswitch_crossover_in_flight)")
    for upstream in ("spec", "base"):
        for name in ("time_to_first_token", "time_per_output_token"):
            counted = f'specswitch_{name}_seconds_count{{upstream="{upstream}"}}'
            assert max(finite(seen, shown, counted)) >= 20


def test_an_alert_reaches_alertmanager(seen: Watched) -> None:
    """The one for the engine that died, with its texts filled in; and clients were served."""
    assert seen.served_meanwhile == 5
    found = {labels["alertname"]: (labels, texts) for labels, texts in seen.told}
    labels, texts = found["SpecswitchUpstreamEjected"]
    assert labels["upstream"] == "spec"
    assert texts["summary"] == "spec takes no requests"
    assert "upstreams.spec.cause" in texts["description"]
    assert texts["runbook"] == "docs/operations.md#specswitchupstreamejected"
    assert "SpecswitchNoUpstream" not in found


def test_no_rule_has_failed(seen: Watched) -> None:
    """Prometheus counts evaluations that it could not make."""
    answer = seen.prometheus.client.get(f"{seen.prometheus.url}/metrics").text
    failed = [line for line in answer.splitlines() if "rule_evaluation_failures_total{" in line]
    assert failed
    assert all(line.endswith(" 0") for line in failed), failed


def test_variables_depend_on_what_is_there(seen: Watched, shown: Shown) -> None:
    """An instance that does not exist leaves every panel without an answer of specswitch's."""
    nobody = replace(shown, values={**shown.values, "instance": "nobody"})
    for asked in QUERIES:
        if "$instance" in asked.expr and "ALERTS" not in asked.expr:
            assert not finite(seen, nobody, asked.expr), asked
