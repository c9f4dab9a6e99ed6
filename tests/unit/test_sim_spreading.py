"""Rules that spread requests over pairs: where each sends one, and what it asks of chance."""

from collections import Counter
from math import inf
from random import Random

import pytest

from proxy.sim.spreading import Spreading, chooser


def chosen(
    spreading: Spreading, in_flight: list[int], *, times: int = 1000, bound: float = inf
) -> Counter[int]:
    """How often a rule chose each pair, with nothing in flight changing."""
    choose = chooser(spreading, random=Random(1), bound=bound)
    return Counter(choose(in_flight) for _ in range(times))


@pytest.mark.parametrize("spreading", list(Spreading))
def test_one_pair_gets_everything(spreading: Spreading) -> None:
    """Where there is no choice, none is made."""
    assert chosen(spreading, [7], bound=3.0) == {0: 1000}


@pytest.mark.parametrize("spreading", list(Spreading))
def test_every_rule_is_its_seed(spreading: Spreading) -> None:
    """The same draws for the same seed."""
    first, second = (chooser(spreading, random=Random(5), bound=2.0) for _ in range(2))
    states = [[1, 0, 2], [0, 0, 0], [3, 3, 3], [2, 5, 1]] * 20

    assert [first(each) for each in states] == [second(each) for each in states]


def test_power_of_two_never_takes_the_fullest() -> None:
    """Two that differ are drawn, so the emptiest of three wins two times of three."""
    found = chosen(Spreading.POWER_OF_TWO, [0, 1, 2], times=3000)

    assert set(found) == {0, 1}
    assert found[0] == pytest.approx(2000, rel=0.05)


def test_least_draws_among_equals_only() -> None:
    """No pair is the favourite of an idle fleet, and none that has more is drawn."""
    found = chosen(Spreading.LEAST, [1, 0, 2, 0])

    assert set(found) == {1, 3}
    assert found[1] == pytest.approx(500, rel=0.15)


def test_random_and_round_robin_ask_nothing_of_load() -> None:
    """All alike: on average, and in turn."""
    assert min(chosen(Spreading.RANDOM, [9, 0, 0]).values()) > 250
    assert chosen(Spreading.ROUND_ROBIN, [9, 0, 0], times=999) == {0: 333, 1: 333, 2: 333}
    assert chooser(Spreading.ROUND_ROBIN, random=Random(1), bound=inf)([1, 1]) == 0


def test_packing_fills_one_after_the_other() -> None:
    """The first with a place, whatever the others have; beyond that as LEAST."""
    choose = chooser(Spreading.PACK, random=Random(1), bound=3.1)

    assert choose([2, 0, 0]) == 0
    assert choose([3, 0, 0]) == 1
    assert choose([3, 3, 0]) == 2
    assert choose([3, 5, 4]) == 0
    assert choose([5, 4, 5]) == 1


def test_packing_without_a_place_is_refused() -> None:
    """A bound below one sequence would fill nothing."""
    with pytest.raises(ValueError, match="at least one sequence"):
        chooser(Spreading.PACK, random=Random(1), bound=0.5)
