"""Whether a result can be written where it is asked for: tried before the work, not after."""

from pathlib import Path
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
