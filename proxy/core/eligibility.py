"""May this request be decoded speculatively? A table of rules over the fields that peek.py reads.

A rule is a row: the field, the rule that it triggers, and the test of what is neutral. What a
triggered rule means is the configuration's verdict. Nothing here reads a body.

The reasons are in SGLang's own code: a speculative server ignores min_p and custom logit
processors, bends penalties and min_tokens, and refuses beams and sampling masks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from proxy.core.identity import Identity


class Rule(StrEnum):
    """What may keep a request from spec, named as in the configuration and in its order."""

    PENALTIES = "penalties"
    MIN_P = "min_p"
    MIN_TOKENS = "min_tokens"
    CUSTOM_LOGIT_PROCESSOR = "custom_logit_processor"
    BEAM_SEARCH = "beam_search"
    SAMPLING_MASK = "sampling_mask"
    HIDDEN_STATES = "hidden_states"
    STORED_STATE = "stored_state"
    UNPEEKED = "unpeeked"
    CONTEXT_LIMIT = "context_limit"
    LORA = "lora"
    STRUCTURED_OUTPUT = "structured_output"
    LOGPROBS = "logprobs"
    SHORT_OUTPUT_TOKENS = "short_output_tokens"
    MAX_SPEC_PROMPT_TOKENS = "max_spec_prompt_tokens"


class Verdict(StrEnum):
    """Where a request that triggers a rule may go."""

    BASE = "base"  # only there, whatever control, override and health say
    PREFER = "prefer"  # there if it is usable
    ANY = "any"


class Traits(NamedTuple):
    """What a body says about its request.

    A tuple because one is made for every request: 0.2 us, a third of a frozen dataclass.
    """

    sequences: int
    """Its weight: prompts times `n`, at least 1; see peek.MAX_SEQUENCES for the clamp."""
    stream: bool
    max_tokens: int | None
    """The limit on new tokens, of a batch the largest; None: the client gave none."""
    model: str | None
    """None where absent or longer than 256 characters."""
    prompt_tokens: int | None
    """An estimate for one sequence, of a batch the mean; None where not asked for."""
    features: frozenset[Rule]
    parsed: bool
    needed_tokens: int | None = None
    """The most that prompt and answer of one sequence may take of the context; None where the
    length of the body says that spec has room for them, or nobody asked."""
    store_unsaid: bool = False
    """Whether its answer is kept where a server keeps responses, for want of a word against it."""

    @classmethod
    def unpeeked(cls) -> Self:
        """Of a body that is too large or too deeply nested to be read, nothing is known.

        It counts as a stream: those deadlines watch for silence, while the one for a whole answer
        (an hour) would let a dead stream hang.
        """
        return cls(
            sequences=1,
            stream=True,
            max_tokens=None,
            model=None,
            prompt_tokens=None,
            features=frozenset((Rule.UNPEEKED,)),
            parsed=False,
        )


@dataclass(frozen=True, slots=True)
class SpecLimits:
    """Where spec refuses a request that base takes; tokens.

    A speculative server puts its drafts into the slots of the answer, and so its context is shorter
    by them. SGLang 0.5.23 answers 400 there (TokenizerManager._validate_one_request).
    """

    context_tokens: int
    """Of both servers."""
    reserved_tokens: int

    @classmethod
    def of(cls, spec: Identity | None) -> Self | None:
        """Those of *spec*; None where it reserves nothing or does not say."""
        if spec is None or spec.context_length is None or spec.reserved_tokens == 0:
            return None
        return cls(spec.context_length, spec.reserved_tokens)

    def exceeded_by(self, needed_tokens: int) -> bool:
        """Whether a request that may need so many is too long for spec."""
        return needed_tokens > self.context_tokens - self.reserved_tokens


@dataclass(frozen=True, slots=True)
class Rules:
    """The [eligibility] section; configuration gives every value."""

    verdicts: Mapping[Rule, Verdict]
    """For every rule but the two below, which are bounds and always mean `prefer`."""
    short_output_tokens: int
    """A limit on new tokens at or below this triggers its rule."""
    max_spec_prompt_tokens: int
    """An estimate above this triggers its rule; 0: no bound."""

    def __post_init__(self) -> None:
        wrong = self.verdicts.keys() ^ (set(Rule) - _BOUNDS)
        if wrong:
            raise ValueError(f"a verdict is missing or too many: {', '.join(sorted(wrong))}")


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The strongest verdict, and the rule that gave it; no rule: any upstream will do."""

    verdict: Verdict
    rule: Rule | None


def judge(
    traits: Traits,
    rules: Rules,
    adapters: frozenset[str] | None,
    limits: SpecLimits | None = None,
    *,
    stored: bool = False,
) -> Eligibility:
    """Return where the request may go; *adapters* are the ids of LoRA adapters in /v1/models.

    None while they are not known: then any suffix may be one. *limits* are those that the body was
    peeked with; None: spec has room for all that base has room for. *stored*: a server keeps its
    answer, though it does not ask for that. The strongest verdict wins; of equals the rule that
    comes first in the table.
    """
    triggered = traits.features
    if stored:
        triggered |= {Rule.STORED_STATE}
    if traits.model is not None and _names_adapter(traits.model, adapters):
        triggered |= {Rule.LORA}
    if traits.max_tokens is not None and traits.max_tokens <= rules.short_output_tokens:
        triggered |= {Rule.SHORT_OUTPUT_TOKENS}
    if traits.prompt_tokens is not None and (
        0 < rules.max_spec_prompt_tokens < traits.prompt_tokens
    ):
        triggered |= {Rule.MAX_SPEC_PROMPT_TOKENS}
    if (
        limits is not None
        and traits.needed_tokens is not None
        and limits.exceeded_by(traits.needed_tokens)
    ):
        triggered |= {Rule.CONTEXT_LIMIT}
    return _strongest(triggered, rules) if triggered else _ANYWHERE


def _strongest(triggered: frozenset[Rule], rules: Rules) -> Eligibility:
    in_order = [rule for rule in _ORDER if rule in triggered]
    for verdict in (Verdict.BASE, Verdict.PREFER):
        for rule in in_order:
            if rules.verdicts.get(rule, Verdict.PREFER) is verdict:
                return Eligibility(verdict, rule)
    return _ANYWHERE


def _names_adapter(model: str, adapters: frozenset[str] | None) -> bool:
    """Whether *model* is an adapter's id or ends in one after a colon.

    Every colon is tried: the served name itself may hold some (`s3://...`), and SGLang strips the
    blanks around what follows.
    """
    if adapters is None:
        return ":" in model
    if not adapters:
        return False
    if model in adapters:
        return True
    _, colon, rest = model.partition(":")
    while colon:
        if rest.strip() in adapters:
            return True
        _, colon, rest = rest.partition(":")
    return False


_ORDER: Final = tuple(Rule)
_BOUNDS: Final = frozenset({Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS})
_ANYWHERE: Final = Eligibility(Verdict.ANY, None)


# What is neutral. Each test sees a decoded JSON value that is not null.


def lax_number(value: object) -> float | None:
    """Return the number that a lax parser such as pydantic reads from *value*, None if none."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def lax_truth(value: object) -> bool:
    """Return whether a lax parser reads *value* as true; only what pydantic calls true is."""
    return value == 1 or (isinstance(value, str) and value.strip().lower() in _TRUE)


def _zero(value: object) -> bool:
    return value == 0 or lax_number(value) == 0


def _one(value: object) -> bool:
    return value == 1 or lax_number(value) == 1


def _empty(value: object) -> bool:
    return not value


def _off(value: object) -> bool:
    return not value or (isinstance(value, str) and value.strip().lower() in _FALSE)


def _not_asked(value: object) -> bool:
    # On completions `logprobs: 0` asks for those of the chosen tokens.
    return value is False or (isinstance(value, str) and _off(value))


def _plain_format(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") in (None, "text")


def _plain_text(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return value.get("format") is None or _plain_format(value["format"])


def _free_choice(value: object) -> bool:
    kind = value.get("type") if isinstance(value, dict) else value
    return kind in ("auto", "none")


def _no_logprobs(value: object) -> bool:
    return value != "message.output_text.logprobs"


NeutralTest = Callable[[object], bool]
Rows = Mapping[str, tuple[Rule, NeutralTest]]

SCALAR_TESTS: Final = frozenset({_zero, _one, _off, _not_asked})
"""The tests of fields that hold one scalar, or a list of them where prompts come in a batch."""

_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})  # pydantic's
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})

ROWS: Final[Rows] = {
    "frequency_penalty": (Rule.PENALTIES, _zero),
    "presence_penalty": (Rule.PENALTIES, _zero),
    "repetition_penalty": (Rule.PENALTIES, _one),
    "repeat_penalty": (Rule.PENALTIES, _one),  # Ollama's word
    "min_p": (Rule.MIN_P, _zero),
    "min_tokens": (Rule.MIN_TOKENS, _zero),
    "min_new_tokens": (Rule.MIN_TOKENS, _zero),
    "custom_logit_processor": (Rule.CUSTOM_LOGIT_PROCESSOR, _empty),
    "beam_width": (Rule.BEAM_SEARCH, _one),
    "use_beam_search": (Rule.BEAM_SEARCH, _off),
    "return_sampling_mask": (Rule.SAMPLING_MASK, _off),
    "return_hidden_states": (Rule.HIDDEN_STATES, _off),
    "previous_response_id": (Rule.STORED_STATE, _empty),
    "session_params": (Rule.STORED_STATE, _empty),
    "background": (Rule.STORED_STATE, _off),
    "store": (Rule.STORED_STATE, _off),
    "lora_path": (Rule.LORA, _empty),
    "response_format": (Rule.STRUCTURED_OUTPUT, _plain_format),
    "json_schema": (Rule.STRUCTURED_OUTPUT, _empty),
    "regex": (Rule.STRUCTURED_OUTPUT, _empty),
    "ebnf": (Rule.STRUCTURED_OUTPUT, _empty),
    "structural_tag": (Rule.STRUCTURED_OUTPUT, _empty),
    "tool_choice": (Rule.STRUCTURED_OUTPUT, _free_choice),
    "logprobs": (Rule.LOGPROBS, _not_asked),
    "top_logprobs": (Rule.LOGPROBS, _zero),
    "return_logprob": (Rule.LOGPROBS, _off),
    "top_logprobs_num": (Rule.LOGPROBS, _zero),
    "token_ids_logprob": (Rule.LOGPROBS, _empty),
}
"""Shared by all dialects, at the top of a body and among its sampling fields: where a dialect does
not know a name, heeding it costs the request its speed; not heeding it might cost its answer."""

RESPONSES_ROWS: Final[Rows] = {
    **ROWS,
    "text": (Rule.STRUCTURED_OUTPUT, _plain_text),
    "include": (Rule.LOGPROBS, _no_logprobs),
}
ANTHROPIC_ROWS: Final[Rows] = {**ROWS, "output_config": (Rule.STRUCTURED_OUTPUT, _plain_text)}
OLLAMA_ROWS: Final[Rows] = {**ROWS, "format": (Rule.STRUCTURED_OUTPUT, _empty)}
