"""Prompts in a body: how many there are, and how much text."""

import json

import pytest

from proxy.core import prompts

TEXT = "The quick brown fox. "


def raw(prompt: object) -> bytes:
    """*prompt* as it stands in a body."""
    return json.dumps(prompt).encode()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", 1),
        (["a"], 1),
        (["a", "b"], 2),
        (['say "a"', "\\", '\\"'], 3),
        ([], 1),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        ([{"role": "user", "content": "a"}], 1),
        (None, 1),
        (3, 1),
    ],
)
def test_how_many(prompt: object, expected: int) -> None:
    """Strings or lists of token ids in a list; whatever else there is counts as one."""
    assert prompts.count(raw(prompt)) == expected


def test_white_space_is_none() -> None:
    """However much of it stands in front of the first."""
    assert prompts.count(b"[" + b" \t\r\n" * 1000 + b'"a", "b"]') == 2
    assert prompts.count_embedded(b"[ \n[ [1.5]],[[2.5]]]") == 1


@pytest.mark.parametrize(
    ("embeddings", "expected"),
    [([[0.5, 0.5]], 1), ([[[0.5]], [[0.5], [1.5]]], 2), ([], 1), (None, 1)],
)
def test_how_many_embedded(embeddings: object, expected: int) -> None:
    """One is a list of vectors, so several are a list of those."""
    compact = json.dumps(embeddings, separators=(",", ":")).encode()

    assert prompts.count_embedded(compact) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (TEXT, len(TEXT)),
        ("", 0),
        ([TEXT, TEXT], 2 * len(TEXT)),
        ([1, 2, 3], 12),
        ([[1, 2], [3]], 12),
        ([{"content": TEXT}, {"content": None}], len(TEXT)),
        ([{"content": [{"type": "text", "text": TEXT}]}], len(TEXT)),
        ([{"thinking": TEXT, "output": TEXT, "arguments": TEXT}], 3 * len(TEXT)),
        ([{"tool_calls": [{}]}], 4),
        ([{"input": {"a": 1}}], 8),
        ([{"type": "image", "data": "A" * 1000}], 0),
        ([{}, 3], 0),
        ({"content": TEXT}, 0),
        (None, 0),
    ],
)
def test_how_much_text(prompt: object, expected: int) -> None:
    """Strings wherever a prompt may have them; token ids weigh four; media nothing."""
    assert abs(prompts.text_bytes(raw(prompt)) - expected) <= 3


@pytest.mark.parametrize("text", ["äöü" * 50, "文字" * 50, 'say "\n" \\ ' * 50, "\\\\u0041" * 50])
def test_escapes_weigh_what_they_stand_for(text: str) -> None:
    """Exactly where they are written plainly, and within half where escaped."""
    exact = len(text.encode())

    assert prompts.text_bytes(json.dumps(text, ensure_ascii=False).encode()) == exact
    assert 0.5 * exact <= prompts.text_bytes(raw(text)) <= 1.5 * exact


def test_very_many_parts_are_weighed_whole() -> None:
    """Looking into each would hold the event loop."""
    many = raw([{"content": "word"}] * 20_000)

    assert prompts.text_bytes(many) == len(many)


@pytest.mark.parametrize(("depth", "expected"), [(3, len(TEXT)), (4, len(TEXT)), (5, 0)])
def test_parts_are_looked_into_to_a_depth(depth: int, expected: int) -> None:
    """No prompt nests its text deeper than a tool's result, with one level to spare."""
    deep: object = TEXT
    for _ in range(depth):
        deep = [{"content": deep}]

    assert prompts.text_bytes(raw(deep)) == expected
