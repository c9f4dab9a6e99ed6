"""Peeking: the fields that decide are found in every dialect, however oddly they are written."""

import json
from time import thread_time

import pytest
from msgspec import Raw

from proxy.core import prompts
from proxy.core.bodies import SHAPES
from proxy.core.eligibility import ROWS, Rule, SpecLimits, Traits
from proxy.core.peek import MAX_SEQUENCES, Dialect, peek

CHAT = Dialect.OPENAI_CHAT
COMPLETIONS = Dialect.OPENAI_COMPLETIONS
RESPONSES = Dialect.OPENAI_RESPONSES
ANTHROPIC = Dialect.ANTHROPIC
GENERATE = Dialect.GENERATE
OLLAMA = Dialect.OLLAMA_CHAT
OLLAMA_GENERATE = Dialect.OLLAMA_GENERATE

MESSAGES = [{"role": "user", "content": "hello"}]
UNPARSED = Traits(
    1,
    stream=False,
    max_tokens=None,
    model=None,
    prompt_tokens=None,
    features=frozenset(),
    parsed=False,
)


def look(body: object, dialect: Dialect = CHAT, *, estimate_prompt: bool = False) -> Traits:
    """Peek at *body*, written as JSON unless it is bytes already."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return peek(raw, dialect, estimate_prompt=estimate_prompt)


def features(body: object, dialect: Dialect = CHAT) -> set[Rule]:
    """The rules that *body* triggers."""
    return set(look(body, dialect).features)


def test_a_limit_that_is_true_is_one() -> None:
    """As pydantic reads it: a number, and not a bool."""
    assert type(look({"max_tokens": True}).max_tokens) is int


def test_an_ordinary_chat_request() -> None:
    """All that is read of it, and nothing triggered."""
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": 256, "n": 2}

    assert look(body) == Traits(
        sequences=2,
        stream=True,
        max_tokens=256,
        model="tiny",
        prompt_tokens=None,
        features=frozenset(),
        parsed=True,
    )


@pytest.mark.parametrize("field", sorted(ROWS))
@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_field_of_the_table_is_read_in_every_dialect(dialect: Dialect, field: str) -> None:
    """At the top of the body, and null triggers nothing."""
    rule, _ = ROWS[field]

    assert features({field: "x!"}, dialect) == {rule}
    assert features({field: None}, dialect) == set()


@pytest.mark.parametrize("field", sorted(ROWS))
@pytest.mark.parametrize(
    ("dialect", "place"),
    [(GENERATE, "sampling_params"), (OLLAMA, "options"), (OLLAMA_GENERATE, "options")],
)
def test_every_field_is_read_among_the_sampling_fields(
    dialect: Dialect, place: str, field: str
) -> None:
    """Where a dialect keeps them in an object of their own."""
    rule, _ = ROWS[field]

    assert features({place: {field: "x!"}}, dialect) == {rule}
    assert features({place: {field: None}}, dialect) == set()


def test_any_element_of_a_batch_triggers() -> None:
    """/generate takes one set of sampling fields for each prompt."""
    batch = [{"temperature": 0}, {"min_p": 0.2}, {"frequency_penalty": 1}]

    assert features({"text": ["a"] * 3, "sampling_params": batch}, GENERATE) == {
        Rule.MIN_P,
        Rule.PENALTIES,
    }


@pytest.mark.parametrize(
    ("body", "dialect", "rule"),
    [
        ({"text": {"format": {"type": "json_schema"}}}, RESPONSES, Rule.STRUCTURED_OUTPUT),
        ({"include": ["message.output_text.logprobs"]}, RESPONSES, Rule.LOGPROBS),
        ({"output_config": {"format": {"type": "json"}}}, ANTHROPIC, Rule.STRUCTURED_OUTPUT),
        ({"tool_choice": {"type": "tool", "name": "f"}}, ANTHROPIC, Rule.STRUCTURED_OUTPUT),
        ({"tools": [{"name": "f", "strict": True}]}, ANTHROPIC, Rule.STRUCTURED_OUTPUT),
        ({"tools": [{"function": {"strict": True}}]}, CHAT, Rule.STRUCTURED_OUTPUT),
        ({"tools": [{"name": "f", "strict": True}]}, RESPONSES, Rule.STRUCTURED_OUTPUT),
        ({"format": "json"}, OLLAMA, Rule.STRUCTURED_OUTPUT),
        ({"options": {"repeat_penalty": 1.1}}, OLLAMA_GENERATE, Rule.PENALTIES),
    ],
)
def test_what_only_one_dialect_has(body: object, dialect: Dialect, rule: Rule) -> None:
    """Its own place for a format, its own word for a penalty."""
    assert features(body, dialect) == {rule}


def test_a_prompt_is_not_taken_for_a_format() -> None:
    """`text` is the prompt on /generate and the format on /v1/responses."""
    assert features({"text": "hello"}, GENERATE) == set()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"min_p": "0.1"}', {Rule.MIN_P}),
        (b'{"min_p": true}', {Rule.MIN_P}),
        (b'{"min_p": [0.1]}', {Rule.MIN_P}),
        (b'{"min_p": {"a": 0}}', {Rule.MIN_P}),
        (b'{"min_p": [0, null]}', set()),
        (b'{"min_p": 1e999}', {Rule.MIN_P}),
        (b'{"min_p": 1e-400}', set()),
        (b'{"min_p": -0.0}', set()),
        (b'{"min_p": "0"}', set()),
        (b'{"min_p": false}', set()),
        (b'{"min_p": NaN}', {Rule.MIN_P}),
        (b'{"min_p": -Infinity}', {Rule.MIN_P}),
        (b'{"temperature": NaN, "min_p": 0.1}', {Rule.MIN_P}),
        (b'{"temperature": NaN, "min_p": 0}', set()),
        (b'{"min_p": 0, "min_p": 0.1}', {Rule.MIN_P}),
        (b'{"min_p": 0.1, "min_p": 0}', set()),
        (rb'{"min\u005fp": 0.1}', {Rule.MIN_P}),
        (b'\xef\xbb\xbf{"min_p": 0.1}', {Rule.MIN_P}),
        ('{"min_p": 0.1}'.encode("utf-16"), {Rule.MIN_P}),
        (b'{"user": "\\ud800", "min_p": 0.1}', {Rule.MIN_P}),
        (b'{"min_p": "\\ud800"}', {Rule.MIN_P}),
        (b'{"min_p": "\xff"}', {Rule.MIN_P}),
        (b'{"user": "\xff", "min_p": 0.1}', {Rule.MIN_P}),
        (b'{"MIN_P": 0.1}', set()),
        (b'{"return_logprob": [false, null]}', set()),
        (b'{"return_logprob": [false, true]}', {Rule.LOGPROBS}),
        (b'{"stream": [1], "model": {}, "n": [], "min_p": 0.1}', {Rule.MIN_P}),
        (b'{"stop": {"min_p": 0.1}, "metadata": {"store": true}}', set()),
    ],
)
def test_an_odd_spelling_does_not_slip_through(body: bytes, expected: set[Rule]) -> None:
    """Each is read as the engine's parser would, and in doubt against the request."""
    assert features(body) == expected
    assert look(body).parsed


def test_infinity_among_the_embeddings() -> None:
    """They are not counted then, and what stands beside them is read."""
    found = look(b'{"input_embeds": [[[1.0], Infinity], [[1.0]]], "min_p": 0.1}', GENERATE)

    assert found.features == {Rule.MIN_P}
    assert found.sequences == 1


@pytest.mark.parametrize("sampling", ['{"min_p": NaN}', '[{"n": 1}, {"min_p": NaN}]'])
def test_nan_among_the_sampling_fields(sampling: str) -> None:
    """The fallback reads one level further down, too."""
    body = f'{{"text": "a", "sampling_params": {sampling}}}'.encode()

    assert features(body, GENERATE) == {Rule.MIN_P}


def test_a_long_value_is_not_neutral() -> None:
    """A schema is not decoded to see that it is one; nor is nonsense."""
    schema = {"type": "json_schema", "json_schema": {"name": "s" * 5000}}

    assert features({"response_format": schema}) == {Rule.STRUCTURED_OUTPUT}
    assert features({"store": [False] * 1000}) == {Rule.STORED_STATE}


@pytest.mark.parametrize(
    ("body", "unsaid"),
    [
        ({}, True),
        ({"store": None}, True),
        ({"store": None, "stream": []}, True),  # read as tokens
        (b'{"store": null, "top_p": NaN}', True),
        ({"store": False}, False),
        ({"store": False, "stream": []}, False),
        ({"store": "no"}, False),
        (b'{"store": true, "store": false}', False),
        ({"store": True}, False),
        (b"{", False),
    ],
)
def test_whether_storing_is_left_to_the_server(body: object, *, unsaid: bool) -> None:
    """On the one path that stores anything."""
    assert look(body, RESPONSES).store_unsaid is unsaid
    for dialect in set(Dialect) - {RESPONSES}:
        assert not look(body, dialect).store_unsaid


def test_a_value_that_cannot_be_decoded_is_not_neutral() -> None:
    """Raw tokens are not checked for UTF-8 when they are cut out."""
    assert features(b'{"tool_choice": "\xff"}') == {Rule.STRUCTURED_OUTPUT}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"x"', b"3", b'{"min_p": 0.1', b"\xff\xfe\x00", b"[NaN]", b"NaN"],
)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_what_does_not_parse_has_no_features(body: bytes, dialect: Dialect) -> None:
    """It is routed like any other request, and the engine answers."""
    assert look(body, dialect) == UNPARSED


def test_a_large_body_that_is_no_object_does_not_parse() -> None:
    """That is seen at its first byte, whatever its size."""
    assert look(b'["' + b"x" * (2 << 20) + b'"]') == UNPARSED


def test_an_empty_object_parses() -> None:
    """The engine will miss the messages; we do not."""
    assert look(b" {} ").parsed


@pytest.mark.parametrize("body", [b'{"a":' * 100_000, b'{"a":' + b"[" * 100_000])
def test_deep_nesting_is_unpeeked(body: bytes) -> None:
    """The engine's parser may go deeper than ours, so base is preferred."""
    assert look(body) == Traits.unpeeked()


def test_a_deep_value_of_a_field_that_decides() -> None:
    """Too deep to be read at all."""
    body = b'{"n": ' + b"[" * 2000 + b"]" * 2000 + b', "min_p": 0.1}'

    assert look(body) == Traits.unpeeked()


def test_the_standard_library_reads_up_to_its_bound() -> None:
    """Beyond 64 KiB it would hold the event loop for too long."""

    def padded(size: int) -> bytes:
        head = b'{"min_p": 0.1, "temperature": NaN, "user": "'
        return head + b"x" * (size - len(head) - 2) + b'"}'

    assert features(padded(1 << 16)) == {Rule.MIN_P}
    assert look(padded((1 << 16) + 1)) == Traits.unpeeked()


@pytest.mark.parametrize("start", [b"\x28\xb5\x2f\xfd\x04", b"\x1f\x8b\x08"])
def test_a_compressed_body_is_unpeeked(start: bytes) -> None:
    """An engine may be set to inflate it, and what then stands in it is not known here."""
    assert look(start + b"anything") == Traits.unpeeked()


MIB = 1 << 20


def filled(head: bytes, unit: bytes, tail: bytes, size: int = 8 * MIB) -> bytes:
    """As many of *unit* as there is room for in *size* bytes."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        (filled(b'{"prompt":[', b" ", b"1]}"), COMPLETIONS),
        (filled(b'{"messages":[{"content":[1,', b" " * 65_000 + b"1,", b"1]}]}"), CHAT),
        (filled(b'{"prompt":["', b"\\\\", b'"]}'), COMPLETIONS),
        (filled(b'{"prompt":[', b'"",', b'""]}'), COMPLETIONS),
        (filled(b'{"prompt":[[', b"1,", b"1]]}"), COMPLETIONS),
        (filled(b'{"messages":[{"content":"', b"\\u6587", b'"}]}'), CHAT),
        (filled(b'{"messages":[', b"[],", b"{}]}"), CHAT),
        (filled(b'{"messages":[', b"{},", b"{}]}"), CHAT),
        (filled(b'{"messages":[', b"{},", b'{}],"n":[]}', MIB // 4), CHAT),
        (filled(b'{"messages":[{"content":[', b"{},", b"{}]}]}", MIB // 8), CHAT),
        (
            filled(b'{"messages":' + b'[{"content":' * 4 + b'"', b"\\n", b'"' + b"}]" * 4 + b"}"),
            CHAT,
        ),
        (filled(b"{", b'"n":1,', b'"n":1}'), CHAT),
        (filled(b"{", b'"n":1,', b'"n":[]}'), CHAT),
        (filled(b'{"user":"' + b"x" * (7 * MIB) + b'",', b'"n":1,', b'"n":[]}', 8 * MIB), CHAT),
        (filled(b'{"x":[', b"[" * 900 + b"]" * 900 + b",", b"1]}"), CHAT),
        (filled(b'{"x":', b'{"a":', b""), CHAT),
        (filled(b'{"x":[', b"[[]],", b"NaN]}"), CHAT),
        (filled(b'{"n":', b"1", b"}"), CHAT),
        (filled(b'{"n":0.', b"0", b"1}"), CHAT),
        (filled(b"{", b'"n":' + b"1" * 4299 + b",", b'"n":1}'), CHAT),
        (filled(b'{"prompt":"",', b'"n":' + b"1" * 4299 + b",", b'"n":1}'), COMPLETIONS),
        (filled(b"{", b'"n":' + b"1" * 300 + b",", b'"n":1}'), CHAT),
        (filled(b"{", b'"min_p":0.' + b"1" * 4000 + b",", b'"n":1}'), CHAT),
        (filled(b'{"model":"', b"a" * 40 + "\N{GRINNING FACE}".encode(), b'"}'), CHAT),
        (
            filled(b'{"sampling_params":{', b'"n":' + b"1" * 4299 + b",", b'"n":1}}', MIB),
            GENERATE,
        ),
        (filled(b'{"sampling_params":[{"x":"', b"y", b'"}]}'), GENERATE),
        (filled(b'{"sampling_params":[', b"{},", b"{}]}"), GENERATE),
        (filled(b'{"tools":["', b'\\"strict\\"', b'"]}'), CHAT),
        (filled(b'{"input_embeds":[[[', b"0.5,", b"1]]]}"), GENERATE),
    ],
)
def test_no_body_holds_the_loop_for_long(body: bytes, dialect: Dialect) -> None:
    """Whatever is in it: never more than eight times what 8 MiB of plain text take to be read.

    Only what is read in C is measured here, where coverage costs nothing.
    """

    def cost(data: bytes, kind: Dialect) -> float:
        begun = thread_time()
        peek(data, kind, estimate_prompt=False, limits=LIMITS)
        return thread_time() - begun

    plain = filled(b'{"messages":[{"content":"', b"x", b'"}]}')
    known = max(cost(plain, CHAT) for _ in range(3))
    assert min(cost(body, dialect) for _ in range(3)) < 8 * known


def test_a_prompt_of_the_longest_context_in_ids_is_read() -> None:
    """131,072 of them, which some models can take."""
    ids = ",".join(["100000"] * (1 << 17)).encode()

    assert features(b'{"min_p":0.1,"prompt":[%s]}' % ids, Dialect.OPENAI_COMPLETIONS) == {
        Rule.MIN_P
    }


@pytest.mark.parametrize("mark", [b",", b":", b"[", b"{,", b"\\\\"])
def test_a_body_with_very_many_values_is_unpeeked(mark: bytes) -> None:
    """They take their time, however short; in a small body they cannot be so many."""

    def holding(marks: int) -> bytes:
        return b'{"min_p":0.1,"user":"%s"}' % (mark * marks + b"x" * (1 << 17))

    own = 4  # of the body itself
    most = ((1 << 17) + (1 << 12) - own) // len(mark)
    assert features(holding(most)) == {Rule.MIN_P}
    assert look(holding(most + 1)) == Traits.unpeeked()
    assert features(b'{"min_p":0.1,"user":"%s"}' % (mark * 30_000)) == {Rule.MIN_P}


@pytest.mark.parametrize("number", [b"1" * MIB, b"0." + b"0" * MIB, b"1e" + b"1" * MIB])
def test_a_number_of_very_many_digits_is_unpeeked(number: bytes) -> None:
    """Reading it takes as long as very many values."""
    assert look(b'{"n":%s}' % number) == Traits.unpeeked()


def test_a_batch_of_very_many_prompts_is_unpeeked() -> None:
    """More than any engine takes."""
    body = {"min_p": 0.1, "prompt": ["a"] * ((1 << 15) + 1)}

    assert features({**body, "prompt": ["a"] * 8192}, COMPLETIONS) == {Rule.MIN_P}
    assert look(body, COMPLETIONS) == Traits.unpeeked()
    assert features(body, Dialect.OLLAMA_GENERATE) == {Rule.MIN_P}


def test_a_picture_is_looked_past() -> None:
    """However large: what stands beside it is read, and is all that weighs."""
    picture = {"type": "image_url", "image_url": {"url": "data:," + "A" * (7 * MIB)}}
    parts = [picture, {"type": "text", "text": "What is this? " * 100}]
    body = {"messages": [{"content": parts}], "min_p": 0.1, "max_tokens": 5}

    assert features(body) == {Rule.MIN_P}
    assert needed(body) == 1400 * 3 // 8 + 64 + 5


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        (b'{"min_p":0.1,"messages":"%s"}', CHAT),
        (b'{"min_p":0.1,"prompt":["%s"]}', COMPLETIONS),
    ],
)
def test_a_very_large_body_is_read_once(body: bytes, dialect: Dialect) -> None:
    """Not a second time for odd messages, or to see how many prompts there are."""
    fits, too_large = body % (b"x" * (4 * MIB - 100)), body % (b"x" * (4 * MIB))

    assert look(fits, dialect, estimate_prompt=True).features == {Rule.MIN_P}
    assert look(too_large, dialect, estimate_prompt=True) == Traits.unpeeked()


def test_an_odd_field_of_a_very_large_body_is_read() -> None:
    """It takes no second reading."""
    body = b'{"min_p":0.1,"n":[],"user":"%s"}' % (b"x" * (5 * MIB))

    assert features(body) == {Rule.MIN_P}


def test_a_long_word_is_not_read() -> None:
    """What is longer than any value is none, whatever stands at its end."""
    blank = " " * 5000

    assert not look({"stream": blank + "true"}).stream
    assert look({"n": blank + "4"}).sequences == 1
    assert features({"min_p": blank + "0"}) == {Rule.MIN_P}


def test_a_large_body_with_an_odd_field_is_read_all_the_same() -> None:
    """Only what is not strictly JSON needs the standard library."""
    body = {"user": "x" * (2 << 20), "min_p": 0.1, "return_logprob": [True]}

    assert features(body) == {Rule.MIN_P, Rule.LOGPROBS}


@pytest.mark.parametrize(
    ("n", "sequences"),
    [
        (1, 1),
        (4, 4),
        ("4", 4),
        (4.0, 4),
        (True, 1),
        (0, 1),
        (-3, 1),
        (None, 1),
        ("x", 1),
        ([], 1),
        ({}, 1),
        (1e300, MAX_SEQUENCES),
        (10**400, MAX_SEQUENCES),
        ("1e400", 1),
        ("nan", 1),
        (MAX_SEQUENCES + 1, MAX_SEQUENCES),
    ],
)
@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, GENERATE])
def test_n_is_the_weight(dialect: Dialect, n: object, sequences: int) -> None:
    """Read as leniently as the engine reads it, and clamped."""
    body = {"sampling_params": {"n": n}} if dialect is GENERATE else {"n": n}

    assert look(body, dialect).sequences == sequences


@pytest.mark.parametrize(
    ("body", "dialect", "sequences"),
    [
        ({"prompt": "a"}, COMPLETIONS, 1),
        ({"prompt": ["a", "b", "c"]}, COMPLETIONS, 3),
        ({"prompt": ['"', "\\", '\\"', "a\\\\", ","]}, COMPLETIONS, 5),
        ({"prompt": [1, 2, 3]}, COMPLETIONS, 1),
        ({"prompt": [[1, 2], [3]]}, COMPLETIONS, 2),
        ({"prompt": []}, COMPLETIONS, 1),
        ({"prompt": None}, COMPLETIONS, 1),
        ({"prompt": ["a", "b"], "n": 3}, COMPLETIONS, 6),
        ({"prompt": [""] * 5000}, COMPLETIONS, MAX_SEQUENCES),
        ({"prompt": [""] * 3000, "n": 2}, COMPLETIONS, MAX_SEQUENCES),
        ({"messages": MESSAGES * 3}, CHAT, 1),
        ({"input": ["a", "b"]}, RESPONSES, 1),
        ({"text": ["a", "b"], "sampling_params": [{"n": 2}, {"n": 2}]}, GENERATE, 4),
        ({"text": ["a", "b"]}, GENERATE, 2),
        ({"text": ["a", "b"], "sampling_params": None}, GENERATE, 2),
        ({"text": ["a", "b"], "sampling_params": []}, GENERATE, 2),
        ({"text": "a", "sampling_params": "x"}, GENERATE, 1),
        ({"text": "a", "sampling_params": [1, None]}, GENERATE, 1),
        ({"text": None, "input_ids": [[1], [2], [3]]}, GENERATE, 3),
        ({"input_ids": [1, 2, 3]}, GENERATE, 1),
        ({"input_embeds": [[0.1, 0.2], [0.3, 0.4]]}, GENERATE, 1),
        ({"input_embeds": [[[0.1], [0.2]], [[0.3]]]}, GENERATE, 2),
        ({"prompt": "a", "n": 4}, OLLAMA_GENERATE, 1),
    ],
)
def test_prompts_are_counted(body: object, dialect: Dialect, sequences: int) -> None:
    """A list of texts or of lists of ids is many, a list of ids one."""
    assert look(body, dialect).sequences == sequences
    compact = json.dumps(body, separators=(",", ":")).encode()
    assert look(compact, dialect).sequences == sequences


def test_a_batch_of_very_many_sampling_fields_is_unpeeked() -> None:
    """Reading each would hold the event loop; no engine takes so many."""

    def of(sampling: object) -> Traits:
        return look({"sampling_params": sampling}, GENERATE)

    assert of([{}] * MAX_SEQUENCES).parsed
    assert of([{}] * (MAX_SEQUENCES + 1)) == Traits.unpeeked()
    assert of([1] * 70_000) == Traits.unpeeked()
    assert of([{"n": n} for n in range(257)] * 2) == Traits.unpeeked()
    assert of([{"n": n} for n in range(257)][1:]).sequences == 256
    assert of([{"regex": "x" * (1 << 20)}]) == Traits.unpeeked()


@pytest.mark.parametrize(
    ("body", "dialect", "limit"),
    [
        ({"max_tokens": 5}, CHAT, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, CHAT, 7),
        ({"max_completion_tokens": 0, "max_tokens": 5}, CHAT, 5),
        ({"max_completion_tokens": None, "max_tokens": "5"}, CHAT, 5),
        ({"max_tokens": None}, CHAT, None),
        ({"max_tokens": "x"}, CHAT, None),
        ({"max_tokens": float("nan")}, CHAT, None),
        ({"max_tokens": 10**400}, CHAT, 1 << 31),
        ({"max_new_tokens": 5}, CHAT, None),
        ({"max_tokens": 0}, COMPLETIONS, 0),
        ({"max_output_tokens": 9}, RESPONSES, 9),
        ({"max_tokens": 9}, RESPONSES, None),
        ({"max_tokens": 9}, ANTHROPIC, 9),
        ({"sampling_params": {"max_new_tokens": 0}}, GENERATE, 0),
        ({"sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 8}]}, GENERATE, 8),
        ({"sampling_params": [{"max_new_tokens": 1}, {}]}, GENERATE, None),
        ({"sampling_params": []}, GENERATE, None),
        ({"max_new_tokens": 1}, GENERATE, None),
        ({"options": {"num_predict": 3}}, OLLAMA, 3),
        ({"options": {"num_predict": -1}}, OLLAMA, None),
        ({"num_predict": 3}, OLLAMA_GENERATE, None),
    ],
)
def test_the_limit_on_new_tokens(body: object, dialect: Dialect, limit: int | None) -> None:
    """Each dialect has its own word; of a batch the largest counts."""
    assert look(body, dialect).max_tokens == limit


@pytest.mark.parametrize(
    ("body", "dialect", "stream"),
    [
        ({}, CHAT, False),
        ({"stream": True}, CHAT, True),
        ({"stream": "yes"}, CHAT, True),
        ({"stream": 1}, GENERATE, True),
        ({"stream": False}, CHAT, False),
        ({"stream": None}, ANTHROPIC, False),
        ({"stream": [1], "n": 1}, CHAT, False),
        ({}, OLLAMA, True),
        ({"stream": False}, OLLAMA, False),
        ({"stream": None}, OLLAMA_GENERATE, True),
        ({"stream": None, "store": [None]}, OLLAMA_GENERATE, True),
    ],
)
def test_whether_it_streams(body: object, dialect: Dialect, *, stream: bool) -> None:
    """Ollama streams unless it is told not to."""
    assert look(body, dialect).stream is stream


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        ("tiny:sql", "tiny:sql"),
        ("m" * 256, "m" * 256),
        ("m" * 257, None),
        (None, None),
        (3, None),
        (["tiny"], None),
        ("", ""),
    ],
)
def test_the_model_is_kept_if_it_is_short(model: object, seen: str | None) -> None:
    """Only to find an adapter's name in it."""
    assert look({"model": model}).model == seen


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
TEXT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.mark.parametrize(
    ("body", "dialect", "text"),
    [
        ({"messages": [{"role": "user", "content": TEXT}]}, CHAT, TEXT),
        ({"messages": [{"role": "user", "content": "hello world"}]}, CHAT, "hello world"),
        (
            {"messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": TEXT}]}]},
            CHAT,
            TEXT,
        ),
        ({"messages": [{"content": TEXT}, {"content": None}, {"content": TEXT}]}, CHAT, TEXT * 2),
        ({"messages": [{"content": "äöü" * 200}]}, CHAT, "äöü" * 200),
        ({"messages": [{"content": "文字" * 200}]}, CHAT, "文字" * 200),
        ({"messages": [{"content": "🙂" * 200}]}, CHAT, "🙂" * 200),
        ({"messages": [{"content": 'say "\n" \\ \\u0041' * 90}]}, CHAT, 'say "\n" \\ \\u0041' * 90),
        ({"messages": [{"content": ""}]}, CHAT, ""),
        ({"prompt": TEXT}, COMPLETIONS, TEXT),
        ({"prompt": [TEXT, TEXT]}, COMPLETIONS, TEXT),
        ({"prompt": ["four", "text", "here"]}, COMPLETIONS, "four"),
        ({"prompt": [7] * 100}, COMPLETIONS, "four" * 100),
        ({"prompt": [[7] * 100, [7] * 100]}, COMPLETIONS, "four" * 100),
        ({"input": TEXT, "instructions": TEXT}, RESPONSES, TEXT * 2),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": TEXT}]},
                    {"type": "function_call_output", "output": TEXT},
                ]
            },
            RESPONSES,
            TEXT * 2,
        ),
        (
            {
                "system": TEXT,
                "messages": [
                    {
                        "content": [
                            {"type": "tool_result", "content": [{"type": "text", "text": TEXT}]},
                            {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}},
                        ]
                    }
                ],
            },
            ANTHROPIC,
            TEXT * 2,
        ),
        ({"text": TEXT, "image_data": "A" * 100_000}, GENERATE, TEXT),
        ({"input_ids": [7] * 100}, GENERATE, "four" * 100),
        ({"input_embeds": [[0.5] * 100]}, GENERATE, ""),
        ({"messages": [{"content": TEXT, "images": ["A" * 100_000]}]}, OLLAMA, TEXT),
        ({"prompt": TEXT, "system": TEXT}, OLLAMA_GENERATE, TEXT * 2),
        ({"messages": ["x"]}, CHAT, "x"),
        ({"messages": 3}, CHAT, ""),
        ({"messages": [{"content": TEXT}, 3]}, CHAT, ""),
    ],
)
def test_the_prompt_is_estimated_from_its_text(body: object, dialect: Dialect, text: str) -> None:
    """Bytes / 4, within half; escaped or not; pictures weigh nothing."""
    exact = len(text.encode()) / 4
    for ascii_only in (True, False):
        raw = json.dumps(body, ensure_ascii=ascii_only).encode()
        found = look(raw, dialect, estimate_prompt=True).prompt_tokens

        assert found is not None
        assert 0.5 * exact - 1 <= found <= 1.5 * exact


def test_tools_weigh_as_they_are_written() -> None:
    """A chat template writes their JSON into the prompt."""
    tools = [{"type": "function", "function": {"name": "f", "description": TEXT}}]
    size = len(json.dumps(tools))

    assert look({"tools": tools}, estimate_prompt=True).prompt_tokens == size // 4


def test_tool_calls_weigh_as_they_are_written() -> None:
    """They are a part of the prompt when the conversation goes on."""
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": calls}]}

    assert look(body, estimate_prompt=True).prompt_tokens == len(json.dumps(calls)) // 4


@pytest.mark.parametrize("depth", [1, 3, 4, 5])
def test_messages_weigh_what_they_weigh_alone(depth: int) -> None:
    """Read with the rest of the body or by themselves: parts are looked into to the same depth."""
    deep: object = "word " * 50
    for _ in range(depth):
        deep = [{"content": deep}]
    alone = prompts.text_bytes([Raw(json.dumps(deep))])

    assert alone is not None
    assert look({"messages": deep}, estimate_prompt=True).prompt_tokens == alone // 4
    assert look({"input": deep}, RESPONSES, estimate_prompt=True).prompt_tokens == alone // 4


def test_very_many_messages_are_weighed_whole() -> None:
    """They are not read: a body of 8 MiB could hold millions."""
    many = [{"content": "word"}] * 20_000

    found = look({"messages": many}, estimate_prompt=True).prompt_tokens
    assert found == len(json.dumps({"messages": many})) // 4


def test_an_estimate_is_made_only_if_asked_for() -> None:
    """It costs more than all the rest."""
    assert look({"messages": MESSAGES}).prompt_tokens is None


LIMITS = SpecLimits(context_tokens=4096, reserved_tokens=4)
LONG = "word " * 3000  # 3,750 tokens by estimate, 5,625 at most


def needed(body: object, dialect: Dialect = CHAT, limits: SpecLimits = LIMITS) -> int | None:
    """The most tokens that *body* may need of the context."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return peek(raw, dialect, estimate_prompt=False, limits=limits).needed_tokens


@pytest.mark.parametrize(
    ("body", "dialect", "tokens"),
    [
        # Exact where the prompt is token ids: they are counted.
        ({"prompt": [7] * 4000, "max_tokens": 92}, COMPLETIONS, 4092),
        ({"prompt": [7] * 4000}, COMPLETIONS, 4016),
        ({"prompt": [[7], [7] * 4000], "max_tokens": 92}, COMPLETIONS, 4092),
        ({"input_ids": [7] * 4000, "sampling_params": {"max_new_tokens": 92}}, GENERATE, 4092),
        ({"input_ids": [7] * 4000}, GENERATE, 4001),
        (
            {"input_ids": [[7] * 10], "sampling_params": [{}, {"max_new_tokens": 4092}]},
            GENERATE,
            4102,
        ),
        ({"messages": MESSAGES, "input_ids": [7] * 4000, "max_tokens": 90}, CHAT, 4090),
        # An upper estimate elsewhere, with what a template may add.
        ({"prompt": LONG, "max_tokens": 10}, COMPLETIONS, 5635),
        ({"prompt": ["a", LONG], "max_tokens": 10}, COMPLETIONS, 5635),
        ({"text": LONG, "sampling_params": {"max_new_tokens": 10}}, GENERATE, 5635),
        ({"messages": [{"content": LONG}], "max_tokens": 10}, CHAT, 5625 + 64 + 10),
        ({"messages": [{"content": LONG}]}, CHAT, 5625 + 64 + 1),
        ({"messages": [{"content": "hi"}], "max_tokens": 4080}, CHAT, 4080 + 64),
        ({"input": LONG, "max_output_tokens": 10}, RESPONSES, 5625 + 64 + 10),
        ({"messages": [{"content": LONG}], "max_tokens": 10}, ANTHROPIC, 5625 + 64 + 10),
        ({"messages": [{"content": LONG}], "system": LONG}, ANTHROPIC, 11250 + 64 + 1),
        ({"messages": [{"content": LONG}]}, OLLAMA, 5625 + 64 + 2048),
        (
            {"messages": [{"content": LONG}], "options": {"num_predict": 10}},
            OLLAMA,
            5625 + 64 + 10,
        ),
        ({"prompt": LONG, "options": {}}, OLLAMA_GENERATE, 5625 + 2048),
        # Tools are in the prompt as they are written.
        ({"messages": MESSAGES, "tools": ["w" * 9996]}, CHAT, 10_005 * 3 // 8 + 64 + 1),
        # Media are no text.
        ({"messages": [{"content": [PICTURE, {"text": "hi"}]}], "max_tokens": 9}, CHAT, 64 + 9),
        ({"text": "hi", "image_data": "A" * 99_999}, GENERATE, 1),
        # A body whose length leaves room, whatever it holds.
        ({"messages": MESSAGES, "max_tokens": 3900}, CHAT, None),
        ({"prompt": [7] * 1000, "max_tokens": 1000}, COMPLETIONS, None),
        ({"messages": MESSAGES}, OLLAMA, None),
    ],
)
def test_the_most_that_a_request_may_need_of_the_context(
    body: object, dialect: Dialect, tokens: int | None
) -> None:
    """Prompt and answer of its longest sequence; each dialect's own word for no limit."""
    found = needed(body, dialect)

    assert (found is None) is (tokens is None)
    if found is not None and tokens is not None:
        assert abs(found - tokens) <= 4  # the estimate rounds a few bytes


@pytest.mark.interpreted("it replaces a function, which a compiled module would still call")
@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_ordinary_prompt_is_not_weighed(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule costs nothing where the length of the body says that it cannot matter."""

    def weighed(_prompt: bytes) -> int:
        raise AssertionError

    monkeypatch.setattr(prompts, "text_bytes", weighed)
    for field in ("messages", "prompt", "input", "text"):
        assert needed({field: "x" * 3000, "max_tokens": 300}, dialect) is None


def test_the_longest_of_very_many_prompts_is_not_looked_for() -> None:
    """Then all bytes count as one."""
    body = json.dumps({"prompt": ["word"] * 5000}).encode()

    assert needed(body, COMPLETIONS) == len(body) * 3 // 8 + 16


def test_the_shortest_ids_are_not_missed() -> None:
    """`1,` is the shortest that an id can be: half the body is the most that there can be."""
    body = f'{{"prompt":[{"1," * 4091}1]}}'.encode()

    assert needed(body, COMPLETIONS) == 4092 + 16


def test_nothing_of_the_body_is_kept() -> None:
    """No trait is a view into it."""
    traits = look({"model": "tiny", "messages": MESSAGES, "response_format": {"type": "x"}})

    kinds = {type(value) for value in traits}
    assert kinds <= {int, bool, str, frozenset, type(None)}
    assert needed({"input_ids": [7] * 4096}, GENERATE) == 4097


def test_every_dialect_has_a_shape() -> None:
    """A new dialect cannot be forgotten."""
    assert set(SHAPES) == set(Dialect)
