"""Prompts as they stand in a body: how many, and how much text. Counted, never built.

A prompt may be megabytes long and is the engine's to read. What matters here is seen from its
punctuation, in a few searches in C over bytes that are JSON already, and without a copy of them.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from proxy.core.bodies import Item
from proxy.errors import UnreadableBody

__all__ = [
    "BYTES_PER_TOKEN",
    "MAX_ELEMENTS",
    "count_embedded",
    "count_ids",
    "each",
    "has_strict_tools",
    "text_bytes",
]

BYTES_PER_TOKEN: Final = 4  # docs/configuration.md, max_spec_prompt_tokens

_MAX_ITEMS: Final = 2048
"""Messages, parts and texts that are looked into for an estimate: 1 us each."""

_MAX_READ: Final = 8 << 20
"""Bytes of parts, and of parts within them, that are read for an estimate: 0.3 ms a MiB."""

MAX_ELEMENTS: Final = 1 << 15
"""Elements that a list is taken apart into: 40 ns each, and as much again in a busy process."""

_MAX_IDS_BYTES: Final = 1 << 22
"""How long a list of token ids may be to be counted: 0.6 ms a MiB."""

_SAMPLE: Final = 1 << 18
"""Bytes of text in which escapes are counted, the same share of each: 2.5 ms a MiB."""

_MAX_TOOLS: Final = 1 << 18
"""Bytes of tools that are searched. More are no prompt for any model, and count as strict."""

_MAX_DEPTH: Final = 4  # messages, their parts, a tool result's parts, one to spare
_QUOTE: Final = ord('"')
_BRACKET: Final = ord("[")

# No more white space than a pretty printer makes: looking for its end costs 1.6 ms a MiB.
_FIRST: Final = re.compile(rb"\[\s{0,256}+[\"\[]")
_TOKEN_IDS: Final = re.compile(rb"\[(?:\s{0,256}+\[)?\s{0,256}+[-\d]")
_ONE_OF_IDS: Final = re.compile(rb"\[\s{0,256}+[-\d]")
_STRICT: Final = re.compile(rb'"strict"\s*+:\s*+[t1"]')
_BATCHED_EMBEDDINGS: Final = re.compile(rb"\[\s{0,256}+\[\s{0,256}+\[")

_ITEMS: Final = msgspec.json.Decoder(list[Item])
_EACH: Final = msgspec.json.Decoder(list[Raw])


def each(prompt: Raw, *, many: bool = True) -> Sequence[Raw]:
    """Return the prompts of a batch: strings, or lists of token ids; else *prompt* alone.

    Raises UnreadableBody where there may be more of them than any engine takes, which needs *many*
    commas, MAX_ELEMENTS, in its body.
    """
    if not _FIRST.match(memoryview(prompt)):
        return [prompt]
    if many and _is_crowded(memoryview(prompt)):
        raise UnreadableBody
    try:
        return _EACH.decode(prompt)
    except msgspec.DecodeError:
        return [prompt]


def count_embedded(embeddings: Raw) -> int:
    """Return how many prompts there are, each a list of vectors."""
    if not _BATCHED_EMBEDDINGS.match(memoryview(embeddings)):
        return 1
    try:
        return len(_EACH.decode(embeddings))
    except msgspec.DecodeError:  # NaN, Infinity
        return 1


def count_ids(prompt: Raw) -> int | None:
    """Return how many token ids *prompt* is; None where it is anything else."""
    if not _ONE_OF_IDS.match(memoryview(prompt)):
        return None
    return bytes(prompt).count(b",") + 1


def has_strict_tools(tools: Raw) -> bool:
    """Whether a tool's calls are held to its schema.

    SGLang writes a grammar for those even where the model may choose not to call
    (FunctionCallParser.get_structure_constraint).
    """
    if len(memoryview(tools)) > _MAX_TOOLS:
        return True
    written = bytes(tools)
    return b'"strict"' in written and _STRICT.search(written) is not None


def text_bytes(
    texts: Sequence[Raw], messages: Sequence[Item] = (), *, many: bool = True
) -> int | None:
    """Return the UTF-8 length of the text in *texts* and *messages*; None where that takes long.

    A token id counts as four bytes, media as nothing. *many*: as in `each`.
    """
    if len(texts) + len(messages) > _MAX_ITEMS:
        return None
    waiting = [(memoryview(text), _MAX_DEPTH) for text in texts]
    size = _look_into(messages, waiting, _MAX_DEPTH - 1)
    weight = _weigh(waiting, many=many)
    return None if weight is None else size + weight


def _weigh(waiting: list[tuple[memoryview, int]], *, many: bool) -> int | None:
    """Return the bytes of text in what is *waiting*, with the depth to which it is looked into."""
    size = 0
    strings: list[memoryview] = []
    left = _MAX_READ
    for text, depth in waiting:  # which grows meanwhile
        if text[0] == _QUOTE:
            strings.append(text)
        elif text[0] == _BRACKET and _TOKEN_IDS.match(text):
            if len(text) > _MAX_IDS_BYTES:
                return None
            size += (bytes(text).count(b",") + 1) * BYTES_PER_TOKEN
        elif text[0] == _BRACKET and depth > 0:
            crowded = len(text) > left or (many and _is_crowded(text))
            parts = None if crowded else _parts(text)
            if parts is None:
                return None
            left -= len(text)
            size += _look_into(parts, waiting, depth - 1)
        if len(waiting) > _MAX_ITEMS:
            return None
    return size + _strings_bytes(strings)


def _parts(text: memoryview) -> Sequence[Item | Raw] | None:
    """Return what is in a list; None where it has very many elements."""
    try:
        parts = _EACH.decode(text) if _FIRST.match(text) else _ITEMS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return ()
    return parts if len(parts) <= _MAX_ITEMS else None


def _is_crowded(text: memoryview) -> bool:
    """Whether a list may have so many elements that taking it apart would take long."""
    if len(text) < 2 * MAX_ELEMENTS:
        return False
    written = bytes(text)
    # Prose has many commas and few quotes, pictures neither.
    return written.count(b",") >= MAX_ELEMENTS and (
        written.count(b'"') // 2 + written.count(b"[") + written.count(b"{") >= MAX_ELEMENTS
    )


def _look_into(
    parts: Sequence[Item | Raw], waiting: list[tuple[memoryview, int]], depth: int
) -> int:
    """Add what may be text to *waiting*, and return the bytes of what is so as it is written."""
    size = 0
    for part in parts:
        if isinstance(part, Raw):
            waiting.append((memoryview(part), depth))
            continue
        fields = (part.content, part.text, part.thinking, part.output, part.arguments)
        waiting += [(memoryview(field), depth) for field in fields if field]
        size += len(memoryview(part.tool_calls)) + len(memoryview(part.input))
    return size


def _strings_bytes(strings: Sequence[memoryview]) -> int:
    most = _SAMPLE // max(len(strings), 1)
    return sum(_string_bytes(string, most) for string in strings)


def _string_bytes(text: memoryview, most: int) -> int:
    """Return the UTF-8 length of a JSON string, judged by its first *most* bytes."""
    size = len(text) - 2
    sample = bytes(text[:most])
    if b"\\" not in sample:
        return size
    # Each escape stands for one byte, but for \uXXXX: for three, mostly.
    escapes = sample.count(b"\\") - sample.count(rb"\\")
    unicode = sample.count(b"\\u") - sample.count(rb"\\u")
    saved = escapes + 2 * max(unicode, 0)
    return size - saved * len(text) // len(sample)
