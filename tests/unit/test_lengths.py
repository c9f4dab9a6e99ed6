"""How long answers are: what teaches it, and in which order what is known counts."""

import pytest

from proxy.core.lengths import Lengths, RunningMean


def test_the_first_values_count_equally() -> None:
    """It is the plain mean until its memory is full."""
    mean = RunningMean(10)
    for value in (1.0, 2.0, 3.0):
        mean.add(value)
    assert (mean.value, mean.count) == (2.0, 3)


def test_a_mean_of_several_counts_as_several() -> None:
    """Two at 4 and one at 1 make 3."""
    mean = RunningMean(10)
    mean.add(4.0, 2)
    mean.add(1.0)
    assert mean.value == 3.0


def test_it_forgets_over_its_memory() -> None:
    """After ten times its memory nothing is left of what came first."""
    mean = RunningMean(5)
    mean.add(1000.0)
    for _ in range(50):
        mean.add(1.0)
    assert mean.value == pytest.approx(1.0, abs=0.1)
    assert mean.count == 5


def test_more_than_its_memory_at_once_replaces_it() -> None:
    """And never overshoots."""
    mean = RunningMean(5)
    mean.add(1.0)
    mean.add(9.0, 100)
    assert mean.value == 9.0


def test_nothing_is_known_at_first() -> None:
    """And no number is made up."""
    assert Lengths(None).output_tokens is None
    assert Lengths(None).service_seconds == 0.0


def test_calibration_counts_until_usage_tells() -> None:
    """Twenty answers with usage, sequences counted one by one."""
    lengths = Lengths(200.0)
    for _ in range(9):
        lengths.ended(0.0, 100, 2)
    assert lengths.output_tokens == 200.0
    lengths.ended(0.0, 100, 2)
    assert lengths.output_tokens == 50.0


def test_counters_of_the_engines_come_before_calibration() -> None:
    """They have counted what passed; calibration has assumed it."""
    lengths = Lengths(200.0)
    lengths.counted(1900.0, 19)
    assert lengths.output_tokens == 200.0
    lengths.counted(100.0, 1)
    assert lengths.output_tokens == 100.0


def test_a_few_answers_are_better_than_nothing() -> None:
    """Where neither calibration nor engines say anything."""
    lengths = Lengths(None)
    lengths.ended(0.0, 80, 1)
    assert lengths.output_tokens == 80.0


def test_usage_that_has_become_rare_no_longer_counts() -> None:
    """The few who ask for it may be others than those who do not; nor with nothing else known."""
    lengths = Lengths(200.0)
    for _ in range(20):
        lengths.ended(0.0, 80, 1)
    lengths.ended(0.0, None, 100)
    assert lengths.output_tokens == 80.0
    lengths.counted(3000.0, 20)
    assert lengths.output_tokens == 150.0


@pytest.mark.parametrize("told", [100, 2000])
def test_those_without_usage_count_however_many_had_it(told: int) -> None:
    """With a memory of 500, so many without leave a share of 1/e, and three times as many 5 %."""
    lengths = Lengths(200.0)
    lengths.counted(3000.0, 20)
    for _ in range(told):
        lengths.ended(0.0, 80, 1)
    for _ in range(500):
        lengths.ended(0.0, None, 1)
    assert (lengths.output_tokens == 80.0) is (told > 500)
    for _ in range(1000):
        lengths.ended(0.0, None, 1)
    assert lengths.output_tokens == 150.0
    for _ in range(200):
        lengths.ended(0.0, 80, 1)
    assert lengths.output_tokens == 80.0


def test_absurd_figures_are_dropped() -> None:
    """One answer of a thousand million tokens would outweigh all others."""
    lengths = Lengths(200.0)
    for _ in range(20):
        lengths.ended(0.0, 80, 1)
    lengths.ended(0.0, 10**9, 1)
    lengths.counted(1e12, 30)
    assert lengths.output_tokens == 80.0


def test_service_time_is_a_mean() -> None:
    """Of how long requests held their places."""
    lengths = Lengths(None)
    lengths.ended(1.0, None, 1)
    lengths.ended(3.0, None, 1)
    assert lengths.service_seconds == 2.0
