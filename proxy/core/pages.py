"""What an SGLang server is by its pages: the arguments of /server_info, the cards of /v1/models.

Read here only, by the proxy's probes and by the tools: a calibration counts for the server that it
was made of, so both must read the same. Field names are SGLang 0.5.23's, older ones where they are
known to differ; what a page does not say, or not so that it makes sense, is None.
"""

from collections.abc import Sequence
from typing import Final

from proxy.core.fields import Fields
from proxy.core.identity import Identity

_ADAPTIVE_DRAFT_TOKENS: Final = 8
"""SGLang 0.5.23, adaptive_spec_params.py: the deepest step of its own ladder is 7, and the token
before them is verified, too."""


def identity_of(arguments: Fields | None, cards: Sequence[Fields]) -> Identity:
    """What the server is; `arguments` is None where it has no /server_info."""
    if arguments is None:
        return Identity(known=False, adapters=adapters_of(Fields(), cards))
    return Identity(
        known=True,
        speculative_algorithm=arguments.text("speculative_algorithm"),
        model=arguments.text("model_path"),
        revision=arguments.text("revision"),
        dtype=arguments.text("dtype"),
        quantization=arguments.text("quantization"),
        context_length=context_length_of(arguments, cards),
        tensor_parallel=arguments.count("tp_size"),
        max_running_requests=max_running_of(arguments),
        graph_ceiling=graph_ceiling_of(arguments),
        speculative_num_steps=arguments.count("speculative_num_steps"),
        speculative_eagle_topk=arguments.count("speculative_eagle_topk"),
        speculative_num_draft_tokens=draft_tokens_of(arguments),
        version=arguments.text("version"),
        adapters=adapters_of(arguments, cards),
        stores_responses=bool(arguments.flag("enable_response_store")),
    )


def adapters_of(arguments: Fields, cards: Sequence[Fields]) -> frozenset[str]:
    """Names of the loaded LoRA adapters."""
    served = arguments.text("served_model_name")
    names = (card.text("id") for card in cards if _is_adapter(card, served))
    return frozenset(name for name in names if name)


def context_length_of(arguments: Fields, cards: Sequence[Fields]) -> int | None:
    """Tokens. The argument is null where the model's own length is used; the card has it."""
    served = arguments.text("served_model_name")
    lengths = (card.count("max_model_len") for card in cards if not _is_adapter(card, served))
    resolved = next((length for length in lengths if length is not None), None)
    return resolved if resolved is not None else arguments.count("context_length")


def ranks_of(arguments: Fields) -> list[Fields]:
    """What came of the arguments, one for each data-parallel rank."""
    return arguments.many("internal_states")


def max_running_of(arguments: Fields) -> int | None:
    """Sequences that run at once over all ranks: memory may have cut what was asked for."""
    ranks = ranks_of(arguments)
    effective = total([rank.count("effective_max_running_requests_per_dp") for rank in ranks])
    return arguments.count("max_running_requests") if effective is None else effective


def graph_ceiling_of(arguments: Fields) -> int | None:
    """The largest decode batch with a CUDA graph over all ranks.

    None where graphs are off or not spoken of.
    """
    if arguments.flag("disable_cuda_graph") or arguments.flag("disable_decode_cuda_graph"):
        return None
    ranks = ranks_of(arguments)
    if ranks and all("decode_cuda_graph_bs" in rank for rank in ranks):
        # What was captured in fact: empty on a CPU, whose arguments still name a ceiling.
        return total([max(rank.counts("decode_cuda_graph_bs"), default=None) for rank in ranks])
    decode = arguments.within("cuda_graph_config").within("decode")
    if decode.text("backend") == "disabled":
        return None
    ceiling = decode.count("max_bs") or arguments.count("cuda_graph_max_bs")  # the older name
    return None if ceiling is None else ceiling * max(1, len(ranks))


def draft_tokens_of(arguments: Fields) -> int | None:
    """The most draft tokens of a round; adaptive speculation may draft more than it says now."""
    said = arguments.count("speculative_num_draft_tokens")
    if said is None or not arguments.flag("speculative_adaptive"):
        return said
    return max(said, _ADAPTIVE_DRAFT_TOKENS)


def total(parts: Sequence[int | None]) -> int | None:
    """The sum over all ranks; None if one does not say, or there is none."""
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _is_adapter(card: Fields, served: str | None) -> bool:
    """Whether an entry of /v1/models is a LoRA adapter: those have a parent, or another name."""
    return card.text("parent") is not None or (served is not None and card.text("id") != served)
