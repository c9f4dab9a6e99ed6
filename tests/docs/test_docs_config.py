"""docs/configuration.md and docs/glossary.md say what the code says, key by key."""

import re
import tomllib
from enum import StrEnum
from pathlib import Path

import pytest

from proxy.config import Config, describe
from proxy.config.forms import Kind
from proxy.config.settings import SETTINGS, VARIABLES
from proxy.core import words
from proxy.core.route import Reason
from tests.harness.configs import config, findings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
WHOLE, WRONG = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

UNITS = {Kind.SECONDS: "seconds", Kind.SIZE: "bytes", Kind.SECRET: "secret", Kind.URL: "URL"}
"""Kinds that leave no choice of unit."""


def sections(page: str, heading: str) -> dict[str, list[list[str]]]:
    """The rows of the tables of `page`, by the text of the heading above them."""
    found: dict[str, list[list[str]]] = {}
    name = ""
    for text in page.splitlines():
        if text.startswith(heading):
            name = text.removeprefix(heading).strip("`[]")
        elif text.startswith("| `"):
            found.setdefault(name, []).append([cell.strip() for cell in text.split("|")[1:-1]])
    return found


def test_every_key_is_documented_with_its_default_and_unit_and_no_other() -> None:
    """The tables, read as a list, are the keys of the model in their order."""
    rows = [
        (f"{section}.{key.strip('`')}", default.strip("`"), unit)
        for section, table in sections(PAGE, "## ").items()
        for key, default, unit, _meaning, _when in table
    ]
    settings = describe()
    assert [row[:2] for row in rows] == [(each.path, each.default) for each in settings]
    assert [
        (path, unit) for path, _, unit in rows if unit != UNITS.get(SETTINGS[path].kind, unit)
    ] == []


def test_every_row_says_what_it_means_and_when_to_change_it() -> None:
    """No cell is empty."""
    assert all(all(row) for table in sections(PAGE, "## ").values() for row in table)


def test_the_whole_file_is_the_defaults() -> None:
    """What a user copies changes nothing, and names every key."""
    assert config(WHOLE) == Config()
    table = tomllib.loads(WHOLE)
    for setting in describe():
        value: object = table
        for part in setting.path.split("."):
            assert isinstance(value, dict)
            value = value[part]


def test_the_example_of_errors_is_what_is_said() -> None:
    """The wrong file, with the variable beside it, gives the text below it."""
    said = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert said is not None
    found = findings(WRONG, {"SPECSWITCH_POLICY_CROSSOVER": "-1"})
    assert [f"{path}: {message}" for path, message in found] == said[1].splitlines()


def test_every_variable_and_key_that_the_text_names_exists() -> None:
    """No sentence speaks of a name that would be refused."""
    assert set(re.findall(r"SPECSWITCH_[A-Z_]*[A-Z]", PAGE)) <= set(VARIABLES)
    names = "|".join(Config.model_fields)
    assert set(re.findall(rf"`((?:{names})\.[a-z_.]+)`", PAGE)) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("heading", "values"),
    [
        ("upstream, mode", words.UpstreamName),
        ("control", words.Control),
        ("admin state", words.AdminState),
        ("health", words.Health),
        ("ejection cause", words.EjectionCause),
        ("outcome", words.Outcome),
        ("switch reason", words.SwitchReason),
        ("topology", words.Topology),
        ("retry cause", words.RetryCause),
    ],
)
def test_closed_sets(heading: str, values: type[StrEnum]) -> None:
    """The glossary has each value of a closed set, in order, and no other."""
    table = sections(GLOSSARY, "### ")[heading]
    assert [row[0].strip("`") for row in table] == list(values)


def test_reasons() -> None:
    """The reasons are there too; those of eligibility in one row."""
    table = sections(GLOSSARY, "### ")["reason"]
    found = {row[0].strip("`") for row in table}
    assert found == {*Reason, "eligibility:<rule>"}


def test_no_closed_set_is_left_out() -> None:
    """A set that is added to the shared words needs a table."""
    sets = {each for each in vars(words).values() if isinstance(each, type)} - {StrEnum}
    assert len(sets) == 9
