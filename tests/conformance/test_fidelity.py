"""However the network cuts a stream, the client gets its bytes and the books get its numbers.

Most of this runs on fake transports, where every cut can be made; the rest over real sockets.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import pytest

from proxy.core.observer import Record
from proxy.core.words import AdminState, Outcome
from tests.harness.client import post
from tests.harness.pair import BASE, Recorder
from tests.harness.running import rig
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Fin,
    Send,
    chunk,
    event,
)
from tests.harness.wire import Wire

DATA = Path(__file__).parent.parent / "data"


@dataclass(frozen=True)
class Stream:
    """A stream, and what has to be noted of it."""

    path: str
    events: list[bytes]
    tokens: int | None = None
    code: str | None = None
    outcome: Outcome = Outcome.OK
    first_token: int | None = 0
    """Which of the events is the first with output."""
    media_type: bytes = b"text/event-stream"

    @property
    def body(self) -> bytes:
        """Its bytes."""
        return b"".join(self.events)

    @property
    def head(self) -> bytes:
        """The head of an answer that carries it, without its framing and its end."""
        return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n" % self.media_type

    @property
    def chunked(self) -> bytes:
        """The whole answer, an event a chunk."""
        framing = b"transfer-encoding: chunked\r\n\r\n"
        return self.head + framing + b"".join(map(chunk, self.events)) + END

    @property
    def counted(self) -> bytes:
        """The whole answer, with its length."""
        return self.head + b"content-length: %d\r\n\r\n" % len(self.body) + self.body


def recorded(name: str) -> list[bytes]:
    """The events of a recording, each whole."""
    return [each + b"\n\n" for each in (DATA / f"{name}.sse").read_bytes().split(b"\n\n") if each]


def named(name: str, data: str) -> bytes:
    """An event with a name."""
    return f"event: {name}\ndata: {data}\n\n".encode()


def token(text: str, **more: object) -> bytes:
    """A chat event, written as SGLang writes it: not escaped."""
    choice = {"index": 0, "delta": {"content": text, **more}, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n".encode()


CHAT_PATH = "/v1/chat/completions"
USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
WORDS = [
    token("文字化け"),
    token("👩‍👩‍👧 naïve"),
    token("", tool_calls=[{"function": {"arguments": '{"city": "Zür'}}]),
    token("data: [DONE]\\n\\n"),
]
STREAMS = {
    "chat": Stream(CHAT_PATH, recorded("chat-stream-usage"), tokens=24),
    "completion": Stream("/v1/completions", recorded("completion-stream"), tokens=None),
    "generate": Stream("/generate", recorded("generate-stream"), tokens=8),
    "refused": Stream(
        CHAT_PATH, recorded("queue-full-stream"), None, "503", Outcome.FAILED, first_token=None
    ),
    "words": Stream(CHAT_PATH, [*WORDS, USAGE, DONE], tokens=5),
    "CRLF": Stream(
        CHAT_PATH, [each.replace(b"\n", b"\r\n") for each in (*WORDS, USAGE, DONE)], tokens=5
    ),
    "CR": Stream(
        CHAT_PATH, [each.replace(b"\n", b"\r") for each in (*WORDS, USAGE, DONE)], tokens=5
    ),
    "odd lines": Stream(
        CHAT_PATH,
        [
            b"\xef\xbb\xbf: a comment\n\n",
            b'event: message\nid: 7\nretry: 10\ndata:{"choices":[{"delta":{}}]}\n\n',
            b'data: {"choices":[],"usage":\ndata: {"completion_tokens":5}}\n\n',
            b": \n\n\n\nx: y\n\n",
            b"data:[DONE]\n\n",
        ],
        tokens=5,
        first_token=1,
    ),
    "an odd error": Stream(
        CHAT_PATH,
        [*WORDS, b'event:x\ndata:{"error":\ndata:{"code":500}}\n\n'],
        None,
        "500",
        Outcome.FAILED,
    ),
    "no last line end": Stream(CHAT_PATH, [*WORDS, USAGE, b"data: [DONE]"], tokens=5),
    "an error inside": Stream(
        CHAT_PATH, [*WORDS, event({"error": {"code": 500}}), DONE], None, "500", Outcome.FAILED
    ),
    "anthropic": Stream(
        "/v1/messages",
        [
            named("message_start", '{"message":{"usage":{"input_tokens":3,"output_tokens":1}}}'),
            named("ping", "{}"),
            named("content_block_delta", '{"delta":{"text":"文🙂"}}'),
            named("message_delta", '{"usage":{"output_tokens":5}}'),
            named("message_stop", '{"type":"message_stop"}'),
        ],
        tokens=5,
        first_token=2,
    ),
    "anthropic, refused": Stream(
        "/v1/messages",
        [named("error", '{"type":"error","error":{"type":"invalid_request_error"}}')],
        None,
        "400",
        Outcome.FAILED,
        first_token=None,
    ),
    "responses": Stream(
        "/v1/responses",
        [
            named("response.created", '{"response":{"usage":null}}'),
            named("response.output_text.delta", '{"delta":"é"}'),
            named("response.completed", '{"response":{"usage":{"output_tokens":5}}}'),
        ],
        tokens=5,
        first_token=1,
    ),
    "ollama": Stream(
        "/api/chat",
        [
            '{"message":{"content":"文"},"done":false}\n'.encode(),
            b'{"message":{"content":"b"},"done":false}\r\n',
            b'{"done":true,"eval_count":5,"prompt_eval_count":3}\n',
        ],
        tokens=5,
        media_type=b"application/x-ndjson",
    ),
}


@dataclass
class Books(Recorder):
    """An observer that keeps the records, too."""

    records: list[Record] = field(default_factory=list)

    def ended(self, record: Record) -> None:
        """Keep it."""
        self.records.append(record)


def played(request: bytes, pieces: Sequence[bytes]) -> tuple[bytes, Record]:
    """Answer `request` by `pieces`, one a second; what the client got, and what was noted."""
    books = Books()
    wire = Wire()
    wire.pair.say(BASE, AdminState.MAINT)  # nothing is tried elsewhere
    wire.front.observer = books
    wire.connection.data_received(request)
    for piece in pieces:
        wire.pair.now += 1.0
        wire.upstream.data_received(piece)
    wire.connection.connection_lost(None)
    (record,) = books.records
    return wire.client.written, record


def body_of(answer: bytes) -> bytes:
    """The body of a whole answer, chunked or counted; an error where its end is not there."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"content-length: " in head:
        assert b"content-length: %d" % len(rest) in head
        return rest
    body = b""
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        data = rest.partition(b"\r\n")[2]
        assert data[size : size + 2] == b"\r\n"
        body, rest = body + data[:size], data[size + 2 :]
    assert rest == END
    return body


def noted(record: Record) -> tuple[object, ...]:
    """What is noted of a stream, but for how long things took."""
    return (
        record.outcome,
        record.status,
        record.code,
        record.stream,
        record.output_tokens,
        record.response_bytes,
        record.midstream,
        record.attempts,
    )


def asking(path: str) -> bytes:
    """A request for a stream."""
    return post(path, {"stream": True, "model": "m", "messages": [], "max_tokens": 9})


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """`data` in pieces, cut at `places`."""
    return [data[a:b] for a, b in pairwise([0, *sorted(places), len(data)]) if a < b]


@cache
def whole(name: str) -> tuple[object, ...]:
    """What is noted where the answer comes in one piece."""
    kept = STREAMS[name]
    return noted(played(asking(kept.path), [kept.chunked])[1])


def check(name: str, answer: bytes, pieces: Sequence[bytes]) -> None:
    """See that `pieces` of `answer` come out as the stream they are, with its numbers."""
    kept = STREAMS[name]
    written, record = played(asking(kept.path), pieces)

    assert body_of(written) == kept.body, pieces
    assert (record.outcome, record.code) == (kept.outcome, kept.code), pieces
    assert (record.output_tokens, record.response_bytes) == (kept.tokens, len(kept.body)), pieces
    assert noted(record) == whole(name), pieces
    if kept.first_token is None:
        assert record.first_token_seconds is None, pieces
        return
    assert record.first_token_seconds is not None, pieces
    event_ = kept.events[kept.first_token]
    begins = answer.index(event_)
    earliest, latest = (seconds(pieces, at) for at in (begins, begins + len(event_) - 1))
    assert earliest <= record.first_token_seconds <= latest, pieces


def seconds(pieces: Sequence[bytes], place: int) -> int:
    """When the byte at `place` has come, of pieces that come one a second."""
    ends = accumulate(map(len, pieces))
    return next(second for second, end in enumerate(ends, 1) if place < end)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
async def test_cut_in_two_anywhere(name: str, step: int) -> None:
    """Wherever the network cuts, in the head, in a chunk's size, in a character, in a line end.

    fastrepl/anarlog#6872, katanemo/plano#980: a parser that takes a read for an event loses some.
    praxis-proxy/praxis#739: nor does every event end with LF LF, nor every field with a space.
    """
    answer = STREAMS[name].chunked
    for place in range(1, len(answer), step):
        check(name, answer, cut(answer, [place]))


@pytest.mark.parametrize("name", STREAMS)
async def test_byte_by_byte(name: str) -> None:
    """As slowly as a network can be, chunked and counted."""
    for answer in (STREAMS[name].chunked, STREAMS[name].counted):
        check(name, answer, [answer[at : at + 1] for at in range(len(answer))])


@pytest.mark.parametrize("name", STREAMS)
async def test_cut_at_random(name: str) -> None:
    """In up to 30 pieces, drawn by lot."""
    random = Random(name)
    for answer in (STREAMS[name].chunked, STREAMS[name].counted) * 20:
        places = random.sample(range(1, len(answer)), random.randint(2, min(30, len(answer) - 1)))
        check(name, answer, cut(answer, places))


@pytest.mark.parametrize("name", STREAMS)
async def test_an_end_that_is_only_a_close(name: str) -> None:
    """The same, where the engine marks the end by closing."""
    kept = STREAMS[name]
    upstream = "spec" if name != "refused" else "base"  # a refusal by spec would be retried
    async with rig(policy__control=upstream) as it:
        it.upstream(upstream).script(Send(kept.head + b"\r\n" + kept.body), Fin())
        client = await it.client()
        client.send(asking(kept.path))
        response = await client.response()

        assert response.complete
        assert response.body == kept.body
        assert it.metric("output_tokens_total", upstream=upstream) == (kept.tokens or 0)


async def test_a_quiet_stream_stays_quiet() -> None:
    """Nothing is put into a stream, least of all within an event, however long the engine thinks.

    BerriAI/litellm#34819: hops with a short idle limit want comments meanwhile. The contract is
    that nothing is injected, so there is no such option; their limit has to be raised.
    """
    answer = STREAMS["words"].chunked
    for place in (len(STREAM_HEAD), len(answer) // 2, len(answer) - 30):
        wire = Wire()
        wire.connection.data_received(asking(CHAT_PATH))
        wire.upstream.data_received(answer[:place])
        before = wire.client.written
        wire.pass_time(90.0)

        assert wire.client.written == before
        wire.upstream.data_received(answer[place:])
        assert body_of(wire.client.written) == STREAMS["words"].body
        wire.connection.connection_lost(None)
