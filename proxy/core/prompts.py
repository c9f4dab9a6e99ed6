"""Prompts as they stand in a body: how many, and how much text. Counted, never built.

A prompt may be megabytes long and is the engine's to read. What matters here is seen from its
punctuation, in a few searches in C over bytes that are JSON already.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

__all__ = [
    "BYTES_PER_TOKEN",
    "count",
    "count_embedded",
    "has_strict_tools",
    "is_token_ids",
    "longest",
    "text_bytes",
]

BYTES_PER_TOKEN: Final = 4  # docs/configuration.md, max_spec_prompt_tokens

_MAX_ITEMS: Final = 16384
"""Messages and parts that are looked into for an estimate: some 30 ms at most. Where there are
more, every byte counts as text."""

_MAX_DEPTH: Final = 4  # messages, their parts, a tool result's parts, one to spare
_BACKSLASH: Final = rb"\\"
_QUOTE: Final = b'\\"'

# Possessive: giving back megabytes of white space, one by one, takes ten times as long.
_FIRST: Final = re.compile(rb"\[\s*+([\"\[])")
_TOKEN_IDS: Final = re.compile(rb"\[[\s\[]*+[-\d]")
_ONE_OF_IDS: Final = re.compile(rb"\[\s*+[-\d]")
_STRICT: Final = re.compile(rb'"strict"\s*+:\s*+[t1"]')
_BATCHED_EMBEDDINGS: Final = re.compile(rb"\[\s*+\[\s*+\[")


class _Item(msgspec.Struct, gc=False):
    """A message, or a part of one: what of it is text."""

    content: Raw = Raw(b"")
    text: Raw = Raw(b"")
    thinking: Raw = Raw(b"")
    output: Raw = Raw(b"")
    arguments: Raw = Raw(b"")
    tool_calls: Raw = Raw(b"")
    input: Raw = Raw(b"")


_ITEMS: Final = msgspec.json.Decoder(list[_Item])
_EACH: Final = msgspec.json.Decoder(list[Raw])


def count(prompt: bytes) -> int:
    """Return how many prompts a list holds: strings, or lists of token ids."""
    first = _FIRST.match(prompt)
    if first is None:  # one string, one list of token ids, or messages
        return 1
    if first[1] == b"[":
        return prompt.count(b"[") - 1
    text = prompt.replace(_BACKSLASH, b"")
    return (text.count(b'"') - text.count(_QUOTE)) // 2


def count_embedded(embeddings: bytes) -> int:
    """Return how many prompts there are, each a list of vectors."""
    return embeddings.count(b"[[") if _BATCHED_EMBEDDINGS.match(embeddings) else 1


def longest(prompt: bytes) -> bytes:
    """Return the longest prompt of a batch, or *prompt* itself where it is none or very large."""
    if not _FIRST.match(prompt) or count(prompt) > _MAX_ITEMS:
        return prompt
    try:
        return max(map(bytes, _EACH.decode(prompt)), key=len)
    except msgspec.DecodeError:
        return prompt


def is_token_ids(prompt: bytes) -> bool:
    """Whether it is one list of token ids, which says exactly how many there are."""
    return _ONE_OF_IDS.match(prompt) is not None


def has_strict_tools(tools: bytes) -> bool:
    """Whether a tool's calls are held to its schema.

    SGLang writes a grammar for those even where the model may choose not to call
    (FunctionCallParser.get_structure_constraint).
    """
    return b'"strict"' in tools and _STRICT.search(tools) is not None


def text_bytes(prompt: bytes) -> int:
    """Return the UTF-8 length of a prompt's text; a token id counts as four, media as nothing."""
    return _text_bytes(prompt, _MAX_DEPTH)


def _text_bytes(text: bytes, depth: int) -> int:
    if text.startswith(b'"'):
        return _string_bytes(text)
    if not text.startswith(b"["):
        return 0
    if _TOKEN_IDS.match(text):
        return (text.count(b",") + 1) * BYTES_PER_TOKEN
    if _FIRST.match(text):
        return max(_string_bytes(text) - 3 * text.count(b'"') // 2, 0)
    return _items_bytes(text, depth)


def _items_bytes(text: bytes, depth: int) -> int:
    if depth == 0:
        return 0
    if text.count(b"{") > _MAX_ITEMS:
        return len(text)
    try:
        items = _ITEMS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return 0
    return sum(_item_bytes(item, depth - 1) for item in items)


def _item_bytes(item: _Item, depth: int) -> int:
    texts = (item.content, item.text, item.thinking, item.output, item.arguments)
    return sum(_text_bytes(bytes(text), depth) for text in texts) + sum(
        len(memoryview(structure)) for structure in (item.tool_calls, item.input)
    )


def _string_bytes(text: bytes) -> int:
    """Return the UTF-8 length of a JSON string, without decoding it."""
    size = len(text) - 2
    backslashes = text.count(b"\\")
    if backslashes:
        pairs = text.count(_BACKSLASH)
        size -= backslashes - pairs  # each escape stands for one byte, but for
        size -= 2 * max(text.count(b"\\u") - text.count(b"\\\\u"), 0)  # \uXXXX: for three, mostly
    return size
