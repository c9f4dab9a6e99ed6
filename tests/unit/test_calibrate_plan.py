"""Which cells are measured, when it is enough, and how long it takes."""

import pytest

from proxy.core.words import UpstreamName
from proxy.tools.calibrate.plan import (
    LEVELS,
    Pace,
    Plan,
    cell_seconds,
    enough,
    fitting,
    requests_of,
    sweep_seconds,
)

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


def test_cells_alternate_abba() -> None:
    """Spec first at one concurrency, base first at the next."""
    plan = Plan(levels=(1, 2, 4), output_tokens=8)
    order = [place.server for level in plan.levels for place in plan.cells(level)]
    assert order == [SPEC, BASE, BASE, SPEC, SPEC, BASE]


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 16), (8, 16), (9, 18), (48, 96)])
def test_a_cell_has_enough_requests(concurrency: int, requests: int) -> None:
    """max(16, 2C)."""
    assert requests_of(concurrency) == requests


@pytest.mark.parametrize(
    ("most", "levels"),
    [
        (None, LEVELS),
        (64, LEVELS),
        (48, LEVELS[:-1]),
        (40, (*LEVELS[:-2], 40)),
        (1, (1,)),
        (100, LEVELS),
    ],
)
def test_levels_end_at_what_both_servers_run(most: int | None, levels: tuple[int, ...]) -> None:
    """The cap itself is measured where it cuts any off."""
    assert fitting(LEVELS, most=most) == levels


def test_levels_are_sorted_and_unique() -> None:
    """However they were asked for."""
    assert fitting([4, 1, 4, 2], most=None) == (1, 2, 4)


def _rates(shares: dict[int, float]) -> dict[UpstreamName, dict[int, float]]:
    return {
        SPEC: {level: 100.0 * share for level, share in shares.items()},
        BASE: dict.fromkeys(shares, 100.0),
    }


@pytest.mark.parametrize(
    ("shares", "settled"),
    [
        ({1: 1.7, 2: 1.3, 3: 1.0, 4: 0.9, 6: 0.7}, False),  # one level behind only
        ({1: 1.7, 2: 1.3, 3: 1.0, 4: 0.9, 6: 0.8, 8: 0.7}, False),  # 8 is not 3 times 3
        ({1: 1.7, 2: 1.3, 3: 0.99, 4: 0.9, 6: 0.8, 8: 0.7}, True),
        ({1: 1.7, 2: 1.6, 3: 1.5, 4: 1.4, 6: 1.3, 8: 1.2}, False),  # ahead throughout
        ({1: 0.9, 2: 0.8, 3: 0.8, 4: 0.8}, False),  # too few points for a curve
        ({1: 0.9, 2: 0.8, 3: 0.8, 4: 0.8, 6: 0.8}, True),  # behind from the start
        ({1: 0.9, 2: 0.9, 3: 0.95, 4: 0.9, 6: 0.9}, False),  # behind, and not clearly
        ({}, False),
    ],
)
def test_a_sweep_ends_when_the_crossing_is_clear(
    shares: dict[int, float], *, settled: bool
) -> None:
    """Base clearly ahead at the last two levels, and those far beyond N*."""
    assert enough(_rates(shares)) is settled


def test_only_levels_of_both_servers_count() -> None:
    """A level of one server says nothing yet."""
    rates = _rates({1: 0.9, 2: 0.8, 3: 0.8, 4: 0.8, 6: 0.8})
    del rates[BASE][6]
    assert not enough(rates)


def test_a_cell_takes_its_rounds() -> None:
    """16 requests one by one, half a one to warm up and half to end: 17 answers of 10 tokens."""
    assert cell_seconds(Pace(0.01, 0.002), 1, 10, 16) == pytest.approx(1.7)
    assert cell_seconds(Pace(0.01, 0.002), 4, 10, 16) == pytest.approx(5 * 10 * 0.016)


def test_a_sweep_takes_all_its_cells() -> None:
    """Both servers at each level, and once more where few are in flight."""
    plan = Plan(levels=(1, 2), output_tokens=10)
    paces = {SPEC: Pace(0.01, 0.0), BASE: Pace(0.02, 0.0)}
    assert sweep_seconds(plan, paces) == pytest.approx((17 + 9 + 9) * 10 * 0.03)


def test_two_cells_of_the_beginning_come_again() -> None:
    """Where few are in flight, in the other order: what drifts falls on both alike."""
    plan = Plan(levels=(1, 2, 3), output_tokens=10)
    assert plan.again == tuple(reversed(plan.cells(2)))
