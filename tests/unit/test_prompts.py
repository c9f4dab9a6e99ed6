"""Prompts in a body: how many there are, and how much text."""

import json

import pytest
from msgspec import Raw

from proxy.core import prompts
from proxy.core.bodies import Item
from proxy.errors import UnreadableBody

TEXT = "The quick brown fox. "


def raw(prompt: object) -> Raw:
    """*prompt* as it stands in a body."""
    return Raw(json.dumps(prompt))


def weight(prompt: Raw) -> int:
    """The bytes of text in *prompt*, which does not take long to be weighed."""
    found = prompts.text_bytes([prompt])
    assert found is not None
    return found


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
    assert len(prompts.each(raw(prompt))) == expected


def test_white_space_is_none() -> None:
    """As much as a pretty printer puts in front of the first."""
    assert len(prompts.each(Raw(b"[" + b" \t\r\n" * 64 + b'"a", "b"]'))) == 2
    assert prompts.count_embedded(Raw(b"[ \n[ [1.5]],[[2.5]]]")) == 2


def test_a_batch_that_is_no_json_is_one() -> None:
    """It cannot be taken apart."""
    cut = Raw(b'["a", "b"')
    assert prompts.each(cut) == [cut]


@pytest.mark.parametrize(
    ("embeddings", "expected"),
    [([[0.5, 0.5]], 1), ([[[0.5]], [[0.5], [1.5]]], 2), ([], 1), (None, 1)],
)
def test_how_many_embedded(embeddings: object, expected: int) -> None:
    """One is a list of vectors, so several are a list of those."""
    compact = Raw(json.dumps(embeddings, separators=(",", ":")))

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
    assert abs(weight(raw(prompt)) - expected) <= 3


@pytest.mark.parametrize("text", ["äöü" * 50, "文字" * 50, 'say "\n" \\ ' * 50, "\\\\u0041" * 50])
@pytest.mark.parametrize("times", [1, 3000])
def test_escapes_weigh_what_they_stand_for(text: str, times: int) -> None:
    """Exactly where they are written plainly, and within half where escaped; however long."""
    text *= times
    exact = len(text.encode())

    found = weight(Raw(json.dumps(text, ensure_ascii=False)))
    assert found == exact if "\\" not in text else abs(found - exact) <= exact // 1000
    assert 0.5 * exact <= weight(raw(text)) <= 1.5 * exact


@pytest.mark.parametrize("text", [rb'"a\ud83d b"', b'"a\\n\xff b"'])
def test_a_string_that_is_none_weighs_about_its_length(text: bytes) -> None:
    """Half a surrogate pair, or no UTF-8: some engines take it."""
    assert abs(weight(Raw(text)) - 6) <= 1


def test_each_string_is_judged_by_its_own_escapes() -> None:
    """A long one that is escaped does not change what short ones weigh."""
    exact = 3 * 100_000 + 50 * 1000
    texts = ["文" * 100_000, *["x" * 1000] * 50]

    assert abs(weight(raw(texts)) - exact) <= exact // 10


MANY = 2048


@pytest.mark.parametrize(
    ("prompt", "most"),
    [
        ([{"content": "word"}], MANY - 1),
        ([{"content": [{"text": "word"}]}], MANY // 2 - 1),
        (["word"], MANY - 1),
        ([{"content": "wo", "text": "rd"}], MANY // 2 - 1),
    ],
)
def test_how_much_is_looked_into(prompt: list[object], most: int) -> None:
    """Up to a bound, each for its own text; nothing of what has more."""
    assert weight(raw(prompt * most)) == 4 * most
    assert prompts.text_bytes([raw(prompt * (most + 2))]) is None


@pytest.mark.parametrize("mark", ["[,", "{,", '"",'])
def test_a_list_with_very_many_elements_is_not_taken_apart(mark: str) -> None:
    """Seen from its punctuation, which a text may have, too; not of commas or of quotes alone."""
    few, many = raw([mark * ((1 << 15) - 1)]), raw([mark * (1 << 15)])

    assert prompts.text_bytes([few]) is not None
    assert prompts.text_bytes([many]) is None
    assert len(prompts.each(few)) == 1
    with pytest.raises(UnreadableBody):
        prompts.each(many)
    for alone in ",[":
        assert weight(raw([{"text": alone * (1 << 17)}])) == 1 << 17
        assert len(prompts.each(raw([alone * (1 << 17)]))) == 1


def test_many_prompts_or_messages_are_not_weighed() -> None:
    """Each would be looked at."""
    assert prompts.text_bytes([Raw(b'"word"')] * MANY) == 4 * MANY
    assert prompts.text_bytes([Raw(b'"word"')] * (MANY + 1)) is None
    assert prompts.text_bytes([], [Item()] * (MANY + 1)) is None
    assert prompts.text_bytes([raw([{}] * (MANY + 1))]) is None


def test_escapes_are_looked_for_at_the_beginning_of_each_string() -> None:
    """Of several long ones less of each."""
    text = raw("x" * 200_000 + "\n" * 1000)

    assert prompts.text_bytes([text]) == 201_000
    assert prompts.text_bytes([text, text]) == 2 * 202_000


def test_how_much_is_read() -> None:
    """Parts are read once, parts of parts not without end; so are lists of token ids."""
    picture = {"type": "image", "data": "A" * (5 << 20)}

    assert weight(raw([{"content": "a"}, picture])) == 1
    assert prompts.text_bytes([raw([{"content": [picture]}])]) is None
    assert prompts.text_bytes([Raw(b"[1" + b" " * (4 << 20) + b"]")]) is None


@pytest.mark.parametrize(
    ("prompt", "exact"),
    [("[1, 2]", True), ("[ -1]", True), ("[[1]]", False), ("[]", False), ('["1"]', False)],
)
def test_one_list_of_ids_is_exact(prompt: str, *, exact: bool) -> None:
    """Then the tokens are counted and not guessed."""
    assert (prompts.count_ids(Raw(prompt)) is not None) is exact


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
        assert prompts.has_strict_tools(Raw(json.dumps(tools, separators=separators))) is strict


def test_tools_longer_than_any_prompt_count_as_strict() -> None:
    """They are not searched."""
    assert prompts.has_strict_tools(Raw(b"[" + b" " * (1 << 18) + b"]"))


@pytest.mark.parametrize(("depth", "expected"), [(3, len(TEXT)), (4, len(TEXT)), (5, 0)])
def test_parts_are_looked_into_to_a_depth(depth: int, expected: int) -> None:
    """No prompt nests its text deeper than a tool's result, with one level to spare."""
    deep: object = TEXT
    for _ in range(depth):
        deep = [{"content": deep}]

    assert weight(raw(deep)) == expected
