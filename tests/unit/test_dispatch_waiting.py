"""The waiting room: who waits for what, and who is told what, when."""

from dataclasses import replace

import pytest

from proxy.core.places import Settings, Ticket
from proxy.core.words import (
    AdminState,
    Control,
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
    ONE_EACH,
    SETTINGS,
    SMALL_BASE,
    SPEC,
    Pair,
    Standing,
    model_path,
    need,
    only_base,
    prefers_base,
)

# Waiting -----------------------------------------------------------------------------------------


def test_a_place_that_comes_free_goes_to_who_has_waited_longest() -> None:
    """First come, first served, and each is told once."""
    pair = Pair(ONE_EACH)
    pair.control(Control.BASE)
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


def test_who_waits_for_room_over_both_is_passed_over() -> None:
    """One request of very many sequences does not hold up all that would fit."""
    pair = Pair(replace(SETTINGS, max_in_flight=4))
    held = pair.fill(need(), 4)
    _, heavy = pair.wait(need(3))
    _, light = pair.wait(need(override=SPEC))
    pair.end(held[0])
    assert light.place.lease.open
    for place in [*held[1:3], light.place]:
        pair.end(place)
    assert heavy.place.lease.weight == 3


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
    pair.control(Control.BASE)
    held = pair.place()
    pair.control(Control.AUTO)
    pair.dispatcher.controller.step(9, 0, 0.0, pair.now)
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


def test_another_patience_is_for_those_who_wait_already() -> None:
    """From when they came."""
    pair = Pair(ONE_EACH)
    pair.fill(only_base(), 1)
    _, waiting = pair.wait(only_base())
    shorter = replace(ONE_EACH, queue_timeout=1.0)
    pair.dispatcher.apply(shorter, renewed=frozenset(), control=Control.AUTO, now=pair.now)
    pair.later(0.5)
    assert waiting.told == []
    pair.later(0.5)
    assert isinstance(waiting.refusal, QueueTimeout)


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
            "no upstream was usable for 10 s: spec is not there yet, base is not there yet"
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
    pair.say(SPEC, AdminState.DRAIN)
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
    pair.say(BASE, AdminState.DRAIN)
    _, waiting = pair.wait(only_base())
    pair.later(9.0)
    pair.say(BASE, AdminState.READY)
    assert (waiting.place.upstream, waiting.place.reason) == (BASE, "eligibility:min_p")


def test_in_maint_base_only_is_refused_at_once() -> None:
    """Maintenance is no moment's absence: who comes and who waits already is refused."""
    pair = Pair()
    pair.say(BASE, AdminState.DRAIN)
    _, waiting = pair.wait(only_base())
    _, another = pair.wait(only_base(2))
    pair.say(BASE, AdminState.MAINT)
    for refusal in (waiting.refusal, another.refusal, pair.refusal(only_base())):
        assert isinstance(refusal, Ineligible)
        assert refusal.message.endswith("spec is healthy, base is set to maint")


def test_when_all_are_about_to_be_cut_nobody_is_placed() -> None:
    """What is sent then would only be cut at its engine."""
    pair = Pair(replace(SETTINGS, base_cap=1))
    held = pair.place(only_base())
    ticket, standing = pair.wait(only_base())
    pair.dispatcher.stop()
    pair.end(held)
    assert standing.told == []
    pair.dispatcher.leave(ticket, pair.now)


def test_clients_do_not_choose_what_the_room_costs() -> None:
    """However many different weights they ask for, only so many files are asked."""
    pair = Pair(replace(SETTINGS, max_in_flight=4000, queue_size=4000, base_cap=1))
    held = pair.place(only_base())
    for weight in range(2, 2002):
        pair.wait(only_base(weight))
    assert len(pair.dispatcher.room.fronts()) < 30
    pair.dispatcher.stop()
    pair.end(held)
