"""docs/metrics.md and the code name the same metrics, with the same types and labels."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from proxy.control.engine import Findings, Load, Reading
from proxy.control.metrics import Metrics, Sources
from proxy.core.dispatch import Dispatcher, Settings
from proxy.core.eligibility import Rule, Rules, Verdict
from proxy.core.health import HealthRules
from proxy.core.modes import Thresholds
from proxy.core.words import UpstreamName

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(specswitch_\w+)` \| (\w+) \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE)
BOUNDS = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}
SETTINGS = Settings(
    thresholds=Thresholds(
        crossover=4.0,
        gate_factor=0.25,
        count_window=10.0,
        return_dwell=10.0,
        flap_limit=6,
        flap_window=60.0,
        flap_hold=60.0,
    ),
    health=HealthRules(fall=3, rise=2, passive_failures=5, ejection=5.0),
    rules=Rules(
        verdicts={rule: Verdict.ANY for rule in Rule if rule not in BOUNDS},
        short_output_tokens=1,
        max_spec_prompt_tokens=0,
    ),
    spec_cap=None,
    base_cap=0,
    max_in_flight=2048,
    queue_size=8,
    queue_timeout=30.0,
    wait_for_upstream=10.0,
)

Described = dict[str, tuple[str, frozenset[str]]]


def scraped() -> Described:
    """Every metric of a pair of which everything is known, with its type and labels."""
    metrics = Metrics("1.2.3")
    reading = Reading(Load(running=1, waiting=1, token_usage=0.5), at=0.0, stale_after=6.0)
    sources = Sources(
        open_requests=lambda: 0,
        connections=lambda _: (0, 0),
        findings={name: Findings(reading=reading) for name in UpstreamName},
        dropped_lines=lambda: 0,
    )
    metrics.watch(Dispatcher(SETTINGS, metrics, now=0.0), sources, clock=lambda: 0.0)
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
