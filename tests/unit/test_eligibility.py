"""Eligibility: the strongest verdict wins, and only what is not neutral triggers a rule."""

from dataclasses import replace

import pytest

from proxy.core.eligibility import (
    ANTHROPIC_ROWS,
    OLLAMA_ROWS,
    RESPONSES_ROWS,
    ROWS,
    Eligibility,
    Rule,
    Rules,
    SpecLimits,
    Traits,
    Verdict,
    judge,
    lax_number,
    lax_truth,
)
from proxy.core.identity import Identity

BOUNDS = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}
VERDICTS = {
    **dict.fromkeys(set(Rule) - BOUNDS, Verdict.BASE),
    Rule.UNPEEKED: Verdict.PREFER,
    Rule.CONTEXT_LIMIT: Verdict.PREFER,
    Rule.LORA: Verdict.PREFER,
    Rule.STRUCTURED_OUTPUT: Verdict.ANY,
    Rule.LOGPROBS: Verdict.ANY,
}
RULES = Rules(verdicts=VERDICTS, short_output_tokens=1, max_spec_prompt_tokens=0)
PLAIN = Traits(
    sequences=1,
    stream=True,
    max_tokens=256,
    model="tiny",
    prompt_tokens=None,
    features=frozenset(),
    parsed=True,
)
ANYWHERE = Eligibility(Verdict.ANY, None)
NO_ADAPTERS: frozenset[str] = frozenset()


def having(*rules: Rule) -> Traits:
    """A plain request that triggers *rules*."""
    return PLAIN._replace(features=frozenset(rules))


def test_a_plain_request_may_go_anywhere() -> None:
    """Nothing triggered, nothing bound."""
    assert judge(PLAIN, RULES, NO_ADAPTERS) == ANYWHERE


def test_what_a_judgement_adds_takes_nothing_away() -> None:
    """What the body triggers counts beside the rules that look at more than the body."""
    traits = PLAIN._replace(
        features=frozenset({Rule.BEAM_SEARCH}),
        model="m:ad",
        max_tokens=1,
        prompt_tokens=9,
        needed_tokens=9,
    )
    limits = SpecLimits(context_tokens=9, reserved_tokens=1)
    rules = replace(RULES, max_spec_prompt_tokens=1)

    found = judge(traits, rules, frozenset({"ad"}), limits)
    assert found == Eligibility(Verdict.BASE, Rule.BEAM_SEARCH)


def test_what_is_stored_unasked_is_stored() -> None:
    """It triggers the rule that asking for it does."""
    assert judge(PLAIN, RULES, NO_ADAPTERS, stored=True) == judge(
        having(Rule.STORED_STATE), RULES, NO_ADAPTERS
    )


@pytest.mark.parametrize("rule", sorted(set(Rule) - BOUNDS))
def test_each_rule_means_what_the_configuration_says(rule: Rule) -> None:
    """One triggered rule gives its own verdict, and is named unless it means nothing."""
    for verdict in Verdict:
        rules = Rules({**VERDICTS, rule: verdict}, 1, 0)
        expected = ANYWHERE if verdict is Verdict.ANY else Eligibility(verdict, rule)

        assert judge(having(rule), rules, NO_ADAPTERS) == expected


def test_the_strongest_verdict_wins_whatever_the_order() -> None:
    """`base` beats `prefer`, although the preferring rule could come first."""
    rules = Rules({**VERDICTS, Rule.PENALTIES: Verdict.PREFER}, 1, 0)

    assert judge(having(Rule.PENALTIES, Rule.STORED_STATE), rules, NO_ADAPTERS) == Eligibility(
        Verdict.BASE, Rule.STORED_STATE
    )


def test_of_equal_verdicts_the_first_rule_is_named() -> None:
    """The order is that of the table."""
    both = having(Rule.MIN_TOKENS, Rule.MIN_P)

    assert judge(both, RULES, NO_ADAPTERS) == Eligibility(Verdict.BASE, Rule.MIN_P)


@pytest.mark.parametrize(
    ("limit", "bound", "prefers"),
    [(0, 1, True), (1, 1, True), (2, 1, False), (None, 1, False), (16, 16, True), (0, -1, False)],
)
def test_a_short_output_prefers_base(limit: int | None, bound: int, *, prefers: bool) -> None:
    """At or below the bound; a request without a limit is not short."""
    found = judge(PLAIN._replace(max_tokens=limit), Rules(VERDICTS, bound, 0), NO_ADAPTERS)

    expected = Eligibility(Verdict.PREFER, Rule.SHORT_OUTPUT_TOKENS) if prefers else ANYWHERE
    assert found == expected


@pytest.mark.parametrize(
    ("estimate", "bound", "prefers"),
    [(101, 100, True), (100, 100, False), (None, 100, False), (10**9, 0, False)],
)
def test_a_long_prompt_prefers_base(estimate: int | None, bound: int, *, prefers: bool) -> None:
    """Above the bound; 0 is no bound."""
    found = judge(PLAIN._replace(prompt_tokens=estimate), Rules(VERDICTS, 1, bound), NO_ADAPTERS)

    expected = Eligibility(Verdict.PREFER, Rule.MAX_SPEC_PROMPT_TOKENS) if prefers else ANYWHERE
    assert found == expected


LIMITS = SpecLimits(context_tokens=4096, reserved_tokens=20)


@pytest.mark.parametrize(
    ("needed", "limits", "prefers"),
    [
        (4077, LIMITS, True),
        (4076, LIMITS, False),
        (10**9, LIMITS, True),
        (None, LIMITS, False),
        (4077, None, False),
    ],
)
def test_what_may_not_fit_spec_prefers_base(
    needed: int | None, limits: SpecLimits | None, *, prefers: bool
) -> None:
    """Spec has as many tokens less as it reserves; one more than that is too many."""
    found = judge(PLAIN._replace(needed_tokens=needed), RULES, NO_ADAPTERS, limits)

    assert found == (Eligibility(Verdict.PREFER, Rule.CONTEXT_LIMIT) if prefers else ANYWHERE)


@pytest.mark.parametrize("verdict", Verdict)
def test_the_context_limit_means_what_the_configuration_says(verdict: Verdict) -> None:
    """It is a rule like the others, though no field of the body names it."""
    rules = Rules({**VERDICTS, Rule.CONTEXT_LIMIT: verdict}, 1, 0)
    found = judge(PLAIN._replace(needed_tokens=5000), rules, NO_ADAPTERS, LIMITS)

    assert found.verdict is verdict


SPEC = Identity(
    known=True,
    speculative_algorithm="EAGLE3",
    context_length=4096,
    speculative_num_steps=5,
    speculative_eagle_topk=4,
    speculative_num_draft_tokens=8,
)


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        (SPEC, LIMITS),
        (replace(SPEC, context_length=None), None),
        (replace(SPEC, speculative_algorithm="NGRAM"), None),
        (Identity(known=False), None),
        (None, None),
    ],
)
def test_limits_are_those_of_the_server(spec: Identity | None, limits: SpecLimits | None) -> None:
    """None where it keeps nothing for drafts, or does not say: then nothing is weighed."""
    assert SpecLimits.of(spec) == limits


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("tiny:sql", True),
        ("sql", True),
        ("s3://bucket/tiny:sql", True),
        ("tiny: sql ", True),
        ("tiny:latest", False),
        ("tiny:sql:v2", False),
        ("tiny", False),
        ("tiny:", False),
        (None, False),
    ],
)
def test_only_a_known_adapter_counts_as_lora(model: str | None, *, named: bool) -> None:
    """By its own id or after any colon; Ollama's name:tag is none."""
    found = judge(PLAIN._replace(model=model), RULES, frozenset({"sql"}))

    assert found == (Eligibility(Verdict.PREFER, Rule.LORA) if named else ANYWHERE)


def test_without_adapters_no_suffix_counts() -> None:
    """A server without LoRA has none to name."""
    assert judge(PLAIN._replace(model="tiny:sql"), RULES, NO_ADAPTERS) == ANYWHERE


def test_an_unpeeked_body_is_taken_for_a_stream_of_one() -> None:
    """Nothing is known, and a stream's deadlines are the watchful ones."""
    traits = Traits.unpeeked()

    assert tuple(traits) == (
        *(1, True, None, None, None, frozenset({Rule.UNPEEKED}), False, None),
        False,
    )
    assert judge(traits, RULES, NO_ADAPTERS) == Eligibility(Verdict.PREFER, Rule.UNPEEKED)


def test_a_table_with_a_gap_cannot_exist() -> None:
    """A rule without a verdict is an error at once, and is named."""
    short = dict(VERDICTS)
    del short[Rule.MIN_P]

    with pytest.raises(ValueError, match="min_p"):
        Rules(short, 1, 0)


def test_a_bound_takes_no_verdict() -> None:
    """The two bounds mean `prefer`; a verdict for one would never be heard."""
    with pytest.raises(ValueError, match="short_output_tokens"):
        Rules({**VERDICTS, Rule.SHORT_OUTPUT_TOKENS: Verdict.BASE}, 1, 0)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (0.5, 0.5),
        (True, 1),
        ("0.1", 0.1),
        (" 2 ", 2),
        ("x", None),
        ("", None),
        ([1], None),
        ({}, None),
        (None, None),
    ],
)
def test_numbers_are_read_as_pydantic_reads_them(value: object, number: float | None) -> None:
    """A numeric string is its number; the rest is none."""
    assert lax_number(value) == number


@pytest.mark.parametrize("value", [True, 1, 1.0, "true", "1", " Yes ", "on", "T"])
def test_what_pydantic_calls_true_is_true(value: object) -> None:
    """`stream: "yes"` streams."""
    assert lax_truth(value)


@pytest.mark.parametrize("value", [False, 0, 2, "false", "", "maybe", None, [], [True], {}])
def test_the_rest_is_not_true(value: object) -> None:
    """The engine refuses what is neither; it does not stream."""
    assert not lax_truth(value)


NUMBERS = ("frequency_penalty", "presence_penalty", "min_p", "min_tokens", "min_new_tokens")
ONES = ("repetition_penalty", "repeat_penalty", "beam_width")
SWITCHES = (
    "use_beam_search",
    "return_sampling_mask",
    "return_hidden_states",
    "background",
    "store",
    "return_logprob",
)
TEXTS = (
    "custom_logit_processor",
    "previous_response_id",
    "session_params",
    "lora_path",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "token_ids_logprob",
)
NEUTRAL: list[tuple[tuple[str, ...], list[object]]] = [
    (NUMBERS, [0, 0.0, -0.0, "0", "0.0", " 0 ", "-0e5", False]),
    (ONES, [1, 1.0, "1", "1.00", True]),
    (SWITCHES, [False, 0, "", "false", "OFF", " no ", "n", "f", "0"]),
    (TEXTS, ["", {}, [], 0, False]),
    (("top_logprobs", "top_logprobs_num"), [0, "0"]),
    (("logprobs",), [False, "false"]),
    (("response_format",), [{"type": "text"}, {}, {"type": None}]),
    (("tool_choice",), ["auto", "none", {"type": "auto"}, {"type": "none"}]),
]
TELLING: list[tuple[tuple[str, ...], list[object]]] = [
    (NUMBERS, [0.1, 1, -2, "0.1", "nan", float("nan"), float("inf"), "x", {}, object(), 1e-300]),
    (ONES, [0, 1.1, 2, "2", "x", float("nan"), False, {}, object()]),
    (SWITCHES, [True, 1, "true", "last", "x", {"a": 1}, object()]),
    (TEXTS, ["x", {"id": "s"}, 1, True, object()]),
    (("top_logprobs", "top_logprobs_num"), [1, "5", object()]),
    (("logprobs",), [True, 0, 1, 5, "1", "true", object()]),
    (("response_format",), [{"type": "json_object"}, {"type": "json_schema"}, "text", object()]),
    (("tool_choice",), ["required", {"type": "function"}, {"type": "any"}, {}, 1, object()]),
]


def spread(table: list[tuple[tuple[str, ...], list[object]]]) -> list[tuple[str, object]]:
    """Every field with each of its values."""
    return [(field, value) for fields, values in table for field in fields for value in values]


@pytest.mark.parametrize(("field", "value"), spread(NEUTRAL))
def test_neutral_values_trigger_nothing(field: str, value: object) -> None:
    """What an engine takes for `not asked` is not held against a request."""
    _, neutral = ROWS[field]

    assert neutral(value)


@pytest.mark.parametrize(("field", "value"), spread(TELLING))
def test_values_that_are_not_recognised_trigger(field: str, value: object) -> None:
    """In doubt the rule applies: base serves everything right."""
    _, neutral = ROWS[field]

    assert not neutral(value)


def test_every_field_of_the_table_is_tried_here() -> None:
    """A new row needs its values in the two lists above."""
    tried = {field for fields, _ in NEUTRAL for field in fields}

    assert tried == ROWS.keys() == {field for fields, _ in TELLING for field in fields}


@pytest.mark.parametrize(
    ("value", "neutral"),
    [
        ({}, True),
        ({"format": None}, True),
        ({"format": {"type": "text"}}, True),
        ({"verbosity": "low"}, True),
        ({"format": {"type": "json_schema"}}, False),
        ({"format": "json"}, False),
        ("json", False),
    ],
)
def test_formats_of_responses_and_anthropic(value: object, *, neutral: bool) -> None:
    """`text` and `output_config` hold the format one level down."""
    for rule, test in (RESPONSES_ROWS["text"], ANTHROPIC_ROWS["output_config"]):
        assert rule is Rule.STRUCTURED_OUTPUT
        assert test(value) is neutral


def test_logprobs_of_responses_are_asked_for_by_name() -> None:
    """Other inclusions are nothing to us."""
    rule, neutral = RESPONSES_ROWS["include"]

    assert rule is Rule.LOGPROBS
    assert neutral("reasoning.encrypted_content")
    assert not neutral("message.output_text.logprobs")


def test_ollamas_format_is_structured_output() -> None:
    """Whether the engine heeds it or not."""
    rule, neutral = OLLAMA_ROWS["format"]

    assert rule is Rule.STRUCTURED_OUTPUT
    assert neutral("")
    assert not neutral("json")


@pytest.mark.parametrize(("model", "rule"), [("m:ad", Rule.LORA), ("m", None), (None, None)])
def test_while_adapters_are_unknown_any_suffix_may_be_one(
    model: str | None, rule: Rule | None
) -> None:
    """A request that only base can serve must not reach spec because nobody has asked yet."""
    verdicts = {**RULES.verdicts, Rule.LORA: Verdict.BASE}
    told = judge(PLAIN._replace(model=model), replace(RULES, verdicts=verdicts), None)
    assert told.rule is rule
