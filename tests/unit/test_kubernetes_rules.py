"""The PrometheusRule is made of the rules that the tests of promtool hold."""

import yaml

from deploy.kubernetes import rules


def test_it_is_written_anew_after_a_change() -> None:
    """`python -m deploy.kubernetes.rules` would change nothing."""
    assert rules.FILE.read_text(encoding="utf-8") == rules.made()


def test_it_has_every_rule_and_no_other() -> None:
    """Read back, it says what the two files say."""
    groups = yaml.safe_load(rules.made())["spec"]["groups"]
    names = ("recording.yml", "alerts.yml")
    files = [yaml.safe_load((rules.RULES / name).read_text(encoding="utf-8")) for name in names]
    assert groups == [group for file in files for group in file["groups"]]
    assert len(groups) >= len(files)
