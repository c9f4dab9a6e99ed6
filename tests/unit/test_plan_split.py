"""The memory of one GPU between two servers: cases with known answers, and what moves them."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.words import Topology, UpstreamName
from proxy.tools.plan.known import Told, known
from proxy.tools.plan.notes import notes
from proxy.tools.plan.quantities import GIB, MIB, size
from proxy.tools.plan.sizes import KvShape
from proxy.tools.plan.split import Plan, Server, alone, plan
from proxy.tools.plan.wanted import Demand, Drafts, Reserves, Wanted, demand, prefill_lengths
from tests.harness.plans import DRAFT_8B, LLAMA_8B, config, wanted

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


def pair(made: Plan) -> tuple[Server, Server]:
    """The servers of a plan that fits."""
    assert made.servers is not None
    assert made.fits
    assert made.short <= 0
    return made.servers


def test_every_gpu_of_a_server_costs_some() -> None:
    """What its ranks exchange, by their number."""
    one, four = (demand(wanted("80GiB", "8B", gpus=n), SPEC, chunk=8192).runtime for n in (1, 4))
    assert four - one == 3 * GIB // 8


def test_a_draft_that_keeps_more_than_is_counted_is_told() -> None:
    """Only then; SGLang counts it as if its layers were the target's."""
    wish = replace(wanted("80GiB", "8B"), draft_share=(1, 32))
    more = replace(wish, draft=replace(wish.draft, kv=2**16))
    less = replace(wish, draft=replace(wish.draft, kv=2**8))
    told = [
        any("keeps more of each token" in each for each in notes(plan(w))) for w in (more, less)
    ]
    assert told == [True, False]


def test_8b_on_one_80_gb_gpu_is_comfortable() -> None:
    """The README's case: of the order of its 0.35 and 0.75, and each holds what it is asked for."""
    spec, base = pair(plan(wanted("80GiB", "8.03B")))
    assert spec.demand.name is SPEC
    assert 0.25 <= spec.fraction <= 0.40
    assert 0.70 <= base.fraction <= 0.90
    assert spec.kv_tokens >= 50_000
    assert base.kv_tokens >= 150_000
    assert (spec.running, base.running) == (16, 256)
    assert spec.full_contexts >= 1
    assert base.full_contexts >= 4


def test_the_recipe_of_the_readme_is_a_plan_too() -> None:
    """0.35, then 0.75 of the rest: it fits by the same arithmetic, with more left free."""
    spec, base = pair(plan(wanted("80GiB", "8.03B")))
    first = replace(spec, fraction=0.35)
    left = spec.free_most - first.taken(first.free_most) - spec.demand.started - base.demand.runtime
    second = replace(base, fraction=0.75, free_most=left)
    assert first.kv_tokens > spec.kv_tokens
    assert 100_000 < second.kv_tokens < base.kv_tokens
    outside = sum(each.demand.activations for each in (first, second)) + second.demand.started
    assert left - second.taken(left) - outside > 1.5 * GIB


@pytest.mark.parametrize("gpu", ["79.6GiB", "80GB"])
def test_8b_fits_what_80_gb_are_taken_for(gpu: str) -> None:
    """What an H100 shows, and 80 x 10^9."""
    assert plan(wanted(gpu, "8B")).fits


def test_32b_on_one_80_gb_gpu_does_not_fit() -> None:
    """Two copies are 131 GB: some 60 GiB are missing."""
    made = plan(wanted("80GiB", "32.8B"))
    assert not made.fits
    assert made.servers is None
    assert 55 < made.short / GIB < 75


def test_70b_over_four_gpus_of_141_gb_fits() -> None:
    """35 GB a GPU and copy, also with GB of 10^9; on one it does not."""
    for gpu in ("141GB", "140.4GiB"):
        spec, base = pair(plan(wanted(gpu, "70.6B", gpus=4)))
        assert spec.demand.weights == pytest.approx(35.3e9, rel=1e-3)
        assert spec.kv_tokens > 100_000
        assert base.kv_tokens > 300_000
    assert not plan(wanted("141GB", "70.6B")).fits


def founding(tmp_path: Path) -> Wanted:
    """Llama 3.1 8B and its EAGLE-3 draft by their files, drafts as in SGLang's examples."""
    (tmp_path / "draft").mkdir()
    found = known(
        Told(
            config=config(tmp_path, LLAMA_8B),
            draft_config=config(tmp_path / "draft", DRAFT_8B),
        )
    )
    return Wanted(
        gpu_bytes=size("80GiB"),
        model=found.model,
        draft=found.draft,
        draft_share=found.draft_share,
        context=32_768,
        spec_running=48,
        base_running=256,
        drafts=Drafts(steps=5, topk=8, tokens=32),
    )


def test_the_founding_case_fits(tmp_path: Path) -> None:
    """A tree of 32 tokens, five steps and top-k 8, 48 sequences: SGLang's own limit with drafts.

    Nothing is known of that machine but two rates; its GPU and model are taken to be these.
    """
    spec, base = pair(plan(founding(tmp_path)))
    assert spec.demand.least_tokens == 32_768 + 2 * 40
    assert base.demand.least_tokens == 32_768 + 2
    assert spec.demand.token_charged == 128 * 1024 * 33 // 32
    assert base.demand.token_charged == 128 * 1024
    assert spec.running == 48
    assert base.kv_tokens > 2 * spec.kv_tokens


def test_memory_adds_up(tmp_path: Path) -> None:
    """In launch order, with the first server grown before the second starts, and after."""
    wish = founding(tmp_path)
    spec, base = pair(plan(wish))
    free = wish.gpu_bytes - wish.reserves.gpu_reserved - spec.demand.runtime
    assert spec.free_least == spec.free_most == free
    left = free - spec.fraction * free - spec.demand.started - base.demand.runtime
    assert base.free_most == pytest.approx(left)
    assert base.free_least == pytest.approx(left - spec.demand.activations)
    grown = spec.demand.activations + base.demand.started + base.demand.activations
    end = left - base.fraction * base.free_most - grown
    assert wish.reserves.margin <= end <= wish.reserves.margin + 0.002 * free


def test_kv_tokens_are_what_sglang_makes_of_the_fraction() -> None:
    """Its formula: what is free after loading, less what the fraction leaves aside."""
    spec, _ = pair(plan(wanted("80GiB", "8B")))
    before = spec.free_most
    after = before - spec.demand.weights - spec.demand.draft
    kv = after - before * (1 - spec.fraction)
    assert spec.kv_tokens == int(kv) // spec.demand.token_charged


def test_spec_gets_its_share_and_no_more_than_it_can_use() -> None:
    """Of one sequence it can use one context; the rest is base's."""
    spec, base = pair(plan(wanted("80GiB", "8B", spec_share=0.5)))
    assert spec.kv_bytes == pytest.approx(base.kv_bytes, rel=0.05)
    one, other = pair(plan(wanted("80GiB", "8B", running=(1, 256), spec_share=0.5)))
    assert one.full_contexts == 1
    assert one.kv_tokens < spec.kv_tokens
    assert other.kv_tokens > base.kv_tokens


def test_spec_gives_way_where_base_would_have_too_little() -> None:
    """A share that would leave base without a request of full context is not kept."""
    made = plan(wanted("80GiB", "8B", spec_share=1.0))
    spec, base = pair(made)
    assert spec.full_contexts == 1
    assert base.full_contexts >= 1


def test_prompts_are_filled_in_smaller_chunks_before_a_pair_is_said_not_to_fit() -> None:
    """They are what costs least to make smaller; a chunk that was asked for is kept."""
    assert plan(wanted("80GiB", "8B")).chunk == 8192
    assert plan(wanted("24GiB", "3B", context=8192)).chunk == 2048
    made = plan(wanted("24GiB", "3B", context=8192, chunk=8192))
    assert not made.fits
    assert made.chunk == 8192


def test_no_more_run_than_there_is_room_for() -> None:
    """512 tokens each, the bound that doctor warns below; and never less than one."""
    _, base = pair(plan(wanted("24GiB", "3B", context=8192)))
    assert base.running == base.kv_tokens // 512 < 256
    short, _ = pair(plan(wanted("24GiB", "3B", context=128, running=(16, 1), spec_share=0.0)))
    assert short.running == max(1, short.kv_tokens // 512)


def test_servers_on_gpus_of_their_own_take_all_of_them() -> None:
    """Each its fraction of the whole, and none waits for the other."""
    spec, base = pair(plan(wanted("48GiB", "8B", topology=Topology.SEPARATE)))
    assert spec.free_most == base.free_most
    assert min(spec.fraction, base.fraction) > 0.85
    assert base.kv_tokens > spec.kv_tokens
    made = plan(wanted("80GiB", "70B", topology=Topology.SEPARATE))
    assert not made.fits
    assert made.short > 50 * GIB


def test_one_server_may_fit_where_two_do_not() -> None:
    """32B alone on 80 GB."""
    wish = wanted("80GiB", "32.8B")
    one, short = alone(wish, SPEC, chunk=2048)
    assert short < 0
    assert one is not None
    assert one.full_contexts >= 1
    none, missing = alone(wanted("80GiB", "70B"), SPEC, chunk=2048)
    assert none is None
    assert missing > 0


def test_a_draft_that_keeps_more_than_is_counted_is_given_room() -> None:
    """SGLang counts a layer of the draft as one of the model; this one keeps four times as much."""
    wish = wanted("80GiB", "8B")
    large = replace(wish.draft, kv=KvShape(layers=1, heads=32))
    as_counted, as_kept = pair(plan(wish)), pair(plan(replace(wish, draft=large)))
    spec = as_kept[0]
    assert spec.demand.token_charged == as_counted[0].demand.token_charged
    assert spec.demand.excess == pytest.approx((36 + 4) / 37)
    assert as_kept[1].free_most < as_counted[1].free_most
    wide = replace(wish, draft=large, topology=Topology.SEPARATE)
    assert (
        pair(plan(wide))[0].fraction
        < pair(plan(replace(wish, topology=Topology.SEPARATE)))[0].fraction
    )


def test_reserves_that_are_told_take_the_place_of_those_computed() -> None:
    """Each of them, and each moves what is left for keys and values."""
    plain = demand(wanted("80GiB", "8B"), SPEC, chunk=8192)
    told = Reserves(runtime=1, graphs=2, activations=3, margin=4, gpu_reserved=5)
    changed = demand(wanted("80GiB", "8B", reserves=told), SPEC, chunk=8192)
    assert (changed.runtime, changed.graphs, changed.activations) == (1, 2, 3)
    assert (plain.runtime, plain.activations) == (GIB + 128 * MIB, 3584 * MIB)
    less = pair(plan(wanted("80GiB", "8B")))[1].kv_tokens
    assert pair(plan(wanted("80GiB", "8B", reserves=told)))[1].kv_tokens > less


def test_graphs_grow_with_what_they_hold() -> None:
    """2 MiB a sequence, three sets where drafts are made, 8 MiB for each length of prefill."""

    def graphs(name: UpstreamName, running: int, chunk: int) -> float:
        made: Demand = demand(wanted("80GiB", "8B", running=(running, running)), name, chunk=chunk)
        return made.graphs / MIB

    assert graphs(BASE, 100, 2048) - graphs(BASE, 0, 2048) == 200
    assert graphs(SPEC, 100, 2048) - graphs(SPEC, 0, 2048) == 600
    assert graphs(BASE, 0, 8192) == 8 * prefill_lengths(8192)


def test_lengths_of_prefill_are_those_of_sglang() -> None:
    """Its list for 8192 ends with every 512th from 4608 on."""
    assert prefill_lengths(4) == 1
    assert prefill_lengths(32) == 8
    assert prefill_lengths(2048) == 8 + 14 + 8 + 8 + 4
    assert prefill_lengths(8192) - prefill_lengths(4096) == 8


def test_the_table_of_requests_grows_with_both() -> None:
    """Four bytes for each token of context that each sequence may have."""
    made = demand(wanted("80GiB", "8B", running=(16, 2047), context=131_072), BASE, chunk=8192)
    assert made.table == GIB


def test_no_gpu_is_too_small_to_be_told_so() -> None:
    """Less than what nobody gets."""
    made = plan(wanted("1MiB", "8B"))
    assert not made.fits
    assert made.short > 0
    assert not plan(wanted("1MiB", "8B", topology=Topology.SEPARATE)).fits


@pytest.mark.parametrize("topology", Topology)
def test_a_pair_that_just_fits_has_what_it_needs(topology: Topology) -> None:
    """Fractions are rounded; where a draft keeps much more than is counted, that is many tokens."""
    wish = wanted("80GiB", "8B", topology=topology)
    wish = replace(wish, draft=replace(wish.draft, kv=KvShape(layers=8, heads=64)))
    held = [
        min(server.full_contexts for server in made.servers)
        for size in range(20 * GIB, 160 * GIB, 97 * MIB)
        if (made := plan(replace(wish, gpu_bytes=size))).servers is not None
    ]
    assert 100 < len(held) < 1400
    assert min(held) == 1
