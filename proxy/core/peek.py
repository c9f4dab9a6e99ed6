"""Reads the few fields of a request body that decide, and keeps nothing else of it.

One typed partial decode: what is not named is skipped, never built. It judges no JSON: a body that
does not parse is the engine's to refuse. What a field means is in eligibility.py.

SGLang reads bodies with a JSON parser (orjson in 0.5.23, the standard library's in others) and lets
pydantic coerce: `"0.1"` is 0.1, `true` is 1, the last duplicate key wins. So a field is kept as the
token that the client wrote, and a token that is not recognisably neutral triggers its rule: the
doubtful case goes to base, where it is served right.
"""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from proxy.core import prompts
from proxy.core.eligibility import (
    ANTHROPIC_ROWS,
    OLLAMA_ROWS,
    RESPONSES_ROWS,
    ROWS,
    SCALAR_TESTS,
    NeutralTest,
    Rows,
    Rule,
    SpecLimits,
    Traits,
    lax_number,
    lax_truth,
)

__all__ = ["MAX_SEQUENCES", "Dialect", "Traits", "peek"]

MAX_SEQUENCES: Final = 4096
"""The most sequences that one request counts as: the upper end of SGLang's own automatic
max_running_requests (2048 to 4096). Beyond it the count would only distort our books until the
engine has refused. Nought, a negative number and what is no number count as 1."""

_MAX_LIMIT: Final = 1 << 31  # no engine's limit on new tokens is near it
_MAX_VALUE_BYTES: Final = 4096  # a deciding field that is longer is a schema or nonsense
_MAX_MODEL_CHARS: Final = 256

_FALLBACK_BYTES: Final = 1 << 18
"""How large a body the standard library may read where msgspec refuses. It builds every value: up
to 70 ms a MiB on the event loop, where others need 10 at most.

A larger one counts as unpeeked: base serves it right whatever it asks for, while taking it for one
without features could let spec serve it wrongly. SGLang 0.5.23 refuses all such bodies itself, as
orjson does; they only matter for engines that read as the standard library does."""

_TEMPLATE_TOKENS: Final = 64
"""What a chat template adds around a short conversation: dates and roles, some 40 tokens with
Llama 3. In a long one it is well below the half that is added to the estimate."""

_OLLAMA_ANSWER: Final = 2048
"""SGLang 0.5.23, entrypoints/ollama/serving.py: tokens where `num_predict` is absent."""

_COMPRESSED: Final = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b")
"""How zstd and gzip begin, and no JSON does. SGLang can be set to read bodies in zstd
(SGLANG_ENABLE_REQUEST_DECOMPRESSION); we inflate nothing, so such a body is unpeeked."""


class Dialect(StrEnum):
    """Which family of bodies and streams a path carries."""

    OPENAI_CHAT = "openai_chat"  # /v1/chat/completions, /invocations
    OPENAI_COMPLETIONS = "openai_completions"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"  # /v1/messages
    GENERATE = "generate"  # SGLang's own
    OLLAMA_CHAT = "ollama_chat"
    OLLAMA_GENERATE = "ollama_generate"

    __hash__ = str.__hash__  # Enum's is a Python call: 0.1 us for every look-up


class _UnreadableError(Exception):
    """Reading on would take too long; whether the body is good is open."""


def peek(
    body: bytes, dialect: Dialect, *, estimate_prompt: bool, limits: SpecLimits | None = None
) -> Traits:
    """Return what *body* says; never raises, whatever the bytes are.

    The prompt is weighed where *estimate_prompt* asks for it, and for *limits* where the length of
    the body alone does not say that there is room.
    """
    try:
        return _peek(body, dialect, estimate_prompt=estimate_prompt, limits=limits)
    except (RecursionError, _UnreadableError):
        # Not "does not parse": the engine's parser may nest deeper (orjson 1,024) or take longer.
        return _UNPEEKED


def _peek(
    body: bytes, dialect: Dialect, *, estimate_prompt: bool, limits: SpecLimits | None
) -> Traits:
    shape = _SHAPES[dialect]
    if body.startswith(_COMPRESSED):
        return _UNPEEKED
    try:
        top = _open(body, shape)
    except ValueError:
        return _UNPARSED
    features = _features(top, shape)
    batch = _prompts(top) if shape.batches else 1
    if shape.inner is None or top.sampling is None:
        n, answers = _count(top.n), [_limit(top)]
    else:
        inner = _sampling(top.sampling, shape.inner)
        features = features.union(*(_features(each, shape.inner) for each in inner))
        n = max((_count(each.n) for each in inner), default=1)
        answers = [_limit(each) for each in inner]
    if top.tools is not None and prompts.has_strict_tools(bytes(top.tools)):
        features |= _STRICT_TOOLS
    stream = _value(top.stream)
    return Traits(
        min(batch * n, MAX_SEQUENCES),
        shape.streams if stream is None else lax_truth(stream),
        _largest(answers),
        _model(top.model),
        _estimate(top, batch) if estimate_prompt else None,
        features,
        True,
        None if limits is None else _needed(top, shape, answers, len(body), limits),
    )


def _open(body: bytes, shape: "_Shape") -> "_Body":
    """Decode *body*; ValueError where it is not a JSON object."""
    found: _Body
    try:
        found = shape.usual.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = _open_odd(body, shape)
    return found


def _open_odd(body: bytes, shape: "_Shape") -> "_Body":
    """Decode a *body* in which a field has an odd type, or that is not strictly JSON."""
    found: _Body
    try:
        found = shape.odd.decode(body)
    except msgspec.ValidationError as error:
        raise ValueError("not an object") from error
    except msgspec.DecodeError:
        # NaN, Infinity, a byte order mark, UTF-16, half a surrogate pair: some parsers take these.
        found = shape.kind(**_reread(body, shape.spelling))
    return found


def _reread(body: bytes, spelling: Mapping[str, str]) -> dict[str, Raw]:
    if len(body) > _FALLBACK_BYTES:
        raise _UnreadableError
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 - the body is wrong, not our argument
    return {
        ours: Raw(json.dumps(found[theirs])) for ours, theirs in spelling.items() if theirs in found
    }


def _features(body: "_Body", shape: "_Shape") -> frozenset[Rule]:
    fields = astuple(body)[shape.first_test :]  # type: ignore[arg-type]  # they are Structs
    if fields == shape.nothing:
        return _NO_RULE
    triggered = [
        rule
        for (rule, test), field in zip(shape.tests, fields, strict=True)
        if field is not None and not _neutral(field, test)
    ]
    return frozenset(triggered) if triggered else _NO_RULE


def _neutral(field: "_Field", test: NeutralTest) -> bool:
    value = _value(field) if isinstance(field, Raw) else field
    if isinstance(value, list):  # one for each prompt of a batch
        return all(each is None or test(each) for each in value)
    return value is None or test(value)


def _value(field: "_Field") -> object:
    if not isinstance(field, Raw):
        return field
    token = bytes(field)
    if len(token) > _MAX_VALUE_BYTES:
        return _ODD
    try:
        value: object = msgspec.json.decode(token)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ODD
    return value


def _whole(field: "_Field") -> int | None:
    number = lax_number(_value(field))
    try:
        return None if number is None else min(int(number), _MAX_LIMIT)
    except (ValueError, OverflowError):  # NaN, Infinity
        return None


def _count(field: "_Field") -> int:
    return 1 if field is None else max(_whole(field) or 1, 1)


def _limit(body: "_Body") -> int | None:
    limit = None if body.limit is None else _whole(body.limit)
    if not limit and body.old_limit is not None:
        limit = _whole(body.old_limit)
    return None if limit is None or limit < 0 else limit  # Ollama writes -1 for none


def _largest(limits: Sequence[int | None]) -> int | None:
    given = [limit for limit in limits if limit is not None]
    return max(given) if given and len(given) == len(limits) else None


def _model(field: "_Field") -> str | None:
    value = _value(field)
    return value if isinstance(value, str) and len(value) <= _MAX_MODEL_CHARS else None


def _sampling(raw: Raw, shape: "_Shape") -> "list[_Body]":
    text = bytes(raw)
    if text.startswith(b"{"):
        return [_open(text, shape)]
    # The engine refuses larger batches; each object here costs some 3 us and 300 bytes.
    if text.count(b"{") > MAX_SEQUENCES or text.count(b",") > 16 * MAX_SEQUENCES:
        raise _UnreadableError
    return [_open(each, shape) for each in _elements(text) if each.startswith(b"{")]


def _elements(text: bytes) -> list[bytes]:
    if not text.startswith(b"["):
        return []
    try:
        return list(map(bytes, _LIST.decode(text)))
    except msgspec.DecodeError:
        return [json.dumps(each).encode() for each in json.loads(text)]


# Prompts


def _prompts(body: "_Body") -> int:
    raw = _prompt(body)
    if raw is not None:
        return prompts.count(bytes(raw))
    return 1 if body.embeddings is None else prompts.count_embedded(bytes(body.embeddings))


def _prompt(body: "_Body") -> Raw | None:
    for raw in (body.token_ids, body.prompt):
        if raw is not None and raw != _NULL:
            return raw
    return None


def _estimate(body: "_Body", sequences: int) -> int:
    """Return the tokens of one of *sequences* prompts: its token ids, or text bytes / 4."""
    size = len(memoryview(body.tools)) if body.tools is not None else 0
    for raw in (_prompt(body), body.system):
        if raw is not None:
            size += prompts.text_bytes(bytes(raw))
    return size // (prompts.BYTES_PER_TOKEN * sequences)


def _needed(
    body: "_Body",
    shape: "_Shape",
    answers: Sequence[int | None],
    size: int,
    limits: SpecLimits,
) -> int | None:
    """Return the most tokens that prompt and answer of one sequence may take.

    None where a body of *size* bytes has room on spec whatever is in it: a token id takes two
    bytes at least, and text is never weighed as heavily.
    """
    if len(answers) == 1:  # nearly always
        answer = shape.answer if answers[0] is None else answers[0]
    else:
        answer = max((shape.answer if each is None else each for each in answers), default=0)
    # An answer has a token at least: SGLang refuses a prompt that leaves room for none.
    answer = answer or 1
    if not limits.exceeded_by(size // 2 + shape.template + answer):
        return None
    return _longest_prompt(body, shape) + answer


def _longest_prompt(body: "_Body", shape: "_Shape") -> int:
    """Return the most tokens that the longest prompt may have: its ids, or half above estimate."""
    raw = _prompt(body)
    longest = b"" if raw is None else prompts.longest(bytes(raw))
    size = prompts.text_bytes(longest)
    if prompts.is_token_ids(longest):
        return size // prompts.BYTES_PER_TOKEN
    if body.system is not None:
        size += prompts.text_bytes(bytes(body.system))
    if body.tools is not None:
        size += len(memoryview(body.tools))
    return size * 3 // (2 * prompts.BYTES_PER_TOKEN) + shape.template


_Field = bool | int | float | str | Raw | None
"""A scalar, or the token that was written; null is None, as absent is."""


class _Body(Protocol):
    """The fields that are read by name, in our words; None where absent."""

    stream: _Field
    model: _Field
    n: _Field
    limit: _Field
    old_limit: _Field
    """Counts where `limit` is absent or nought."""
    sampling: Raw | None
    prompt: Raw | None
    token_ids: Raw | None
    embeddings: Raw | None
    system: Raw | None
    tools: Raw | None


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is read of one kind of object, and how it is spelt there."""

    usual: msgspec.json.Decoder[Any]
    """Reads scalars where scalars belong, which is twice as fast as tokens."""
    odd: msgspec.json.Decoder[Any]
    """Reads tokens everywhere, so that one odd field does not hide the others."""
    kind: type[Any]
    spelling: Mapping[str, str]
    """Our word and theirs, of every field."""
    tests: Sequence[tuple[Rule, NeutralTest]]
    first_test: int
    nothing: tuple[None, ...]
    batches: bool
    """Whether a list is a list of prompts."""
    streams: bool
    """What a body without `stream` gets."""
    answer: int
    """New tokens that SGLang takes a body without a limit to ask for; 0: as many as fit."""
    template: int
    """Tokens that a chat template may add around the text."""
    inner: "_Shape | None"
    """The shape of its sampling fields, where they are an object of their own."""


def _shape(
    rows: Rows,
    words: str,
    *,
    batches: bool = False,
    streams: bool = False,
    answer: int = 0,
    inner: _Shape | None = None,
) -> _Shape:
    """Compile *rows* and the fields read by name, written `ours=theirs`, or once where alike."""
    pairs = [word.partition("=") for word in words.split()]
    named = {ours: theirs or ours for ours, _, theirs in pairs}
    spelling = {**named, **{name: name for name in rows}}
    scalars = _NAMED_SCALARS | {name for name, (_, test) in rows.items() if test in SCALAR_TESTS}
    kind = _kind(spelling, frozenset())
    return _Shape(
        usual=msgspec.json.Decoder(_kind(spelling, scalars)),
        odd=msgspec.json.Decoder(kind),
        kind=kind,
        spelling=spelling,
        tests=tuple(rows.values()),
        first_test=len(named),
        nothing=(None,) * len(rows),
        batches=batches,
        streams=streams,
        answer=answer,
        template=_TEMPLATE_TOKENS if named.get("prompt") in _CONVERSATIONS else 0,
        inner=inner,
    )


def _kind(spelling: Mapping[str, str], scalars: AbstractSet[str]) -> type[msgspec.Struct]:
    scalar = bool | int | float | str | None
    return msgspec.defstruct(
        "Body",
        [
            (ours, scalar if ours in scalars else Raw, msgspec.field(default=None, name=theirs))
            for ours, theirs in spelling.items()
        ],
        namespace=dict.fromkeys(_Body.__annotations__.keys() - spelling.keys()),
        gc=False,
    )


_NO_RULE: Final[frozenset[Rule]] = frozenset()
_STRICT_TOOLS: Final = frozenset({Rule.STRUCTURED_OUTPUT})
_UNPEEKED: Final = Traits.unpeeked()
_UNPARSED: Final = _UNPEEKED._replace(stream=False, features=_NO_RULE)
_NULL: Final = Raw(b"null")
_ODD: Final = object()  # a value that no test finds neutral
_LIST: Final = msgspec.json.Decoder(list[Raw])

_CONVERSATIONS: Final = frozenset({"messages", "input"})
_NAMED_SCALARS: Final = frozenset({"stream", "model", "n", "limit", "old_limit"})

_SAMPLING: Final = _shape(ROWS, "n limit=max_new_tokens")
_OPTIONS: Final = _shape(OLLAMA_ROWS, "limit=num_predict")
_SHAPES: Final = {
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
