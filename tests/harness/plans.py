"""Pairs to plan for, by the size of the model; and config.json files as models have them."""

import json
from pathlib import Path

from proxy.core.words import Topology
from proxy.tools.plan.known import Told, known
from proxy.tools.plan.quantities import count, size
from proxy.tools.plan.wanted import Reserves, Wanted

LLAMA_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Llama 3.1 8B, which has 8,030,261,248 parameters."""

DRAFT_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
}
"""An EAGLE-3 draft for it."""


def wanted(  # noqa: PLR0913 - what a test varies
    gpu: str,
    parameters: str,
    *,
    gpus: int = 1,
    bits: float = 16.0,
    context: int = 32_768,
    running: tuple[int, int] = (16, 256),
    topology: Topology = Topology.SHARED,
    chunk: int | None = None,
    spec_share: float = 0.25,
    reserves: Reserves | None = None,
) -> Wanted:
    """A pair for a model of so many parameters; `running` is of spec and of base."""
    found = known(Told(parameters=count(parameters), weight_bits=bits))
    return Wanted(
        gpu_bytes=size(gpu),
        gpus=gpus,
        topology=topology,
        model=found.model,
        draft=found.draft,
        draft_share=found.draft_share,
        context=context,
        spec_running=running[0],
        base_running=running[1],
        chunk=chunk,
        spec_share=spec_share,
        reserves=reserves or Reserves(),
    )


def config(folder: Path, values: dict[str, object], **changed: object) -> Path:
    """Write `values` with changes as the config.json of a model; a change to None takes one out."""
    path = folder / "config.json"
    merged = {**values, **changed}
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))
    return path
