"""What is known of an upstream, and how a refusal names its state."""

import pytest

from proxy.core.health import HealthRules
from proxy.core.identity import Identity, mismatches
from proxy.core.route import Reason
from proxy.core.upstream import Upstream
from proxy.core.words import AdminState, UpstreamName

RULES = HealthRules(fall=3, rise=2, passive_failures=1, stalled=30.0, ejection=5.0)
SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


def upstream(name: UpstreamName = SPEC, cap: int | None = None) -> Upstream:
    """One that was healthy at its first probe."""
    made = Upstream(name, RULES, cap)
    made.health.probe_succeeded()
    return made


def test_its_health_is_a_word() -> None:
    """Before its first good probe it is not there yet."""
    assert str(Upstream(SPEC, RULES, None)) == "not there yet"
    assert str(upstream()) == "healthy"


def test_the_operator_comes_first() -> None:
    """What was set is said, whatever its health."""
    it = upstream()
    it.admin_state = AdminState.MAINT
    it.health.misconfigured()
    assert str(it) == "set to maint"


def test_an_ejection_has_its_cause() -> None:
    """In a word."""
    it = upstream()
    it.health.request_failed(trial=False, now=0.0)
    assert str(it) == "ejected (requests)"


def test_the_wrong_server_is_said_in_sentences() -> None:
    """Whoever reads the refusal need not look for the log."""
    it = upstream()
    it.faults = mismatches(SPEC, Identity(known=True), None)
    it.health.misconfigured()
    assert str(it) == (
        "ejected (misconfigured: it reports no speculative algorithm; are spec and base swapped?)"
    )


def test_every_fault_is_said() -> None:
    """One after the other."""
    it = upstream(BASE)
    it.faults = ("one is wrong", "so is another")
    it.health.misconfigured()
    assert str(it) == "ejected (misconfigured: one is wrong; so is another)"


def test_faults_of_the_past_are_no_cause() -> None:
    """What it once was says nothing of why its requests failed."""
    it = upstream()
    it.faults = ("one is wrong",)
    it.health.request_failed(trial=False, now=0.0)
    assert str(it) == "ejected (requests)"


@pytest.mark.parametrize(
    ("configured", "reported", "cap"),
    [(None, None, None), (None, 48, 48), (0, 48, None), (16, 48, 16), (64, 48, 64)],
)
def test_the_cap(configured: int | None, reported: int | None, cap: int | None) -> None:
    """What is configured, where that is not auto; 0 is none."""
    it = upstream(cap=configured)
    assert it.cap == (configured or None)
    it.identity = Identity(known=True, max_running_requests=reported)
    assert it.cap == cap


def test_its_picture_follows_what_was_said_of_it() -> None:
    """By the operator, by probes, by requests; the count is not its to keep."""
    it = upstream(cap=8)
    it.view.in_flight = 3
    it.look()
    view = it.view
    assert (view.usable, view.trial, view.cap, view.in_flight) == (True, False, 8, 3)
    it.admin_state = AdminState.DRAIN
    it.look()
    assert (view.usable, view.why_not) == (False, Reason.DRAIN)
    it.admin_state = AdminState.READY
    it.health.request_failed(trial=False, now=0.0)
    it.look()
    assert (view.usable, view.why_not) == (False, Reason.HEALTH)
    it.health.advance(5.0)
    it.look()
    assert (view.usable, view.trial) == (True, True)
    it.health.trial_started()
    it.look()
    assert (view.usable, view.trial) == (False, False)
