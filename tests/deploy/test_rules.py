"""The rules of Prometheus and the routes of Alertmanager, judged by their own tools.

That each rule has a case in which it speaks and one in which it is silent is not counted but tried:
a rule that never speaks, always speaks or does not wait must fail promtool's tests.
"""

import copy
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import program

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "prometheus"
CASES = sorted((FOLDER / "tests").glob("*.yml"))

# YAML that promtool has judged; what is in it is not for us to type.
Rule = Mapping[str, Any]


def _rules(name: str) -> list[Rule]:
    groups = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS, RECORDS = _rules("alerts.yml"), _rules("recording.yml")
ALERT_NAMES = [rule["alert"] for rule in ALERTS]
WAITING = [rule["alert"] for rule in ALERTS if "for" in rule]


def _run(name: str, package: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own words
        [program(name, package), *map(str, words)], capture_output=True, text=True, check=False
    )


def _promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return _run("promtool", "prometheus", *words)


def test_prometheus_takes_its_configuration() -> None:
    """With the rules that it names."""
    found = _promtool("check", "config", FOLDER / "prometheus.yml")
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("rules found") == 2


def test_alertmanager_takes_its_configuration() -> None:
    """Routes, inhibitions and the receiver."""
    file = DEPLOY / "alertmanager" / "alertmanager.yml"
    found = _run("amtool", "prometheus-alertmanager", "check-config", file)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_rules_do_what_their_cases_say() -> None:
    """All of them."""
    found = _promtool("test", "rules", *CASES)
    assert found.returncode == 0, found.stdout + found.stderr


def _outcome(folder: Path, changed: Rule) -> int:
    """What promtool says of the cases of a rule, once the rule is `changed`."""
    name = changed.get("alert") or changed["record"]
    key = "alert" if "alert" in changed else "record"
    rules = [changed if rule.get(key) == name else rule for rule in (*RECORDS, *ALERTS)]
    kept = [rule for rule in rules if "record" in rule or rule is changed]
    written = {"groups": [{"name": "changed", "rules": kept}]}
    (folder / "rules.yml").write_text(yaml.safe_dump(written))
    files = []
    for case in CASES:
        asked = yaml.safe_load(case.read_text(encoding="utf-8"))
        asked["rule_files"] = ["rules.yml"]
        asked["tests"] = [
            test
            for test in asked["tests"]
            if any(name in each["expr"] for each in test["promql_expr_test"])
        ]
        if asked["tests"]:
            files.append(folder / case.name)
            files[-1].write_text(yaml.safe_dump(asked))
    assert files, f"no case asks for {name}"
    return _promtool("test", "rules", *files).returncode


def _alert(name: str) -> dict[str, Any]:
    return copy.deepcopy(dict(next(rule for rule in ALERTS if rule["alert"] == name)))


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_an_alert_that_says_nothing_is_noticed(name: str, tmp_path: Path) -> None:
    """A case makes it fire; and as it is, its cases hold by themselves."""
    rule = _alert(name)
    assert _outcome(tmp_path, rule) == 0
    assert _outcome(tmp_path, {**rule, "expr": "vector(0) > 1"}) != 0


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_an_alert_that_is_false_is_noticed(name: str, tmp_path: Path) -> None:
    """A case has it silent of an instance that is as near to its matter as is still right."""
    rule = _alert(name)
    false = f'({rule["expr"]}) or on (instance) count by (job, instance) ({{instance="well"}})'
    assert _outcome(tmp_path, {**rule, "expr": false}) != 0


@pytest.mark.parametrize("name", WAITING)
def test_an_alert_that_does_not_wait_is_noticed(name: str, tmp_path: Path) -> None:
    """A case asks before its time is over."""
    rule = _alert(name)
    del rule["for"]
    assert _outcome(tmp_path, rule) != 0


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule["record"])
def test_what_is_recorded_is_checked(rule: Rule, tmp_path: Path) -> None:
    """A case knows its value, and something reads it."""
    assert _outcome(tmp_path, {**rule, "expr": f"2 * ({rule['expr']})"}) != 0
    shown = (DEPLOY / "grafana" / "dashboards" / "specswitch.json").read_text(encoding="utf-8")
    assert any(rule["record"] in alert["expr"] for alert in ALERTS)
    assert rule["record"] in shown
