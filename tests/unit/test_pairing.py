"""Two curves side by side, and what replicates of them say."""

from random import Random
from statistics import pstdev

import pytest

from proxy.tools.curves.fit import fit, points
from proxy.tools.curves.pairing import Pairing, Spread, quantile, redrawn
from tests.harness.sweeps import BASE, LOOPS, SPEC, Times, cell


def paired(spec: Times, base: Times) -> Pairing:
    """Both servers without noise."""
    return Pairing(
        *(
            fit(points([cell(name, loop, times(loop)) for loop in LOOPS]))
            for name, times in ((SPEC, spec), (BASE, base))
        )
    )


def line(fixed: float, per_sequence: float) -> Times:
    """Seconds per token on a straight line."""
    return lambda n: fixed + per_sequence * n


CROSSING = paired(line(0.002, 0.003), line(0.007, 0.0012))
SWAPPED = paired(line(0.007, 0.0012), line(0.002, 0.003))


class TestPairing:
    """Who is ahead where."""

    def test_a_crossing_knows_its_direction(self) -> None:
        """Whether the lead of speculation ends there, or begins."""
        [ends] = CROSSING.crossings()
        [begins] = SWAPPED.crossings()
        assert ends.in_flight == pytest.approx(0.005 / 0.0018, rel=1e-4)
        assert begins.in_flight == pytest.approx(ends.in_flight, rel=1e-4)
        assert ends.ends_lead
        assert not begins.ends_lead

    def test_steps_go_from_one_to_the_reach(self) -> None:
        """Nothing is said of what was not measured."""
        steps = CROSSING.steps()
        assert steps[0] == 1.0
        assert steps[-1] == pytest.approx(48.0)
        assert steps == sorted(steps)

    def test_the_lead_is_a_ratio_of_rates(self) -> None:
        """X_spec / X_base."""
        assert CROSSING.lead(1.0) == pytest.approx(0.0082 / 0.005, rel=1e-4)
        assert CROSSING.of(SPEC) is CROSSING.spec
        assert CROSSING.of(BASE) is CROSSING.base


class TestSpread:
    """What replicates say together."""

    def test_base_ahead_from_the_start_has_no_crossing(self) -> None:
        """Where its lead ends later is not where that of speculation does."""
        spread = Spread.of([SWAPPED])
        assert list(spread.first) == [1.0]
        assert spread.crossing == 0.0
        assert spread.lasting == 0.0

    def test_a_lead_that_lasts_ends_at_the_reach(self) -> None:
        """As far as is known."""
        spread = Spread.of([paired(line(0.003, 0.001), line(0.007, 0.0012))])
        assert list(spread.first) == [pytest.approx(48.0)]
        assert spread.lasting == 1.0

    def test_shares_add_up(self) -> None:
        """Each replicate is one of three."""
        spread = Spread.of([SWAPPED, CROSSING, CROSSING, paired(line(1e-3, 1e-3), line(0.1, 1e-3))])
        assert (spread.crossing, spread.lasting) == (0.5, 0.25)


class TestRedrawn:
    """Replicates of the bootstrap."""

    def test_runs_move_by_their_noise(self) -> None:
        """2 % where the curve holds."""
        random = Random(1)
        found = [redrawn(CROSSING, random).base.points[5].seconds for _ in range(400)]
        assert pstdev(found) / CROSSING.base.points[5].seconds == pytest.approx(0.02, rel=0.15)

    def test_a_curve_that_holds_badly_is_less_certain(self) -> None:
        """By the root of chi-square per degree of freedom, of all its noise."""
        uneven = paired(
            line(0.002, 0.003), lambda n: (0.007 + 0.0012 * n) * (1.08 if n in {2, 6, 16} else 0.94)
        )
        assert not uneven.base.misfits
        random = Random(1)
        found = [redrawn(uneven, random).base.points[5].seconds for _ in range(400)]
        expected = 0.02 * uneven.base.chi_square**0.5
        assert uneven.base.chi_square > 4.0
        assert pstdev(found) / uneven.base.points[5].seconds == pytest.approx(expected, rel=0.15)

    def test_what_requests_explain_is_not_counted_twice(self) -> None:
        """They are drawn again; the rest of what a curve is off by is drawn besides."""
        random = Random(2)
        scattered = [
            cell(BASE, n, 0.01 * (1.25 if n in {2, 6, 16} else 0.9), random=random, spread=0.25)
            for n in LOOPS
        ]
        found = fit(points(scattered))
        point = found.points[5]
        assert found.chi_square > 1.5
        whole = point.scatter**2 + found.noise(point) ** 2
        assert whole == pytest.approx(found.chi_square * point.sigma(found.run_noise) ** 2)


class TestParts:
    """Whether a crossing parts a gain from a loss."""

    CLOSE = paired(lambda n: 0.0098 + 0.0001 * n, lambda n: 0.01 + 0.00009 * n)

    def test_one_that_is_sure_does(self) -> None:
        """At its place; not where one side of it is empty."""
        random = Random(1)
        spread = Spread.of([redrawn(CROSSING, random) for _ in range(60)])
        assert spread.parts(2.8)
        assert not spread.parts(60.0)
        assert not spread.parts(0.5)

    def test_one_between_curves_that_lie_together_does_not(self) -> None:
        """Two per cent apart at one end, and half of one at the other."""
        random = Random(1)
        spread = Spread.of([redrawn(self.CLOSE, random) for _ in range(60)])
        assert not spread.parts(20.0)


def test_a_quantile_lies_between_its_neighbours() -> None:
    """On the line between them; the ends are the ends."""
    assert quantile([1.0, 2.0, 4.0], 0.0) == 1.0
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert quantile([1.0, 2.0, 4.0], 1.0) == 4.0
