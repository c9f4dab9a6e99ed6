"""docs/clients.md has a row for each test of a client, and no other; versions are the locks'."""

import json
from pathlib import Path

import pytest

from tests.clients import setup, table
from tests.clients.results import Results
from tests.clients.rows import CLIENTS, HERE, PairKind, rows

PAGE = table.PAGE.read_text()


def test_the_table_is_of_the_tests_there_are() -> None:
    """After a change of tests or locks: `make clients`, then `python -m tests.clients.table`."""
    expected = table.rendered(table.versions(table.curl_on_page(PAGE)))

    assert table.on_page(PAGE).strip() == expected.strip()


def test_every_client_is_explained() -> None:
    """Each client that has an address has its line of how it is told."""
    for client in CLIENTS:
        name = client.name.partition(",")[0]
        assert f"| {name} | " in PAGE or name == "schemathesis"


def test_no_row_comes_twice() -> None:
    """Results are kept by a row's key."""
    keys = [row.key for row in rows()]

    assert len(keys) == len(set(keys)) > 80


def test_every_test_of_a_client_is_a_row() -> None:
    """A test without one would be on no page."""
    for path in HERE.glob("test_*.py"):
        text = path.read_text()
        assert text.count("\ndef test_") == text.count("\n@row(") > 0, path.name


def test_a_run_of_some_keeps_what_was_seen_of_the_others(tmp_path: Path) -> None:
    """A whole run takes minutes; of a cell the last run counts, and of a run its worst."""
    first, second = list(rows())[:2]
    for outcomes in ([(first, "failed"), (second, "passed")], [(first, "passed")]):
        run = Results(versions={"curl": "0.0"})
        for row, outcome in outcomes:
            run.note(row, PairKind.REAL, outcome)
        run.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json").seen == {
        first.key: {"real": "passed"},
        second.key: {"real": "passed"},
    }

    run.note(first, PairKind.REAL, "failed")
    run.note(first, PairKind.REAL, "passed")
    assert run.seen[first.key] == {"real": "failed"}


def test_what_was_not_seen_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failure, or one test that was left out, and the page stays as it is."""
    seen = {row.key: dict.fromkeys(PairKind, "passed") for row in rows()}
    page, results = tmp_path / "clients.md", tmp_path / "results.json"
    page.write_text(PAGE)
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(setup, "RESULTS", results)

    assert table.main() == 1  # no results at all
    key = next(iter(seen))
    for bad in ({PairKind.SIMULATED: "failed"}, {}):
        told = {"seen": {**seen, key: bad}, "versions": {"curl": "0.0"}}
        results.write_text(json.dumps(told))
        assert list(table.unseen(Results.read(results)))
        assert table.main() == 1
        assert page.read_text() == PAGE

    results.write_text(json.dumps({"seen": seen, "versions": {"curl": "0.0"}}))
    assert table.main() == 0
    assert table.curl_on_page(page.read_text()) == "0.0"
