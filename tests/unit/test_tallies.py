"""What requests move: counts by what happened, and spreads over buckets."""

from proxy.control.tallies import Counts, Spread


def test_what_is_known_is_there_from_the_start() -> None:
    """A rate over the first event is right only if there was a nought before it."""
    counts = Counts(("a", "b"))

    counts.add("a")
    counts.add("c", 2)

    assert counts.by == {"a": 1, "b": 0, "c": 2}


def test_a_bound_belongs_to_its_bucket() -> None:
    """As Prometheus has it: `le` is less or equal."""
    spread = Spread((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        spread.add(value)

    assert [*spread.cumulative()] == [2, 4, 5]
    assert spread.total == 7.5
