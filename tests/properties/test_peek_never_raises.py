"""Peeking never raises, and what it says stays within its bounds, whatever the body is."""

import json
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.eligibility import ROWS, Rule, Rules, SpecLimits, Verdict, judge
from proxy.core.peek import MAX_SEQUENCES, Dialect, peek

NAMES = sorted(
    {
        *ROWS,
        "stream",
        "model",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "num_predict",
        "messages",
        "prompt",
        "input",
        "text",
        "input_ids",
        "input_embeds",
        "sampling_params",
        "options",
        "system",
        "instructions",
        "tools",
        "include",
        "output_config",
        "format",
        "content",
    }
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0", "1", "0.1", "true", "auto", "text", "\ud800", 10**400, -(10**30)])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)
DIALECTS = st.sampled_from(list(Dialect))
BOUNDS = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}
RULES = Rules(dict.fromkeys(set(Rule) - BOUNDS, Verdict.BASE), 1, 1000)

TIGHT = SpecLimits(context_tokens=8, reserved_tokens=4)
"""So tight that nearly every prompt is weighed."""


def check(body: bytes, dialect: Dialect) -> None:
    """Peek and judge, and see that the answer is one."""
    for estimate_prompt, limits in ((True, TIGHT), (False, TIGHT), (False, None)):
        traits = peek(body, dialect, estimate_prompt=estimate_prompt, limits=limits)

        assert 1 <= traits.sequences <= MAX_SEQUENCES
        assert isinstance(traits.stream, bool)
        assert traits.max_tokens is None or 0 <= traits.max_tokens <= 1 << 31
        assert traits.model is None or len(traits.model) <= 256
        assert traits.prompt_tokens is None or 0 <= traits.prompt_tokens <= len(body)
        assert traits.features <= set(Rule)
        assert judge(traits, RULES, frozenset({"sql"}), limits).verdict in Verdict
        assert traits.needed_tokens is None or traits.needed_tokens > 0


@given(st.binary(max_size=300), DIALECTS)
def test_on_any_bytes(body: bytes, dialect: Dialect) -> None:
    """Nothing that a client sends can stop us."""
    check(body, dialect)


@given(VALUES, DIALECTS)
def test_on_any_json(value: object, dialect: Dialect) -> None:
    """With NaN, huge numbers and lone surrogates among it."""
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")

        check(body, dialect)


@given(BODIES, DIALECTS)
def test_on_any_object(body: Mapping[str, object], dialect: Dialect) -> None:
    """Any value in any field that is read, and any part of such a body."""
    raw = json.dumps(body).encode()

    check(raw, dialect)
    check(raw[: len(raw) // 2], dialect)
    check(raw + b"," + raw, dialect)


@given(BODIES, DIALECTS)
def test_an_odd_field_hides_no_other(body: dict[str, object], dialect: Dialect) -> None:
    """A real min_p is found beside anything."""
    raw = json.dumps({**body, "min_p": 0.1}).encode()

    assert Rule.MIN_P in peek(raw, dialect, estimate_prompt=False).features
