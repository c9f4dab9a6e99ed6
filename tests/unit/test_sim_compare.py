"""Comparisons: the same arrivals for all, the same figures each time, ratios, and the measures."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan, sqrt

import pytest

from proxy.sim.compare import (
    Comparison,
    Key,
    Plan,
    compare,
    geometric_mean,
    mean_e2e,
    p95_e2e,
)
from proxy.sim.knowledge import Knowledge
from proxy.sim.measures import MEASURED_POLICIES, RARE_BURSTS, Measure, measures
from proxy.sim.physics import CHAIN, FOUNDING, TREE, Profile
from proxy.sim.policies import Policy, Setting
from proxy.sim.results import Result, Spread
from proxy.sim.workloads import WORKLOADS, Workload

KNOWLEDGE = Knowledge(crossover=3.1, crossover_rate=180.0, output_tokens=211.0)
SETTING = Setting(profile=FOUNDING, contention=0.9, knowledge=KNOWLEDGE)
TWO = (WORKLOADS["poisson-10"], WORKLOADS["bursts"])

_EVEN = Spread(1.0, 1.0, 1.0, 1.0)
RESULT = Result(
    requests=1500,
    refused=0,
    e2e=_EVEN,
    first_token=_EVEN,
    per_token=_EVEN,
    tokens_per_second=100.0,
    goodput=1.0,
    switches_per_minute=0.5,
    both_active=0.02,
    on_spec=0.5,
    peak_spec=3,
    quiet=1.0,
    busy=1.0,
)


def result(mean: float, p95: float = 1.0) -> Result:
    """One with these end-to-end times."""
    return replace(RESULT, e2e=Spread(mean, mean, p95, p95))


def made(
    means: Mapping[Policy, float],
    *,
    profile: Profile = FOUNDING,
    odd: Mapping[Key, Result] | None = None,
) -> Comparison:
    """A comparison over all workloads in which each policy has one mean; `odd` are exceptions."""
    plan = Plan(
        setting=replace(SETTING, profile=profile),
        policies=tuple(means),
        workloads=tuple(WORKLOADS.values()),
        seeds=2,
    )
    results = {
        Key(policy, workload.name, seed): result(mean)
        for policy, mean in means.items()
        for workload, seed in plan.cells
    }
    return Comparison(plan, {**results, **(odd or {})})


FINE = {Policy.SWITCH: 1.0, Policy.ALWAYS_SPEC: 1.0, Policy.ALWAYS_BASE: 1.2, Policy.IDEAL: 0.95}


def broken(comparison: Comparison) -> list[str]:
    """The measures that do not hold."""
    return [one.what for one in measures(comparison) if not one.holds]


@pytest.mark.slow
def test_processes_do_not_change_the_figures() -> None:
    """One process and two give the same results, to the last bit, and tell of each part once."""
    plan = Plan(
        setting=SETTING,
        policies=(Policy.SWITCH, Policy.IDEAL),
        workloads=TWO,
        seeds=2,
        requests=60,
    )
    told: list[tuple[str, int]] = []

    def done(workload: Workload, seed: int) -> None:
        told.append((workload.name, seed))

    alone = compare(plan, processes=1)
    together = compare(plan, processes=2, done=done)

    assert alone.results == together.results
    assert list(alone.ordered()) == list(together.ordered())
    assert sorted(told) == [("bursts", 0), ("bursts", 1), ("poisson-10", 0), ("poisson-10", 1)]
    assert plan.runs == len(alone.results) == 8


def test_all_policies_have_the_same_requests() -> None:
    """With one server for both, two policies give one result."""
    plan = Plan(
        setting=SETTING,
        policies=(Policy.ALWAYS_SPEC, Policy.ALWAYS_SPEC),
        workloads=TWO[:1],
        seeds=1,
        requests=30,
    )
    single = compare(replace(plan, policies=(Policy.ALWAYS_SPEC,)), processes=1)

    assert compare(plan, processes=1).results == single.results


def test_seeds_differ() -> None:
    """Another seed has other requests."""
    plan = Plan(
        setting=SETTING, policies=(Policy.ALWAYS_BASE,), workloads=TWO[:1], seeds=2, requests=30
    )
    first, second = compare(plan, processes=1).of(Policy.ALWAYS_BASE, "poisson-10")

    assert first.e2e.mean != second.e2e.mean


def test_ratios_are_run_by_run_and_geometric() -> None:
    """Twice and half are once."""
    comparison = made(FINE, odd={Key(Policy.SWITCH, "bursts", 0): result(2.0, 4.0)})

    assert comparison.ratio(Policy.SWITCH, Policy.ALWAYS_SPEC, "bursts", mean_e2e) == (
        pytest.approx(sqrt(2.0))
    )
    assert comparison.ratio(Policy.SWITCH, Policy.ALWAYS_SPEC, "bursts", p95_e2e) == (
        pytest.approx(2.0)
    )
    assert comparison.mean(Policy.SWITCH, "bursts", mean_e2e) == pytest.approx(1.5)
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([1.0, inf]) == inf


def test_best_fixed_mode_is_chosen_for_each_workload() -> None:
    """In hindsight: the better mean."""
    comparison = made(
        FINE, odd={Key(Policy.ALWAYS_BASE, "bursts", seed): result(0.5) for seed in range(2)}
    )

    assert comparison.best_fixed("bursts", mean_e2e) == 0.5
    assert comparison.best_fixed("square", mean_e2e) == 1.0
    assert comparison.has_fixed
    assert not made({Policy.SWITCH: 1.0}).has_fixed


@pytest.mark.parametrize("profile", [FOUNDING, TREE])
def test_measures_hold_where_they_should(profile: Profile) -> None:
    """What is within every bound breaks none."""
    found = measures(made(FINE, profile=profile))

    assert len(found) == 6
    assert all(one.holds for one in found)
    assert {one.profile for one in found} == {profile.name}


def test_each_measure_can_fail() -> None:
    """What is out of one bound breaks that one."""
    means = {**FINE, Policy.IDEAL: 0.9}
    assert broken(made(means)) == ["mean E2E to the ideal in-engine switch, geometric mean"]
    assert broken(made(means, profile=TREE)) == []

    level = {Key(Policy.SWITCH, "poisson-20", seed): result(1.1) for seed in range(2)}
    assert broken(made(FINE, odd=level)) == ["mean E2E to the best fixed mode, worst Poisson level"]
    ladder = {
        Key(Policy.SWITCH, name, seed): result(1.05)
        for name in WORKLOADS
        if name.startswith("poisson-")
        for seed in range(2)
    }
    assert broken(made(FINE, odd=ladder)) == ["the same, geometric mean over the levels"]
    tail = {Key(Policy.SWITCH, "trains", seed): result(1.0, 1.06) for seed in range(2)}
    assert broken(made(FINE, odd=tail)) == [
        "p95 E2E to always-base, worst workload but rare bursts"
    ]
    rare = {Key(Policy.SWITCH, RARE_BURSTS, seed): result(1.0, 1.06) for seed in range(2)}
    assert broken(made(FINE, odd=rare)) == []
    rare = {Key(Policy.SWITCH, RARE_BURSTS, seed): result(1.0, 1.2) for seed in range(2)}
    assert broken(made(FINE, odd=rare)) == ["the same, rare bursts"]
    restless = {Key(Policy.SWITCH, "bursts", 0): replace(RESULT, switches_per_minute=100.0)}
    assert broken(made(FINE, odd=restless)) == ["switches a minute, mean"]


def test_chain_must_be_identical() -> None:
    """One run that differs from always-spec breaks the measure, unless spec's cap was reached."""
    same = made(dict.fromkeys(MEASURED_POLICIES, 1.0), profile=CHAIN)
    assert broken(same) == []

    key = Key(Policy.SWITCH, "bursts", 0)
    other = made(dict.fromkeys(MEASURED_POLICIES, 1.0), profile=CHAIN, odd={key: result(1.1)})
    assert broken(other) == ["other runs that are not identical to always-spec"]

    full = Key(Policy.ALWAYS_SPEC, "bursts", 0)
    capped = replace(RESULT, peak_spec=49)
    excused = made(
        dict.fromkeys(MEASURED_POLICIES, 1.0),
        profile=CHAIN,
        odd={key: result(1.1), full: capped},
    )
    assert broken(excused) == []


def test_measures_of_nothing_do_not_hold() -> None:
    """Runs that all reach the cap prove nothing, and what is no number holds nothing."""
    capped = {
        Key(Policy.ALWAYS_SPEC, name, seed): replace(RESULT, peak_spec=49)
        for name in WORKLOADS
        for seed in range(2)
    }
    nothing = made(dict.fromkeys(MEASURED_POLICIES, 1.0), profile=CHAIN, odd=capped)

    assert broken(nothing) == ["runs in which spec's cap is reached (not all of them)"]
    assert not Measure("founding", "nothing", nan, 1.0).holds
