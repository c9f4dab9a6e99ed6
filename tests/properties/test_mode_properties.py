"""What holds of the mode under any load."""

from dataclasses import dataclass, replace
from math import inf, log

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.signals import EngineSignals
from proxy.core.tolerance import Bounds
from proxy.core.words import SwitchReason, Topology, UpstreamName
from tests.harness.steps import Load, Spec, ask

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

THRESHOLDS = st.builds(
    Thresholds,
    crossover=st.sampled_from([1.0, 3.1, 4.0, 8.5, 40.0, inf]),
    crossover_rate=st.sampled_from([None, 50.0, 230.0, 2000.0, inf]),
    topology=st.just(Topology.SHARED),
    tolerance=st.sampled_from(
        [Bounds(1.0, 1.0, 1.0), Bounds(1.5, 0.5, 3.0), Bounds(2.0, 0.1, 9.0)]
    ),
    gate_factor=st.sampled_from([0.1, 0.25, 0.5]),
    rate_up=st.sampled_from([1.0, 1.3]),
    rate_down=st.sampled_from([0.8, 0.9]),
    fast_window=st.sampled_from([2.0, 5.0]),
    slow_window=st.sampled_from([10.0, 30.0]),
    count_window=st.sampled_from([1.0, 10.0, 30.0]),
    return_dwell=st.sampled_from([0.0, 10.0, 25.0]),
    least_acceptance=st.sampled_from([0.0, 1.5]),
    flap_limit=st.integers(2, 6),
    flap_window=st.sampled_from([5.0, 60.0]),
    flap_hold=st.sampled_from([0.0, 7.0, 60.0]),
)
CAPS = st.sampled_from([None, 1, 6, 48])


@dataclass(frozen=True)
class Moment:
    """What happens next: seconds pass, then the load is another, then somebody may arrive."""

    wait: float
    in_flight: int
    arriving: int
    tokens: float
    """Output expected of each that arrives."""
    usable: bool
    waiting: int | None
    accepted: float | None
    """What the engine says of itself; nothing where both are None."""


MOMENTS = st.lists(
    st.builds(
        Moment,
        wait=st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0]),
        in_flight=st.integers(0, 3) | st.integers(0, 50),
        arriving=st.integers(0, 4),
        tokens=st.sampled_from([0.0, 1.0, 200.0, 3000.0]),
        usable=st.sampled_from([True, True, True, False]),
        waiting=st.sampled_from([None, None, 0, 3]),
        accepted=st.sampled_from([None, None, 1.1, 2.6]),
    ),
    max_size=150,
)


def play(
    controller: Controller, moments: list[Moment], *, start: float = 0.0, cap: int | None = None
) -> list[Switch | None]:
    """Let `moments` happen; what each step said."""
    now, told = start, []
    for moment in moments:
        now += moment.wait
        if moment.waiting is not None or moment.accepted is not None:
            controller.signals(signals(moment, now), now)
        controller.level(moment.in_flight, now)
        load = Load(moment.in_flight, moment.arriving, moment.arriving * moment.tokens)
        told.append(ask(controller, load, Spec(moment.usable, cap), now))
    return told


def signals(moment: Moment, now: float) -> EngineSignals:
    """What the engine says at this moment."""
    return EngineSignals(
        waiting=moment.waiting,
        token_usage=None,
        acceptance_length=moment.accepted,
        at=now,
        age_seconds=0.0,
        stale_after=10.0,
    )


@given(THRESHOLDS, CAPS, MOMENTS)
def test_too_many_are_never_on_spec(
    thresholds: Thresholds, cap: int | None, moments: list[Moment]
) -> None:
    """After every step too many in flight, or an unusable spec, means base: never delayed."""
    controller, now = Controller(thresholds, now=0.0), 0.0
    for moment in moments:
        play(controller, [moment], start=now, cap=cap)
        now += moment.wait
        most = controller.most(cap)
        if moment.in_flight + moment.arriving > most or not moment.usable:
            assert controller.mode is BASE


@given(THRESHOLDS, CAPS, st.floats(0.01, 10.0))
def test_calm_is_below_too_many(thresholds: Thresholds, cap: int | None, share: float) -> None:
    """What is calm is never what must be left at once, whatever has been learned."""
    assert thresholds.gate(cap, share) <= max(1.0, thresholds.most(cap, share))


@given(THRESHOLDS, MOMENTS)
def test_what_is_learned_has_bounds(thresholds: Thresholds, moments: list[Moment]) -> None:
    """However often it was right or wrong."""
    controller = Controller(thresholds, now=0.0)
    play(controller, moments)
    bounds = thresholds.tolerance
    assert bounds.least <= controller.tolerance.share <= bounds.most


@given(THRESHOLDS, CAPS, MOMENTS)
def test_what_is_told_is_what_changed(
    thresholds: Thresholds, cap: int | None, moments: list[Moment]
) -> None:
    """A switch is told exactly when the mode changes, with why."""
    controller, mode, now = Controller(thresholds, now=0.0), BASE, 0.0
    for moment in moments:
        (switch,) = play(controller, [moment], start=now, cap=cap)
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


def patience(thresholds: Thresholds) -> float:
    """Seconds in which it must be back once load has gone.

    The average falls from 50 to a hundredth above its gate in 9 windows, a rate from what 150
    moments can offer (12,000 tokens each) to a hundredth of λ* in 20; the poor acceptance of before
    bars the way for a minute; then the dwell, the hold and the window of the breaker may still run,
    and a hold may begin once more inside the window.
    """
    rate = thresholds.crossover_rate
    forgets = 9 * thresholds.count_window
    if rate is not None and rate < inf:
        forgets = thresholds.slow_window * log(150 * 12_000 / thresholds.slow_window / rate * 100)
    waits = thresholds.return_dwell + thresholds.flap_window + 2 * thresholds.flap_hold
    return max(0.0, forgets) + waits + 60.0


@given(
    thresholds=THRESHOLDS,
    moments=MOMENTS,
    told_again=st.booleans(),
)
def test_it_always_comes_back(
    *, thresholds: Thresholds, moments: list[Moment], told_again: bool
) -> None:
    """With nobody there any more, spec is back in bounded time."""
    controller = Controller(thresholds, now=0.0)
    now = sum(moment.wait for moment in moments)
    play(controller, moments)
    controller.level(0, now)
    for second in range(int(patience(thresholds)) + 12):  # 10 s until the last signals are stale
        if told_again:
            controller.level(0, now + second)
        ask(controller, Load(0), Spec(usable=True, cap=None), now + second)

    assert controller.mode is SPEC


@given(
    thresholds=THRESHOLDS,
    moments=MOMENTS,
    service=st.sampled_from([1.0, 20.0, 90.0, 600.0]),
    share=st.sampled_from([0.1, 0.5, 0.95, 3.0]),
)
def test_a_lone_user_is_never_kept_on_base(
    *, thresholds: Thresholds, moments: list[Moment], service: float, share: float
) -> None:
    """Nor one whose answers are long, and who asks again the moment that one has ended.

    He offers as much as one sequence gets on base, which with a small N* is above λ*.
    """
    finite = thresholds.crossover_rate is not None and thresholds.crossover_rate < inf
    rate = thresholds.crossover_rate if finite else 100.0
    assert rate is not None
    work = share * thresholds.rate_down * rate * service
    controller = Controller(thresholds, now=0.0)
    now = sum(moment.wait for moment in moments)
    play(controller, moments)
    controller.served_in(service, now)
    # Windows are as long as an answer, and he is met once in an answer.
    bound = (max(1.0, service / thresholds.slow_window) + 1.0) * patience(thresholds) + 4 * service
    end = now + bound
    came_back = False
    while now < end and not came_back:
        controller.level(1, now)
        ask(controller, Load(0, 1, work), Spec(usable=True, cap=None), now)
        for _ in range(4):
            now += service / 4
            ask(controller, Load(1), Spec(usable=True, cap=None), now)
        controller.level(0, now)
        ask(controller, Load(0), Spec(usable=True, cap=None), now)
        came_back = controller.mode is SPEC

    assert came_back


@given(THRESHOLDS, MOMENTS)
def test_on_gpus_of_its_own_load_is_no_reason_to_leave(
    thresholds: Thresholds, moments: list[Moment]
) -> None:
    """With separate GPUs both serve at once: only a spec that is unwell is left."""
    separate = replace(thresholds, topology=Topology.SEPARATE)
    for switch in play(Controller(separate, now=0.0), moments):
        if switch is not None and switch.to is BASE:
            assert switch.reason in {SwitchReason.HEALTH, SwitchReason.ENGINE}


@given(THRESHOLDS, MOMENTS)
def test_it_depends_on_what_it_was_told_only(thresholds: Thresholds, moments: list[Moment]) -> None:
    """The same calls give the same answers, and reading in between changes nothing."""
    one, other = Controller(thresholds, now=0.0), Controller(thresholds, now=0.0)
    told, now = [], 0.0
    for moment in moments:
        told += play(other, [moment], start=now)
        now += moment.wait
        other.average(now + 1000.0)
        other.offered_fast(now + 1000.0)
        other.offered_slow(now + 1000.0)
        other.strain.shows(now + 1000.0)

    assert play(one, moments) == told


@given(THRESHOLDS, CAPS, MOMENTS, st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_no_end_leads_away(
    thresholds: Thresholds, cap: int | None, moments: list[Moment], ends: list[int]
) -> None:
    """Where it says that an end changes nothing, a step at each end would have changed nothing."""
    stepped, spared = Controller(thresholds, now=0.0), Controller(thresholds, now=0.0)
    now = 0.0
    for i, moment in enumerate(moments):
        assert play(spared, [moment], start=now, cap=cap) == play(
            stepped, [moment], start=now, cap=cap
        )
        now += moment.wait
        left = moment.in_flight + moment.arriving
        for j in range(ends[i % len(ends)]):
            now += 0.05 * j
            left = max(0, left - j)
            said = spared.step(left, 0, 0.0, now) if spared.ended(left, now) else None
            assert stepped.step(left, 0, 0.0, now) == said
            assert (spared.mode, spared.reason) == (stepped.mode, stepped.reason)
            assert spared.gate(cap) == stepped.gate(cap)
            assert spared._crowded_at == stepped._crowded_at
