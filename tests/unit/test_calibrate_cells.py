"""What a closed loop measured: the time of a step, what is in flight, and what is refused."""

import re
from dataclasses import replace
from math import nan

import pytest

from proxy.core.curves import Prefill
from proxy.core.words import UpstreamName
from proxy.tools.asking import Sample
from proxy.tools.calibrate.cells import (
    Measurement,
    Part,
    Place,
    Timed,
    check,
    flaw,
    in_flight,
    step_seconds,
    timed,
)
from proxy.tools.curves.cells import BadDataError

PLACE = Place(Part.SWEEP, UpstreamName.SPEC, 2)
PREFILL = Prefill(0.1, 0.002)

GOOD = Sample(
    sent_at=10.0,
    first_token_seconds=0.2,
    last_token_seconds=2.1,
    duration_seconds=2.2,
    prompt_tokens=100,
    output_tokens=20,
    finish_reason="length",
    acceptance_length=2.5,
    status=200,
    error=None,
    upstream=None,
    reason=None,
)


def _request(sent: float, first: float | None, last: float | None, **fields: object) -> Timed:
    known: dict[str, object] = {
        "prompt": 0,
        "measured": True,
        "ended": last,
        "prompt_tokens": 100,
        "output_tokens": 11,
        **fields,
    }
    return Timed(sent=sent, first=first, last=last, **known)  # type: ignore[arg-type]  # the test's own names


def _cell(*requests: Timed, late: float = 0.0, concurrency: int = 2) -> Measurement:
    place = replace(PLACE, concurrency=concurrency)
    return Measurement(place=place, requests=requests, late_seconds=late)


def test_a_request_is_timed_from_the_start_of_its_cell() -> None:
    """All stamps share one origin."""
    found = timed(3, GOOD, measured=True, origin=9.0)
    assert (found.sent, found.first, found.last, found.ended) == pytest.approx((1, 1.2, 3.1, 3.2))
    assert (found.prompt, found.prompt_tokens, found.output_tokens) == (3, 100, 20)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"error": "503: busy", "status": 503}, "503: busy"),
        ({"output_tokens": None}, "reports no usage"),
        ({"prompt_tokens": None}, "reports no usage"),
        ({"output_tokens": 12, "finish_reason": "stop"}, "12 tokens where 20 .*stop"),
        ({"output_tokens": 0}, "0 tokens where 20"),
        ({"first_token_seconds": None}, "no token was seen"),
        ({"last_token_seconds": None}, "no token was seen"),
        ({"last_token_seconds": nan}, "no numbers"),
        ({"last_token_seconds": 0.2}, "at one instant"),
    ],
)
def test_an_answer_that_proves_nothing_is_told(changed: dict[str, object], said: str) -> None:
    """Each flaw in its own words."""
    wrong = flaw(replace(GOOD, **changed), 20)  # type: ignore[arg-type]  # the test's own names
    assert wrong is not None
    assert re.search(said, wrong)


def test_a_good_answer_has_no_flaw() -> None:
    """Twenty tokens asked for and given."""
    assert flaw(GOOD, 20) is None


def test_a_few_tokens_may_come_at_once() -> None:
    """Two tokens fit one packet, or one verify round."""
    assert flaw(replace(GOOD, output_tokens=2, last_token_seconds=0.2), 2) is None


def test_others_prompts_are_taken_out() -> None:
    """While one is filled the others stand still: 0.2 s of the first's 1.2 s are the second's."""
    found = _cell(_request(0.0, 0.2, 1.4), _request(0.7, 1.0, 2.2, prompt=1))
    first, second = step_seconds(found, PREFILL)
    assert first == pytest.approx((1.2 - 0.2) / 10)
    assert second == pytest.approx(1.2 / 10)


def test_a_prompt_takes_no_longer_than_its_request_waited() -> None:
    """A cached prompt is filled faster than the line says."""
    found = _cell(_request(0.0, 0.2, 1.4), _request(0.95, 1.0, 2.2, prompt=1))
    assert step_seconds(found, PREFILL)[0] == pytest.approx((1.2 - 0.05) / 10)


def test_prompts_that_were_filled_together_hold_nobody_up() -> None:
    """Both first tokens came out of one pass, however their packets were read."""
    found = _cell(_request(0.0, 0.3, 1.3), _request(0.0, 0.301, 1.301, prompt=1))
    assert step_seconds(found, PREFILL) == pytest.approx([(1.0 - 0.001) / 10, 0.1])


def test_one_answer_keeps_a_time_above_zero() -> None:
    """Where one was seen so late that others' prompts seem to fill it all."""
    short, other = _request(0.0, 0.2, 0.3), _request(0.0, 0.3, 2.3, prompt=1)
    assert step_seconds(_cell(short, other), PREFILL)[0] == pytest.approx(0.1 * 0.05 / 10)


def test_one_that_was_given_up_has_stood_in_the_way_as_well() -> None:
    """Its first token was not seen, but its prompt is known from another request."""
    given_up = _request(1.0, None, None, measured=False, prompt_tokens=None, output_tokens=None)
    found = _cell(_request(0.0, 0.2, 1.4), given_up)
    assert step_seconds(found, PREFILL) == [pytest.approx((1.2 - 0.2) / 10)]


def test_a_cell_of_nothing_but_prompts_is_refused() -> None:
    """What is left would be a difference of two large numbers."""
    others = [_request(n / 10, 0.25 + n / 10, 3.0, measured=False) for n in range(1, 7)]
    with pytest.raises(BadDataError, match="spec at concurrency 2: others' prompts took"):
        step_seconds(_cell(_request(0.0, 0.2, 1.4), *others), PREFILL)


def test_what_is_in_flight_is_what_decodes() -> None:
    """The other one is missing for 0.2 of 1.2 s: a wait of 0.1 s and an end of 0.1 s."""
    found = _cell(_request(0.0, 0.4, 1.4, ended=1.5), concurrency=3)
    assert in_flight(found, PREFILL) == pytest.approx(1 + 2 * 1.0 / 1.2)


def test_a_lone_request_is_one_in_flight() -> None:
    """However long it waited for its first token."""
    assert in_flight(_cell(_request(0.0, 5.0, 6.0), concurrency=1), PREFILL) == 1.0


def test_the_rate_is_by_what_each_request_took() -> None:
    """Two at a time, 11 tokens in 1.1 s each: 20 tokens/s."""
    found = _cell(_request(0.0, 0.2, 1.1), _request(0.5, 0.7, 1.6))
    assert found.rate == pytest.approx(20.0)


def test_only_measured_requests_count() -> None:
    """What warmed up or was left over says nothing of the rate."""
    found = _cell(_request(0.0, 0.2, 1.1), _request(0.0, 0.2, 9.9, measured=False))
    assert found.rate == pytest.approx(20.0)
    assert found.seconds_per_token == pytest.approx(0.09)
    assert found.first_token_seconds == pytest.approx(0.2)


def test_acceptance_is_unknown_where_nobody_tells() -> None:
    """And the mean of those who do."""
    assert _cell(_request(0.0, 0.2, 1.1)).acceptance_length is None
    told = _cell(
        _request(0.0, 0.2, 1.1, acceptance_length=2.0),
        _request(0.0, 0.2, 1.1, acceptance_length=3.0),
        _request(0.0, 0.2, 1.1),
    )
    assert told.acceptance_length == pytest.approx(2.5)


def test_a_late_loop_is_refused() -> None:
    """A clock that is read 60 ms late tells an answer of a second to 6 %."""
    with pytest.raises(
        BadDataError, match=r"60\.0 ms late for its clock while an answer took 1000 ms"
    ):
        check(_cell(_request(0.0, 0.2, 1.2), late=0.06), 0.05)
    check(_cell(_request(0.0, 0.2, 1.2), late=0.04), 0.05)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Part.SWEEP, "base at concurrency 4"),
        (Part.BOTH, "base at concurrency 4 beside the other"),
        (Part.LONG, "base at concurrency 4, long prompts"),
    ],
)
def test_a_place_says_where_it_is(part: Part, said: str) -> None:
    """In errors and on the progress line."""
    assert str(Place(part, UpstreamName.BASE, 4)) == said
