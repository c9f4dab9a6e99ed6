"""Watching streams: what each dialect's events say, and how the bytes are cut into events."""

import json
from pathlib import Path

import pytest

from proxy.core.peek import Dialect
from proxy.core.sse import MAX_EVENT_BYTES, StreamWatch

CHAT = Dialect.OPENAI_CHAT
COMPLETIONS = Dialect.OPENAI_COMPLETIONS
RESPONSES = Dialect.OPENAI_RESPONSES
ANTHROPIC = Dialect.ANTHROPIC
GENERATE = Dialect.GENERATE
OLLAMA = Dialect.OLLAMA_CHAT

DATA = Path(__file__).parent.parent / "data"
DELTA = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANTHROPIC_DELTA = b'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'
RUNNING = b'data: {"text":"a","meta_info":{"finish_reason":null,"completion_tokens":%d}}\n\n'
LINE = b'{"message":{"role":"assistant","content":"a"},"done":false}\n'


def watched(dialect: Dialect, *pieces: bytes) -> StreamWatch:
    """A watch that was fed one piece each second, from 1.0 on."""
    watch = StreamWatch(dialect)
    for second, piece in enumerate(pieces, start=1):
        watch.feed(piece, float(second))
    return watch


def events_of(name: str) -> list[bytes]:
    """A recorded stream, event by event as the engine sent it."""
    return [block + b"\n\n" for block in (DATA / name).read_bytes().split(b"\n\n") if block]


def finished(tokens: int, *, reason: object = None, index: int | None = None) -> bytes:
    """The last event of a sequence on /generate."""
    meta = {
        "finish_reason": reason or {"type": "length", "length": tokens},
        "prompt_tokens": 5,
        "completion_tokens": tokens,
    }
    event: dict[str, object] = {"text": "a", "meta_info": meta}
    if index is not None:
        event["index"] = index
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def test_nothing_is_known_before_the_first_byte() -> None:
    """Unknown is None."""
    watch = StreamWatch(CHAT)

    assert (watch.events, watch.first_token_at, watch.last_token_at) == (0, None, None)
    assert (watch.completion_tokens, watch.prompt_tokens, watch.error_code) == (None, None, None)
    assert watch.at_boundary
    assert not watch.ended


@pytest.mark.parametrize(
    ("name", "dialect", "events", "tokens", "prompt"),
    [
        ("chat-stream-usage.sse", CHAT, 27, 24, 9),
        ("completion-stream.sse", COMPLETIONS, 9, None, None),
        ("generate-stream.sse", GENERATE, 5, 8, 5),
    ],
)
def test_recorded_streams(
    name: str, dialect: Dialect, events: int, tokens: int | None, prompt: int | None
) -> None:
    """What SGLang 0.5.23 sent, an event a second."""
    watch = watched(dialect, *events_of(name))

    assert watch.events == events
    assert (watch.completion_tokens, watch.prompt_tokens) == (tokens, prompt)
    assert (watch.first_token_at, watch.last_token_at) == (1.0, float(events - 1))
    assert watch.error_code is None
    assert watch.ended
    assert watch.at_boundary


def test_a_full_queue_is_told_by_the_first_event() -> None:
    """HTTP 200, and an error where the first token should be: no token was seen."""
    first, done = events_of("queue-full-stream.sse")
    watch = watched(CHAT, first)

    assert (watch.events, watch.error_code, watch.first_token_at) == (1, 503, None)
    watch.feed(done, 2.0)
    assert watch.ended
    assert watch.last_token_at is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"error": {"code": 503}}, 503),
        ({"error": {"code": "429", "type": "x"}}, 429),
        ({"error": {"code": None, "type": "server_error"}}, "server_error"),
        ({"error": {"code": "rate_limited"}}, "rate_limited"),
        ({"error": {"message": "x"}}, "error"),
        ({"error": "x"}, "x"),
        ({"error": True}, "error"),
        ({"error": [1]}, "error"),
        ({"object": "error", "message": "x", "code": 400}, 400),
        ({"object": "error", "message": "x", "code": None}, "error"),
    ],
)
@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS])
def test_error_events_of_openai(dialect: Dialect, error: object, code: int | str) -> None:
    """The status if there is one, else the engine's word for it."""
    watch = watched(dialect, DELTA, b"data: " + json.dumps(error).encode() + b"\n\n", DONE)

    assert watch.error_code == code
    assert watch.last_token_at == 1.0
    assert watch.events == 3


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[],"error":null}\n\n',
        b'data: {"choices":[{"delta":{"content":"say \\"error\\""}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\"usage\\": 3 [DONE]"}}]}\n\n',
        b'data: {"error"\n\n',
        b'data: {"usage":"none"}\n\n',
        b'data: {"error":{},"type":"\xff"}\n\n',
        b'data: {"error":' + b"[" * 5000 + b"\n\n",
        b"data: \n\n",
        b"data\n\n",
    ],
)
def test_what_looks_special_and_is_not(event: bytes) -> None:
    """Words in the text, nulls and broken JSON are tokens like any other."""
    watch = watched(CHAT, event)

    assert (watch.events, watch.error_code, watch.first_token_at) == (1, None, 1.0)
    assert (watch.completion_tokens, watch.ended) == (None, False)


def test_usage_in_every_event_counts_once() -> None:
    """continuous_usage_stats: the last one stands."""
    event = b'data: {"choices":[],"usage": {"prompt_tokens":3,"completion_tokens":%d}}\n\n'
    watch = watched(COMPLETIONS, event % 1, event % 2)

    assert (watch.completion_tokens, watch.prompt_tokens) == (2, 3)


def test_a_report_without_a_count_does_not_undo_one() -> None:
    """Unknown is no number."""
    reports = [{"completion_tokens": 2, "prompt_tokens": 3}, {"total_tokens": 5}]
    pieces = [b"data: " + json.dumps({"usage": usage}).encode() + b"\n\n" for usage in reports]
    watch = watched(CHAT, *pieces)

    assert (watch.completion_tokens, watch.prompt_tokens) == (2, 3)


@pytest.mark.parametrize("nulls", [1, 3])
def test_usage_among_nulls_is_found(nulls: int) -> None:
    """Several events in one piece, of which one reports."""
    quiet = b'data: {"choices":[],"usage":null}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
    for piece in (quiet * nulls + usage, usage + quiet * nulls):
        watch = watched(COMPLETIONS, piece)

        assert (watch.events, watch.completion_tokens) == (nulls + 1, 7)


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("dialect", [CHAT, GENERATE, ANTHROPIC, RESPONSES])
def test_all_line_ends(dialect: Dialect, separator: bytes) -> None:
    """LF, CRLF and CR cut lines alike."""
    stream = b"event: a.delta\ndata: {}\n\nevent: b.delta\ndata: {}\n\n".replace(b"\n", separator)
    watch = watched(dialect, stream)

    assert watch.events == 2
    assert watch.at_boundary


def test_a_cr_at_the_end_of_a_piece_may_be_half_a_crlf() -> None:
    """Its LF ends no further line."""
    watch = watched(CHAT, b"data: a\r", b"\ndata: b\r\n\r", b"\ndata: c\r\n", b"\r\n")

    assert watch.events == 2
    assert watch.at_boundary


@pytest.mark.parametrize(
    ("dialect", "piece"),
    [
        (CHAT, b"data: {}\r\rdata: {}\n\n"),
        (GENERATE, b'data: {"finish_reason":null}\r\rdata: {}\n\n'),
        (ANTHROPIC, b"event: a.delta\ndata: {}\r\rdata: {}\n\n"),
    ],
)
def test_a_cr_among_lfs_ends_a_line(dialect: Dialect, piece: bytes) -> None:
    """Nobody writes so, but the standard says so."""
    assert watched(dialect, piece).events == 2


@pytest.mark.parametrize(
    ("dialect", "first", "second"),
    [
        (CHAT, b"event: x\n", DELTA),
        (GENERATE, b"event: x\n", RUNNING % 1),
        (ANTHROPIC, b"id: 3\n", ANTHROPIC_DELTA),
        (OLLAMA, b'{"x": ', LINE),
        (CHAT, b"data: {}\nd", b"ata: x\n\n"),
        (CHAT, b"data: {}\n\n: c\n", b"\n"),
        (ANTHROPIC, b"event: a.delta\ndata: {}\nd", b"ata: x\n\n"),
    ],
)
def test_what_ends_an_event_is_not_taken_for_a_whole_one(
    dialect: Dialect, first: bytes, second: bytes
) -> None:
    """A piece that looks whole may be the rest of an event, or not its end."""
    watch = watched(dialect, first)
    assert (watch.events, watch.at_boundary) == (first.count(b"\n\n"), False)

    after = watched(dialect, first, second)
    assert (after.events, after.at_boundary) == (1, True)


def test_comments_and_names_alone_are_no_events() -> None:
    """Nothing is dispatched without data."""
    watch = watched(CHAT, b": ping\n\n", b"event: ping\n\n", b"\n\n", b"id: 3\nretry: 5\n\n")

    assert (watch.events, watch.first_token_at) == (0, None)
    assert watch.at_boundary


def test_data_may_have_no_blank_and_many_lines() -> None:
    """The lines are joined, and one leading blank is not a part of them."""
    watch = watched(CHAT, b'data:{"error":\ndata: {"code":\ndata:503}}\n\n', b"data:[DONE]\n\n")

    assert (watch.events, watch.error_code, watch.ended) == (2, 503, True)


def test_a_byte_order_mark_is_skipped() -> None:
    """At the start of a stream only."""
    assert watched(CHAT, b"\xef\xbb\xbfdata: [DONE]\n\n").ended
    assert not watched(CHAT, DELTA, b"\xef\xbb\xbfdata: [DONE]\n\n").ended


def test_the_boundary_is_between_events() -> None:
    """Not before the blank line, wherever the piece was cut."""
    watch = StreamWatch(CHAT)
    seen = []
    for byte in (b"data: {}", b"\n", b"\n", b"\n", b"d"):
        watch.feed(byte, 1.0)
        seen.append(watch.at_boundary)

    assert seen == [False, False, True, True, False]


def test_events_in_one_piece_are_counted_one_by_one() -> None:
    """However many arrive together, and with the next one's beginning."""
    watch = watched(CHAT, DELTA * 3, DELTA * 2 + DELTA[:10], DELTA[10:] + DONE)

    assert watch.events == 7
    assert watch.ended


@pytest.mark.parametrize("odd", [b": c\n\n", b"event: x\ndata: y\n\n", b"\n"])
def test_a_piece_of_mixed_events(odd: bytes) -> None:
    """What is no plain event among plain ones takes the slow path."""
    watch = watched(CHAT, DELTA + odd + DELTA, DELTA)

    assert watch.events == 3 + (b"data" in odd)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_without_a_final_blank_line(dialect: Dialect) -> None:
    """A stream that ended well may have left it out; then it is told, once."""
    last = {
        ANTHROPIC: b'event: message_stop\ndata: {"type":"message_stop"}',
        RESPONSES: b'event: response.completed\ndata: {"response":{}}',
        OLLAMA: b'{"done":true}',
        Dialect.OLLAMA_GENERATE: b'{"done":true}',
    }.get(dialect, b"data: [DONE]\n")
    watch = watched(dialect, last)
    seen = [(watch.events, watch.ended, watch.at_boundary)]
    for second in (9.0, 10.0):
        watch.finish(second)
        seen.append((watch.events, watch.ended, watch.at_boundary))

    assert seen == [(0, False, False), (1, True, True), (1, True, True)]


# /generate


def test_generate_counts_by_its_last_event() -> None:
    """Each event holds the sum so far; it is decoded when somebody asks."""
    watch = watched(GENERATE, RUNNING % 1, RUNNING % 3)
    assert watch.completion_tokens == 3

    watch.feed(finished(4), 3.0)
    watch.feed(DONE, 4.0)
    assert (watch.completion_tokens, watch.prompt_tokens) == (4, 5)
    assert (watch.events, watch.last_token_at, watch.ended) == (4, 3.0, True)


def test_only_the_engines_own_count_is_taken() -> None:
    """The same word elsewhere in the event means something else."""
    event = (
        b'data: {"meta_info":{"finish_reason":null,"prompt_tokens":4,"completion_tokens":3},'
        b'"x":{"prompt_tokens":99,"completion_tokens":99}}\n\n'
    )
    watch = watched(GENERATE, event)

    assert (watch.completion_tokens, watch.prompt_tokens) == (3, 4)


def test_a_batch_on_generate_is_summed() -> None:
    """Its sequences interleave, and each ends with its own event."""
    watch = watched(
        GENERATE, RUNNING % 1, RUNNING % 1, finished(2, index=0), RUNNING % 5, finished(6, index=1)
    )

    assert watch.completion_tokens == 8


def test_a_batch_on_generate_that_was_cut() -> None:
    """What has finished and the last of what ran."""
    assert watched(GENERATE, finished(2, index=0), RUNNING % 5).completion_tokens == 7


def test_generate_refuses_in_its_first_event() -> None:
    """An abort with a status is an error, and no token."""
    reason = {"type": "abort", "message": "The request queue is full.", "status_code": 503}
    watch = watched(GENERATE, finished(0, reason=reason), DONE)

    assert (watch.events, watch.error_code, watch.first_token_at) == (2, 503, None)


def test_a_graceful_abort_is_no_error() -> None:
    """Somebody asked for it."""
    watch = watched(GENERATE, finished(3, reason={"type": "abort", "message": "x"}))

    assert (watch.error_code, watch.completion_tokens, watch.first_token_at) == (None, 3, 1.0)


@pytest.mark.parametrize("reason", ["stop", {"type": "stop", "matched": 2}])
def test_a_sequence_that_ends_by_itself(reason: object) -> None:
    """As a word or as an object."""
    watch = watched(GENERATE, finished(3, reason=reason))

    assert (watch.error_code, watch.completion_tokens) == (None, 3)


def test_an_error_on_generate() -> None:
    """What was refused while it was streamed."""
    watch = watched(GENERATE, b'data: {"error":{"message":"too long","code":400}}\n\n', DONE)

    assert (watch.error_code, watch.first_token_at, watch.ended) == (400, None, True)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"text":"a"}\n\n',
        b"data: {\n\n",
        b'data: {"meta_info": {"finish_reason": null, "completion_tokens": 3}}\n\n',
    ],
)
def test_unusual_events_on_generate(event: bytes) -> None:
    """Other spacing, no meta_info, broken JSON: tokens, and nothing is raised."""
    watch = watched(GENERATE, event)

    assert (watch.events, watch.first_token_at, watch.error_code) == (1, 1.0, None)
    assert watch.completion_tokens in {None, 3}


@pytest.mark.parametrize("piece", [RUNNING % 1 * 2, (RUNNING % 1)[:-1] + b"data: x\n\n"])
def test_generate_reads_several_lines_slowly(piece: bytes) -> None:
    """Two events in a piece, or two lines in an event."""
    assert watched(GENERATE, piece).events == piece.count(b"\n\n")


# Anthropic and Responses


def named(name: str, **fields: object) -> bytes:
    """An event of Anthropic's or of Responses."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


ANTHROPIC_STREAM = (
    named("message_start", message={"usage": {"input_tokens": 11, "output_tokens": 1}}),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("ping"),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "b"}),
    named("content_block_stop", index=0),
    named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
    named("message_stop"),
)


def test_an_anthropic_stream() -> None:
    """The first content_block_delta is the first token."""
    watch = watched(ANTHROPIC, *ANTHROPIC_STREAM)

    assert (watch.events, watch.first_token_at, watch.last_token_at) == (8, 4.0, 5.0)
    assert (watch.completion_tokens, watch.prompt_tokens) == (2, 11)
    assert (watch.ended, watch.error_code) == (True, None)


def test_an_anthropic_stream_that_was_cut_has_no_usage() -> None:
    """What message_start says of the output is no count of it."""
    watch = watched(ANTHROPIC, *ANTHROPIC_STREAM[:5])

    assert (watch.completion_tokens, watch.prompt_tokens, watch.ended) == (None, 11, False)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("overloaded_error", 503), ("invalid_request_error", 400), ("strange_error", "strange_error")],
)
def test_an_anthropic_error(kind: str, code: int | str) -> None:
    """By the status that SGLang translated into its type."""
    watch = watched(ANTHROPIC, named("error", error={"type": kind, "message": "x"}))

    assert (watch.error_code, watch.first_token_at) == (code, None)


RESPONSES_STREAM = (
    named("response.created", response={"usage": None}),
    named("response.output_item.added", item={}),
    named("response.reasoning_text.delta", delta="a"),
    named("response.output_text.delta", delta="b"),
    named("response.output_text.done", text="b"),
    named("response.completed", response={"usage": {"input_tokens": 4, "output_tokens": 9}}),
)


def test_a_responses_stream() -> None:
    """The first `.delta` is the first token, whatever it is a delta of."""
    watch = watched(RESPONSES, *RESPONSES_STREAM)

    assert (watch.events, watch.first_token_at, watch.last_token_at) == (6, 3.0, 4.0)
    assert (watch.completion_tokens, watch.prompt_tokens) == (9, 4)
    assert (watch.ended, watch.error_code) == (True, None)


@pytest.mark.parametrize(
    ("event", "code", "ended"),
    [
        (named("response.failed", response={"error": {"code": "server_error"}}), "server_error", 1),
        (named("response.failed", response={"error": None}), "error", 1),
        (named("response.failed", response="x"), "error", 1),
        (named("error", code="429", message="x"), 429, 0),
        (named("error", error={"code": 503}), 503, 0),
        (b"event: error\ndata: {\n\n", "error", 0),
        (named("response.incomplete", response={"usage": None}), None, 1),
    ],
)
def test_how_responses_end_otherwise(event: bytes, code: int | str | None, ended: int) -> None:
    """Failed, refused, or cut short by a limit."""
    watch = watched(RESPONSES, event)

    assert (watch.error_code, watch.ended) == (code, bool(ended))


def test_events_without_a_name_are_known_by_their_type() -> None:
    """Some servers leave the `event:` line out."""
    pieces = [piece.split(b"\n", 1)[1] for piece in ANTHROPIC_STREAM]
    watch = watched(ANTHROPIC, *pieces)

    assert (watch.first_token_at, watch.completion_tokens, watch.ended) == (4.0, 2, True)


@pytest.mark.parametrize(
    ("dialect", "last", "more"),
    [
        (ANTHROPIC, named("message_stop"), named("ping")),
        (RESPONSES, named("response.completed", response={}), named("response.x")),
        (OLLAMA, b'{"done":true}\n', b"{}\n"),
        (CHAT, DONE, DELTA),
    ],
)
def test_an_end_is_not_forgotten(dialect: Dialect, last: bytes, more: bytes) -> None:
    """Whatever follows it."""
    assert watched(dialect, last, more).ended


def test_a_named_event_without_data_is_none() -> None:
    """A delta's name alone is not a token."""
    watch = watched(ANTHROPIC, b"event: a.delta\nid: 3\n\n")

    assert (watch.events, watch.first_token_at) == (0, None)


@pytest.mark.parametrize("event", [b"data: {}\n\n", b"data: {\n\n", b'data: {"type":null}\n\n'])
def test_events_without_a_name_or_type(event: bytes) -> None:
    """They count, and say nothing."""
    watch = watched(ANTHROPIC, event)

    assert (watch.events, watch.first_token_at, watch.error_code) == (1, None, None)


@pytest.mark.parametrize(
    "piece",
    [
        ANTHROPIC_DELTA * 2,
        ANTHROPIC_DELTA[:-1] + b"data: x\n\n",
        ANTHROPIC_DELTA.replace(b"data: ", b"data:"),
        ANTHROPIC_DELTA.replace(b"\n", b"\r\n"),
    ],
)
def test_named_events_are_read_slowly_where_they_are_not_plain(piece: bytes) -> None:
    """Two in a piece, two lines in one, other spacing, other line ends."""
    watch = watched(ANTHROPIC, piece)

    assert watch.events == max(piece.count(b"event"), 1)
    assert watch.first_token_at == 1.0


# Ollama


def test_an_ollama_stream() -> None:
    """One JSON object a line; counts only where the engine gives them."""
    last = b'{"message":{"content":""},"done":true,"eval_count":7,"prompt_eval_count":3}\n'
    watch = watched(OLLAMA, LINE, LINE + LINE, last)

    assert (watch.events, watch.first_token_at, watch.last_token_at) == (4, 1.0, 3.0)
    assert (watch.completion_tokens, watch.prompt_tokens, watch.ended) == (7, 3, True)
    assert watch.at_boundary


def test_an_ollama_stream_without_counts() -> None:
    """As SGLang 0.5.23 writes it."""
    watch = watched(OLLAMA, LINE, b'{"response":"","done":true,"done_reason":"stop"}\n')

    assert (watch.completion_tokens, watch.ended) == (None, True)


def test_an_ollama_error() -> None:
    """A line with an error is no token, and no end."""
    watch = watched(OLLAMA, LINE, b'{"error":"model is gone"}\n')

    assert (watch.error_code, watch.last_token_at, watch.ended) == ("model is gone", 1.0, False)


@pytest.mark.parametrize("piece", [b"\n", b"\r\n", b"  \n", b" \r\n\n"])
def test_blank_lines_are_nothing(piece: bytes) -> None:
    """On NDJSON too."""
    watch = watched(OLLAMA, LINE, piece)

    assert watch.events == 1
    assert watch.at_boundary


@pytest.mark.parametrize("line", [b"{\n", b'{"done": false}\n', b'{"done":false,"error":null}\n'])
def test_unusual_lines_are_tokens(line: bytes) -> None:
    """Broken JSON, other spacing, an error that is none."""
    watch = watched(OLLAMA, line)

    assert (watch.events, watch.first_token_at, watch.ended) == (1, 1.0, False)


# Events that are too long


def long_event(size: int) -> bytes:
    """An event of exactly *size* bytes without its blank line."""
    head = b'data: {"text":"'
    tail = b'","meta_info":{"finish_reason":null,"prompt_tokens":5,"completion_tokens":70}}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("step", [1 << 20, 1000, 37])
def test_an_event_up_to_the_bound_is_read_whole(step: int, end: bytes) -> None:
    """In one piece or in many."""
    stream = long_event(MAX_EVENT_BYTES) + end
    watch = watched(GENERATE, *(stream[at : at + step] for at in range(0, len(stream), step)))

    assert (watch.events, watch.oversized, watch.completion_tokens) == (1, 0, 70)
    assert watch.at_boundary


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("step", [1 << 20, 1000, 37])
@pytest.mark.parametrize("size", [MAX_EVENT_BYTES + 1, 3 * MAX_EVENT_BYTES])
def test_a_longer_event_is_read_from_its_ends(size: int, step: int, end: bytes) -> None:
    """Nothing in between is held, and the next event is found."""
    stream = long_event(size) + end + finished(80)
    watch = StreamWatch(GENERATE)
    for at in range(0, len(stream), step):
        watch.feed(stream[at : at + step], 1.0)
        assert len(watch._held) <= MAX_EVENT_BYTES + 2

    assert (watch.events, watch.oversized, watch.completion_tokens) == (2, 1, 80)
    assert watch.at_boundary


def test_the_counts_of_a_longer_event_are_found_in_its_tail() -> None:
    """On /generate the events grow, and the last one may be the longest."""
    watch = watched(GENERATE, long_event(2 * MAX_EVENT_BYTES) + b"\n\n")

    assert (watch.completion_tokens, watch.prompt_tokens) == (70, 5)
    assert (watch.events, watch.oversized) == (1, 1)


def test_the_counts_are_found_where_the_ends_do_not_fit_together() -> None:
    """The head stands deeper in the JSON than the tail."""
    inner = b'data: {"deep":{"a":"' + b"x" * 2000 + b'"},'
    event = inner + long_event(2 * MAX_EVENT_BYTES).removeprefix(b"data: {") + b"\n\n"
    watch = watched(GENERATE, event)

    assert (watch.completion_tokens, watch.prompt_tokens, watch.oversized) == (70, 5, 1)


@pytest.mark.parametrize(
    ("dialect", "start", "end"),
    [
        (CHAT, b'data: {"', b'"}\n\n'),
        (ANTHROPIC, b"event: a.delta\ndata: ", b"\n\n"),
        (OLLAMA, b'{"done":false,"x":"', b'"}\n'),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_the_bound_holds_for_a_plain_event_in_one_piece(
    dialect: Dialect, start: bytes, end: bytes, more: int
) -> None:
    """It is no matter of how the bytes come."""
    padding = MAX_EVENT_BYTES + more - len(start) - len(end.rstrip(b"\n"))
    watch = watched(dialect, start + b"x" * padding + end)

    assert (watch.events, watch.oversized, watch.first_token_at) == (1, more, 1.0)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("rest", [1, 2, 3, 4, 5])
def test_the_blank_line_does_not_count_towards_the_bound(end: bytes, rest: int) -> None:
    """Wherever it is cut, and whether it comes at all."""
    stream = long_event(MAX_EVENT_BYTES) + end
    watch = watched(GENERATE, stream[:-rest], stream[-rest:])
    unfinished = watched(GENERATE, stream[: -len(end) // 2])
    unfinished.finish(2.0)

    assert (watch.events, watch.oversized) == (1, 0)
    assert (unfinished.events, unfinished.oversized) == (1, 0)


def test_a_longer_end_of_a_response_is_found() -> None:
    """response.completed repeats the whole output, and then reports its usage."""
    response = {"output": ["x", "y" * 70_000, 1], "usage": {"input_tokens": 2, "output_tokens": 3}}
    watch = watched(RESPONSES, named("response.completed", response=response))

    assert (watch.ended, watch.oversized) == (True, 1)
    assert (watch.completion_tokens, watch.prompt_tokens) == (3, 2)


def test_a_longer_event_without_counts() -> None:
    """It is a token, and tells nothing."""
    watch = watched(CHAT, b"data: [" + b"1," * MAX_EVENT_BYTES + b"]\n\n", DONE)

    assert (watch.events, watch.oversized, watch.first_token_at) == (2, 1, 1.0)
    assert (watch.completion_tokens, watch.ended) == (None, True)


def test_a_line_without_an_end_is_not_held() -> None:
    """The watch stays small and knows that it stands inside an event."""
    watch = StreamWatch(CHAT)
    for second in range(100):
        watch.feed(b"x" * 10_000, float(second))
        assert len(watch._held) <= MAX_EVENT_BYTES + 2

    assert not watch.at_boundary
    watch.feed(b"\n\n" + DELTA, 100.0)
    assert (watch.events, watch.oversized, watch.at_boundary) == (1, 1, True)


def test_what_follows_an_error_event_is_no_token() -> None:
    """SGLang sends the usage that was asked for even after a refusal: no token."""
    watch = StreamWatch(Dialect.OPENAI_CHAT)
    watch.feed(b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n', 1.0)
    watch.feed(b'data: {"choices":[],"usage":{"completion_tokens":0}}\n\ndata: [DONE]\n\n', 2.0)

    assert watch.error_code == 503
    assert watch.first_token_at is None
    assert watch.last_token_at is None
