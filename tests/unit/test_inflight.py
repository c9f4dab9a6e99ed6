"""Leases: counted when taken, uncounted when given back, once."""

import pytest

from proxy.core.inflight import InFlight
from proxy.core.words import UpstreamName
from proxy.core.work import Work
from proxy.errors import LeaseError

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


def test_a_lease_counts_its_weight_at_its_upstream() -> None:
    """Sequences are counted where they run, and over both."""
    counts = InFlight()
    counts.take(SPEC, 3, Work(), trial=False, now=0.0)
    counts.take(BASE, 5, Work(), trial=False, now=0.0)

    assert (counts.spec, counts.base, counts.total) == (3, 5, 8)
    assert (counts.at(SPEC), counts.at(BASE)) == (3, 5)


def test_a_lease_says_what_it_is() -> None:
    """Where, how heavy, and whether it is a probation's one request."""
    lease = InFlight().take(SPEC, 2, Work(), trial=True, now=7.5)

    assert (lease.upstream, lease.weight, lease.trial) == (SPEC, 2, True)
    assert lease.open
    assert repr(lease) == "<Lease spec x2 open>"


def test_giving_back_uncounts_once() -> None:
    """The count returns to nothing, and a second time is an error that changes no count."""
    counts = InFlight()
    lease = counts.take(BASE, 4, Work(), trial=False, now=0.0)
    counts.give_back(lease, 1.0)

    assert counts.total == 0
    assert not lease.open
    with pytest.raises(LeaseError, match=r"<Lease base x4 ended> given back twice"):
        counts.give_back(lease, 2.0)
    assert counts.total == 0


def test_work_that_is_no_load_weighs_nothing() -> None:
    """A lease of weight 0 is given and given back like another, and counts for nothing."""
    counts = InFlight()
    counts.take(BASE, 1, Work(), trial=False, now=0.0)
    lease = counts.take(SPEC, 0, Work(), trial=False, now=0.0)

    assert counts.total == 1
    assert counts.both_active_seconds(10.0) == 0.0
    counts.give_back(lease, 10.0)
    assert counts.total == 1


def test_time_with_both_active_is_what_overlaps() -> None:
    """It begins with the second upstream's first sequence, ends with either's last, and adds up."""
    counts = InFlight()
    first = counts.take(SPEC, 1, Work(), trial=False, now=0.0)
    second = counts.take(SPEC, 1, Work(), trial=False, now=1.0)
    other = counts.take(BASE, 1, Work(), trial=False, now=2.0)

    assert counts.both_active_seconds(2.0) == 0.0
    assert counts.both_active_seconds(5.0) == 3.0

    counts.give_back(first, 5.0)
    assert counts.both_active_seconds(6.0) == 4.0
    counts.give_back(second, 6.0)
    assert counts.both_active_seconds(100.0) == 4.0

    counts.take(SPEC, 1, Work(), trial=False, now=100.0)
    counts.give_back(other, 101.5)
    assert counts.both_active_seconds(200.0) == 5.5


def test_alone_is_the_mean_over_its_time() -> None:
    """Two for a second, then three: what was there before it counts, what came before does not."""
    counts = InFlight()
    counts.take(SPEC, 9, Work(), trial=False, now=0.0)
    counts.give_back(counts.take(SPEC, 1, Work(), trial=False, now=0.0), 5.0)
    lease = counts.take(SPEC, 1, Work(), trial=False, now=10.0)
    counts.take(SPEC, 2, Work(), trial=False, now=11.0)
    assert counts.alone(lease, 12.0) == 11.0
    counts.give_back(lease, 14.0)
    assert counts.alone(lease, 14.0) == 11.5


def test_nothing_is_alone_for_no_time() -> None:
    """Nothing can be divided by it."""
    counts = InFlight()
    assert counts.alone(counts.take(SPEC, 1, Work(), trial=False, now=1.0), 1.0) is None


@pytest.mark.parametrize(
    ("began", "ended", "alone"),
    [(1.0, 2.0, True), (1.0, 3.0, False), (2.0, 4.0, False), (3.0, 3.0, True), (5.0, 9.0, True)],
)
def test_beside_another_it_is_not_alone(*, began: float, ended: float, alone: bool) -> None:
    """From 2 to 5 it ran; the other one had work within, for longer than a moment, or had not."""
    counts, events = InFlight(), []
    events += [(began, 1, "take"), (ended, 2, "back"), (2.0, 0, "begin"), (5.0, 0, "end")]
    other, lease, seen = None, None, None
    for now, _, what in sorted(events):
        if what == "take":
            other = counts.take(BASE, 1, Work(), trial=False, now=now)
        elif what == "back":
            assert other is not None
            counts.give_back(other, now)
        elif what == "begin":
            lease = counts.take(SPEC, 1, Work(), trial=False, now=now)
        else:
            assert lease is not None
            seen = counts.alone(lease, now)
    assert (seen is not None) is alone


def test_what_was_over_when_it_began_is_not_beside_it() -> None:
    """Both had some until that very moment."""
    counts = InFlight()
    first = counts.take(SPEC, 1, Work(), trial=False, now=0.0)
    other = counts.take(BASE, 1, Work(), trial=False, now=1.0)
    counts.give_back(other, 2.0)
    lease = counts.take(SPEC, 1, Work(), trial=False, now=2.0)
    counts.give_back(first, 2.0)
    assert counts.alone(lease, 5.0) == 1.0


def test_beside_another_that_runs_on_it_is_not_alone() -> None:
    """Nor where that one has not ended yet; at its very beginning it is."""
    counts = InFlight()
    lease = counts.take(SPEC, 1, Work(), trial=False, now=0.0)
    counts.take(BASE, 1, Work(), trial=False, now=1.0)
    assert counts.alone(lease, 1.0) == 1.0
    assert counts.alone(lease, 1.5) is None
