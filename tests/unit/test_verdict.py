"""What the data do not allow to say: curves that do not hold, that move, or that lie together.

Each verdict on good data is in test_crossover.py; how often noise misleads, in tests/simulation.
"""

from collections.abc import Sequence
from random import Random

import pytest

from proxy.calibration import VerdictKind
from proxy.core.curves import Prefill
from proxy.core.words import UpstreamName
from proxy.sim.physics import FOUNDING
from proxy.tools.curves.crossover import Conditions, Findings, conclude, more_needed
from proxy.tools.curves.fit import Cell, fit, points
from proxy.tools.curves.pairing import Pairing, Spread
from proxy.tools.curves.verdict import judge, poor
from tests.harness.sweeps import BASE, LOOPS, SPEC, Times, cell, sweep, times_of

FREE = Conditions({SPEC: Prefill(0.0, 0.0), BASE: Prefill(0.0, 0.0)}, {SPEC: None, BASE: None}, ())
FOUNDING_SPEC, FOUNDING_BASE = times_of(FOUNDING, SPEC), times_of(FOUNDING, BASE)
OWN = {SPEC: FOUNDING_SPEC, BASE: FOUNDING_BASE}

UNEVEN = (1.09, 0.92, 1.07, 0.94, 1.09, 0.9, 1.1, 0.92, 1.08, 0.93, 1.0)
"""By place in LOOPS: what a curve does not follow, and no single cell is to blame for."""


def concluded(cells: Sequence[Cell], seed: int = 1) -> Findings:
    """What a small bootstrap says."""
    return conclude(cells, FREE, random=Random(seed), resamples=60)


def uneven(name: UpstreamName) -> Times:
    """The founding server of that name, with cells that scatter around its curve."""
    return lambda n: OWN[name](n) * UNEVEN[LOOPS.index(int(n))]


def with_uneven(*names: UpstreamName) -> list[Cell]:
    """A sweep of the founding pair with those servers uneven; requests hardly differ."""
    return [
        cell(name, loop, (uneven(name) if name in names else OWN[name])(loop))
        for name in UpstreamName
        for loop in LOOPS
    ]


class TestPoorFit:
    """Noise that differs from cell to cell."""

    @pytest.mark.parametrize("name", [SPEC, BASE])
    def test_one_curve_that_does_not_hold(self, name: UpstreamName) -> None:
        """No number, whichever server it is; how far off, and what to do."""
        findings = concluded(with_uneven(name))
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert findings.crossover is None
        assert findings.rate is None
        assert f"no curve holds for {name}" in findings.verdict.sentence
        assert "--fresh" in findings.verdict.sentence

    def test_both_are_named(self) -> None:
        """In one sentence."""
        said = concluded(with_uneven(SPEC, BASE)).verdict.sentence
        assert "holds for spec" in said
        assert "holds for base" in said

    def test_the_cells_furthest_off_are_asked_for_again(self) -> None:
        """Three of the server that is meant: a second run tells noise from shape."""
        wanted = more_needed(concluded(with_uneven(BASE)))
        assert len(wanted) == 3
        assert {each.server for each in wanted} == {BASE}

    def test_no_other_verdict_comes_of_it_either(self) -> None:
        """Ahead throughout or behind throughout: neither is said of curves that do not hold."""
        for factor in (0.4, 1.6):
            cells = with_uneven(BASE)
            cells += [cell(SPEC, loop, factor * FOUNDING_BASE(loop)) for loop in LOOPS]
            own = [each for each in cells if each.server is BASE] + cells[-len(LOOPS) :]
            assert concluded(own).verdict.kind is VerdictKind.UNDECIDED

    def test_a_curve_off_by_a_little_will_do(self) -> None:
        """Cells that agree each time, 4 % beside their curve: more of them would not help."""
        cells = [
            cell(name, loop, OWN[name](loop) * (1.0 + 0.45 * (UNEVEN[place] - 1.0)))
            for name in UpstreamName
            for place, loop in enumerate(LOOPS)
        ] * 2
        findings = concluded(cells)
        assert findings.fits[BASE].chi_square > 6.0
        assert findings.verdict.kind is VerdictKind.CROSSOVER

    def test_cells_that_never_come_out_alike(self) -> None:
        """With every cell run twice the noise is known; a curve then holds, and tells nothing."""
        cells = with_uneven()
        cells += [
            cell(BASE, loop, FOUNDING_BASE(loop) * (0.836 if place % 2 else 1.195))
            for place, loop in enumerate(LOOPS)
        ]
        base = fit(points([each for each in cells if each.server is BASE]))
        assert base.chi_square < 6.0
        assert poor(base)
        assert "measured again differ by about" in concluded(cells).verdict.sentence


class TestMoved:
    """Servers that change their speed while they are measured."""

    def test_both_slower_at_the_end(self) -> None:
        """Two runs of the beginning, repeated, say so: nothing is concluded of what is between."""
        slower = [1.0 + 0.3 * place / len(LOOPS) for place in range(len(LOOPS))]
        cells = [
            cell(name, loop, slower[place] * OWN[name](loop))
            for name in UpstreamName
            for place, loop in enumerate(LOOPS)
        ]
        cells += [cell(name, 2, 1.3 * OWN[name](2)) for name in UpstreamName]
        findings = concluded(cells)
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert "both servers changed their speed" in findings.verdict.sentence
        assert findings.crossover is None
        assert not more_needed(findings)

    def test_repeated_runs_that_agree_change_nothing(self) -> None:
        """As a steady pair has them."""
        cells = sweep(FOUNDING_SPEC, FOUNDING_BASE, Random(1))
        cells += [cell(name, 2, 1.02 * OWN[name](2)) for name in UpstreamName]
        assert concluded(cells).verdict.kind is VerdictKind.CROSSOVER


class TestAlike:
    """Curves so close together that where they cross is chance."""

    @pytest.mark.parametrize("seed", range(8))
    def test_the_same_speed_is_no_crossover(self, seed: int) -> None:
        """Whatever the noise makes of it."""
        findings = concluded(sweep(FOUNDING_BASE, FOUNDING_BASE, Random(seed)), seed)
        assert findings.verdict.kind in {VerdictKind.NEVER_WINS, VerdictKind.UNDECIDED}

    @pytest.mark.parametrize("seed", range(8))
    def test_a_lead_that_fades_into_noise_is_none(self, seed: int) -> None:
        """Eight per cent ahead alone, none behind at the end: they meet, but base never leads."""

        def spec(n: float) -> float:
            return FOUNDING_BASE(n) * (0.92 + 0.08 * min(n, 12) / 12)

        findings = concluded(sweep(spec, FOUNDING_BASE, Random(seed)), seed)
        assert findings.verdict.kind is not VerdictKind.CROSSOVER

    def test_a_crossing_that_base_does_not_surely_win_is_open(self) -> None:
        """Base ahead by 1 % beyond it, and measured no better than 2 %."""

        def spec(n: float) -> float:
            return FOUNDING_BASE(n) * (0.5 + 0.51 * min(n, 4) / 4)

        kinds = {
            concluded(sweep(spec, FOUNDING_BASE, Random(seed)), seed).verdict.kind
            for seed in range(6)
        }
        assert VerdictKind.UNDECIDED in kinds

    @pytest.mark.parametrize(
        ("surely", "kind"),
        [
            ([(1.0, 1.1, 1.5), (3.0, 0.9, 1.1), (8.0, 0.6, 0.9)], VerdictKind.CROSSOVER),
            ([(1.0, 0.9, 1.5), (3.0, 0.9, 1.1), (8.0, 0.6, 0.9)], VerdictKind.UNDECIDED),
            ([(1.0, 1.1, 1.5), (3.0, 0.9, 1.1), (8.0, 0.6, 1.0)], VerdictKind.UNDECIDED),
        ],
    )
    def test_a_place_in_common_is_not_enough(
        self, surely: list[tuple[float, float, float]], kind: VerdictKind
    ) -> None:
        """Where all replicates cross at one place, one of the two must still lead on each side."""
        pairing = Pairing(
            *(fit(points([cell(name, n, OWN[name](n)) for n in LOOPS])) for name in UpstreamName)
        )
        spread = Spread([1.3, 1.4], [1.3, 1.4], [3.0, 3.2], 1.0, 0.0, surely)
        assert judge(pairing, spread, None).kind is kind
