"""How much in flight is too much: what follows a leaving teaches it."""

import pytest

from proxy.core.tolerance import Bounds, Tolerance

BOUNDS = Bounds(1.5, 0.5, 3.0)


def after(*offered: tuple[float, float], rate: float = 100.0) -> Tolerance:
    """One that has left at 0.0; then (seconds, tokens) arrived."""
    tolerance = Tolerance(BOUNDS)
    tolerance.left(0.0)
    for at, work in offered:
        tolerance.offered(work, at, rate)
    return tolerance


def test_it_begins_where_it_is_told() -> None:
    """And learns nothing before the first leaving."""
    tolerance = Tolerance(BOUNDS)
    tolerance.offered(1e9, 50.0, 100.0)
    assert tolerance.share == 1.5


def test_a_leaving_that_is_confirmed_makes_the_next_come_sooner() -> None:
    """Clearly more than λ* was offered in the ten seconds after it."""
    assert after((3.0, 600.0), (9.9, 600.0)).share == 1.5
    assert after((3.0, 600.0), (9.9, 600.0), (10.0, 0.0)).share == pytest.approx(0.9)


def test_a_leaving_that_is_not_confirmed_makes_the_next_come_later() -> None:
    """As much as λ*, a tenth more by chance, or less, is what speculation carries well."""
    assert after((3.0, 1100.0), (10.0, 0.0)).share == pytest.approx(1.725)


def test_silence_says_that_it_was_chance() -> None:
    """Nobody came for a minute."""
    assert after((60.0, 0.0)).share == pytest.approx(1.725)


def test_each_leaving_teaches_once() -> None:
    """What comes after its ten seconds is another matter."""
    tolerance = after((3.0, 2000.0), (10.0, 0.0))
    tolerance.offered(1e9, 20.0, 100.0)
    assert tolerance.share == pytest.approx(0.9)


def test_it_stays_within_its_bounds() -> None:
    """However often it was right or wrong."""
    tolerance = Tolerance(BOUNDS)
    for work, share in ((1e6, 0.5), (0.0, 3.0)):
        for _ in range(20):
            tolerance.left(0.0)
            tolerance.offered(work, 10.0, 100.0)
        assert tolerance.share == share


def test_equal_bounds_hold_it_still() -> None:
    """Whoever wants a fixed threshold has one."""
    tolerance = Tolerance(Bounds(1.5, 1.5, 1.5))
    tolerance.left(0.0)
    tolerance.offered(1e6, 10.0, 100.0)
    assert tolerance.share == 1.5


def test_other_bounds_keep_what_was_learned() -> None:
    """As far as they allow; another beginning begins anew."""
    tolerance = after((3.0, 2000.0), (10.0, 0.0))
    tolerance.set_to(Bounds(1.5, 0.8, 3.0))
    assert tolerance.share == pytest.approx(0.9)
    tolerance.set_to(Bounds(1.5, 1.0, 3.0))
    assert tolerance.share == 1.0
    tolerance.set_to(Bounds(2.0, 1.0, 3.0))
    assert tolerance.share == 2.0


@pytest.mark.parametrize("bounds", [(1.0, 1.5, 2.0), (3.0, 1.5, 2.0), (1.0, 0.0, 2.0)])
def test_bounds_make_sense(bounds: tuple[float, float, float]) -> None:
    """An impossible triple cannot exist."""
    with pytest.raises(ValueError, match="must lie between"):
        Bounds(*bounds)
