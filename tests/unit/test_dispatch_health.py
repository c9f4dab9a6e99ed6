"""What becomes of requests when an upstream fails, comes back, or is not what it should be."""

from dataclasses import replace

import pytest

from proxy.core.eligibility import SpecLimits
from proxy.core.places import Evidence
from proxy.core.words import (
    AdminState,
    Control,
    EjectionCause,
    Health,
    SwitchReason,
)
from proxy.errors import Overloaded, QueueTimeout
from tests.harness.pair import (
    BASE,
    IDENTITIES,
    SETTINGS,
    SPEC,
    Pair,
    need,
    only_base,
    where,
)

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
    pair.dispatcher.probe_succeeded(SPEC, None, pair.now)
    pair.down(SPEC, probes=2)
    assert pair.state(SPEC) == (Health.HEALTHY, None)
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
    pair.control(Control.SPEC)
    pair.fail(SPEC)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)
    assert pair.place().upstream is BASE
    pair.later(5.0)
    assert pair.state(SPEC) == (Health.PROBATION, None)
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
    pair.control(Control.SPEC)
    pair.fail(SPEC)
    pair.later(5.0)
    pair.end(pair.place(), evidence)
    assert pair.state(SPEC)[0] is expected
    assert pair.place().upstream is (SPEC if expected is Health.PROBATION else BASE)
    pair.later(9.9)
    assert pair.state(SPEC)[0] is expected
    pair.later(0.1)
    assert pair.state(SPEC)[0] is Health.PROBATION


def test_those_waiting_for_a_trial_follow_it() -> None:
    """With one upstream, and that in probation, one goes and the others wait for what it finds."""
    pair = Pair()
    pair.control(Control.SPEC)
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
    pair.control(Control.SPEC)
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
    assert pair.state(SPEC) == pair.state(BASE)
    assert pair.state(BASE) == (Health.EJECTED, EjectionCause.MISCONFIGURED)
    assert not pair.dispatcher.usable
    assert pair.wait()
    assert [(name, cause) for name, _, cause, _ in pair.told.health] == [
        (SPEC, EjectionCause.MISCONFIGURED),
        (BASE, EjectionCause.MISCONFIGURED),
    ]
    assert all("swapped" in detail for *_, detail in pair.told.health)
    pair.up(SPEC)
    pair.up(BASE)
    assert pair.state(SPEC) == pair.state(BASE) == (Health.HEALTHY, None)
    assert pair.dispatcher.spec.faults == ()


def test_a_mismatch_ejects_the_newcomer_only() -> None:
    """Who serves already goes on serving; the newcomer is told what differs."""
    pair = Pair(healthy=False)
    pair.up(BASE)
    pair.up(SPEC, replace(IDENTITIES[SPEC], model="another"))
    assert pair.state(BASE) == (Health.HEALTHY, None)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.MISCONFIGURED)
    assert pair.dispatcher.spec.faults == ("its model is 'another', that of base is 'tiny'",)
    assert pair.place().upstream is BASE


def test_what_is_down_condemns_nobody() -> None:
    """A pair that is exchanged for one with another model comes up, one after the other."""
    pair = Pair()
    pair.down(SPEC)
    pair.down(BASE)
    for name in (SPEC, BASE):
        pair.up(name, replace(IDENTITIES[name], model="another"), probes=2)
    assert pair.state(SPEC) == pair.state(BASE) == (Health.HEALTHY, None)


def test_what_is_ejected_for_a_time_still_stands() -> None:
    """It comes back by itself, so a newcomer has to match it."""
    pair = Pair()
    pair.down(SPEC)
    pair.fail(BASE)
    pair.up(SPEC, replace(IDENTITIES[SPEC], model="another"))
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.MISCONFIGURED)


def test_identity_is_wanted_of_all_but_the_healthy() -> None:
    """Also in probation: what comes back may be another server, and is found out."""
    pair = Pair()
    assert not pair.dispatcher.upstream(SPEC).wants_identity
    pair.control(Control.SPEC)
    pair.fail(SPEC)
    assert pair.dispatcher.upstream(SPEC).wants_identity
    pair.later(5.0)
    assert pair.dispatcher.upstream(SPEC).wants_identity
    pair.up(SPEC, IDENTITIES[BASE])
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.MISCONFIGURED)
    pair.up(SPEC, probes=2)
    assert pair.state(SPEC) == (Health.HEALTHY, None)


def test_adapters_of_both_are_known() -> None:
    """The LoRA rule asks for ids of either server."""
    pair = Pair(healthy=False)
    pair.up(BASE, replace(IDENTITIES[BASE], adapters=frozenset({"a"})))
    pair.up(SPEC, replace(IDENTITIES[SPEC], adapters=frozenset({"b"})))
    assert pair.dispatcher.adapters == frozenset({"a", "b"})


def test_whether_responses_are_stored_is_known() -> None:
    """By what either server says of itself, for as long as it says nothing else."""
    pair = Pair(healthy=False)
    found = [pair.dispatcher.store_responses]
    pair.up(SPEC)
    found.append(pair.dispatcher.store_responses)
    pair.up(BASE, replace(IDENTITIES[BASE], stores_responses=True))
    found.append(pair.dispatcher.store_responses)
    pair.down(BASE)
    found.append(pair.dispatcher.store_responses)
    pair.up(BASE)
    found.append(pair.dispatcher.store_responses)
    pair.up(SPEC, replace(IDENTITIES[SPEC], stores_responses=True))
    found.append(pair.dispatcher.store_responses)
    assert found == [False, False, True, True, False, True]


def test_what_spec_has_of_the_context_is_known() -> None:
    """The rule of the context limit asks for it; None where it is as much as base has."""
    pair = Pair()
    assert pair.dispatcher.spec_limits is None
    drafts = replace(IDENTITIES[SPEC], context_length=4096, speculative_num_draft_tokens=8)
    pair.up(SPEC, drafts)
    assert pair.dispatcher.spec_limits == SpecLimits(4096, 8)


# Silence -----------------------------------------------------------------------------------------


def frozen(pair: Pair, seconds: float) -> None:
    """Time passes, and spec's load is the same as before."""
    pair.now += seconds
    pair.dispatcher.load_read(SPEC, 1.0, pair.now)
    pair.dispatcher.tick(pair.now)


def test_a_server_with_work_and_no_sign_of_life_is_stalled() -> None:
    """It has work, its load stands still and no byte comes; it is tried again after a while."""
    pair = Pair()
    pair.dispatcher.load_read(SPEC, 1.0, pair.now)
    place = pair.place()
    frozen(pair, 29.0)
    assert pair.state(SPEC) == (Health.HEALTHY, None)
    frozen(pair, 1.0)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.STALLED)
    assert pair.told.health[-1][3] == "it has work and showed no sign of life for 30 s"
    pair.later(5.0)
    assert pair.state(SPEC) == (Health.PROBATION, None)
    frozen(pair, 29.0)
    assert pair.state(SPEC) == (Health.PROBATION, None)  # the old silence is forgiven
    frozen(pair, 1.0)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.STALLED)
    pair.end(place, Evidence.NONE)


def test_what_comes_of_an_answer_is_a_sign_of_life() -> None:
    """From the server that the lease is at; what is no load proves nothing of generation."""
    pair = Pair()
    pair.dispatcher.load_read(SPEC, 1.0, pair.now)
    place, idle = pair.place(), pair.place(need(0))
    frozen(pair, 20.0)
    place.lease.heard(pair.now)
    frozen(pair, 20.0)
    idle.lease.heard(pair.now)
    assert pair.state(SPEC) == (Health.HEALTHY, None)
    frozen(pair, 10.0)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.STALLED)
    pair.end(place)
    pair.end(idle)


def test_a_lease_of_a_slow_client_expects_nothing() -> None:
    """However often it is told; and nothing is expected once it has ended."""
    pair = Pair()
    place = pair.place(need(3))
    work = pair.dispatcher.spec.work
    place.lease.expect_no_more()
    place.lease.expect_no_more()
    assert work.expected == 0
    place.lease.expect(pair.now)
    place.lease.expect(pair.now)
    assert work.expected == 3
    pair.end(place)
    place.lease.expect(pair.now)
    assert work.expected == 0


def test_a_probe_that_hangs_while_tokens_flow_says_nothing() -> None:
    """One that is refused does, and one that was asked after the last token."""
    pair = Pair()
    place = pair.place()
    asked = pair.now
    pair.later(1.0)
    place.lease.heard(pair.now)
    for _ in range(5):
        pair.dispatcher.probe_failed(SPEC, "silent", pair.now, unanswered_since=asked)
    assert pair.state(SPEC) == (Health.HEALTHY, None)
    later = pair.now + 0.1
    for _ in range(3):
        pair.dispatcher.probe_failed(SPEC, "silent", later, unanswered_since=later)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.PROBE)
    pair.end(place)


# Reload ------------------------------------------------------------------------------------------


def test_other_settings_count_from_the_next_decision_on() -> None:
    """N*, caps, the room and the rules of health; what is in flight stays."""
    pair = Pair()
    held = pair.place()
    thresholds = replace(SETTINGS.thresholds, crossover=0.5)
    rules = replace(SETTINGS.health, fall=1)
    pair.dispatcher.apply(
        replace(SETTINGS, thresholds=thresholds, health=rules, base_cap=1, queue_size=0),
        renewed=frozenset(),
        control=Control.AUTO,
        now=pair.now,
    )
    assert pair.dispatcher.in_flight.spec == 1
    assert pair.place().upstream is BASE
    assert isinstance(pair.refusal(), Overloaded)
    pair.down(SPEC, probes=1)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.PROBE)
    pair.end(held)


def test_a_success_between_failures_begins_the_row_anew() -> None:
    """Four of five in a row, one that is well, and four more eject nobody."""
    pair = Pair()
    row = [Evidence.BAD] * 4
    for evidence in (*row, Evidence.GOOD, *row):
        pair.end(pair.place(), evidence)
    assert pair.state(SPEC) == (Health.HEALTHY, None)
    pair.end(pair.place(), Evidence.BAD)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)


def test_a_renewed_upstream_is_another_server() -> None:
    """Nothing is known of it; the operator's word stays, and what ends at the old one is not it."""
    pair = Pair()
    held = pair.place()
    pair.say(SPEC, AdminState.DRAIN)
    pair.dispatcher.apply(SETTINGS, renewed={SPEC}, control=Control.AUTO, now=pair.now)
    spec = pair.dispatcher.spec
    assert (spec.health.state, spec.identity) == (Health.EJECTED, None)
    assert (spec.admin_state, spec.work.expected) == (AdminState.DRAIN, 0)
    pair.say(SPEC, AdminState.READY)
    pair.up(SPEC)
    for _ in range(2):
        pair.end(pair.place(need(1)), Evidence.NONE)
    assert pair.dispatcher.in_flight.spec == 1
    pair.end(held, Evidence.BAD)
    assert pair.dispatcher.in_flight.spec == 0
    assert spec.health._failed_requests == 0


def test_what_a_renewal_frees_is_given_out() -> None:
    """A wider room and a higher cap help those who wait."""
    pair = Pair(replace(SETTINGS, base_cap=1))
    held = pair.place(only_base())
    _, standing = pair.wait(only_base())
    wider = replace(SETTINGS, base_cap=2)
    pair.dispatcher.apply(wider, renewed=frozenset(), control=Control.AUTO, now=pair.now)
    assert standing.place.upstream is BASE
    pair.end(held)
    pair.end(standing.place)


def test_a_rise_forgives_an_old_silence() -> None:
    """What it owed before it went down is no fault of what came back."""
    pair = Pair()
    pair.dispatcher.load_read(SPEC, 1.0, pair.now)
    place = pair.place()
    frozen(pair, 25.0)
    pair.down(SPEC)
    pair.up(SPEC, probes=2)
    frozen(pair, 10.0)
    assert pair.state(SPEC) == (Health.HEALTHY, None)
    pair.end(place)


def test_adapters_are_unknown_until_both_have_said_theirs() -> None:
    """An adapter may be loaded in the one that has not."""
    pair = Pair(healthy=False)
    pair.up(SPEC)
    assert pair.dispatcher.adapters is None
    pair.up(BASE)
    assert pair.dispatcher.adapters == frozenset()


def test_a_trial_that_speaks_has_succeeded() -> None:
    """The others need not wait for its end, which may take an hour."""
    pair = Pair()
    pair.fail(BASE)
    pair.say(SPEC, AdminState.MAINT)
    pair.later(5.0)
    trial = pair.place()
    assert trial.lease.trial
    _, waiting = pair.wait(need())
    pair.dispatcher.trial_speaks(trial.lease, pair.now)
    states = [pair.state(BASE)]
    assert waiting.place.upstream is BASE
    pair.end(trial, Evidence.BAD)
    states.append(pair.state(BASE))
    assert states == [(Health.HEALTHY, None)] * 2
    pair.end(waiting.place)


def test_what_the_old_server_did_well_says_nothing_of_the_new() -> None:
    """Its requests fail in a row, whatever still ends well at the one that was there before."""
    pair = Pair(replace(SETTINGS, health=replace(SETTINGS.health, passive_failures=2)))
    old = pair.place()
    pair.dispatcher.apply(
        pair.dispatcher.settings, renewed={SPEC}, control=Control.SPEC, now=pair.now
    )
    pair.up(SPEC)
    new = pair.fill(need(), 2)
    pair.end(new[0], Evidence.BAD)
    pair.end(old)
    pair.end(new[1], Evidence.BAD)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)


def test_a_trial_that_outlives_its_probation_heals_nobody() -> None:
    """Probes have failed meanwhile, and what ends well then was sent before."""
    pair = Pair()
    pair.control(Control.SPEC)
    pair.fail(SPEC)
    pair.later(6.0)
    trial = pair.place()
    assert trial.lease.trial
    pair.down(SPEC)
    pair.end(trial)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.PROBE)


def test_a_renewed_upstream_is_not_decided_by_what_the_old_one_was() -> None:
    """Nobody has seen it yet, so nobody is sent there, whatever the operator says."""
    pair = Pair()
    pair.dispatcher.apply(SETTINGS, renewed={SPEC}, control=Control.SPEC, now=pair.now)
    assert pair.place().upstream is BASE
    pair.up(SPEC)
    assert pair.place().upstream is SPEC
