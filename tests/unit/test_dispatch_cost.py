"""What a decision costs, in calls: as much with a thousand in flight as with one, and not many."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import pytest

from proxy.core.curves import Curve
from proxy.core.places import Answer, Evidence, Place
from proxy.core.words import UpstreamName
from tests.harness.pair import BASE, SETTINGS, SPEC, Pair, Standing, need

_MOST = 60
"""Calls for a request that comes and ends; there are 42 to 55, and were 111 to 120 once."""

ANSWER = Answer(150, 0.0065)
RATED = replace(
    SETTINGS,
    expected_tokens=200.0,
    curves={name: Curve(0.005, 0.0001, 0.0, 64.0) for name in UpstreamName},
)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of Python functions, by name."""
    calls = Counter[str]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def cost(crossover: float, rate: float | None, in_flight: int) -> tuple[UpstreamName, Counter[str]]:
    """Where one more goes with so many in flight, and the calls until it has ended."""
    thresholds = replace(SETTINGS.thresholds, crossover=crossover, crossover_rate=rate)
    pair = Pair(replace(RATED, thresholds=thresholds))
    pair.fill(need(), in_flight)
    pair.now += 1.0
    wanted, standing = need(), Standing()
    with counted() as calls:
        place = pair.dispatcher.arrive(wanted, standing, pair.now)
        assert isinstance(place, Place)
        pair.dispatcher.end(place.lease, Evidence.GOOD, pair.now + 1.0, ANSWER)
    return place.upstream, calls


@pytest.mark.parametrize("rate", [None, 1e9], ids=["by count", "by rate"])
@pytest.mark.parametrize(("crossover", "upstream"), [(1e6, SPEC), (0.5, BASE)])
def test_a_decision_costs_the_same_however_many_are_in_flight(
    *, crossover: float, upstream: UpstreamName, rate: float | None
) -> None:
    """On both servers, with λ* known and without."""
    alone, among_many = cost(crossover, rate, 1), cost(crossover, rate, 1000)
    assert alone == among_many
    where, calls = alone
    assert where is upstream
    assert calls.total() <= _MOST, calls
