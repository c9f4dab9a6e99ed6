"""docs/operations.md, the alerts and the code say the same."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_docs_metrics import scraped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def rules(name: str) -> list[dict[str, Any]]:
    """Those of a file that is deployed."""
    text = (ROOT / "deploy" / "prometheus" / name).read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


RULES = rules("alerts.yml")
EXPRESSIONS = [rule["expr"] for rule in (*RULES, *rules("recording.yml"))]
HEADINGS = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)


def test_every_alert_is_explained_and_none_is_invented() -> None:
    """Each alert stands where its case is told."""
    assert set(re.findall(r"`(Specswitch\w+)`", PAGE)) == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """In its own text, and in a section of this page that its runbook leads to."""
    texts = rule["annotations"]
    assert set(texts) == {"summary", "description", "runbook", "dashboard"}
    assert rule["labels"]["severity"] in {"page", "warning", "info"}
    assert texts["description"].endswith(".")
    file, _, anchor = texts["runbook"].partition("#")
    assert (ROOT / file).read_text(encoding="utf-8") == PAGE
    assert anchor == rule["alert"].lower()
    assert HEADINGS.count(rule["alert"]) == 1


def test_what_is_recorded_is_named_for_what_it_is_of() -> None:
    """By Prometheus's custom: for each instance, from a metric, by what was done to it."""
    for rule in rules("recording.yml"):
        level, metric, done = rule["record"].split(":")
        assert level == "instance"
        assert metric in rule["expr"]
        assert done


@pytest.mark.parametrize("text", [PAGE, *EXPRESSIONS])
def test_metrics_exist(text: str) -> None:
    """A query with a wrong name answers nothing, and nobody notices."""
    used = set(re.findall(r"specswitch_\w+", text))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} <= set(scraped())


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_labels_exist(expression: str) -> None:
    """So does one with a wrong label."""
    known = scraped()
    for name, labels in re.findall(r"(specswitch_\w+)\{([^}]*)\}", expression):
        kind, has = known[name]
        assert kind in {"counter", "gauge"}
        assert set(re.findall(r"(\w+)=", labels)) <= has
