"""One of the two servers: what it, its probes, its requests and the operator have said of it."""

from proxy.core.health import HealthRules, UpstreamHealth
from proxy.core.identity import Identity
from proxy.core.route import Reason, View
from proxy.core.words import AdminState, EjectionCause, Health, UpstreamName
from proxy.core.work import Work


class Upstream:
    """One of the two: what is known of it."""

    __slots__ = (
        "admin_state",
        "configured_cap",
        "doubted",
        "faults",
        "health",
        "identity",
        "name",
        "work",
    )

    def __init__(self, name: UpstreamName, rules: HealthRules, configured_cap: int | None) -> None:
        self.name = name
        self.health = UpstreamHealth(rules)
        self.work = Work()
        self.admin_state = AdminState.READY
        self.identity: Identity | None = None
        self.doubted = False
        """Whether it was away since it said what it is: another one may have taken its place."""
        self.faults: tuple[str, ...] = ()
        """Why it is misconfigured, as sentences."""
        self.configured_cap = configured_cap

    @property
    def cap(self) -> int | None:
        """Sequences that it may have; None for no cap."""
        if self.configured_cap is not None:
            return self.configured_cap or None
        return None if self.identity is None else self.identity.cap

    @property
    def in_service(self) -> bool:
        """Whether it is the pair's to use; probation counts, or nothing would ever try it again."""
        return self.admin_state is AdminState.READY and self.health.state is not Health.EJECTED

    def view(self, in_flight: int) -> View:
        """The picture that a decision needs."""
        ready = self.admin_state is AdminState.READY
        why_not = Reason.HEALTH if ready else Reason.DRAIN
        usable = ready and self.health.usable
        trial = usable and self.health.state is Health.PROBATION
        return View(usable, why_not, in_flight, self.cap, trial)

    def __str__(self) -> str:
        """Its state, for a refusal to name; where it is the wrong server, with what is wrong."""
        if self.admin_state is not AdminState.READY:
            return f"set to {self.admin_state}"
        cause = self.health.cause
        if cause is EjectionCause.MISCONFIGURED and self.faults:
            return f"{self.health.state} ({cause}: {'; '.join(self.faults)})"
        if cause is not None:
            return f"{self.health.state} ({cause})"
        if self.health.state is Health.EJECTED:
            return "not there yet"  # no probe has ever been good
        return str(self.health.state)
