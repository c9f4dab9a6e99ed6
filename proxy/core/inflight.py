"""What is in flight: leases, given out once and given back once.

The count is the routing signal, so there is no way to change it but through a lease, and a lease
that is given back twice is a fault of ours that must be seen, not absorbed.
"""

from typing import NamedTuple

from proxy.core.words import UpstreamName
from proxy.core.work import Work
from proxy.errors import LeaseError


class Stamp(NamedTuple):
    """The books of one upstream at one moment; the difference of two says what was between."""

    at: float
    """Seconds, monotonic."""
    area: float
    """Sequences times seconds, since the start."""
    both_seconds: float
    """For which both upstreams had some."""


class Lease:
    """A place at one upstream, held from the decision to the last byte relayed.

    `weight` is in sequences; 0 for work that is not load (model paths). `work` is that of the very
    server it is held at, which an upstream may have exchanged since. `trial` marks the one request
    that an upstream in probation may have.
    """

    __slots__ = ("_expected", "open", "stamp", "trial", "upstream", "weight", "work")

    def __init__(
        self, upstream: UpstreamName, weight: int, work: Work, *, trial: bool, stamp: "Stamp"
    ) -> None:
        self.upstream = upstream
        self.weight = weight
        self.work = work
        self.trial = trial
        self.stamp = stamp
        """The books when it was taken."""
        self.open = True
        self._expected = False

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
        "_both_seconds",
        "_both_since",
        "_changed_at",
        "_spec_area",
        "base",
        "spec",
    )

    def __init__(self) -> None:
        self.spec = 0
        self.base = 0
        self._spec_area = 0.0
        self._base_area = 0.0
        self._changed_at = 0.0
        self._both_seconds = 0.0
        self._both_since: float | None = None

    @property
    def total(self) -> int:
        """Sequences over both upstreams."""
        return self.spec + self.base

    def at(self, upstream: UpstreamName) -> int:
        """Sequences at `upstream`."""
        return self.spec if upstream is UpstreamName.SPEC else self.base

    def take(
        self, upstream: UpstreamName, weight: int, work: Work, *, trial: bool, now: float
    ) -> Lease:
        """Hold `weight` places at `upstream`, whose server's work is `work`."""
        self._change(upstream, weight, now)
        lease = Lease(upstream, weight, work, trial=trial, stamp=self.stamp(upstream, now))
        lease.expect(now)
        return lease

    def give_back(self, lease: Lease, now: float) -> None:
        """End `lease`; raises LeaseError when it has ended already."""
        if not lease.open:
            raise LeaseError(f"{lease!r} given back twice")
        lease.expect_no_more()
        lease.open = False
        self._change(lease.upstream, -lease.weight, now)

    def stamp(self, upstream: UpstreamName, now: float) -> Stamp:
        """The books of `upstream` at `now`."""
        before = self._spec_area if upstream is UpstreamName.SPEC else self._base_area
        area = before + self.at(upstream) * (now - self._changed_at)
        return Stamp(now, area, self.both_active_seconds(now))

    def alone(self, lease: Lease, now: float) -> float | None:
        """The mean number in flight beside and with `lease` until `now`, its own upstream's.

        None where the other one had work in the meantime, or no time has passed.
        """
        then, at_now = lease.stamp, self.stamp(lease.upstream, now)
        if at_now.both_seconds > then.both_seconds or at_now.at <= then.at:
            return None
        return (at_now.area - then.area) / (at_now.at - then.at)

    def both_active_seconds(self, now: float) -> float:
        """Seconds until `now` in which both upstreams had generation in flight."""
        running = 0.0 if self._both_since is None else now - self._both_since
        return self._both_seconds + running

    def _change(self, upstream: UpstreamName, weight: int, now: float) -> None:
        seconds = now - self._changed_at
        self._changed_at = now
        self._spec_area += self.spec * seconds
        self._base_area += self.base * seconds
        if upstream is UpstreamName.SPEC:
            self.spec += weight
        else:
            self.base += weight
        both = self.spec > 0 and self.base > 0
        if both and self._both_since is None:
            self._both_since = now
        elif not both and self._both_since is not None:
            self._both_seconds += now - self._both_since
            self._both_since = None
