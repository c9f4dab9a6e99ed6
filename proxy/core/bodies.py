"""What is read of a body in each dialect, and how it is spelt there: tables, made into decoders.

What the fields mean is in eligibility.py; who reads them is peek.py.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, cast

import msgspec
from msgspec import Raw

from proxy.core.eligibility import (
    ANTHROPIC_ROWS,
    OLLAMA_ROWS,
    RESPONSES_ROWS,
    ROWS,
    SCALAR_TESTS,
    NeutralTest,
    Rows,
    Rule,
)

__all__ = ["SHAPES", "Body", "Dialect", "Field", "Item", "Shape"]

_TEMPLATE_TOKENS: Final = 64
"""What a chat template adds around a short conversation: dates and roles, some 40 tokens with
Llama 3. In a long one it is well below the half that is added to the estimate."""

_OLLAMA_ANSWER: Final = 2048
"""SGLang 0.5.23, entrypoints/ollama/serving.py: tokens where `num_predict` is absent."""

_ABSENT: Final = Raw(b"")


class Dialect(StrEnum):
    """Which family of bodies and streams a path carries."""

    OPENAI_CHAT = "openai_chat"  # /v1/chat/completions, /invocations
    OPENAI_COMPLETIONS = "openai_completions"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"  # /v1/messages
    GENERATE = "generate"  # SGLang's own
    OLLAMA_CHAT = "ollama_chat"
    OLLAMA_GENERATE = "ollama_generate"


class Item(msgspec.Struct, gc=False):
    """A message, or a part of one: what of it is text."""

    content: Raw = _ABSENT
    text: Raw = _ABSENT
    thinking: Raw = _ABSENT
    output: Raw = _ABSENT
    arguments: Raw = _ABSENT
    tool_calls: Raw = _ABSENT
    input: Raw = _ABSENT


Field = bool | int | float | str | Raw | None
"""A scalar, or the token that was written; null is None, as absent is."""


class Body(Protocol):
    """The fields that are read by name, in our words; None where absent."""

    stream: Field
    model: Field
    n: Field
    limit: Field
    old_limit: Field
    """Counts where `limit` is absent or nought."""
    sampling: Raw | None
    prompt: Raw | None
    messages: Sequence[Item] | None
    """The prompt, where it is a conversation that was read to be weighed."""
    token_ids: Raw | None
    embeddings: Raw | None
    system: Raw | None
    tools: Raw | None
    store: Field


@dataclass(frozen=True, slots=True)
class Shape:
    """What is read of one kind of object, and how it is spelt there."""

    usual: msgspec.json.Decoder[Body]
    """Reads scalars where scalars belong, which is twice as fast as tokens."""
    weighing: msgspec.json.Decoder[Body]
    """Reads tokens, and the messages in the same pass; where the prompt is a conversation."""
    odd: msgspec.json.Decoder[Body]
    """Reads tokens everywhere, so that one odd field does not hide the others."""
    kind: Callable[..., Body]
    spelling: Mapping[str, str]
    """Our word and theirs, of every field."""
    tests: Sequence[tuple[Rule, NeutralTest]]
    first_test: int
    nothing: tuple[None, ...]
    batches: bool
    """Whether a list is a list of prompts."""
    streams: bool
    """What a body without `stream` gets."""
    stores: bool
    """Whether a body without `store` asks for it."""
    answer: int
    """New tokens that SGLang takes a body without a limit to ask for; 0: as many as fit."""
    template: int
    """Tokens that a chat template may add around the text."""
    inner: "Shape | None"
    """The shape of its sampling fields, where they are an object of their own."""


def _shape(
    rows: Rows,
    words: str,
    *,
    batches: bool = False,
    streams: bool = False,
    answer: int = 0,
    inner: Shape | None = None,
) -> Shape:
    """Compile *rows* and the fields read by name, written `ours=theirs`, or once where alike."""
    pairs = [word.partition("=") for word in words.split()]
    named = {ours: theirs or ours for ours, _, theirs in pairs}
    spelling = {**named, **{name: name for name in rows}}
    scalars = _NAMED_SCALARS | {name for name, (_, test) in rows.items() if test in SCALAR_TESTS}
    kind = _kind(spelling, frozenset())
    odd = msgspec.json.Decoder(kind)
    conversation = named.get("prompt") in _CONVERSATIONS
    if conversation:
        read = {"messages" if ours == "prompt" else ours: spelt for ours, spelt in spelling.items()}
    return Shape(
        usual=msgspec.json.Decoder(_kind(spelling, scalars)),
        weighing=msgspec.json.Decoder(_kind(read, frozenset())) if conversation else odd,
        odd=odd,
        kind=kind,
        spelling=spelling,
        tests=tuple(rows.values()),
        first_test=len(named),
        nothing=(None,) * len(rows),
        batches=batches,
        streams=streams,
        stores=rows is RESPONSES_ROWS,
        answer=answer,
        template=_TEMPLATE_TOKENS if conversation else 0,
        inner=inner,
    )


def _kind(spelling: Mapping[str, str], scalars: AbstractSet[str]) -> type[Body]:
    types = dict.fromkeys(scalars, bool | int | float | str | None)
    types["messages"] = list[Item] | None
    kind = msgspec.defstruct(
        "Body",
        [
            (ours, types.get(ours, Raw), msgspec.field(default=None, name=theirs))
            for ours, theirs in spelling.items()
        ],
        namespace=dict.fromkeys(Body.__annotations__.keys() - spelling.keys()),
        gc=False,
    )
    return cast("type[Body]", kind)  # what it has, defstruct cannot say


_CONVERSATIONS: Final = frozenset({"messages", "input"})
_NAMED_SCALARS: Final = frozenset({"stream", "model", "n", "limit", "old_limit"})

_SAMPLING: Final = _shape(ROWS, "n limit=max_new_tokens")
_OPTIONS: Final = _shape(OLLAMA_ROWS, "limit=num_predict")
SHAPES: Final = {
    Dialect.OPENAI_CHAT: _shape(
        ROWS,
        "stream model n limit=max_completion_tokens old_limit=max_tokens"
        " prompt=messages token_ids=input_ids tools",
    ),
    Dialect.OPENAI_COMPLETIONS: _shape(
        ROWS, "stream model n limit=max_tokens prompt", batches=True, answer=16
    ),
    Dialect.OPENAI_RESPONSES: _shape(
        RESPONSES_ROWS,
        "stream model limit=max_output_tokens prompt=input system=instructions tools",
    ),
    Dialect.ANTHROPIC: _shape(
        ANTHROPIC_ROWS, "stream model limit=max_tokens prompt=messages system tools"
    ),
    Dialect.GENERATE: _shape(
        ROWS,
        "stream model sampling=sampling_params"
        " prompt=text token_ids=input_ids embeddings=input_embeds",
        batches=True,
        inner=_SAMPLING,
    ),
    Dialect.OLLAMA_CHAT: _shape(
        OLLAMA_ROWS,
        "stream model sampling=options prompt=messages tools",
        streams=True,
        answer=_OLLAMA_ANSWER,
        inner=_OPTIONS,
    ),
    Dialect.OLLAMA_GENERATE: _shape(
        OLLAMA_ROWS,
        "stream model sampling=options prompt system",
        streams=True,
        answer=_OLLAMA_ANSWER,
        inner=_OPTIONS,
    ),
}
