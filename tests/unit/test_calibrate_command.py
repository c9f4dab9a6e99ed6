"""`specswitch calibrate` as it is typed: options, errors and exit codes."""

import errno
import os
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pytest
from click.testing import CliRunner

from proxy.commands.calibrate import calibrate

NOBODY = "http://127.0.0.1:1"
"""tcpmux: nothing of ours or anybody's listens there."""


@pytest.mark.parametrize("given", ["1,two", "0,1", "", "1;2", "-1"])
def test_concurrencies_are_numbers(given: str) -> None:
    """Anything else is wrong usage, which is 2."""
    result = CliRunner().invoke(calibrate, ["--concurrency", given])
    assert result.exit_code == 2
    assert "concurrency" in result.output


def test_servers_that_are_not_there_are_told(tmp_path: Path) -> None:
    """It refuses, which is 1, names both, and leaves nothing behind."""
    out = tmp_path / "c.json"
    words = ["--spec-url", NOBODY, "--base-url", NOBODY, "--out", str(out), "--json"]
    result = CliRunner().invoke(calibrate, words)
    assert result.exit_code == 1
    assert "spec: " in result.output
    assert "base: " in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--out", "--report"])
def test_a_file_that_cannot_be_written_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Before either server is asked; there is none here."""
    closed = tmp_path / "closed"
    closed.mkdir()

    def refuse(*, dir: Path) -> BinaryIO:  # noqa: A002 - as it is called
        if dir == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return BytesIO()

    monkeypatch.setattr("proxy.tools.destination.TemporaryFile", refuse)
    words = ["--out", str(tmp_path / "c.json"), option, str(closed / "file")]
    result = CliRunner().invoke(calibrate, [*words, "--spec-url", NOBODY, "--base-url", NOBODY])
    assert result.exit_code == 1
    assert "closed/file cannot be written: Permission denied" in result.output
    assert list(tmp_path.iterdir()) == [closed]


def test_help_tells_the_exit_codes() -> None:
    """With what each means."""
    told = CliRunner().invoke(calibrate, ["--help"]).output
    for part in ("undecided", "130", "goes on where it was stopped"):
        assert part in told
