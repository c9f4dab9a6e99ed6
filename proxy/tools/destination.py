"""A result that is written where it is asked for: whether it can be, before the work; and whole."""

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryFile

from proxy.errors import SpecswitchError


def reject_unwritable(path: Path | None) -> None:
    """See that a file can be written at `path`, and leave nothing there; None is well.

    What exists and is no file, as a pipe or a terminal, is left alone: opening it may be noticed at
    its other end.

    Raises:
        SpecswitchError: it cannot be written; says why.
    """
    if path is None:
        return
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            TemporaryFile(dir=path.absolute().parent).close()
    except FileNotFoundError as error:
        raise SpecswitchError(f"{path} cannot be written: there is no such folder") from error
    except OSError as error:
        raise SpecswitchError(f"{path} cannot be written: {error.strerror}") from error


def write(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file whole or not at all: beside it first, then in its place.

    `mode` is that of a new file, less what the umask takes; one that is there keeps its mode and
    its owner.

    Raises:
        SpecswitchError: it cannot be written.
    """
    path = path.resolve()  # what a link leads to is replaced, and not the link
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or a pipe is written to, not replaced
            return
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if path.exists():
                there = path.stat()
                os.fchown(file.fileno(), there.st_uid, there.st_gid)
                os.fchmod(file.fileno(), S_IMODE(there.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise SpecswitchError(f"{path} cannot be written: {error.strerror}") from error
