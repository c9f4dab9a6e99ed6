"""Fleets in virtual time: nothing is lost, one pair is what it is alone, a seed is a result."""

from dataclasses import replace
from itertools import pairwise
from math import isfinite

import pytest

from proxy.core.words import UpstreamName
from proxy.sim.compare import Plan, compare
from proxy.sim.fleet import Fleet, Ran, play, summarized
from proxy.sim.knowledge import Knowledge
from proxy.sim.physics import FOUNDING
from proxy.sim.policies import EngineKind, Policy, Setting
from proxy.sim.results import Objective, both_active
from proxy.sim.spreading import Spreading
from proxy.sim.traces import Request
from proxy.sim.workloads import WORKLOADS, requests

SETTING = Setting(
    profile=FOUNDING,
    contention=0.9,
    knowledge=Knowledge(crossover=3.1, crossover_rate=181.0, output_tokens=213.0),
)


def fleet(pairs: int, spreading: Spreading = Spreading.POWER_OF_TWO, **more: object) -> Fleet:
    """One of this setting."""
    made = Fleet(setting=SETTING, pairs=pairs, spreading=spreading)
    return replace(made, **more)  # type: ignore[arg-type]  # by name


def arrivals(name: str, pairs: int, count: int = 300, seed: int = 0) -> tuple[Request, ...]:
    """A workload at the level of so many pairs."""
    workload = WORKLOADS[name]
    assert workload.load is not None
    return requests(replace(workload, load=workload.load * pairs), FOUNDING, count, seed)


def checked(ran: Ran, asked: tuple[Request, ...]) -> None:
    """Each request was served once, by one pair, in its own time."""
    assert [one.request for one in ran.served] == list(asked)
    assert sum(len(run.served) for run in ran.pairs) == len(asked)
    assert all(one.request.at <= one.first_at <= one.end_at for one in ran.served)
    assert all(isfinite(one.end_at) and one.upstream is not None for one in ran.served)
    for run in ran.pairs:
        assert all(a.request.at <= b.request.at for a, b in pairwise(run.served))
        last = run.moments[-1] if run.moments else None
        assert last is None or (last.spec, last.base) == (0, 0)
    mine = {id(one) for run in ran.pairs for one in run.served}
    assert mine == {id(one) for one in ran.served}


@pytest.mark.parametrize("spreading", list(Spreading))
@pytest.mark.parametrize("name", ["poisson-50", "bursts"])
def test_nothing_is_lost(spreading: Spreading, name: str) -> None:
    """All requests end, whatever the rule."""
    asked = arrivals(name, 5)
    checked(play(fleet(5, spreading, bound=3.1), asked, seed=1), asked)


@pytest.mark.parametrize("spreading", list(Spreading))
def test_one_pair_is_what_it_is_alone(spreading: Spreading) -> None:
    """To the last digit: the router in front of one pair changes nothing."""
    workload = WORKLOADS["bursts"]
    plan = Plan(
        setting=SETTING, policies=(Policy.SWITCH,), workloads=(workload,), seeds=1, requests=300
    )
    (alone,) = compare(plan, processes=1).of(Policy.SWITCH, "bursts")
    asked = requests(workload, FOUNDING, 300, 0)
    found = summarized(play(fleet(1, spreading, bound=3.1), asked, seed=0), Objective())

    assert found.result == alone
    assert 0.0 < found.busy < 1.0


def test_a_seed_is_a_result() -> None:
    """The same seed gives the same run, another one another."""
    asked = arrivals("poisson-30", 4)
    first, second, other = (play(fleet(4), asked, seed=seed) for seed in (3, 3, 4))

    assert first == second
    assert first != other


def test_pairs_draw_apart() -> None:
    """Where engines draw by lot, each pair has a lot of its own."""
    steps = replace(SETTING, engines=EngineKind.STEPS)
    asked = tuple(Request(at, 100, 200) for at in (0.0, 0.0))
    ran = play(fleet(2, Spreading.ROUND_ROBIN, setting=steps), asked, seed=0)

    assert ran.served[0].end_at != ran.served[1].end_at


def test_pairs_know_nothing_of_each_other() -> None:
    """Two pairs in turn are two pairs alone, each with its half."""
    asked = arrivals("poisson-30", 2)
    # Without a controller, which looks once a second from the fleet's first request on.
    both = play(fleet(2, Spreading.ROUND_ROBIN, policy=Policy.ALWAYS_BASE), asked, seed=0)
    for number, run in enumerate(both.pairs):
        alone = play(fleet(1, policy=Policy.ALWAYS_BASE), asked[number::2], seed=0)
        ends = [one.end_at for one in alone.served]
        assert [one.end_at for one in run.served] == pytest.approx(ends)


def test_the_router_knows_who_has_ended() -> None:
    """What it goes by is in flight now, not what was when the pair last got something."""
    asked = (Request(0.0, 10, 50), Request(0.01, 10, 5000), Request(20.0, 10, 10))
    ran = play(fleet(3, Spreading.PACK, bound=1.0), asked, seed=0)
    first, long, last = ran.served

    assert first.end_at < last.request.at < long.end_at
    assert [len(run.served) for run in ran.pairs] == [2, 1, 0]


def test_packing_leaves_pairs_idle() -> None:
    """Fewer pairs have work, and those that have it have more."""
    asked = arrivals("poisson-10", 8, 600)
    spread, packed = (
        summarized(play(fleet(8, rule, bound=48.0), asked, seed=0), Objective())
        for rule in (Spreading.LEAST, Spreading.PACK)
    )

    assert packed.busy < 0.7 * spread.busy
    assert packed.result.e2e.mean > spread.result.e2e.mean
    assert packed.result.on_spec < spread.result.on_spec


@pytest.mark.parametrize("policy", [Policy.ALWAYS_SPEC, Policy.ALWAYS_BASE])
def test_a_pair_that_did_nothing_counts(policy: Policy) -> None:
    """Half of the fleet had work, on whichever engine."""
    asked = (Request(0.0, 10, 500),)
    found = summarized(play(fleet(2, policy=policy), asked, seed=0), Objective())

    assert found.busy == pytest.approx(0.5, rel=0.01)
    assert found.result.both_active == 0.0
    assert found.result.peak_spec == (policy is Policy.ALWAYS_SPEC)


def test_switches_and_shares_are_means_over_the_pairs() -> None:
    """Of each pair by itself, over the time of the whole fleet."""
    asked = arrivals("bursts", 3, 1500)
    ran = play(fleet(3, Spreading.ROUND_ROBIN), asked, seed=0)
    found = summarized(ran, Objective()).result
    span = max(one.end_at for one in ran.served) - asked[0].at
    minutes = (asked[-1].at - asked[0].at) / 60.0
    switches = sum(len(run.changes) for run in ran.pairs)
    both = sum(both_active(run.moments) for run in ran.pairs)

    assert switches >= 3
    assert both > 0.0
    assert found.switches_per_minute == pytest.approx(switches / 3 / minutes)
    assert found.both_active == pytest.approx(both / 3 / span)


def test_a_fleet_of_another_policy() -> None:
    """Pairs that only have base."""
    asked = arrivals("poisson-10", 2, 50)
    ran = play(fleet(2, policy=Policy.ALWAYS_BASE), asked, seed=0)

    assert {one.upstream for one in ran.served} == {UpstreamName.BASE}


def test_impossible_fleets_are_refused() -> None:
    """No pair at all, and requests out of order."""
    with pytest.raises(ValueError, match="at least one pair"):
        fleet(0)
    with pytest.raises(ValueError, match="time goes back"):
        play(fleet(2), (Request(1.0, 1, 1), Request(0.0, 1, 1)), seed=0)
    with pytest.raises(ValueError, match="no request was served"):
        summarized(play(fleet(2), (), seed=0), Objective())
