"""An average that forgets, by numbers."""

from math import e

import pytest

from proxy.core.rates import DecayedAverage, DecayedRate


@pytest.mark.parametrize(
    ("held_seconds", "expected"),
    [(0.0, 0.0), (10.0, 8 * (1 - 1 / e)), (30.0, 8 * (1 - e**-3)), (1e9, 8.0)],
)
def test_a_level_gains_weight_with_time(held_seconds: float, expected: float) -> None:
    """One window gives a level 63 % of the weight, three give it 95 %."""
    average = DecayedAverage(10.0, now=100.0)
    average.set(8, 100.0)

    assert average.value(100.0 + held_seconds) == pytest.approx(expected)


def test_it_starts_at_nothing() -> None:
    """Before it is told of a level, the level is 0."""
    assert DecayedAverage(10.0, now=5.0).value(50.0) == 0.0


def test_levels_follow_each_other() -> None:
    """A level that ends is forgotten at the pace at which it was learned."""
    average = DecayedAverage(10.0, now=0.0)
    average.set(8, 0.0)
    average.set(2, 10.0)

    learned = 8 * (1 - 1 / e)
    assert average.value(10.0) == pytest.approx(learned)
    assert average.value(20.0) == pytest.approx(2 + (learned - 2) / e)


def test_a_level_told_twice_is_one_level() -> None:
    """How often it is told makes no difference, only how long it held."""
    once, often = DecayedAverage(10.0, now=0.0), DecayedAverage(10.0, now=0.0)
    once.set(4, 0.0)
    for second in range(20):
        often.set(4, float(second))

    assert often.value(25.0) == pytest.approx(once.value(25.0))


def test_reading_changes_nothing() -> None:
    """Reading twice gives the same, whatever was read in between."""
    average = DecayedAverage(10.0, now=0.0)
    average.set(4, 0.0)

    first = average.value(7.0)
    average.value(1000.0)

    assert average.value(7.0) == first


def test_time_that_goes_back_is_time_that_stands() -> None:
    """A reading before the last change is the average at that change, and never beyond it."""
    average = DecayedAverage(10.0, now=0.0)
    average.set(4, 10.0)

    assert average.value(3.0) == average.value(10.0) == 0.0


def test_an_amount_of_the_past_counts_as_of_now() -> None:
    """And lets nothing grow that came before."""
    rate = DecayedRate(10.0, now=0.0)
    rate.add(50.0, 10.0)
    rate.add(20.0, 3.0)

    assert rate.value(1.0) == rate.value(3.0) == 7.0
