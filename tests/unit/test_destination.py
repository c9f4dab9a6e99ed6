"""Whether a result can be written: tried before, and nothing is left of the trial."""

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from proxy.errors import SpecswitchError
from proxy.tools.destination import reject_unwritable, write


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


def test_who_owned_a_file_owns_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root replaces somebody's file; and who may not give it back leaves it as it was."""
    path = tmp_path / ".env"
    path.write_text("before")
    owned = path.stat()
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _, uid, gid: given.append((uid, gid)))
    write(path, b"after")
    assert given == [(owned.st_uid, owned.st_gid)]

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(SpecswitchError, match="cannot be written: Operation not permitted"):
        write(path, b"never")
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    """A pipe without a reader would hold us up; what reads it would take us for the writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reject_unwritable(pipe)
