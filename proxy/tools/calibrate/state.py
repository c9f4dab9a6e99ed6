"""What a calibration has measured so far, on disk, so that nothing is measured twice.

Written after every step, whole and in one move; read again by a run that asks for the same of the
same servers. It holds times and counts, no prompt, no answer and no key.
"""

import hashlib
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.calibrate.cells import Measurement, Part, Place, Timed
from proxy.tools.calibrate.plan import Pace
from proxy.tools.calibrate.prefill import Filled
from proxy.tools.destination import write

_FORMAT: Final = 1
_MOST_BYTES: Final = 256 * 2**20

Scalar = str | int | float | bool | None


class StateError(SpecswitchError):
    """What an earlier run has left cannot be gone on from; the message says why, and what to do."""


class State(msgspec.Struct, kw_only=True):
    """All that was measured, and of what."""

    format: int = _FORMAT
    subject: dict[str, Scalar]
    """Servers and plan, by name: what must be equal for a run to go on from here."""
    created: str
    paces: dict[UpstreamName, Pace] = {}
    filled: dict[UpstreamName, list[Filled]] = {}
    natural: dict[int, int] | None = None
    """Output tokens of answers without a fixed length, by the prompt's place in the list."""
    cells: list[Measurement] = []
    notes: list[str] = []
    intruded: int = 0
    """Times that a server was seen with other work than ours."""
    seconds: float = 0.0
    """Spent measuring, over all runs."""

    def rounds(self, place: Place) -> list[Measurement]:
        """What was measured there."""
        return [found for found in self.cells if found.place == place]

    def of(self, part: Part, server: UpstreamName) -> Iterator[Measurement]:
        """One server's cells of one part."""
        return (
            found
            for found in self.cells
            if found.place.part is part and found.place.server is server
        )

    def note(self, sentence: str) -> None:
        """Something that a reader of the result should know; once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


def path_of(out: Path) -> Path:
    """Where the state of a calibration that will be `out` is kept."""
    return out.with_name(f"{out.name}.partial")


def digest(texts: Iterable[bytes]) -> str:
    """A short name for a sequence of texts."""
    found = hashlib.sha256()
    for text in texts:
        found.update(len(text).to_bytes(8, "big"))
        found.update(text)
    return found.hexdigest()[:16]


def resumed(path: Path, subject: Mapping[str, Scalar]) -> State | None:
    """The state at `path`, if there is one and it is of `subject`; None if there is none.

    Raises:
        StateError: there is one, and it is not; says in what it differs.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, for ever
            raise StateError(f"{path} cannot be read: it is no file")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    try:
        state = msgspec.json.decode(content, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateError(f"{path} is damaged ({error}); {_AFRESH}") from error
    if not _makes_sense(state):
        raise StateError(f"{path} is damaged (its figures make no sense); {_AFRESH}")
    if state.format != _FORMAT:
        raise StateError(f"{path} is of another version of specswitch; {_AFRESH}")
    differing = [
        f"{name} is {subject.get(name)!r}, there {state.subject.get(name)!r}"
        for name in sorted(subject.keys() | state.subject.keys())
        if subject.get(name) != state.subject.get(name)
    ]
    if differing:
        raise StateError(
            f"{path} was measured for something else: {'; '.join(differing)}. {_AFRESH}"
        )
    return state


def _makes_sense(state: State) -> bool:
    """Whether it can have been written here: somebody may have edited it."""
    try:
        datetime.fromisoformat(state.created)
    except ValueError:
        return False
    return all(cell.measured and all(map(_was_measured, cell.measured)) for cell in state.cells)


def _was_measured(one: Timed) -> bool:
    if one.ended is None or one.first is None or one.last is None:
        return False
    return one.sent < one.first <= one.last <= one.ended and (one.output_tokens or 0) > 1


_AFRESH: Final = "--fresh begins anew and discards it"


def save(path: Path, state: State) -> None:
    """Write `state` in one move."""
    write(path, msgspec.json.encode(state))
