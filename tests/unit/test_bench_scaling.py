"""`python -m bench.scaling`: its plan, its ratios and its tables."""

import json
from dataclasses import replace

import pytest

from bench.scaling.plan import (
    REFERENCE,
    SHOWN,
    Cell,
    Figures,
    Plan,
    as_objects,
    of_objects,
    run,
    run_all,
)
from bench.scaling.table import BEGIN, END, markdown, put_between, ratio

FIGURES = Figures(
    requests=10,
    mean=2.0,
    p50=1.0,
    p95=4.0,
    per_token=0.01,
    goodput=0.5,
    on_spec=0.25,
    busy=0.75,
    switches_per_minute=0.0,
)
SMALL = Plan(
    profiles=("founding",), workloads=("poisson-10",), pairs=(1, 2), rules=(REFERENCE,), seeds=1,
    seconds=1.0,
)  # fmt: skip


def made(seeds: int, *, ratio: float = 2.0, pairs: int = 2) -> dict[Cell, Figures]:
    """Power-of-two, and packing at `ratio` times its mean, a tenth more with each seed."""
    found = {}
    for seed in range(seeds):
        found[Cell("founding", "poisson-10", pairs, REFERENCE, seed)] = FIGURES
        slow = replace(FIGURES, mean=2.0 * (ratio + seed / 10.0), busy=0.5)
        found[Cell("founding", "poisson-10", pairs, "pack", seed)] = slow
    return found


def test_a_rule_stands_in_shares_of_power_of_two() -> None:
    """Seed by seed, the median of them, with an interval from five seeds on."""
    cell = Cell("founding", "poisson-10", 2, "pack", 0)
    three, five = (ratio(made(seeds), cell) for seeds in (3, 5))

    assert three is not None
    assert three.value == pytest.approx(2.1)
    assert three.low is None
    assert five is not None
    assert (five.low, five.value, five.high) == pytest.approx((2.0, 2.2, 2.4))
    assert ratio(made(3), replace(cell, pairs=4)) is None


def test_tables() -> None:
    """One of ratios, one of power-of-two itself; one pair has nothing to be spread over."""
    found = made(5) | made(5, pairs=1)
    rules, reference = markdown(found).split("\n\n`founding`: power-of-two itself\n\n")

    assert rules.splitlines()[2:] == [
        "| workload | pairs | `pack` |",
        "| --- | --- | --- |",
        "| poisson-10 | 2 | 2.20 (2.00 to 2.40) |",
    ]
    assert reference.splitlines()[2:] == [
        "| poisson-10 | 1 | 2.00 | 4.0 | 10.0 | 50 % | 25 % | 75 % | 50 % |",
        "| poisson-10 | 2 | 2.00 | 4.0 | 10.0 | 50 % | 25 % | 75 % | 50 % |",
    ]


def test_a_page_keeps_what_is_around_the_tables() -> None:
    """Between the marks and nowhere else; a page without them is refused."""
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    assert put_between(page, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert put_between(put_between(page, "a\n"), "new\n") == put_between(page, "new\n")
    with pytest.raises(ValueError, match="the page has no"):
        put_between("nothing", "new")


def test_runs_are_theirs_whatever_the_processes() -> None:
    """The same figures from here and from processes of their own, and through JSON."""
    here = dict(run_all(SMALL, processes=1))

    assert dict(run_all(SMALL, processes=2)) == here
    assert of_objects(json.loads(json.dumps(as_objects(here)))) == here
    assert set(here) == set(SMALL.cells)
    with pytest.raises(TypeError):
        of_objects([{"profile": "founding"}])


def test_every_rule_runs() -> None:
    """Each one that is shown, and the load is that of a pair: twice the pairs, twice the rate."""
    cells = [Cell("founding", "poisson-10", 2, rule, 0) for rule in SHOWN]
    found = {cell.rule: run(cell, 1.0) for cell in cells}

    assert found["pack-full"].mean > found[REFERENCE].mean
    assert found["no-switch"].on_spec == 0.0
    alone = run(Cell("founding", "poisson-10", 1, REFERENCE, 0), 1.0)
    assert found[REFERENCE].busy == pytest.approx(alone.busy, rel=0.3)


def test_a_run_is_neither_too_short_nor_too_long() -> None:
    """At least a thousand requests, and for each pair at most 600, whatever the seconds."""
    few, many = (
        run(Cell("founding", "poisson-10", 2, REFERENCE, 0), seconds) for seconds in (1.0, 1e9)
    )

    assert few.requests == 1000
    assert many.requests == 1200
