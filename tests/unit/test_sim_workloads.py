"""Workloads have the lengths, rates and patterns that they name, and are the same each time."""

import pickle
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from math import isclose
from random import Random
from statistics import fmean, median, pstdev

import pytest

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.sim import engine
from proxy.sim.arrivals import Arrivals, bursts, diurnal, heavy_tailed, poisson, rare_bursts, square
from proxy.sim.fluid import CACHE_TOKENS, Fluid, single
from proxy.sim.lengths import (
    CONVERSATION_PROMPTS,
    CONVERSATION_REPLIES,
    Constant,
    Exponential,
    Lengths,
    Quantiles,
    draw,
    spread,
)
from proxy.sim.physics import CHAIN, FOUNDING, PROFILES, TREE, Profile
from proxy.sim.traces import Request, conversation, rate, scaled
from proxy.sim.workloads import WORKLOADS, Workload, capacity, lengths_of, replay, requests


@pytest.mark.parametrize(
    ("lengths", "mean", "middle", "high"),
    [(CONVERSATION_PROMPTS, 1155, 1020, 4083), (CONVERSATION_REPLIES, 211, 129, 451)],
    ids=["prompts", "replies"],
)
def test_lengths_have_the_moments_of_the_conversations(
    lengths: Lengths, mean: float, middle: int, high: int
) -> None:
    """Mean within 1 %, median and 95 % quantile to the token; drawn ones have the same mean."""
    assert isclose(lengths.mean, mean, rel_tol=0.01)
    assert (lengths.at(0.5), lengths.at(0.95)) == (middle, high)
    random = Random(1)
    drawn = [draw(lengths, random) for _ in range(20_000)]
    assert isclose(fmean(drawn), mean, rel_tol=0.03)
    assert min(drawn) >= 1


def test_few_spread_lengths_have_the_moments_too() -> None:
    """200 of them, in no order."""
    found = spread(CONVERSATION_REPLIES, 200, Random(1))
    assert isclose(fmean(found), CONVERSATION_REPLIES.mean, rel_tol=0.01)
    assert isclose(median(found), 129, rel_tol=0.01)
    assert found != sorted(found)


def test_exponential_and_constant_lengths() -> None:
    """An exponential one has a deviation of its mean, a constant one has none."""
    drawn = spread(Exponential(200.0), 2000, Random(1))
    assert isclose(fmean(drawn), 200.0, rel_tol=0.01)
    assert isclose(pstdev(drawn), 200.0, rel_tol=0.02)
    assert Exponential(200.0).at(0.0) == 1
    assert set(spread(Constant(64), 10, Random(1))) == {64}
    assert Constant(64).mean == 64.0


@pytest.mark.parametrize(
    "knots",
    [
        ((0.1, 1.0), (1.0, 2.0)),
        ((0.0, 1.0), (0.9, 2.0)),
        ((0.0, 0.0), (1.0, 2.0)),
        ((0.0, 5.0), (1.0, 2.0)),
        ((0.0, 1.0), (0.5, 2.0), (0.4, 3.0), (1.0, 4.0)),
    ],
)
def test_impossible_quantiles_are_refused(knots: tuple[tuple[float, float], ...]) -> None:
    """They cover all shares, ascend, and no length is below a token."""
    with pytest.raises(ValueError, match="quantiles"):
        Quantiles(knots)


def _times(arrivals: Arrivals, count: int) -> list[float]:
    return list(islice(arrivals(2.0, Random(3)), count))


@pytest.mark.parametrize(
    ("arrivals", "count"),
    [
        (poisson, 20_000),
        (bursts, 200_000),
        (rare_bursts, 18_000),
        (square, 19_200),
        (diurnal, 19_200),
        (heavy_tailed, 200_000),
    ],
    ids=["poisson", "bursts", "rare", "square", "diurnal", "trains"],
)
def test_arrivals_have_the_wanted_mean_rate(arrivals: Arrivals, count: int) -> None:
    """Over many of them, in whole periods: 2 a second, and time never goes back."""
    times = _times(arrivals, count)
    assert isclose(count / times[-1], 2.0, rel_tol=0.06)
    assert all(one <= following for one, following in pairwise(times))


@pytest.mark.parametrize(("arrivals", "variation"), [(poisson, 1.0), (heavy_tailed, 13.0)])
def test_variation_of_the_gaps(arrivals: Arrivals, variation: float) -> None:
    """A Poisson process has 1; the trains have that of the code trace, 13."""
    times = _times(arrivals, 200_000)
    gaps = [following - one for one, following in pairwise(times)]
    assert isclose(pstdev(gaps) / fmean(gaps), variation, rel_tol=0.07)


def _share(times: list[float], period: float, start: float, stop: float) -> float:
    """Of all, those that come between these places of the period."""
    return sum(start <= at % period < stop for at in times) / len(times)


def test_the_patterns_with_a_period() -> None:
    """Rare bursts hold 240 of 520 requests, days 7 of 8; the sine's upper half 1/2 + 0.9/pi."""
    assert isclose(_share(_times(rare_bursts, 18_000), 300, 280, 300), 240 / 520, rel_tol=0.05)
    assert isclose(_share(_times(square, 19_200), 240, 120, 240), 7 / 8, rel_tol=0.02)
    assert isclose(_share(_times(diurnal, 19_200), 600, 0, 300), 0.786, rel_tol=0.02)


def test_bursts_are_bursts() -> None:
    """Counts in windows of 10 s vary much more than those of a Poisson process."""
    counts = Counter(int(at // 10) for at in _times(bursts, 20_000))
    windows = [counts[place] for place in range(max(counts))]
    assert pstdev(windows) ** 2 / fmean(windows) > 10.0


def test_there_are_fourteen_workloads() -> None:
    """A ladder of eight and six others, found by name and each with a line about it."""
    assert len(WORKLOADS) == 14
    assert [name for name in WORKLOADS if name.startswith("poisson")] == [
        f"poisson-{percent:02}" for percent in (5, 10, 20, 30, 40, 50, 60, 70)
    ]
    assert all(one.name == name and one.what for name, one in WORKLOADS.items())


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_each_time(name: str) -> None:
    """By its seed alone; another seed gives others, and all are in order of time."""
    first, again, other = (requests(WORKLOADS[name], TREE, 100, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(first) >= 100
    assert all(one.at <= following.at for one, following in pairwise(first))


def test_another_level_leaves_the_lengths_alone() -> None:
    """So a ladder compares levels and not lengths."""
    low = requests(WORKLOADS["poisson-10"], FOUNDING, 200, 1)
    high = requests(replace(WORKLOADS["poisson-10"], load=0.5), FOUNDING, 200, 1)
    assert [(one.prompt_tokens, one.output_tokens) for one in low] == [
        (one.prompt_tokens, one.output_tokens) for one in high
    ]
    assert isclose(low[-1].at, 5 * high[-1].at)


def test_a_pattern_goes_on_to_the_end_of_its_period() -> None:
    """A cut one would have another mean: here the day would be missing."""
    found = requests(WORKLOADS["square"], FOUNDING, 20, 1)
    per_period = 240 * 0.3 * capacity(FOUNDING)
    assert isclose(len(found), per_period, rel_tol=0.2)
    assert found[-1].at < 240


@pytest.mark.parametrize(("profile", "expected"), [(FOUNDING, 2.88), (TREE, 15.4), (CHAIN, 15.4)])
def test_the_capacity_is_that_of_the_ladder(profile: Profile, expected: float) -> None:
    """Within 3 % of the rate at which docs/model.md's mean times are those of the ladder."""
    assert isclose(capacity(profile), expected, rel_tol=0.03)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_the_capacity_is_reached(profile: Profile) -> None:
    """With `saturation` sequences always in flight the fluid model completes as many."""
    (plain,) = single(profile, UpstreamName.BASE).values()
    limits = replace(plain.limits, max_running=profile.saturation)
    gpu = Fluid({UpstreamName.BASE: replace(plain, limits=limits)}, contention=1.0)
    lengths = zip(
        spread(CONVERSATION_PROMPTS, 6000, Random(1)),
        spread(CONVERSATION_REPLIES, 6000, Random(2)),
        strict=True,
    )
    for key, (prompt, reply) in enumerate(lengths):
        gpu.submit(UpstreamName.BASE, engine.Sequence(key, prompt, reply), 0.0)
    ends: list[float] = []
    while (due := gpu.next_event()) is not None:
        ends += [one.at for one in gpu.advance(due) if isinstance(one, engine.Emitted) and one.last]
    assert isclose(4800 / (ends[5400] - ends[600]), capacity(profile), rel_tol=0.03)


def test_a_replay_is_the_trace_at_the_wanted_level() -> None:
    """Its own lengths, in its own order from a place drawn by lot, at 30 % of the capacity."""
    trace = conversation()
    found = requests(WORKLOADS["replay"], TREE, len(trace), 1)
    assert sorted(one.output_tokens for one in found) == sorted(one.output_tokens for one in trace)
    assert found[0].at == 0.0
    assert isclose((len(found) - 1) / found[-1].at, 0.3 * capacity(TREE), rel_tol=0.01)


def test_a_replay_goes_round() -> None:
    """More requests than the trace has: it begins again, with a mean gap between."""
    trace = [Request(at, tokens, tokens) for at, tokens in ((0.0, 1), (1.0, 2), (4.0, 3))]
    found = requests(replay(trace), FOUNDING, 6, 1)
    again = [one.prompt_tokens for one in found]
    assert again[:3] == again[3:]
    assert sorted(again[:3]) == [1, 2, 3]
    assert {round(found[place + 3].at - found[place].at, 9) for place in range(3)} == {6.0}


def test_a_replay_at_its_own_speed() -> None:
    """Without a level the gaps are those of the recording."""
    trace = [Request(at, 10, 10) for at in (5.0, 6.0, 8.0, 8.0)]
    found = requests(replay(trace), FOUNDING, 4, 1)
    whole = (3.0 + 1.0) / 4
    gaps = sorted(following.at - one.at for one, following in pairwise(found))
    assert all(min(abs(gap - one) for one in (0.0, whole, 1.0, 2.0)) < 1e-9 for gap in gaps)


def test_a_replay_at_a_level() -> None:
    """Another trace is put to it as the own one is."""
    trace = [Request(float(at), 10, 10) for at in range(50)]
    found = requests(replay(trace, 0.5), FOUNDING, 50, 1)
    assert isclose(49 / found[-1].at, 0.5 * capacity(FOUNDING))


@pytest.mark.parametrize("workload", [*WORKLOADS.values(), replay(conversation(), 0.2)])
def test_workloads_can_be_sent_to_another_process(workload: Workload) -> None:
    """With the requests that they stand for."""
    sent = pickle.loads(pickle.dumps(workload))  # noqa: S301 - our own
    assert requests(sent, TREE, 20, 1) == requests(workload, TREE, 20, 1)


@pytest.mark.parametrize("name", ["poisson-30", "replay"])
def test_typical_lengths_are_those_of_the_conversations(name: str) -> None:
    """Drawn or of the trace, with the same means."""
    found = lengths_of(WORKLOADS[name])
    assert isclose(fmean(prompt for prompt, _ in found), 1155, rel_tol=0.01)
    assert isclose(fmean(reply for _, reply in found), 211, rel_tol=0.01)


def test_a_trace_of_one_instant_has_no_rate() -> None:
    """It cannot be put to a level, and says so."""
    with pytest.raises(SpecswitchError, match="same time"):
        requests(replay([Request(0.0, 1, 1), Request(0.0, 1, 1)]), FOUNDING, 2, 1)


def test_only_a_trace_has_a_rate_of_its_own() -> None:
    """A workload without a level and without a trace is a mistake of the caller."""
    with pytest.raises(ValueError, match="only a trace"):
        requests(replace(WORKLOADS["bursts"], load=None), FOUNDING, 2, 1)


def test_a_trace_that_no_engine_could_hold() -> None:
    """It names the request's size, rather than failing in the middle of a run."""
    trace = [Request(0.0, 1, 1), Request(1.0, CACHE_TOKENS, 1)]
    with pytest.raises(SpecswitchError, match=f"{CACHE_TOKENS + 1} tokens"):
        requests(replay(trace), FOUNDING, 2, 1)


def test_no_request_is_a_workload_too() -> None:
    """Of none there is none, also where there is a period."""
    assert requests(WORKLOADS["square"], FOUNDING, 0, 1) == ()


def test_a_scaled_trace_has_the_wanted_rate() -> None:
    """The gaps keep their proportions."""
    trace = [Request(at, 1, 1) for at in (2.0, 3.0, 7.0)]
    found = scaled(trace, 4.0)
    assert [one.at for one in found] == pytest.approx([0.0, 0.1, 0.5])
    assert isclose(rate(found), 4.0)
