"""What holds of the mode under any load."""

from dataclasses import dataclass
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.words import SwitchReason, UpstreamName

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

THRESHOLDS = st.builds(
    Thresholds,
    crossover=st.sampled_from([1.0, 3.1, 4.0, 8.5, 40.0, inf]),
    gate_factor=st.sampled_from([0.1, 0.25, 0.5]),
    count_window=st.sampled_from([1.0, 10.0, 30.0]),
    return_dwell=st.sampled_from([0.0, 10.0, 25.0]),
    flap_limit=st.integers(2, 6),
    flap_window=st.sampled_from([5.0, 60.0]),
    flap_hold=st.sampled_from([0.0, 7.0, 60.0]),
)


@dataclass(frozen=True)
class Moment:
    """What happens next: seconds pass, then the load is another, then somebody may arrive."""

    wait: float
    in_flight: int
    arriving: int
    usable: bool


MOMENTS = st.lists(
    st.builds(
        Moment,
        wait=st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0]),
        in_flight=st.integers(0, 3) | st.integers(0, 50),
        arriving=st.integers(0, 4),
        usable=st.sampled_from([True, True, True, False]),
    ),
    max_size=150,
)


def play(
    controller: Controller, moments: list[Moment], *, start: float = 0.0
) -> list[Switch | None]:
    """Let `moments` happen; what each step said."""
    now, told = start, []
    for moment in moments:
        now += moment.wait
        controller.level(moment.in_flight, now)
        told.append(
            controller.step(
                in_flight=moment.in_flight,
                arriving=moment.arriving,
                spec_usable=moment.usable,
                now=now,
            )
        )
    return told


@given(THRESHOLDS, MOMENTS)
def test_too_many_are_never_on_spec(thresholds: Thresholds, moments: list[Moment]) -> None:
    """After every step more than N*, or an unusable spec, means base: leaving is never delayed."""
    controller, now = Controller(thresholds, now=0.0), 0.0
    for moment in moments:
        play(controller, [moment], start=now)
        now += moment.wait
        assert thresholds.crossover is not None
        if moment.in_flight + moment.arriving > thresholds.crossover or not moment.usable:
            assert controller.mode is BASE


@given(THRESHOLDS, MOMENTS)
def test_what_is_told_is_what_changed(thresholds: Thresholds, moments: list[Moment]) -> None:
    """A switch is told exactly when the mode changes, with why."""
    controller, mode, now = Controller(thresholds, now=0.0), BASE, 0.0
    for moment in moments:
        (switch,) = play(controller, [moment], start=now)
        now += moment.wait
        assert (switch is not None) is (controller.mode is not mode)
        mode = controller.mode
        if switch is not None:
            assert (switch.to, switch.reason, switch.at) == (mode, controller.reason, now)
            calm = switch.reason is SwitchReason.CALM
            assert calm is (mode is SPEC)


@given(THRESHOLDS, MOMENTS)
def test_it_never_returns_within_the_dwell(thresholds: Thresholds, moments: list[Moment]) -> None:
    """Between leaving and returning lies `return_dwell` at least."""
    left_at = -inf
    for switch in play(Controller(thresholds, now=0.0), moments):
        if switch is None:
            continue
        if switch.to is BASE:
            left_at = switch.at
        else:
            assert switch.at - left_at >= thresholds.return_dwell


@given(THRESHOLDS, MOMENTS)
def test_it_never_flaps(thresholds: Thresholds, moments: list[Moment]) -> None:
    """No window of `flap_window` seconds holds more than `flap_limit` changes."""
    told = play(Controller(thresholds, now=0.0), moments)
    times = [switch.at for switch in told if switch is not None]
    for i, first in enumerate(times):
        within = [at for at in times[i:] if at - first < thresholds.flap_window]
        assert len(within) <= thresholds.flap_limit


@given(
    thresholds=THRESHOLDS,
    moments=MOMENTS,
    load=st.sampled_from([0, 1]),
    told_again=st.booleans(),
)
def test_it_always_comes_back(
    *, thresholds: Thresholds, moments: list[Moment], load: int, told_again: bool
) -> None:
    """With nobody there, or one whose output never ends, spec is back in bounded time.

    The average falls from 50 to a hundredth above its gate in 9 windows; then the dwell, the hold
    and the window of the breaker may still run, and a hold may begin once more inside the window.
    """
    controller = Controller(thresholds, now=0.0)
    now = sum(moment.wait for moment in moments)
    play(controller, moments)
    controller.level(load, now)
    bound = (
        9 * thresholds.count_window
        + thresholds.return_dwell
        + thresholds.flap_window
        + 2 * thresholds.flap_hold
    )
    for second in range(int(bound) + 3):
        if told_again:
            controller.level(load, now + second)
        controller.step(in_flight=load, arriving=0, spec_usable=True, now=now + second)

    assert controller.mode is SPEC


@given(THRESHOLDS, MOMENTS)
def test_it_depends_on_what_it_was_told_only(thresholds: Thresholds, moments: list[Moment]) -> None:
    """The same calls give the same answers, and reading the average in between changes nothing."""
    one, other = Controller(thresholds, now=0.0), Controller(thresholds, now=0.0)
    told, now = [], 0.0
    for moment in moments:
        told += play(other, [moment], start=now)
        now += moment.wait
        other.average(now + 1000.0)

    assert play(one, moments) == told
