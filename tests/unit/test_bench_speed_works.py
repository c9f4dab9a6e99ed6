"""bench.speed: its works, targets and bounds fit one another, and its tools do what they say."""

import http.client
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.speed import leaving, loading, smoke, targets
from bench.speed.asking import get, serves
from bench.speed.columns import BESIDES, Beside, columns_of
from bench.speed.processes import TOOLS, build, free_port, start, stop, wait_until
from bench.speed.results import Run
from bench.speed.smoke import BOUNDS, SHORTER, faults, judged
from bench.speed.targets import (
    CONFIGURATIONS,
    CORE,
    INTERPRETED,
    REPOSITORY,
    TARGETS,
    Site,
    Target,
)
from bench.speed.works import FLAT_PER_SECOND, WORKS, Kind, Work
from proxy.control import engine
from proxy.core.identity import mismatches
from proxy.core.words import UpstreamName

SPECSWITCH, ROUTER = "specswitch", "sglang-router"


# --- the works -------------------------------------------------------------------------------


@pytest.mark.parametrize("work", WORKS.values(), ids=lambda work: work.name)
def test_the_load_knows_every_option(work: Work) -> None:
    """What a work asks for is an option of load.c."""
    known = set(re.findall(r'\{"(\w+)", &', (TOOLS / "load.c").read_text()))

    assert {*work.load, *(work.beside or {})} <= known


@pytest.mark.parametrize("work", WORKS.values(), ids=lambda work: work.name)
def test_a_work_ends_in_time(work: Work) -> None:
    """Its streams are over before the load's own limit, and that before the bench's."""
    if work.kind is Kind.STREAMS:
        seconds = work.load["ramp_ms"] / 1e3 + work.load["chunks"] * work.load["interval_us"] / 1e6
        assert seconds < work.load["limit_s"] <= loading.LIMIT_SECONDS


@pytest.mark.parametrize("work", WORKS.values(), ids=lambda work: work.name)
def test_every_work_has_a_table_and_somebody_to_do_it(work: Work) -> None:
    """Targets are called by names that exist."""
    assert columns_of(work)
    assert work.only is None or set(work.only) <= set(TARGETS)


def test_the_flat_works_differ_in_their_streams_only() -> None:
    """As many chunks a second each, within what whole microseconds allow."""
    flat = [work.load for name, work in WORKS.items() if name.startswith("flat-")]
    rates = [load["clients"] * 1e6 / load["interval_us"] for load in flat]

    assert len(flat) == 4
    assert rates == pytest.approx([FLAT_PER_SECOND] * 4, rel=0.001)


@pytest.mark.parametrize("beside", BESIDES, ids=lambda beside: f"{beside.work} {beside.figure}")
def test_what_is_compared_between_works_is_of_one_group(beside: Beside) -> None:
    """Otherwise its rounds would not meet the same machine."""
    work, other = WORKS[beside.work], WORKS[beside.other]

    assert work.group is not None
    assert work.group == other.group


@pytest.mark.parametrize("name", [path.name for path in CONFIGURATIONS.iterdir()])
def test_configurations_have_a_place_for_each_port(name: str) -> None:
    """No port is fixed, so two benches do not meet."""
    text = (CONFIGURATIONS / name).read_text()

    assert "${spec_port}" in text
    assert "${base_port}" in text
    assert not re.search(r"127\.0\.0\.1:\d|port_value: \d", text)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_targets_listen_on_loopback_only(target: Target, tmp_path: Path) -> None:
    """Each is told its port, in its words or its file, and no wider address."""
    if target.command is None:
        return
    site = Site(
        folder=tmp_path,
        peers=tmp_path,
        port=41001,
        admin_port=41002,
        spec_port=41003,
        base_port=41004,
    )
    command = target.command(site)
    told = " ".join([*command.words, *(file.read_text() for file in tmp_path.iterdir())])

    assert "41001" in told
    assert "127.0.0.1" in told
    assert "0.0.0.0" not in told.replace("127.0.0.1", "")


def test_specswitch_runs_as_it_comes(tmp_path: Path) -> None:
    """Keys, N* and one limit are set, and nothing is switched off."""
    site = Site(folder=tmp_path, peers=tmp_path, port=1, admin_port=2, spec_port=3, base_port=4)
    command = TARGETS[SPECSWITCH].command
    assert command is not None

    environment = {name for name in command(site).environment if name.startswith("SPECSWITCH_")}

    assert environment == {"SPECSWITCH_AUTH_API_KEYS", "SPECSWITCH_LIMITS_MAX_IN_FLIGHT"}


def path_of(name: str, folder: Path) -> str:
    """Where the target `name` looks for specswitch."""
    site = Site(folder=folder, peers=folder, port=1, admin_port=2, spec_port=3, base_port=4)
    command = TARGETS[name].command
    assert command is not None
    return command(site).environment["PYTHONPATH"]


def test_specswitch_is_the_compiled_one_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the working tree, which the interpreted one is in either case."""
    monkeypatch.setattr(targets, "COMPILED", tmp_path)
    before = path_of(SPECSWITCH, tmp_path)
    (tmp_path / "proxy").mkdir()
    after = path_of(SPECSWITCH, tmp_path)

    assert (before, after) == (str(REPOSITORY), str(tmp_path))
    assert path_of(INTERPRETED, tmp_path) == str(REPOSITORY)


@pytest.mark.parametrize("stale", [True, False])
def test_a_compiled_specswitch_that_is_older_than_its_sources_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stale: bool
) -> None:
    """Its figures would be taken for those of the working tree."""
    (tmp_path / "proxy").mkdir()
    os.utime(tmp_path, (0, 0) if stale else (2**32, 2**32))
    monkeypatch.setattr(targets, "COMPILED", tmp_path)

    found = targets.versions([], tmp_path)[SPECSWITCH]

    assert "compiled" in found
    assert ("before its sources" in found) == stale


def test_the_core_is_there() -> None:
    """The targets of the project are about three names."""
    assert set(CORE) <= set(TARGETS)


# --- the smoke run ---------------------------------------------------------------------------


def smoke_runs(factor: float) -> Iterator[Run]:
    """Runs in which each figure is `factor` times what is expected."""
    for work in SHORTER:
        for number in range(5):
            mine = {b.figure: 10 * b.expected * factor for b in BOUNDS if b.work == work}
            other = {b.figure: 10.0 for b in BOUNDS if b.work == work}
            yield Run(work=work, target=SPECSWITCH, round=number, figures={**mine})
            yield Run(work=work, target=ROUTER, round=number, figures={**other})


@pytest.mark.parametrize(("factor", "holds"), [(0.5, True), (1.0, True), (1.3, True), (2.0, False)])
def test_the_smoke_run_catches_a_regression_to_twice_as_much(factor: float, *, holds: bool) -> None:
    """Each bound by itself, with room for noise below."""
    verdicts = judged(list(smoke_runs(factor)))

    assert len(verdicts) == len(BOUNDS)
    assert all(verdict.holds == holds for verdict in verdicts)


def test_a_bound_about_which_nothing_was_found_is_missed() -> None:
    """No news is not good news."""
    assert not any(verdict.holds for verdict in judged([]))


def test_a_missed_bound_says_what_it_is() -> None:
    """Figure, bound and reason in one line."""
    text = str(judged(list(smoke_runs(2.0)))[0])

    assert text.startswith("MISSED: requests-32 cpu_us")
    assert BOUNDS[0].reason in text


@pytest.mark.parametrize("name", ["errors", "refused", "altered", "wrong"])
def test_one_wrong_byte_is_a_fault(name: str) -> None:
    """Of specswitch; what peers alter is theirs."""

    def found(target: str, count: float) -> list[str]:
        return faults([Run(work="requests-32", target=target, round=0, figures={name: count})])

    assert found(SPECSWITCH, 1.0) == [f"requests-32: 1 {name} answers or chunks"]
    assert found(ROUTER, 1.0) == []
    assert found(SPECSWITCH, 0.0) == []


def test_the_short_works_are_works() -> None:
    """Each bound is of one, and each has all that its long form has."""
    assert {bound.work for bound in BOUNDS} == set(SHORTER)
    assert all(set(work.load) == set(WORKS[work.name].load) for work in smoke.works())


# --- the tools -------------------------------------------------------------------------------


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """The emulated pair, on its two ports."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")  # which compiles the load that is looked at
    ports = free_port(), free_port()
    log = tmp_path / "log"
    process = start([str(build("emulator")), *map(str, ports)], core=0, log=log)
    try:
        assert wait_until(lambda: all(map(serves, ports)), 5)
        yield ports
    finally:
        stop(process)


@pytest.mark.slow
async def test_the_emulated_servers_are_a_pair(emulator: tuple[int, int]) -> None:
    """What specswitch's prober asks is answered, and nothing is wrong with either half."""
    found = {}
    for name, port in zip(UpstreamName, emulator, strict=True):
        url = f"http://127.0.0.1:{port}"
        async with engine.connect(url, api_key=None, tls=None, timeout=5) as client:
            await engine.check_ready(client, "/ready")
            found[name] = await engine.read_identity(client)
            load = await engine.read_load(client)
            counters = await engine.read_counters(client)
        assert load.age_seconds is not None
        assert load.age_seconds < 1
        assert (load.running, load.waiting) == (0, 0)
        assert counters is not None

    assert not any(mismatches(name, found[name], found[name.other]) for name in UpstreamName)
    assert found[UpstreamName.SPEC].cap == 48


@pytest.mark.slow
def test_the_emulator_reads_a_body_in_pieces(emulator: tuple[int, int]) -> None:
    """Some proxies pass a body on in chunks; what it asks for is put together."""
    connection = http.client.HTTPConnection("127.0.0.1", emulator[0], timeout=5)
    pieces = [
        b'{"str',
        b'eam": tr',
        b'ue, "prompt": "@plan id=00000005 chunks=2 interval_us=0 . "}',
    ]
    try:
        connection.request("POST", "/generate", iter(pieces), encode_chunked=True)
        events = connection.getresponse().read().split(b"\n\n")
    finally:
        connection.close()

    assert [b"chatcmpl-00000005" in event for event in events] == [True] * 3 + [False] * 2
    assert events[3:] == [b"data: [DONE]", b""]


@pytest.mark.slow
def test_the_load_finds_every_byte_as_the_emulator_sent_it(emulator: tuple[int, int]) -> None:
    """20 streams of 10 chunks, the events at their ends with them; and answers without a stream."""
    port = emulator[1]
    words = loading.words(
        build("load"), "streams", port, {"clients": 20, "chunks": 10, "interval_us": 1000}, None
    )
    marks: list[str] = []
    found = loading.run(words, marks.append)

    assert (found["done"], found["count"], found["exact"]) == (20, 200, 220)
    assert (found["altered"], found["wrong"], found["errors"], found["refused"]) == (0, 0, 0, 0)
    assert marks == ["steady", "ending"]


@pytest.mark.slow
def test_a_client_that_leaves_is_seen_by_both_sides(emulator: tuple[int, int]) -> None:
    """The load says when it left, the emulator when it noticed, by the same id."""
    options = {"clients": 3, "chunks": 500, "leave_after": 2, "interval_us": 1000, "ramp_ms": 30}
    found = loading.run(loading.words(build("load"), "streams", emulator[0], options, None))

    def closed() -> dict[int, int]:
        return leaving.closed(get(emulator[0], "/emulator/left"))

    assert wait_until(lambda: len(closed()) == len(leaving.left(found)) == 3, 5)
    assert all(at < closed()[client] for client, at in leaving.left(found).items())
