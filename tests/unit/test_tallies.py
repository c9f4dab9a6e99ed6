"""What requests move: counts by what happened, and spreads over buckets."""

from proxy.control.tallies import Counts, Spread, Sum


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


def test_values_since_then_are_a_difference() -> None:
    """How many came, and what they add up to, whatever their buckets."""
    spread = Spread((1.0, 2.0))
    spread.add(0.5)
    before = spread.so_far
    spread.add(1.5)
    spread.add(7.0)

    assert before == Sum(1, 0.5)
    assert spread.so_far - before == Sum(2, 8.5)
