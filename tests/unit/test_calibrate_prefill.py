"""The line through first tokens: what filling a prompt costs."""

from math import inf, nan

import pytest

from proxy.core.curves import Prefill
from proxy.tools.calibrate.prefill import LENGTHS, Filled, fit, lengths
from proxy.tools.curves.cells import BadDataError


def _points(*pairs: tuple[int, float]) -> list[Filled]:
    return [Filled(wanted, wanted + 3, seconds) for wanted, seconds in pairs]


def test_a_line_is_found() -> None:
    """Times that lie on one give it back, by the tokens that were counted."""
    found = fit("spec", _points(*((n, 0.004 + 5e-5 * (n + 3)) for n in LENGTHS)))
    assert found.fixed == pytest.approx(0.004)
    assert found.per_token == pytest.approx(5e-5)


def test_one_late_request_of_three_does_not_matter() -> None:
    """The median of each length is fitted."""
    points = [p for n in LENGTHS for p in _points(*[(n, 0.004 + 5e-5 * (n + 3))] * 2, (n, 9.0))]
    assert fit("spec", points).per_token == pytest.approx(5e-5)


def test_a_falling_line_is_held_at_nothing() -> None:
    """Noise on a server that fills prompts in no time."""
    assert fit("base", _points((100, 0.02), (1000, 0.018))) == Prefill(0.018, 0.0)


def test_a_line_does_not_begin_below_zero() -> None:
    """It goes through 0 then."""
    found = fit("base", _points((100, 0.001), (1000, 0.1)))
    assert found.fixed == 0.0
    assert found.per_token > 0.0


def test_one_length_gives_a_fixed_time() -> None:
    """Nothing is known of a slope."""
    assert fit("base", _points((100, 0.02))) == Prefill(0.02, 0.0)


@pytest.mark.parametrize("seconds", [nan, inf, 0.0, -0.1])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    """A line through them would be silly."""
    with pytest.raises(BadDataError, match="base: no time to a first token"):
        fit("base", _points((100, 0.02), (200, seconds)))


def test_no_points_are_refused() -> None:
    """There is nothing to fit."""
    with pytest.raises(BadDataError, match="spec: no time"):
        fit("spec", [])


@pytest.mark.parametrize(
    ("context", "expected"),
    [(None, LENGTHS), (32768, LENGTHS), (4096, (128, 512, 1024)), (256, (64,)), (8, (16,))],
)
def test_prompts_fit_the_context(context: int | None, expected: tuple[int, ...]) -> None:
    """A quarter of it at most, since bytes only tell about how many tokens there are."""
    assert lengths(context) == expected
