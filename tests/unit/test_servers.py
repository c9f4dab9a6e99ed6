"""The two servers: since when who is gone, what both are, and what is said of them."""

from dataclasses import replace
from math import inf

from proxy.core.eligibility import SpecLimits
from proxy.core.inflight import InFlight, Lease
from proxy.core.places import Evidence, Settings
from proxy.core.servers import Servers
from proxy.core.words import AdminState, EjectionCause, Health, UpstreamName
from tests.harness.pair import BASE, IDENTITIES, SETTINGS, SPEC, Recorder


def both(settings: Settings = SETTINGS) -> tuple[Servers, Recorder]:
    """Two that are well since 0.0, and what they told since then."""
    told = Recorder()
    servers = Servers(settings, told, now=-5.0)
    for name in UpstreamName:
        assert servers.probe_succeeded(name, IDENTITIES[name], 0.0)
    servers.look(0.0)
    told.health.clear()
    return servers, told


def lease(servers: Servers, name: UpstreamName, *, trial: bool = False) -> Lease:
    """A place at `name`."""
    return InFlight().take(name, 1, servers.upstream(name).work, trial=trial, now=0.0)


def test_at_first_nobody_is_there() -> None:
    """Since the start."""
    servers = Servers(SETTINGS, Recorder(), now=7.0)
    servers.look(8.0)
    assert not servers.usable
    assert (servers.none_since, servers.base_gone_since) == (7.0, 7.0)


def test_since_when_who_is_gone() -> None:
    """One takes base's place, and nobody that of both; who is back is not gone."""
    servers, _ = both()
    assert (servers.none_since, servers.base_gone_since) == (inf, inf)
    servers.base.admin_state = AdminState.DRAIN
    servers.look(1.0)
    servers.look(2.0)
    assert (servers.usable, servers.none_since, servers.base_gone_since) == (True, inf, 1.0)
    servers.spec.admin_state = AdminState.MAINT
    servers.look(3.0)
    assert (servers.usable, servers.none_since, servers.base_gone_since) == (False, 3.0, 1.0)
    servers.base.admin_state = AdminState.READY
    servers.look(4.0)
    assert (servers.usable, servers.none_since, servers.base_gone_since) == (True, inf, inf)


def test_each_has_its_name() -> None:
    """Spec comes first."""
    servers, _ = both()
    assert servers.both == (servers.upstream(SPEC), servers.upstream(BASE))
    assert [upstream.name for upstream in servers.both] == [SPEC, BASE]


def test_what_spec_has_of_the_context_is_known_with_its_identity() -> None:
    """Less than base, by what its drafts take."""
    servers, _ = both()
    identity = replace(IDENTITIES[SPEC], context_length=4096, speculative_num_draft_tokens=8)
    servers.probe_succeeded(SPEC, identity, 1.0)
    assert servers.spec_limits == SpecLimits.of(identity)
    assert servers.spec_limits is not None


def test_ends_of_requests_tell_of_their_server() -> None:
    """Failures in a row eject it, and the one request of a probation brings it back."""
    servers, told = both(replace(SETTINGS, health=replace(SETTINGS.health, passive_failures=2)))
    servers.ended(lease(servers, SPEC), Evidence.BAD, 1.0)
    servers.ended(lease(servers, SPEC), Evidence.GOOD, 1.0)
    servers.ended(lease(servers, SPEC), Evidence.BAD, 1.0)
    servers.ended(lease(servers, SPEC), Evidence.NONE, 1.0)
    assert not told.health
    servers.ended(lease(servers, SPEC), Evidence.BAD, 1.0)
    assert told.health == [(SPEC, Health.EJECTED, EjectionCause.REQUESTS, "its requests failed")]
    servers.time_passes(6.0)
    for evidence in (Evidence.NONE, Evidence.GOOD):
        assert servers.spec.health.state is Health.PROBATION
        servers.spec.health.trial_started()
        servers.ended(lease(servers, SPEC, trial=True), evidence, 6.0)
    assert servers.spec.health.state is Health.HEALTHY
    assert told.health[-1] == (SPEC, Health.HEALTHY, None, "its trial request succeeded")


def test_an_end_at_a_server_that_is_no_longer_the_one() -> None:
    """It says nothing of the one that has come in its place."""
    servers, told = both(replace(SETTINGS, health=replace(SETTINGS.health, passive_failures=1)))
    old = lease(servers, SPEC)
    servers.set_to(SETTINGS, {SPEC})
    told.health.clear()
    servers.ended(old, Evidence.BAD, 1.0)
    assert not told.health
    servers.ended(old, Evidence.GOOD, 1.0)
    servers.ended(lease(servers, SPEC), Evidence.BAD, 1.0)
    assert servers.spec.health.state is Health.EJECTED


def test_a_probe_without_an_answer_may_say_nothing() -> None:
    """If a part of a request's answer came meanwhile."""
    servers, _ = both()
    servers.spec.work.heard(3.0)
    assert not servers.probe_failed(SPEC, "silent", unanswered_since=2.0)
    assert not servers.upstream(SPEC).wants_identity
    assert servers.probe_failed(SPEC, "silent", unanswered_since=4.0)
    assert servers.upstream(SPEC).wants_identity


def test_a_doubt_while_it_says_what_it_is_stays() -> None:
    """Its answer may have been on the way before: the next good probe asks again."""
    servers, _ = both()
    servers.doubt()
    asked = servers.spec.doubts
    servers.doubt()
    servers.probe_succeeded(SPEC, IDENTITIES[SPEC], 1.0, settles=asked)
    assert servers.upstream(SPEC).wants_identity
    servers.probe_succeeded(SPEC, IDENTITIES[SPEC], 2.0, settles=servers.spec.doubts)
    assert not servers.upstream(SPEC).wants_identity
    assert servers.upstream(BASE).wants_identity


def test_the_calibration_is_compared_with_what_they_are() -> None:
    """Told when that changes, and not where the thresholds were given by hand."""
    told = Recorder()
    servers = Servers(replace(SETTINGS, made_for={SPEC: {"model": "other"}}), told, now=0.0)
    fault = "spec: model is tiny, calibrated with other"
    for _ in range(2):
        servers.probe_succeeded(SPEC, IDENTITIES[SPEC], 0.0)
        assert servers.calibration_faults == (fault,)
    assert told.calibrations == [(fault,)]
    servers.set_to(SETTINGS, set())
    assert servers.calibration_faults == ()
    assert told.calibrations == [(fault,)]
