"""The two servers: whether they are there, and whether they are what they should be.

What their probes, their requests, time and the operator say of them comes together here. What that
means for requests and for the mode is decided elsewhere.
"""

from collections.abc import Set as AbstractSet
from math import inf
from typing import Final

from proxy.core.eligibility import SpecLimits
from proxy.core.fingerprint import differences
from proxy.core.identity import Identity, mismatches
from proxy.core.inflight import Lease
from proxy.core.observer import Observer
from proxy.core.places import Evidence, Settings
from proxy.core.upstream import Upstream
from proxy.core.words import Health, UpstreamName

SPEC: Final = UpstreamName.SPEC
BASE: Final = UpstreamName.BASE

_GOOD: Final = Evidence.GOOD
_NOTHING: Final = Evidence.NONE


class Servers:
    """Both, and what is known of them."""

    def __init__(self, settings: Settings, observer: Observer, *, now: float) -> None:
        self.spec = Upstream(SPEC, settings.health, settings.spec_cap)
        self.base = Upstream(BASE, settings.health, settings.base_cap)
        self.adapters: frozenset[str] | None = None
        """Names of LoRA adapters; None while that of one of the two is not known."""
        self.spec_limits: SpecLimits | None = None
        """How much of the context spec has for a request; None where as much as base."""
        self.store_responses = False
        """Whether one of the two keeps a response whose request does not say whether it should."""
        self.calibration_faults: tuple[str, ...] = ()
        """In what the servers are not those that the thresholds were measured on, as sentences."""
        self.none_since: float = now
        """Since when none is in service; inf while one is."""
        self.base_gone_since: float = now
        """Since when base is not; inf while it is."""
        self._settings = settings
        self._observer = observer

    @property
    def both(self) -> tuple[Upstream, Upstream]:
        """As they stand now: a reload may bring others."""
        return self.spec, self.base

    @property
    def usable(self) -> bool:
        """Whether any is in service."""
        return self.spec.in_service or self.base.in_service

    def upstream(self, name: UpstreamName) -> Upstream:
        """The one called `name`."""
        return self.spec if name is SPEC else self.base

    def look(self, now: float) -> None:
        """Bring what is kept of both in line; after whatever was said of one of them."""
        self.spec.look()
        self.base.look()
        self.none_since = inf if self.usable else min(self.none_since, now)
        self.base_gone_since = inf if self.base.in_service else min(self.base_gone_since, now)

    def set_to(self, settings: Settings, renewed: AbstractSet[UpstreamName]) -> None:
        """Go by `settings`; the `renewed` are other servers now, of which nothing is known."""
        self._settings = settings
        self.spec = self._set_to(self.spec, settings.spec_cap, fresh=SPEC in renewed)
        self.base = self._set_to(self.base, settings.base_cap, fresh=BASE in renewed)
        self._compare()

    def _set_to(self, upstream: Upstream, cap: int | None, *, fresh: bool) -> Upstream:
        if fresh:
            new = Upstream(upstream.name, self._settings.health, cap)
            new.admin_state = upstream.admin_state
            self._tell(new, "it is another server now, of which nothing is known yet")
            return new
        upstream.health.rules = self._settings.health
        upstream.configured_cap = cap
        return upstream

    # Who speaks of them ------------------------------------------------------------------------

    def ended(self, lease: Lease, evidence: Evidence, now: float) -> None:
        """A request is over; if it was the one of a probation, so may that be."""
        upstream = self.spec if lease.upstream is SPEC else self.base
        if lease.work is not upstream.work:
            return  # it was at the server that this upstream was before a reload
        health = upstream.health
        if evidence is _NOTHING or lease.weight == 0:
            health.request_said_nothing(trial=lease.trial)
        elif evidence is _GOOD:
            if health.request_succeeded(trial=lease.trial):
                self._tell(upstream, "its trial request succeeded")
        elif health.request_failed(trial=lease.trial, now=now):
            self._tell(upstream, "its requests failed")

    def time_passes(self, now: float) -> None:
        """Ejections end, and silence grows."""
        for upstream in self.both:
            if upstream.health.advance(now):
                upstream.work.forgive(now)
                self._tell(upstream, "its ejection is over; one request may try it")
            silence = upstream.work.silence()
            if upstream.health.silent(silence, now):
                self._tell(upstream, f"it has work and showed no sign of life for {silence:.0f} s")

    def probe_failed(
        self, name: UpstreamName, detail: str, *, unanswered_since: float | None
    ) -> bool:
        """A probe of `name` failed; whether that says anything.

        One without an answer since `unanswered_since` says nothing if a part of a request's answer
        has come meanwhile: an engine in long prefills leaves its probes waiting.
        """
        upstream = self.upstream(name)
        if unanswered_since is not None and upstream.work.heard_at >= unanswered_since:
            return False
        upstream.doubts += 1
        if upstream.health.probe_failed():
            self._tell(upstream, detail)
        return True

    def probe_succeeded(
        self,
        name: UpstreamName,
        identity: Identity | None,
        now: float,
        *,
        settles: int | None = None,
    ) -> bool:
        """A probe of `name` was good; `identity` is what it said, where it was asked.

        It `settles` the doubts that there were when it was asked; None: all that there are.
        Returns whether it is there again by it.
        """
        upstream = self.upstream(name)
        if identity is not None:
            upstream.settled = upstream.doubts if settles is None else settles
            self._identified(upstream, identity)
        if upstream.faults and identity is not None:
            if upstream.health.misconfigured():
                self._tell(upstream, "; ".join(upstream.faults))
            return False
        if not upstream.health.probe_succeeded():
            return False
        upstream.work.forgive(now)
        self._tell(upstream, "")
        return True

    # What they are -----------------------------------------------------------------------------

    def doubt(self) -> None:
        """What they serve may be something else now: their next good probe has to say what."""
        for upstream in self.both:
            upstream.doubts += 1

    def _identified(self, upstream: Upstream, identity: Identity) -> None:
        other = self.upstream(upstream.name.other)
        # A server that is down may come back as another; what it was condemns nobody.
        other_stands = other.health.state is not Health.EJECTED or other.health.until is not None
        upstream.identity = identity
        upstream.faults = mismatches(
            upstream.name, identity, other.identity if other_stands else None
        )
        self._compare()

    def _compare(self) -> None:
        """See what both have, and whether they are those that were calibrated.

        A server that has not said yet what it is takes no requests either.
        """
        known = [each.identity for each in self.both if each.identity is not None]
        complete = len(known) == len(self.both)
        names = [identity.adapters for identity in known]
        self.adapters = frozenset().union(*names) if complete else None
        self.spec_limits = SpecLimits.of(self.spec.identity)
        self.store_responses = any(identity.stores_responses for identity in known)
        made_for = self._settings.made_for
        faults = tuple(
            f"{upstream.name}: {fault}"
            for upstream in self.both
            if upstream.identity is not None and upstream.name in made_for
            for fault in differences(made_for[upstream.name], upstream.identity)
        )
        if faults != self.calibration_faults:
            self.calibration_faults = faults
            if made_for:
                self._observer.calibration_checked(faults)

    def _tell(self, upstream: Upstream, detail: str) -> None:
        health = upstream.health
        self._observer.health_changed(upstream.name, health.state, health.cause, detail)
