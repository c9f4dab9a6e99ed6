"""Which server a calibration was made for, and whether a server is that one still.

Only what moves the curves is in it. What memory decides at each start (how many sequences run, how
many tokens fit) is not: it is read from the running server anyway.
"""

from collections.abc import Mapping
from typing import Final

from proxy.core.identity import Identity

Fingerprint = Mapping[str, str | int | None]
"""By name; None where the server did not say."""

_FIELDS: Final = (
    "model",
    "revision",
    "dtype",
    "quantization",
    "context_length",
    "tensor_parallel",
    "version",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "graph_ceiling",
)


def fingerprint_of(identity: Identity) -> Fingerprint:
    """What of `identity` moves the curves; empty for a server that says nothing of itself."""
    return {name: getattr(identity, name) for name in _FIELDS} if identity.known else {}


def differences(made_for: Fingerprint, identity: Identity) -> tuple[str, ...]:
    """In what `identity` differs from what a calibration was made for, as sentences.

    A server that says nothing of itself is trusted, as it is for the rest of its identity.
    """
    if not made_for or not identity.known:
        return ()
    now = fingerprint_of(identity)
    return tuple(
        f"{name} is {_shown(now[name])}, calibrated with {_shown(made_for[name])}"
        for name in _FIELDS
        if name in made_for and made_for[name] != now[name]
    )


def _shown(value: str | int | None) -> str:
    return "unknown" if value is None else str(value)
