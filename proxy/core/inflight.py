"""What is in flight: leases, given out once and given back once.

The count is the routing signal, so there is no way to change it but through a lease, and a lease
that is given back twice is a fault of ours that must be seen, not absorbed.
"""

from math import inf
from typing import Final

from proxy.core.words import UpstreamName
from proxy.core.work import Work
from proxy.errors import LeaseError

SPEC: Final = UpstreamName.SPEC


class Lease:
    """A place at one upstream, held from the decision to the last byte relayed.

    `weight` is in sequences; 0 for work that is not load (model paths). `work` is that of the very
    server it is held at, which an upstream may have exchanged since. `trial` marks the one request
    that an upstream in probation may have.
    """

    __slots__ = (
        "_expected",
        "area",
        "at",
        "open",
        "trial",
        "upstream",
        "weight",
        "work",
    )

    def __init__(
        self,
        upstream: UpstreamName,
        weight: int,
        work: Work,
        *,
        trial: bool,
        at: float,
        area: float,
    ) -> None:
        self.upstream = upstream
        self.weight = weight
        self.work = work
        self.trial = trial
        self.at = at
        """When it was taken; seconds, monotonic."""
        self.area = area
        """Sequences times seconds at its upstream until then, since the start."""
        self.open = True
        self._expected = True
        work.expect(weight, at)

    def expect(self, now: float) -> None:
        """The next byte is the server's to send."""
        if self.open and not self._expected:
            self._expected = True
            self.work.expect(self.weight, now)

    def expect_no_more(self) -> None:
        """It is not: the client is slow, or the request has ended."""
        if self._expected:
            self._expected = False
            self.work.expect_no_more(self.weight)

    def heard(self, now: float) -> None:
        """A part of the answer came; what is no load proves nothing of generation."""
        if self.weight:
            self.work.heard(now)

    def __repr__(self) -> str:
        state = "open" if self.open else "ended"
        return f"<Lease {self.upstream} x{self.weight} {state}>"


class InFlight:
    """Sequences of generation in flight at each upstream, and how long both had some."""

    __slots__ = (
        "_base_area",
        "_base_at",
        "_both_seconds",
        "_both_since",
        "_both_until",
        "_spec_area",
        "_spec_at",
        "base",
        "spec",
        "total",
    )

    def __init__(self) -> None:
        self.spec = 0
        self.base = 0
        self.total = 0
        """Sequences over both upstreams."""
        self._spec_area = 0.0
        self._spec_at = 0.0
        """When the area was brought up to date."""
        self._base_area = 0.0
        self._base_at = 0.0
        self._both_seconds = 0.0
        self._both_since: float | None = None
        """Since when both have some; None while one has none."""
        self._both_until = -inf
        """Until when both had some last."""

    def at(self, upstream: UpstreamName) -> int:
        """Sequences at `upstream`."""
        return self.spec if upstream is SPEC else self.base

    def take(
        self, upstream: UpstreamName, weight: int, work: Work, *, trial: bool, now: float
    ) -> Lease:
        """Hold `weight` places at `upstream`, whose server's work is `work`."""
        area = self._change(upstream, weight, now)
        return Lease(upstream, weight, work, trial=trial, at=now, area=area)

    def give_back(self, lease: Lease, now: float) -> None:
        """End `lease`; raises LeaseError when it has ended already."""
        if not lease.open:
            raise LeaseError(f"{lease!r} given back twice")
        lease.expect_no_more()
        lease.open = False
        self._change(lease.upstream, -lease.weight, now)

    def alone(self, lease: Lease, now: float) -> float | None:
        """The mean number in flight beside and with `lease` until `now`, its own upstream's.

        None where the other one had work in the meantime, or no time has passed.
        """
        since = self._both_since
        beside = self._both_until > lease.at or (since is not None and since < now)
        if beside or now <= lease.at:
            return None
        return (self._change(lease.upstream, 0, now) - lease.area) / (now - lease.at)

    def both_active_seconds(self, now: float) -> float:
        """Seconds until `now` in which both upstreams had generation in flight."""
        running = 0.0 if self._both_since is None else now - self._both_since
        return self._both_seconds + running

    def _change(self, upstream: UpstreamName, weight: int, now: float) -> float:
        """`weight` more at `upstream`; return sequences times seconds there until `now`."""
        if upstream is SPEC:
            area = self._spec_area + self.spec * (now - self._spec_at)
            self._spec_area = area
            self._spec_at = now
            self.spec += weight
        else:
            area = self._base_area + self.base * (now - self._base_at)
            self._base_area = area
            self._base_at = now
            self.base += weight
        self.total += weight
        if self.spec and self.base:
            if self._both_since is None:
                self._both_since = now
        elif self._both_since is not None:
            if now > self._both_since:
                self._both_seconds += now - self._both_since
                self._both_until = now
            self._both_since = None
        return area
