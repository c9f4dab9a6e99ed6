"""docs/operations.md, the alerts and the code say the same."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.test_docs_metrics import scraped

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]


def test_every_alert_is_explained_and_none_is_invented() -> None:
    """Each alert stands where its case is told."""
    assert set(re.findall(r"`(Specswitch\w+)`", PAGE)) == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("text", [PAGE, *(rule["expr"] for rule in RULES)])
def test_metrics_exist(text: str) -> None:
    """A query with a wrong name answers nothing, and nobody notices."""
    used = set(re.findall(r"specswitch_\w+", text))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} <= set(scraped())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_labels_exist(rule: dict[str, str]) -> None:
    """So does one with a wrong label."""
    known = scraped()
    for name, labels in re.findall(r"(specswitch_\w+)\{([^}]*)\}", rule["expr"]):
        kind, has = known[name]
        assert kind in {"counter", "gauge"}
        assert set(re.findall(r"(\w+)=", labels)) <= has
