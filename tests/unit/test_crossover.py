"""The verdict on a pair: each kind on curves made for it, and no number where there is none."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from proxy.calibration import VerdictKind
from proxy.core.curves import Prefill
from proxy.sim.physics import FOUNDING, crossover
from proxy.tools.curves.crossover import Conditions, Findings, conclude, more_needed
from proxy.tools.curves.fit import BadDataError, Cell
from tests.harness.sweeps import (
    BASE,
    LOOPS,
    SPEC,
    Times,
    cell,
    conditions,
    conversation,
    sweep,
    times_of,
)

RESAMPLES = 60
FREE = Conditions({SPEC: Prefill(0.0, 0.0), BASE: Prefill(0.0, 0.0)}, {SPEC: None, BASE: None}, ())
FOUNDING_SPEC, FOUNDING_BASE = times_of(FOUNDING, SPEC), times_of(FOUNDING, BASE)


def concluded(cells: Sequence[Cell], made: Conditions = FREE, seed: int = 1) -> Findings:
    """What a small bootstrap says."""
    return conclude(cells, made, random=Random(seed), resamples=RESAMPLES)


def judged(
    spec: Times, base: Times, seed: int | None = None, loops: Sequence[int] = LOOPS
) -> Findings:
    """The same of a sweep over two curves, with noise if there is a seed."""
    random = None if seed is None else Random(seed)
    return concluded(sweep(spec, base, random, loops=loops))


class TestCrossover:
    """Speculation wins first and loses later."""

    def test_founding(self) -> None:
        """N* is a real number, with an interval around it."""
        findings = judged(FOUNDING_SPEC, FOUNDING_BASE, seed=1)
        assert findings.verdict.kind is VerdictKind.CROSSOVER
        assert findings.crossover is not None
        assert findings.crossover.value == pytest.approx(crossover(FOUNDING), rel=0.15)
        assert findings.crossover.low < findings.crossover.value < findings.crossover.high
        assert f"{findings.crossover.value:.1f} in flight" in findings.verdict.sentence
        assert not more_needed(findings)

    def test_without_noise_it_is_exact(self) -> None:
        """And what a lone request gains."""
        findings = judged(FOUNDING_SPEC, FOUNDING_BASE)
        assert findings.crossover is not None
        assert findings.crossover.value == pytest.approx(crossover(FOUNDING), rel=1e-4)
        assert findings.alone.value == pytest.approx(FOUNDING_BASE(1) / FOUNDING_SPEC(1), rel=1e-4)
        assert findings.crossings == (findings.crossover.value,)
        assert findings.reach == 48.0

    @pytest.mark.slow
    def test_the_rate_comes_from_an_open_loop(self) -> None:
        """With prefill and lengths; 0.30 of what base carries at 64 was the hand-set figure."""
        findings = concluded(
            sweep(FOUNDING_SPEC, FOUNDING_BASE), conditions(FOUNDING, conversation(2000))
        )
        assert findings.rate is not None
        assert findings.rate.value / 616 == pytest.approx(0.30, abs=0.02)
        assert findings.rate.low < findings.rate.value < findings.rate.high
        assert f"{findings.rate.value:.0f} output tokens/s" in findings.verdict.sentence

    def test_without_lengths_the_rate_is_unknown(self) -> None:
        """N* is known all the same."""
        findings = judged(FOUNDING_SPEC, FOUNDING_BASE)
        assert findings.crossover is not None
        assert findings.rate is None

    @pytest.mark.slow
    def test_a_rate_beyond_what_base_carries_is_that(self) -> None:
        """Ahead at every load that lasts, though not at every number in flight."""
        findings = concluded(
            sweep(lambda n: 0.004 + 0.0003 * n, lambda n: 0.0092 + 0.0001 * n, loops=LOOPS[:-1]),
            replace(FREE, lengths=[(0, 100)] * 50, caps={SPEC: None, BASE: 32}),
        )
        assert findings.crossover is not None
        assert findings.rate is not None
        assert findings.rate.high < 4000.0

    @pytest.mark.slow
    def test_a_rate_of_none_says_so(self) -> None:
        """What speculation gains in decoding it loses in prompts."""
        heavy = {SPEC: Prefill(0.5, 0.001), BASE: Prefill(0.0, 0.0)}
        findings = concluded(
            sweep(FOUNDING_SPEC, FOUNDING_BASE),
            replace(FREE, prefill=heavy, lengths=[(500, 50)] * 50),
        )
        assert findings.crossover is not None
        assert findings.rate is not None
        assert findings.rate.value == 0.0
        assert "base is as fast from the lowest load on" in findings.verdict.sentence

    def test_at_a_jump_it_lies_in_the_gap(self) -> None:
        """Above the largest CUDA graph speculation is lost; it is kept below it."""
        findings = judged(
            lambda n: 0.003 + 0.0002 * n + (0.02 if n > 16 else 0.0),
            lambda n: 0.0065 + 0.0003 * n,
            seed=4,
        )
        assert findings.crossover is not None
        assert 16.0 <= findings.crossover.low < findings.crossover.high <= 24.0
        assert findings.servers[SPEC].cap == 16
        assert any("CUDA graph" in note for note in findings.notes)

    def test_the_first_of_several_counts(self) -> None:
        """Base is ahead above it, whatever comes later; all are told."""
        findings = judged(
            lambda n: 0.003 + 0.0008 * n,
            lambda n: 0.0065 + 0.0003 * n + (0.02 if n > 16 else 0.0),
            seed=4,
        )
        assert findings.crossover is not None
        assert findings.crossover.value == pytest.approx(7.0, rel=0.15)
        assert len(findings.crossings) > 1
        assert any("more than once" in note for note in findings.notes)


class TestNone:
    """No crossover, one way or the other."""

    def test_speculation_ahead_all_the_way(self) -> None:
        """As far as was measured, which the sentence says."""
        findings = judged(lambda n: 0.6 * FOUNDING_BASE(n), FOUNDING_BASE, seed=3)
        assert findings.verdict.kind is VerdictKind.NO_CROSSOVER
        assert findings.verdict.sentence.startswith("No crossover up to 48 in flight")
        assert findings.crossover is None
        assert findings.rate is None

    def test_speculation_never_ahead(self) -> None:
        """Not even alone."""
        findings = judged(lambda n: 1.3 * FOUNDING_BASE(n), FOUNDING_BASE, seed=3)
        assert findings.verdict.kind is VerdictKind.NEVER_WINS
        assert findings.crossover is None
        assert findings.alone.high < 1.05

    def test_the_same_server_twice(self) -> None:
        """Without noise that is clear; with it more may be needed, but no crossover is made up."""
        assert judged(FOUNDING_BASE, FOUNDING_BASE).verdict.kind is VerdictKind.NEVER_WINS
        kinds = {judged(FOUNDING_BASE, FOUNDING_BASE, seed).verdict.kind for seed in range(6)}
        assert kinds <= {VerdictKind.NEVER_WINS, VerdictKind.UNDECIDED}


class TestUndecided:
    """The figures do not tell, and what would."""

    def test_swapped_servers(self) -> None:
        """Base faster alone and slower at load: said, and no more of the same is asked for."""
        findings = judged(FOUNDING_BASE, FOUNDING_SPEC, seed=1)
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert "swapped?" in findings.verdict.sentence
        assert findings.crossover is None
        assert not more_needed(findings)

    def test_a_gain_that_rises_first(self) -> None:
        """With experts: behind alone, ahead in the middle. One crossover cannot say that."""
        findings = judged(
            lambda n: FOUNDING_BASE(n) * (1.3 - 0.05 * min(n, 12) + 0.02 * max(0.0, n - 12)),
            FOUNDING_BASE,
            seed=1,
        )
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert "experts" in findings.verdict.sentence

    def test_a_crossing_at_the_end_of_the_sweep(self) -> None:
        """The last two loops on both servers need more requests."""
        findings = judged(lambda n: 0.003 + 0.0003 * n, lambda n: 0.0075 + 0.0002 * n, seed=0)
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert {(each.server, each.loop) for each in more_needed(findings)} == {
            (SPEC, 32), (SPEC, 48), (BASE, 32), (BASE, 48),
        }  # fmt: skip
        assert "32 and 48 in flight" in findings.verdict.sentence

    def test_a_lead_that_may_be_none(self) -> None:
        """The first two loops say what a lone request gains."""
        findings = judged(lambda n: 0.0069 + 0.0012 * n, lambda n: 0.0079 + 0.00035 * n, seed=3)
        if findings.verdict.kind is VerdictKind.UNDECIDED:
            assert {each.loop for each in more_needed(findings)} == {1, 2}
        else:
            assert findings.verdict.kind is VerdictKind.NEVER_WINS

    def test_an_interval_too_wide_to_steer_by(self) -> None:
        """There is a crossing, but a threshold in such an interval may be off by half."""
        findings = concluded(
            sweep(
                lambda n: 0.004 + 0.001 * n,
                lambda n: 0.007 + 0.0006 * n,
                Random(0),
                noise=0.06,
                loops=(1, 2, 4, 8, 16, 32, 48),
            )
        )
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert "that ends is not clear" in findings.verdict.sentence
        assert findings.wanted

    def test_cells_too_far_apart(self) -> None:
        """A curve does not vouch for what lies between 1 and 48; one between is asked for."""
        findings = judged(FOUNDING_SPEC, FOUNDING_BASE, loops=(1, 48))
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert {each.loop for each in more_needed(findings)} == {1, 7, 48}

    @pytest.mark.parametrize("name", [SPEC, BASE])
    def test_a_disturbed_cell(self, name: str) -> None:
        """It is named, and to be measured again."""
        cells = [
            each if (each.server, each.loop) != (name, 8) else cell(each.server, 8, 0.08)
            for each in sweep(FOUNDING_SPEC, FOUNDING_BASE, Random(1))
        ]
        findings = concluded(cells)
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert f"{name} at 8 in flight is +" in findings.verdict.sentence
        assert [(each.server, each.loop) for each in more_needed(findings)] == [(name, 8)]

    def test_a_second_run_that_contradicts_is_asked_for_again(self) -> None:
        """And with a third, the odd one is left out and told."""
        cells = sweep(FOUNDING_SPEC, FOUNDING_BASE, Random(1))
        cells.append(cell(SPEC, 8, 0.1))
        findings = concluded(cells)
        assert findings.verdict.kind is VerdictKind.UNDECIDED
        assert "two runs of spec at 8 in flight contradict" in findings.verdict.sentence
        cells.append(cell(SPEC, 8, FOUNDING_SPEC(8)))
        findings = concluded(cells)
        assert findings.verdict.kind is VerdictKind.CROSSOVER
        assert any("spec at 8 in flight: a run with 0.1 s" in note for note in findings.notes)

    @pytest.mark.parametrize("seed", range(6))
    def test_much_noise_is_not_misread(self, seed: int) -> None:
        """Runs that move by 15 %: undecided, or an interval that holds the true value."""
        findings = concluded(sweep(FOUNDING_SPEC, FOUNDING_BASE, Random(seed), noise=0.15))
        if findings.crossover is not None:
            assert findings.crossover.low <= crossover(FOUNDING) <= findings.crossover.high

    def test_more_requests_decide(self) -> None:
        """Adaptive refinement gets somewhere."""

        def spec(n: float) -> float:
            return 0.003 + 0.0003 * n

        def base(n: float) -> float:
            return 0.006 + 0.0002 * n

        random = Random(5)
        cells = sweep(spec, base, random)
        before = concluded(cells)
        for _ in range(3):
            for name, times in ((SPEC, spec), (BASE, base)):
                cells += [cell(name, n, times(n), random=random) for n in (24, 32, 48)]
        after = concluded(cells)
        assert after.crossover is not None
        if before.crossover is not None:
            narrowed = after.crossover.high - after.crossover.low
            assert narrowed < before.crossover.high - before.crossover.low


class TestRefusals:
    """Nothing is concluded from bad data."""

    def test_a_cell_with_errors(self) -> None:
        """By its name."""
        cells = sweep(FOUNDING_SPEC, FOUNDING_BASE)
        cells[3] = replace(cells[3], errors=1)
        with pytest.raises(BadDataError, match="spec at 4 in flight: 1 requests failed"):
            concluded(cells)

    @pytest.mark.parametrize("name", [SPEC, BASE])
    def test_a_server_without_cells(self, name: str) -> None:
        """Half a sweep says nothing."""
        cells = [each for each in sweep(FOUNDING_SPEC, FOUNDING_BASE) if each.server != name]
        with pytest.raises(BadDataError, match=f"{name}: no cells"):
            concluded(cells)

    def test_a_cell_above_the_cap(self) -> None:
        """Some of its requests waited: their time per token is that of the cap."""
        with pytest.raises(BadDataError, match="spec at 48 in flight: the server runs 32"):
            concluded(
                sweep(FOUNDING_SPEC, FOUNDING_BASE), replace(FREE, caps={SPEC: 32, BASE: None})
            )

    def test_a_sweep_that_starts_late(self) -> None:
        """What a lone request gains is half of the question."""
        with pytest.raises(BadDataError, match="measure a lone request"):
            judged(FOUNDING_SPEC, FOUNDING_BASE, loops=(4, 8, 16))


class TestFindings:
    """What a report draws."""

    def test_bands_hold_the_curves(self) -> None:
        """From 1 to the reach, in order."""
        findings = judged(FOUNDING_SPEC, FOUNDING_BASE, seed=2)
        for name, band in findings.bands.items():
            places = [in_flight for in_flight, _, _ in band]
            assert places == sorted(places)
            assert places[0] == 1.0
            for in_flight, low, high in band:
                assert low <= high
                assert low * 0.9 < findings.fits[name].seconds_per_token(in_flight) < high * 1.1

    def test_the_same_seed_says_the_same(self) -> None:
        """A calibration can be repeated from its cells."""
        first, second = (judged(FOUNDING_SPEC, FOUNDING_BASE, seed=7) for _ in range(2))
        assert first.verdict == second.verdict
        assert first.crossover == second.crossover

    def test_slow_requests_are_told(self) -> None:
        """Counted, and shown with their cell."""
        cells = sweep(FOUNDING_SPEC, FOUNDING_BASE)
        slow = cells[0]
        cells[0] = replace(slow, samples=(*slow.samples[1:], 5 * slow.samples[0]))
        assert any(
            note.startswith("spec at 1 in flight: 1 of 16 requests")
            for note in concluded(cells).notes
        )
