"""What is in flight: leases, given out once and given back once.

The count is the routing signal, so there is no way to change it but through a lease, and a lease
that is given back twice is a fault of ours that must be seen, not absorbed.
"""

from proxy.core.words import UpstreamName


class LeaseError(RuntimeError):
    """A lease was given back twice; the count would have gone wrong."""


class Lease:
    """A place at one upstream, held from the decision to the last byte relayed.

    `weight` is in sequences; 0 for work that is not load (model paths). `trial` marks the one
    request that an upstream in probation may have.
    """

    __slots__ = ("open", "since", "trial", "upstream", "weight")

    def __init__(self, upstream: UpstreamName, weight: int, *, since: float, trial: bool) -> None:
        self.upstream = upstream
        self.weight = weight
        self.since = since
        self.trial = trial
        self.open = True

    def __repr__(self) -> str:
        state = "open" if self.open else "ended"
        return f"<Lease {self.upstream} x{self.weight} {state}>"


class InFlight:
    """Sequences of generation in flight at each upstream, and how long both had some."""

    __slots__ = ("_both_seconds", "_both_since", "base", "spec")

    def __init__(self) -> None:
        self.spec = 0
        self.base = 0
        self._both_seconds = 0.0
        self._both_since: float | None = None

    @property
    def total(self) -> int:
        """Sequences over both upstreams."""
        return self.spec + self.base

    def at(self, upstream: UpstreamName) -> int:
        """Sequences at `upstream`."""
        return self.spec if upstream is UpstreamName.SPEC else self.base

    def take(self, upstream: UpstreamName, weight: int, *, trial: bool, now: float) -> Lease:
        """Hold `weight` places at `upstream`."""
        self._change(upstream, weight, now)
        return Lease(upstream, weight, since=now, trial=trial)

    def give_back(self, lease: Lease, now: float) -> None:
        """End `lease`; raises LeaseError when it has ended already."""
        if not lease.open:
            raise LeaseError(f"{lease!r} given back twice")
        lease.open = False
        self._change(lease.upstream, -lease.weight, now)

    def both_active_seconds(self, now: float) -> float:
        """Seconds until `now` in which both upstreams had generation in flight."""
        running = 0.0 if self._both_since is None else now - self._both_since
        return self._both_seconds + running

    def _change(self, upstream: UpstreamName, weight: int, now: float) -> None:
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
