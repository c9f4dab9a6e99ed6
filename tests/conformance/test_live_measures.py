"""What the controller does for clients, over HTTP on simulated GPUs: bench/live in small.

The GPUs are several times faster than real, so that it takes seconds. That makes this machine's own
time weigh more, and bounds are wider here than in the measures themselves.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest

from bench.live import low, saturation, step
from bench.live.__main__ import main
from bench.live.clients import Patience
from bench.live.finding import Finding, summaries
from bench.live.replay import Rule, leaves_at, longest_busy, moments, returns_at
from proxy.tools.asking import Sample

RULE = Rule(
    rate=100.0,
    most=4.66,
    gate=1.0,
    up=1.3,
    down=0.9,
    fast=5.0,
    slow=30.0,
    output_tokens=200.0,
)


def sample(at: float, seconds: float) -> Sample:
    """A request of 200 tokens that ended well."""
    return Sample(
        sent_at=at,
        first_token_seconds=0.1,
        last_token_seconds=seconds,
        duration_seconds=seconds,
        prompt_tokens=10,
        output_tokens=200,
        finish_reason="length",
        acceptance_length=None,
        status=200,
        error=None,
        upstream="spec",
        reason="mode",
    )


def value(found: Sequence[Finding], name: str) -> float:
    """The figure of that name."""
    (known,) = [one.value for one in found if one.name == name]
    assert known is not None
    return known


ATTEMPTS = 3
"""A machine that others keep busy fails one of them; a controller that is wrong fails all."""


@pytest.mark.slow
async def test_fast_when_alone_and_back_after_a_step(tmp_path: Path) -> None:
    """At low load as fast as always-spec; a step is followed both ways, once each, by the rule."""
    phases = ((24.0, 0.05), (40.0, 0.8), (56.0, 0.05))
    for seed in range(3, 3 + ATTEMPTS):
        quiet, stepped = await asyncio.gather(
            low.run(tmp_path, low.Settings(requests=16, levels=["poisson-10"], slower=1.25), seed),
            step.run(tmp_path, step.Settings(scale=4.0, phases=phases), seed),
        )
        wrong = [one for one in [*quiet, *stepped] if not one.holds]
        if not wrong:
            break
    assert not wrong
    assert value(quiet, "poisson-10: share served by spec") > 0.9


@pytest.mark.slow
async def test_as_much_as_base_when_full(tmp_path: Path) -> None:
    """Far above capacity it carries what the plain server does, and much more than spec."""
    short = saturation.Settings(
        scale=3.0, in_flight=32, warm_up=12.0, seconds=15.0, of_base=0.9, of_spec=1.5
    )
    for seed in range(ATTEMPTS):
        found = await saturation.run(tmp_path, short, seed)
        wrong = [one for one in found if not one.holds]
        if not wrong:
            break
    assert not wrong
    assert value(found, "saturation: switches") == 1.0


def test_the_rule_that_leaves() -> None:
    """It is the arrival that makes too many, or the one that makes the rate too high."""
    lone = [sample(30.0 * turn, 2.0) for turn in range(4)]
    assert leaves_at(list(moments(lone, RULE)), RULE, 0.0) is None
    many = [sample(100.0 + turn / 1000.0, 9.0) for turn in range(6)]
    slow = replace(RULE, rate=inf)  # only the count can speak
    assert leaves_at(list(moments(many, slow)), slow, 0.0) == 100.004
    # 40 tokens/s each; 130 are exceeded by the fourth, had they come at one time.
    assert leaves_at(list(moments(many, RULE)), RULE, 0.0) == 100.003
    assert leaves_at(list(moments(many, RULE)), RULE, 100.0045) == 100.005


def test_the_rule_that_returns() -> None:
    """It is when nothing is in flight and the slow rate has fallen below 0.9 λ*, not before."""
    burst = [sample(turn / 10.0, 20.0) for turn in range(20)]
    found = list(moments(burst, RULE))
    last = found[-1]
    due = returns_at(found, RULE, 2.0)
    assert due == last.at  # 20 x 200 / 30 = 133 tokens/s, and 20 s later already 68
    quick = replace(RULE, rate=50.0)
    later = returns_at(list(moments(burst, quick)), quick, 2.0)
    assert later is not None
    assert later - last.at == pytest.approx(30.0 * 0.4, abs=1.5)
    lone = [*burst, sample(later - 0.01, 5.0)]
    behind = returns_at(list(moments(lone, quick)), quick, 2.0)
    assert behind is not None
    assert behind >= later + 4.9


def test_the_longest_time_without_a_pause() -> None:
    """Work that comes while there is work makes it longer; what comes later begins anew."""
    assert longest_busy([]) == 0.0
    assert longest_busy([(0.0, 2.0), (1.0, 2.0), (5.0, 1.0)]) == 4.0
    assert longest_busy([(0.0, 1.0), (5.0, 3.0), (5.5, 0.25)]) == 3.25


def test_the_longest_silence() -> None:
    """It is between two looks at the clock, and it is known when it began."""
    times = iter([1.0, 1.5, 4.0, 4.1])
    patience = Patience(lambda: next(times))
    for _ in range(4):
        patience()
    assert (patience.longest, patience.began) == (2.5, 1.5)


def test_what_holds() -> None:
    """All of the interval has to be within the bounds, and what was not measured does not hold."""
    held = Finding(name="a", value=1.0, low=0.9, high=1.04, at_most=1.05)
    assert held.holds
    assert not replace(held, high=1.06).holds
    assert not replace(held, value=None).holds
    assert not Finding(name="b", value=1.79, at_least=1.8).holds
    assert Finding(name="c", value=None).holds


def test_rounds_are_summed_up() -> None:
    """The median of the rounds, all of their intervals, and a bound that one of them broke."""
    rounds = [
        [Finding(name="a", value=value, low=value - 0.1, high=value + 0.1, at_most=1.05)]
        for value in (0.9, 0.95, 1.0)
    ]
    (one,) = summaries(rounds)
    assert (one.median, one.held, one.holds) == (0.95, 2, False)
    assert one.low == pytest.approx(0.8)
    assert one.high == pytest.approx(1.1)


def test_a_step_has_the_load_that_it_is_given() -> None:
    """One request in each 1/rate seconds: as many as the load says, in order, in their phase."""
    planned = step.requests(((40.0, 0.05), (60.0, 0.8), (110.0, 0.05)), Random(0))
    times = [one.at for one in planned]
    assert times == sorted(times)
    assert len([at for at in times if at < 40.0]) == 5
    assert len([at for at in times if 40.0 <= at < 100.0]) == 137


def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 2 and names the option."""
    for words in (["--rounds", "0"], ["--measures", "high"], ["--low-scale", "inf"]):
        monkeypatch.setattr("sys.argv", ["bench.live", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert words[0] in capsys.readouterr().err


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """0 where all holds, 1 where something does not, and the object says which."""
    monkeypatch.setattr("sys.argv", ["bench.live", "--measures", "saturation", "--json"])
    for rate, code in ((1.0, 0), (0.96, 1)):

        async def measured(*_: object, rate: float = rate) -> list[Finding]:
            return [Finding(name="a", value=rate, at_least=0.97)]

        monkeypatch.setattr("bench.live.saturation.run", measured)
        assert main() == code
        found = json.loads(capsys.readouterr().out)
        assert found["holds"] is (code == 0)
        assert found["results"][0]["median"] == rate
