"""Request bodies are read as SGLang reads them, and refused as SGLang refuses them."""

import json

import pytest

from proxy.sim.asks import DEFAULT_OUTPUT_TOKENS, Ask, BodyError, Shape, read
from proxy.sim.text import natural_length, sample_seed, seed_of

MESSAGES = [{"role": "user", "content": "hello"}]
LONG = "words " * 400
"""600 tokens."""


def _read(shape: Shape, **body: object) -> Ask:
    return read(shape, json.dumps(body).encode(), context_length=500)


def _refused(shape: Shape, **body: object) -> BodyError:
    with pytest.raises(BodyError) as caught:
        _read(shape, **body)
    return caught.value


def test_a_chat_without_wishes() -> None:
    """One reply of the default length under a fresh id, not streamed."""
    ask = _read(Shape.CHAT, messages=MESSAGES)
    assert [one.output_tokens for one in ask.wanted] == [DEFAULT_OUTPUT_TOKENS]
    assert not ask.stream
    assert len(ask.rids[0]) == 32
    assert ask.rids != _read(Shape.CHAT, messages=MESSAGES).rids


def test_a_chat_with_wishes() -> None:
    """Everything that changes the reply is taken over."""
    ask = _read(
        Shape.CHAT,
        messages=MESSAGES,
        model="m",
        rid="abc",
        n=2,
        stream=True,
        max_tokens=9,
        stream_options={"include_usage": True},
        return_spec_tokens_details=True,
        return_meta_info=True,
        min_p=0.5,
    )
    assert (ask.model, ask.rids, ask.samples) == ("m", ("abc", "abc"), 2)
    assert (ask.stream, ask.usage, ask.spec_details, ask.meta_info) == (True, True, True, True)
    assert [one.output_tokens for one in ask.wanted] == [9, 9]


@pytest.mark.parametrize(
    "body",
    [
        {"max_completion_tokens": 7},
        {"max_tokens": 7},
        {"max_tokens": 9, "max_completion_tokens": 7},
        {"max_tokens": "7"},
    ],
)
def test_the_limit_has_two_names(body: dict[str, object]) -> None:
    """The newer name wins, and a number in quotes is a number."""
    assert _read(Shape.CHAT, messages=MESSAGES, **body).wanted[0].output_tokens == 7


def test_parts_of_a_message() -> None:
    """Text in parts is text; images and missing contents say nothing."""
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x"}}]
    whole = _read(Shape.CHAT, messages=MESSAGES)
    assert _read(Shape.CHAT, messages=[{"role": "user", "content": parts}]).wanted == whole.wanted
    assert _read(Shape.CHAT, messages=[{"role": "assistant", "content": None}]).wanted


def test_a_reply_ends_by_itself() -> None:
    """A limit beyond the natural end leaves the reply uncut; ignore_eos goes on to the limit."""
    end = natural_length(seed_of("user: hello"))
    free = _read(Shape.CHAT, messages=MESSAGES, max_tokens=end).wanted[0]
    assert (free.output_tokens, free.cut) == (end, False)
    short = _read(Shape.CHAT, messages=MESSAGES, max_tokens=end - 1).wanted[0]
    assert (short.output_tokens, short.cut) == (end - 1, True)
    endless = _read(Shape.CHAT, messages=MESSAGES, max_tokens=end + 1, ignore_eos=True).wanted[0]
    assert (endless.output_tokens, endless.cut) == (end + 1, True)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("one", 1), (["one", "two"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2), ("123", 1)],
)
def test_prompts_of_a_completion(prompt: object, prompts: int) -> None:
    """A list of numbers is one prompt, any other list is several; samples multiply them."""
    assert len(_read(Shape.COMPLETION, prompt=prompt).wanted) == prompts
    assert len(_read(Shape.COMPLETION, prompt=prompt, n=3).wanted) == 3 * prompts


def test_samples_follow_their_prompt() -> None:
    """Replies come prompt by prompt."""
    ask = _read(Shape.COMPLETION, prompt=["one", "two"], n=2)
    expected = [
        sample_seed(seed_of(prompt), sample) for prompt in ("one", "two") for sample in (0, 1)
    ]
    assert [one.seed for one in ask.wanted] == expected


@pytest.mark.parametrize(
    ("body", "replies", "single"),
    [
        ({"text": "one"}, 1, True),
        ({"input_ids": [5, 6]}, 1, True),
        ({"text": ["one"]}, 1, False),
        ({"text": ["one", "two"]}, 2, False),
        ({"input_ids": [[5], [6]]}, 2, False),
        ({"text": "one", "sampling_params": {"n": 2}}, 2, False),
    ],
)
def test_prompts_of_generate(body: dict[str, object], replies: int, single: bool) -> None:  # noqa: FBT001  a parameter of the test
    """One prompt is answered with an object, a list of prompts or several samples with a list."""
    ask = _read(Shape.GENERATE, **body)
    assert (len(ask.wanted), ask.single) == (replies, single)


def test_sampling_params_of_generate() -> None:
    """One for all prompts, or one for each."""
    both = _read(Shape.GENERATE, text=["a", "b"], sampling_params={"max_new_tokens": 5})
    assert [one.output_tokens for one in both.wanted] == [5, 5]
    params = [{"max_new_tokens": 5}, {"max_new_tokens": 600, "ignore_eos": True}]
    each = read(
        Shape.GENERATE,
        json.dumps({"text": ["a", "b"], "sampling_params": params}).encode(),
        context_length=1000,
    )
    assert [one.output_tokens for one in each.wanted] == [5, 600]


@pytest.mark.parametrize(
    ("rid", "kept"), [("a", False), (["a", "b"], True), (["a"], False), (None, False)]
)
def test_ids_of_generate(rid: object, kept: bool) -> None:  # noqa: FBT001  a parameter of the test
    """Ids are kept where there is one for each reply, else each gets its own."""
    ask = _read(Shape.GENERATE, text=["one", "two"], rid=rid)
    assert len(set(ask.rids)) == 2
    assert (ask.rids == ("a", "b")) is kept


def test_an_id_of_generate() -> None:
    """A single reply has the id that was asked for."""
    assert _read(Shape.GENERATE, text="one", rid="a").rids == ("a",)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "json_invalid"),
        (b'{"messages": [', "json_invalid"),
        (b"\xff\xfe", "json_invalid"),
        (b'{"model": "m"}', "missing"),
        (b'{"messages": [], "temperature": "hot"}', "'temperature'"),
        (b'{"messages": "hello"}', "'messages'"),
        (b'{"messages": [{"content": "x"}]}', "missing"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 0}', "'n'"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', "'max_tokens'"),
        (b"[]", "type_error"),
    ],
)
def test_what_is_no_request(body: bytes, kind: str) -> None:
    """Broken JSON, missing fields and wrong types get SGLang's flat error with its finding."""
    with pytest.raises(BodyError) as caught:
        read(Shape.CHAT, body, context_length=500)
    payload = caught.value.payload
    assert isinstance(payload, dict)
    assert (payload["object"], payload["type"], payload["code"]) == ("error", "Bad Request", 400)
    assert kind in payload["message"]
    assert not caught.value.in_stream


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": LONG}, "longer than the model's context length (500 tokens)"),
        ({"prompt": "x", "max_tokens": 500}, "a total of 501 tokens"),
    ],
)
def test_too_long(body: dict[str, object], words: str, stream: bool) -> None:  # noqa: FBT001  a parameter of the test
    """What does not fit the context is status 400, also where a stream is wanted."""
    refused = _refused(Shape.COMPLETION, stream=stream, **body)
    assert isinstance(refused.payload, dict)
    assert refused.payload["type"] == "BadRequestError"
    assert words in refused.payload["message"]
    assert not refused.in_stream


@pytest.mark.parametrize("body", [{"prompt": []}, {"prompt": ""}])
def test_an_empty_completion(body: dict[str, object]) -> None:
    """No prompt at all is refused; an empty one is one."""
    if body["prompt"] == []:
        assert "empty" in str(_refused(Shape.COMPLETION, **body))
    else:
        assert _read(Shape.COMPLETION, **body).wanted


def test_a_chat_without_messages() -> None:
    """There is nothing to reply to."""
    assert "empty" in str(_refused(Shape.CHAT, messages=[]))


def test_generate_too_long() -> None:
    """/generate says it in its own shape, and inside the stream where one is wanted."""
    plain = _refused(Shape.GENERATE, text=LONG)
    assert isinstance(plain.payload, dict)
    assert list(plain.payload["error"]) == ["message"]
    assert not plain.in_stream
    streamed = _refused(Shape.GENERATE, text=LONG, stream=True)
    assert isinstance(streamed.payload, dict)
    assert streamed.payload["error"]["code"] == 400
    assert streamed.in_stream


@pytest.mark.parametrize(
    "body",
    [{}, {"text": []}, {"text": ["a", "b"], "sampling_params": [{}]}],
)
def test_generate_without_sense(body: dict[str, object]) -> None:
    """No prompt, or parameters that do not match the prompts."""
    assert not _refused(Shape.GENERATE, **body).in_stream
