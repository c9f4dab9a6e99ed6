"""What docs/scaling.md says of fleets, in a size for CI: two seeds, up to eight pairs."""

import pytest

from bench.scaling.plan import REFERENCE, Cell, Figures, Plan, run_all

pytestmark = pytest.mark.slow

PAIRS = (1, 8)
SEEDS = 2


@pytest.fixture(scope="module")
def found() -> dict[Cell, Figures]:
    """Every run."""
    plan = Plan(
        profiles=("founding",),
        workloads=("poisson-10", "poisson-50", "bursts"),
        pairs=PAIRS,
        seeds=SEEDS,
    )
    return dict(run_all(plan, processes=2))


def mean(found: dict[Cell, Figures], workload: str, pairs: int, rule: str) -> float:
    """Mean E2E over the seeds, in seconds."""
    cells = [Cell("founding", workload, pairs, rule, seed) for seed in range(SEEDS)]
    return sum(found[cell].mean for cell in cells) / len(cells)


@pytest.mark.parametrize("workload", ["poisson-10", "poisson-50", "bursts"])
def test_a_fleet_is_no_slower_than_a_pair(found: dict[Cell, Figures], workload: str) -> None:
    """At the same load of each, spread by two choices."""
    assert mean(found, workload, 8, REFERENCE) < 1.03 * mean(found, workload, 1, REFERENCE)


@pytest.mark.parametrize("rule", ["pack", "pack-full"])
def test_packing_loses_while_little_comes(found: dict[Cell, Figures], rule: str) -> None:
    """It gathers what would have been decoded alone."""
    assert mean(found, "poisson-10", 8, rule) > 1.3 * mean(found, "poisson-10", 8, REFERENCE)


def test_packing_to_the_crossover_is_the_emptiest_pair_beyond_it(
    found: dict[Cell, Figures],
) -> None:
    """Where every pair has N* there is nothing left to pack."""
    assert mean(found, "poisson-50", 8, "pack") == pytest.approx(
        mean(found, "poisson-50", 8, "least"), rel=0.05
    )


def test_the_switch_pays_in_a_fleet(found: dict[Cell, Figures]) -> None:
    """Where little comes, as in a single pair."""
    for pairs in PAIRS:
        ours, base = (mean(found, "poisson-10", pairs, rule) for rule in (REFERENCE, "no-switch"))
        assert ours < 0.85 * base
