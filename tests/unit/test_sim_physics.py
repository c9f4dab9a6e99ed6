"""The cost model gives the figures that it was fitted to, and the crossover that follows."""

from dataclasses import replace
from math import inf, isclose
from random import Random

import pytest

from proxy.core.words import UpstreamName
from proxy.sim.physics import (
    CHAIN,
    FOUNDING,
    PROFILES,
    TREE,
    Profile,
    StepCost,
    Work,
    acceptance_probability,
    accepted_drafts,
    crossover,
    kappa,
    output_rate,
    prefill_work,
    speed,
)

BASE, SPEC = UpstreamName.BASE, UpstreamName.SPEC


@pytest.mark.parametrize(
    ("sequences", "base", "spec"), [(1, 125, 213), (4, 345, 308), (16, 615, 346), (64, 766, 357)]
)
def test_founding_figures(sequences: int, base: int, spec: int) -> None:
    """The isolated rates are those of docs/model.md, to the token."""
    assert round(output_rate(FOUNDING, BASE, sequences)) == base
    assert round(output_rate(FOUNDING, SPEC, sequences)) == spec


def test_founding_saturation_is_a_concurrency_not_a_limit() -> None:
    """773 and 354 tok/s are reached at about 73 and 35 sequences; the limits lie 8 and 2 % higher.

    From the formulas: B / (6.8 + 1.2 B) = 0.773 gives B = 72.6, 2.6 B / (5 + 7.2 B) = 0.354 gives
    B = 34.6; without bound they tend to 1 / 1.2 and 2.6 / 7.2 tokens a millisecond.
    """
    assert isclose(output_rate(FOUNDING, BASE, 72.6), 773, rel_tol=1e-3)
    assert isclose(output_rate(FOUNDING, SPEC, 34.6), 354, rel_tol=1e-3)
    assert isclose(output_rate(FOUNDING, BASE, 1e9), 833.3, rel_tol=1e-3)
    assert isclose(output_rate(FOUNDING, SPEC, 1e9), 361.1, rel_tol=1e-3)


def test_founding_crossover() -> None:
    """N* is where 5 + 7.2 N = 2.6 (6.8 + 1.2 N): 12.68 / 4.08, about 3.1."""
    assert isclose(crossover(FOUNDING), 12.68 / 4.08, rel_tol=1e-9)


def test_both_engines_deliver_the_same_at_the_crossover() -> None:
    """Just below it speculation is ahead, just above it the plain engine is."""
    at = crossover(FOUNDING)
    ahead = [
        output_rate(FOUNDING, SPEC, n) > output_rate(FOUNDING, BASE, n)
        for n in (at - 0.01, at + 0.01)
    ]
    assert ahead == [True, False]


def test_crossover_where_speculation_never_pays() -> None:
    """A draft that guesses nothing is never ahead."""
    assert crossover(replace(FOUNDING, acceptance_length=1.0, base=StepCost(fixed=0.004))) == 0.0


def test_crossover_where_speculation_always_pays() -> None:
    """A round that costs no more than a step is always ahead."""
    assert crossover(replace(FOUNDING, spec=FOUNDING.base)) == inf


def _h100() -> Profile:
    """The worked example of docs/model.md: Llama 8B on one H100, a chain of 3."""
    base = StepCost(
        host=0.00035,
        weights=0.00599,
        per_token=27.1e-6,
        per_context_token=48.9e-9,
        per_sequence=20e-6,
    )
    chain = replace(base, tokens_per_sequence=4, fixed=3 * 0.00043 + 0.002, per_sequence=60e-6)
    return replace(FOUNDING, base=base, spec=chain, draft_steps=3)


@pytest.mark.parametrize(("context", "gain"), [(500, 1.42), (4000, 1.89), (16000, 2.30)])
def test_general_formula(context: int, gain: float) -> None:
    """The whole formula gives the worked example's table: 8B on an H100 at 64 sequences."""
    profile = _h100()
    found = output_rate(profile, SPEC, 64, context) / output_rate(profile, BASE, 64, context)
    assert isclose(found, gain, rel_tol=0.01)


def test_long_contexts_push_the_crossover_up() -> None:
    """N* of the worked example is 188 for 500 tokens; longer contexts favour speculation."""
    assert isclose(crossover(_h100(), 500), 188, rel_tol=0.01)
    assert crossover(_h100(), 1000) > crossover(_h100(), 500)


def test_prefill() -> None:
    """p*m + 3 ms, and 8 % more where the draft is filled too."""
    assert isclose(prefill_work(FOUNDING, BASE, 1000).seconds, 0.058)
    assert isclose(prefill_work(FOUNDING, SPEC, 1000).seconds, 0.058 * 1.08)


def test_prefill_cost_fits_the_saturated_speculative_engine() -> None:
    """1155 tokens in and 211 out at 48 sequences come to the 317 tok/s of docs/model.md."""
    decode = 211 / output_rate(FOUNDING, SPEC, 48)
    whole = prefill_work(FOUNDING, SPEC, 1155).seconds + decode
    assert isclose(211 / whole, 317, rel_tol=0.01)


def test_alone_an_engine_runs_at_full_speed() -> None:
    """Without another engine at work nothing is slowed down."""
    assert speed(Work(0.0, 1.0), None, kappa(0.9)) == 1.0


@pytest.mark.parametrize("contention", [0.65, 0.9, 1.1, 2.0])
def test_two_busy_engines_run_at_half_of_eta(contention: float) -> None:
    """Engines that keep the GPU busy share eta between them; at 2 they do not meet."""
    found = speed(Work(0.0, 1.0), Work(0.0, 0.2), kappa(contention))
    assert isclose(found, contention / 2)


def test_the_host_part_is_not_slowed() -> None:
    """With h = g on both sides and eta 1: T = 1 + 1 * 1.5 for a step of 2."""
    half_idle = Work(1.0, 1.0)
    assert isclose(speed(half_idle, half_idle, kappa(1.0)), 2.0 / 2.5)


@pytest.mark.parametrize("contention", [0.0, -1.0, 2.1])
def test_impossible_contention_is_refused(contention: float) -> None:
    """An eta of 0 stops both engines, and above 2 they would help each other."""
    with pytest.raises(ValueError, match="contention"):
        kappa(contention)


def test_accepted_drafts_have_the_wanted_mean() -> None:
    """Over many rounds a sequence gets tau tokens a round, none above k + 1."""
    chance = acceptance_probability(2.6, 5)
    random = Random(1)
    drawn = [1 + accepted_drafts(random, chance, 5) for _ in range(40_000)]
    assert isclose(sum(drawn) / len(drawn), 2.6, rel_tol=0.01)
    assert (min(drawn), max(drawn)) == (1, 6)


@pytest.mark.parametrize(("mean", "chance"), [(1.0, 0.0), (6.0, 1.0)])
def test_acceptance_at_its_ends(mean: float, chance: float) -> None:
    """A draft that never hits, and one that always does."""
    assert isclose(acceptance_probability(mean, 5), chance, abs_tol=1e-9)


@pytest.mark.parametrize("mean", [0.5, 6.1])
def test_impossible_acceptance_is_refused(mean: float) -> None:
    """Five drafts make between one and six tokens."""
    with pytest.raises(ValueError, match="drafts"):
        acceptance_probability(mean, 5)


def test_profiles_are_found_by_name() -> None:
    """The command line names a profile by the name that it carries."""
    assert list(PROFILES) == ["founding", "tree", "chain"]
    assert all(profile.name == name for name, profile in PROFILES.items())


@pytest.mark.parametrize("profile", [TREE, CHAIN], ids=lambda profile: profile.name)
def test_both_h100_profiles_share_their_plain_engine(profile: Profile) -> None:
    """158 tokens/s for a lone request were measured (EAGLE-3 paper, table 4)."""
    assert profile.base == _h100().base
    assert isclose(output_rate(profile, BASE, 1, 100), 158.34, rel_tol=0.01)


def test_the_tree_crosses_at_23() -> None:
    """With the contexts of the conversations; shorter ones cross earlier."""
    assert isclose(crossover(TREE, 1155), 23, rel_tol=0.02)
    assert isclose(crossover(TREE), 19.3, rel_tol=0.01)


def test_a_lone_request_on_the_tree_takes_half_the_time() -> None:
    """1.51 s and 0.75 s were its mean times at a tenth of the capacity: 2.0."""
    found = output_rate(TREE, SPEC, 1, 1155) / output_rate(TREE, BASE, 1, 1155)
    assert isclose(found, 1.51 / 0.75, rel_tol=0.03)


@pytest.mark.parametrize(
    ("sequences", "gain"),
    [
        (2, 1.72),
        (4, 1.70),
        (8, 1.66),
        (16, 1.59),
        (24, 1.52),
        (32, 1.46),
        (48, 1.34),
        (56, 1.28),
        (64, 1.22),
    ],
)
def test_the_chain_is_the_fit_to_the_eagle3_paper(sequences: int, gain: float) -> None:
    """The fit itself; the paper's table is 0.11 away from it (docs/model.md)."""
    found = output_rate(CHAIN, SPEC, sequences, 400) / output_rate(CHAIN, BASE, sequences, 400)
    assert isclose(found, gain, abs_tol=0.015)


def test_the_chain_does_not_cross_below_saturation() -> None:
    """At about 105 with 400 tokens of context, and never with those of the conversations."""
    assert isclose(crossover(CHAIN, 400), 105, rel_tol=0.01)
    assert crossover(CHAIN, 1155 + 171) == inf
