"""The pair and its waiting room: who may go where, who waits for what, and who is told when."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from proxy.core.dispatch import Evidence, Place, Settings, Ticket
from proxy.core.health import HealthRules
from proxy.core.identity import Identity
from proxy.core.inflight import LeaseError
from proxy.core.route import Need
from proxy.core.words import (
    AdminState,
    Control,
    EjectionCause,
    Health,
    RetryCause,
    SwitchReason,
    UpstreamName,
)
from proxy.errors import (
    Draining,
    Ineligible,
    NoUpstream,
    Overloaded,
    QueueTimeout,
    Refusal,
)
from tests.harness.pair import (
    BASE,
    IDENTITIES,
    SETTINGS,
    SPEC,
    UNCALIBRATED,
    Pair,
    Standing,
    model_path,
    need,
    only_base,
    prefers_base,
)

ONE_EACH = replace(SETTINGS, spec_cap=1, base_cap=1)
SMALL_BASE = replace(SETTINGS, base_cap=4)


def control(pair: Pair, word: Control) -> None:
    """The operator says `word`."""
    pair.dispatcher.set_control(word, by="the test", now=pair.now)


def say(pair: Pair, name: UpstreamName, state: AdminState) -> None:
    """The operator says what is to become of an upstream."""
    pair.dispatcher.set_admin_state(name, state, pair.now)


def state(pair: Pair, name: UpstreamName) -> tuple[Health, EjectionCause | None]:
    """What is thought of an upstream's health."""
    health = pair.dispatcher.upstream(name).health
    return health.state, health.cause


def where(places: list[Place]) -> list[UpstreamName]:
    """The upstreams of `places`."""
    return [place.upstream for place in places]


# The burst ---------------------------------------------------------------------------------------


def test_of_a_burst_the_first_go_to_spec_and_the_rest_to_base() -> None:
    """With N* = 4 a burst of 24 puts exactly four on spec, and none is refused or waits."""
    pair = Pair()
    places = pair.fill(need(), 24)
    assert where(places) == [SPEC] * 4 + [BASE] * 20
    assert {place.reason for place in places} == {"mode"}
    assert [place.mode for place in places] == where(places)
    assert (pair.dispatcher.in_flight.spec, pair.dispatcher.in_flight.base) == (4, 20)
    assert [(s.to, s.reason) for s in pair.told.switches] == [
        (SPEC, SwitchReason.CALM),
        (BASE, SwitchReason.IN_FLIGHT),
    ]


def test_sequences_count_and_not_requests() -> None:
    """A request of five sequences is above N* = 4 by itself, one of four is not."""
    assert Pair().place(need(5)).upstream is BASE
    assert Pair().place(need(4)).upstream is SPEC


def test_after_the_burst_new_requests_return_to_spec() -> None:
    """Ten calm seconds after leaving, the mode is spec again; not before."""
    pair = Pair()
    for place in pair.fill(need(), 24):
        pair.end(place)
    pair.later(9.9)
    assert pair.dispatcher.mode is BASE
    pair.later(0.1)
    assert pair.dispatcher.mode is SPEC
    assert pair.dispatcher.mode_reason is SwitchReason.CALM
    assert pair.place().upstream is SPEC


def test_load_that_lasted_keeps_the_mode_on_base() -> None:
    """The return asks for a low average: after thirty busy seconds a calm one is not enough."""
    pair = Pair()
    places = pair.fill(need(), 6)
    pair.later(30.0)
    for place in places:
        pair.end(place)
    pair.later(1.0)
    assert [pair.dispatcher.mode] == [BASE]
    pair.later(20.0)
    assert [pair.dispatcher.mode] == [SPEC]


def test_the_burst_that_waited_counts_as_the_one_that_came() -> None:
    """Of 24 that waited for the pair to start, four go to spec: being placed is arriving."""
    pair = Pair(replace(SETTINGS, queue_size=24), healthy=False)
    say(pair, BASE, AdminState.DRAIN)
    pair.up(BASE)
    say(pair, SPEC, AdminState.DRAIN)
    pair.up(SPEC)
    waiters = [pair.wait()[1] for _ in range(24)]
    # Both at once: the operator's word for spec is the last thing that was missing.
    pair.dispatcher.base.admin_state = AdminState.READY
    say(pair, SPEC, AdminState.READY)
    assert where([waiter.place for waiter in waiters]) == [SPEC] * 4 + [BASE] * 20


def test_without_calibration_all_goes_to_base() -> None:
    """No N*, no speculation, and the reason says why."""
    pair = Pair(UNCALIBRATED)
    place = pair.place()
    assert (place.upstream, place.reason) == (BASE, "uncalibrated")
    assert pair.dispatcher.mode_reason is SwitchReason.UNCALIBRATED


# Leases ------------------------------------------------------------------------------------------


def test_a_place_is_given_back_once() -> None:
    """A second end of the same place is a fault that is seen, and changes nothing."""
    pair = Pair()
    place = pair.place(need(3))
    other = pair.place()
    pair.end(place)
    with pytest.raises(LeaseError):
        pair.end(place)
    assert pair.dispatcher.in_flight.total == 1
    pair.end(other)
    assert pair.dispatcher.in_flight.total == 0


def test_every_place_is_told() -> None:
    """The observer hears each decision with its reason."""
    pair = Pair()
    pair.place(only_base())
    pair.place(need(override=BASE))
    pair.place(model_path())
    assert pair.told.decisions == [(BASE, "eligibility:min_p"), (BASE, "override"), (BASE, "mode")]


# Waiting -----------------------------------------------------------------------------------------


def test_a_place_that_comes_free_goes_to_who_has_waited_longest() -> None:
    """First come, first served, and each is told once."""
    pair = Pair(ONE_EACH)
    control(pair, Control.BASE)
    held = pair.place()
    _, first = pair.wait()
    _, second = pair.wait()
    pair.end(held)
    assert first.place.upstream is BASE
    assert not second.told
    pair.end(first.place)
    assert second.place.upstream is BASE
    pair.end(second.place)
    assert pair.dispatcher.in_flight.total == 0
    assert not len(pair.dispatcher.room)


def test_who_cannot_use_a_place_is_passed_over() -> None:
    """A base-only request in front does not block one that can use spec."""
    pair = Pair(ONE_EACH)
    held = pair.place()
    pair.place(only_base())
    _, front = pair.wait(only_base())
    _, behind = pair.wait()
    pair.end(held)
    assert behind.place.upstream is SPEC
    assert not front.told


def test_a_newcomer_passes_those_who_wait_for_another_place() -> None:
    """Who waits for base keeps nobody from spec."""
    pair = Pair(SMALL_BASE)
    pair.place(only_base(4))
    pair.wait(only_base())
    assert pair.place(need(override=SPEC)).upstream is SPEC


def test_nobody_overtakes_for_the_same_place() -> None:
    """A heavy request is not starved: light ones that came later wait behind it."""
    pair = Pair(SMALL_BASE)
    held = pair.fill(only_base(), 4)
    _, heavy = pair.wait(only_base(4))
    _, light = pair.wait(only_base())
    for place in held[:3]:
        pair.end(place)
    late = pair.come(only_base())
    assert isinstance(late, Ticket)
    assert not heavy.told
    assert not light.told
    pair.end(held[3])
    assert heavy.place.lease.weight == 4
    assert not light.told
    pair.end(heavy.place)
    assert light.place.upstream is BASE


def test_over_all_places_nobody_is_overtaken_either() -> None:
    """What waits for any place of the pair keeps all behind it waiting."""
    pair = Pair(replace(SETTINGS, max_in_flight=4))
    held = pair.fill(need(), 4)
    _, heavy = pair.wait(need(3))
    _, light = pair.wait(need(override=SPEC))
    pair.end(held[0])
    assert not light.told
    assert isinstance(pair.come(only_base()), Ticket)
    for place in held[1:3]:
        pair.end(place)
    assert heavy.place.lease.weight == 3
    assert not light.told


def test_what_is_no_load_waits_behind_nobody() -> None:
    """Model paths pass a full pair and a line of waiting requests."""
    pair = Pair(replace(SETTINGS, max_in_flight=4, base_cap=2))
    held = pair.place(only_base(2))
    pair.wait(only_base(2))
    pair.wait(need(4))
    assert pair.place(model_path()).upstream is BASE
    _, state_call = Standing(), pair.place(only_base(0))
    assert state_call.upstream is BASE
    pair.end(held)


def test_what_is_no_load_is_placed_from_behind_the_line() -> None:
    """A call without load that waited for base is placed when base comes, past a heavy one."""
    pair = Pair(replace(SETTINGS, max_in_flight=4))
    pair.down(BASE)
    pair.place(need(2))
    _, heavy = pair.wait(need(3))
    _, call = pair.wait(only_base(0))
    pair.up(BASE, probes=2)
    assert call.place.upstream is BASE
    assert not heavy.told


def test_who_leaves_is_not_told_and_holds_nobody_up() -> None:
    """A departed client frees its stand; those behind it get what it kept them from."""
    pair = Pair(SMALL_BASE)
    pair.fill(only_base(), 3)
    ticket, heavy = pair.wait(only_base(4))
    _, light = pair.wait(only_base())
    pair.dispatcher.leave(ticket, pair.now)
    assert light.place.upstream is BASE
    assert not heavy.told
    pair.dispatcher.leave(ticket, pair.now)
    assert len(pair.dispatcher.room) == 0


def test_who_waited_too_long_holds_nobody_up() -> None:
    """When a heavy request's patience ends, those behind it are asked at once."""
    pair = Pair(SMALL_BASE)
    pair.fill(only_base(), 3)
    _, heavy = pair.wait(only_base(4))
    pair.later(1.0)
    _, light = pair.wait(only_base())
    pair.later(29.0)
    assert isinstance(heavy.refusal, QueueTimeout)
    assert light.place.upstream is BASE


def test_an_empty_room_keeps_nobody_waiting() -> None:
    """After the last one waiting was refused, a newcomer takes the place that it waited for."""
    pair = Pair(SMALL_BASE)
    pair.fill(only_base(), 3)
    pair.wait(only_base(4))
    pair.later(30.0)
    assert pair.place(only_base()).upstream is BASE


def test_those_waiting_come_first_when_time_changes_the_mode() -> None:
    """A newcomer whose arrival shows that load is calm does not overtake one that waits."""
    pair = Pair(replace(SETTINGS, base_cap=1, spec_cap=1))
    for place in pair.fill(need(), 2):
        pair.end(place)
    control(pair, Control.BASE)
    held = pair.place()
    control(pair, Control.AUTO)
    pair.dispatcher.controller.step(in_flight=9, arriving=0, spec_usable=True, now=pair.now)
    _, waiting = pair.wait()
    pair.now += 10.0
    _, newcomer = pair.wait()
    assert waiting.place.upstream is SPEC
    assert not newcomer.told
    pair.end(held)
    assert newcomer.place.upstream is BASE


def test_queue_timeout() -> None:
    """After `queue_timeout` one is refused, with counts and when to come back."""
    pair = Pair(ONE_EACH)
    pair.place()
    pair.place(only_base())
    _, waiting = pair.wait()
    pair.later(29.9)
    assert not waiting.told
    pair.later(0.1)
    refusal = waiting.refusal
    assert isinstance(refusal, QueueTimeout)
    assert refusal.retry_after == 1
    assert refusal.message == (
        "no place came free within 30 s: 1 of 8 waiting, "
        "1 sequences in flight on spec and 1 on base, 2048 allowed"
    )


def test_the_waiting_room_has_an_end() -> None:
    """Past `queue_size` one is refused at once, with counts and when to come back."""
    pair = Pair(replace(ONE_EACH, queue_size=1, max_in_flight=2))
    pair.place()
    pair.place(only_base())
    pair.wait()
    refusal = pair.refusal()
    assert isinstance(refusal, Overloaded)
    assert refusal.retry_after == 1
    assert refusal.message == (
        "the waiting room is full: 1 of 1 waiting, "
        "1 sequences in flight on spec and 1 on base, 2 allowed"
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (replace(ONE_EACH, queue_size=0), Overloaded),
        (replace(ONE_EACH, queue_timeout=0.0), QueueTimeout),
    ],
)
def test_waiting_can_be_switched_off(settings: Settings, kind: type[Refusal]) -> None:
    """With no room or no time to wait, who finds no place is refused at once."""
    pair = Pair(settings)
    pair.place()
    pair.place(only_base())
    assert isinstance(pair.refusal(), kind)


def test_draining_serves_those_who_wait() -> None:
    """Shutting down takes nothing new; who waits already still gets a place."""
    pair = Pair(ONE_EACH)
    held = pair.place(only_base())
    _, waiting = pair.wait(only_base())
    pair.dispatcher.drain()
    assert isinstance(pair.refusal(), Draining)
    pair.end(held)
    assert waiting.place.upstream is BASE


# No upstream -------------------------------------------------------------------------------------


def test_before_the_first_probe_one_waits() -> None:
    """At start nothing is usable yet; the first good probe serves those waiting."""
    pair = Pair(healthy=False)
    _, waiting = pair.wait()
    usable = [pair.dispatcher.usable]
    pair.up(SPEC)
    usable.append(pair.dispatcher.usable)
    assert usable == [False, True]
    assert (waiting.place.upstream, waiting.place.reason) == (SPEC, "health")


def test_before_the_first_probe_one_does_not_wait_for_ever() -> None:
    """`wait_for_upstream` runs from the start; after it those who come are refused at once."""
    pair = Pair(healthy=False)
    _, waiting = pair.wait()
    pair.later(9.9)
    assert not waiting.told
    pair.later(0.1)
    for refusal in (waiting.refusal, pair.refusal()):
        assert isinstance(refusal, NoUpstream)
        assert refusal.retry_after == 5
        assert refusal.message == (
            "no upstream was usable for 10 s: spec is ejected, base is ejected"
        )


def test_patience_runs_from_when_the_last_one_went() -> None:
    """Later failures of what is down already do not begin it anew, a recovery does."""
    pair = Pair()
    pair.later(100.0)
    pair.down(SPEC)
    pair.later(5.0)
    pair.down(BASE)
    _, waiting = pair.wait()
    pair.later(6.0)
    say(pair, SPEC, AdminState.DRAIN)
    pair.down(BASE)
    assert not waiting.told
    pair.later(4.0)
    assert isinstance(waiting.refusal, NoUpstream)
    assert waiting.refusal.message.endswith("spec is set to drain, base is ejected (probe)")
    pair.up(BASE, probes=2)
    pair.down(BASE)
    assert isinstance(pair.come(), Ticket)


def test_queue_timeout_may_come_first() -> None:
    """Whichever patience ends first counts, also with no upstream."""
    pair = Pair(replace(SETTINGS, queue_timeout=3.0), healthy=False)
    _, waiting = pair.wait()
    pair.later(3.0)
    assert isinstance(waiting.refusal, QueueTimeout)


def test_base_only_waits_for_base() -> None:
    """With base down, base-only requests wait as for any upstream, then are told the rule."""
    pair = Pair()
    pair.down(BASE)
    _, waiting = pair.wait(only_base())
    assert pair.place(prefers_base()).upstream is SPEC
    pair.later(10.0)
    for refusal in (waiting.refusal, pair.refusal(only_base())):
        assert isinstance(refusal, Ineligible)
        assert refusal.retry_after == 5
        assert refusal.message == (
            "only base may serve this request (min_p): spec is healthy, base is ejected (probe)"
        )


def test_base_only_is_told_its_rule_also_when_nothing_is_usable() -> None:
    """That base is gone is all it needs to know, whether it has waited or has just come."""
    pair = Pair(healthy=False)
    _, waiting = pair.wait(only_base())
    pair.later(10.0)
    assert isinstance(waiting.refusal, Ineligible)
    assert isinstance(pair.refusal(only_base()), Ineligible)


def test_without_base_others_wait_for_spec() -> None:
    """That base is long gone is no reason to refuse what spec will have a place for."""
    pair = Pair(ONE_EACH)
    pair.down(BASE)
    pair.later(10.0)
    held = pair.place()
    _, waiting = pair.wait()
    pair.later(10.0)
    pair.end(held)
    assert waiting.place.upstream is SPEC


def test_base_only_is_served_when_base_is_back() -> None:
    """In drain it waits, and `ready` serves it."""
    pair = Pair()
    say(pair, BASE, AdminState.DRAIN)
    _, waiting = pair.wait(only_base())
    pair.later(9.0)
    say(pair, BASE, AdminState.READY)
    assert (waiting.place.upstream, waiting.place.reason) == (BASE, "eligibility:min_p")


def test_in_maint_base_only_is_refused_at_once() -> None:
    """Maintenance is no moment's absence: who comes and who waits already is refused."""
    pair = Pair()
    say(pair, BASE, AdminState.DRAIN)
    _, waiting = pair.wait(only_base())
    _, another = pair.wait(only_base(2))
    say(pair, BASE, AdminState.MAINT)
    for refusal in (waiting.refusal, another.refusal, pair.refusal(only_base())):
        assert isinstance(refusal, Ineligible)
        assert refusal.message.endswith("spec is healthy, base is set to maint")


# Health ------------------------------------------------------------------------------------------


def test_when_spec_dies_base_takes_all() -> None:
    """Failed probes eject it; the mode, the reasons and the observer say so."""
    pair = Pair()
    pair.down(SPEC)
    place = pair.place()
    assert (place.upstream, place.reason, place.mode) == (BASE, "health", BASE)
    assert pair.told.switches[-1].reason is SwitchReason.HEALTH
    pair.up(SPEC, probes=2)
    assert pair.told.health[2:] == [
        (SPEC, Health.EJECTED, EjectionCause.PROBE, "it is silent"),
        (SPEC, Health.HEALTHY, None, ""),
    ]


def test_what_is_healthy_is_probed_without_a_word() -> None:
    """A good probe needs no identity then, tells nobody, and begins the count of failures anew."""
    pair = Pair()
    pair.down(SPEC, probes=2)
    pair.dispatcher.probed(SPEC, good=True, identity=None, detail="", now=pair.now)
    pair.down(SPEC, probes=2)
    assert state(pair, SPEC) == (Health.HEALTHY, None)
    assert len(pair.told.health) == 2


def test_when_base_dies_spec_takes_all_and_the_mode_says_so() -> None:
    """However much is in flight: one upstream takes all."""
    pair = Pair()
    pair.fill(need(), 5)
    assert pair.dispatcher.mode is BASE
    pair.down(BASE)
    assert (pair.dispatcher.mode, pair.dispatcher.mode_reason) == (SPEC, SwitchReason.HEALTH)
    assert where(pair.fill(need(), 20)) == [SPEC] * 20


def test_with_neither_in_service_the_mode_stays() -> None:
    """There is no other to name."""
    pair = Pair()
    pair.down(SPEC)
    pair.down(BASE)
    assert pair.dispatcher.mode is BASE


def test_requests_that_fail_eject_and_probation_lets_one_in() -> None:
    """Five in a row eject for five seconds; then one request may try, and its success heals."""
    pair = Pair()
    control(pair, Control.SPEC)
    pair.fail(SPEC)
    assert state(pair, SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)
    assert pair.place().upstream is BASE
    pair.later(5.0)
    assert state(pair, SPEC) == (Health.PROBATION, None)
    trial = pair.place()
    assert trial.upstream is SPEC
    assert pair.place().upstream is BASE
    pair.end(trial)
    assert where(pair.fill(need(), 3)) == [SPEC] * 3
    assert [(h, detail) for _, h, _, detail in pair.told.health[2:]] == [
        (Health.EJECTED, "its requests failed"),
        (Health.PROBATION, "its ejection is over; one request may try it"),
        (Health.HEALTHY, "its trial request succeeded"),
    ]


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [(Evidence.NONE, Health.PROBATION), (Evidence.BAD, Health.EJECTED)],
)
def test_a_trial_that_does_not_succeed(evidence: Evidence, expected: Health) -> None:
    """One that says nothing lets the next one try, one that fails ejects for twice as long."""
    pair = Pair()
    control(pair, Control.SPEC)
    pair.fail(SPEC)
    pair.later(5.0)
    pair.end(pair.place(), evidence)
    assert state(pair, SPEC)[0] is expected
    assert pair.place().upstream is (SPEC if expected is Health.PROBATION else BASE)
    pair.later(9.9)
    assert state(pair, SPEC)[0] is expected
    pair.later(0.1)
    assert state(pair, SPEC)[0] is Health.PROBATION


def test_those_waiting_for_a_trial_follow_it() -> None:
    """With one upstream, and that in probation, one goes and the others wait for what it finds."""
    pair = Pair()
    control(pair, Control.SPEC)
    pair.fail(SPEC)
    pair.down(BASE)
    _, first = pair.wait()
    _, second = pair.wait()
    pair.later(5.0)
    assert first.place.lease.trial
    assert not second.told
    pair.end(first.place)
    assert second.place.upstream is SPEC
    assert not second.place.lease.trial


def test_a_trial_is_waited_for_no_longer_than_any_place() -> None:
    """What is in probation counts as there: `queue_timeout` ends the wait, not `no_upstream`."""
    pair = Pair()
    control(pair, Control.SPEC)
    pair.fail(SPEC)
    pair.down(BASE)
    pair.later(5.0)
    pair.place()
    _, waiting = pair.wait()
    pair.later(29.9)
    assert not waiting.told
    pair.later(0.1)
    assert isinstance(waiting.refusal, QueueTimeout)


# Identity ----------------------------------------------------------------------------------------


def test_a_swapped_pair_is_unusable_until_mended() -> None:
    """Spec and base exchanged: both misconfigured, said loudly once, and healed when mended."""
    pair = Pair(healthy=False)
    for _ in range(3):
        pair.up(SPEC, IDENTITIES[BASE])
        pair.up(BASE, IDENTITIES[SPEC])
    assert state(pair, SPEC) == state(pair, BASE)
    assert state(pair, BASE) == (Health.EJECTED, EjectionCause.MISCONFIGURED)
    assert not pair.dispatcher.usable
    assert pair.wait()
    assert [(name, cause) for name, _, cause, _ in pair.told.health] == [
        (SPEC, EjectionCause.MISCONFIGURED),
        (BASE, EjectionCause.MISCONFIGURED),
    ]
    assert all("swapped" in detail for *_, detail in pair.told.health)
    pair.up(SPEC)
    pair.up(BASE)
    assert state(pair, SPEC) == state(pair, BASE) == (Health.HEALTHY, None)
    assert pair.dispatcher.spec.faults == ()


def test_a_mismatch_ejects_the_newcomer_only() -> None:
    """Who serves already goes on serving; the newcomer is told what differs."""
    pair = Pair(healthy=False)
    pair.up(BASE)
    pair.up(SPEC, replace(IDENTITIES[SPEC], model="another"))
    assert state(pair, BASE) == (Health.HEALTHY, None)
    assert state(pair, SPEC) == (Health.EJECTED, EjectionCause.MISCONFIGURED)
    assert pair.dispatcher.spec.faults == ("its model is 'another', that of base is 'tiny'",)
    assert pair.place().upstream is BASE


def test_what_is_down_condemns_nobody() -> None:
    """A pair that is exchanged for one with another model comes up, one after the other."""
    pair = Pair()
    pair.down(SPEC)
    pair.down(BASE)
    for name in (SPEC, BASE):
        pair.up(name, replace(IDENTITIES[name], model="another"), probes=2)
    assert state(pair, SPEC) == state(pair, BASE) == (Health.HEALTHY, None)


def test_what_is_ejected_for_a_time_still_stands() -> None:
    """It comes back by itself, so a newcomer has to match it."""
    pair = Pair()
    pair.down(SPEC)
    pair.fail(BASE)
    pair.up(SPEC, replace(IDENTITIES[SPEC], model="another"))
    assert state(pair, SPEC) == (Health.EJECTED, EjectionCause.MISCONFIGURED)


def test_identity_is_wanted_of_all_but_the_healthy() -> None:
    """Also in probation: what comes back may be another server, and is found out."""
    pair = Pair()
    assert not pair.dispatcher.wants_identity(SPEC)
    control(pair, Control.SPEC)
    pair.fail(SPEC)
    assert pair.dispatcher.wants_identity(SPEC)
    pair.later(5.0)
    assert pair.dispatcher.wants_identity(SPEC)
    pair.up(SPEC, IDENTITIES[BASE])
    assert state(pair, SPEC) == (Health.EJECTED, EjectionCause.MISCONFIGURED)
    pair.up(SPEC, probes=2)
    assert state(pair, SPEC) == (Health.HEALTHY, None)


def test_adapters_of_both_are_known() -> None:
    """The LoRA rule asks for ids of either server."""
    pair = Pair(healthy=False)
    pair.up(BASE, replace(IDENTITIES[BASE], adapters=frozenset({"a"})))
    pair.up(SPEC, replace(IDENTITIES[SPEC], adapters=frozenset({"b"})))
    assert pair.dispatcher.adapters == {"a", "b"}


# Caps --------------------------------------------------------------------------------------------

REPORTING = replace(IDENTITIES[SPEC], max_running_requests=48, graph_ceiling=3)


@pytest.mark.parametrize(
    ("configured", "identity", "cap"),
    [
        (None, None, None),
        (None, REPORTING, 3),
        (None, Identity(known=False), None),
        (0, REPORTING, None),
        (5, REPORTING, 5),
    ],
)
def test_the_cap(configured: int | None, identity: Identity | None, cap: int | None) -> None:
    """The configuration's, or what the server reports; 0 is none."""
    pair = Pair(replace(SETTINGS, spec_cap=configured), healthy=False)
    if identity is not None:
        pair.up(SPEC, identity)
    assert pair.dispatcher.spec.cap == cap


def test_spec_full_goes_to_base() -> None:
    """Spec takes what its cap allows, the rest is base's, with the reason."""
    pair = Pair(replace(SETTINGS, spec_cap=2))
    places = pair.fill(need(), 3)
    assert [(p.upstream, p.reason) for p in places] == [
        (SPEC, "mode"),
        (SPEC, "mode"),
        (BASE, "full"),
    ]


def test_the_pair_has_a_limit() -> None:
    """`max_in_flight` counts sequences over both; a request above it goes to an idle pair."""
    pair = Pair(replace(SETTINGS, max_in_flight=4))
    held = [pair.place(need(2)), pair.place(only_base(2))]
    _, waiting = pair.wait()
    pair.end(held[0])
    assert waiting.place
    pair.end(held[1])
    pair.end(waiting.place)
    assert pair.place(need(9)).lease.weight == 9
    assert isinstance(pair.come(), Ticket)


# Control and mode --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "upstream"), [(Control.SPEC, SPEC), (Control.BASE, BASE), (Control.OBSERVE, BASE)]
)
def test_control(word: Control, upstream: UpstreamName) -> None:
    """The operator's word decides, and what the controller wants is still computed."""
    pair = Pair()
    control(pair, word)
    places = pair.fill(need(), 24)
    assert {(place.upstream, place.reason) for place in places} == {(upstream, "control")}
    assert (pair.dispatcher.mode, pair.dispatcher.mode_reason) == (upstream, SwitchReason.CONTROL)
    assert pair.dispatcher.control_set_by == "the test"
    assert pair.dispatcher.controller.mode is BASE
    # It is told apart only where the mode does not follow it.
    assert [s.to for s in pair.told.wishes] == ([] if upstream is BASE else [BASE])
    assert len(pair.told.switches) == 1 + (upstream is BASE)
    control(pair, Control.AUTO)
    assert pair.dispatcher.mode is BASE
    assert pair.place().reason == "mode"


def test_the_observer_is_told_that_it_was_the_operator() -> None:
    """Also when the word is taken back: load has changed nothing."""
    pair = Pair()
    control(pair, Control.BASE)
    control(pair, Control.AUTO)
    assert [(s.to, s.reason) for s in pair.told.switches[1:]] == [
        (BASE, SwitchReason.CONTROL),
        (SPEC, SwitchReason.CONTROL),
    ]


def test_control_yields_to_health() -> None:
    """A survivor takes all, also against the operator's word; the mode says where they go."""
    pair = Pair()
    control(pair, Control.SPEC)
    pair.down(SPEC)
    assert (pair.dispatcher.mode, pair.dispatcher.mode_reason) == (BASE, SwitchReason.HEALTH)
    assert (pair.place().upstream, pair.place().reason) == (BASE, "health")


def test_control_moves_those_who_wait() -> None:
    """A word of the operator gives those waiting the places that it opens."""
    pair = Pair(replace(SETTINGS, base_cap=1))
    control(pair, Control.BASE)
    pair.place()
    _, waiting = pair.wait()
    control(pair, Control.SPEC)
    assert (waiting.place.upstream, waiting.place.reason) == (SPEC, "control")


def test_override() -> None:
    """The client's word decides where the operator has none, up to the cap."""
    pair = Pair(replace(SETTINGS, spec_cap=1))
    places = pair.fill(need(override=SPEC), 2)
    assert [(p.upstream, p.reason) for p in places] == [(SPEC, "override"), (BASE, "full")]


def test_seconds_in_each_mode() -> None:
    """They add up to the time that has passed, up to now."""
    pair = Pair()
    pair.later(7.0)
    pair.fill(need(), 5)
    pair.later(3.0)
    assert pair.dispatcher.mode_seconds(SPEC, pair.now) == 7.0
    assert pair.dispatcher.mode_seconds(BASE, pair.now) == 3.0


# Retry -------------------------------------------------------------------------------------------


def retry(
    pair: Pair,
    place: Place,
    cause: RetryCause,
    wanted: Need | None = None,
    evidence: Evidence = Evidence.NONE,
) -> Place | None:
    """The request that has `place` asks for one at the other upstream."""
    return pair.dispatcher.retry(place, wanted or need(), cause, evidence, pair.now)


@pytest.mark.parametrize(
    ("start", "cause"),
    [
        (SPEC, RetryCause.CONNECT),
        (SPEC, RetryCause.REFUSAL),
        (BASE, RetryCause.CONNECT),
    ],
)
def test_a_retry_exchanges_the_place(start: UpstreamName, cause: RetryCause) -> None:
    """Connects are retried both ways, refusals from spec to base; the first place is free."""
    pair = Pair()
    first = pair.place(need(override=start))
    second = retry(pair, first, cause)
    assert second is not None
    assert (second.upstream, second.reason) == (start.other, "retry")
    assert not first.lease.open
    assert pair.dispatcher.in_flight.at(start) == 0
    assert pair.dispatcher.in_flight.at(start.other) == 1
    assert pair.told.retries == [cause]
    assert pair.told.decisions[-1] == (start.other, "retry")


@dataclass(frozen=True)
class Denied:
    """A retry for which there is no place."""

    name: str
    wanted: Need
    cause: RetryCause
    base_cap: int = 0
    spec_cap: int = 0
    down: UpstreamName | None = None


DENIED = (
    Denied("base-only never to spec", only_base(), RetryCause.CONNECT),
    Denied("a refusal by base not to spec", need(override=BASE), RetryCause.REFUSAL),
    Denied("base full", need(override=SPEC), RetryCause.REFUSAL, base_cap=1),
    Denied("spec full", need(override=BASE), RetryCause.CONNECT, spec_cap=1),
    Denied("spec down", need(override=BASE), RetryCause.CONNECT, down=SPEC),
    Denied("base down", need(override=SPEC), RetryCause.CONNECT, down=BASE),
)


@pytest.mark.parametrize("row", DENIED, ids=lambda row: row.name)
def test_without_a_place_there_is_no_retry(row: Denied) -> None:
    """The first place stays, and nobody is told of a retry."""
    pair = Pair(replace(SETTINGS, base_cap=row.base_cap, spec_cap=row.spec_cap))
    first = pair.place(row.wanted)
    pair.place(need(override=first.upstream.other))
    if row.down is not None:
        pair.down(row.down)
    assert retry(pair, first, row.cause, row.wanted) is None
    assert first.lease.open
    assert pair.told.retries == []
    pair.end(first)


def test_a_place_that_another_waits_for_is_not_free() -> None:
    """A retry does not overtake a heavy request that waits for base to empty."""
    pair = Pair(SMALL_BASE)
    pair.place(only_base())
    pair.wait(only_base(4))
    first = pair.place(need(override=SPEC))
    assert retry(pair, first, RetryCause.REFUSAL) is None
    pair.down(BASE, probes=2)
    pair.dispatcher.set_admin_state(BASE, AdminState.DRAIN, pair.now)
    call = pair.place(model_path())
    assert call.upstream is SPEC
    pair.dispatcher.set_admin_state(BASE, AdminState.READY, pair.now)
    assert retry(pair, call, RetryCause.CONNECT, model_path()) is not None


def test_what_is_no_load_is_retried_on_a_full_upstream() -> None:
    """A model path needs no place."""
    pair = Pair(replace(SETTINGS, spec_cap=1))
    pair.place(need(2))
    first = pair.place(model_path())
    second = retry(pair, first, RetryCause.CONNECT, model_path())
    assert second is not None
    assert second.upstream is SPEC


def test_the_place_that_a_retry_leaves_goes_to_who_waits() -> None:
    """It is free at once."""
    pair = Pair(replace(SETTINGS, base_cap=1))
    first = pair.place(need(override=BASE))
    _, waiting = pair.wait(only_base())
    assert retry(pair, first, RetryCause.CONNECT)
    assert waiting.place.upstream is BASE


def test_a_retry_teaches_what_the_first_attempt_said() -> None:
    """A connect that failed counts against its upstream."""
    health = replace(SETTINGS.health, passive_failures=1)
    pair = Pair(replace(SETTINGS, health=health))
    retry(pair, pair.place(need(override=SPEC)), RetryCause.CONNECT, evidence=Evidence.BAD)
    assert state(pair, SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)


def test_a_retry_may_be_the_trial() -> None:
    """In probation a retry takes the one place, and a refused trial gives it back."""
    pair = Pair()
    pair.fail(BASE)
    pair.later(5.0)
    others = pair.fill(need(override=SPEC), 2)
    trial = retry(pair, others[0], RetryCause.REFUSAL)
    assert trial is not None
    assert trial.lease.trial
    assert retry(pair, others[1], RetryCause.REFUSAL) is None
    assert retry(pair, trial, RetryCause.CONNECT) is not None
    assert retry(pair, others[1], RetryCause.REFUSAL) is not None


# Being told, and acting on it at once ------------------------------------------------------------


class Ending(Standing):
    """One who ends as soon as it has its place."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair

    def placed(self, place: Place) -> None:
        """End."""
        super().placed(place)
        self.pair.end(place)


class Following(Standing):
    """One whose next request arrives as soon as it is told of this one."""

    def __init__(self, pair: Pair, wanted: Need) -> None:
        super().__init__()
        self.pair = pair
        self.wanted = wanted
        self.next = Standing()
        self.answer: Place | Ticket | Refusal | None = None

    def placed(self, place: Place) -> None:
        """Come again."""
        super().placed(place)
        self.answer = self.pair.come(self.wanted, self.next)

    def refused(self, refusal: Refusal) -> None:
        """Come again."""
        super().refused(refusal)
        self.answer = self.pair.come(self.wanted, self.next)


class Acting(Standing):
    """One that does something else when it is told."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act

    def placed(self, place: Place) -> None:
        """Do it."""
        super().placed(place)
        self.act()

    def refused(self, refusal: Refusal) -> None:
        """Do it."""
        super().refused(refusal)
        self.act()


def test_who_ends_when_told_loses_nothing() -> None:
    """Eight that end within being placed are all served, in order, by one place."""
    pair = Pair(ONE_EACH)
    held = pair.place(only_base())
    waiters = [Ending(pair) for _ in range(8)]
    for waiter in waiters:
        assert isinstance(pair.come(only_base(), waiter), Ticket)
    pair.end(held)
    assert [waiter.place.upstream for waiter in waiters] == [BASE] * 8
    assert pair.dispatcher.in_flight.total == 0
    assert len(pair.dispatcher.room) == 0
    assert pair.place(only_base()).upstream is BASE


def test_who_comes_again_when_told_is_asked_in_its_turn() -> None:
    """It neither overtakes those behind it, nor is it forgotten when there is room."""
    pair = Pair(replace(SETTINGS, base_cap=3))
    held = pair.place(only_base(3))
    first = Following(pair, only_base())
    pair.come(only_base(), first)
    _, second = pair.wait(only_base())
    pair.end(held)
    assert isinstance(first.answer, Ticket)
    assert first.place.lease.since == second.place.lease.since
    assert pair.told.decisions[-3:] == [(BASE, "eligibility:min_p")] * 3
    assert first.next.place.upstream is BASE


def test_who_comes_again_when_refused_is_asked_in_its_turn() -> None:
    """A client whose request waited too long, and whose next one can be served, is served."""
    pair = Pair(SMALL_BASE)
    pair.fill(only_base(), 3)
    first = Following(pair, only_base())
    pair.come(only_base(4), first)
    pair.later(30.0)
    assert isinstance(first.refusal, QueueTimeout)
    assert isinstance(first.answer, Ticket)
    assert first.next.place.upstream is BASE


def test_who_comes_again_when_told_does_not_overtake() -> None:
    """Those who waited for spec take base when it comes; the next request of the first is last."""
    pair = Pair(replace(SETTINGS, spec_cap=1, base_cap=2))
    pair.down(BASE)
    pair.place()
    first = Following(pair, need())
    pair.come(need(), first)
    _, second = pair.wait()
    pair.up(BASE, probes=2)
    assert where([first.place, second.place]) == [BASE, BASE]
    assert first.next.told == []


def test_what_is_freed_behind_one_who_waits_is_offered_to_it() -> None:
    """One that was passed over gets the place that a later one frees when it is told."""
    pair = Pair(ONE_EACH)
    at_spec, at_base = pair.place(), pair.place(only_base())
    _, front = pair.wait(only_base())
    pair.come(need(), Acting(lambda: pair.end(at_base)))
    pair.end(at_spec)
    assert front.place.upstream is BASE


def test_who_leaves_while_another_is_told_is_not_told() -> None:
    """A place is not given to one who has just gone, and the next one gets it."""
    pair = Pair(replace(SETTINGS, base_cap=2))
    held = pair.place(only_base(2))
    first = Acting(lambda: pair.dispatcher.leave(leaving, pair.now))
    pair.come(only_base(), first)
    leaving, gone = pair.wait(only_base())
    _, third = pair.wait(only_base())
    pair.end(held)
    assert first.place
    assert gone.told == []
    assert third.place


def test_who_is_placed_while_others_are_refused_is_not_refused() -> None:
    """Time is over for all three; what the first one's departure frees is the last one's."""
    pair = Pair(SMALL_BASE)
    pair.fill(only_base(), 3)
    first = Acting(lambda: pair.dispatcher.leave(leaving, pair.now))
    pair.come(only_base(4), first)
    leaving, gone = pair.wait(only_base(4))
    _, last = pair.wait(only_base())
    pair.later(30.0)
    assert isinstance(first.refusal, QueueTimeout)
    assert gone.told == []
    assert last.place.upstream is BASE


def test_health_rules_are_the_settings() -> None:
    """Each upstream is judged by the rules that were given."""
    rules = HealthRules(fall=1, rise=1, passive_failures=1, ejection=1.0)
    pair = Pair(replace(SETTINGS, health=rules))
    pair.down(SPEC, probes=1)
    assert state(pair, SPEC) == (Health.EJECTED, EjectionCause.PROBE)


def states(pair: Pair) -> list[Health]:
    """What base is taken for."""
    return [pair.dispatcher.base.health.state]


def test_model_paths_prove_nothing_of_generation() -> None:
    """An engine whose scheduler is dead still counts tokens; that does not make it healthy."""
    pair = Pair()
    control(pair, Control.BASE)
    for _ in range(SETTINGS.health.passive_failures):
        pair.end(pair.place(), Evidence.BAD)
        pair.end(pair.place(model_path()), Evidence.GOOD)
    assert states(pair) == [Health.EJECTED]
    pair.down(SPEC)
    pair.later(SETTINGS.health.ejection)
    assert states(pair) == [Health.PROBATION]
    pair.end(pair.place(model_path()), Evidence.GOOD)
    assert states(pair) == [Health.PROBATION]
    pair.end(pair.place(), Evidence.GOOD)
    assert states(pair) == [Health.HEALTHY]


def test_a_switch_tells_the_load_that_it_was_decided_on() -> None:
    """With N* = 4 the fifth is one too many: the switch says 5, not the 4 that were there."""
    pair = Pair()
    pair.fill(need(), 5)

    assert [(s.to, s.in_flight) for s in pair.told.switches] == [(SPEC, 0), (BASE, 5)]
    assert not pair.told.wishes
