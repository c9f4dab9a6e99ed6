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
        "doubts",
        "faults",
        "health",
        "identity",
        "name",
        "settled",
        "view",
        "work",
    )

    def __init__(self, name: UpstreamName, rules: HealthRules, configured_cap: int | None) -> None:
        self.name = name
        self.health = UpstreamHealth(rules)
        self.work = Work()
        self.admin_state = AdminState.READY
        self.identity: Identity | None = None
        self.doubts = 0
        """How often there was reason to ask it anew what it is.

        It was away, so that another one may have taken its place, or it was told to be another.
        """
        self.settled = 0
        """As many of them has it answered: those that there were when it was asked."""
        self.faults: tuple[str, ...] = ()
        """Why it is misconfigured, as sentences."""
        self.configured_cap = configured_cap
        self.view = View(usable=False, why_not=Reason.HEALTH, in_flight=0, cap=configured_cap)
        """The picture that a decision needs; `look` brings it up to date, but for the count."""
        self.look()

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

    @property
    def wants_identity(self) -> bool:
        """Whether a good probe of it must come with its identity.

        Always while it is not healthy: what comes back from a timed ejection may be another server,
        and no rise stands between it and its first request. And after a failed probe, which may be
        all that is seen of a quick restart.
        """
        return self.doubts > self.settled or self.health.state is not Health.HEALTHY

    def look(self) -> None:
        """Something was said of it: bring its picture in line, which every decision reads."""
        view = self.view
        ready = self.admin_state is AdminState.READY
        view.why_not = Reason.HEALTH if ready else Reason.DRAIN
        view.usable = ready and self.health.usable
        view.cap = self.cap
        view.trial = view.usable and self.health.state is Health.PROBATION

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
