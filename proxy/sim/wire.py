"""HTTP/1.1 as SGLang's uvicorn writes it: heads, chunks and whole answers, as bytes.

Sans-IO: `server.py` moves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import msgspec

_STREAM_TYPE: Final = "text/event-stream; charset=utf-8"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(slots=True)
class Request:
    """One request as it is being read, then as it was."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """By name in lower case; a name that comes twice keeps its last value."""
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(payload: object, status: int = 200, **headers: str) -> Answer:
    """An answer with a JSON body."""
    return Answer(status, msgspec.json.encode(payload), "application/json", headers)


def _head(status: int, fields: Mapping[str, str], *, keep_alive: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"date: {formatdate(usegmt=True)}",
        "server: uvicorn",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def answer_bytes(answer: Answer, *, keep_alive: bool) -> bytes:
    """The answer on the wire."""
    fields = {**answer.headers, "content-length": str(len(answer.body))}
    if answer.content_type is not None:
        fields["content-type"] = answer.content_type
    fields["vary"] = "Origin"
    return _head(answer.status, fields, keep_alive=keep_alive) + answer.body


def stream_head(*, keep_alive: bool) -> bytes:
    """The head of a stream of events."""
    fields = {"content-type": _STREAM_TYPE, "vary": "Origin", "Transfer-Encoding": "chunked"}
    return _head(200, fields, keep_alive=keep_alive)


def chunk(piece: bytes) -> bytes:
    """One piece of a chunked body; SGLang sends one event in each."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)
