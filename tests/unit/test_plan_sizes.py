"""Sizes and counts as typed; weights and keys and values by the shape of a model."""

import pytest

from proxy.tools.plan import quantities, sizes
from proxy.tools.plan.quantities import GIB
from proxy.tools.plan.sizes import Dtype, KvDtype, KvShape, Model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("80 GB", 80 * 10**9),
        ("81559MiB", 81559 * 2**20),
        ("1.5TiB", 3 * 2**39),
        ("0.5KB", 500),
        ("7B", 7),
        (" 0MiB ", 0),
    ],
)
def test_a_size_is_in_units_of_ten_or_of_two(text: str, expected: int) -> None:
    """GB are 10^9 and GiB 2^30, as the units say."""
    assert quantities.size(text) == expected


@pytest.mark.parametrize("text", ["", "80", "GiB", "-1GiB", "80Gib", "80gb", "1e3GB", "nan", "٨GB"])
def test_what_is_no_size_is_told_what_one_is(text: str) -> None:
    """A number without its unit too: 80 what?"""
    with pytest.raises(ValueError, match=r'must be a size such as "80GiB" or "16GB", is '):
        quantities.size(text)


def test_a_long_mistake_is_not_repeated_whole() -> None:
    """It would fill the terminal."""
    with pytest.raises(ValueError, match=r"x{40}[.]{3}'$"):
        quantities.size("x" * 1000)


@pytest.mark.parametrize("text", ["9999999999TB", "2000000GiB"])
def test_what_nobody_has_is_a_slip(text: str) -> None:
    """Of sizes and of counts."""
    with pytest.raises(ValueError, match="less than a million GiB"):
        quantities.size(text)
    with pytest.raises(ValueError, match="less than a million GiB"):
        quantities.count("999999999999T")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8B", 8_000_000_000), ("70.6B", 70_600_000_000), ("500M", 500_000_000), ("1T", 10**12)],
)
def test_parameters_are_counted_in_billions(text: str, expected: int) -> None:
    """B is a billion here, and not a byte."""
    assert quantities.count(text) == expected


@pytest.mark.parametrize("text", ["8GB", "8b", "", "eight"])
def test_what_is_no_count_is_told_what_one_is(text: str) -> None:
    """8GB of parameters are a mistake for --model-weights."""
    with pytest.raises(ValueError, match='must be a number such as "8B" or "500M"'):
        quantities.count(text)


def test_nothing_is_not_enough() -> None:
    """Of a GPU, of weights, and of parameters."""
    for read, text in ((quantities.some, "0GiB"), (quantities.count, "0B")):
        with pytest.raises(ValueError, match="must be more than 0"):
            read(text)
    assert quantities.some("1B") == 1


def test_gib_are_shown_with_as_many_digits_as_matter() -> None:
    """A difference of a few MiB is within the error of any estimate."""
    assert quantities.gib(80 * GIB) == "80.0"
    assert quantities.gib(1.125 * GIB) == "1.12"
    assert quantities.gigabytes(16.06e9) == "16.1 GB"


def test_a_token_takes_what_the_figures_of_its_makers_give() -> None:
    """128 KiB of Llama 3.1 8B, 320 of 70B, 80 of that on each of four GPUs."""
    eight, seventy = KvShape(layers=32), KvShape(layers=80)
    assert eight.token_bytes(gpus=1, element_bytes=2.0) == 128 * 1024
    assert seventy.token_bytes(gpus=1, element_bytes=2.0) == 320 * 1024
    assert seventy.token_bytes(gpus=4, element_bytes=2.0) == 80 * 1024
    assert seventy.token_bytes(gpus=4, element_bytes=1.0) == 40 * 1024


def test_heads_are_kept_twice_where_there_are_more_gpus() -> None:
    """Each GPU keeps one at least: 16 GPUs hold 8 heads twice."""
    shape = KvShape(layers=80)
    at = [shape.token_bytes(gpus=gpus, element_bytes=2.0) for gpus in (8, 16, 64)]
    assert at == [40 * 1024] * 3


def test_an_element_of_the_cache() -> None:
    """As --kv-cache-dtype says; auto is that of the weights."""
    assert sizes.element_bytes(KvDtype.AUTO, Dtype.AUTO) == 2.0
    assert sizes.element_bytes(KvDtype.AUTO, Dtype.FLOAT32) == 4.0
    assert sizes.element_bytes(KvDtype.BFLOAT16, Dtype.FLOAT32) == 2.0
    assert sizes.element_bytes(KvDtype.FP8_E4M3, Dtype.AUTO) == 1.0
    assert sizes.element_bytes(KvDtype.FP8_E5M2, Dtype.AUTO) == 1.0


@pytest.mark.parametrize(
    ("parameters", "layers"),
    [(1e9, 36), (8.03e9, 36), (14.8e9, 48), (32.8e9, 64), (70.6e9, 80), (123e9, 88), (405e9, 126)],
)
def test_a_guess_of_the_cache_is_not_below_what_such_models_have(
    parameters: float, layers: int
) -> None:
    """32 layers of Llama 8B, 40 of Qwen3 14B, 64 of 32B, 80 of 70B, 88 of 123B, 126 of 405B."""
    assert sizes.guessed_kv(parameters) == KvShape(layers=layers)


@pytest.mark.parametrize(
    ("parameters", "hidden", "heads", "intermediate"),
    [
        (8.03e9, 4096, 32, 14336),
        (14.77e9, 5120, 40, 17408),
        (32.76e9, 5120, 64, 25600),
        (70.55e9, 8192, 64, 28672),
    ],
    ids=["Llama 8B", "Qwen3 14B", "Qwen3 32B", "Llama 70B"],
)
def test_a_guess_of_the_draft_is_not_below_its_shape(
    parameters: float, hidden: int, heads: int, intermediate: int
) -> None:
    """One layer that reads two states, three states joined, 32,000 tokens; and not far above."""
    attention = 2 * hidden * (heads + 16) * 128 + heads * 128 * hidden
    shape = attention + 3 * hidden * intermediate + 3 * hidden**2 + 32_000 * hidden
    assert 1.0 <= sizes.guessed_draft_parameters(parameters) / shape <= 1.26


@pytest.mark.parametrize(
    ("heads", "kv_heads", "gpus", "expected"),
    [
        (32, 8, 1, True),
        (32, 8, 8, True),
        (32, 8, 16, True),
        (32, 8, 3, False),
        (40, 8, 16, False),
        (28, 4, 4, True),
        (28, 4, 7, False),
        (12, 2, 6, True),
    ],
)
def test_gpus_share_heads_evenly(heads: int, kv_heads: int, gpus: int, expected: object) -> None:
    """As SGLang asserts: attention heads are divided, KV heads divided or repeated."""
    model = Model(weight_bytes=1, kv=1, heads=heads, kv_heads=kv_heads)
    assert model.can_be_split(gpus) is expected


def test_heads_that_are_unknown_are_not_held_against_anybody() -> None:
    """SGLang will say so."""
    assert Model(weight_bytes=1, kv=1).can_be_split(7)
