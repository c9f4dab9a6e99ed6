"""Whether servers were the same at the end as at the start, by cells that were run twice."""

from collections.abc import Sequence
from random import Random

import pytest

from proxy.core.words import UpstreamName
from proxy.tools.curves.cells import shift
from proxy.tools.curves.fit import Cell
from tests.harness.sweeps import BASE, SPEC, cell


def twice(spec: float, base: float, *, loops: Sequence[int] = (2,), seed: int = 1) -> list[Cell]:
    """Runs of both servers, then again, slower by these factors; requests differ as they do."""
    random = Random(seed)
    return [
        cell(name, loop, 0.01 * factor, random=random, spread=spread)
        for again in (False, True)
        for name, slower, spread in ((SPEC, spec, 0.25), (BASE, base, 0.03))
        for loop in loops
        for factor in [slower if again else 1.0]
    ]


@pytest.mark.parametrize("factor", [0.75, 1.3])
@pytest.mark.parametrize("seed", range(4))
def test_what_both_do_is_a_shift(factor: float, seed: int) -> None:
    """Slower or faster, by about as much."""
    found = shift(twice(factor, factor, loops=(1, 2, 3), seed=seed))
    assert found is not None
    assert found[BASE] == pytest.approx(factor - 1.0, abs=0.03)
    assert found[SPEC] == pytest.approx(factor - 1.0, abs=0.15)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_none(seed: int) -> None:
    """Two per cent, and requests that differ."""
    assert shift(twice(1.02, 0.99, seed=seed)) is None


@pytest.mark.parametrize("seed", range(20))
def test_requests_that_differ_wildly_are_no_shift(seed: int) -> None:
    """Means that move by a fifth are chance then."""
    random = Random(seed)
    cells = [cell(name, 2, 0.01, random=random, spread=0.6) for name in (SPEC, BASE) * 2]
    assert shift(cells) is None


@pytest.mark.parametrize(("spec", "base"), [(1.0, 2.5), (2.5, 1.0), (1.5, 0.6)])
def test_what_one_does_alone_is_a_disturbance(spec: float, base: float) -> None:
    """Its own next run shows it."""
    assert shift(twice(spec, base)) is None


@pytest.mark.parametrize("name", UpstreamName)
def test_one_server_alone_says_nothing_of_both(name: UpstreamName) -> None:
    """The other was never run twice."""
    cells = twice(1.5, 1.5)
    assert shift([each for each in cells if each.server is name] + cells[:2]) is None


def test_cells_that_were_run_once_say_nothing() -> None:
    """There is nothing to compare."""
    assert shift([cell(name, 2, 0.01) for name in UpstreamName]) is None
    assert shift([]) is None


def test_runs_that_are_exactly_alike_are_no_shift() -> None:
    """Not by a hair, and without a division by nought."""
    assert shift([cell(name, 2, 0.01) for name in UpstreamName] * 2) is None
