"""docs/scaling.md: its tables have what the simulation and the stories have."""

import re
from pathlib import Path

import pytest

from bench.scaling.plan import LOADS, REFERENCE, RULES, SHOWN
from bench.scaling.table import BEGIN, END, ROWS
from tests.scale.routers import FOLDER, ROUTERS, SESSIONS
from tests.scale.seen import Story
from tests.scale.table import PAGE, between

TEXT = PAGE.read_text(encoding="utf-8")
DEPLOYED = Path(__file__).parents[2] / "deploy"


def cells(line: str) -> list[str]:
    """Of a row of a table."""
    return [each.strip() for each in line.strip("|").split("|")]


def test_each_router_has_a_row_and_each_story_a_column() -> None:
    """None is left out, none is invented, and no cell is empty."""
    head, _, *rows = [line for line in between(TEXT).splitlines() if line]
    assert cells(head) == ["router", *Story]
    assert [cells(row)[0].strip("*") for row in rows] == list(ROUTERS)
    assert all(all(cells(row)) for row in rows)


def test_every_router_is_deployed_and_told_of() -> None:
    """A folder for each, and its name in the README of them all."""
    folders = {name.split(" ")[0].lower() for name in ROUTERS}
    assert {each.name for each in FOLDER.iterdir() if each.is_dir()} == folders
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"[{folder}](" in readme for folder in folders)


def test_headers_of_sessions_are_those_of_the_configurations() -> None:
    """The page, the test and the file that is deployed say the same."""
    files = {
        "HAProxy": FOLDER / "haproxy" / "haproxy.cfg",
        "Envoy": FOLDER / "envoy" / "envoy.yaml",
        "sglang-router manual": FOLDER / "sglang-router" / "router.sh",
    }
    assert files.keys() == SESSIONS.keys()
    section = TEXT.partition("## State that lives in one pair")[2].partition("\n## ")[0]
    for name, header in SESSIONS.items():
        assert header in files[name].read_text(encoding="utf-8")
        assert f"`{header}`" in section


def test_the_rules_are_explained() -> None:
    """Each that is shown has a line; the rest is one of the command."""
    lines = re.findall(r"^\| `?([\w-]+)`? \| [^|]*\| [^|]*\|$", TEXT, re.MULTILINE)
    assert {*SHOWN} <= {*lines}
    assert {*SHOWN} <= {*RULES}


TABLES = ("mean E2E to power-of-two", "power-of-two itself")


def _table(title: str) -> str:
    """What stands below a title that is one of the simulation's."""
    tables = TEXT.partition(BEGIN)[2].partition(END)[0]
    return tables.partition(f"\n{title}\n\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("profile", ["founding"])
def test_the_simulated_tables_are_whole(profile: str) -> None:
    """Every workload at every size, with each rule that is shown."""
    rules, itself = (_table(f"`{profile}`: {of}") for of in TABLES)
    head, _, *rows = rules.splitlines()
    assert cells(head) == [
        "workload", "pairs", *(f"`{rule}`" for rule in SHOWN if rule != REFERENCE),
    ]  # fmt: skip
    several = {(load, str(pairs)) for load in LOADS for pairs in ROWS if pairs > 1}
    assert {(cells(row)[0], cells(row)[1]) for row in rows} == several
    assert all(all(cells(row)) for row in rows)
    every = {(load, str(pairs)) for load in LOADS for pairs in ROWS}
    assert {(cells(row)[0], cells(row)[1]) for row in itself.splitlines()[2:]} == every
