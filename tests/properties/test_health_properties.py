"""What holds of an upstream's health after any sequence of probes, requests and time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.health import MAX_EJECTION_SECONDS, HealthRules, UpstreamHealth
from proxy.core.words import EjectionCause, Health


def trying(health: UpstreamHealth) -> bool:
    """Whether it is in probation with its one request out."""
    return health.state is Health.PROBATION and health._trial_out


class Call(Enum):
    """What can happen to an upstream."""

    GOOD_PROBE = auto()
    BAD_PROBE = auto()
    ANOTHER = auto()
    ASK = auto()
    GOOD_END = auto()
    BAD_END = auto()
    SILENT_END = auto()
    WAIT = auto()


CALLS = st.lists(st.tuples(st.sampled_from(Call), st.integers(0, 40)), max_size=120)
RULES = st.builds(
    HealthRules,
    fall=st.integers(1, 4),
    rise=st.integers(1, 4),
    passive_failures=st.integers(1, 5),
    stalled=st.sampled_from([1.0, 30.0]),
    ejection=st.sampled_from([0.5, 5.0, 45.0, 100.0]),
)


@dataclass
class World:
    """An upstream, what was sent to it, and the clock."""

    health: UpstreamHealth
    now: float = 0.0
    open: list[bool] = field(default_factory=list)
    """Whether each request that is out is a trial."""
    ejections: list[float] = field(default_factory=list)
    """How long each ejection was that a request's failure began."""

    def do(self, call: Call, number: int) -> None:
        """Let it happen, as the dispatcher and the prober would."""
        health = self.health
        match call:
            case Call.GOOD_PROBE:
                health.probe_succeeded()
            case Call.BAD_PROBE:
                health.probe_failed()
            case Call.ANOTHER:
                health.misconfigured()
            case Call.ASK:
                self._ask()
            case Call.WAIT:
                self.now += number
                health.advance(self.now)
            case _:
                self._end(call, number)

    def _ask(self) -> None:
        health = self.health
        if not health.usable:
            return
        trial = health.state is Health.PROBATION
        if trial:
            health.trial_started()
        self.open.append(trial)

    def _end(self, call: Call, number: int) -> None:
        if not self.open:
            return
        trial = self.open.pop(number % len(self.open))
        if call is Call.GOOD_END:
            self.health.request_succeeded(trial=trial)
        elif call is Call.SILENT_END:
            self.health.request_said_nothing(trial=trial)
        elif self.health.request_failed(trial=trial, now=self.now):
            assert self.health.until is not None
            self.ejections.append(self.health.until - self.now)


def played(rules: HealthRules, calls: Sequence[tuple[Call, int]]) -> World:
    """Return the world after `calls`."""
    world = World(UpstreamHealth(rules))
    for call in calls:
        world.do(*call)
    return world


@given(RULES, CALLS)
def test_there_is_never_more_than_one_trial(
    rules: HealthRules, calls: list[tuple[Call, int]]
) -> None:
    """Not even beside one that its own probation has not survived."""
    world = World(UpstreamHealth(rules))
    for call in calls:
        world.do(*call)
        assert sum(world.open) <= 1


@given(RULES, CALLS)
def test_a_trial_that_ends_does_not_bar_the_next(
    rules: HealthRules, calls: list[tuple[Call, int]]
) -> None:
    """Once nothing is out, a probation can always be tried."""
    world = played(rules, calls)
    while world.open:
        world.do(Call.SILENT_END, 0)

    assert not trying(world.health)
    assert world.health.usable is (world.health.state is not Health.EJECTED)


@given(RULES, CALLS)
def test_a_timed_ejection_lasts_its_full_time(
    rules: HealthRules, calls: list[tuple[Call, int]]
) -> None:
    """Whatever probes and other requests say, nothing goes there before it is over."""
    world = World(UpstreamHealth(rules))
    for call in calls:
        before = world.health.until
        world.do(*call)
        if before is not None and world.now < before:
            assert (world.health.state, world.health.until) == (Health.EJECTED, before)


@given(RULES, CALLS)
def test_what_is_seen_fits_together(rules: HealthRules, calls: list[tuple[Call, int]]) -> None:
    """A cause and a time only while it is ejected; the time for requests, or what came on top."""
    world = World(UpstreamHealth(rules))
    for call in calls:
        world.do(*call)
        health = world.health
        if health.state is not Health.EJECTED:
            assert (health.cause, health.until) == (None, None)
        if health.until is not None:
            assert health.cause in {EjectionCause.REQUESTS, EjectionCause.MISCONFIGURED}
            assert 0 < health.until - world.now <= MAX_EJECTION_SECONDS
        assert not (health.usable and trying(health))


@given(RULES, CALLS)
def test_ejections_in_a_row_double(rules: HealthRules, calls: list[tuple[Call, int]]) -> None:
    """Each is twice the one before, at most a minute, and a first one after a good trial."""
    world, row = World(UpstreamHealth(rules)), 0
    for call in calls:
        before, told = world.health.state, len(world.ejections)
        world.do(*call)
        if before is Health.PROBATION and world.health.state is Health.HEALTHY:
            row = 0
        if len(world.ejections) > told:
            assert world.ejections[-1] == min(rules.ejection * 2**row, MAX_EJECTION_SECONDS)
            row += 1


@given(RULES, st.lists(st.booleans(), max_size=60))
def test_exactly_fall_failed_probes_in_a_row_eject(rules: HealthRules, probes: list[bool]) -> None:
    """A healthy upstream falls with the last of them, never earlier and never later."""
    health, row = UpstreamHealth(rules), 0
    health.probe_succeeded()
    for good in probes:
        row = 0 if good else row + 1
        told = False if good else health.probe_failed()
        if good:
            health.probe_succeeded()
        assert told is (row == rules.fall)
        assert (health.state is Health.EJECTED) is (row >= rules.fall)
        if row >= rules.fall:
            return


@given(RULES, st.lists(st.sampled_from([True, False, None]), max_size=60))
def test_exactly_passive_failures_in_a_row_eject(
    rules: HealthRules, ends: list[bool | None]
) -> None:
    """A healthy upstream is ejected with the last of them; those that say nothing do not count."""
    health, row = UpstreamHealth(rules), 0
    health.probe_succeeded()
    for good in ends:
        if good is None:
            health.request_said_nothing(trial=False)
        elif good:
            row = 0
            health.request_succeeded(trial=False)
        else:
            row += 1
            assert health.request_failed(trial=False, now=7.0) is (row == rules.passive_failures)
        assert (health.state is Health.EJECTED) is (row >= rules.passive_failures)
        if row >= rules.passive_failures:
            return


@given(RULES, CALLS)
def test_a_server_that_is_well_comes_back(
    rules: HealthRules, calls: list[tuple[Call, int]]
) -> None:
    """From any past, good probes and a minute make it one that requests may go to."""
    world = played(rules, calls)
    while world.open:
        world.do(Call.SILENT_END, 0)
    world.do(Call.WAIT, 60)
    for _ in range(rules.rise):
        world.do(Call.GOOD_PROBE, 0)

    assert world.health.usable
