"""The calibration file: what is written is read, and what is wrong is named."""

import json
import os
from copy import deepcopy
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from proxy.calibration import (
    Calibration,
    CalibrationError,
    Cell,
    Contention,
    Crossover,
    Decode,
    Interval,
    LongContext,
    Prefill,
    Server,
    Servers,
    Verdict,
    VerdictKind,
    Workload,
    dump,
    parse,
    read,
)
from proxy.core import curves
from proxy.core.words import UpstreamName
from tests.harness.calibrations import FOUNDING, with_verdict

Path_ = tuple[str | int, ...]


def broken(path: Path_, value: object) -> bytes:
    """The file with one value replaced; with `...` that value is taken out."""
    content = json.loads(dump(FOUNDING))
    part = content
    for step in path[:-1]:
        part = part[step]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return json.dumps(content).encode()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Nothing is lost on the way, nor changed."""
    path = tmp_path / "calibration.json"
    path.write_text(dump(FOUNDING), encoding="utf-8")
    assert read(path) == FOUNDING


def test_whole_numbers_are_numbers() -> None:
    """An editor that writes 4 for 4.0 breaks nothing."""
    content = broken(("servers", "spec", "cells", 0, "concurrency"), 4)
    assert parse(content, "c.json").servers.spec.cells[0].concurrency == 4.0


def test_no_file_is_not_a_bad_file(tmp_path: Path) -> None:
    """Whoever has not calibrated yet has no fault to mend."""
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "calibration.json")


@pytest.mark.parametrize("name", ["folder", "nul\0"])
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str) -> None:
    """With the name and the reason."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(CalibrationError, match="cannot be read"):
        read(tmp_path / name)


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    """It is no calibration, whatever it is."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(CalibrationError, match="more than 16 MiB"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_said(content: bytes) -> None:
    """A half-written file is the likeliest."""
    with pytest.raises(CalibrationError, match=r"^c\.json is not JSON"):
        parse(content, "c.json")


@pytest.mark.parametrize("content", [b"[]", b"{}", b'"a"', b'{"version": 2}', b'{"version": true}'])
def test_another_format_is_not_guessed_at(content: bytes) -> None:
    """Half-understood figures would steer silently."""
    with pytest.raises(CalibrationError, match=r"no calibration of format 1.*specswitch calibrate"):
        parse(content, "c.json")


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("created",), "yesterday", "created"),
        (("verdict", "kind"), "perhaps", "verdict.kind"),
        (("verdict",), ..., "verdict"),
        (("servers", "base"), None, "servers.base"),
        (("servers", "spec", "decode", "fixed"), "fast", "servers.spec.decode.fixed"),
        (("servers", "spec", "decode", "fixed"), float("nan"), "servers.spec.decode.fixed"),
        (("servers", "spec", "decode", "fixed"), float("inf"), "servers.spec.decode.fixed"),
        (("servers", "spec", "decode", "fixed"), -1.0, "servers.spec.decode"),
        (("servers", "spec", "decode", "bend"), -0.01, "servers.spec.decode"),
        (("servers", "spec", "decode", "to"), 0.0, "servers.spec.decode.to"),
        (("servers", "spec", "cap"), 0, "servers.spec.cap"),
        (("servers", "spec", "cells", 0, "requests"), 0, "servers.spec.cells.0.requests"),
        (("servers", "base", "prefill", "fixed"), -0.1, "servers.base.prefill.fixed"),
        (("crossover", "in_flight", "low"), 9.0, "crossover.in_flight"),
        (("crossover", "in_flight"), None, ""),
        (("verdict", "kind"), "no_crossover", ""),
        (("contention", "topology"), "near", "contention.topology"),
        (("workload", "output_tokens"), 0, "workload.output_tokens"),
        (("more",), 1, "more"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(path: Path_, value: object, where: str) -> None:
    """Whatever of it is missing, of another type, impossible or unknown."""
    with pytest.raises(CalibrationError) as raised:
        parse(broken(path, value), "c.json")
    assert str(raised.value).startswith(f"c.json: {where}: ")


def test_a_rate_without_a_crossover_is_a_contradiction() -> None:
    """λ* belongs to N*."""
    content = deepcopy(json.loads(dump(with_verdict(VerdictKind.UNDECIDED))))
    content["crossover"]["tokens_per_second"] = {"value": 1.0, "low": 1.0, "high": 1.0}
    with pytest.raises(CalibrationError, match="needs a crossover"):
        parse(json.dumps(content).encode(), "c.json")


@pytest.mark.parametrize(
    ("kind", "in_flight", "rate"),
    [
        (VerdictKind.CROSSOVER, 3.1, 232.0),
        (VerdictKind.NO_CROSSOVER, inf, inf),
        (VerdictKind.NEVER_WINS, 0.0, 0.0),
        (VerdictKind.UNDECIDED, None, None),
    ],
)
def test_the_verdict_says_what_a_missing_number_means(
    kind: VerdictKind, in_flight: float | None, rate: float | None
) -> None:
    """No crossover is one at infinity, never winning one at nought, undecided unknown."""
    found = with_verdict(kind)
    assert (found.in_flight, found.tokens_per_second) == (in_flight, rate)


def test_the_rate_may_be_unknown_where_the_crossover_is_not() -> None:
    """Then the count alone decides."""
    rate_unknown = FOUNDING.model_copy(
        update={
            "crossover": Crossover(in_flight=FOUNDING.crossover.in_flight, tokens_per_second=None)
        }
    )
    assert rate_unknown.in_flight == 3.1
    assert rate_unknown.tokens_per_second is None


def test_a_server_is_a_value_of_the_core() -> None:
    """What the controller and the simulation take."""
    found = FOUNDING.server(UpstreamName.SPEC).server
    assert found == curves.Server(
        curves.Curve(0.0019, 0.0028, 0.0, 48.0), curves.Prefill(0.003, 0.00006), 48
    )
    assert FOUNDING.server(UpstreamName.BASE).cap is None


def test_everything_optional_may_be_there() -> None:
    """Contention, a long context, and what it was measured under."""
    full = Calibration(
        created=datetime(2026, 11, 29, tzinfo=UTC),
        specswitch="1.0",
        verdict=Verdict(kind=VerdictKind.CROSSOVER, sentence="It crosses."),
        crossover=Crossover(
            in_flight=Interval(value=2.0, low=1.5, high=3.0),
            tokens_per_second=Interval(value=100.0, low=90.0, high=120.0),
        ),
        servers=Servers(spec=_server(), base=_server()),
        contention=Contention(concurrency=2.0, sum=1.5, topology="separate"),
        long_context=LongContext(prompt_tokens=8000.0, crossover=None, moves=True),
        workload=Workload(prompt_tokens=1000.0, output_tokens=200.0, source="prompts.jsonl"),
        conditions={"seconds": 240.5, "seed": 1, "flushed": True, "note": None, "gpu": "unknown"},
    )
    assert parse(dump(full).encode(), "c.json") == full


def _server() -> Server:
    return Server(
        fingerprint={"model": "m", "tensor_parallel": 1, "revision": None},
        decode=Decode(fixed=0.01, per_sequence=0.001, bend=0.0, to=8.0),
        prefill=Prefill(fixed=0.003, per_token=0.0),
        cap=48,
        acceptance_length=2.0,
        cells=(
            Cell(concurrency=1.0, requests=16, tokens_per_second=90.0, seconds_per_token=0.011),
        ),
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It would hold up a start for ever."""
    pipe = tmp_path / "calibration.json"
    os.mkfifo(pipe)
    with pytest.raises(CalibrationError, match="is no file"):
        read(pipe)
