"""docs/known-problems.md names tests that exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "known-problems.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


@cache
def named_in(file: str) -> frozenset[str]:
    """The names of the tests and classes in a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return frozenset(re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", text, re.MULTILINE))


def test_the_page_names_tests() -> None:
    """Or the next test would pass for nothing."""
    assert len(NAMED) > 80


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_exists(file: str, name: str) -> None:
    """A row without its test proves nothing."""
    assert not name or name in named_in(file)
