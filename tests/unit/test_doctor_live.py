"""What a few requests show: doctor's conclusions from given samples."""

from dataclasses import replace

import pytest

from proxy.core.words import UpstreamName
from proxy.tools.asking import Fault, Sample
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.live import Live, check_live

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

GOOD = Sample(
    sent_at=0.0,
    first_token_seconds=0.05,
    last_token_seconds=1.0,
    duration_seconds=1.0,
    prompt_tokens=20,
    output_tokens=60,
    finish_reason="length",
    acceptance_length=None,
    status=200,
    error=None,
    upstream=None,
    reason=None,
)
DRAFTED = replace(GOOD, acceptance_length=2.5)


def live(name: UpstreamName, *samples: Sample, **changed: object) -> Live:
    """What a good server shows, but for what is given."""
    usual = DRAFTED if name is SPEC else GOOD
    fields: dict[str, object] = {
        "name": name,
        "samples": samples or (usual,) * 3,
        "texts": ("one", "two", "three"),
        "refusal": (400, True),
    }
    return Live(**{**fields, **changed})  # type: ignore[arg-type]  # the test's own names


def found(*lives: Live) -> dict[str, Finding]:
    """Findings by code, without those that say that all is well."""
    kept = [
        each
        for each in check_live({each.name: each for each in lives})
        if each.severity is not Severity.OK
    ]
    assert all(each.what and each.why and each.change for each in kept)
    return {each.code.removeprefix("live."): each for each in kept}


def test_two_good_servers_have_nothing_to_say() -> None:
    """All is said to be well."""
    assert found(live(SPEC), live(BASE)) == {}


def test_a_stream_that_fails_is_an_error() -> None:
    """Also one that ends within a 200; what it says is passed on."""
    failed = replace(GOOD, error="the stream ended without [DONE]", fault=Fault.CUT)
    finding = found(live(BASE, GOOD, failed))["stream"]
    assert finding.severity is Severity.ERROR
    assert "[DONE]" in finding.what


def test_a_server_that_fails_all_is_told_once() -> None:
    """Nothing more is concluded from what did not work."""
    failed = replace(GOOD, error="503", fault=Fault.REFUSED)
    assert found(live(SPEC, failed, texts=(), refusal=None)).keys() == {"stream"}


def test_a_stream_without_usage_is_a_warning() -> None:
    """Chunks are no tokens, so nothing could be measured."""
    assert "usage" in found(live(BASE, replace(GOOD, output_tokens=None)))


def test_a_slow_first_token_is_a_warning() -> None:
    """The best of them counts: one may have waited for another."""
    slow = replace(GOOD, first_token_seconds=3.0)
    assert "ttft" in found(live(BASE, slow, slow))
    assert "ttft" not in found(live(BASE, slow, GOOD))


def test_an_acceptance_that_does_not_pay_is_a_warning() -> None:
    """At any load."""
    finding = found(live(SPEC, replace(GOOD, acceptance_length=1.2)))["acceptance_low"]
    assert "1.20" in finding.what


def test_acceptance_is_of_all_tokens_together() -> None:
    """30 tokens at 1 and 30 at 3 take 40 verifications, which is 1.5 a step and not 2."""
    samples = [replace(GOOD, output_tokens=30, acceptance_length=length) for length in (1.0, 3.0)]
    assert live(SPEC, *samples).acceptance_length == pytest.approx(1.5)


@pytest.mark.parametrize("told", [None, 0.0])
def test_a_spec_that_tells_nothing_of_its_drafts_is_a_warning(told: float | None) -> None:
    """It may not speculate at all."""
    assert "acceptance_unknown" in found(live(SPEC, replace(GOOD, acceptance_length=told)))


def test_a_base_that_tells_of_drafts_is_an_error() -> None:
    """Whatever its /server_info says."""
    assert found(live(BASE, DRAFTED))["base_drafts"].severity is Severity.ERROR


@pytest.mark.parametrize("refusal", [(500, False), (200, False), (422, True), (400, False)])
def test_another_shape_of_error_is_a_note(refusal: tuple[int, bool]) -> None:
    """This may be another vendor."""
    assert found(live(BASE, refusal=refusal))["error_shape"].severity is Severity.NOTE


def test_another_number_of_prompt_tokens_is_an_error() -> None:
    """The two see different prompts, so they have different templates or tokenizers."""
    other = replace(GOOD, prompt_tokens=27)
    finding = found(live(SPEC), live(BASE, other))["prompt_tokens"]
    assert finding.severity is Severity.ERROR
    assert "20 tokens on spec and 27 on base" in finding.what


def test_greedy_answers_that_part_are_a_note() -> None:
    """With where they do: late is rounding, early is another model."""
    mine = live(SPEC, texts=("same", "abcdefgh", "same"))
    its = live(BASE, texts=("same", "abcdXfgh", "same"))
    finding = found(mine, its)["greedy"]
    assert finding.severity is Severity.NOTE
    assert "2 of 3" in finding.what
    assert "50%" in finding.what


def test_an_answer_that_is_cut_short_is_not_the_same() -> None:
    """A text that is the beginning of the other agrees to its end, and still differs."""
    finding = found(live(SPEC, texts=("ab",)), live(BASE, texts=("abc",)))["greedy"]
    assert "0 of 1" in finding.what


def test_an_answer_without_text_is_a_warning() -> None:
    """And is not compared."""
    findings = found(live(SPEC, texts=(None, "b", "c")), live(BASE, texts=("a", "b", "c")))
    assert findings.keys() == {"no_text"}
    assert "spec" in findings["no_text"].what


def test_requests_of_others_are_a_note() -> None:
    """What was measured then is of a server under load."""
    assert found(live(BASE, others=3))["busy"].severity is Severity.NOTE
