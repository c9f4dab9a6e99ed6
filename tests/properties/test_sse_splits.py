"""However a stream's bytes are split, the watch sees the same."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import sse
from proxy.core.peek import Dialect
from proxy.core.sse import StreamWatch
from proxy.core.usage import usage_of

DATA = Path(__file__).parent.parent / "data"

ANTHROPIC = (
    'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":11,'
    '"output_tokens":1}}}\n\n'
    ': keep-alive\n\nevent: ping\ndata: {"type":"ping"}\n\n'
    'event: content_block_delta\ndata: {"type":"content_block_delta","text":"héé 文🙂"}\n\n'
    'event: content_block_delta\ndata: {"type":"content_block_delta","text":"b"}\n\n'
    'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":2}}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
).encode()
RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{"usage":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
    b'event: response.failed\ndata: {"response":{"error":{"code":"server_error"}}}\n\n'
)
OLLAMA = (
    '{"message":{"content":"文"},"done":false}\n\n{"message":{"content":"b"},"done":false}\r\n'
    '{"done":true,"eval_count":7,"prompt_eval_count":3}\n'
).encode()
BATCH = (
    b'data: {"meta_info":{"finish_reason":null,"completion_tokens":1},"index":0}\n\n'
    b'data: {"meta_info":{"finish_reason":{"type":"stop"},"completion_tokens":2},"index":0}\n\n'
    b'data: {"meta_info":{"finish_reason":null,"completion_tokens":4},"index":1}\n\n'
)
ODD = (
    b'\xef\xbb\xbf: c\n\ndata:{"error":\ndata: {"code":"429"}}\n\n\n\nevent: x\n\ndata\n\n'
    b'data: {"usage":null}\n\ndata: {"usage":{"completion_tokens":3}}\n\ndata: [DONE]\n'
)
STREAMS = [
    (Dialect.OPENAI_CHAT, (DATA / "chat-stream-usage.sse").read_bytes()),
    (Dialect.OPENAI_CHAT, (DATA / "queue-full-stream.sse").read_bytes()),
    (Dialect.OPENAI_COMPLETIONS, (DATA / "completion-stream.sse").read_bytes()),
    (Dialect.GENERATE, (DATA / "generate-stream.sse").read_bytes()),
    (Dialect.GENERATE, BATCH),
    (Dialect.ANTHROPIC, ANTHROPIC),
    (Dialect.OPENAI_RESPONSES, RESPONSES),
    (Dialect.OLLAMA_CHAT, OLLAMA),
    (Dialect.OPENAI_CHAT, ODD),
]
FRAGMENTS = [
    b"data: {}\n\n", b"event: x.delta\ndata: {}\n\n", b"data: {",
    b"data: ", b"data:", b"data", b"event: ", b"x.delta", b"content_block_delta", b"error", b": c",
    b"[DONE]", b"{}", b'{"', b'"error"', b'"usage"', b'"usage":null', b':{"code":503}', b"}",
    b'{"error":{"code":503}}', b'{"usage":{"completion_tokens":3}}', b'"finish_reason":null',
    b'{"meta_info":{"finish_reason":null,"completion_tokens":4}}', b'{"done":false}',
    b'{"meta_info":{"finish_reason":"stop","completion_tokens":4}}', b'{"done":true}',
    b"\n", b"\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\r", b"\r\n", b" ", b"\xef\xbb\xbf", b"\xe6\x96",
]  # fmt: skip


def seen(dialect: Dialect, pieces: list[bytes]) -> dict[str, object]:
    """All that a watch answers, before the end and after it, with every piece at the same time."""
    watch = StreamWatch(dialect)
    answers: dict[str, object] = {}
    for stage in ("open", "finished"):
        for piece in pieces:
            watch.feed(piece, 1.0)
        answers |= {
            f"{stage} {name}": getattr(watch, name)
            for name in (
                "events",
                "first_token_at",
                "last_token_at",
                "completion_tokens",
                "prompt_tokens",
                "error_code",
                "ended",
                "oversized",
                "at_boundary",
            )
        }
        pieces = []
        watch.finish(2.0)
    return answers


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """Split *stream* at *places*, wherever they fall."""
    at = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(at)]


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_byte_by_byte_and_at_every_place(dialect: Dialect, stream: bytes, ends: bytes) -> None:
    """The two splits that find most: into bytes, and into two at each place."""
    if sse.StreamWatch(dialect)._how.separator is sse._BLANK_LINE:
        stream = stream.replace(b"\r\n", b"\n").replace(b"\n", ends)
    whole = seen(dialect, [stream])

    assert seen(dialect, [stream[at : at + 1] for at in range(len(stream))]) == whole
    for place in range(0, len(stream), max(len(stream) // 400, 1)):
        assert seen(dialect, [stream[:place], stream[place:]]) == whole


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_of_a_real_stream(stream: tuple[Dialect, bytes], places: list[int]) -> None:
    """As the network may deliver it."""
    dialect, whole = stream

    assert seen(dialect, cut(whole, places)) == seen(dialect, [whole])


@given(
    st.sampled_from(list(Dialect)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=40).map(b"".join),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_any_split_of_any_stream(dialect: Dialect, stream: bytes, places: list[int]) -> None:
    """Whatever stands where: the quick paths and the slow one never differ."""
    whole = seen(dialect, [stream])

    assert seen(dialect, cut(stream, places)) == whole
    assert seen(dialect, [stream[at : at + 1] for at in range(len(stream))]) == whole


@given(
    st.sampled_from(list(Dialect)),
    st.lists(
        st.tuples(
            st.sampled_from(
                [b'data: {"', b"event: a.delta\ndata: ", b": ", b'{"done":false,"x":"', b""]
            ),
            st.integers(-3, 3),
            st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b""]),
        ),
        max_size=3,
    ),
    st.lists(st.integers(0, 300_000), max_size=8),
)
def test_any_split_around_the_bound(
    dialect: Dialect, blocks: list[tuple[bytes, int, bytes]], places: list[int]
) -> None:
    """Whether an event is too long does not depend on how it came."""
    stream = b"".join(
        start + b"x" * (sse.MAX_EVENT_BYTES - len(start) + more) + end
        for start, more, end in blocks
    )

    assert seen(dialect, cut(stream, places)) == seen(dialect, [stream])


@given(st.sampled_from(list(Dialect)), st.lists(st.binary(max_size=200), max_size=10))
def test_no_bytes_make_it_raise(dialect: Dialect, pieces: list[bytes]) -> None:
    """A stream is the engine's, and it may send anything."""
    seen(dialect, pieces)
    usage_of(b"".join(pieces), dialect)
