"""docs/metrics.md and the code name the same metrics, with the same types and labels."""

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from proxy.control.engine import Findings, Load, Reading
from proxy.control.gauges import Sources
from proxy.control.metrics import Metrics
from proxy.core.dispatch import Dispatcher
from proxy.core.signals import EngineSignals
from proxy.core.words import UpstreamName
from tests.harness.calibrations import FOUNDING
from tests.harness.pair import SETTINGS as PAIR_SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(specswitch_\w+)` \| (\w+) \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE)
SETTINGS = replace(
    PAIR_SETTINGS,
    spec_cap=None,
    thresholds=replace(PAIR_SETTINGS.thresholds, crossover_rate=230.0, least_acceptance=1.6),
    expected_tokens=200.0,
    curves={UpstreamName.SPEC: FOUNDING.servers.spec.decode.curve},
)

Described = dict[str, tuple[str, frozenset[str]]]


def scraped() -> Described:
    """Every metric of a pair of which everything is known, with its type and labels."""
    metrics = Metrics("1.2.3")
    reading = Reading(Load(running=1, waiting=1, token_usage=0.5), at=0.0, stale_after=6.0)
    signals = EngineSignals(
        waiting=1,
        token_usage=0.5,
        acceptance_length=2.5,
        at=0.0,
        age_seconds=0.0,
        stale_after=10.0,
    )
    sources = Sources(
        open_requests=lambda: 0,
        connections=lambda _: (0, 0),
        findings=lambda: {
            name: Findings(reading=reading, signals=signals) for name in UpstreamName
        },
        dropped_lines=lambda: 0,
        clients=lambda: 1,
        calibrated_at=lambda: 1.8e9,
        started_at=1.7e9,
    )
    dispatcher = Dispatcher(SETTINGS, metrics, now=0.0)
    for _ in range(20):
        dispatcher.drift[UpstreamName.SPEC].add(0.01, 1.0)
    metrics.watch(dispatcher, sources, clock=lambda: 0.0)
    found: Described = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        assert family.samples, name
        found[name] = (family.type, frozenset(labels))
    return found


def test_the_page_names_every_metric_and_no_other() -> None:
    """With its type and its labels, each once."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    described = {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows
    }

    assert len(rows) == len(described)
    assert described == scraped()


def test_queries_use_metrics_that_exist() -> None:
    """A query with a wrong name answers nothing, and nobody notices."""
    known = scraped()
    used = set(re.findall(r"specswitch_\w+", PAGE.read_text(encoding="utf-8")))

    bare = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} - {"specswitch_"}

    assert bare <= set(known)
