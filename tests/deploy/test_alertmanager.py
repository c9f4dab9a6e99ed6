"""Alertmanager with our routes: what is silent while something worse is the matter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.conftest import program
from tests.harness.process import free_port
from tests.harness.prometheus import Alertmanager, alertmanager, until

ILL = {"job": "specswitch", "instance": "ill"}
SPEC = {**ILL, "upstream": "spec"}


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Alertmanager]:
    """One that has been told nothing."""
    path = program("prometheus-alertmanager", "prometheus-alertmanager")
    with alertmanager(path, tmp_path, free_port()) as one:
        yield one


def shown(one: Alertmanager, *alerts: dict[str, str]) -> set[str]:
    """The names of those that are not silent, once it was told of `alerts`."""
    sent = [{"labels": labels} for labels in alerts]
    one.client.post(f"{one.url}/api/v2/alerts", json=sent).raise_for_status()
    until(lambda: len(one.alerts(inhibited=True)) == len(alerts), "it knows all of them")
    return {labels["alertname"] for labels, _ in one.alerts()}


def alert(name: str, labels: dict[str, str]) -> dict[str, str]:
    """Its labels."""
    return {"alertname": name, **labels}


def test_one_engine_down_is_told(told: Alertmanager) -> None:
    """With nothing worse, all of it is."""
    ejected = alert("SpecswitchUpstreamEjected", SPEC)
    fail = alert("SpecswitchRequestsFail", ILL)
    assert shown(told, ejected, fail) == {"SpecswitchUpstreamEjected", "SpecswitchRequestsFail"}


def test_both_down_silences_the_single_ones(told: Alertmanager) -> None:
    """And what follows from it; not what another instance has, and not what is of its own."""
    alerts = [
        alert("SpecswitchNoUpstream", ILL),
        alert("SpecswitchUpstreamEjected", SPEC),
        alert("SpecswitchRefuses", {**ILL, "code": "503"}),
        alert("SpecswitchRequestsFail", {**ILL, "instance": "other"}),
        alert("SpecswitchLogLost", ILL),
    ]
    assert shown(told, *alerts) == {
        "SpecswitchNoUpstream",
        "SpecswitchRequestsFail",
        "SpecswitchLogLost",
    }


def test_a_specswitch_that_is_down_silences_the_rest(told: Alertmanager) -> None:
    """What it said last is old; it does not silence itself."""
    alerts = [
        alert("SpecswitchDown", ILL),
        alert("SpecswitchNoUpstream", ILL),
        alert("SpecswitchModeFlaps", ILL),
        alert("Watchdog", {"job": "prometheus"}),
    ]
    assert shown(told, *alerts) == {"SpecswitchDown", "Watchdog"}


def test_the_cause_silences_what_it_causes(told: Alertmanager) -> None:
    """A misconfigured engine is out, and one whose drafts are not accepted is strained."""
    alerts = [
        alert("SpecswitchUpstreamMisconfigured", SPEC),
        alert("SpecswitchUpstreamEjected", SPEC),
        alert("SpecswitchAcceptanceLow", SPEC),
        alert("SpecswitchStrained", {**ILL, "to": "base", "reason": "engine"}),
    ]
    assert shown(told, *alerts) == {"SpecswitchUpstreamMisconfigured", "SpecswitchAcceptanceLow"}
