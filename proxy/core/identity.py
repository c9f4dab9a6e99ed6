"""What a server says it is, and whether the two make a pair.

Sending requests to a speculative server in the belief that it is the plain one gives wrong answers
(`min_p` is ignored there), so this is checked each time an upstream becomes healthy, and a server
that is not what it should be takes no request.
"""

from dataclasses import dataclass

from proxy.core.words import UpstreamName


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One server, from its /server_info and /v1/models; None where it does not say."""

    known: bool
    """False for a server without /server_info: trusted, with a warning, and without a cap."""
    speculative_algorithm: str | None = None
    model: str | None = None
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    """Tokens."""
    tensor_parallel: int | None = None
    max_running_requests: int | None = None
    graph_ceiling: int | None = None
    """The largest decode batch with a CUDA graph, in sequences."""
    speculative_num_steps: int | None = None
    """Draft steps of one round."""
    speculative_eagle_topk: int | None = None
    """Branches that each draft step keeps."""
    speculative_num_draft_tokens: int | None = None
    """Draft tokens that one round verifies for a sequence; where they vary, the most."""
    version: str | None = None
    adapters: frozenset[str] = frozenset()
    """Names of the loaded LoRA adapters."""
    stores_responses: bool = False
    """Whether it keeps what /v1/responses answers, where the request does not say otherwise."""

    @property
    def cap(self) -> int | None:
        """Sequences that this server runs at once at full speed; None where it does not say."""
        bounds = [b for b in (self.max_running_requests, self.graph_ceiling) if b is not None]
        return min(bounds, default=None)

    @property
    def reserved_tokens(self) -> int:
        """Tokens of each request's context that this server keeps for its drafts.

        SGLang 0.5.23, compute_num_reserved_tokens: only its EAGLE family puts drafts into the slots
        of the answer, and needs max(topk x steps, draft tokens). 0 where it does not say how many.
        """
        if self.speculative_algorithm not in _RESERVING:
            return 0
        tree = (self.speculative_eagle_topk or 0) * (self.speculative_num_steps or 0)
        return max(tree, self.speculative_num_draft_tokens or 0)


_RESERVING = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})

_MUST_MATCH = (
    ("model", "model"),
    ("revision", "revision"),
    ("dtype", "dtype"),
    ("quantization", "quantization"),
    ("context_length", "context length"),
    ("tensor_parallel", "tensor parallel size"),
)


def mismatches(name: UpstreamName, own: Identity, other: Identity | None) -> tuple[str, ...]:
    """What keeps `own` from being the `name` of this pair, as sentences; empty if nothing does.

    `other` is the identity of the other upstream, None while it is unknown.
    """
    if not own.known:
        return ()
    found: list[str] = []
    if name is UpstreamName.SPEC and own.speculative_algorithm is None:
        found.append("it reports no speculative algorithm; are spec and base swapped?")
    if name is UpstreamName.BASE and own.speculative_algorithm is not None:
        found.append(
            f"it reports the speculative algorithm {own.speculative_algorithm}; "
            "are spec and base swapped?"
        )
    if other is not None and other.known:
        for attribute, word in _MUST_MATCH:
            mine, its = getattr(own, attribute), getattr(other, attribute)
            if mine != its:
                found.append(f"its {word} is {mine!r}, that of {name.other} is {its!r}")
    return tuple(found)
