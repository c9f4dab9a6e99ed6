"""From a calibration file to what the pair is set to."""

import logging
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from proxy import wiring
from proxy.calibrated import calibration_of, tell_of, thresholds_of
from proxy.calibration import Calibration, VerdictKind, dump
from proxy.config import Config, load
from proxy.core.words import UpstreamName
from proxy.errors import ConfigError
from tests.harness.calibrations import FOUNDING, with_verdict

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


def config(**keys: object) -> Config:
    """A configuration; `keys` are those of [policy]."""
    overrides = {f"policy.{name}": value for name, value in keys.items()}
    return load(file=None, env={}, overrides=overrides)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A good file."""
    path = tmp_path / "calibration.json"
    path.write_text(dump(FOUNDING), encoding="utf-8")
    return str(path)


def test_a_file_is_read(file: str) -> None:
    """The one that the configuration names."""
    assert calibration_of(config(calibration=file)) == FOUNDING


def test_no_file_is_no_calibration(tmp_path: Path) -> None:
    """Whether it is not there yet or none is wanted."""
    assert calibration_of(config(calibration=str(tmp_path / "none.json"))) is None
    assert calibration_of(config(calibration="")) is None


def test_a_bad_file_is_a_bad_configuration(tmp_path: Path) -> None:
    """Named by the key that names it."""
    path = tmp_path / "calibration.json"
    path.write_text('{"version": 7}', encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        calibration_of(config(calibration=str(path)))
    ((key, what),) = raised.value.findings
    assert key == "policy.calibration"
    assert str(path) in what


def test_a_crossover_by_hand_wins(file: str) -> None:
    """Nothing of the file counts then, not even that it is bad."""
    by_hand = config(calibration=file, crossover=7.5)
    assert calibration_of(by_hand) is None
    found = thresholds_of(by_hand, None)
    assert (found.crossover, found.crossover_rate, found.least_acceptance) == (7.5, None, 0.0)


@pytest.mark.parametrize(
    ("calibration", "crossover", "rate"),
    [
        (FOUNDING, 3.1, 232.0),
        (with_verdict(VerdictKind.NO_CROSSOVER), inf, inf),
        (with_verdict(VerdictKind.NEVER_WINS), 0.0, 0.0),
        (with_verdict(VerdictKind.UNDECIDED), None, None),
        (None, None, None),
    ],
)
def test_what_was_found_sets_the_thresholds(
    calibration: Calibration | None, crossover: float | None, rate: float | None
) -> None:
    """Each verdict as the controller takes it."""
    found = thresholds_of(config(), calibration)
    assert (found.crossover, found.crossover_rate) == (crossover, rate)


def test_the_pair_is_told_everything() -> None:
    """Whose calibration it is, how fast they were, how long answers are."""
    made = wiring.settings_of(config(), FOUNDING)
    assert made.made_for[SPEC]["speculative_algorithm"] == "EAGLE3"
    assert made.curves[BASE].seconds_per_token(1.0) == pytest.approx(0.008)
    assert made.expected_tokens == 211.0
    without = wiring.settings_of(config(), None)
    assert (without.made_for, without.curves, without.expected_tokens) == ({}, {}, None)


def test_the_least_acceptance_is_where_nothing_is_gained() -> None:
    """Alone 4.7 ms a token with 2.6 accepted, 8 ms on base: 1.53 are as slow."""
    assert thresholds_of(config(), FOUNDING).least_acceptance == pytest.approx(1.5275)


def test_the_least_acceptance_can_be_set() -> None:
    """Also to none."""
    assert thresholds_of(config(min_acceptance_length=2.0), FOUNDING).least_acceptance == 2.0
    assert thresholds_of(config(min_acceptance_length=0.0), FOUNDING).least_acceptance == 0.0


def test_an_unknown_acceptance_bounds_nothing() -> None:
    """A server that does not tell it."""
    spec = FOUNDING.servers.spec.model_copy(update={"acceptance_length": None})
    servers = FOUNDING.servers.model_copy(update={"spec": spec})
    unknown = FOUNDING.model_copy(update={"servers": servers})
    assert thresholds_of(config(), unknown).least_acceptance == 0.0


@pytest.mark.parametrize(
    ("keys", "calibration", "level", "said"),
    [
        ({"crossover": 4.0}, None, "INFO", "N* = 4 is set by hand"),
        ({}, None, "WARNING", "there is no calibration (policy.calibration = calibration.json)"),
        ({"calibration": ""}, None, "WARNING", 'there is no calibration (policy.calibration = "")'),
        ({}, FOUNDING, "INFO", "calibration of 2026-11-29: crossover in [2.9, 3.4]"),
        (
            {"topology": "separate"},
            FOUNDING,
            "WARNING",
            'reached 0.90 of one alone, which suggests "shared"',
        ),
    ],
)
def test_what_the_mode_is_decided_by_is_said(
    caplog: pytest.LogCaptureFixture,
    keys: dict[str, object],
    calibration: Calibration | None,
    level: str,
    said: str,
) -> None:
    """At the start and after a reload."""
    with caplog.at_level(logging.INFO):
        tell_of(config(**keys), calibration)
    last = caplog.records[-1]
    assert last.levelname == level
    assert said in last.getMessage()


def test_nothing_is_said_of_an_untested_topology(caplog: pytest.LogCaptureFixture) -> None:
    """Where the two were not tried together."""
    with caplog.at_level(logging.WARNING):
        tell_of(config(topology="separate"), FOUNDING.model_copy(update={"contention": None}))
    assert caplog.records == []


def test_thresholds_stay_a_value() -> None:
    """The same configuration gives the same thresholds, so that a reload can tell."""
    found = thresholds_of(config(), FOUNDING)
    assert found == thresholds_of(config(), FOUNDING)
    assert found != replace(found, crossover=1.0)
