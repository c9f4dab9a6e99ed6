"""What is said where a pair does not fit: each way that is named would fit."""

import re
from dataclasses import replace

import pytest

from proxy.core.words import Topology
from proxy.tools.plan.instead import instead
from proxy.tools.plan.sizes import KvDtype
from proxy.tools.plan.split import plan
from proxy.tools.plan.wanted import Drafts, Reserves, Wanted
from tests.harness.plans import wanted


def ways(wish: Wanted) -> tuple[str, ...]:
    """In place of a pair that does not fit."""
    made = plan(wish)
    assert not made.fits
    return instead(made)


def test_32b_on_80_gb_has_five_ways_out() -> None:
    """Fewer bits, more GPUs, two sets, a smaller model, or one server that adapts itself."""
    found = ways(wanted("80GiB", "32.8B"))
    assert [re.split(r"[,:]|(?= of weights)", each)[0] for each in found] == [
        "weights in 8 bits (an FP8 checkpoint",
        "weights in 4 bits (an AWQ or GPTQ checkpoint)",
        "--gpus 2",
        "--topology separate",
        "a model of up to 28.4 GB",
        "one server with --speculative-adaptive in place of a pair",
    ]
    assert found[0].endswith("and --context 16384")


def test_what_it_is_already_is_no_way_out() -> None:
    """Fewer bits than it has, and GPUs of its own."""
    eight = ways(wanted("40GiB", "8B", bits=8.0, context=200_000, running=(1, 1)))
    assert eight[0].startswith("--context ")
    assert not any("in 8 bits" in each for each in eight)
    separate = ways(wanted("40GiB", "32B", topology=Topology.SEPARATE))
    assert not any("--topology" in each or "one server" in each for each in separate)
    assert any("--gpus" in each for each in separate)


def test_each_way_that_is_named_fits() -> None:
    """As the same plan with that one change says."""
    wish = wanted("80GiB", "32.8B")
    half = replace(wish.model, weight_bytes=wish.model.weight_bytes // 2)
    quarter = replace(wish.model, weight_bytes=round(wish.model.weight_bytes * 4.25 / 16))
    assert plan(replace(wish, model=half, context=16_384)).fits
    assert not plan(replace(wish, model=half)).fits
    assert plan(replace(wish, model=quarter)).fits
    assert plan(replace(wish, gpus=2)).fits
    assert plan(replace(wish, topology=Topology.SEPARATE)).fits
    assert plan(replace(wish, model=replace(wish.model, weight_bytes=28_400_000_000))).fits


def test_less_of_what_is_kept_may_be_enough() -> None:
    """A shorter context, or one of 8 bits for each number."""
    wish = wanted("80GiB", "8B", context=200_000, running=(1, 1))
    found = ways(wish)
    assert found[0] == "--context 131072"
    assert plan(replace(wish, context=131_072)).fits
    assert not plan(replace(wish, context=262_144)).fits
    assert found[1].startswith("--kv-cache-dtype fp8_e5m2")
    assert plan(replace(wish, kv_dtype=KvDtype.FP8_E5M2)).fits
    eight = replace(wish, kv_dtype=KvDtype.FP8_E4M3, context=700_000)
    assert not any(each.startswith("--kv-cache-dtype") for each in ways(eight))


def test_weights_in_few_bits_are_not_made_larger() -> None:
    """Nor are those of 8 bits said to be what would help."""
    found = ways(wanted("80GiB", "40B", bits=8.0))
    assert not any("8 bits" in each for each in found)
    assert any("4 bits" in each for each in found)
    assert not any("bits" in each for each in ways(wanted("16GiB", "32B", bits=4.0)))


def test_heads_are_not_split_unevenly() -> None:
    """Of 28 heads two GPUs have 14, and 8 have none."""
    wish = wanted("80GiB", "32.8B")
    odd = replace(wish, model=replace(wish.model, heads=27, kv_heads=9))
    assert not any(each.startswith("--gpus") for each in ways(odd))


def test_no_more_gpus_than_a_machine_has() -> None:
    """Eight at most are proposed."""
    assert not any(each.startswith("--gpus") for each in ways(wanted("80GiB", "405B", gpus=8)))
    assert any(each.startswith("--gpus 8") for each in ways(wanted("141GiB", "405B", bits=8.0)))


def test_two_sets_are_not_proposed_to_whoever_has_them() -> None:
    """Nor one server on both."""
    found = ways(wanted("80GiB", "70B", topology=Topology.SEPARATE))
    assert not any("separate" in each or "adaptive" in each for each in found)
    (sets,) = [each for each in ways(wanted("48GiB", "32.8B", gpus=2)) if "separate" in each]
    assert sets == "--topology separate: two sets of 2 GPUs, one for each server"


def test_a_server_that_adapts_itself_drafts_chains() -> None:
    """A tree is not among what it does."""
    wish = replace(wanted("80GiB", "32.8B"), drafts=Drafts(steps=5, topk=8, tokens=32))
    assert ways(wish)[-1].endswith("tokens (chains of drafts only)")
    assert "(" not in ways(wanted("80GiB", "32.8B"))[-1]


@pytest.mark.parametrize("gpu", ["1GiB", "2GiB"])
def test_where_nothing_would_fit_nothing_is_named(gpu: str) -> None:
    """A GPU that the reserves alone fill."""
    reserves = Reserves(gpu_reserved=2**31)
    assert ways(wanted(gpu, "8B", reserves=reserves)) == ()


def test_a_context_is_not_made_shorter_than_is_of_use() -> None:
    """2048 tokens are the least that is proposed."""
    assert not any(each.startswith("--context") for each in ways(wanted("80GiB", "70B", context=1)))
