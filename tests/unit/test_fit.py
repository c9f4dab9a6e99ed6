"""Cells to a curve: what fits, what does not, and what is refused."""

from dataclasses import replace
from math import hypot, inf, nan, sqrt
from random import Random
from statistics import fmean

import pytest

from proxy.tools.curves.cells import agreement, evened, outliers
from proxy.tools.curves.fit import BadDataError, Cell, Fit, fit, points, refit
from tests.harness.sweeps import BASE, LOOPS, SPEC, Times, cell


def line(in_flight: float) -> float:
    """The founding base server."""
    return 0.0068 + 0.0012 * in_flight


def fitted(times: Times, loops: tuple[int, ...] = LOOPS, random: Random | None = None) -> Fit:
    """The fit of one server with these times."""
    return fit(points([cell(BASE, n, times(n), random=random) for n in loops]))


class TestCurve:
    """The curve through good cells."""

    def test_a_line_is_found_again(self) -> None:
        """And continued straight."""
        found = fitted(line)
        for in_flight in (0.5, 1, 7, 48, 200):
            assert found.seconds_per_token(in_flight) == pytest.approx(line(in_flight), rel=1e-6)
        assert found.chi_square < 0.01
        assert found.jump is None
        assert not found.misfits

    def test_a_parabola_is_found_again(self) -> None:
        """Up to the last cell."""
        found = fitted(lambda n: 0.006 + 0.0001 * n + 4e-6 * n * n)
        assert found.curve.bend == pytest.approx(4e-6, rel=1e-3)
        assert found.curve.to == 48.0

    def test_a_knee_is_found(self) -> None:
        """Flat while weights are read anyway, straight once arithmetic counts."""

        def knee(n: float) -> float:
            return 0.004 + sqrt(hypot(0.006**2, (0.0009 * n) ** 2))

        found = fitted(knee)
        assert found.curve.to < 48.0
        for n in LOOPS:
            assert found.seconds_per_token(n) == pytest.approx(knee(n), rel=0.03)

    def test_flat_is_flat(self) -> None:
        """A server whose batch costs nothing has a slope of 0, not one below."""
        found = fitted(lambda _n: 0.01, random=Random(3))
        assert found.curve.per_sequence >= 0.0
        assert found.seconds_per_token(48) >= found.seconds_per_token(1) > 0.0

    def test_time_that_falls_is_not_followed(self) -> None:
        """It never falls with what is in flight; the cells that say so are shown."""
        found = fitted(lambda n: 0.05 if n < 4 else 0.01 + 0.0001 * n)
        times = [found.seconds_per_token(n) for n in range(1, 100)]
        assert times == sorted(times)
        assert found.misfits

    @pytest.mark.parametrize("loops", [(1, 2), (1, 4, 16), (1, 2, 4, 8)])
    def test_few_cells_make_a_simpler_curve(self, loops: tuple[int, ...]) -> None:
        """Two a line, three a bend; none left over for a goodness."""
        found = fitted(line, loops)
        assert found.seconds_per_token(2) == pytest.approx(line(2), rel=1e-6)
        assert found.chi_square == pytest.approx(1.0 if len(loops) < 4 else 0.0, abs=1e-6)

    def test_the_mean_makes_the_rate(self) -> None:
        """With outputs of one length a batch yields n / mean TPOT, not n / median."""
        skewed = replace(cell(BASE, 1, 0.01), samples=(0.005, 0.005, 0.02), rate=90.0)
        assert points([skewed])[0].seconds == pytest.approx(0.01)


class TestJump:
    """Above the largest CUDA graph."""

    def test_it_is_found_in_its_gap(self) -> None:
        """With its height; the curve is that without it."""
        found = fitted(lambda n: line(n) + (0.05 if n > 16 else 0.0))
        assert found.jump is not None
        assert (found.jump.after, found.jump.before) == (16.0, 24.0)
        assert found.jump.seconds == pytest.approx(0.05, rel=0.01)
        assert found.seconds_per_token(16) == pytest.approx(line(16), rel=0.01)
        assert found.seconds_per_token(32) == pytest.approx(line(32) + 0.05, rel=0.01)

    @pytest.mark.parametrize("seed", range(5))
    def test_noise_has_none(self, seed: int) -> None:
        """Also where it is larger than thought."""
        random = Random(seed)
        assert fitted(lambda n: line(n) * random.gauss(1.0, 0.08), random=random).jump is None

    @pytest.mark.parametrize("disturbed", [4, 6, 8, 12, 16, 24])
    @pytest.mark.parametrize("factor", [1.4, 2.0])
    def test_one_disturbed_cell_is_no_jump(self, disturbed: int, factor: float) -> None:
        """The cells behind it do not share it; it is a misfit, by as much as it is off."""
        found = fitted(lambda n: line(n) * (factor if n == disturbed else 1.0))
        assert found.jump is None
        [(point, away)] = found.misfits
        assert point.id.loop == disturbed
        assert away == pytest.approx(factor - 1.0, abs=0.02)

    def test_a_replicate_moves_it_within_its_gap(self) -> None:
        """Where it is between two cells, nobody knows."""
        found = fitted(lambda n: line(n) + (0.05 if n > 16 else 0.0))
        again = refit(found, [point.seconds for point in found.points], 0.25)
        assert again.jump is not None
        assert again.jump.at == 18.0
        assert again.curve.fixed == pytest.approx(found.curve.fixed)


class TestRuns:
    """Several runs of a cell."""

    def test_they_tell_how_much_a_run_moves(self) -> None:
        """2 % is only what is thought before."""
        steady = [cell(BASE, n, line(n)) for n in LOOPS] * 3
        moving = [
            cell(BASE, each.loop, factor * line(each.loop))
            for each, factor in zip(steady, [0.93, 1.0, 1.07] * 11, strict=True)
        ]
        assert fit(points(steady)).run_noise < 0.02
        assert fit(points(moving)).run_noise == pytest.approx(0.055, abs=0.02)

    def test_one_against_two_is_set_aside(self) -> None:
        """And shown; the curve is that of the others."""
        cells = [cell(BASE, n, line(n)) for n in LOOPS]
        cells += [cell(BASE, 8, line(8)), cell(BASE, 8, 3 * line(8))]
        found = fit(points(cells))
        assert [run.seconds for run in found.aside] == [pytest.approx(3 * line(8))]
        assert not found.disputed
        assert not found.misfits
        assert found.run_noise < 0.02
        assert found.seconds_per_token(8) == pytest.approx(line(8), rel=1e-3)

    def test_one_against_one_is_disputed(self) -> None:
        """Neither is left out, and neither makes the others look uncertain."""
        cells = [cell(BASE, n, line(n)) for n in LOOPS] + [cell(BASE, 8, 3 * line(8))]
        found = fit(points(cells))
        assert [str(cell_id) for cell_id in found.disputed] == ["base at 8 in flight"]
        assert not found.aside
        assert found.run_noise == 0.02

    def test_two_against_two_is_disputed(self) -> None:
        """No majority."""
        runs = [cell(BASE, 8, seconds) for seconds in (0.01, 0.01, 0.03, 0.03)]
        assert agreement(points(runs)).disputed
        assert len(agreement(points(runs)).kept) == 4


class TestScatter:
    """How much requests differ is a trait of the server."""

    def test_cells_that_happen_to_agree_weigh_no_more(self) -> None:
        """They get the usual scatter, by their number of requests."""
        differing = [cell(SPEC, n, 0.01, random=Random(n)) for n in (1, 2, 4, 8)]
        agreeing = cell(SPEC, 16, 0.01)
        known = evened(points([*differing, agreeing]))
        assert known[-1].scatter == pytest.approx(known[0].scatter / sqrt(2.0))

    def test_a_cell_that_differs_unusually_is_taken_at_its_word(self) -> None:
        """Something went on there."""
        cells = [cell(SPEC, n, 0.01, random=Random(n), spread=0.1) for n in (1, 2, 4, 8)]
        wild = cell(SPEC, 16, 0.01, random=Random(16), spread=1.0)
        before, known = (made(points([*cells, wild])) for made in (tuple, evened))
        assert known[-1].scatter == before[-1].scatter
        assert known[0].scatter < 0.3 * known[-1].scatter


def _fields(known: Cell) -> dict[str, object]:
    return {name: getattr(known, name) for name in Cell.__slots__}


class TestRefusals:
    """What cannot be data is refused by the name of its cell."""

    GOOD = cell(SPEC, 8, 0.02)

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            ({"errors": 2}, "2 requests failed"),
            ({"samples": ()}, "0 requests are too few"),
            ({"samples": (0.02, 0.02)}, "2 requests are too few"),
            ({"samples": (0.02, 0.02, nan)}, "nan seconds"),
            ({"samples": (0.02, 0.02, inf)}, "inf seconds"),
            ({"samples": (0.02, 0.02, 0.0)}, "0.0 seconds"),
            ({"samples": (0.02, 0.02, -0.02)}, "-0.02 seconds"),
            ({"concurrency": 0.0}, "a mean of 0.0 in flight"),
            ({"concurrency": nan}, "a mean of nan in flight"),
            ({"rate": 0.0}, "0.0 output tokens/s"),
            ({"rate": nan}, "nan output tokens/s"),
            ({"rate": 900.0}, "900 output tokens/s were counted"),
        ],
    )
    def test_a_bad_cell(self, bad: dict[str, object], said: str) -> None:
        """None of these gives a number."""
        wrong = Cell(**{**_fields(self.GOOD), **bad})  # type: ignore[arg-type]
        with pytest.raises(BadDataError, match=f"spec at 8 in flight: .*{said}"):
            points([self.GOOD, wrong])

    def test_one_concurrency_is_no_curve(self) -> None:
        """However often it was run."""
        with pytest.raises(BadDataError, match=r"base at 8 in flight: .* at least two"):
            fit(points([cell(BASE, 8, 0.02)] * 5))

    def test_no_cells_are_no_curve(self) -> None:
        """There is nothing to name."""
        with pytest.raises(BadDataError, match="at least two"):
            fit([])

    def test_concurrencies_that_hardly_differ_are_no_curve(self) -> None:
        """A slope would be noise."""
        cells = [
            replace(cell(BASE, n, 0.01), concurrency=1.0 + n / 100, rate=90.0) for n in (1, 2, 4)
        ]
        with pytest.raises(BadDataError, match="about the same in flight"):
            fit(points(cells))

    def test_slow_requests_are_shown_and_counted(self) -> None:
        """A mean without them would be of another server."""
        one = replace(self.GOOD, samples=(*self.GOOD.samples, 0.2), rate=200.0)
        assert outliers(one) == (0.2,)
        assert points([one])[0].seconds == pytest.approx(fmean(one.samples))
