"""Write the tiny Llama target, its EAGLE-3 draft and an adapter: `make_models.py T D ADAPTER`.

Runs in the engines' environment. Nothing is downloaded, and the same files come out each time.

The target is random with one twist, which makes speculation mean something: its embedding and its
head spell a fixed map from each token to the next, and the random layers between disturb it. The
draft knows the map alone, so some of its guesses are right and some are wrong. The first token of
a reply depends on the whole prompt, because the last prompt token has a zero embedding.

What is not here: sense. A reply is a walk through English words.
"""

# mypy: disable-error-code="import-not-found"
# (torch and its company live in the engines' environment, not in the one mypy runs in)

import json
import pydoc_data.topics
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

VOCABULARY, HIDDEN, HEADS, LAYERS, INTERMEDIATE = 2048, 64, 4, 4, 128
CONTEXT = 4096  # tokens
ADAPTER_RANK = 4

# The scale of the random layers. The map then holds for 82 % of a reply's tokens (at 0.06: 97 %,
# at 0.14: 11 %), and about 2.8 of 4 tokens are accepted in each verification.
DISTURBANCE = 0.10

STOP_SHARE = 0.01  # of the words, those that the end follows: replies end by themselves, too

SPECIAL = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE, trained on the help texts that come with Python."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=SPECIAL[3:],
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE,
    )


def next_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the token after each token: one long cycle of words, which the rest lead into."""
    rng = random.Random(7)
    words = [token for token in range(len(SPECIAL), VOCABULARY) if _is_word(tokenizer, token)]
    rng.shuffle(words)
    following = [words[token % len(words)] for token in range(VOCABULARY)]
    for word, successor in zip(words, words[1:] + words[:1], strict=True):
        following[word] = successor
    for word in rng.sample(words, int(len(words) * STOP_SHARE)):
        following[word] = tokenizer.eos_token_id
    return following


def _is_word(tokenizer: PreTrainedTokenizerFast, token: int) -> bool:
    text: str = tokenizer.decode([token])
    return text.isascii() and text.startswith(" ") and text.strip().isalpha()


def make_map(tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedding and the head that spell the map, both VOCABULARY x HIDDEN."""
    embedding = torch.randn(VOCABULARY, HIDDEN)
    embedding /= embedding.pow(2).mean(-1, keepdim=True).sqrt()
    embedding[tokenizer.convert_tokens_to_ids("<|assistant|>")] = 0  # the reply's start: see above
    head = torch.zeros(VOCABULARY, HIDDEN)
    for token, successor in enumerate(next_tokens(tokenizer)):
        head[successor] += embedding[token]
    head = 0.25 * head / head.norm(dim=-1, keepdim=True).clamp_min(1e-6) * HIDDEN**0.5
    return embedding, head


def make_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Return the target's shape; the draft has the same but for its layers."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        initializer_range=DISTURBANCE,
        dtype="bfloat16",
    )


def write_target(
    where: Path, config: LlamaConfig, embedding: torch.Tensor, head: torch.Tensor
) -> None:
    """Write a random Llama with *embedding* and *head* in place."""
    target = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        target.model.embed_tokens.weight.copy_(embedding)
        target.lm_head.weight.copy_(head)
    target.to(torch.bfloat16).save_pretrained(where)


def write_draft(
    where: Path, config: LlamaConfig, embedding: torch.Tensor, head: torch.Tensor
) -> None:
    """Write a draft that sees the last token alone, not the target's hidden states."""
    where.mkdir(parents=True)
    weights = {
        name: (weight.to(torch.bfloat16) if weight.is_floating_point() else weight)
        .contiguous()
        .clone()  # the format refuses tensors that share memory
        for name, weight in _draft_weights(embedding, head).items()
    }
    save_file(weights, where / "model.safetensors", metadata={"format": "pt"})
    shape = config.to_dict() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        },
    }
    (where / "config.json").write_text(json.dumps(shape, indent=2))


def _draft_weights(embedding: torch.Tensor, head: torch.Tensor) -> dict[str, torch.Tensor]:
    one, none = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    ones = torch.ones(HIDDEN)
    return {
        "embed_tokens.weight": embedding,
        "fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN),
        "midlayer.input_layernorm.weight": ones,
        "midlayer.hidden_norm.weight": ones,
        "midlayer.post_attention_layernorm.weight": ones,
        # Each position attends to itself and carries its own embedding over.
        "midlayer.self_attn.q_proj.weight": torch.cat([5 * one, none], 1),
        "midlayer.self_attn.k_proj.weight": torch.cat([5 * one, none], 1),
        "midlayer.self_attn.v_proj.weight": torch.cat([one, -one], 1),
        "midlayer.self_attn.o_proj.weight": 3 * one,
        "midlayer.mlp.gate_proj.weight": torch.zeros(INTERMEDIATE, HIDDEN),
        "midlayer.mlp.up_proj.weight": torch.zeros(INTERMEDIATE, HIDDEN),
        "midlayer.mlp.down_proj.weight": torch.zeros(HIDDEN, INTERMEDIATE),
        "norm.weight": ones,
        "lm_head.weight": head,
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),  # draft and target share one vocabulary
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }


def write_adapter(where: Path) -> None:
    """Write a random LoRA adapter of the target, in PEFT's format, that changes what it says."""
    where.mkdir(parents=True)
    weights = {}
    for layer in range(LAYERS):
        module = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{module}.lora_A.weight"] = torch.randn(ADAPTER_RANK, HIDDEN)
        weights[f"{module}.lora_B.weight"] = torch.randn(HIDDEN, ADAPTER_RANK)
    save_file(weights, where / "adapter_model.safetensors", metadata={"format": "pt"})
    shape = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "lora_dropout": 0.0,
        "target_modules": ["o_proj"],
        "bias": "none",
    }
    (where / "adapter_config.json").write_text(json.dumps(shape, indent=2))


def main(target: Path, draft: Path, adapter: Path) -> None:
    """Write all three."""
    disable_progress_bar()
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    embedding, head = make_map(tokenizer)
    config = make_config(tokenizer)
    write_target(target, config, embedding, head)
    write_draft(draft, config, embedding, head)
    tokenizer.save_pretrained(target)
    write_adapter(adapter)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
