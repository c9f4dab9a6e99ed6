"""What an event or a whole answer says of itself: its tokens, and what went wrong."""

import json

import pytest

from proxy.core.peek import Dialect
from proxy.core.usage import Event, add, code_of, counts, decode, failure, usage_of

CHAT = Dialect.OPENAI_CHAT
COMPLETIONS = Dialect.OPENAI_COMPLETIONS
RESPONSES = Dialect.OPENAI_RESPONSES
ANTHROPIC = Dialect.ANTHROPIC
GENERATE = Dialect.GENERATE
OLLAMA = Dialect.OLLAMA_CHAT


@pytest.mark.parametrize(
    ("body", "dialect", "tokens"),
    [
        ({"choices": [], "usage": {"completion_tokens": 24}}, CHAT, 24),
        ({"choices": [], "usage": {"completion_tokens": 0}}, COMPLETIONS, 0),
        ({"object": "response", "usage": {"output_tokens": 5}}, RESPONSES, 5),
        ({"type": "message", "usage": {"input_tokens": 1, "output_tokens": 6}}, ANTHROPIC, 6),
        ({"text": "a", "meta_info": {"completion_tokens": 7}}, GENERATE, 7),
        (
            [
                {"meta_info": {"completion_tokens": 7}},
                {"meta_info": {}},
                {"meta_info": {"completion_tokens": 8}},
            ],
            GENERATE,
            15,
        ),
        ([], GENERATE, None),
        ({"message": {"role": "assistant", "content": "a"}, "eval_count": 9}, OLLAMA, 9),
        ({"response": "a", "eval_count": 9}, Dialect.OLLAMA_GENERATE, 9),
        ({"choices": [], "usage": None}, CHAT, None),
        ({"object": "error", "message": "x", "code": 400}, CHAT, None),
        ({"usage": {"completion_tokens": "3"}}, CHAT, None),
        ({"usage": {"completion_tokens": -1}}, CHAT, None),
        ({"usage": {"completion_tokens": 1 << 40}}, CHAT, None),
        ([1], CHAT, None),
        ([{"usage": {"completion_tokens": 3}}], CHAT, None),
        (None, CHAT, None),
    ],
)
def test_the_usage_of_a_whole_answer(body: object, dialect: Dialect, tokens: int | None) -> None:
    """Output tokens where the answer reports them."""
    assert usage_of(b"\n " + json.dumps(body).encode(), dialect) == tokens


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"\xff", b'{"type":"\xff"}', b"[" * 9999])
@pytest.mark.parametrize("dialect", [CHAT, GENERATE])
def test_an_answer_that_is_no_json_has_no_usage(body: bytes, dialect: Dialect) -> None:
    """And raises nothing."""
    assert usage_of(body, dialect) is None


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"usage": {"completion_tokens": 3, "prompt_tokens": 2}}, (3, 2)),
        ({"usage": {"output_tokens": 3, "input_tokens": 2}}, (3, 2)),
        ({"usage": {"completion_tokens": 0, "output_tokens": 9}}, (0, None)),
        ({"usage": {"completion_tokens": -5, "prompt_tokens": 2}}, (None, 2)),
        ({"meta_info": {"completion_tokens": 3, "prompt_tokens": 2}}, (3, 2)),
        ({"meta_info": {"completion_tokens": 3, "prompt_tokens": -1}}, (3, None)),
        ({"message": {"usage": {"output_tokens": 1, "input_tokens": 2}}}, (None, 2)),
        ({"message": "text", "eval_count": 3, "prompt_eval_count": 2}, (3, 2)),
        ({"response": {"usage": {"output_tokens": 3}}}, (3, None)),
        ({"response": "text", "eval_count": 3}, (3, None)),
        ({}, (None, None)),
    ],
)
def test_the_counts_of_an_event(event: object, expected: tuple[int | None, int | None]) -> None:
    """In every dialect's words, decoded before or not, behind `data: ` or not."""
    raw = json.dumps(event).encode()

    assert counts(raw) == counts(b"data: " + raw) == counts(raw, decode(raw)) == expected


def test_the_counts_of_what_cannot_be_read() -> None:
    """The end of a long event still shows them; the last stand. Nothing has none."""
    rest = (
        b'aaa"}],"usage":{"prompt_tokens": 1,"completion_tokens" :2},"usage":{"output_tokens":3}}'
    )

    assert counts(rest) == (3, 1)
    assert counts(b"aaa") == counts(b"") == (None, None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (503, 503),
        ("429", 429),
        ("1429", "1429"),
        ("\u0664\u0660\u0660", 400),  # digits, if not ours
        ("server_error", "server_error"),
        ("overloaded_error", 503),
        ({"code": 400, "type": "x"}, 400),
        ({"code": None, "type": "rate_limit_error"}, 429),
        ({"code": True}, "error"),
        ({}, "error"),
        (None, "error"),
        (["x"], "error"),
    ],
)
def test_the_code_of_an_error(error: object, code: int | str) -> None:
    """An HTTP status where one is told, else the engine's word, else ours."""
    assert code_of(error) == code


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (None, None),
        (Event(), None),
        (Event(error="a", code=3), "a"),
        (decode(b'{"response":{"error":"b"},"code":3}'), "b"),
        (decode(b'{"response":"text","code":3}'), 3),
    ],
)
def test_where_an_error_stands(event: Event | None, found: object) -> None:
    """In the event, within its response, or spread over the event itself."""
    assert failure(event) == found


@pytest.mark.parametrize(
    ("one", "other", "total"), [(None, None, None), (1, None, 1), (None, 0, 0), (1, 2, 3)]
)
def test_unknown_counts_add_nothing(one: int | None, other: int | None, total: int | None) -> None:
    """And two of them make no nought."""
    assert add(one, other) == total


def test_an_absurd_count_is_unknown() -> None:
    """JSON has numbers that no float can hold, and no answer has so many tokens."""
    for tokens in ("9" * 12, "1" + "0" * 400):
        body = b'{"usage": {"completion_tokens": %s}}' % tokens.encode()
        assert usage_of(body, Dialect.OPENAI_CHAT) is None
