"""Prompts to measure with: the built-in ones, those of a file, and made longer."""

from pathlib import Path

import pytest

from proxy.errors import SpecswitchError
from proxy.tools.prompts import Prompt, builtin, parse, read, stretched


def test_the_built_in_ones_are_of_several_kinds_and_lengths() -> None:
    """Chat, code, summaries, translations and lists, from a line to a document."""
    prompts = builtin()
    assert {p.kind for p in prompts} == {"chat", "code", "summarise", "translate", "lists"}
    sizes = sorted(p.tokens for p in prompts)
    assert sizes[0] < 30
    assert sizes[-1] > 1500
    assert all(p.output_tokens for p in prompts)


def test_some_built_in_ones_share_a_system_prompt() -> None:
    """As the requests of one application do."""
    systems = [p.messages[0]["content"] for p in builtin() if p.messages[0]["role"] == "system"]
    assert max(systems.count(each) for each in set(systems)) >= 8


def test_a_file_has_messages_or_a_prompt_on_each_line(tmp_path: Path) -> None:
    """Both forms are read, empty lines, CRLF and a byte-order mark put up with."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "Hello"}\r\n\r\n'
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],'
        b' "max_tokens": 7, "more": 1}\n'
    )
    first, second = read(path)
    assert first.messages == ({"role": "user", "content": "Hello"},)
    assert first.output_tokens is None
    assert second.text_bytes == 2
    assert second.output_tokens == 7
    assert second.source == f"{path}, line 3"


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"prompt": ""}',
        b'{"prompt": 3}',
        b'{"messages": []}',
        b'{"messages": ["hello"]}',
        b'{"messages": [{"content": "no role"}]}',
        b'{"messages": [{"role": "user", "content": null}]}',
        b'{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
        b'{"prompt": "a", "max_tokens": 0}',
        b'{"prompt": "a", "max_tokens": 1.5}',
        b'{"prompt": "\xff"}',
    ],
)
def test_a_bad_line_is_named_by_its_number(line: bytes) -> None:
    """Whatever is wrong with it."""
    with pytest.raises(SpecswitchError, match=r"p\.jsonl, line 2: "):
        parse(b'{"prompt": "good"}\n' + line, "p.jsonl")


def test_many_bad_lines_are_counted() -> None:
    """Five are told, the rest is a number."""
    with pytest.raises(SpecswitchError) as caught:
        parse(b"x\n" * 9, "p.jsonl")
    assert str(caught.value).splitlines()[-1] == "and 4 more bad lines"


def test_a_file_without_prompts_is_an_error(tmp_path: Path) -> None:
    """Nothing can be measured with it."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\n\n")
    with pytest.raises(SpecswitchError, match="holds no prompt"):
        read(path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """And says which."""
    with pytest.raises(SpecswitchError, match=r"none\.jsonl cannot be read"):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize("tokens", [10, 500, 5000])
def test_a_prompt_is_made_longer(tokens: int) -> None:
    """To about the tokens wanted, and never shorter than it was."""
    prompt = builtin()[0]
    longer = stretched(prompt, tokens, builtin(), "a")
    assert longer.tokens == pytest.approx(max(tokens, prompt.tokens), abs=30)


def test_two_longer_prompts_share_no_beginning() -> None:
    """Their marks come first, so that no prefix cache serves both."""
    prompt = builtin()[0]
    first, second = (stretched(prompt, 900, builtin(), mark) for mark in ("a", "b"))
    texts = [str(p.messages[0]["content"]) for p in (first, second)]
    assert texts[0][:8] != texts[1][:8]


def test_a_prompt_can_be_made_longer_with_nothing_to_read() -> None:
    """Padding without a text falls back on the mark."""
    silent = Prompt(({"role": "user", "content": None},))
    assert stretched(builtin()[0], 200, [silent], "a").tokens >= 190
