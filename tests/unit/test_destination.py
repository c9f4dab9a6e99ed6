"""Whether a result can be written: tried before, and nothing is left of the trial."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from proxy.errors import SpecswitchError
from proxy.tools.destination import reject_unwritable


def test_a_place_for_a_file_is_left_as_it_was(tmp_path: Path) -> None:
    """A new name leaves nothing, a file keeps what it has; no path is no trouble."""
    kept = tmp_path / "kept"
    kept.write_text("what it has")
    reject_unwritable(tmp_path / "new")
    reject_unwritable(kept)
    reject_unwritable(None)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.read_text() == "what it has"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the whole path, as it was given."""
    with pytest.raises(SpecswitchError, match=r"no/out\.html cannot be written: there is no such"):
        reject_unwritable(tmp_path / "no" / "out.html")


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    """In the system's words."""
    (tmp_path / "file").touch()
    with pytest.raises(SpecswitchError, match="cannot be written: Not a directory"):
        reject_unwritable(tmp_path / "file" / "out.html")


@pytest.mark.parametrize("exists", [True, False])
def test_what_may_not_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exists: bool
) -> None:
    """A file, and a folder that takes no new one."""
    path = tmp_path / "out.html"
    if exists:
        path.touch()

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("proxy.tools.destination.TemporaryFile", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SpecswitchError, match=r"out\.html cannot be written: Permission denied"):
        reject_unwritable(path)


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    """A pipe without a reader would hold us up; what reads it would take us for the writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reject_unwritable(pipe)
