"""From a state to a conclusion, a file and a page; the states are made up from known curves."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from random import Random

import pytest
from rich.console import Console

from proxy.calibration import VerdictKind, dump, parse
from proxy.core.fields import Fields
from proxy.core.words import UpstreamName
from proxy.sim import physics
from proxy.tools import report
from proxy.tools.calibrate.cells import Measurement, Part, Place, Timed
from proxy.tools.calibrate.conclusion import Conclusion, conclude
from proxy.tools.calibrate.plan import requests_of
from proxy.tools.calibrate.prefill import Filled
from proxy.tools.calibrate.report import blocks, sentences, show
from proxy.tools.calibrate.state import State
from proxy.tools.curves.cells import BadDataError
from proxy.tools.doctor.server_info import ServerInfo
from proxy.tools.prompts import Prompt, builtin

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
LEVELS = (1, 2, 3, 4, 6, 8, 12)
TOKENS = 101
"""Output tokens of each request: a hundred steps."""
PROMPTS = builtin()

Step = Callable[[float], float]
"""Seconds per token with so many in flight."""


def _spec(in_flight: float) -> float:
    return in_flight / physics.output_rate(physics.FOUNDING, SPEC, in_flight)


def _base(in_flight: float) -> float:
    return in_flight / physics.output_rate(physics.FOUNDING, BASE, in_flight)


def _measured(place: Place, step: Step, *, slower: float = 1.0, tokens: int = 200) -> Measurement:
    """A cell on a server with that curve, in which requests differ a little."""
    random = Random(str(place))
    requests = []
    for number in range(requests_of(place.concurrency)):
        took = 100 * slower * step(place.concurrency) * random.gauss(1.0, 0.03)
        requests.append(
            Timed(
                prompt=number % len(PROMPTS),
                measured=True,
                sent=number * 1000.0,
                first=number * 1000.0 + 0.01,
                last=number * 1000.0 + 0.01 + took,
                ended=number * 1000.0 + 0.01 + took,
                prompt_tokens=tokens,
                output_tokens=TOKENS,
                acceptance_length=2.5 if place.server is SPEC else None,
            )
        )
    return Measurement(place=place, requests=tuple(requests), late_seconds=0.0001)


def _state(spec: Step = _spec, base: Step = _base, levels: Sequence[int] = LEVELS) -> State:
    state = State(subject={}, created="2026-01-02T03:04:05+00:00")
    for name, step in ((SPEC, spec), (BASE, base)):
        state.filled[name] = [Filled(n, n, 0.01 + 5e-5 * n) for n in (100, 1000)]
        state.cells += [_measured(Place(Part.SWEEP, name, level), step) for level in levels]
    return state


def _info(name: UpstreamName, **arguments: object) -> ServerInfo:
    said = {"model_path": "tiny", "max_running_requests": 48, "context_length": 32768}
    return ServerInfo(
        name=name, url="http://engine", known=True, arguments=Fields({**said, **arguments})
    )


INFOS = {name: _info(name) for name in UpstreamName}


def _conclude(
    state: State, prompts: Sequence[Prompt] = PROMPTS, *, rate: bool = False
) -> Conclusion:
    return conclude(state, infos=INFOS, prompts=prompts, seed=0, resamples=60, rate=rate)


def test_the_crossing_of_the_curves_is_found() -> None:
    """N* and the crossover rate, each within its interval, and the file can be read again."""
    found = _conclude(_state(), rate=True).file({"begun": "today"})
    crossing = found.crossover.in_flight
    assert crossing is not None
    assert crossing.value == pytest.approx(physics.crossover(physics.FOUNDING), rel=0.15)
    assert found.crossover.tokens_per_second is not None
    assert found.servers.spec.acceptance_length == pytest.approx(2.5)
    assert found.servers.base.acceptance_length is None
    assert [cell.requests for cell in found.servers.spec.cells] == [16] * 6 + [24]
    assert parse(dump(found).encode(), "c.json") == found


def test_a_curve_is_of_steps_without_prompts() -> None:
    """The fitted time is the one that the cells were made with."""
    curve = _conclude(_state()).file({}).servers.base.decode.curve
    assert curve.seconds_per_token(4.0) == pytest.approx(_base(4.0), rel=0.05)


@pytest.mark.parametrize(
    ("factor", "kind"),
    [
        (0.3, VerdictKind.NO_CROSSOVER),
        (1.2, VerdictKind.NEVER_WINS),
        (1.0, VerdictKind.CROSSOVER),
    ],
)
def test_each_verdict_is_reached(factor: float, kind: VerdictKind) -> None:
    """Speculation that is far quicker than base, or slower than it from the start."""
    step: Step = _spec if factor == 1.0 else lambda n: factor * _base(n)
    assert _conclude(_state(step)).file({}).verdict.kind is kind


def test_what_does_not_tell_asks_for_more() -> None:
    """Two cells far apart on both sides of the crossing: cells between are wanted."""
    found = _conclude(_state(levels=(1, 12)))
    assert found.findings.verdict.kind is VerdictKind.UNDECIDED
    assert found.more
    assert all(place.part is Part.SWEEP for place in found.more)


def test_a_missing_server_is_refused() -> None:
    """Nothing is concluded from one curve."""
    state = _state()
    state.cells = list(state.of(Part.SWEEP, SPEC))
    with pytest.raises(BadDataError, match="base"):
        _conclude(state)


@pytest.mark.parametrize(
    ("slower", "topology", "hindered"),
    [(2.2, "shared", False), (1.05, "separate", False), (3.0, "shared", True)],
)
def test_both_at_once_suggest_a_topology(slower: float, topology: str, *, hindered: bool) -> None:
    """Their rates in shares of each alone: separate from 1.4 on, and warned of below 0.8."""
    state = _state()
    state.cells += [
        _measured(Place(Part.BOTH, name, 3), step, slower=slower)
        for name, step in ((SPEC, _spec), (BASE, _base))
    ]
    found = _conclude(state)
    assert found.contention is not None
    assert found.contention.sum == pytest.approx(2 / slower, rel=0.05)
    assert found.contention.topology == topology
    assert any("MPS" in note for note in found.notes) is hindered


def test_a_sum_that_is_not_sure_separates_nothing() -> None:
    """Runs that differ by a third could have made it; the safe topology is said, with a note."""
    state = _state()
    state.cells += [
        _measured(Place(Part.SWEEP, name, level), step, slower=slower)
        for name, step in ((SPEC, _spec), (BASE, _base))
        for level, slower in ((2, 1.19), (3, 0.84), (4, 1.19), (6, 0.84), (8, 1.19), (12, 0.84))
    ]
    state.cells += [
        _measured(Place(Part.BOTH, name, 3), step, slower=1.25)
        for name, step in ((SPEC, _spec), (BASE, _base))
    ]
    found = _conclude(state)
    assert found.contention is not None
    assert found.contention.sum > 1.4
    assert found.contention.topology == "shared"
    assert any("runs differ too much" in note for note in found.notes)


def test_both_are_run_at_the_crossing() -> None:
    """At the concurrency that is nearest to it; in the middle where there is none."""
    assert _conclude(_state()).contention_level == 3
    assert _conclude(_state(lambda n: 0.3 * _base(n))).contention_level == 4


def test_long_prompts_are_tried_around_the_crossing() -> None:
    """N*/2, N* and 2 N*, as far as they fit."""
    found = _conclude(_state())
    assert found.long_levels(4096, 128) == (2, 3, 6)
    assert found.long_levels(0, 128) == ()
    assert found.long_levels(20_000, 128) == ()  # over half the context
    tight = {name: _info(name, max_total_num_tokens=15_000) for name in UpstreamName}
    assert replace(found, infos=tight).long_levels(4096, 128) == (2, 3)
    tighter = {name: _info(name, max_total_num_tokens=9_000) for name in UpstreamName}
    assert replace(found, infos=tighter).long_levels(4096, 128) == ()


def test_without_a_crossing_no_long_prompts() -> None:
    """There is nothing that could move."""
    assert _conclude(_state(lambda n: 0.3 * _base(n))).long_levels(4096, 128) == ()


def _with_long(spec: Step) -> Conclusion:
    state = _state()
    state.cells += [
        _measured(Place(Part.LONG, name, level), step, tokens=4000)
        for name, step in ((SPEC, spec), (BASE, _base))
        for level in (2, 3, 6)
    ]
    return _conclude(state)


def test_long_prompts_that_change_nothing() -> None:
    """The same N*, within its interval."""
    found = _with_long(_spec).long_context
    assert found is not None
    assert found.crossover is not None
    assert found.crossover.value == pytest.approx(physics.crossover(physics.FOUNDING), rel=0.15)
    assert found.prompt_tokens == pytest.approx(4000)
    assert not found.moves


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_long_prompts_that_move_the_crossing_are_told(factor: float) -> None:
    """Speculation that is ahead, or behind, throughout."""
    found = _with_long(lambda n: factor * _base(n))
    assert found.long_context is not None
    assert found.long_context.crossover is None
    assert found.long_context.moves
    said = "calibrate with prompts like them" if factor < 1.0 else "max_spec_prompt_tokens"
    assert any(said in note for note in found.notes)


def test_long_prompts_that_do_not_tell_are_not_reported() -> None:
    """Two servers alike, with noise: neither is ahead throughout, and nothing follows."""
    found = _with_long(lambda n: 1.002 * _base(n))
    assert found.long_context is None
    assert any("not clear where the curves meet" in note for note in found.notes)


def test_the_workload_is_that_of_the_prompts() -> None:
    """Lengths as the server counted them; answers as the file says, or as they were measured."""
    state = _state()
    state.natural = {1: 50}
    text: tuple[dict[str, object], ...] = ({"role": "user", "content": "x" * 400},)
    prompts = [Prompt(text, 150), Prompt(text, None), Prompt(text, None)]
    found = _conclude(state, prompts).workload
    assert found.prompt_tokens == pytest.approx(200)
    assert found.output_tokens == pytest.approx(100)
    assert found.source == "1 prompts with the length of their answers, 1 answers measured"


def test_people_are_told_in_sentences() -> None:
    """The verdict, acceptance, both at once, long prompts, and the notes."""
    state = _state()
    state.note("a note of the measurement")
    state.cells += [
        _measured(Place(Part.BOTH, name, 3), step, slower=2.0)
        for name, step in ((SPEC, _spec), (BASE, _base))
    ]
    told = " ".join(sentences(_conclude(state).file({})))
    for part in ("Crossover at 3.", "length 2.50", "of one alone in sum", "a note of the measure"):
        assert part in told


def test_the_table_has_a_row_for_each_cell() -> None:
    """Of both servers, by what was in flight."""
    out = StringIO()
    show(_conclude(_state()).file({}), Console(file=out, width=100))
    rows = re.findall(r"^ *[\d.]+ +(?:spec|base) +\d", out.getvalue(), re.MULTILINE)
    assert len(rows) == 2 * len(LEVELS)


def test_the_page_has_curves_bands_and_the_crossing() -> None:
    """One file, with what was measured and under which conditions."""
    pytest.importorskip("matplotlib")
    state = _state()
    state.cells += [
        _measured(Place(Part.BOTH, name, 3), step, slower=2.0)
        for name, step in ((SPEC, _spec), (BASE, _base))
    ]
    found = _conclude(state)
    page = report.html("specswitch calibration", blocks(found.file({"seed": 7}), found))
    for part in ("Total output rate", "Time per output token", "N* 3.", "Both servers at once"):
        assert part in page
    assert page.count("<svg") == 2
