"""The demo's traffic: where it says that requests went, in every view, and what it admits."""

import asyncio
import io
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from rich.console import Console

from proxy.app import App, running
from proxy.config import load
from proxy.errors import SpecswitchError
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from proxy.tools import traffic
from proxy.tools.traffic import Phase, State, View, show_traffic
from tests.harness.running import rig, until
from tests.harness.upstream import STREAM_HEAD, Reset, Send, Silence, chunk, event, reply

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
N_STAR = ("N*", "3.1")
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
ERASED = re.compile(r"(?:\x1b\[2K(?:\x1b\[1A)?)+")


@asynccontextmanager
async def proxied() -> AsyncIterator[App]:
    """The proxy in front of a fast simulated pair, quick to return to speculation."""
    async with SimulatedPair(PairOptions(time_scale=10.0)) as pair:
        overrides = {
            "listen.host": "127.0.0.1",
            "listen.port": 0,
            "listen.admin_port": 0,
            "upstreams.spec.url": pair.spec_url,
            "upstreams.base.url": pair.base_url,
            "policy.crossover": 3.1,
            "policy.return_dwell": 0.1,
            "policy.count_window": 0.1,
            "health.interval": 0.05,
        }
        async with running(load(file=None, env={}, overrides=overrides)) as app:
            yield app


def terminal(width: int = 80) -> tuple[Console, io.StringIO]:
    """A terminal, and what was written to it."""
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=width, height=24), out


def pipe() -> tuple[Console, io.StringIO]:
    """No terminal, and what was written to it."""
    out = io.StringIO()
    return Console(file=out, width=80, force_terminal=False), out


def assert_is_split(*, spec: int, base: int) -> None:
    """Three of a burst of 24 fit under N*; on a slow machine some have ended before the last came.

    Each that has ended makes room for one more on spec.
    """
    assert spec + base == 24
    assert 3 <= spec <= 8


@pytest.mark.slow
async def test_lines_for_a_pipe() -> None:
    """Without a terminal each part is one unbroken line, said when it is over."""
    console, out = pipe()
    async with proxied() as app:
        assert await show_traffic(app.url, app.admin_url, console) == 0
    alone, burst, again = out.getvalue().splitlines()
    assert alone.startswith("4, one at a time: 4 to spec (mode), first token ")
    split = re.search(
        r"^24 at once: (\d+) to base \(mode\), (\d+) to spec \(mode\), first token ", burst
    )
    assert split is not None
    assert_is_split(base=int(split[1]), spec=int(split[2]))
    assert burst.endswith(" in all")
    assert again.startswith("4, one at a time: 4 to spec (mode), ")


@pytest.mark.slow
async def test_objects_for_programs() -> None:
    """As JSON each part is an object in a line, terminal or not."""
    console, out = terminal()
    async with proxied() as app:
        assert await show_traffic(app.url, app.admin_url, console, view=View.JSON) == 0
    parts = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(part["asked"], part["failed"]) for part in parts] == [(4, 0), (24, 0), (4, 0)]
    went = {(each["upstream"], each["reason"]): each["requests"] for each in parts[1]["went"]}
    assert_is_split(base=went.pop(("base", "mode")), spec=went.pop(("spec", "mode")))
    assert went == {}
    for part in parts:
        assert part["first_token_seconds"] > 0
        assert part["tokens_per_second"] > part["tokens_per_second_each"] / 2 > 0


@pytest.mark.slow
async def test_a_live_view_for_a_terminal() -> None:
    """The view fits 80 columns, keeps its height, says the mode, and gives the cursor back."""
    console, out = terminal()
    async with proxied() as app:
        assert await show_traffic(app.url, app.admin_url, console, dwell=0.1) == 0
    written = out.getvalue()
    frames = [ESCAPES.sub("", frame).rstrip() for frame in ERASED.split(written)]
    assert len(frames) > 3
    assert max(len(line) for frame in frames for line in frame.splitlines()) <= 80
    assert {len(frame.splitlines()) for frame in frames} == {7}
    assert any("New requests go to spec: few are in flight" in frame for frame in frames)
    assert any(
        "New requests go to base: over N*; spec again in 1 s and at average" in f for f in frames
    )
    assert not any("the other server is not there" in frame for frame in frames)
    split = re.search(r"24 at once +24/24 +(\d+) +(\d+) +\d+ ms", frames[-1])
    assert split is not None
    assert_is_split(spec=int(split[1]), base=int(split[2]))
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "in_flight",
            "New requests go to base: over N*; spec again in 2 s and at average 1.0, now",
        ),
        ("uncalibrated", "New requests go to base: N* is not known"),
        ("engine", "New requests go to base: spec says that it has too much"),
        ("unheard-of", "New requests go to base: unheard-of"),
    ],
)
def test_the_view_of_a_burst(reason: str, said: str) -> None:
    """Each sequence is a stroke at its server's place, and the mode has its reason in words."""
    console, out = terminal()
    burst = Phase("24 at once", 24, went=Counter({("spec", "mode"): 3, ("base", "mode"): 21}))
    in_flight = {"spec": 3, "base": 21}
    state = msgspec.convert(
        {
            "mode": "base",
            "mode_reason": reason,
            "in_flight": in_flight,
            "average_in_flight": 12.34,
            "crossover": {"in_flight": 3.1},
            "gate": 1.0,
        },
        State,
    )
    console.print(traffic._drawn(traffic._picture([burst], state, 1.2)))
    lines = ESCAPES.sub("", out.getvalue()).splitlines()
    assert lines[0].startswith(said)
    assert lines[1].split() == ["In", "flight", "spec", "3", "|||", "base", "21", "|" * 21, *N_STAR]
    assert lines[4].split() == ["24", "at", "once", "0/24", "3", "21"]
    assert max(map(len, lines)) <= 80


def looked(mode: str, reason: str = "in_flight") -> State:
    """What one look at specswitch finds."""
    return msgspec.convert(
        {
            "mode": mode,
            "mode_reason": reason,
            "in_flight": {"spec": 0, "base": 0},
            "average_in_flight": 0.5,
            "crossover": {"in_flight": 3.1},
            "gate": 1.0,
        },
        State,
    )


def test_the_dwell_runs_from_the_leaving() -> None:
    """From the first look that finds another mode than spec, and once for each leaving."""
    dwell = traffic._Dwell(2.0)
    looks = [("base", 0.0), ("spec", 1.0), ("base", 3.0), ("base", 4.5), ("base", 6.0)]
    assert [dwell.left(looked(mode), at) for mode, at in looks] == [0.0, 0.0, 2.0, 0.5, 0.0]
    assert [dwell.left(looked(mode), at) for mode, at in [("spec", 7.0), ("base", 8.0)]] == [0, 2]


def test_after_the_dwell_only_calm_is_waited_for() -> None:
    """What no longer holds is not shown."""
    line = traffic._mode_line(looked("base"), 0.0).plain
    assert line == "New requests go to base: over N*; spec again at average 1.0, now 0.5"


def test_before_the_first_probes_nothing_is_missing() -> None:
    """A server that has not been looked for yet is not shown as one that is not there."""
    phases = [Phase("4, one at a time", 4)]
    assert traffic._is_starting(phases, looked("base", "health"))
    assert not traffic._is_starting(phases, looked("base", "uncalibrated"))
    phases[0].began = 1.0
    assert not traffic._is_starting(phases, looked("base", "health"))


@pytest.mark.parametrize(
    ("value", "shown"), [(3.14, "3.1"), ("Infinity", "Infinity"), (None, "unknown")]
)
def test_numbers_that_are_none(value: float | str | None, shown: str) -> None:
    """What JSON has no number for is shown as a word."""
    assert traffic._number(value) == shown


async def test_a_view_that_is_still_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes that is shown nothing is written: it would only flicker."""
    looks = 0
    look = traffic._Asking.state

    async def counted(asking: traffic._Asking) -> State:
        nonlocal looks
        looks += 1
        return await look(asking)

    monkeypatch.setattr(traffic._Asking, "state", counted)
    console, out = terminal()
    async with rig() as it:
        it.spec.always(Silence())
        showing = asyncio.get_running_loop().create_task(
            show_traffic(it.app.url, it.app.admin_url, console)
        )
        await until(lambda: "spec  1 |" in ESCAPES.sub("", out.getvalue()), "one is in flight")
        looked, written = looks, out.getvalue()
        await until(lambda: looks >= looked + 4, "it looks on")
        assert out.getvalue() == written
        showing.cancel()
        await asyncio.wait({showing}, timeout=5)
        assert showing.done()


@pytest.mark.slow
async def test_a_narrow_terminal_keeps_the_height() -> None:
    """Lines are cut rather than wrapped, or the view would jump."""
    console, out = terminal(width=50)
    async with proxied() as app:
        await show_traffic(app.url, app.admin_url, console)
    frames = [ESCAPES.sub("", frame).rstrip() for frame in ERASED.split(out.getvalue())]
    assert max(len(line) for frame in frames for line in frame.splitlines()) <= 50
    assert {len(frame.splitlines()) for frame in frames} == {7}


@pytest.mark.parametrize("width", [20, 50, 80])
def test_no_number_makes_the_view_higher(width: int) -> None:
    """However long a row becomes, in a terminal of any width."""
    phases = [Phase("24 at once", 24, failed=failed) for failed in (0, 17)]
    for phase in phases:
        phase.first_token, phase.rates, phase.tokens = [123.456], [12345.6], 10**9
        phase.began, phase.ended = 0.0, 1.0
    console, out = terminal(width)
    console.print(traffic._drawn(traffic._picture(phases, looked("base"), 12.0)))
    lines = ESCAPES.sub("", out.getvalue()).splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    "steps",
    [
        (Send(reply(b"{}", status="500 Internal Server Error")),),
        (Send(reply(b"{}")),),
        (Send(STREAM_HEAD + chunk(event({"choices": []}))), Reset()),
        (Send(STREAM_HEAD + chunk(USAGE)), Reset()),
    ],
    ids=["refused", "no stream", "broken off", "broken off after its usage"],
)
async def test_what_fails_is_counted(steps: tuple[Send | Reset, ...]) -> None:
    """An answer that is an error, no stream or half a stream is no success."""
    console, out = pipe()
    async with rig(
        policy__return_dwell=0.1,
        policy__count_window=0.1,
        health__passive_failures=1000,  # ejection is not what this is about
    ) as it:
        it.spec.always(*steps)
        it.base.always(*steps)
        await until(lambda: it.app.dispatcher.mode == "spec", "speculation is on")
        assert await show_traffic(it.app.url, it.app.admin_url, console) == 32
    assert "4 failed" in out.getvalue()
    assert "24 failed" in out.getvalue()
    assert "first token" not in out.getvalue()


async def test_nobody_there_is_said() -> None:
    """An address without specswitch is an error with words, in a view too."""
    console, out = terminal()
    async with proxied() as app:
        url, admin_url = app.url, app.admin_url
    with pytest.raises(SpecswitchError, match="specswitch does not answer: ConnectError"):
        await show_traffic(url, admin_url, console)
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")


@pytest.mark.parametrize("console", [terminal()[0], pipe()[0]], ids=["terminal", "pipe"])
async def test_a_mode_that_does_not_come_is_said(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where speculation does not return it does not wait for ever."""
    monkeypatch.setattr(traffic, "_PATIENCE_SECONDS", 0.3)
    async with rig(policy__crossover=0.0) as it:
        with pytest.raises(SpecswitchError, match=r"still base \(uncalibrated\) after 0.3 s"):
            await show_traffic(it.app.url, it.app.admin_url, console)


async def test_it_can_be_stopped_at_any_time() -> None:
    """Stopped in the middle it leaves no task and the cursor where it was."""
    console, out = terminal()
    before = asyncio.all_tasks()
    async with proxied() as app:
        inside = asyncio.all_tasks()
        showing = asyncio.get_running_loop().create_task(
            show_traffic(app.url, app.admin_url, console)
        )
        await until(lambda: "4/4" in out.getvalue(), "it has begun")
        showing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await showing
        assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")
        await until(lambda: app.front.open_requests == 0, "no request is left")
        assert not {task for task in asyncio.all_tasks() - inside if "play" in repr(task)}
    assert asyncio.all_tasks() == before


def test_a_phase_that_has_not_begun_knows_nothing() -> None:
    """Unknown is shown as nothing and told as null."""
    phase = Phase("4, one at a time", 4)
    assert phase.rate is None
    told = json.loads(traffic._object(phase))
    assert told["tokens_per_second"] is None
    assert told["first_token_seconds"] is None


def test_a_phase_counts_by_upstream() -> None:
    """Reasons are added up where only the upstream is shown."""
    went = Counter({("spec", "mode"): 3, ("base", "mode"): 20, ("base", "full"): 1})
    phase = Phase("24 at once", 24, went=went)
    assert (phase.to("spec"), phase.to("base")) == (3, 21)
