"""docs/calibration.md: the file field by field, every verdict, and messages that are said."""

import ast
import re
from collections.abc import Iterator
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

from proxy.calibration import Calibration, Decode, Interval, Prefill, VerdictKind
from proxy.tools.calibrate.plan import LEVELS
from tests.docs.test_docs_commands import ANYTHING, PAGES, ROOT, names, rows, section, words

PAGE = PAGES["calibrate"]
FIGURES = (Interval, Decode, Prefill)
"""Told in one row, with what they are made of."""


def paths(model: type[BaseModel]) -> Iterator[str]:
    """The fields of the calibration file; of what both servers have, once, as the page has it."""
    for name, field in model.model_fields.items():
        parts = [each for each in parts_of(field.annotation) if issubclass(each, BaseModel)]
        if not parts or parts[0] in FIGURES:
            yield name
            continue
        many = "[]" if get_origin(field.annotation) is tuple else ""
        if many or type(None) in parts_of(field.annotation):
            yield name
        if name in {"spec", "base"}:
            yield name
            if name == "base":
                continue
        yield from (f"{name}{many}.{path}" for path in paths(parts[0]))


def parts_of(annotation: object) -> list[type]:
    """The classes that an annotation is made of."""
    if isinstance(annotation, type):
        return [annotation]
    return [part for each in get_args(annotation) for part in parts_of(each)]


def test_the_calibration_file() -> None:
    """Every field of it has its row, and no other."""
    told = names(section(PAGE, "The file"))
    spec = re.compile(r"^servers\.spec\.")

    assert told == [spec.sub("servers.*.", path) for path in ordered(paths(Calibration))]


def ordered(found: Iterator[str]) -> list[str]:
    """Both servers are named before what they have."""
    listed = list(found)
    listed.remove("servers.base")
    listed.insert(listed.index("servers.spec") + 1, "servers.base")
    return listed


def test_verdicts_of_calibrate() -> None:
    """Each has its row."""
    told = [row for row in rows(section(PAGE, "Verdicts")) if len(row) == 3]
    kinds = [row[0].strip("`") for row in told if row[0].strip("`") in {*VerdictKind}]

    assert kinds == list(VerdictKind)


def test_concurrencies_of_calibrate() -> None:
    """Those of the page are those that are measured."""
    (row,) = [row for row in rows(section(PAGE, "Options")) if row[0] == "`--concurrency`"]

    assert row[1] == f"`{','.join(map(str, LEVELS))}`"


def said_by(*folders: str) -> str:
    """All text that the modules of these folders may say, with a dot for what is put in."""
    texts = [
        words(node)
        for folder in folders
        for path in sorted((ROOT / "proxy" / "tools" / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    ]
    return "\n".join(texts).replace(ANYTHING, "\0")


@pytest.mark.parametrize("heading", ["Why it may be undecided", "What is refused"])
def test_messages_of_calibrate(heading: str) -> None:
    """What the page quotes is what is said: the words between figures stand in the code."""
    known = re.sub(r"\\(.)", r"\1", said_by("calibrate", "curves", "doctor") + said_by("."))
    table = PAGE.partition(f" {heading}\n")[2].partition("\n#")[0]
    quoted = [quote for row in rows(table) for quote in re.findall(r"`([^`]+)`", row[0])]

    assert quoted
    for quote in quoted:
        for part in re.split(r"\b(?:spec|base)\b|[\d.+%]*\d[\d.%]*|\.\.\.", quote):
            assert part.strip() in known, (quote, part)
