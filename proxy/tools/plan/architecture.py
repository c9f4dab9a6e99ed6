"""The shape of a model, read from the config.json of its folder.

Only models whose every layer keeps keys and values of every token: for others (multi-head latent
attention, sliding windows, state spaces) SGLang sizes its caches by rules of their own. Those are
said to be unknown, with what to give instead.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.core.fields import Fields
from proxy.errors import ConfigError

_MAX_BYTES: Final = 32 * 2**20
"""The index of a model of many experts has some 10 MB; a config.json a few kB."""
_MOST_DIMENSION: Final = 2**24
_MOST_LAYERS: Final = 10_000

DENSE: Final = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3"})
"""Decoders of attention and a gated MLP: their weights can be counted."""
_EXPERTS: Final = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""The same attention; the weights of experts are not counted here."""

INSTEAD_OF_WEIGHTS: Final = "give --model-weights, the size of its files"
INSTEAD_OF_DRAFT: Final = "leave it out, and give --draft-weights, the size of its files"
_INSTEAD: Final = (
    "leave it out, give --model-weights, the size of its files, and --kv-bytes-per-token, what a "
    "token takes on one GPU: the size of the KV cache over its tokens, in the log of a server"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What of a config.json decides on memory."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int | None
    vocabulary: int | None
    draft_vocabulary: int | None
    """Of an EAGLE-3 draft: the tokens that it may propose."""
    tied: bool
    """Whether the output layer is the embedding once more."""
    positions: int | None
    """Tokens of context that it was made for."""
    float32: bool
    """Stored in 32 bits; SGLang loads such a model in 16 unless it is told otherwise."""
    weight_bits: float | None
    """Of a linear layer that is quantised; None where it is not."""
    quantised_how: str | None
    """The method, also where its bits are unknown."""


def read_architecture(path: Path, *, instead: str = _INSTEAD) -> Architecture:
    """The shape that a config.json tells; `instead` is what to give in its place.

    Raises:
        ConfigError: it cannot be read, lacks a field, or is of a model that is unknown here.
    """
    fields = _read(path)
    model_type = fields.text("model_type") or "unnamed"
    _reject_unknown(path, fields, model_type, instead)
    heads = _dimension(path, fields, "num_attention_heads")
    hidden = _dimension(path, fields, "hidden_size")
    kv_heads = _optional(path, fields, "num_key_value_heads") or heads
    if heads % kv_heads:
        raise ConfigError([(str(path), f"has {heads} attention heads on {kv_heads} of KV")])
    quantised = fields.within("quantization_config") or fields.within("compression_config")
    return Architecture(
        model_type=model_type,
        layers=_dimension(path, fields, "num_hidden_layers", most=_MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        # Where they are not told, SGLang takes the attention heads for the first and divides for
        # the second (model_config.py, get_total_num_kv_heads and __init__).
        kv_heads=kv_heads,
        head_dim=_optional(path, fields, "head_dim") or _divided(path, hidden, heads),
        intermediate=_optional(path, fields, "intermediate_size"),
        vocabulary=_optional(path, fields, "vocab_size"),
        draft_vocabulary=_optional(path, fields, "draft_vocab_size"),
        tied=fields.flag("tie_word_embeddings") or False,
        positions=_optional(path, fields, "max_position_embeddings"),
        float32=(fields.text("dtype") or fields.text("torch_dtype")) == "float32",
        weight_bits=_bits(quantised),
        quantised_how=(quantised.text("quant_method") or "unnamed") if quantised else None,
    )


def read_weight_bytes(path: Path) -> int | None:
    """Bytes of all weights, from the index that lies beside a config.json; None without one.

    Raises:
        ConfigError: there is one, and it cannot be read.
    """
    index = path.parent / "model.safetensors.index.json"
    if not index.is_file():
        return None
    total = _read(index).within("metadata").count("total_size")
    if not total:
        raise ConfigError([(str(index), f"has no total_size; {INSTEAD_OF_WEIGHTS}")])
    return total


def _read(path: Path) -> Fields:
    try:
        with path.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([(str(path), f"cannot be read: {error.strerror}")]) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError([(str(path), f"is larger than {_MAX_BYTES // 2**20} MiB")])
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError([(str(path), "is not JSON")]) from error
    if not isinstance(value, dict):
        raise ConfigError([(str(path), "is not an object of JSON")])
    return Fields(value)


def _reject_unknown(path: Path, fields: Fields, model_type: str, instead: str) -> None:
    """A figure for a model that keeps something else than keys and values would be made up."""
    why = None
    if fields.count("kv_lora_rank") is not None:
        why = "has multi-head latent attention (kv_lora_rank)"
    elif fields.within("text_config"):
        why = "is of several models in one (text_config)"
    elif _mixes_layers(fields):
        why = "has layers of several kinds (layer_types)"
    elif model_type not in DENSE | _EXPERTS:
        known = ", ".join(sorted(DENSE | _EXPERTS))
        why = f"is of a model type that is not known here, {model_type}; known are {known}"
    if why is not None:
        raise ConfigError([(str(path), f"{why}; {instead}")])


def _mixes_layers(fields: Fields) -> bool:
    kinds = fields.canonical("layer_types")
    if kinds in {None, "null"}:
        return False
    value: object = json.loads(kinds or "null")
    return not isinstance(value, list) or any(kind != "full_attention" for kind in value)


def _dimension(path: Path, fields: Fields, name: str, *, most: int = _MOST_DIMENSION) -> int:
    if name not in fields:
        raise ConfigError([(str(path), f"has no {name}")])
    value = fields.count(name)
    if value is None or not 1 <= value <= most:
        raise ConfigError([(str(path), f"{name} must be a whole number from 1 to {most}")])
    return value


def _optional(path: Path, fields: Fields, name: str) -> int | None:
    if fields.canonical(name) in {None, "null"}:
        return None
    return _dimension(path, fields, name)


def _divided(path: Path, hidden: int, heads: int) -> int:
    if hidden < heads:
        raise ConfigError([(str(path), "has more num_attention_heads than hidden_size")])
    return hidden // heads


def _bits(quantised: Fields) -> float | None:
    """Bits of a quantised weight; of 4 and less with the scale and zero point of each group."""
    match quantised.text("quant_method"):
        case "fp8":
            return 8.0
        case "awq" | "gptq":
            bits = quantised.count("bits")
            group = quantised.count("group_size") or 128
            return None if bits not in {2, 3, 4, 8} else bits + (16 + bits) / group
        case _:
            return None
