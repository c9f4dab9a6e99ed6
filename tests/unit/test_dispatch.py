"""The pair: who may go where, by load, by the operator's word, and a second time."""

from dataclasses import dataclass, replace

import pytest

from proxy.core.identity import Identity
from proxy.core.places import Evidence, Place, Settings
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
from proxy.errors import LeaseError, QueueTimeout
from tests.harness.pair import (
    BASE,
    IDENTITIES,
    SETTINGS,
    SMALL_BASE,
    SPEC,
    UNCALIBRATED,
    Pair,
    Standing,
    model_path,
    need,
    only_base,
    where,
)

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
    pair.say(BASE, AdminState.DRAIN)
    pair.up(BASE)
    pair.say(SPEC, AdminState.DRAIN)
    pair.up(SPEC)
    waiters = [pair.wait()[1] for _ in range(24)]
    # Both at once: the operator's word for spec is the last thing that was missing.
    pair.dispatcher.base.admin_state = AdminState.READY
    pair.say(SPEC, AdminState.READY)
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
    """`max_in_flight` counts sequences over both; a request above it is refused at once."""
    pair = Pair(replace(SETTINGS, max_in_flight=4))
    held = [pair.place(need(2)), pair.place(only_base(2))]
    _, waiting = pair.wait()
    pair.end(held[0])
    assert waiting.place.lease.open
    pair.end(held[1])
    pair.end(waiting.place)
    refusal = pair.refusal(need(9))
    assert (refusal.code, refusal.retry_after) == ("overloaded", None)
    assert "counts as 9 sequences, 4 are allowed" in refusal.message


# Control and mode --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "upstream"), [(Control.SPEC, SPEC), (Control.BASE, BASE), (Control.OBSERVE, BASE)]
)
def test_control(word: Control, upstream: UpstreamName) -> None:
    """The operator's word decides, and what the controller wants is still computed."""
    pair = Pair()
    pair.control(word)
    places = pair.fill(need(), 24)
    assert {(place.upstream, place.reason) for place in places} == {(upstream, "control")}
    assert (pair.dispatcher.mode, pair.dispatcher.mode_reason) == (upstream, SwitchReason.CONTROL)
    assert pair.dispatcher.control_set_by == "the test"
    assert pair.dispatcher.controller.mode is BASE
    # It is told apart only where the mode does not follow it.
    assert [s.to for s in pair.told.wishes] == ([] if upstream is BASE else [BASE])
    assert len(pair.told.switches) == 1 + (upstream is BASE)
    pair.control(Control.AUTO)
    assert pair.dispatcher.mode is BASE
    assert pair.place().reason == "mode"


def test_the_observer_is_told_that_it_was_the_operator() -> None:
    """Also when the word is taken back: load has changed nothing."""
    pair = Pair()
    pair.control(Control.BASE)
    pair.control(Control.AUTO)
    assert [(s.to, s.reason) for s in pair.told.switches[1:]] == [
        (BASE, SwitchReason.CONTROL),
        (SPEC, SwitchReason.CONTROL),
    ]


def test_control_yields_to_health() -> None:
    """A survivor takes all, also against the operator's word; the mode says where they go."""
    pair = Pair()
    pair.control(Control.SPEC)
    pair.down(SPEC)
    assert (pair.dispatcher.mode, pair.dispatcher.mode_reason) == (BASE, SwitchReason.HEALTH)
    assert (pair.place().upstream, pair.place().reason) == (BASE, "health")


def test_control_moves_those_who_wait() -> None:
    """A word of the operator gives those waiting the places that it opens."""
    pair = Pair(replace(SETTINGS, base_cap=1))
    pair.control(Control.BASE)
    pair.place()
    _, waiting = pair.wait()
    pair.control(Control.SPEC)
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


def test_what_could_not_be_sent_waits_in_front_for_the_other() -> None:
    """It had its turn; it never gets a place where it found nobody, and those behind it wait on."""
    pair = Pair(replace(SETTINGS, spec_cap=1, base_cap=1))
    pair.control(Control.BASE)
    at_base = pair.place()
    pair.control(Control.AUTO)
    at_spec = pair.place(need(override=SPEC))
    _, behind = pair.wait(need(override=SPEC))
    assert retry(pair, at_base, RetryCause.CONNECT) is None
    again = Standing()
    ticket = pair.dispatcher.wait_for_other(at_base, need(), again, pair.now)
    assert ticket is not None
    pair.end(at_base, Evidence.BAD)
    assert (again.told, len(behind.told)) == ([], 1)  # base's place is for who has not found out
    assert behind.place.upstream is BASE
    assert pair.told.retries == []
    pair.end(at_spec)
    assert (again.place.upstream, again.place.reason) == (SPEC, "retry")
    assert pair.told.retries == [RetryCause.CONNECT]
    pair.end(again.place)
    pair.end(behind.place)


def waits_again(pair: Pair, at: UpstreamName) -> tuple[Standing, Place]:
    """One who found nobody at `at` and waits for the other, which is full with the second."""
    first = pair.place(need(override=at))
    blocker = pair.place(need(override=at.other))
    again = Standing()
    assert pair.dispatcher.wait_for_other(first, need(override=at), again, pair.now) is not None
    pair.end(first, Evidence.BAD)
    assert again.told == []
    return again, blocker


@pytest.mark.parametrize("at", [SPEC, BASE])
def test_who_waits_again_takes_what_there_is(at: UpstreamName) -> None:
    """When the other one goes out of service, the one that was not there is tried once more."""
    pair = Pair(replace(SETTINGS, spec_cap=1, base_cap=1))
    again, blocker = waits_again(pair, at)
    pair.say(at.other, AdminState.MAINT)
    assert again.place.upstream is at
    pair.end(again.place)
    pair.end(blocker)


def test_nobody_overtakes_who_waits_again() -> None:
    """The room at base is too small for the two that wait there, and not for one more."""
    pair = Pair(SMALL_BASE)
    held = pair.fill(only_base(), 3)
    first = pair.place(need(2, override=SPEC))
    again = Standing()
    assert pair.dispatcher.wait_for_other(first, need(2), again, pair.now) is not None
    _, newcomer = pair.wait(only_base())
    pair.end(held[0])
    assert again.place.upstream is BASE
    assert newcomer.told == []


@pytest.mark.parametrize("how", ["rises", "is renewed"])
def test_who_waits_again_may_go_where_somebody_is_again(how: str) -> None:
    """A server that comes back, or another in its place, is not the one that was not there."""
    pair = Pair(replace(SETTINGS, spec_cap=1, base_cap=1))
    again, blocker = waits_again(pair, BASE)
    if how == "rises":
        pair.down(BASE)
        pair.up(BASE, probes=2)
    else:
        settings = pair.dispatcher.settings
        pair.dispatcher.apply(settings, renewed={BASE}, control=Control.AUTO, now=pair.now)
        pair.up(BASE)
    assert again.place.upstream is BASE
    pair.end(again.place)
    pair.end(blocker)


def test_who_waits_again_stays_in_front() -> None:
    """Where it found nobody somebody is again, and those behind would go there as well."""
    pair = Pair(replace(SETTINGS, spec_cap=1, base_cap=1))
    again, _ = waits_again(pair, BASE)
    pair.down(BASE)
    _, behind = pair.wait()
    pair.up(BASE, probes=2)
    assert again.place.upstream is BASE
    assert behind.told == []


def test_who_waits_again_does_so_for_no_longer() -> None:
    """Its patience counts from when it came first."""
    pair = Pair(replace(SETTINGS, spec_cap=1))
    first = pair.place(need(override=BASE))
    pair.place(need(override=SPEC))
    arrived = pair.now - SETTINGS.queue_timeout + 1.0
    again = Standing()
    pair.dispatcher.wait_for_other(first, need(), again, arrived)
    pair.end(first)
    pair.later(1.0)
    assert isinstance(again.refusal, QueueTimeout)


@pytest.mark.parametrize(
    ("wanted", "down", "changes"),
    [
        (only_base(), None, {}),
        (model_path(), None, {}),
        (need(override=BASE), SPEC, {}),
        (need(override=BASE), None, {"queue_size": 0}),
        (need(override=BASE), None, {"queue_timeout": 0.0}),
    ],
)
def test_who_may_not_wait_again(
    wanted: Need, down: UpstreamName | None, changes: dict[str, float]
) -> None:
    """Where only base may serve, the other is not there, or nobody may wait at all."""
    settings: Settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]  # ints and floats
    pair = Pair(settings)
    first = pair.place(wanted)
    assert first.upstream is BASE
    if down is not None:
        pair.down(down)
    assert pair.dispatcher.wait_for_other(first, wanted, Standing(), pair.now) is None
    assert first.lease.open
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
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.REQUESTS)


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
