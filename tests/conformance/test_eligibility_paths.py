"""What each generation path reads that spec serves otherwise than base, and that it goes to base.

The fields are those of SGLang 0.5.23's own request models; docs/eligibility.md has the table.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.core.eligibility import (
    ANTHROPIC_ROWS,
    OLLAMA_ROWS,
    RESPONSES_ROWS,
    Rule,
    Rules,
    SpecLimits,
    Verdict,
    judge,
)
from proxy.core.endpoints import ENDPOINTS, Kind, find
from proxy.core.peek import peek
from tests.harness.client import RawClient, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import ScriptedUpstream

Body = dict[str, object]
PAGE = (Path(__file__).parents[2] / "docs" / "eligibility.md").read_text(encoding="utf-8")

BOUNDS = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}
EVERY_RULE = Rules({r: Verdict.BASE for r in Rule if r not in BOUNDS}, 1, 0)
CONTEXT, RESERVED = 512, 20
LIMITS = SpecLimits(CONTEXT, RESERVED)


@dataclass(frozen=True)
class Values:
    """What a field can hold."""

    neutral: tuple[object, ...]
    telling: tuple[object, ...]
    """Real values, those of a wrong type, and numbers and words as strings."""


ABOVE_ZERO = Values((0, 0.0, "0"), (0.5, "0.5", True, {"a": 0}, "high"))
OTHER_THAN_ONE = Values((1, 1.0, "1"), (1.5, "1.5", 0, {"a": 1}, "high"))
SWITCH = Values((False, 0, "false"), (True, 1, "true", {"a": 0}, "maybe"))
GIVEN = Values(("", {}, []), ("x", {"id": "a"}, 1))
FORMAT = Values(({"type": "text"},), ({"type": "json_object"}, "text", 1))
WITHIN_FORMAT = Values(({"format": {"type": "text"}}, {}), ({"format": {"type": "x"}}, 1))
CHOICE = Values(("auto", "none"), ("required", {"type": "function"}, 1))
STRICT = Values(([{"name": "f", "strict": False}], []), ([{"name": "f", "strict": True}],))
ASKED = Values((False, "false"), (True, 0, "2"))

PENALTIES = {
    "frequency_penalty": (Rule.PENALTIES, ABOVE_ZERO),
    "presence_penalty": (Rule.PENALTIES, ABOVE_ZERO),
}
SAMPLING = {
    **PENALTIES,
    "repetition_penalty": (Rule.PENALTIES, OTHER_THAN_ONE),
    "min_p": (Rule.MIN_P, ABOVE_ZERO),
}
OPENAI = {
    **SAMPLING,
    "min_tokens": (Rule.MIN_TOKENS, ABOVE_ZERO),
    "custom_logit_processor": (Rule.CUSTOM_LOGIT_PROCESSOR, GIVEN),
    "return_hidden_states": (Rule.HIDDEN_STATES, SWITCH),
    "session_params": (Rule.STORED_STATE, GIVEN),
    "lora_path": (Rule.LORA, GIVEN),
    "response_format": (Rule.STRUCTURED_OUTPUT, FORMAT),
    "regex": (Rule.STRUCTURED_OUTPUT, GIVEN),
    "ebnf": (Rule.STRUCTURED_OUTPUT, GIVEN),
    "logprobs": (Rule.LOGPROBS, ASKED),
}
TOOLS = {
    "tool_choice": (Rule.STRUCTURED_OUTPUT, CHOICE),
    "tools": (Rule.STRUCTURED_OUTPUT, STRICT),
}
CHAT = {
    **OPENAI,
    **TOOLS,
    "return_sampling_mask": (Rule.SAMPLING_MASK, SWITCH),
    "top_logprobs": (Rule.LOGPROBS, ABOVE_ZERO),
}
FIELDS: dict[str, dict[str, tuple[Rule, Values]]] = {
    "/v1/chat/completions": CHAT,
    "/invocations": CHAT,
    "/v1/completions": {**OPENAI, "json_schema": (Rule.STRUCTURED_OUTPUT, GIVEN)},
    "/v1/responses": {
        **SAMPLING,
        **TOOLS,
        "background": (Rule.STORED_STATE, SWITCH),
        "store": (Rule.STORED_STATE, SWITCH),
        "previous_response_id": (Rule.STORED_STATE, GIVEN),
        "text": (Rule.STRUCTURED_OUTPUT, WITHIN_FORMAT),
        "top_logprobs": (Rule.LOGPROBS, ABOVE_ZERO),
        "include": (
            Rule.LOGPROBS,
            Values((["reasoning.encrypted_content"], []), (["message.output_text.logprobs"],)),
        ),
    },
    "/v1/messages": {**TOOLS, "output_config": (Rule.STRUCTURED_OUTPUT, WITHIN_FORMAT)},
    "/generate": {
        **{f"sampling_params.{name}": rule for name, rule in SAMPLING.items()},
        "sampling_params.min_new_tokens": (Rule.MIN_TOKENS, ABOVE_ZERO),
        "sampling_params.beam_width": (Rule.BEAM_SEARCH, OTHER_THAN_ONE),
        "sampling_params.json_schema": (Rule.STRUCTURED_OUTPUT, GIVEN),
        "sampling_params.regex": (Rule.STRUCTURED_OUTPUT, GIVEN),
        "sampling_params.ebnf": (Rule.STRUCTURED_OUTPUT, GIVEN),
        "sampling_params.structural_tag": (Rule.STRUCTURED_OUTPUT, GIVEN),
        "custom_logit_processor": (Rule.CUSTOM_LOGIT_PROCESSOR, GIVEN),
        "return_sampling_mask": (Rule.SAMPLING_MASK, SWITCH),
        "return_hidden_states": (Rule.HIDDEN_STATES, SWITCH),
        "session_params": (Rule.STORED_STATE, GIVEN),
        "background": (Rule.STORED_STATE, SWITCH),
        "lora_path": (Rule.LORA, GIVEN),
        "return_logprob": (Rule.LOGPROBS, SWITCH),
        "top_logprobs_num": (Rule.LOGPROBS, ABOVE_ZERO),
        "token_ids_logprob": (Rule.LOGPROBS, GIVEN),
    },
    "/api/chat": {f"options.{name}": rule for name, rule in PENALTIES.items()},
    "/api/generate": {f"options.{name}": rule for name, rule in PENALTIES.items()},
}

MESSAGES = [{"role": "user", "content": "hello"}]
PLAIN: dict[str, Body] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 8},
    "/invocations": {"messages": MESSAGES, "max_tokens": 8},
    "/v1/completions": {"prompt": "hello", "max_tokens": 8},
    "/v1/responses": {"input": "hello", "max_output_tokens": 8},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 8}},
    "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"num_predict": 8}},
    "/api/generate": {"prompt": "hello", "stream": False, "options": {"num_predict": 8}},
}
LIMIT = {
    "/v1/chat/completions": "max_completion_tokens",
    "/invocations": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
    "/generate": "sampling_params.max_new_tokens",
    "/api/chat": "options.num_predict",
    "/api/generate": "options.num_predict",
}
TEXT = ("prompt", "input", "text", "messages")


def asking(path: str, field: str, value: object) -> Body:
    """The plain request of *path*, with *value* in *field*."""
    place, _, name = field.rpartition(".")
    plain = PLAIN[path]
    if not place:
        return {**plain, name: value}
    inner = plain[place]
    assert isinstance(inner, dict)
    return {**plain, place: {**inner, name: value}}


def rule_of(path: str, body: object, *, adapters: frozenset[str] = frozenset()) -> Rule | None:
    """The rule by which *body* would go to base, were every rule heeded."""
    endpoint = find(path.encode())
    assert endpoint is not None
    assert endpoint.dialect is not None
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    traits = peek(raw, endpoint.dialect, estimate_prompt=False, limits=LIMITS)
    return judge(traits, EVERY_RULE, adapters, LIMITS).rule


def cases(kind: str) -> Iterator[tuple[str, str, object, Rule | None]]:
    """Every path, each of its fields, and each value of that *kind*, with the rule it triggers."""
    for path, fields in FIELDS.items():
        for field, (rule, values) in fields.items():
            for value in (*values.neutral, None) if kind == "neutral" else values.telling:
                yield path, field, value, None if kind == "neutral" else rule


def test_every_generation_path_is_here() -> None:
    """A new one cannot be forgotten."""
    served = {each.template for each in ENDPOINTS if each.kind is Kind.GENERATION}

    assert served == FIELDS.keys() == PLAIN.keys() == LIMIT.keys()


@pytest.mark.parametrize("path", sorted(PLAIN))
def test_a_plain_request_triggers_nothing(path: str) -> None:
    """Nor does what has no meaning for speculation."""
    either = {"seed": 1, "logit_bias": {"7": 5}, "temperature": 2, "top_k": 5, "n": 3, "stop": "x"}

    assert rule_of(path, PLAIN[path]) is None
    assert rule_of(path, {**either, **PLAIN[path]}) is None


@pytest.mark.parametrize(("path", "field", "value", "rule"), [*cases("neutral")])
def test_neutral_values_trigger_nothing(
    path: str, field: str, value: object, rule: Rule | None
) -> None:
    """Null, absent, nought or one, as a number or as a string."""
    assert rule_of(path, asking(path, field, value)) is rule


@pytest.mark.parametrize(("path", "field", "value", "rule"), [*cases("telling")])
def test_what_is_not_neutral_triggers_its_rule(
    path: str, field: str, value: object, rule: Rule
) -> None:
    """Real values, wrong types, numbers in strings: in doubt the rule applies."""
    assert rule_of(path, asking(path, field, value)) is rule


@pytest.mark.parametrize("field", [f for f in FIELDS["/generate"] if f.startswith("sampling")])
def test_any_set_of_sampling_params_counts(field: str) -> None:
    """/generate takes a list of them, one for each prompt; any of them sends the batch to base."""
    rule, values = FIELDS["/generate"][field]
    name = field.partition(".")[2]
    for value, expected in ((values.telling[0], rule), (values.neutral[0], None), (None, None)):
        sets = [{"max_new_tokens": 8}, {"max_new_tokens": 8, name: value}]
        body = {"text": ["hello", "world"], "sampling_params": sets}

        assert rule_of("/generate", body) is expected


@pytest.mark.parametrize("field", [f for f in FIELDS["/generate"] if "." not in f])
def test_any_element_of_a_list_counts(field: str) -> None:
    """What stands beside sampling_params may be a list, too, one element for each prompt."""
    rule, values = FIELDS["/generate"][field]
    value = values.telling[0]

    assert rule_of("/generate", asking("/generate", field, [None, value])) is rule
    assert rule_of("/generate", asking("/generate", field, [None, None])) is None


@pytest.mark.parametrize("path", sorted(PLAIN))
def test_a_short_answer(path: str) -> None:
    """Prefill and hardly anything else: drafts gain nothing, and their prefill is paid."""
    assert rule_of(path, asking(path, LIMIT[path], 1)) is Rule.SHORT_OUTPUT_TOKENS
    assert rule_of(path, asking(path, LIMIT[path], "1")) is Rule.SHORT_OUTPUT_TOKENS
    assert rule_of(path, asking(path, LIMIT[path], 2)) is None


@pytest.mark.parametrize("path", sorted(PLAIN))
def test_an_adapter_in_the_model(path: str) -> None:
    """Its own id, or after a colon; a tag that is no adapter is none."""
    for model, rule in (("tiny:sql", Rule.LORA), ("sql", Rule.LORA), ("tiny:latest", None)):
        body = {**PLAIN[path], "model": model}

        assert rule_of(path, body, adapters=frozenset({"sql"})) is rule


def near_the_limit(path: str) -> Body:
    """A request that base can hold and spec cannot: 10 tokens of room, and spec reserves 20."""
    words = "word " * ((CONTEXT - 200 - 10) * 4 // 5 * 2 // 3)
    body = asking(path, LIMIT[path], 200)
    (field,) = [name for name in TEXT if name in body]
    return {**body, field: [{"role": "user", "content": words}] if field == "messages" else words}


@pytest.mark.parametrize("path", sorted(PLAIN))
def test_near_the_context_limit(path: str) -> None:
    """By the upper estimate; with a shorter answer there is room."""
    body = near_the_limit(path)
    inner, _, name = LIMIT[path].rpartition(".")
    shorter = {**body, inner: {name: 100}} if inner else {**body, name: 100}

    assert rule_of(path, body) is Rule.CONTEXT_LIMIT
    assert rule_of(path, shorter) is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": None}),
        ("/generate", {"input_ids": None}),
        ("/v1/chat/completions", {"messages": MESSAGES, "input_ids": None}),
    ],
)
def test_token_ids_are_counted_and_not_guessed(path: str, body: Body) -> None:
    """To the token: 92 + 400 is what spec has room for."""
    (ids,) = [name for name, value in body.items() if value is None]
    inner, _, name = LIMIT[path].rpartition(".")
    limit: Body = {inner: {name: 400}} if inner else {name: 400}
    for count, rule in ((92, None), (93, Rule.CONTEXT_LIMIT)):
        assert rule_of(path, {**body, ids: [1] * count, **limit}) is rule


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_media_are_not_text(path: str) -> None:
    """A picture in the body is not weighed as a prompt, however long it is written."""
    data = "data:image/png;base64," + "A" * 100_000
    content = [{"type": "image", "image_url": {"url": data}, "source": {"data": data}}]
    field = "input" if path == "/v1/responses" else "messages"

    assert rule_of(path, {**PLAIN[path], field: [{"role": "user", "content": content}]}) is None


def through(path: str) -> Iterator[tuple[Rule, Body]]:
    """For each rule that *path* can trigger, a request that does."""
    seen: set[Rule] = set()
    for field, (rule, values) in FIELDS[path].items():
        if rule not in seen:
            seen.add(rule)
            yield rule, asking(path, field, values.telling[0])
    yield Rule.SHORT_OUTPUT_TOKENS, asking(path, LIMIT[path], 1)
    yield Rule.CONTEXT_LIMIT, near_the_limit(path)


@pytest.mark.parametrize("path", sorted(PLAIN))
async def test_it_goes_to_base_and_is_counted(path: str) -> None:
    """Through specswitch, although the operator says spec: the reason in the head and in the count.

    A rule that prefers base comes after the operator, so control is `auto` for those.
    """
    tree = {"speculative_num_steps": 5, "speculative_eagle_topk": 4}
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    for upstream in (spec, base):
        assert upstream.info is not None
        upstream.info |= {"context_length": CONTEXT, **(tree if upstream is spec else {})}
    async with rig(
        spec=spec,
        base=base,
        eligibility__structured_output="base",
        eligibility__logprobs="base",
    ) as it:
        client = await it.client()
        for rule, body in through(path):
            await _goes_to_base(it, client, path, body, rule)
        assert not spec.requests
        client.send(post(path, PLAIN[path]))
        assert (await client.response()).header("x-specswitch-upstream") == "spec"


async def _goes_to_base(it: Rig, client: RawClient, path: str, body: Body, rule: Rule) -> None:
    prefers = rule in {Rule.LORA, Rule.CONTEXT_LIMIT, Rule.SHORT_OUTPUT_TOKENS}
    await it.admin("PUT", "/admin/control", {"control": "auto" if prefers else "spec"})
    reason = f"eligibility:{rule}"
    client.send(post(path, body))
    answer = await client.response()

    found = answer.header("x-specswitch-upstream"), answer.header("x-specswitch-reason")
    assert found == ("base", reason), body
    assert it.base.requests[-1].body == json.dumps(body).encode()
    assert it.metric("decisions_total", upstream="base", reason=reason) == 1


def test_the_page_has_every_rule_and_every_field() -> None:
    """docs/eligibility.md: a row for each rule, and in it each field that triggers it."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    rows = {cells[1].strip().strip("`"): cells for cells in (line.split("|") for line in lines)}
    fields: dict[Rule, set[str]] = {}
    for name, (rule, _) in (*RESPONSES_ROWS.items(), *ANTHROPIC_ROWS.items(), *OLLAMA_ROWS.items()):
        fields.setdefault(rule, set()).add(name)

    assert rows.keys() >= set(Rule)
    for rule, names in fields.items():
        assert names <= set(re.findall(r"`([\w.]+)`", rows[rule][2])), rule
