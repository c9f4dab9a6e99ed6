"""What a calibration keeps between runs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.calibrate.cells import Measurement, Part, Place, Timed
from proxy.tools.calibrate.plan import Pace
from proxy.tools.calibrate.prefill import Filled
from proxy.tools.calibrate.state import (
    Scalar,
    State,
    digest,
    path_of,
    resumed,
    save,
)
from proxy.tools.destination import write

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
SUBJECT: dict[str, Scalar] = {"model": "tiny", "seed": 0, "revision": None}


def _state() -> State:
    place = Place(Part.SWEEP, SPEC, 2)
    request = Timed(
        prompt=1, measured=True, sent=0.5, first=0.75, last=1.0, ended=1.0, output_tokens=16
    )
    return State(
        subject=SUBJECT,
        created="2026-01-02T03:04:05+00:00",
        paces={SPEC: Pace(0.01, 0.002)},
        filled={BASE: [Filled(128, 130, 0.02)]},
        natural={3: 40},
        cells=[Measurement(place=place, requests=(request,), late_seconds=0.001)],
        notes=["a note"],
        seconds=12.5,
    )


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    """All of it, as the same values."""
    path = tmp_path / "c.json.partial"
    save(path, _state())
    assert resumed(path, SUBJECT) == _state()


def test_without_a_file_there_is_nothing_to_resume(tmp_path: Path) -> None:
    """A first run."""
    assert resumed(tmp_path / "none", SUBJECT) is None


def test_a_state_of_something_else_is_named_and_kept(tmp_path: Path) -> None:
    """What differs is said, and nothing is discarded without being asked to."""
    path = tmp_path / "c.json.partial"
    save(path, _state())
    with pytest.raises(SpecswitchError, match=r"model is 'large', there 'tiny'.*--fresh"):
        resumed(path, {**SUBJECT, "model": "large"})
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"subject": 3}', b"\xff\xfe"])
def test_a_damaged_state_is_an_error(tmp_path: Path, content: bytes) -> None:
    """It says so, and how to begin anew."""
    path = tmp_path / "c.json.partial"
    path.write_bytes(content)
    with pytest.raises(SpecswitchError, match=r"damaged.*--fresh"):
        resumed(path, SUBJECT)


def test_a_state_of_another_format_is_an_error(tmp_path: Path) -> None:
    """Half-understood data would be measured data no more."""
    path = tmp_path / "c.json.partial"
    state = _state()
    state.format = 2
    save(path, state)
    with pytest.raises(SpecswitchError, match="another version"):
        resumed(path, SUBJECT)


def test_a_state_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A folder in its place, say."""
    with pytest.raises(SpecswitchError, match="cannot be read"):
        resumed(tmp_path, SUBJECT)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A place that cannot be written keeps what it had, and nothing is left beside it."""
    target = tmp_path / "folder"
    (target / "full").mkdir(parents=True)
    with pytest.raises(SpecswitchError, match="cannot be written"):
        write(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    """In one move."""
    path = tmp_path / "c.json"
    path.write_bytes(b"old")
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]


def test_it_is_kept_beside_the_result() -> None:
    """Under a name that says what it is."""
    assert path_of(Path("d/calibration.json")) == Path("d/calibration.json.partial")


def test_a_digest_tells_texts_apart() -> None:
    """Also those that are the same when joined."""
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"ab"]) == digest([b"ab"])


def test_rounds_and_parts_are_found() -> None:
    """By place, and by part and server."""
    state = _state()
    assert state.rounds(Place(Part.SWEEP, SPEC, 2)) == state.cells
    assert state.rounds(Place(Part.BOTH, SPEC, 2)) == []
    assert list(state.of(Part.SWEEP, SPEC)) == state.cells
    assert list(state.of(Part.SWEEP, BASE)) == []


def test_a_note_is_taken_once() -> None:
    """However often it is true."""
    state = _state()
    state.note("a note")
    state.note("another")
    assert state.notes == ["a note", "another"]


def test_what_a_link_leads_to_is_written(tmp_path: Path) -> None:
    """The link stays a link; a device is written to and not replaced."""
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    write(Path("/dev/null"), b"new")
    assert not Path("/dev/null").is_file()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It would hold up a start for ever."""
    pipe = tmp_path / "c.json.partial"
    os.mkfifo(pipe)
    with pytest.raises(SpecswitchError, match="is no file"):
        resumed(pipe, {})


@pytest.mark.parametrize(
    "edited",
    [
        {"created": "yesterday"},
        {"requests": ()},
        {"ended": 0.5},
        {"output_tokens": 0},
        {"first": None},
    ],
)
def test_figures_that_make_no_sense_are_damage(tmp_path: Path, edited: dict[str, object]) -> None:
    """Somebody has edited it: said, before anything is divided by nought."""
    state = _state()
    if "created" in edited:
        state.created = str(edited["created"])
    (cell,) = state.cells
    requests = () if "requests" in edited else cell.requests
    fields = {name: value for name, value in edited.items() if name not in {"created", "requests"}}
    changed = tuple(replace(one, **fields) for one in requests)  # type: ignore[arg-type]  # names of its fields
    state.cells = [replace(cell, requests=changed)]
    path = tmp_path / "c.json.partial"
    save(path, state)
    with pytest.raises(SpecswitchError, match="is damaged"):
        resumed(path, SUBJECT)
