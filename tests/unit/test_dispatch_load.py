"""The pair and its load: what is offered, what an answer teaches, whose calibration counts."""

from dataclasses import replace
from math import inf

import pytest

from proxy.core.curves import Curve
from proxy.core.fingerprint import Fingerprint
from proxy.core.identity import Identity
from proxy.core.places import Answer, Evidence, Settings
from proxy.core.route import Reason
from proxy.core.signals import EngineSignals
from proxy.core.words import Control, RetryCause, SwitchReason, Topology, UpstreamName
from tests.harness.pair import BASE, IDENTITIES, SETTINGS, SPEC, Pair, model_path, need, only_base

CURVE = Curve(fixed=0.01, per_sequence=0.001, bend=0.0, to=64.0)
RATED = replace(
    SETTINGS,
    thresholds=replace(SETTINGS.thresholds, crossover_rate=230.0),
    expected_tokens=200.0,
    curves={SPEC: CURVE, BASE: CURVE},
)
SEPARATE = replace(
    RATED, thresholds=replace(RATED.thresholds, topology=Topology.SEPARATE, crossover=2.9)
)
MADE_FOR: dict[UpstreamName, Fingerprint] = {
    SPEC: {"model": "tiny", "speculative_algorithm": "EAGLE3"},
    BASE: {"model": "tiny"},
}


def offered(pair: Pair) -> float:
    """Output tokens/s over the fast window, at this moment."""
    return pair.dispatcher.controller.offered_fast(pair.now)


# Offered work


def test_work_is_sequences_times_their_expected_length() -> None:
    """Three of 200 tokens over 5 s, whoever serves them."""
    pair = Pair(RATED)
    pair.place(need(3))
    assert offered(pair) == pytest.approx(120.0)
    pair.place(only_base())
    assert offered(pair) == pytest.approx(160.0)


def test_what_is_no_load_offers_nothing() -> None:
    """Model paths make no tokens."""
    pair = Pair(RATED)
    pair.place(model_path())
    assert offered(pair) == 0.0


def test_work_is_counted_once_however_long_it_waits() -> None:
    """Not again when a place comes, nor when it goes out a second time."""
    pair = Pair(replace(RATED, base_cap=1, spec_cap=1))
    pair.control(Control.BASE)
    first = pair.place()
    _, standing = pair.wait()
    before = offered(pair)
    pair.end(first)
    retried = pair.dispatcher.retry(
        standing.place, need(), RetryCause.CONNECT, Evidence.NONE, pair.now
    )
    assert retried is not None
    assert offered(pair) == before == pytest.approx(80.0)


def test_what_is_refused_was_offered() -> None:
    """Clients that are refused still want to be served: the load is what they ask for."""
    pair = Pair(replace(RATED, base_cap=1, queue_size=0))
    pair.control(Control.BASE)
    pair.place()
    pair.refusal()
    assert offered(pair) == pytest.approx(80.0)


def test_without_a_length_there_is_no_work() -> None:
    """Nothing is made up: the count decides until answers tell."""
    pair = Pair(replace(RATED, expected_tokens=None))
    pair.place()
    assert offered(pair) == 0.0


# What an answer teaches


def answer(pair: Pair, told: Answer, *, seconds: float = 1.0, weight: int = 1) -> None:
    """One request that is served for `seconds` and ends well."""
    place = pair.place(need(weight))
    pair.now += seconds
    pair.dispatcher.end(place.lease, Evidence.GOOD, pair.now, told)


def test_usage_teaches_the_expected_length() -> None:
    """For each sequence."""
    pair = Pair(RATED)
    for _ in range(10):
        answer(pair, Answer(100, None), weight=2)
    assert pair.dispatcher.lengths.output_tokens == pytest.approx(50.0)


def test_what_failed_teaches_nothing() -> None:
    """Half an answer is no length, and a fault no service time."""
    pair = Pair(RATED)
    place = pair.place()
    pair.now += 5.0
    pair.dispatcher.end(place.lease, Evidence.BAD, pair.now, Answer(3, 1.0))
    lengths = pair.dispatcher.lengths
    assert (lengths.output_tokens, lengths.service_seconds) == (200.0, 0.0)


def test_answers_without_usage_are_noticed() -> None:
    """Where hardly any carries it, those that do no longer speak for all."""
    pair = Pair(RATED)
    for _ in range(30):
        answer(pair, Answer(1000, None))
    pair.dispatcher.lengths_read(90.0 * 30, 30)
    assert pair.dispatcher.lengths.output_tokens == pytest.approx(1000.0)
    for _ in range(200):
        answer(pair, Answer(None, None))
    assert pair.dispatcher.lengths.output_tokens == pytest.approx(90.0)


def test_counters_of_engines_teach_it_too() -> None:
    """Where responses carry no usage."""
    pair = Pair(RATED)
    pair.dispatcher.lengths_read(90.0 * 30, 30)
    assert pair.dispatcher.lengths.output_tokens == 90.0


def test_windows_follow_how_long_answers_take() -> None:
    """200 tokens over a minute, not over 5 s."""
    pair = Pair(RATED)
    answer(pair, Answer(None, None), seconds=60.0)
    pair.later(1000.0)
    pair.place()
    assert offered(pair) == pytest.approx(200.0 / 60.0, rel=0.01)


def test_speed_is_watched_while_the_other_is_idle() -> None:
    """Beside what the curve says for as much as was in flight."""
    pair = Pair(RATED)
    for _ in range(20):
        answer(pair, Answer(None, 0.022))
    assert pair.dispatcher.drift[SPEC].ratio == pytest.approx(2.0)
    assert pair.dispatcher.drift[BASE].ratio is None


def test_speed_with_both_active_says_nothing() -> None:
    """Two on one GPU slow each other down."""
    pair = Pair(replace(RATED, expected_tokens=1.0))
    for _ in range(20):
        other = pair.place(only_base())
        answer(pair, Answer(None, 0.022))
        pair.end(other)
    assert pair.told.decisions.count((SPEC, Reason.MODE)) == 20
    assert pair.dispatcher.drift[SPEC].ratio is None


def test_an_answer_of_no_time_says_nothing() -> None:
    """Nothing can be divided by it."""
    pair = Pair(RATED)
    for _ in range(20):
        answer(pair, Answer(None, 0.022), seconds=0.0)
    assert pair.dispatcher.drift[SPEC].ratio is None


def test_speed_is_looked_at_ten_times_a_second() -> None:
    """A thousand answers a second tell no more than ten."""
    pair = Pair(RATED)
    for _ in range(19):
        answer(pair, Answer(None, 0.022))
    for _ in range(40):  # within half of a tenth of a second
        answer(pair, Answer(None, 0.022), seconds=1 / 1024)
    assert pair.dispatcher.drift[SPEC].ratio is None
    pair.later(1.0)
    answer(pair, Answer(None, 0.022))
    assert pair.dispatcher.drift[SPEC].ratio is not None


def test_nothing_to_compare_with_is_no_drift() -> None:
    """Without a calibration there is no watch."""
    pair = Pair()
    answer(pair, Answer(10, 0.022))
    assert pair.dispatcher.drift == {}


def test_another_calibration_begins_the_watch_anew() -> None:
    """And another server; the same one does not."""
    pair = Pair(RATED)
    before = pair.dispatcher.drift

    def apply(settings: Settings) -> None:
        pair.dispatcher.apply(settings, renewed=set(), control=Control.AUTO, now=pair.now)

    apply(replace(RATED, queue_size=3))
    assert pair.dispatcher.drift is before
    apply(replace(RATED, curves={SPEC: replace(CURVE, fixed=0.02)}))
    assert set(pair.dispatcher.drift) == {SPEC}
    before = pair.dispatcher.drift
    pair.dispatcher.apply(
        pair.dispatcher.settings, renewed={SPEC}, control=Control.AUTO, now=pair.now
    )
    assert pair.dispatcher.drift is not before


def test_a_mode_that_is_held_is_told_once() -> None:
    """An operator must see that the breaker has spoken."""
    limited = replace(RATED.thresholds, flap_limit=2, return_dwell=0.0, flap_hold=30.0)
    pair = Pair(replace(RATED, thresholds=limited))
    for place in pair.fill(need(), 9):
        pair.end(place)
    for _ in range(40):
        pair.later(0.25)
    assert pair.dispatcher.mode is BASE
    assert pair.told.holds == [30.0]
    assert pair.dispatcher.mode_reason is SwitchReason.FLAP


# Signals


def test_strain_of_spec_sends_to_base() -> None:
    """At the reading that shows it, before anybody arrives."""
    pair = Pair(RATED)
    full = EngineSignals(
        waiting=0,
        token_usage=0.95,
        acceptance_length=None,
        at=pair.now,
        age_seconds=0.0,
        stale_after=10.0,
    )
    pair.dispatcher.signals_read(BASE, full, pair.now)
    assert pair.place().upstream is SPEC
    pair.dispatcher.signals_read(SPEC, full, pair.now)
    assert pair.dispatcher.mode_reason is SwitchReason.ENGINE
    assert pair.place().upstream is BASE


def test_strain_is_of_the_server_that_was_there() -> None:
    """Another one has shown none."""
    pair = Pair(RATED)
    full = EngineSignals(
        waiting=0,
        token_usage=0.95,
        acceptance_length=None,
        at=pair.now,
        age_seconds=0.0,
        stale_after=10.0,
    )
    pair.dispatcher.signals_read(SPEC, full, pair.now)
    pair.dispatcher.apply(RATED, renewed={BASE}, control=Control.AUTO, now=pair.now)
    assert pair.dispatcher.controller.strain.shows(pair.now)
    pair.dispatcher.apply(RATED, renewed={SPEC}, control=Control.AUTO, now=pair.now)
    assert not pair.dispatcher.controller.strain.shows(pair.now)


# Whose calibration


def test_a_calibration_of_these_servers_counts() -> None:
    """And nobody need be told."""
    pair = Pair(replace(RATED, made_for=MADE_FOR))
    assert pair.place().upstream is SPEC
    assert pair.told.calibrations == []


def test_a_calibration_of_other_servers_does_not() -> None:
    """Base, with the reason, said once; and back when it is the right server again."""
    pair = Pair(replace(RATED, made_for={**MADE_FOR, SPEC: {"model": "other"}}), healthy=False)
    pair.up(BASE)
    pair.up(SPEC)
    place = pair.place()
    assert (place.upstream, place.reason) == (BASE, Reason.UNCALIBRATED)
    assert pair.told.calibrations == [("spec: model is tiny, calibrated with other",)]
    assert pair.dispatcher.mode_reason is SwitchReason.UNCALIBRATED
    pair.up(SPEC)
    assert len(pair.told.calibrations) == 1
    pair.up(BASE, replace(IDENTITIES[BASE], model="other"))
    pair.up(SPEC, replace(IDENTITIES[SPEC], model="other"))
    assert pair.told.calibrations[-1] == ("base: model is other, calibrated with tiny",)


def test_a_server_that_became_another_ends_speculation() -> None:
    """It was restarted with another version: what was measured says nothing of it."""
    made_for = {**MADE_FOR, SPEC: {**MADE_FOR[SPEC], "version": None}}
    pair = Pair(replace(RATED, made_for=made_for))
    assert pair.dispatcher.mode is SPEC
    pair.up(SPEC, replace(IDENTITIES[SPEC], version="0.6"))
    assert pair.dispatcher.mode is BASE
    assert pair.dispatcher.mode_reason is SwitchReason.UNCALIBRATED


def test_where_nothing_was_calibrated_nothing_is_said() -> None:
    """N* by hand after a calibration of other servers: that matter is closed."""
    pair = Pair(replace(RATED, made_for={SPEC: {"model": "other"}}))
    assert len(pair.told.calibrations) == 1
    pair.dispatcher.apply(RATED, renewed=set(), control=Control.AUTO, now=pair.now)
    assert pair.dispatcher.calibration_faults == ()
    assert len(pair.told.calibrations) == 1


def test_a_server_that_says_nothing_of_itself_is_trusted() -> None:
    """As it is for the rest of its identity."""
    pair = Pair(replace(RATED, made_for=MADE_FOR), healthy=False)
    pair.up(BASE, Identity(known=False))
    pair.up(SPEC, Identity(known=False))
    assert pair.dispatcher.mode is SPEC


def test_a_new_calibration_is_checked_when_it_comes() -> None:
    """A reload brings the right one."""
    pair = Pair(replace(RATED, made_for={SPEC: {"model": "other"}}))
    assert pair.dispatcher.mode is BASE
    pair.dispatcher.apply(
        replace(RATED, made_for=MADE_FOR), renewed=set(), control=Control.AUTO, now=pair.now
    )
    assert pair.dispatcher.calibration_faults == ()
    assert pair.told.calibrations[-1] == ()
    assert pair.dispatcher.controller.crossover == 4.0


# GPUs of their own


def test_separate_servers_share_the_load() -> None:
    """floor(2.9) on spec, the rest on base, and the mode stays."""
    pair = Pair(SEPARATE)
    places = pair.fill(need(), 4)
    assert [(place.upstream, place.reason) for place in places] == [
        (SPEC, Reason.MODE),
        (SPEC, Reason.MODE),
        (BASE, Reason.SPILL),
        (BASE, Reason.SPILL),
    ]
    pair.end(places[0])
    assert pair.place().upstream is SPEC


def test_where_speculation_always_pays_nothing_spills() -> None:
    """No crossover, no bound but the cap."""
    thresholds = replace(SEPARATE.thresholds, crossover=inf)
    pair = Pair(replace(SEPARATE, thresholds=thresholds))
    assert {place.upstream for place in pair.fill(need(), 50)} == {SPEC}


def test_a_refusal_by_base_is_retried_on_gpus_of_its_own() -> None:
    """There it takes nothing from a base that is full."""
    pair = Pair(SEPARATE)
    pair.fill(need(), 2)
    refused = pair.place()
    taken = pair.dispatcher.retry(refused, need(), RetryCause.REFUSAL, Evidence.NONE, pair.now)
    assert taken is not None
    assert taken.upstream is SPEC


# What is told of a decision


def test_a_place_says_when_and_with_how_many() -> None:
    """Its own sequences among them."""
    pair = Pair(RATED)
    pair.place(need(2))
    place = pair.place()
    assert (place.in_flight, place.at) == (3, pair.now)


def test_probation_does_not_keep_the_mode_on_base() -> None:
    """Probed speculation gets its trial and the mode, or nothing would ever try it."""
    pair = Pair(RATED)
    pair.fail(SPEC)
    pair.up(BASE)
    assert pair.dispatcher.mode is BASE
    pair.later(30.0)
    pair.up(SPEC)
    pair.later(1.0)
    trial = pair.place()
    assert trial.upstream is SPEC
    assert pair.place().upstream is BASE
    pair.end(trial)
    pair.later(300.0)
    assert pair.dispatcher.mode is SPEC


def test_a_quick_restart_is_noticed() -> None:
    """One failed probe ejects nobody, and yet another server may answer the next one."""
    pair = Pair(replace(RATED, made_for=MADE_FOR))
    assert not pair.dispatcher.upstream(SPEC).wants_identity
    pair.down(SPEC, probes=1)
    assert pair.dispatcher.mode is SPEC
    assert pair.dispatcher.upstream(SPEC).wants_identity
    pair.up(SPEC, replace(IDENTITIES[SPEC], model="other"))
    assert pair.dispatcher.mode is BASE
    assert not pair.dispatcher.upstream(BASE).wants_identity


def test_an_end_brings_speculation_back() -> None:
    """It is not left for the next tick, nor for the next request."""
    pair = Pair(RATED)
    held = pair.fill(need(), 40)
    assert pair.dispatcher.mode is BASE
    pair.now += 1000.0
    for place in held:
        assert pair.dispatcher.mode is BASE
        pair.end(place)
    assert pair.dispatcher.mode is SPEC
