"""What holds of fits, crossings and verdicts for any cells."""

from contextlib import suppress
from itertools import pairwise
from math import isfinite
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.calibration import VerdictKind
from proxy.core.curves import Prefill
from proxy.tools.curves.crossover import Conditions, conclude
from proxy.tools.curves.fit import BadDataError, Cell, CellId, Point, fit, points
from proxy.tools.curves.pairing import Pairing
from tests.harness.sweeps import BASE, SPEC, cell

FREE = Prefill(0.0, 0.0)
CONDITIONS = Conditions({SPEC: FREE, BASE: FREE}, {SPEC: None, BASE: None}, ())
LOOPS = st.lists(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]), min_size=2, unique=True
)
SECONDS = st.floats(1e-4, 10.0)
ANYTHING = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, 0.01])


@st.composite
def measured(draw: st.DrawFn) -> list[Point]:
    """Points of one server with any times, some of them runs of the same cell."""
    loops = [*draw(LOOPS), *draw(st.lists(st.sampled_from([1, 8, 32]), max_size=4))]
    return [
        Point(CellId(BASE, loop), float(loop), seconds, draw(st.floats(0.0, 0.3)), (seconds,) * 3)
        for loop in loops
        for seconds in [draw(SECONDS)]
    ]


@pytest.mark.slow
@given(measured())
def test_a_fit_is_positive_and_never_falls(found: list[Point]) -> None:
    """Whatever the cells say."""
    curve = fit(found)
    times = [curve.seconds_per_token(n / 4) for n in range(400)]
    assert all(isfinite(time) and time > 0.0 for time in times)
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))
    assert curve.chi_square >= 0.0


@given(
    base=st.tuples(st.floats(0.002, 0.02), st.floats(0.0, 0.002)),
    lead=st.floats(1.1, 4.0),
    steeper=st.floats(1.5, 20.0),
)
def test_two_lines_cross_where_they_do(
    base: tuple[float, float], lead: float, steeper: float
) -> None:
    """Against the formula: (a_B - a_S) / (b_S - b_B)."""
    (fixed, slope), spec_fixed = base, base[0] / lead
    spec_slope = (slope + 1e-5) * steeper
    expected = (fixed - spec_fixed) / (spec_slope - slope)
    pairing = Pairing(
        *(
            fit(points([cell(name, n, a + b * n) for n in (1, 2, 4, 8, 16, 32, 64)]))
            for name, a, b in ((SPEC, spec_fixed, spec_slope), (BASE, fixed, slope))
        )
    )
    found = [crossing.in_flight for crossing in pairing.crossings()]
    if 1.02 < expected < 62.0:
        assert found == [pytest.approx(expected, rel=0.01)]
    elif expected < 0.95 or expected > 66.0:
        assert found == []


@st.composite
def any_cell(draw: st.DrawFn) -> Cell:
    """Anything that has the shape of a cell."""
    return Cell(
        server=draw(st.sampled_from([SPEC, BASE])),
        loop=draw(st.sampled_from([1, 2, 8, 32])),
        concurrency=draw(ANYTHING | st.floats(0.5, 64.0)),
        samples=tuple(draw(st.lists(SECONDS | ANYTHING, max_size=5))),
        rate=draw(ANYTHING | st.floats(0.1, 1e4)),
        errors=draw(st.sampled_from([0, 0, 1])),
    )


@given(st.lists(any_cell(), max_size=8))
def test_junk_is_refused_and_never_crashes(cells: list[Cell]) -> None:
    """A refusal or findings, and no other error."""
    with suppress(BadDataError):
        assert conclude(cells, CONDITIONS, random=Random(1), resamples=5).verdict.sentence


@pytest.mark.slow
@given(
    loops=LOOPS,
    times=st.lists(st.floats(0.001, 0.1), min_size=24, max_size=24),
    seed=st.integers(0, 1000),
)
def test_findings_hold_together(loops: list[int], times: list[float], seed: int) -> None:
    """N* only with its verdict, in order, within what was measured; never a silly number."""
    loops = sorted({1, *loops})
    random = Random(seed)
    cells = [
        cell(name, loop, times[place + 12 * (name is BASE)], random=random, requests=6)
        for name in (SPEC, BASE)
        for place, loop in enumerate(loops)
    ]
    findings = conclude(cells, CONDITIONS, random=random, resamples=10)
    crosses = findings.verdict.kind is VerdictKind.CROSSOVER
    assert crosses is (findings.crossover is not None)
    if findings.crossover is not None:
        found = findings.crossover
        assert 1.0 <= found.low <= found.value <= found.high <= findings.reach
    if findings.verdict.kind is not VerdictKind.UNDECIDED:
        assert not findings.wanted
    assert all(1 <= each.loop <= 64 for each in findings.wanted)
