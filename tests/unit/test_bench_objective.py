"""Figures of given samples: percentiles, goodput, kinds of failure, ratios with intervals."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from proxy.tools.asking import Fault, Sample
from proxy.tools.bench.load import Shot, Volley
from proxy.tools.bench.objective import (
    Objective,
    Ratio,
    end_to_end_of,
    figures,
    first_token_of,
    marks,
    per_token_of,
    percentile,
    ratio,
    spread,
    values,
)
from proxy.tools.prompts import Prompt

OBJECTIVE = Objective(ttft=0.5, tpot=0.03)
PROMPT = Prompt(({"role": "user", "content": "x"},))


def sample(first: float | None = 0.1, per_token: float = 0.01, **more: object) -> Sample:
    """An answer of 11 tokens."""
    last = None if first is None else first + 10 * per_token
    fields: dict[str, object] = {
        "sent_at": 0.0,
        "first_token_seconds": first,
        "last_token_seconds": last,
        "duration_seconds": last or 1.0,
        "prompt_tokens": 5,
        "output_tokens": 11,
        "finish_reason": "length",
        "acceptance_length": None,
        "status": 200,
        "error": None,
        "upstream": None,
        "reason": None,
    }
    return Sample(**{**fields, **more})  # type: ignore[arg-type]  # the test's own names


def failure(fault: Fault, error: str = "x") -> Sample:
    """One that did not end well."""
    return sample(None, output_tokens=None, error=error, fault=fault)


def fired(
    *samples: Sample | None, unsent: Sequence[int] = ()
) -> list[tuple[Sequence[Shot], Volley]]:
    """One round that started at 0."""
    planned = [Shot(0.0, PROMPT, 11) for _ in samples]
    return [(planned, Volley(0.0, list(samples), set(unsent)))]


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (0.99, 3.97), (1.0, 4.0)]
)
def test_percentiles(share: float, value: float) -> None:
    """Between two values by a straight line: numpy's default gives the same."""
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(value)


def test_spreads() -> None:
    """Of one value all are that value, of none there is nothing to say."""
    assert spread([]) is None
    one = spread([2.0])
    assert one is not None
    assert (one.mean, one.p50, one.p95, one.p99) == (2.0, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (sample(), True),
        (sample(0.5, 0.0299), True),
        (sample(0.51), False),
        (sample(0.1, 0.031), False),
        (sample(output_tokens=1), True),
        (sample(output_tokens=None), None),
        (sample(0.51, output_tokens=None), False),
        (sample(None), False),
        (failure(Fault.CUT), False),
        (sample(error="it broke at its very end", fault=Fault.CUT), False),
    ],
)
def test_the_objective(one: Sample, *, met: bool | None) -> None:
    """Both parts have to be met; what hangs on a count that nobody gave is unknown."""
    assert OBJECTIVE.met(one) is met


def test_goodput() -> None:
    """What failed, was refused, was held back or was slow counts among the planned, and no more."""
    found = figures(
        fired(
            sample(),
            sample(duration_seconds=4.0),
            sample(0.9),
            failure(Fault.ERROR_EVENT),
            failure(Fault.REFUSED),
            None,
            unsent=[5],
        ),
        OBJECTIVE,
    )
    assert (found.planned, found.ok, found.failed, found.refused, found.unsent) == (6, 3, 1, 1, 1)
    assert found.seconds == 4.0
    assert found.goodput == 0.5
    assert found.met == pytest.approx(1 / 3)
    assert found.tokens_per_second == 33 / 4
    assert found.faults == {Fault.ERROR_EVENT: 1}


def test_the_time_of_several_rounds() -> None:
    """Rates are over the time of the rounds, not over what was between them."""
    late = sample(sent_at=50.0, duration_seconds=2.0)
    second = [(fired(late)[0][0], Volley(50.0, [late]))]
    found = figures([*fired(sample(duration_seconds=2.0)), *second], OBJECTIVE)
    assert found.seconds == 4.0
    assert found.goodput == 0.5


def test_without_usage() -> None:
    """Nothing is guessed: what hangs on token counts is unknown, the rest is there."""
    found = figures(fired(sample(), sample(output_tokens=None)), OBJECTIVE)
    assert found.uncounted == 1
    assert (found.tokens_per_second, found.goodput, found.met, found.per_token) == (None,) * 4
    assert found.end_to_end is not None
    assert found.first_token is not None


def test_nothing_at_all() -> None:
    """No sample gives no figure, and no division by nought."""
    for nothing in ([], fired(), fired(None)):
        found = figures(nothing, OBJECTIVE)
        assert (found.planned, found.ok, found.seconds) == (0, 0, 0.0)
        assert (found.goodput, found.met, found.end_to_end, found.lateness) == (None,) * 4
        assert not found.late


def test_only_failures() -> None:
    """They are counted by kind, and what was said is kept of the first few different ones."""
    kinds = [Fault.CUT, Fault.CUT, Fault.TIMEOUT, Fault.CONNECT, Fault.STATUS]
    found = figures(fired(*(failure(kind, kind) for kind in kinds)), OBJECTIVE)
    assert found.faults[Fault.CUT] == 2
    assert found.messages == ("cut", "timeout", "connect")
    assert found.end_to_end is None
    assert found.met == 0.0


@pytest.mark.parametrize(("late", "marked"), [(0.049, False), (0.051, True)])
def test_a_late_generator(late: float, *, marked: bool) -> None:
    """A tenth of the TTFT objective is the line."""
    found = figures(fired(*(sample(sent_at=late) for _ in range(100))), OBJECTIVE)
    assert found.late is marked


def test_who_served() -> None:
    """The share is over answers that say so; none where nobody does."""
    told = [sample(upstream="spec"), sample(upstream="base"), sample(upstream="base"), sample()]
    assert figures(fired(*told), OBJECTIVE).spec_share == pytest.approx(1 / 3)
    assert figures(fired(sample()), OBJECTIVE).spec_share is None


def test_values_and_marks() -> None:
    """They stand in the order of the plan, with a gap where there is nothing to compare."""
    made = fired(sample(), failure(Fault.CUT), None, None, unsent=[3])
    assert values(made, end_to_end_of) == [pytest.approx(0.2), None, None, None]
    assert values(made, first_token_of) == [0.1, None, None, None]
    assert values(made, per_token_of) == [pytest.approx(0.01), None, None, None]
    assert marks(made, OBJECTIVE) == [1.0, 0.0, None, 0.0]
    assert marks(fired(sample(output_tokens=None)), OBJECTIVE) == [None]


def test_a_ratio_over_pairs() -> None:
    """Only requests with both values count; too few have no interval; nought divides nothing."""
    assert ratio([2.0, None, 6.0], [1.0, 9.0, 3.0], Random(0)) == Ratio(2.0)
    assert ratio([], [], Random(0)) is None
    assert ratio([1.0], [0.0], Random(0)) is None


def test_the_interval_of_a_ratio() -> None:
    """It holds the ratio, is wider for a wilder set, and is the same for the same seed."""
    random = Random(5)
    theirs = [random.expovariate(1.0) for _ in range(400)]
    calm = [1.2 * value for value in theirs]
    wild = [1.2 * random.expovariate(1.0) for _ in theirs]
    steady, unsteady = ratio(calm, theirs, Random(1)), ratio(wild, theirs, Random(1))
    assert steady is not None
    assert (steady.value, steady.low, steady.high) == pytest.approx((1.2, 1.2, 1.2))
    assert unsteady == ratio(wild, theirs, Random(1))
    assert unsteady is not None
    assert unsteady.low is not None
    assert unsteady.high is not None
    assert unsteady.low < unsteady.value < unsteady.high
    assert unsteady.high - unsteady.low > 0.1


@pytest.mark.slow
def test_the_interval_covers() -> None:
    """Of samples that are slow in stretches, 90 % intervals hold the truth in most runs.

    Drawing requests one by one holds it in 30 % of these runs.
    """
    covered = 0
    for seed in range(100):
        random = Random(seed)
        ours, theirs = [], []
        for _ in range(60):
            slow, other = random.lognormvariate(0.0, 0.5), random.lognormvariate(0.0, 0.5)
            ours += [slow] * 10
            theirs += [other] * 10
        found = ratio(ours, theirs, random)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert covered >= 75


def test_samples_of_a_server_that_told_a_sequence_number() -> None:
    """Several sequences of one request count by their tokens together."""
    four = replace(sample(), output_tokens=44, sequences=4)
    found = figures(fired(four), OBJECTIVE)
    assert found.per_token is not None
    assert found.per_token.mean == pytest.approx(0.01)
