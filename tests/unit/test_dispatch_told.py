"""Those who are told act on it at once, and nothing is lost, doubled or given out of turn."""

from collections.abc import Callable
from dataclasses import replace

from proxy.core.health import HealthRules
from proxy.core.places import Evidence, Place, Ticket
from proxy.core.route import Need
from proxy.core.words import (
    Control,
    EjectionCause,
    Health,
)
from proxy.errors import (
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
    where,
)


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
    """A thousand that end within being placed are all served by one place, and not nested."""
    pair = Pair(replace(ONE_EACH, queue_size=1000))
    held = pair.place(only_base())
    waiters = [Ending(pair) for _ in range(1000)]
    for waiter in waiters:
        assert isinstance(pair.come(only_base(), waiter), Ticket)
    pair.end(held)
    assert [waiter.place.upstream for waiter in waiters] == [BASE] * 1000
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
    assert first.place.lease.open
    assert second.place.lease.open
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
    assert first.place.lease.open
    assert gone.told == []
    assert third.place.lease.open


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
    rules = HealthRules(fall=1, rise=1, passive_failures=1, stalled=30.0, ejection=1.0)
    pair = Pair(replace(SETTINGS, health=rules))
    pair.down(SPEC, probes=1)
    assert pair.state(SPEC) == (Health.EJECTED, EjectionCause.PROBE)


def states(pair: Pair) -> list[Health]:
    """What base is taken for."""
    return [pair.dispatcher.base.health.state]


def test_model_paths_prove_nothing_of_generation() -> None:
    """An engine whose scheduler is dead still counts tokens; that does not make it healthy."""
    pair = Pair()
    pair.control(Control.BASE)
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
