"""Drift: how fast a server is, beside how fast it was."""

import pytest

from proxy.core.curves import Curve
from proxy.core.drift import Drift, drifts
from proxy.core.words import UpstreamName

CURVE = Curve(fixed=0.01, per_sequence=0.001, bend=0.0, to=64.0)


def seen(answers: int, *, factor: float, in_flight: float) -> Drift:
    """After so many answers, each `factor` times as slow as calibrated."""
    drift = Drift(CURVE)
    for _ in range(answers):
        drift.add(factor * CURVE.seconds_per_token(max(1.0, in_flight)), in_flight)
    return drift


def test_nothing_is_said_before_enough_was_seen() -> None:
    """Nineteen answers are chance."""
    assert seen(19, factor=2.0, in_flight=3.0).ratio is None


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_the_ratio_is_time_now_over_time_then(factor: float) -> None:
    """Whatever was in flight."""
    assert seen(20, factor=factor, in_flight=3.0).ratio == pytest.approx(factor)


def test_fewer_than_one_counts_as_one() -> None:
    """A lone answer that had its place a little before and after."""
    assert seen(20, factor=1.0, in_flight=0.7).ratio == pytest.approx(1.0)


def test_the_farthest_bucket_counts() -> None:
    """Slower with many and faster alone is not as fast as before; too little says nothing."""
    drift = seen(60, factor=0.9, in_flight=2.0)
    for _ in range(20):
        drift.add(1.3 * CURVE.seconds_per_token(40.0), 40.0)
    for _ in range(5):
        drift.add(9.0 * CURVE.seconds_per_token(10.0), 10.0)
    assert drift.ratio == pytest.approx(1.3)
    for _ in range(5000):
        drift.add(0.5 * CURVE.seconds_per_token(2.0), 2.0)
    assert drift.ratio == pytest.approx(0.5, rel=0.01)


def test_a_pause_is_no_drift() -> None:
    """One answer in a hundred that took a thousand times as long moves the ratio by 3 %."""
    drift = seen(99, factor=1.0, in_flight=1.0)
    drift.add(1000.0 * CURVE.seconds_per_token(1.0), 1.0)
    assert drift.ratio == pytest.approx(20.0**0.01)


def test_ten_answers_a_second_are_looked_at() -> None:
    """However many end; a slow pair's are all looked at."""
    busy, calm = Drift(CURVE), Drift(CURVE)
    assert sum(busy.looks(1000.0 + i / 1024) for i in range(1024)) == 10
    assert all(calm.looks(1000.0 + i) for i in range(10))


def test_a_watch_for_each_curve() -> None:
    """And none where nothing was calibrated."""
    assert set(drifts({UpstreamName.SPEC: CURVE})) == {UpstreamName.SPEC}
    assert drifts({}) == {}
