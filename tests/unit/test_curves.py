"""The curves of calibration as values."""

import pytest

from proxy.core.curves import Curve, Prefill

CURVE = Curve(fixed=0.01, per_sequence=0.001, bend=0.0001, to=10.0)


@pytest.mark.parametrize(
    ("in_flight", "seconds"),
    [(0.0, 0.01), (1.0, 0.0111), (2.5, 0.013125), (10.0, 0.03), (12.0, 0.036)],
)
def test_a_parabola_to_its_last_point_and_straight_from_there(
    in_flight: float, seconds: float
) -> None:
    """At 10 the slope is 3 ms for a sequence, and stays that."""
    assert CURVE.seconds_per_token(in_flight) == pytest.approx(seconds)


def test_the_rate_is_of_all_together() -> None:
    """Ten sequences at 30 ms a token make 333 tokens/s."""
    assert CURVE.rate(10.0) == pytest.approx(333.3, abs=0.1)


def test_prefill_grows_with_the_prompt() -> None:
    """3 ms and 50 us for each token."""
    assert Prefill(0.003, 0.00005).seconds(1000) == pytest.approx(0.053)
