"""A server in an open loop: against hand-made runs, queueing theory, and the rates of policy C3."""

from math import inf
from random import Random

import pytest

from proxy.core.curves import Curve, Prefill, Server
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.sim.openloop import (
    Offered,
    crossover_rate,
    expected_crossover_rate,
    expected_seconds,
    mean_seconds,
    offered,
    saturation,
)
from proxy.sim.physics import FOUNDING, TREE
from proxy.tools.curves.fit import fit, points
from tests.harness.sweeps import BASE, SPEC, conditions, conversation, straight, sweep, times_of

LENGTHS = conversation(2000)


def server(name: str) -> Server:
    """A server of the founding pair."""
    cost = Prefill(0.003, FOUNDING.prefill_per_token)
    if name == "base":
        return Server(Curve(0.0068, 0.0012, 0.0, 64.0), cost, None)
    filling = Prefill(1.08 * cost.fixed, 1.08 * cost.per_token)
    return Server(Curve(0.005 / 2.6, 0.0072 / 2.6, 0.0, 48.0), filling, 48)


def by_hand(*requests: tuple[float, int, int]) -> Offered:
    """Requests as (second, prompt, output)."""
    stamps, prompts, outputs = zip(*requests, strict=True)
    return Offered(stamps, prompts, outputs)


def seconds_of(target: Server, *requests: tuple[float, int, int]) -> float:
    """The mean over all of them, one request a second being the rate of the stamps."""
    made = by_hand(*requests)
    return mean_seconds(target, made, made.mean_output_tokens)


class TestMeanSeconds:
    """A run, request by request."""

    def test_a_lone_request_takes_its_prompt_and_its_tokens(self) -> None:
        """The pass over the prompt yields the first token, the others take t(1) each."""
        target = Server(Curve(0.01, 0.002, 0.0, 8.0), Prefill(0.1, 0.001), None)
        assert seconds_of(target, (0.0, 50, 11)) == pytest.approx(0.15 + 10 * 0.012)

    def test_one_output_token_comes_with_the_prompt(self) -> None:
        """There is nothing to decode."""
        target = Server(Curve(0.01, 0.002, 0.0, 8.0), Prefill(0.1, 0.001), None)
        assert seconds_of(target, (0.0, 50, 1)) == pytest.approx(0.15)

    def test_two_share_the_batch(self) -> None:
        """Each is slowed by the other for as long as both decode."""
        target = straight(0.0, 0.1)
        # Together 10 tokens at 0.2 s; then the longer one alone, 10 more at 0.1 s.
        assert seconds_of(target, (0.0, 0, 11), (0.0, 0, 21)) == pytest.approx((2.0 + 3.0) / 2)

    def test_a_prompt_stops_decoding(self) -> None:
        """Prefill first, as in SGLang without mixed chunks."""
        target = Server(Curve(0.1, 0.0, 0.0, 8.0), Prefill(1.0, 0.0), None)
        # The first decodes 5 tokens from 1.0 to 1.5, waits until 2.5, and ends at 3.0.
        found = seconds_of(target, (0.0, 0, 11), (1.5, 0, 11))
        assert found == pytest.approx((3.0 + (3.5 - 1.5)) / 2)

    def test_prompts_queue_behind_each_other(self) -> None:
        """One prompt at a time, in the order of arrival."""
        target = Server(Curve(0.1, 0.0, 0.0, 8.0), Prefill(1.0, 0.0), None)
        assert seconds_of(target, (0.0, 0, 1), (0.5, 0, 1)) == pytest.approx((1.0 + 1.5) / 2)

    def test_more_than_the_cap_waits(self) -> None:
        """The second begins when the first has ended."""
        target = straight(0.1, 0.0, cap=1)
        assert seconds_of(target, (0.0, 0, 11), (0.0, 0, 11)) == pytest.approx((1.0 + 2.0) / 2)

    def test_the_beginning_is_not_counted(self) -> None:
        """A tenth of a run began with an idle server."""
        target = straight(0.1, 0.0)
        slow_first = [(0.0, 0, 1001), *((200.0 + n, 0, 2) for n in range(9))]
        assert seconds_of(target, *slow_first) == pytest.approx(0.1)

    @pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
    def test_it_agrees_with_queueing_theory(self, load: float) -> None:
        """Processor sharing at a constant total rate: S / (1 - load), whatever the lengths."""
        target = straight(0.0, 0.01)
        lengths = [(0, 51), (0, 101), (0, 251)]
        requests = offered(lengths, count=20_000, random=Random(5))
        alone = 0.01 * (403 / 3 - 1)
        rate = load * 403 / 3 / alone
        assert mean_seconds(target, requests, rate) == pytest.approx(alone / (1 - load), rel=0.06)
        assert expected_seconds(target, lengths, rate) == pytest.approx(alone / (1 - load))

    def test_an_unstable_server_gets_slower_with_the_length_of_the_run(self) -> None:
        """A finite figure, and far above any stable one."""
        requests = offered(LENGTHS, count=3000, random=Random(1))
        found = mean_seconds(server("spec"), requests, 500.0)
        assert 30.0 < found < inf
        assert expected_seconds(server("spec"), LENGTHS, 500.0) == inf

    @pytest.mark.parametrize(
        ("share", "spec", "base"), [(0.05, 1.17, 1.83), (0.2, 1.68, 2.13), (0.4, 4.25, 2.74)]
    )
    def test_the_founding_ladder_is_that_of_an_earlier_simulation(
        self, share: float, spec: float, base: float
    ) -> None:
        """Mean seconds at shares of 616 tok/s, which base carries with 64 at once."""
        requests = offered(LENGTHS, count=20_000, random=Random(2))
        assert mean_seconds(server("spec"), requests, share * 616) == pytest.approx(spec, rel=0.1)
        assert mean_seconds(server("base"), requests, share * 616) == pytest.approx(base, rel=0.1)


class TestExpectedSeconds:
    """The same from a birth-death chain."""

    @pytest.mark.parametrize("name", ["spec", "base"])
    @pytest.mark.parametrize("rate", [30.0, 120.0, 220.0])
    def test_it_agrees_with_the_simulation(self, name: str, rate: float) -> None:
        """Within noise, and what prefill does to it."""
        requests = offered(LENGTHS, count=20_000, random=Random(4))
        simulated = mean_seconds(server(name), requests, rate)
        assert expected_seconds(server(name), LENGTHS, rate) == pytest.approx(simulated, rel=0.06)

    def test_saturation_counts_the_prompts(self) -> None:
        """48 at once with 1155 tokens in and 211 out: 317 tok/s in an earlier simulation."""
        assert saturation(server("spec"), [(1155, 211)]) == pytest.approx(317, rel=0.01)


class TestCrossoverRate:
    """λ*."""

    @pytest.mark.slow
    def test_founding(self) -> None:
        """0.30 of what base carries with 64 at once was the hand-set rate."""
        found = crossover_rate(server("spec"), server("base"), LENGTHS, seed=1)
        assert found / 616 == pytest.approx(0.30, abs=0.02)

    @pytest.mark.slow
    def test_tree(self) -> None:
        """0.55 was the hand-set rate; with the context of those prompts it is a little more."""
        made = conditions(TREE)
        cells = sweep(times_of(TREE, SPEC, 1260.0), times_of(TREE, BASE, 1260.0))
        fits = {
            name: fit(points([each for each in cells if each.server is name]))
            for name in UpstreamName
        }
        spec = Server(fits[SPEC].curve, made.prefill[SPEC], 48)
        base = Server(fits[BASE].curve, made.prefill[BASE], 64)
        found = crossover_rate(spec, base, LENGTHS, seed=1)
        assert 0.5 < found / saturation(base, LENGTHS) < 0.65

    @pytest.mark.slow
    def test_at_it_both_take_as_long(self) -> None:
        """That is what it means."""
        found = crossover_rate(server("spec"), server("base"), LENGTHS, seed=3)
        requests = offered(LENGTHS, count=20_000, random=Random(77))
        spec = mean_seconds(server("spec"), requests, found)
        assert spec == pytest.approx(mean_seconds(server("base"), requests, found), rel=0.05)

    @pytest.mark.slow
    def test_the_seed_matters_little_and_decides_all(self) -> None:
        """The same figure again for the same seed, and nearly so for others."""
        spec, base = server("spec"), server("base")
        found = [crossover_rate(spec, base, LENGTHS, seed=seed) for seed in (1, 1, 2, 3)]
        assert found[0] == found[1]
        assert max(found) < 1.05 * min(found)

    @pytest.mark.slow
    def test_the_chain_agrees(self) -> None:
        """Without noise and in milliseconds, for the bootstrap."""
        expected = expected_crossover_rate(server("spec"), server("base"), LENGTHS)
        found = crossover_rate(server("spec"), server("base"), LENGTHS, seed=1)
        assert expected == pytest.approx(found, rel=0.04)

    @pytest.mark.parametrize("spec", [straight(0.02, 0.001), straight(0.01, 0.001)])
    def test_base_always_better_is_zero(self, spec: Server) -> None:
        """Also for servers that are the same."""
        base = straight(0.01, 0.001)
        assert crossover_rate(spec, base, LENGTHS[:200], seed=1) == 0.0
        assert expected_crossover_rate(spec, base, LENGTHS[:200]) == 0.0

    @pytest.mark.slow
    def test_speculation_always_better_is_infinite(self) -> None:
        """Up to all that base can carry."""
        spec, base = straight(0.01, 0.001), straight(0.02, 0.002)
        assert crossover_rate(spec, base, LENGTHS[:200], seed=1) == inf
        assert expected_crossover_rate(spec, base, LENGTHS[:200]) == inf

    def test_a_cap_that_saturates_early_lowers_it(self) -> None:
        """What speculation cannot run at once waits."""
        spec = straight(0.004, 0.0005)
        base = straight(0.008, 0.0004)
        free = expected_crossover_rate(spec, base, LENGTHS)
        capped = expected_crossover_rate(straight(0.004, 0.0005, cap=4), base, LENGTHS)
        assert capped < 0.8 * free


class TestOffered:
    """Requests that come at random."""

    def test_each_length_is_used_equally_often(self) -> None:
        """As far as the count allows."""
        made = offered([(1, 10), (2, 20), (3, 30)], count=8, random=Random(1))
        uses = sorted(made.output_tokens.count(length) for length in (10, 20, 30))
        assert uses == [2, 3, 3]
        assert made.output_tokens == tuple(10 * prompt for prompt in made.prompt_tokens)

    def test_one_comes_a_second_on_average(self) -> None:
        """The stamps are those of a rate of one."""
        made = offered([(1, 10)], count=10_000, random=Random(1))
        assert made.stamps[-1] == pytest.approx(10_000, rel=0.05)
        assert list(made.stamps) == sorted(made.stamps)

    @pytest.mark.parametrize(
        ("lengths", "said"),
        [([], "no lengths"), ([(5, 5), (5, 0)], "request 2"), ([(-1, 5)], "request 1")],
    )
    def test_impossible_lengths_are_named(self, lengths: list[tuple[int, int]], said: str) -> None:
        """By their number."""
        with pytest.raises(SpecswitchError, match=said):
            offered(lengths, count=10, random=Random(1))
        with pytest.raises(SpecswitchError, match=said):
            saturation(straight(0.1, 0.0), lengths)
