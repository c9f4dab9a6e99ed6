"""The counts are the open leases, whatever is taken and given back in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.inflight import InFlight, Lease
from proxy.core.words import UpstreamName
from proxy.core.work import Work
from proxy.errors import LeaseError

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

# seconds until it happens; what: a place taken, or the one at that rank given back (again)
TAKE = st.tuples(st.sampled_from(UpstreamName), st.integers(0, 9))
STEPS = st.lists(st.tuples(st.integers(0, 5), TAKE | st.integers(0, 100)), max_size=60)


def give_back(counts: InFlight, lease: Lease, now: float) -> None:
    """Give `lease` back, and see it refused if that was done before."""
    if lease.open:
        counts.give_back(lease, now)
        return
    with pytest.raises(LeaseError):
        counts.give_back(lease, now)


@given(STEPS)
def test_counts_are_the_open_leases(
    steps: list[tuple[int, tuple[UpstreamName, int] | int]],
) -> None:
    """At no time negative, at every time their sum, and nothing once all are given back."""
    counts, leases, now, both = InFlight(), list[Lease](), 0.0, 0.0
    for wait, what in steps:
        both += wait * (counts.spec > 0 and counts.base > 0)
        now += wait
        if isinstance(what, tuple):
            leases.append(counts.take(*what, Work(), trial=False, now=now))
        elif leases:
            give_back(counts, leases[what % len(leases)], now)
        for name in UpstreamName:
            held = sum(lease.weight for lease in leases if lease.open and lease.upstream is name)
            assert counts.at(name) == held
        assert counts.both_active_seconds(now) == both

    for lease in leases:
        give_back(counts, lease, now)
    assert (counts.spec, counts.base, counts.total) == (0, 0, 0)
    assert counts.both_active_seconds(now + 100) == both


@given(STEPS, st.lists(st.integers(0, 10), max_size=5))
def test_reading_time_with_both_active_changes_nothing(
    steps: list[tuple[int, tuple[UpstreamName, int] | int]], reads: list[int]
) -> None:
    """The time until the end is the sum of the times between, however often it is read."""
    counts, now = InFlight(), 0.0
    for wait, what in steps:
        now += wait
        if isinstance(what, tuple):
            counts.take(*what, Work(), trial=False, now=now)
    before = counts.both_active_seconds(now)
    overlap = counts.spec > 0 and counts.base > 0
    for wait in reads:
        now += wait
        before += wait * overlap
        assert counts.both_active_seconds(now) == before
