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
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from proxy.core import prompts
from proxy.core.bodies import SHAPES, Body, Dialect, Field, Shape
from proxy.core.eligibility import (
    NeutralTest,
    Rule,
    SpecLimits,
    Traits,
    lax_number,
    lax_truth,
)
from proxy.errors import UnreadableBody

__all__ = ["MAX_SEQUENCES", "Dialect", "Traits", "peek"]

MAX_SEQUENCES: Final = 4096
"""The most sequences that one request counts as: the upper end of SGLang's own automatic
max_running_requests (2048 to 4096). Beyond it the count would only distort our books until the
engine has refused. Nought, a negative number and what is no number count as 1."""

_MAX_LIMIT: Final = 1 << 31  # no engine's limit on new tokens is near it
_MAX_VALUE_BYTES: Final = 4096  # a deciding field that is longer is a schema or nonsense
_MAX_MODEL_CHARS: Final = 256

_SMALL_BYTES: Final = 1 << 16
"""Up to this size a body is read whatever is in it: 4 ms at most.

The standard library, too, reads up to here where msgspec refuses; it builds every value, and takes
up to 70 ms a MiB. A larger body counts as unpeeked: base serves it right whatever it asks for,
while taking it for one without features could let spec serve it wrongly. SGLang 0.5.23 refuses all
such bodies itself, as orjson does; they only matter for engines that read as the standard library
does."""

_LARGE_BYTES: Final = 1 << 22
"""Above this size a body is read once: not again for odd messages, or to count its prompts."""

_MARKS: Final = b",:[{\\"
_MAX_MARKS: Final = (1 << 17) + (1 << 12)
"""How many of these a body may have that is not small: a prompt of 131,072 token ids has fewer, and
2.5 MiB of source code in a string. Values do not come without them, and take 10 to 40 ns each, 100
if read again, where the text in a string takes 0.3 ms a MiB: 8 MiB of keys would hold the loop for
130 ms."""

_MOST_MARKS: Final = (b",", b":", b"[", b"\\")  # no brace without one of these
_STRETCH: Final = 1 << 16
_DIGITS: Final = 1 << 10

_MAX_SAMPLING: Final = 256
"""Different objects of sampling fields that are read: 3 us each, or 15 where they are odd."""

_MAX_SAMPLING_BYTES: Final = 1 << 20
"""Of all of them together: 2.5 ms a MiB."""

_COMPRESSED: Final = (b"\x28\xb5\x2f\xfd", b"\x1f\x8b")
"""How zstd and gzip begin, and no JSON does. SGLang can be set to read bodies in zstd
(SGLANG_ENABLE_REQUEST_DECOMPRESSION); we inflate nothing, so such a body is unpeeked."""


class _Bulk(NamedTuple):
    """How much there is of a body."""

    size: int
    """Bytes."""
    many: bool
    """Whether a list in it may have very many elements."""


def peek(
    body: bytes | bytearray,
    dialect: Dialect,
    *,
    estimate_prompt: bool,
    limits: SpecLimits | None = None,
) -> Traits:
    """Return what *body* says; never raises, whatever the bytes are.

    The prompt is weighed where *estimate_prompt* asks for it, and for *limits* where the length of
    the body alone does not say that there is room.
    """
    try:
        return _peek(body, SHAPES[dialect], estimate_prompt, limits)
    except (RecursionError, UnreadableBody):
        # Not "does not parse": the engine's parser may nest deeper (orjson 1,024) or take longer.
        return _UNPEEKED


def _peek(
    body: bytes | bytearray,
    shape: Shape,
    estimate_prompt: bool,  # noqa: FBT001 - by position: it is asked for every request
    limits: SpecLimits | None,
) -> Traits:
    marks = _marks(body) if len(body) > _SMALL_BYTES else 0
    if marks > _MAX_MARKS:
        raise UnreadableBody
    bulk = _Bulk(len(body), marks >= prompts.MAX_ELEMENTS)
    weigh = estimate_prompt or (limits is not None and _may_exceed(limits, len(body), shape, 1))
    try:
        top = _open_to_weigh(body, shape) if weigh else _open(body, shape)
    except ValueError:
        return _UNPARSED
    features = _features(top, shape)
    texts = _texts(top, shape, bulk) if shape.batches else None
    batch = 1 if texts is None else _sequences(top, texts)
    if shape.inner is None or top.sampling is None:
        n, answers = _count(top.n), [_limit(top)]
    else:
        inner = _sampling(top.sampling, shape.inner)
        features = features.union(*(_features(each, shape.inner) for each in inner))
        n = max((_count(each.n) for each in inner), default=1)
        answers = [_limit(each) for each in inner]
    if top.tools is not None and prompts.has_strict_tools(top.tools):
        features |= _STRICT_TOOLS
    return Traits(
        min(batch * n, MAX_SEQUENCES),
        _truth(top.stream, shape.streams),
        _largest(answers),
        _model(top.model),
        _estimate(top, texts or _texts(top, shape, bulk), bulk, batch) if estimate_prompt else None,
        features,
        True,
        None if limits is None else _needed(top, shape, texts, answers, bulk, limits),
        shape.stores and _value(top.store) is None,
    )


def _marks(body: bytes | bytearray) -> int:
    """Return how many values *body* may hold; as soon as they are too many, no more are counted."""
    marks = 0
    for start in range(0, len(body), _STRETCH):
        end = start + _STRETCH
        # Pictures in base64 have none of them, which is found out four times as fast as counted.
        if any(body.find(mark, start, end) >= 0 for mark in _MOST_MARKS):
            piece = body[start:end]
            marks += len(piece) - len(piece.translate(None, _MARKS))
            if marks > _MAX_MARKS:
                break
        elif body[start : start + _DIGITS].isdigit():  # a number so long takes as long to read
            return _MAX_MARKS + 1
    return marks


def _open_to_weigh(body: bytes | bytearray, shape: Shape) -> Body:
    """Decode *body* with its messages, in one pass instead of two."""
    try:
        return shape.weighing.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # or they are not a list of objects
        return _open_odd(body, shape)


def _open(body: bytes | bytearray, shape: Shape) -> Body:
    """Decode *body*; ValueError where it is not a JSON object.

    Of one that is not small as tokens: to make a number of 4,300 digits takes 100 us, a key may
    stand in it two thousand times, and only the last one counts.
    """
    small = len(body) <= _SMALL_BYTES
    try:
        return (shape.usual if small else shape.odd).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _open_odd(body, shape)


def _open_odd(body: bytes | bytearray, shape: Shape) -> Body:
    """Decode a *body* in which a field has an odd type, or that is not strictly JSON."""
    if body.startswith(_COMPRESSED) or len(body) > _LARGE_BYTES:
        raise UnreadableBody
    try:
        return shape.odd.decode(body)
    except msgspec.ValidationError as error:
        raise ValueError("not an object") from error
    except msgspec.DecodeError:
        # NaN, Infinity, a byte order mark, UTF-16, half a surrogate pair: some parsers take these.
        return shape.kind(**_reread(body, shape.spelling))


def _reread(body: bytes | bytearray, spelling: Mapping[str, str]) -> dict[str, Raw]:
    if len(body) > _SMALL_BYTES:
        raise UnreadableBody
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 - the body is wrong, not our argument
    return {
        ours: Raw(json.dumps(found[theirs])) for ours, theirs in spelling.items() if theirs in found
    }


def _features(body: Body, shape: Shape) -> frozenset[Rule]:
    fields = astuple(body)[shape.first_test :]  # type: ignore[arg-type]  # they are Structs
    if fields == shape.nothing:
        return _NO_RULE
    triggered = [
        rule
        for (rule, test), field in zip(shape.tests, fields, strict=True)
        if field is not None and not _neutral(field, test)
    ]
    return frozenset(triggered) if triggered else _NO_RULE


def _neutral(field: Field, test: NeutralTest) -> bool:
    value = _value(field)
    if isinstance(value, list):  # one for each prompt of a batch
        return all(each is None or test(each) for each in value)
    return value is None or test(value)


def _value(field: Field) -> object:
    if isinstance(field, str) and len(field) > _MAX_VALUE_BYTES:
        return _ODD
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


def _truth(field: Field, absent: bool) -> bool:  # noqa: FBT001 - a value like any other
    if isinstance(field, bool):  # nearly always
        return field
    value = _value(field)
    return absent if value is None else lax_truth(value)


def _whole(field: Field) -> int | None:
    if type(field) is int:  # nearly always; true is one, too, for isinstance
        return min(field, _MAX_LIMIT)
    number = lax_number(_value(field))
    try:
        return None if number is None else min(int(number), _MAX_LIMIT)
    except (ValueError, OverflowError):  # NaN, Infinity
        return None


def _count(field: Field) -> int:
    return 1 if field is None else max(_whole(field) or 1, 1)


def _limit(body: Body) -> int | None:
    limit = None if body.limit is None else _whole(body.limit)
    if not limit and body.old_limit is not None:
        limit = _whole(body.old_limit)
    return None if limit is None or limit < 0 else limit  # Ollama writes -1 for none


def _largest(limits: Sequence[int | None]) -> int | None:
    if len(limits) == 1:  # nearly always
        return limits[0]
    given = [limit for limit in limits if limit is not None]
    return max(given) if given and len(given) == len(limits) else None


def _model(field: Field) -> str | None:
    value = field if isinstance(field, str) else _value(field)
    return value if isinstance(value, str) and len(value) <= _MAX_MODEL_CHARS else None


def _sampling(raw: Raw, shape: Shape) -> list[Body]:
    if _length(raw) > _MAX_SAMPLING_BYTES:
        raise UnreadableBody
    text = bytes(raw)
    if text.startswith(b"{"):
        return [_open(text, shape)]
    if text.count(b"{") > MAX_SEQUENCES or text.count(b",") > 8 * MAX_SEQUENCES:
        raise UnreadableBody  # the engine refuses larger batches
    different = dict.fromkeys(each for each in _elements(text) if each.startswith(b"{"))
    if len(different) > _MAX_SAMPLING:
        raise UnreadableBody
    return [_open(each, shape) for each in different]


def _elements(text: bytes) -> list[bytes]:
    if not text.startswith(b"["):
        return []
    try:
        return list(map(bytes, _LIST.decode(text)))
    except msgspec.DecodeError:
        return [json.dumps(each).encode() for each in json.loads(text)]


# Prompts


def _prompt(body: Body) -> Raw | None:
    for raw in (body.token_ids, body.prompt):
        if raw is not None and raw != _NULL:
            return raw
    return None


def _texts(body: Body, shape: Shape, bulk: _Bulk) -> Sequence[Raw]:
    """Return its prompts; none of a conversation that was read with the body."""
    prompt = _prompt(body)
    if prompt is None:
        return ()
    if not shape.batches:
        return (prompt,)
    if _length(prompt) > _LARGE_BYTES:
        raise UnreadableBody
    return prompts.each(prompt, many=bulk.many)


def _sequences(body: Body, texts: Sequence[Raw]) -> int:
    if texts:
        return len(texts)
    return 1 if body.embeddings is None else prompts.count_embedded(body.embeddings)


def _estimate(body: Body, texts: Sequence[Raw], bulk: _Bulk, sequences: int) -> int:
    """Return the tokens of one of *sequences* prompts: its token ids, or text bytes / 4."""
    return _weight(body, texts, bulk) // (prompts.BYTES_PER_TOKEN * sequences)


def _weight(body: Body, texts: Sequence[Raw], bulk: _Bulk) -> int:
    """Return the bytes of text in *texts* and in front of them; all where that takes long."""
    system = () if body.system is None else (body.system,)
    weight = prompts.text_bytes((*texts, *system), body.messages or (), many=bulk.many)
    if weight is None:
        return bulk.size
    return weight if body.tools is None else weight + len(memoryview(body.tools))


def _may_exceed(limits: SpecLimits, size: int, shape: Shape, answer: int) -> bool:
    """Whether a body of *size* bytes may need more of the context than spec has.

    Not where it has room whatever is in it: a token id takes two bytes at least, and text is never
    weighed as heavily.
    """
    return limits.exceeded_by(size // 2 + shape.template + answer)


def _needed(
    body: Body,
    shape: Shape,
    texts: Sequence[Raw] | None,
    answers: Sequence[int | None],
    bulk: _Bulk,
    limits: SpecLimits,
) -> int | None:
    """Return the most tokens that prompt and answer of one sequence may take.

    None where a body of that size has room on spec whatever is in it.
    """
    if len(answers) == 1:  # nearly always
        answer = shape.answer if answers[0] is None else answers[0]
    else:
        answer = max((shape.answer if each is None else each for each in answers), default=0)
    # An answer has a token at least: SGLang refuses a prompt that leaves room for none.
    answer = answer or 1
    if not _may_exceed(limits, bulk.size, shape, answer):
        return None
    return _longest(body, texts or _texts(body, shape, bulk), bulk, shape.template) + answer


def _longest(body: Body, texts: Sequence[Raw], bulk: _Bulk, template: int) -> int:
    """Return the most tokens that the longest prompt may have: its ids, or half above estimate."""
    if 1 <= len(texts) <= MAX_SEQUENCES:
        texts = (max(texts, key=_length),)
        ids = prompts.count_ids(texts[0])
        if ids is not None:
            return ids
    return _weight(body, texts, bulk) * 3 // (2 * prompts.BYTES_PER_TOKEN) + template


def _length(text: Raw) -> int:
    return len(memoryview(text))


_NO_RULE: Final[frozenset[Rule]] = frozenset()
_STRICT_TOOLS: Final = frozenset({Rule.STRUCTURED_OUTPUT})
_UNPEEKED: Final = Traits.unpeeked()
_UNPARSED: Final = _UNPEEKED._replace(stream=False, features=_NO_RULE)
_NULL: Final = Raw(b"null")
_ODD: Final = object()  # a value that no test finds neutral
_LIST: Final = msgspec.json.Decoder(list[Raw])
