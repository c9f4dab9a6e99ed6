"""Whether an upstream is trusted: each row of the transition table, and what stands around it."""

import pytest

from proxy.core.health import MAX_EJECTION_SECONDS, HealthRules, UpstreamHealth
from proxy.core.words import EjectionCause, Health

RULES = HealthRules(fall=3, rise=2, passive_failures=4, stalled=30.0, ejection=5.0)

Picture = tuple[Health, EjectionCause | None, float | None]

NEW: Picture = (Health.EJECTED, None, None)
HEALTHY: Picture = (Health.HEALTHY, None, None)
PROBATION: Picture = (Health.PROBATION, None, None)
BY_PROBE: Picture = (Health.EJECTED, EjectionCause.PROBE, None)
MISCONFIGURED: Picture = (Health.EJECTED, EjectionCause.MISCONFIGURED, None)


def trying(health: UpstreamHealth) -> bool:
    """Whether it is in probation with its one request out."""
    return health.state is Health.PROBATION and health._trial_out


def by_requests(until: float) -> Picture:
    """Ejected for its requests, for a time."""
    return (Health.EJECTED, EjectionCause.REQUESTS, until)


def picture(health: UpstreamHealth) -> Picture:
    """What is seen from outside."""
    return (health.state, health.cause, health.until)


def asks_identity(health: UpstreamHealth) -> bool:
    """Whether it wants its identity read; a call, so that each is seen to be asked anew."""
    return health.rises_next


def trial_seen(health: UpstreamHealth) -> tuple[bool, bool]:
    """Whether it may have a request, and whether its one request is out."""
    return health.usable, trying(health)


def healthy() -> UpstreamHealth:
    """One that has answered its first probe."""
    health = UpstreamHealth(RULES)
    assert health.probe_succeeded()
    return health


def fail_requests(health: UpstreamHealth, count: int, *, now: float) -> list[bool]:
    """Fail `count` requests; what each call said."""
    return [health.request_failed(trial=False, now=now) for _ in range(count)]


def fail_probes(health: UpstreamHealth, count: int) -> list[bool]:
    """Fail `count` probes; what each call said."""
    return [health.probe_failed() for _ in range(count)]


def ejected(*, now: float = 0.0) -> UpstreamHealth:
    """One whose requests failed at `now`, for its first ejection."""
    health = healthy()
    fail_requests(health, 4, now=now)
    return health


def on_probation() -> UpstreamHealth:
    """One whose first ejection is over, at 5.0."""
    health = ejected()
    assert health.advance(5.0)
    return health


# Probes ------------------------------------------------------------------------------------


def test_an_unknown_server_needs_one_good_probe() -> None:
    """It takes nothing before its first answer, and all after it: a start must not wait twice."""
    health = UpstreamHealth(RULES)

    assert picture(health) == NEW
    assert not health.usable
    assert health.probe_failed() is False
    assert picture(health) == NEW
    assert health.rises_next
    assert health.probe_succeeded() is True
    assert picture(health) == HEALTHY
    assert health.usable


def test_fall_failed_probes_in_a_row_eject() -> None:
    """The third is told as news, those before and after it are not."""
    health = healthy()

    assert fail_probes(health, 4) == [False, False, True, False]
    assert picture(health) == BY_PROBE
    assert not health.usable


def test_a_good_probe_between_begins_the_row_anew() -> None:
    """Two failures, a success and two failures are no three in a row."""
    health = healthy()
    fail_probes(health, 2)
    assert health.probe_succeeded() is False
    fail_probes(health, 2)

    assert picture(health) == HEALTHY
    assert health.probe_failed() is True


def test_a_known_server_rises_after_rise_good_probes() -> None:
    """One good probe is not enough for one that has failed, nor two that are not in a row."""
    health = healthy()
    fail_probes(health, 3)

    assert not asks_identity(health)
    assert health.probe_succeeded() is False
    assert asks_identity(health)
    health.probe_failed()
    assert not asks_identity(health)
    assert [health.probe_succeeded(), health.probe_succeeded()] == [False, True]
    assert picture(health) == HEALTHY
    assert not asks_identity(health)


@pytest.mark.parametrize("rise", [1, 2, 3, 5])
def test_each_good_probe_is_one(rise: int) -> None:
    """It rises with the last of `rise`, and its identity is wanted for that one only."""
    health = UpstreamHealth(
        HealthRules(fall=1, rise=rise, passive_failures=1, stalled=30.0, ejection=5.0)
    )
    health.probe_succeeded()
    health.probe_failed()
    told = [(health.rises_next, health.probe_succeeded()) for _ in range(rise)]

    assert told == [(False, False)] * (rise - 1) + [(True, True)]


def test_good_probes_before_the_fall_do_not_count_for_the_rise() -> None:
    """What was good before it failed says nothing about whether it is well again."""
    health = healthy()
    for _ in range(5):
        health.probe_succeeded()
    fail_probes(health, 3)

    assert health.probe_succeeded() is False


# Requests ----------------------------------------------------------------------------------


def test_failed_requests_in_a_row_eject_for_a_time() -> None:
    """The fourth is told as news, and its time runs from it."""
    health = healthy()

    assert fail_requests(health, 4, now=100.0) == [False, False, False, True]
    assert picture(health) == by_requests(105.0)
    assert not health.usable


@pytest.mark.parametrize("good", ["success", "rise"])
def test_a_success_begins_the_row_anew(good: str) -> None:
    """Three failures, a success and three failures are no four in a row."""
    health = healthy()
    fail_requests(health, 3, now=0.0)
    if good == "success":
        health.request_succeeded(trial=False)
    else:
        fail_probes(health, 3)
        health.probe_succeeded()
        health.probe_succeeded()
    fail_requests(health, 3, now=0.0)

    assert picture(health) == HEALTHY


def test_a_request_that_says_nothing_is_passed_over() -> None:
    """A client that left in between neither fails its upstream nor excuses it."""
    health = healthy()
    fail_requests(health, 3, now=0.0)
    health.request_said_nothing(trial=False)

    assert health.request_failed(trial=False, now=1.0) is True


def test_failures_during_an_ejection_count_once() -> None:
    """They were sent before it: they neither lengthen it nor count for the next."""
    health = ejected()

    assert fail_requests(health, 9, now=3.0) == [False] * 9
    assert picture(health) == by_requests(5.0)


# Time --------------------------------------------------------------------------------------


def test_an_ejection_for_requests_runs_its_full_time() -> None:
    """Good probes do not shorten it, bad ones do not end it, and identity is not asked for."""
    health = ejected()
    for _ in range(5):
        assert not health.rises_next
        assert health.probe_succeeded() is False

    assert health.advance(4.999) is False
    assert picture(health) == by_requests(5.0)
    assert health.advance(5.0) is True
    assert picture(health) == PROBATION
    assert health.advance(6.0) is False


@pytest.mark.parametrize(("failed", "after"), [(2, PROBATION), (3, BY_PROBE), (9, BY_PROBE)])
def test_an_ejection_that_ends_while_probes_fail_goes_on(failed: int, after: Picture) -> None:
    """Nobody is sent to a server that does not answer its probes; it must rise again."""
    health = ejected()
    told = fail_probes(health, failed)

    assert told == [False] * failed
    assert health.advance(5.0) is (after == PROBATION)
    assert picture(health) == after
    assert [health.probe_succeeded(), health.probe_succeeded()] == [False, after == BY_PROBE]


def test_only_a_running_time_can_end() -> None:
    """Time does nothing to one that is healthy, new, or waits for good probes."""
    fallen = healthy()
    fail_probes(fallen, 3)
    for health in (UpstreamHealth(RULES), healthy(), fallen):
        before = picture(health)
        assert health.advance(1e9) is False
        assert picture(health) == before


# Probation ---------------------------------------------------------------------------------


def test_probation_lets_one_request_in_at_a_time() -> None:
    """While it is out there is no other; when it has said nothing there may be one more."""
    health = on_probation()

    assert trial_seen(health) == (True, False)
    health.trial_started()
    assert trial_seen(health) == (False, True)
    health.request_said_nothing(trial=False)
    assert trial_seen(health) == (False, True)
    health.request_said_nothing(trial=True)
    assert trial_seen(health) == (True, False)


def test_a_trial_that_succeeds_makes_it_healthy() -> None:
    """And nothing of the trial is left over."""
    health = on_probation()
    health.trial_started()
    health.request_succeeded(trial=True)

    assert picture(health) == HEALTHY
    assert health.usable
    assert not trying(health)


def test_a_trial_that_has_succeeded_is_over() -> None:
    """The next probation has one of its own."""
    health = on_probation()
    health.trial_started()
    health.request_succeeded(trial=True)
    fail_requests(health, 4, now=10.0)
    health.advance(15.0)

    assert trial_seen(health) == (True, False)


def test_requests_from_before_prove_nothing_in_probation() -> None:
    """Only the trial was sent to the server as it is now."""
    health = on_probation()
    health.trial_started()
    health.request_succeeded(trial=False)
    assert fail_requests(health, 9, now=6.0) == [False] * 9

    assert picture(health) == PROBATION
    assert trying(health)


def fail_trials(health: UpstreamHealth, count: int) -> list[float]:
    """Fail that many trials, each at the end of an ejection; how long the next took."""
    seconds = []
    for _ in range(count):
        now = 0.0 if health.until is None else health.until
        health.advance(now)
        assert trial_seen(health) == (True, False)
        health.trial_started()
        assert health.request_failed(trial=True, now=now) is True
        assert health.until is not None
        seconds.append(health.until - now)
    return seconds


def test_each_ejection_in_a_row_is_twice_as_long() -> None:
    """A trial that fails ejects at once; the time doubles up to a minute, and stays finite."""
    health = ejected()

    assert fail_trials(health, 5) == [10.0, 20.0, 40.0, MAX_EJECTION_SECONDS, 60.0]
    assert set(fail_trials(health, 2000)) == {60.0}


def test_a_success_in_probation_forgets_the_row() -> None:
    """The next ejection is a first one again."""
    health = ejected()
    fail_trials(health, 3)
    health.advance(1e6)
    health.trial_started()
    health.request_succeeded(trial=True)
    fail_requests(health, 4, now=2e6)

    assert picture(health) == by_requests(2e6 + 5.0)


def test_a_rise_by_probes_does_not_forget_the_row() -> None:
    """A server that answers probes and fails requests must not begin at five seconds for ever."""
    health = ejected()
    fail_probes(health, 3)
    health.advance(5.0)
    health.probe_succeeded()
    health.probe_succeeded()
    fail_requests(health, 4, now=10.0)

    assert picture(health) == by_requests(20.0)


def test_an_ejection_is_never_longer_than_a_minute() -> None:
    """Not even when it is configured so."""
    rules = HealthRules(fall=3, rise=2, passive_failures=1, stalled=30.0, ejection=300.0)
    health = UpstreamHealth(rules)
    health.probe_succeeded()
    health.request_failed(trial=False, now=0.0)

    assert picture(health) == by_requests(60.0)


def test_probes_can_end_a_probation() -> None:
    """A server that stops answering probes takes no more trials and must rise."""
    health = on_probation()

    assert fail_probes(health, 3) == [False, False, True]
    assert picture(health) == BY_PROBE


def test_failed_probes_from_before_a_probation_are_part_of_its_row() -> None:
    """In a row is in a row, across the end of an ejection too."""
    health = ejected()
    fail_probes(health, 2)
    health.advance(5.0)

    assert health.probe_failed() is True


def test_a_trial_that_ends_during_an_ejection_changes_nothing() -> None:
    """Neither a good nor a bad end tells more than the probes that ejected it."""
    good, bad = on_probation(), on_probation()
    for health in (good, bad):
        health.trial_started()
        fail_probes(health, 3)
    good.request_succeeded(trial=True)

    assert picture(good) == BY_PROBE
    assert bad.request_failed(trial=True, now=9.0) is False
    assert picture(bad) == BY_PROBE


def leave_a_trial_behind() -> UpstreamHealth:
    """One in its second probation, with the trial of the first still out."""
    health = on_probation()
    health.trial_started()
    fail_probes(health, 3)
    health.probe_succeeded()
    health.probe_succeeded()
    fail_requests(health, 4, now=10.0)
    assert health.advance(20.0)
    return health


def test_a_trial_that_outlives_its_probation_stays_the_one() -> None:
    """There is no second beside it, and none twice at once after it has ended."""
    health = leave_a_trial_behind()

    assert trial_seen(health) == (False, True)
    health.request_said_nothing(trial=True)
    assert trial_seen(health) == (True, False)
    health.trial_started()
    assert trial_seen(health) == (False, True)


def test_a_trial_left_behind_tells_when_it_ends() -> None:
    """It was served to its end by the server as it is now, or it was not."""
    good, bad = leave_a_trial_behind(), leave_a_trial_behind()
    good.request_succeeded(trial=True)

    assert picture(good) == HEALTHY
    assert bad.request_failed(trial=True, now=21.0) is True
    assert picture(bad) == by_requests(41.0)


def test_a_trial_that_fails_after_the_rise_is_one_failure() -> None:
    """The upstream has risen since, so it is a request like any other."""
    health = on_probation()
    health.trial_started()
    fail_probes(health, 3)
    health.probe_succeeded()
    health.probe_succeeded()

    assert trial_seen(health) == (True, False)
    assert health.request_failed(trial=True, now=9.0) is False
    assert picture(health) == HEALTHY


# Identity ----------------------------------------------------------------------------------


def misconfigure(health: UpstreamHealth) -> list[bool]:
    """Find it to be another server, twice; what each call said."""
    return [health.misconfigured(), health.misconfigured()]


@pytest.mark.parametrize("health", [UpstreamHealth(RULES), healthy(), on_probation()])
def test_a_server_that_is_another_takes_nothing(health: UpstreamHealth) -> None:
    """From any state, at once, and as news only once."""
    assert misconfigure(health) == [True, False]
    assert picture(health) == MISCONFIGURED
    assert not health.usable


def test_a_failed_probe_does_not_hide_that_it_is_another() -> None:
    """What an operator has to mend stays in sight."""
    health = healthy()
    misconfigure(health)

    assert fail_probes(health, 9) == [False] * 9
    assert picture(health) == MISCONFIGURED


def test_a_mended_server_rises() -> None:
    """Its identity is read again when it could become healthy, and then it is."""
    health = healthy()
    misconfigure(health)
    health.probe_succeeded()

    assert health.rises_next
    assert health.probe_succeeded() is True
    assert picture(health) == HEALTHY


def test_a_new_server_that_is_mended_rises_at_once() -> None:
    """It has never been healthy, so one good probe is still enough."""
    health = UpstreamHealth(RULES)
    misconfigure(health)

    assert health.rises_next
    assert health.probe_succeeded() is True


def test_a_running_time_runs_on_when_it_is_another() -> None:
    """The end of that time is no probation: it must rise, and identity is read then."""
    health = ejected()
    misconfigure(health)

    assert picture(health) == (Health.EJECTED, EjectionCause.MISCONFIGURED, 5.0)
    assert [health.probe_succeeded() for _ in range(5)] == [False] * 5
    assert health.advance(5.0) is False
    assert picture(health) == MISCONFIGURED
    assert health.probe_succeeded() is True


# Silence -----------------------------------------------------------------------------------------


def test_silence_past_its_bound_ejects_for_a_time() -> None:
    """Whatever the probes say meanwhile; and it grows as that by requests does."""
    health = healthy()
    assert not health.silent(29.9, 100.0)
    assert health.silent(30.0, 100.0)
    assert (health.state, health.cause, health.until) == (
        Health.EJECTED,
        EjectionCause.STALLED,
        105.0,
    )
    assert not health.probe_succeeded()
    assert not health.probe_succeeded()
    assert not health.silent(60.0, 101.0)
    assert health.advance(105.0)
    assert health.silent(30.0, 140.0)
    assert health.until == 150.0
