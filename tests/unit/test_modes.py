"""The controller by count: leave at once, return slowly, never flap."""

from dataclasses import replace
from math import inf, nan

import pytest

from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.tolerance import Bounds
from proxy.core.words import SwitchReason, Topology, UpstreamName
from tests.harness.steps import Load, Spec, ask

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

DEFAULTS = Thresholds(
    crossover=8.0,
    crossover_rate=None,
    topology=Topology.SHARED,
    tolerance=Bounds(1.5, 0.5, 3.0),
    rate_up=1.3,
    rate_down=0.9,
    fast_window=5.0,
    slow_window=30.0,
    least_acceptance=0.0,
    gate_factor=0.25,
    count_window=10.0,
    return_dwell=10.0,
    flap_limit=4,
    flap_window=60.0,
    flap_hold=60.0,
)
FOUNDING = replace(DEFAULTS, crossover=3.1)


def step(
    controller: Controller, now: float, *, n: int = 0, arriving: int = 0, usable: bool = True
) -> Switch | None:
    """Ask with `n` in flight."""
    return ask(controller, Load(n, arriving), Spec(usable, None), now)


def on_spec(thresholds: Thresholds = DEFAULTS) -> Controller:
    """One that has gone to spec at 0.0."""
    controller = Controller(thresholds, now=0.0)
    assert step(controller, 0.0) == Switch(SPEC, SwitchReason.CALM, 0.0, 0)
    return controller


def left(thresholds: Thresholds = DEFAULTS, *, at: float) -> Controller:
    """One that has left spec at `at`, with nothing in flight a moment later."""
    controller = on_spec(thresholds)
    assert step(controller, at, n=8, arriving=1) is not None
    return controller


@pytest.mark.parametrize(
    ("crossover", "gate_factor", "gate"),
    [
        (8.0, 0.25, 2.0),
        (3.1, 0.25, 1.0),
        (100.0, 0.1, 10.0),
        (inf, 0.25, inf),
        (None, 0.25, 1.0),
        (inf, 0.0, 1.0),
    ],
)
def test_calm_is_a_share_of_the_crossover(
    crossover: float | None, gate_factor: float, gate: float
) -> None:
    """And never less than one sequence, or a lone user would wait for ever."""
    assert replace(DEFAULTS, crossover=crossover, gate_factor=gate_factor).gate(None, 1.0) == gate


# Starting ----------------------------------------------------------------------------------


def test_it_starts_on_spec_when_spec_is_usable() -> None:
    """The first time it is asked with a usable spec it goes there, and not before."""
    controller = Controller(DEFAULTS, now=0.0)

    assert (controller.mode, controller.reason) == (BASE, SwitchReason.HEALTH)
    assert step(controller, 0.0, usable=False) is None
    assert step(controller, 1.0) == Switch(SPEC, SwitchReason.CALM, 1.0, 0)
    assert (controller.mode, controller.reason) == (SPEC, SwitchReason.CALM)


def test_without_a_crossover_it_stays_on_base() -> None:
    """No number is made up, and the reason says what is missing."""
    controller = Controller(replace(DEFAULTS, crossover=None), now=0.0)
    for now in (0.0, 100.0, 1e6):
        assert step(controller, now) is None

    assert (controller.mode, controller.reason) == (BASE, SwitchReason.UNCALIBRATED)


def test_without_a_limit_it_stays_on_spec() -> None:
    """A crossover at infinity: speculation always pays."""
    controller = on_spec(replace(DEFAULTS, crossover=inf))

    assert step(controller, 1.0, n=100_000, arriving=1) is None
    assert controller.mode is SPEC


# Leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crossover", "n", "arriving", "leaves"),
    [
        (4.0, 3, 1, False),
        (4.0, 4, 1, True),
        (4.0, 4, 0, False),
        (4.0, 5, 0, True),
        (3.1, 2, 1, False),
        (3.1, 3, 1, True),
        (3.9, 3, 1, True),
        (4.0, 0, 5, True),
        (1.5, 0, 2, True),
    ],
)
def test_it_leaves_with_the_first_sequence_too_many(
    *, crossover: float, n: int, arriving: int, leaves: bool
) -> None:
    """More than N* including those arriving, N* not rounded: 3.1 means three on spec."""
    controller = on_spec(replace(DEFAULTS, crossover=crossover))
    switch = step(controller, 0.0, n=n, arriving=arriving)

    assert (switch is not None) is leaves
    if switch is not None:
        assert switch == Switch(BASE, SwitchReason.IN_FLIGHT, 0.0, n + arriving)
        assert (controller.mode, controller.reason) == (BASE, SwitchReason.IN_FLIGHT)


def test_it_leaves_a_spec_that_is_gone() -> None:
    """At once, whatever the load."""
    controller = on_spec()

    assert step(controller, 0.5, n=1, arriving=1, usable=False) == Switch(
        BASE, SwitchReason.HEALTH, 0.5, 2
    )
    assert controller.reason is SwitchReason.HEALTH


# Returning ---------------------------------------------------------------------------------


def test_it_returns_when_the_dwell_is_over() -> None:
    """Not a moment before, even if nothing is in flight at all."""
    controller = left(at=5.0)

    assert step(controller, 14.999) is None
    assert step(controller, 15.0) == Switch(SPEC, SwitchReason.CALM, 15.0, 0)


def test_it_dwells_after_a_spec_that_was_gone() -> None:
    """A server that comes and goes is not followed each time."""
    controller = on_spec()
    step(controller, 5.0, usable=False)

    assert step(controller, 14.999) is None
    assert step(controller, 15.0) is not None


def test_it_does_not_return_to_a_spec_that_is_gone() -> None:
    """However calm it is."""
    controller = left(at=5.0)

    assert step(controller, 100.0, usable=False) is None
    assert step(controller, 101.0) is not None


@pytest.mark.parametrize(
    ("n", "arriving", "returns"),
    [(2, 0, True), (3, 0, False), (2, 6, True), (2, 7, False), (0, 8, True), (0, 9, False)],
)
def test_it_returns_when_few_are_in_flight(*, n: int, arriving: int, returns: bool) -> None:
    """A quarter of N* without those arriving, and those must not make it leave again."""
    controller = left(at=0.0)

    switch = step(controller, 100.0, n=n, arriving=arriving)
    assert (switch is not None) is returns
    if switch is not None:
        assert switch.in_flight == n + arriving


def test_it_returns_when_few_were_in_flight() -> None:
    """A lull is not enough: the average over the window must be low as well."""
    controller = left(at=0.0)
    controller.level(20, 0.0)
    controller.level(0, 60.0)

    assert controller.average(60.0) == pytest.approx(20.0, rel=0.01)
    assert step(controller, 60.0) is None
    assert controller.average(83.0) > 2.0
    assert step(controller, 82.0) is None
    assert controller.average(84.0) < 2.0
    assert step(controller, 84.0) is not None


def test_a_lone_user_gets_spec_back_after_a_burst() -> None:
    """One sequence that never ends holds the average above one for ever, by less and less."""
    controller = left(FOUNDING, at=0.0)
    controller.level(24, 0.0)
    controller.level(1, 30.0)

    assert step(controller, 90.0, n=1) is None
    assert step(controller, 110.0, n=1) == Switch(SPEC, SwitchReason.CALM, 110.0, 1)


def test_a_load_above_calm_does_not_return() -> None:
    """Between calm and N* the mode stays what it is, from both sides."""
    returned, stayed = left(at=0.0), on_spec()
    returned.level(5, 0.0)

    for now in range(1, 1000):
        assert step(returned, float(now), n=5) is None
        assert step(stayed, float(now), n=5) is None
    assert (returned.mode, stayed.mode) == (BASE, SPEC)


# The breaker -------------------------------------------------------------------------------


def flap(controller: Controller, times: list[float]) -> list[bool]:
    """At each time return if it will, and leave at once; whether it returned."""
    told = []
    for now in times:
        told.append(step(controller, now) is not None)
        step(controller, now, n=100)
    return told


def test_a_mode_that_flaps_is_held_on_base() -> None:
    """Two returns in the window are four changes; the third waits out the hold."""
    controller = Controller(DEFAULTS, now=0.0)

    assert flap(controller, [0.0, 20.0, 40.0]) == [True, True, False]
    assert (controller.mode, controller.reason) == (BASE, SwitchReason.FLAP)
    assert flap(controller, [60.0, 80.0, 99.9]) == [False, False, False]
    assert step(controller, 100.0) == Switch(SPEC, SwitchReason.CALM, 100.0, 0)
    assert controller.reason is SwitchReason.CALM


def test_changes_outside_the_window_are_forgotten() -> None:
    """The breaker counts what is recent; slow changes go on for ever."""
    controller = Controller(DEFAULTS, now=0.0)

    assert flap(controller, [40.0 * i for i in range(50)]) == [True] * 50


@pytest.mark.parametrize(("again_at", "returns"), [(59.9, False), (60.0, True)])
def test_a_change_is_forgotten_when_the_window_has_passed(
    *, again_at: float, returns: bool
) -> None:
    """To the moment, whatever the clock stands at."""
    controller = Controller(DEFAULTS, now=1000.0)

    assert flap(controller, [1000.0, 1020.0, 1000.0 + again_at]) == [True, True, returns]


def test_a_hold_that_ends_inside_the_window_begins_anew() -> None:
    """A short hold does not open the way past the limit."""
    controller = Controller(replace(DEFAULTS, flap_hold=5.0), now=0.0)

    assert flap(controller, [0.0, 20.0, 40.0, 45.0, 50.0]) == [True, True, False, False, False]
    assert step(controller, 59.9) is None
    assert step(controller, 64.9) is not None


def test_the_breaker_never_delays_leaving() -> None:
    """Room for the way back to base is kept when spec is entered."""
    controller = Controller(replace(DEFAULTS, flap_limit=2), now=0.0)

    assert flap(controller, [0.0]) == [True]
    assert controller.mode is BASE


@pytest.mark.parametrize("crossover", [0.0, 0.5, 0.99])
def test_below_one_it_never_pays(crossover: float) -> None:
    """With N* below one sequence a lone request is too many: no return, so no flapping."""
    controller = Controller(replace(DEFAULTS, crossover=crossover), now=0.0)
    for second in range(0, 6000, 15):
        assert step(controller, float(second)) is None

    assert controller.mode is BASE
    assert controller.reason is SwitchReason.IN_FLIGHT


def test_thresholds_that_are_withdrawn_end_speculation() -> None:
    """When N* is not known any more it goes to base at once, and says why."""
    controller = on_spec()
    controller.set_to(replace(DEFAULTS, crossover=None), 1.0)

    assert step(controller, 1.0, n=1) == Switch(BASE, SwitchReason.UNCALIBRATED, 1.0, 1)
    assert step(controller, 100.0) is None
    assert controller.reason is SwitchReason.UNCALIBRATED


@pytest.mark.parametrize("wrong", [{"flap_limit": 1}, {"crossover": -1.0}, {"crossover": nan}])
def test_impossible_thresholds_cannot_exist(wrong: dict[str, float]) -> None:
    """A limit that forbids to leave, and a crossover that is no number of sequences."""
    with pytest.raises(ValueError, match="must be at least"):
        replace(DEFAULTS, **wrong)  # type: ignore[arg-type]  # numbers all
