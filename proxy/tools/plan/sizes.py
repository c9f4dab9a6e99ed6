"""What one model takes: bytes of weights, and of the keys and values of a token.

    weights             parameters x bits / 8, over all GPUs
    a token, each GPU   2 x layers x max(1, kv heads // GPUs) x head size x bytes of an element

The second is SGLang's (`model_executor/pool_configurator.py`, `_compute_cell_size`, of 0.5.23):
with more GPUs than heads each GPU keeps one. What is not told is guessed from the size, and that
is said.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, sqrt
from typing import Final

from proxy.tools.plan.architecture import DENSE, Architecture

FULL_BITS: Final = 16.0
"""Of a weight in bfloat16 or float16."""

_LAYERS: Final = (
    (10e9, 36),  # Llama 3.1 8B has 32, Qwen3 4B and 8B have 36
    (16e9, 48),  # Qwen3 14B has 40, Qwen2.5 14B 48
    (40e9, 64),  # Qwen2.5 and Qwen3 32B
    (80e9, 80),  # Llama 3.1 70B, Qwen2.5 72B
    (130e9, 88),  # Mistral Large
)
"""Layers of dense models of up to so many parameters, of their public config.json."""
_MOST_LAYERS: Final = 126
"""Llama 3.1 405B."""
_KV_HEADS: Final = 8
_HEAD_DIM: Final = 128
"""Both of each model above."""

_DRAFT_PARAMETERS: Final = 0.17e9
"""Of an EAGLE-3 draft for 10^9 parameters; it grows with their root. 0.42e9 for Llama 3.1 8B,
0.78e9 for Qwen3 32B, 1.40e9 for Llama 3.1 70B, by their shapes: this is 1 to 25 % above each."""
DRAFT_VOCABULARY: Final = 32_000
"""Tokens that an EAGLE-3 draft may propose, where its config.json does not say (EAGLE-3's own)."""


class KvDtype(StrEnum):
    """--kv-cache-dtype of both servers."""

    AUTO = "auto"  # that of the weights
    BFLOAT16 = "bfloat16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class Dtype(StrEnum):
    """--dtype of both servers."""

    AUTO = "auto"  # that of the model; float32 is taken in 16 bits
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"

    @property
    def bits(self) -> float:
        """Of a weight that is not quantised."""
        return 32.0 if self is Dtype.FLOAT32 else FULL_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What of a model's attention is kept for each token."""

    layers: int
    heads: int = _KV_HEADS
    head_dim: int = _HEAD_DIM

    def token_bytes(self, *, gpus: int, element_bytes: float) -> int:
        """Bytes of a token on each of `gpus`."""
        heads = max(1, self.heads // gpus)
        return round(2 * self.layers * heads * self.head_dim * element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model as it matters to memory; a draft is one too."""

    weight_bytes: int
    """On all GPUs together."""
    weight_bits: float = FULL_BITS
    kv: KvShape | int
    """Its shape; or bytes of a token on each GPU, as they were told."""
    kv_guessed: bool = False
    weights_guessed: bool = False
    heads: int | None = None
    """Attention heads; None where unknown."""
    kv_heads: int | None = None
    """The heads whose keys and values are kept; None where unknown."""
    positions: int | None = None
    """Tokens of context that it was made for; None where unknown."""

    def can_be_split(self, gpus: int) -> bool:
        """Whether its heads come out even, as `models/llama.py` asks; true where unknown."""
        if self.heads is None or self.kv_heads is None:
            return True
        few, many = sorted((self.kv_heads, gpus))
        return self.heads % gpus == 0 and many % few == 0

    def token_bytes(self, *, gpus: int, element_bytes: float) -> int:
        """Bytes that a token takes on each of `gpus`."""
        if isinstance(self.kv, int):
            return self.kv
        return self.kv.token_bytes(gpus=gpus, element_bytes=element_bytes)


def element_bytes(kv: KvDtype, dtype: Dtype) -> float:
    """Bytes of one number in the KV cache."""
    match kv:
        case KvDtype.FP8_E4M3 | KvDtype.FP8_E5M2:
            return 1.0
        case KvDtype.BFLOAT16:
            return 2.0
        case KvDtype.AUTO:
            return dtype.bits / 8


def weights(parameters: float, bits: float) -> int:
    """Bytes of so many parameters."""
    return ceil(parameters * bits / 8)


def kv_shape(of: Architecture) -> KvShape:
    """What it keeps of each token."""
    return KvShape(layers=of.layers, heads=of.kv_heads, head_dim=of.head_dim)


def guessed_kv(parameters: float) -> KvShape:
    """The attention of a dense model of about this size."""
    layers = next((layers for most, layers in _LAYERS if parameters <= most), _MOST_LAYERS)
    return KvShape(layers=layers)


def guessed_draft_parameters(parameters: float) -> float:
    """Parameters of an EAGLE-3 draft for a model of so many, its embedding left out."""
    return _DRAFT_PARAMETERS * sqrt(parameters / 1e9)


def weight_bytes(of: Architecture, *, bits: float) -> int | None:
    """Bytes of the weights of a dense model; None of one whose weights cannot be counted.

    `bits` are those of a linear layer; the embedding and the output layer stay in at least 16.
    """
    if of.model_type not in DENSE or of.intermediate is None or of.vocabulary is None:
        return None
    layer = _layer(of, width=of.hidden, intermediate=of.intermediate)
    tables = of.vocabulary * of.hidden * (1 if of.tied else 2)
    norms = (2 * of.layers + 1) * of.hidden
    return weights(of.layers * layer, bits) + weights(tables + norms, max(bits, FULL_BITS))


def draft_weight_bytes(of: Architecture, *, vocabulary: int = DRAFT_VOCABULARY) -> int | None:
    """Bytes of an EAGLE-3 draft, 16 bits each; None where its config.json lacks a field.

    Its embedding is the target's (`speculative/eagle_worker_v2.py`, `init_lm_head`); its first
    layer reads an embedding beside a hidden state, and a layer of its own joins three hidden states
    of the target (`models/llama_eagle3.py`).
    """
    if of.intermediate is None:
        return None
    first = _layer(of, width=2 * of.hidden, intermediate=of.intermediate)
    others = (of.layers - 1) * _layer(of, width=of.hidden, intermediate=of.intermediate)
    joined = 3 * of.hidden * of.hidden
    proposed = (of.draft_vocabulary or vocabulary) * of.hidden
    norms = (3 * of.layers + 1) * of.hidden
    return weights(first + others + joined + proposed + norms, FULL_BITS)


def _layer(of: Architecture, *, width: int, intermediate: int) -> int:
    """Parameters of attention, which reads `width` numbers, and of a gated MLP."""
    queries = of.heads * of.head_dim
    kept = of.kv_heads * of.head_dim
    attention = width * (queries + 2 * kept) + queries * of.hidden
    return attention + 3 * of.hidden * intermediate
