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


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (["a", "longer", "b"], "longer"),
        ([[1], [1, 2, 3], [4, 5]], [1, 2, 3]),
        (["one"], "one"),
        ([[1, 2]], [1, 2]),
        ("one", "one"),
        ([1, 2, 3], [1, 2, 3]),
        ([{"content": "a"}, {"content": "bc"}], [{"content": "a"}, {"content": "bc"}]),
        ([], []),
        (None, None),
    ],
)
def test_the_longest_of_a_batch(prompt: object, expected: object) -> None:
    """One of several; what is no batch is itself."""
    assert json.loads(prompts.longest(raw(prompt))) == expected


@pytest.mark.parametrize("prompt", [raw(["a"] * 20_000), b'["a", "b", NaN]', b'["a", "b"'])
def test_a_batch_that_cannot_be_taken_apart_is_weighed_whole(prompt: bytes) -> None:
    """Too many, or not JSON: never less than the longest."""
    assert prompts.longest(prompt) == prompt


@pytest.mark.parametrize(
    ("prompt", "exact"),
    [("[1, 2]", True), ("[ -1]", True), ("[[1]]", False), ("[]", False), ('["1"]', False)],
)
def test_one_list_of_ids_is_exact(prompt: str, *, exact: bool) -> None:
    """Then the tokens are counted and not guessed."""
    assert prompts.is_token_ids(prompt.encode()) is exact


@pytest.mark.parametrize(
    ("tools", "strict"),
    [
        ([{"function": {"name": "f", "strict": True}}], True),
        ([{"function": {"name": "f", "strict": 1}}], True),
        ([{"function": {"name": "f", "strict": "true"}}], True),
        ([{"function": {"name": "f", "strict": False}}], False),
        ([{"function": {"name": "f", "strict": None}}], False),
        ([{"function": {"description": 'say "strict": true'}}], False),
        ([{"parameters": {"properties": {"strict": {"type": "boolean"}}}}], False),
        ([], False),
        (None, False),
    ],
)
def test_strict_tools(tools: object, *, strict: bool) -> None:
    """Only where a tool says so itself, however it is spaced."""
    for separators in ((", ", ": "), (",", ":")):
        assert prompts.has_strict_tools(json.dumps(tools, separators=separators).encode()) is strict


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
