"""The controller by rate: the load regime decides, and what is in flight only at its ends."""

from dataclasses import replace
from math import inf

import pytest

from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.signals import EngineSignals
from proxy.core.tolerance import Bounds
from proxy.core.words import SwitchReason, Topology, UpstreamName
from tests.harness.steps import Load, Spec, ask

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
WELL = Spec(usable=True, cap=None)
CAPPED = Spec(usable=True, cap=48)

FOUNDING = Thresholds(
    crossover=3.1,
    crossover_rate=230.0,
    topology=Topology.SHARED,
    tolerance=Bounds(1.5, 0.5, 3.0),
    gate_factor=0.25,
    rate_up=1.3,
    rate_down=0.9,
    fast_window=5.0,
    slow_window=30.0,
    count_window=10.0,
    return_dwell=10.0,
    least_acceptance=1.5,
    flap_limit=4,
    flap_window=60.0,
    flap_hold=60.0,
)
TREE = replace(FOUNDING, crossover=23.0, crossover_rate=1800.0)
ALWAYS = replace(FOUNDING, crossover=inf, crossover_rate=inf)
QUEUES = EngineSignals(
    waiting=2,
    token_usage=0.4,
    acceptance_length=2.6,
    at=0.0,
    age_seconds=0.0,
    stale_after=10.0,
)


def on_spec(thresholds: Thresholds = FOUNDING, *, spec: Spec = WELL) -> Controller:
    """One that has gone to spec at 0.0."""
    controller = Controller(thresholds, now=0.0)
    assert ask(controller, Load(0), spec, 0.0) == Switch(SPEC, SwitchReason.CALM, 0.0, 0)
    return controller


def left(thresholds: Thresholds = FOUNDING, *, spec: Spec = WELL) -> Controller:
    """One that has left at 0.0 for a burst of sequences without work."""
    controller = on_spec(thresholds, spec=spec)
    assert ask(controller, Load(100), spec, 0.0) is not None
    return controller


# What is too many, and what is calm


@pytest.mark.parametrize(
    ("thresholds", "cap", "most", "gate"),
    [
        (FOUNDING, None, 4.65, 1.1625),
        (replace(FOUNDING, crossover=1.2), None, 2.0, 1.0),
        (TREE, None, 34.5, 8.625),
        (TREE, 16, 16, 4.0),
        (TREE, 1, 1, 1.0),
        (ALWAYS, None, inf, inf),
        (ALWAYS, 48, 48, 12.0),
        (replace(TREE, crossover_rate=None), 16, 23.0, 5.75),
    ],
)
def test_thresholds(thresholds: Thresholds, cap: int | None, most: float, gate: float) -> None:
    """Half above N* and at least two, never more than the server takes; and a quarter of that."""
    assert thresholds.most(cap, 1.5) == pytest.approx(most)
    assert thresholds.gate(cap, 1.5) == pytest.approx(gate)


@pytest.mark.parametrize("name", ["crossover", "crossover_rate"])
def test_thresholds_make_sense(name: str) -> None:
    """A crossover below nought cannot exist."""
    with pytest.raises(ValueError, match="at least 0"):
        replace(FOUNDING, **{name: -1.0})  # type: ignore[arg-type]  # one of its numbers


# Leaving


def test_a_few_too_many_may_pass() -> None:
    """Up to half above N* a burst that ends soon is not worth a switch."""
    controller = on_spec()
    assert ask(controller, Load(3, 1), WELL, 1.0) is None
    assert ask(controller, Load(4, 1), WELL, 1.0) == Switch(BASE, SwitchReason.IN_FLIGHT, 1.0, 5)


def test_a_server_that_takes_fewer_is_left_when_it_is_full() -> None:
    """Whatever the curves say: what it does not take would wait, or run beside it on base."""
    controller = on_spec(ALWAYS, spec=CAPPED)
    assert ask(controller, Load(47, 1), CAPPED, 1.0) is None
    assert ask(controller, Load(48, 1), CAPPED, 1.0) == Switch(
        BASE, SwitchReason.IN_FLIGHT, 1.0, 49
    )


def test_a_rising_rate_is_left_before_the_count_is_reached() -> None:
    """1.3 λ* over five seconds; the request that shows it goes to base itself."""
    controller = on_spec(TREE)
    for request in range(1, 60):
        at = request * 0.1
        switch = ask(controller, Load(8, 1, 500.0), WELL, at)
        if switch is not None:
            break
    assert switch == Switch(BASE, SwitchReason.RATE, at, 9)
    assert controller.offered_fast(at) > 1.3 * 1800.0
    assert 0.1 < at < 4.0


def test_a_high_rate_of_few_is_none_of_our_business() -> None:
    """One long answer after the other offers much, and speculation serves it best."""
    controller = on_spec()
    for request in range(20):
        assert ask(controller, Load(0, 1, 5000.0), WELL, request * 1.0) is None
    assert controller.offered_fast(19.0) > 10 * 230.0


def test_where_speculation_stops_to_pay_it_is_left() -> None:
    """A calibration that finds it never wins, read again while it served."""
    controller = on_spec()
    controller.set_to(replace(FOUNDING, crossover=0.0, crossover_rate=0.0), 1.0)
    assert ask(controller, Load(1), WELL, 1.0) == Switch(BASE, SwitchReason.IN_FLIGHT, 1.0, 1)
    assert ask(controller, Load(0), WELL, 100.0) is None
    assert controller.reason is SwitchReason.IN_FLIGHT


def test_an_engine_under_strain_is_left() -> None:
    """It queues twice in a row: the count knows nothing of what prefills cost."""
    controller = on_spec(TREE)
    controller.signals(QUEUES, 1.0)
    assert ask(controller, Load(2), WELL, 1.0) is None
    controller.signals(replace(QUEUES, at=2.0), 2.0)
    assert ask(controller, Load(2), WELL, 2.0) == Switch(BASE, SwitchReason.ENGINE, 2.0, 2)


# Returning


def test_it_returns_when_the_rate_is_low_and_nobody_is_there() -> None:
    """Not before the dwell, and then at once."""
    controller = left()
    assert ask(controller, Load(0), WELL, 9.9) is None
    assert ask(controller, Load(0), WELL, 10.0) == Switch(SPEC, SwitchReason.CALM, 10.0, 0)


def test_it_does_not_return_while_the_rate_is_high() -> None:
    """Whatever is in flight: the same load has more in flight on spec, so it would leave again."""
    controller = on_spec()
    ask(controller, Load(9, 1, 230.0 * 30.0), WELL, 0.0)
    assert controller.offered_slow(0.0) == pytest.approx(230.0)
    assert ask(controller, Load(0), WELL, 0.0 + 10.0) is not None
    again = on_spec()
    ask(again, Load(9, 1, 2.0 * 230.0 * 30.0), WELL, 0.0)
    assert ask(again, Load(0), WELL, 20.0) is None
    assert ask(again, Load(0), WELL, 30.0) is not None


def test_it_does_not_return_while_somebody_is_on_base() -> None:
    """Whoever comes next would be decoded beside him, and both would be slow."""
    controller = left()
    assert ask(controller, Load(1), WELL, 20.0) is None
    assert ask(controller, Load(1, 1), WELL, 20.0) is None
    assert ask(controller, Load(0, 1), WELL, 20.0) is not None


def test_a_larger_crossover_lets_a_few_be_there() -> None:
    """A quarter of what is too many, and whoever comes next among them.

    Half above 23 at first; a leaving that nothing confirmed has made it 15 % more.
    """
    assert ask(left(TREE), Load(9), WELL, 20.0) is None
    assert ask(left(TREE), Load(8), WELL, 20.0) is not None


def test_it_does_not_return_for_one_that_is_too_heavy() -> None:
    """A request of many sequences would leave again at once."""
    assert ask(left(ALWAYS, spec=CAPPED), Load(0, 60), CAPPED, 20.0) is None


def test_those_who_arrive_do_not_keep_themselves_away() -> None:
    """The way back is judged without their own work, or a long answer would bar it for ever."""
    controller = left()
    assert ask(controller, Load(0, 1, 1e6), WELL, 20.0) is not None


def test_strain_bars_the_way_back() -> None:
    """What drives away from speculation also keeps from it; and what is stale no longer does."""
    controller = on_spec(TREE)
    for at in (1.0, 2.0):
        controller.signals(replace(QUEUES, at=at), at)
    assert ask(controller, Load(0), WELL, 2.0) is not None
    for at in (12.0, 14.0):
        controller.signals(replace(QUEUES, at=at), at)
    assert ask(controller, Load(0), WELL, 15.0) is None
    assert ask(controller, Load(0), WELL, 24.1) is not None


def test_windows_are_as_long_as_an_answer() -> None:
    """A lone user whose answers take a minute offers half of λ*, and not ten times of it."""
    controller = left()
    controller.served_in(60.0, 0.0)
    ask(controller, Load(0, 1, 115.0 * 60.0), WELL, 1.0)
    assert controller.offered_slow(1.0) == pytest.approx(115.0, rel=0.02)
    assert controller.offered_fast(1.0) == pytest.approx(115.0, rel=0.02)


def test_windows_have_a_bound() -> None:
    """One answer of an hour must not blind it for hours; and a reload keeps what they were."""
    controller = left()
    controller.served_in(3600.0, 0.0)
    controller.set_to(replace(FOUNDING, rate_up=1.4), 0.5)
    ask(controller, Load(0, 1, 30_000.0), WELL, 1.0)
    assert controller.offered_slow(1.0) == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, 67.0, 114.0])
def test_a_lone_user_is_served_by_spec_however_much_he_offers(rate: float) -> None:
    """With a small N* one user on base may offer more than λ*; nobody else has come for 30 s."""
    controller = left(replace(FOUNDING, crossover=1.6, crossover_rate=rate))
    ask(controller, Load(0, 1, 121.0 * 30.0), WELL, 0.1)
    for second in range(1, 60):
        ask(controller, Load(0, 1, 121.0), WELL, second - 0.5)
        ask(controller, Load(0), WELL, float(second))
        if controller.mode is SPEC:
            break
    assert 30 <= second < 32


def test_a_calibration_that_ends_ends_speculation() -> None:
    """The servers are others than those that were calibrated."""
    controller = on_spec()
    controller.set_to(replace(FOUNDING, crossover=None, crossover_rate=None), 1.0)
    assert ask(controller, Load(0), WELL, 1.0) == Switch(BASE, SwitchReason.UNCALIBRATED, 1.0, 0)


# GPUs of their own


def test_separate_servers_are_both_used() -> None:
    """However much is in flight or offered: what is too many for spec spills, see route."""
    controller = on_spec(replace(FOUNDING, topology=Topology.SEPARATE))
    assert ask(controller, Load(500, 1, 1e6), WELL, 1.0) is None


def test_a_separate_spec_comes_back_under_load() -> None:
    """After its ejection there is no calm to wait for."""
    controller = on_spec(replace(FOUNDING, topology=Topology.SEPARATE))
    gone = Spec(usable=False, cap=None)
    assert ask(controller, Load(500), gone, 1.0) == Switch(BASE, SwitchReason.HEALTH, 1.0, 500)
    assert ask(controller, Load(500), WELL, 5.0) is None
    assert ask(controller, Load(500), WELL, 11.0) is not None


def test_another_cap_counts_at_once() -> None:
    """The server has come back with another one, or the configuration has changed."""
    controller = on_spec(ALWAYS)
    assert ask(controller, Load(60), WELL, 1.0) is None
    assert ask(controller, Load(60), CAPPED, 2.0) is not None


# Ends


def test_an_end_is_no_reason_to_leave() -> None:
    """There are fewer than before, so on spec it is not asked; on base it may bring spec back."""
    assert not on_spec().ended(2, 1.0)
    assert left().ended(0, 1.0)


def test_an_end_may_bring_a_judgement() -> None:
    """Back on spec with the leaving not judged yet: another tolerance may lead away."""
    controller = left(replace(TREE, return_dwell=0.0))
    assert ask(controller, Load(0), WELL, 1.0) is not None
    assert controller.ended(0, 5.0)
    ask(controller, Load(0), WELL, 10.0)
    assert not controller.ended(0, 11.0)


# What is learned


def burst(controller: Controller, at: float, *, work: float) -> None:
    """Five at once make it leave; then `work` is offered, and all goes quiet."""
    assert ask(controller, Load(5), WELL, at) is not None
    ask(controller, Load(0, 1, work), WELL, at + 5.0)
    ask(controller, Load(0), WELL, at + 10.0)


def test_after_a_burst_that_was_one_it_leaves_sooner() -> None:
    """More than λ* was offered after the leaving: next time three are too many, not five."""
    controller = on_spec()
    burst(controller, 0.0, work=230.0 * 20.0)
    assert controller.most(None) == pytest.approx(0.9 * 3.1)


def test_after_a_crowd_that_was_chance_it_leaves_later() -> None:
    """Nothing much followed: next time six may pass, and the rate may be higher."""
    controller = on_spec()
    burst(controller, 0.0, work=100.0)
    assert controller.most(None) == pytest.approx(1.725 * 3.1)


def test_the_bound_of_the_rate_goes_with_it() -> None:
    """Above λ* itself after bursts, at 1.3 times it at first, and higher where chance did it."""

    def leaves_at(controller: Controller) -> float:
        at, rate = 1000.0, 0.0
        while controller.mode is SPEC:
            at += 0.01
            ask(controller, Load(1, 1, 100.0), WELL, at)
            rate = controller.offered_fast(at)
        return rate / 230.0

    fresh, bursty, steady = on_spec(), on_spec(), on_spec()
    burst(bursty, 0.0, work=230.0 * 20.0)
    burst(steady, 0.0, work=100.0)
    for controller in (bursty, steady):
        ask(controller, Load(0), WELL, 990.0)
    assert leaves_at(fresh) == pytest.approx(1.3, abs=0.1)
    assert leaves_at(bursty) == pytest.approx(1.0, abs=0.1)
    assert leaves_at(steady) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize(
    ("thresholds", "spec"),
    [
        (replace(TREE, crossover=60.0), CAPPED),  # its cap is below what N* would allow
        (ALWAYS, CAPPED),
        (replace(FOUNDING, crossover_rate=None), WELL),
        (replace(FOUNDING, crossover_rate=0.0), WELL),
    ],
)
def test_what_n_star_did_not_decide_teaches_nothing(thresholds: Thresholds, spec: Spec) -> None:
    """A server that is full says nothing of N*, and without λ* nothing can be judged."""
    controller = on_spec(thresholds, spec=spec)
    assert ask(controller, Load(70), spec, 0.0) is not None
    ask(controller, Load(0, 1, 1e6), spec, 5.0)
    ask(controller, Load(0), spec, 10.0)
    assert controller.tolerance.share == 1.5


def test_what_was_learned_is_of_one_n_star_and_one_server() -> None:
    """Another calibration, or another server, begins anew; another constant does not."""
    controller = on_spec()
    burst(controller, 0.0, work=230.0 * 20.0)
    controller.set_to(replace(FOUNDING, rate_up=1.4), 20.0)
    assert controller.tolerance.share == pytest.approx(0.9)
    controller.set_to(replace(FOUNDING, crossover_rate=231.0), 20.0)
    assert controller.tolerance.share == 1.5
    burst_again = on_spec()
    burst(burst_again, 0.0, work=230.0 * 20.0)
    burst_again.forget_server()
    assert burst_again.tolerance.share == 1.5


# Why it is on base


def test_the_reason_is_that_of_now() -> None:
    """Uncalibrated, then calibrated under load: it is the load that keeps it on base."""
    controller = Controller(replace(FOUNDING, crossover=None, crossover_rate=None), now=0.0)
    reasons = []
    for now, thresholds in ((0.0, controller.thresholds), (1.0, FOUNDING)):
        controller.set_to(thresholds, now)
        ask(controller, Load(9), WELL, now)
        reasons.append(controller.reason)
    assert reasons == [SwitchReason.UNCALIBRATED, SwitchReason.IN_FLIGHT]
    ask(controller, Load(0, 1, 1e5), WELL, 2.0)
    assert (controller.mode, controller.reason) == (SPEC, SwitchReason.CALM)


def test_a_rate_that_keeps_it_on_base_is_the_reason() -> None:
    """Few in flight, and much offered: it was never on spec."""
    controller = Controller(FOUNDING, now=0.0)
    ask(controller, Load(9, 1, 1e5), WELL, 0.0)
    ask(controller, Load(0), WELL, 1.0)
    assert controller.reason is SwitchReason.RATE


def test_the_reason_of_a_hold_ends_with_it() -> None:
    """The breaker's word is not the last one."""
    controller = Controller(replace(FOUNDING, flap_limit=2, return_dwell=0.0), now=0.0)
    ask(controller, Load(0), WELL, 0.0)
    ask(controller, Load(9), WELL, 1.0)
    ask(controller, Load(0), WELL, 2.0)
    assert (controller.reason, controller.held_until) == (SwitchReason.FLAP, 62.0)
    ask(controller, Load(9), WELL, 62.0)
    assert controller.reason is SwitchReason.IN_FLIGHT


def test_strain_and_dwell_are_reasons_to_stay() -> None:
    """Of a server that came back."""
    controller = on_spec(TREE)
    gone = Spec(usable=False, cap=None)
    ask(controller, Load(0), gone, 1.0)
    reasons = []
    for at in (2.0, 12.0, 14.0):
        if at > 10.0:
            controller.signals(replace(QUEUES, at=at), at)
        ask(controller, Load(9), WELL, at)
        reasons.append(controller.reason)
    assert reasons == [SwitchReason.HEALTH, SwitchReason.IN_FLIGHT, SwitchReason.ENGINE]


def test_leaving_for_another_reason_teaches_nothing() -> None:
    """A server that went away says nothing of the load."""
    controller = on_spec()
    gone = Spec(usable=False, cap=None)
    assert ask(controller, Load(1), gone, 0.0) is not None
    ask(controller, Load(0, 1, 1e6), WELL, 5.0)
    ask(controller, Load(0), WELL, 10.0)
    assert controller.tolerance.share == 1.5
