"""What was counted lately, out of totals since a start."""

import pytest

from proxy.core.signals import EngineSignals, Lately, Totals

NAN = float("nan")


def lately(*readings: tuple[float, float, float], seconds: float = 10.0) -> float | None:
    """The acceptance length after readings (at, rounds, tokens)."""
    window = Lately(seconds)
    for at, rounds, tokens in readings:
        window.read(Totals(tokens, rounds), at)
    return window.acceptance_length()


def test_an_age_is_theirs_and_ours() -> None:
    """Old when it was read, and older since."""
    signals = EngineSignals(
        waiting=None,
        token_usage=None,
        acceptance_length=None,
        at=100.0,
        age_seconds=0.5,
        stale_after=10.0,
    )
    assert signals.age(103.0) == 3.5


def test_a_difference() -> None:
    """What came after; nothing where nothing did is a difference, too."""
    assert Totals(30.0, 10.0).since(Totals(10.0, 4.0)) == Totals(20.0, 6.0)
    assert Totals(30.0, 10.0).since(Totals(30.0, 10.0)) == Totals(0.0, 0.0)


@pytest.mark.parametrize(
    "after", [Totals(9, 20), Totals(20, 3), Totals(NAN, 20), Totals(20, NAN), Totals(0, 0)]
)
def test_a_total_that_went_back_is_of_another_start(after: Totals) -> None:
    """Either of the two tells."""
    assert after.since(Totals(10, 4)) is None


def test_one_reading_says_nothing() -> None:
    """It is since the start, which may be days ago."""
    assert lately() is None
    assert lately((0, 1_000, 3_000)) is None


def test_the_mean_between_two_readings() -> None:
    """Whatever was before them."""
    assert lately((0, 1_000, 4_000), (2, 1_100, 4_200)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "after",
    [
        (1_000, 4_000),  # nothing was verified
        (1_019, 4_060),  # too few rounds
        (1_100, 4_099),  # less than a token each
        (1_100, 4_000),
        (900, 3_000),  # it went back
        (1_100, 3_000),
        (900, 5_000),
    ],
)
def test_what_gives_no_acceptance_length(after: tuple[float, float]) -> None:
    """Zero and negative differences, too few rounds, and a mean that no rounds can have."""
    assert lately((0, 1_000, 4_000), (2, *after)) is None


def test_a_token_a_round_is_the_least() -> None:
    """Drafts that are never accepted: exactly 1, which is known and bad."""
    assert lately((0, 0, 0), (2, 20, 20)) == 1.0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    """Good drafts of an hour ago do not hide bad ones now."""
    old = [(float(at), at * 50.0, at * 200.0) for at in range(0, 20, 2)]
    rounds, tokens = old[-1][1:]
    new = [(20.0 + at, rounds + at * 50, tokens + at * 60.0) for at in range(0, 20, 2)]
    assert lately(*old) == pytest.approx(4.0)
    assert lately(*old, *new) == pytest.approx(1.2)


def test_the_last_two_readings_count_however_far_apart() -> None:
    """Probes may be set to any interval."""
    assert lately((0, 0, 0), (60, 100, 300), (120, 200, 500)) == pytest.approx(2.0)


def test_after_a_restart_it_begins_anew() -> None:
    """The reading that went back is the first of the next mean."""
    before = [(0, 1_000, 4_000), (2, 1_100, 4_400)]
    assert lately(*before, (4, 50, 100)) is None
    assert lately(*before, (4, 50, 100), (6, 150, 250)) == pytest.approx(1.5)


def test_a_server_that_does_not_say_has_no_mean() -> None:
    """None between two readings ends what they could say together."""
    window = Lately(10.0)
    window.read(Totals(0, 0), 0.0)
    window.read(Totals(200, 100), 2.0)
    assert window.acceptance_length() == 2.0
    window.read(None, 4.0)
    assert window.acceptance_length() is None
    window.read(Totals(600, 300), 6.0)
    assert window.acceptance_length() is None
    window.read(Totals(1_000, 400), 8.0)
    assert window.acceptance_length() == 4.0
    window.forget()
    assert window.acceptance_length() is None
