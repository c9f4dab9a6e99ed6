"""Whether an upstream can be trusted with a request: rise and fall, ejection, probation.

    state       told                                        becomes
    ---------   -----------------------------------------   ------------------------------------
    HEALTHY     `fall` failed probes in a row               EJECTED (probe), until `rise` good ones
    HEALTHY     `passive_failures` failed requests in a     EJECTED (requests), for its full time
                row                                           whatever the probes say
    HEALTHY     work in hand, and no sign of life for       EJECTED (stalled), for its full time
                `stalled` seconds                             whatever the probes say
    EJECTED     `rise` good probes, no time running         HEALTHY
    EJECTED     its time is over, probes are not failing    PROBATION
    EJECTED     its time is over, probes are failing        EJECTED (probe), until `rise` good ones
    PROBATION   its one request succeeded                   HEALTHY, and the ejection time is reset
    PROBATION   its one request failed                      EJECTED (requests), for twice as long
    PROBATION   no sign of life, as above                   EJECTED (stalled), for twice as long
    PROBATION   `fall` failed probes in a row               EJECTED (probe), until `rise` good ones
    any         the server is not what it should be         EJECTED (misconfigured), until a rise
                                                              finds it mended

`rise` and `fall` are HAProxy's, the ejection whose time grows is Envoy's outlier detection. A
server that has never answered starts as EJECTED without a cause and needs one good probe. A time
that runs when a server is found to be another runs on, and the rise counts from its end. The one
request of a probation stays the one, even if the probation ends before it does: there is no second
in the next probation until it has ended, and its end is that probation's too.
"""

from dataclasses import dataclass

from proxy.core.words import EjectionCause, Health

MAX_EJECTION_SECONDS = 60.0
"""Ejection grows no longer than this: a minute is how long an operator waits before a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Counts are of probes or requests in a row; `stalled` and `ejection` are in seconds."""

    fall: int
    rise: int
    passive_failures: int
    stalled: float
    ejection: float


class UpstreamHealth:
    """The health of one upstream."""

    __slots__ = (
        "_ejections_in_a_row",
        "_failed_probes",
        "_failed_requests",
        "_good_probes",
        "_trial_out",
        "cause",
        "rules",
        "seen",
        "state",
        "until",
    )

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.state = Health.EJECTED
        self.cause: EjectionCause | None = None
        """Why it is ejected; None while it is not, and before the first probe."""
        self.until: float | None = None
        """When a timed ejection ends; None for one that ends with good probes."""
        self.seen = False
        """Whether it has ever been healthy."""
        self._good_probes = 0
        self._failed_probes = 0
        self._failed_requests = 0
        self._ejections_in_a_row = 0
        self._trial_out = False

    @property
    def usable(self) -> bool:
        """Whether a request may go there now, as far as health is concerned."""
        return self.state is Health.HEALTHY or (
            self.state is Health.PROBATION and not self._trial_out
        )

    @property
    def rises_next(self) -> bool:
        """Whether the next good probe makes it healthy."""
        needed = self.rules.rise if self.seen else 1
        return (
            self.state is Health.EJECTED and self.until is None and self._good_probes + 1 >= needed
        )

    def probe_succeeded(self) -> bool:
        """Note a good probe; whether the upstream became healthy by it."""
        rises = self.rises_next
        self._failed_probes = 0
        self._good_probes += 1
        if not rises:
            return False
        self.seen = True
        self._become_healthy()
        return True

    def probe_failed(self) -> bool:
        """Note a failed probe; whether the upstream was ejected by it."""
        self._good_probes = 0
        self._failed_probes += 1
        if self.state is Health.EJECTED or self._failed_probes < self.rules.fall:
            return False
        self._eject(EjectionCause.PROBE, until=None)
        return True

    def misconfigured(self) -> bool:
        """The server is not what it should be; whether that is news."""
        news = self.cause is not EjectionCause.MISCONFIGURED
        self._eject(EjectionCause.MISCONFIGURED, until=self.until)
        return news

    def trial_started(self) -> None:
        """The one request of a probation is out."""
        self._trial_out = True

    def request_succeeded(self, *, trial: bool) -> bool:
        """Note a request that it served to its end; whether the upstream became healthy by it."""
        self._failed_requests = 0
        if not trial:
            return False
        self._trial_out = False
        if self.state is not Health.PROBATION:
            return False
        self._ejections_in_a_row = 0
        self._become_healthy()
        return True

    def request_failed(self, *, trial: bool, now: float) -> bool:
        """Note a request that the upstream failed; whether it was ejected by it.

        What fails during an ejection was sent before it, and was counted with it.
        """
        self._trial_over(trial=trial)
        if self.state is Health.HEALTHY:
            self._failed_requests += 1
            if self._failed_requests < self.rules.passive_failures:
                return False
        elif not (trial and self.state is Health.PROBATION):
            return False
        self._eject_for_a_time(EjectionCause.REQUESTS, now)
        return True

    def silent(self, seconds: float, now: float) -> bool:
        """Note that it has work and showed no sign of life for `seconds`; whether that ejected it.

        Not judged during an ejection: that it is silent then is not news.
        """
        if self.state is Health.EJECTED or seconds < self.rules.stalled:
            return False
        self._eject_for_a_time(EjectionCause.STALLED, now)
        return True

    def request_said_nothing(self, *, trial: bool) -> None:
        """A request ended without telling good from bad: its client left, or it was refused."""
        self._trial_over(trial=trial)

    def advance(self, now: float) -> bool:
        """Let time pass; whether a timed ejection ended."""
        if self.until is None or now < self.until:
            return False
        self.until = None
        if self.cause is EjectionCause.MISCONFIGURED:
            return False
        if self._failed_probes >= self.rules.fall:
            self.cause = EjectionCause.PROBE
            return False
        self.state = Health.PROBATION
        self.cause = None
        return True

    def _trial_over(self, *, trial: bool) -> None:
        if trial:
            self._trial_out = False

    def _become_healthy(self) -> None:
        self.state = Health.HEALTHY
        self.cause = None

    def _eject_for_a_time(self, cause: EjectionCause, now: float) -> None:
        """Each time in a row for twice as long."""
        doublings = min(self._ejections_in_a_row, 16)
        seconds = min(self.rules.ejection * 2**doublings, MAX_EJECTION_SECONDS)
        self._ejections_in_a_row += 1
        self._eject(cause, until=now + seconds)

    def _eject(self, cause: EjectionCause, *, until: float | None) -> None:
        self.state = Health.EJECTED
        self.cause = cause
        self.until = until
        self._failed_requests = 0
        self._good_probes = 0
