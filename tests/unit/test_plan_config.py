"""What a config.json says of a model, and what becomes of one that says something else."""

import json
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.tools.plan.architecture import read_architecture, read_weight_bytes
from proxy.tools.plan.known import Told, known
from proxy.tools.plan.sizes import Dtype, KvShape
from tests.harness.plans import DRAFT_8B, LLAMA_8B, config


def refused(told: Told) -> str:
    """What is said of it, with the name of the file or the option."""
    with pytest.raises(ConfigError) as caught:
        known(told)
    ((path, message),) = caught.value.findings
    return f"{Path(path).name}: {message}"


def test_the_weights_of_a_dense_model_are_counted(tmp_path: Path) -> None:
    """To the parameter: Llama 3.1 8B has 8,030,261,248 of them."""
    found = known(Told(config=config(tmp_path, LLAMA_8B)))
    assert found.model.weight_bytes == 2 * 8_030_261_248
    assert found.model.kv == KvShape(layers=32)
    assert found.model.positions == 131_072
    assert not found.model.kv_guessed


@pytest.mark.parametrize(
    ("changed", "parameters"),
    [
        # Llama 3.1 70B, Llama 3.2 1B (its embedding is its output layer), Qwen2.5 32B and Qwen3 8B
        # but for biases and the norms of heads, which are a ten-thousandth
        (
            {
                "hidden_size": 8192,
                "intermediate_size": 28672,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
            },
            70_553_706_496,
        ),
        (
            {
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "head_dim": 64,
                "tie_word_embeddings": True,
            },
            1_235_814_400,
        ),
        (
            {
                "model_type": "qwen2",
                "hidden_size": 5120,
                "intermediate_size": 27648,
                "num_hidden_layers": 64,
                "num_attention_heads": 40,
                "vocab_size": 152064,
            },
            32_763_876_352,
        ),
        (
            {
                "model_type": "qwen3",
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "head_dim": 128,
                "vocab_size": 151936,
            },
            8_190_735_360,
        ),
    ],
    ids=["70B", "1B", "32B", "8B of Qwen3"],
)
def test_counts_are_those_of_the_models(
    tmp_path: Path, changed: dict[str, object], parameters: int
) -> None:
    """Within a thousandth."""
    found = known(Told(config=config(tmp_path, LLAMA_8B, **changed)))
    assert found.model.weight_bytes == pytest.approx(2 * parameters, rel=1e-3)


def test_what_the_index_lists_counts_before_a_count(tmp_path: Path) -> None:
    """It is the size of the files, quantised or not."""
    path = config(tmp_path, LLAMA_8B, quantization_config={"quant_method": "compressed-tensors"})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 9_085_000_000}, "weight_map": {}}))
    assert read_weight_bytes(path) == 9_085_000_000
    assert known(Told(config=path)).model.weight_bytes == 9_085_000_000
    assert known(Told(config=path, weight_bytes=5)).model.weight_bytes == 5
    assert known(Told(config=path, weight_bits=16.0)).model.weight_bytes > 16e9  # told by hand


def test_files_in_32_bits_are_loaded_in_16(tmp_path: Path) -> None:
    """As SGLang does, unless it is told otherwise."""
    path = config(tmp_path, LLAMA_8B, torch_dtype="float32")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 4_000}}))
    assert known(Told(config=path)).model.weight_bytes == 2_000
    assert known(Told(config=path, dtype=Dtype.FLOAT32)).model.weight_bytes == 4_000


def test_an_index_without_its_size_is_an_error(tmp_path: Path) -> None:
    """It is there, so whoever gave the folder relies on it."""
    path = config(tmp_path, LLAMA_8B)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert refused(Told(config=path)) == (
        "model.safetensors.index.json: has no total_size; give --model-weights, the size of its "
        "files"
    )


@pytest.mark.parametrize(
    ("quantised", "least", "most"),
    [
        ({"quant_method": "fp8"}, 9.0e9, 9.2e9),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 5.7e9, 5.9e9),
        ({"quant_method": "gptq", "bits": 8}, 9.1e9, 9.3e9),
    ],
)
def test_quantised_weights_are_counted_by_their_bits(
    tmp_path: Path, quantised: dict[str, object], least: float, most: float
) -> None:
    """Llama 3.1 8B has 9.1 GB in FP8 and 5.7 GB in AWQ: embeddings stay in 16 bits."""
    path = config(tmp_path, LLAMA_8B, quantization_config=quantised)
    assert least < known(Told(config=path)).model.weight_bytes < most


@pytest.mark.parametrize(
    "quantised", [{"quant_method": "modelopt"}, {"bits": 4}, {"quant_method": "awq", "bits": 5}]
)
def test_a_quantisation_that_is_not_known_is_not_guessed_at(
    tmp_path: Path, quantised: dict[str, object]
) -> None:
    """The size of the files says it."""
    path = config(tmp_path, LLAMA_8B, quantization_config=quantised)
    how = quantised.get("quant_method", "unnamed")
    assert refused(Told(config=path)) == (
        f"config.json: what weights of {how} take is not known here; give --model-weights, the "
        "size of its files"
    )
    assert refused(Told(config=path, parameters=8)) == (
        f"config.json: is quantised ({how}) in a way that is not known here; give --weight-bits "
        "with --parameters"
    )
    assert known(Told(config=path, weight_bytes=7)).model.weight_bytes == 7
    assert known(Told(config=path, parameters=8, weight_bits=4.0)).model.weight_bytes == 4
    assert known(Told(config=path, weight_bits=8.0)).model.weight_bytes < 9.2e9


def test_experts_are_not_counted_and_their_attention_is_read(tmp_path: Path) -> None:
    """Mixtral keeps what a dense model keeps."""
    path = config(tmp_path, LLAMA_8B, model_type="mixtral")
    assert refused(Told(config=path)) == (
        "config.json: what weights of mixtral take is not known here; give --model-weights, the "
        "size of its files"
    )
    assert known(Told(config=path, weight_bytes=10**11)).model.kv == KvShape(layers=32)


KNOWN = "llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe"
INSTEAD = (
    "leave it out, give --model-weights, the size of its files, and --kv-bytes-per-token, what a "
    "token takes on one GPU: the size of the KV cache over its tokens, in the log of a server"
)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kv_lora_rank": 512}, "has multi-head latent attention (kv_lora_rank)"),
        ({"text_config": {"hidden_size": 1}}, "is of several models in one (text_config)"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "has layers of several kinds (layer_types)",
        ),
        ({"layer_types": 3}, "has layers of several kinds (layer_types)"),
        (
            {"model_type": "mamba"},
            f"is of a model type that is not known here, mamba; known are {KNOWN}",
        ),
    ],
)
def test_a_model_with_another_cache_is_unknown(
    tmp_path: Path, changed: dict[str, object], why: str
) -> None:
    """A figure for it would be made up."""
    path = config(tmp_path, LLAMA_8B, **changed)
    assert refused(Told(config=path)) == f"config.json: {why}; {INSTEAD}"


def test_full_attention_everywhere_is_nothing_special(tmp_path: Path) -> None:
    """Newer files say so of each layer."""
    path = config(tmp_path, LLAMA_8B, layer_types=["full_attention"] * 32)
    assert read_architecture(path).layers == 32


def test_what_a_file_leaves_out_is_what_sglang_takes_for_it(tmp_path: Path) -> None:
    """A KV head for each attention head, and the width over the heads."""
    path = config(tmp_path, LLAMA_8B, num_key_value_heads=None)
    found = read_architecture(path)
    assert (found.kv_heads, found.head_dim) == (32, 128)
    path.write_text(json.dumps({**LLAMA_8B, "head_dim": None, "num_key_value_heads": None}))
    assert read_architecture(path) == found


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number from 1 to 10000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1 to 10000"),
        ({"num_attention_heads": -1}, "num_attention_heads must be a whole number from 1 to"),
        ({"head_dim": 1.5}, "head_dim must be a whole number from 1 to"),
        ({"vocab_size": True}, "vocab_size must be a whole number from 1 to"),
        ({"hidden_size": 16}, "has more num_attention_heads than hidden_size"),
        ({"intermediate_size": None}, "what weights of llama take is not known here"),
    ],
)
def test_an_odd_field_is_named(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    """Nothing is taken for a number that is none."""
    path = config(tmp_path, LLAMA_8B, **changed)
    assert refused(Told(config=path)).startswith(f"config.json: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not an object of JSON"),
        (b" " * (32 * 2**20 + 1), "is larger than 32 MiB"),
    ],
    ids=["empty", "bytes", "deep", "list", "large"],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """With what it is."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert refused(Told(config=path)) == f"config.json: {message}"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A folder is none either."""
    assert refused(Told(config=tmp_path / "no.json")) == (
        "no.json: cannot be read: No such file or directory"
    )
    assert refused(Told(config=tmp_path)).endswith("cannot be read: Is a directory")


def test_a_model_of_unknown_size_is_asked_for() -> None:
    """There is nothing to plan from."""
    assert refused(Told()) == (
        "--model-weights: how large is the model? give it, --parameters or --config"
    )


def test_a_size_alone_is_enough(tmp_path: Path) -> None:
    """The rest is guessed from it, and marked as a guess."""
    by_weights, by_count = known(Told(weight_bytes=16 * 10**9)), known(Told(parameters=8 * 10**9))
    assert by_weights == by_count
    assert by_weights.model.kv_guessed
    assert by_weights.draft.weights_guessed
    assert by_weights.draft_share == (1, 36)
    assert known(Told(parameters=8 * 10**9, weight_bits=4.0)).model.weight_bytes == 4 * 10**9


def test_bytes_of_a_token_that_are_told_are_taken() -> None:
    """And the draft has its share of them, as of one layer of a model of that size."""
    found = known(Told(weight_bytes=16 * 10**9, kv_token_bytes=72_000))
    assert found.model.kv == 72_000
    assert not found.model.kv_guessed
    assert found.draft.kv == 2_000
    assert found.draft_share is None


def test_a_draft_is_counted_by_its_shape(tmp_path: Path) -> None:
    """0.85 GB of the one for Llama 3.1 8B: its embedding is the model's."""
    (tmp_path / "draft").mkdir()
    path = config(tmp_path / "draft", DRAFT_8B)
    found = known(Told(config=config(tmp_path, LLAMA_8B), draft_config=path))
    assert found.draft.weight_bytes == pytest.approx(0.8494e9, rel=1e-3)
    assert found.draft.positions == 2048
    assert found.draft_share == (1, 32)
    assert known(Told(parameters=8, draft_weight_bytes=9)).draft.weight_bytes == 9


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model_type": "other"}, "is of a model type that is not known here, other"),
        ({"intermediate_size": None}, "has no intermediate_size"),
    ],
)
def test_a_draft_that_is_not_known_is_told_by_its_size(
    tmp_path: Path, changed: dict[str, object], why: str
) -> None:
    """Its shape matters less."""
    message = refused(Told(parameters=8, draft_config=config(tmp_path, DRAFT_8B, **changed)))
    assert message.startswith(f"config.json: {why}")
    assert message.endswith("leave it out, and give --draft-weights, the size of its files")
