"""The forms in which engines answer generation, one for each family of paths; made by hand.

An answer is three pieces: two events (or, where nothing is streamed, two parts of one JSON text)
and what ends it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.harness.client import CHAT, post
from tests.harness.upstream import chunk


@dataclass(frozen=True)
class Family:
    """One way to ask, and what is answered to it."""

    name: str
    path: str
    body: dict[str, object]
    content_type: str
    first: bytes
    second: bytes
    last: bytes
    pad: Callable[[str], bytes]
    """A further event with that much text in it."""
    code_in: Callable[[bytes], str] | None
    """Reads the code of an error event of ours; None where there can be none."""
    holds: bool = False
    """Whether a stream's head is held until its first event."""

    @property
    def streams(self) -> bool:
        """Whether it is a stream."""
        return self.code_in is not None

    @property
    def request(self) -> bytes:
        """The request as a client sends it."""
        return post(self.path, self.body)

    @property
    def answer(self) -> bytes:
        """The body of a whole answer."""
        return self.first + self.second + self.last

    @property
    def head(self) -> bytes:
        """The head of an answer."""
        length = len(self.answer)
        framing = "Transfer-Encoding: chunked" if self.streams else f"Content-Length: {length}"
        return f"HTTP/1.1 200 OK\r\nContent-Type: {self.content_type}\r\n{framing}\r\n\r\n".encode()

    @property
    def end(self) -> bytes:
        """What HTTP wants after the body."""
        return b"0\r\n\r\n" if self.streams else b""

    @property
    def whole(self) -> bytes:
        """A whole response."""
        return self.head + self.framed(self.answer) + self.end

    def framed(self, body: bytes) -> bytes:
        """A piece of the body as an engine sends it."""
        return chunk(body) if self.streams else body


def _data(value: object, event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _openai_code(event: bytes) -> str:
    assert event.endswith(b"\n\n")
    return str(json.loads(event.removeprefix(b"data: "))["error"]["code"])


def _anthropic_code(event: bytes) -> str:
    name, data = event.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    told = json.loads(data.removeprefix(b"data: "))
    assert told["type"] == "error"
    return str(told["error"]["message"]).rpartition("(")[2].removesuffix(")")


def _line_code(event: bytes) -> str:
    assert event.endswith(b"\n")
    told = json.loads(event)
    assert isinstance(told["error"], str)
    return str(told["code"])


def _token(text: str) -> bytes:
    return _data({"choices": [{"delta": {"content": text}}]})


def _generated(text: str) -> bytes:
    return _data({"text": text, "meta_info": {"finish_reason": None}})


def _block(text: str) -> bytes:
    told = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    return _data(told, "content_block_delta")


def _said(text: str) -> bytes:
    return _line({"message": {"content": text}, "done": False})


def _delta(text: str) -> bytes:
    told = {"type": "response.output_text.delta", "delta": text}
    return _data(told, "response.output_text.delta")


SSE = "text/event-stream; charset=utf-8"
STREAM = {"stream": True}
ASKED = {"model": "tiny", "input": "hello"}

CHAT_FAMILY = Family(
    "chat",
    "/v1/chat/completions",
    {**CHAT, **STREAM},
    SSE,
    _token("a"),
    _token("b"),
    b"data: [DONE]\n\n",
    _token,
    _openai_code,
    holds=True,
)
PLAIN = Family(
    "plain",
    "/v1/chat/completions",
    {**CHAT},
    "application/json",
    b'{"id": "1", "choices": [],',
    b' "usage": {"completion_tokens": 2},',
    b' "object": "chat.completion"}',
    str.encode,
    None,
)
GENERATE = Family(
    "generate",
    "/generate",
    {"text": "a", **STREAM},
    SSE,
    _generated("a"),
    _generated("ab"),
    b"data: [DONE]\n\n",
    _generated,
    _openai_code,
)
MESSAGES = Family(
    "messages",
    "/v1/messages",
    {**CHAT, **STREAM},
    SSE,
    _block("a"),
    _block("b"),
    _data({"type": "message_stop"}, "message_stop"),
    _block,
    _anthropic_code,
)
OLLAMA = Family(
    "ollama",
    "/api/chat",
    {**CHAT, **STREAM},
    "application/x-ndjson",
    _said("a"),
    _said("b"),
    _line({"message": {"content": ""}, "done": True, "eval_count": 2}),
    _said,
    _line_code,
)
RESPONSES = Family(
    "responses",
    "/v1/responses",
    {**ASKED, **STREAM},
    SSE,
    _delta("a"),
    _delta("b"),
    _data({"type": "response.completed", "response": {"error": None}}, "response.completed"),
    _delta,
    _openai_code,
)
FAMILIES = (CHAT_FAMILY, PLAIN, GENERATE, MESSAGES, OLLAMA, RESPONSES)
