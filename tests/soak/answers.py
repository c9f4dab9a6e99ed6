"""What an engine of the soak says, byte by byte: the one source for the engine and for its client.

Every event carries the id of its request and its number, so that a client sees at once when
something is lost, doubled, out of order, or another's.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from tests.soak.plans import MID, STATUS, Act, Plan

DONE: Final = b"data: [DONE]\n\n"


class Ending(Enum):
    """How a conversation stops."""

    RESET = auto()
    FIN = auto()
    SILENCE = auto()  # open, until the other side goes


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is said for so long."""

    seconds: float


Move: TypeAlias = bytes | Pause | Ending


def _event(data: object, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(data).encode() + b"\n\n"


def _openai(key: str, token: Callable[[str], dict[str, object]], plan: Plan) -> Iterator[bytes]:
    head = {"id": plan.id, "object": key, "created": 0, "model": "tiny"}
    for text in _texts(plan):
        yield _event({**head, "choices": [{"index": 0, "finish_reason": None, **token(text)}]})
    usage = {"prompt_tokens": 3, "completion_tokens": plan.pieces}
    yield _event({**head, "choices": [], "usage": usage})
    yield DONE


def _chat(plan: Plan) -> Iterator[bytes]:
    return _openai("chat.completion.chunk", lambda t: {"delta": {"content": t}}, plan)


def _completions(plan: Plan) -> Iterator[bytes]:
    return _openai("text_completion", lambda t: {"text": t}, plan)


def _responses(plan: Plan) -> Iterator[bytes]:
    yield _event({"type": "response.created", "response": {"id": plan.id}}, "response.created")
    name = "response.output_text.delta"
    for text in _texts(plan):
        yield _event({"type": name, "delta": text}, name)
    usage = {"input_tokens": 3, "output_tokens": plan.pieces}
    name = "response.completed"
    yield _event({"type": name, "response": {"id": plan.id, "usage": usage}}, name)


def _anthropic(plan: Plan) -> Iterator[bytes]:
    name = "message_start"
    yield _event({"type": name, "message": {"id": plan.id, "usage": {"input_tokens": 3}}}, name)
    for text in _texts(plan):
        name = "content_block_delta"
        yield _event({"type": name, "delta": {"type": "text_delta", "text": text}}, name)
    name = "message_delta"
    yield _event({"type": name, "delta": {}, "usage": {"output_tokens": plan.pieces}}, name)
    yield _event({"type": "message_stop"}, "message_stop")


def _generate(plan: Plan) -> Iterator[bytes]:
    for number, text in enumerate(_texts(plan), start=1):
        yield _event({"text": text, "meta_info": {"id": plan.id, "completion_tokens": number}})
    yield DONE


def _ollama(plan: Plan) -> Iterator[bytes]:
    for text in _texts(plan):
        yield json.dumps({"model": plan.id, "response": text, "done": False}).encode() + b"\n"
    yield json.dumps({"model": plan.id, "done": True, "eval_count": plan.pieces}).encode() + b"\n"


STREAMS: Final[dict[str, Callable[[Plan], Iterator[bytes]]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/responses": _responses,
    "/v1/messages": _anthropic,
    "/generate": _generate,
    "/api/chat": _ollama,
    "/api/generate": _ollama,
    "/invocations": _chat,
}
"""Each generation path's stream."""


def _texts(plan: Plan) -> Iterator[str]:
    return (f"{plan.id}/{number}" + "." * plan.pad for number in range(plan.pieces))


def pieces_of(act: Act, path: str, plan: Plan) -> list[bytes]:
    """The pieces of a whole body."""
    if act in STATUS:
        status = STATUS[act]
        error = {"message": f"{plan.id} is answered {status}", "code": status}
        return [json.dumps({"error": error}).encode()]
    if not (plan.stream and path in STREAMS):
        usage = {"prompt_tokens": 3, "completion_tokens": plan.pieces}
        return [json.dumps({"id": plan.id, "usage": usage, "text": "." * plan.pad}).encode()]
    if act is Act.EVENT_503:
        return [_event({"error": {"message": "The request queue is full.", "code": 503}}), DONE]
    pieces = list(STREAMS[path](plan))
    if act is Act.ERROR_EVENT:
        pieces[1:] = [_event({"error": {"message": "the batch failed", "code": 500}}), DONE]
    return pieces


def moves(act: Act, path: str, plan: Plan) -> Iterator[Move]:
    """What an engine does for `plan`, one thing after the other."""
    streams = plan.stream and path in STREAMS
    if plan.before:
        yield Pause(plan.before / 1000)
    if act in _BEFORE_HEAD:
        yield from _BEFORE_HEAD[act]
        return
    pieces = pieces_of(act, path, plan)
    chunked = streams and act not in STATUS and act is not Act.UNTIL_CLOSE
    yield _head(act, path, None if streams and act not in STATUS else sum(map(len, pieces)))
    if act in MID:
        yield from _broken_off(act, pieces, plan, chunked=chunked)
    elif act is Act.PUMP:
        yield from _without_end(pieces[0])
    else:
        *first, last = pieces
        yield from _paced(first, plan, chunked=chunked)
        yield _framed(last, chunked=chunked) + _end(act, chunked=chunked)
        if act in {Act.CLOSE, Act.UNTIL_CLOSE}:
            yield Ending.FIN


_BEFORE_HEAD: Final[dict[Act, tuple[Move, ...]]] = {
    Act.SILENT_HEAD: (Ending.SILENCE,),
    Act.RESET_HEAD: (Ending.RESET,),
    Act.FIN_HEAD: (Ending.FIN,),
    Act.HALF_HEAD: (b"HTTP/1.1 200 OK\r\ncontent-type: text/ev", Ending.FIN),
    Act.GARBAGE_HEAD: (b"\x16\x03\x01 this is no answer\r\n\r\n", Ending.SILENCE),
}


def _head(act: Act, path: str, length: int | None) -> bytes:
    """The head of an answer; `length` is None for a stream."""
    status = STATUS.get(act, 200)
    lines = [f"HTTP/1.1 {status} As Planned"]
    if length is not None:
        lines += ["content-type: application/json"]
        lines += [] if act is Act.UNTIL_CLOSE else [f"content-length: {length}"]
    else:
        ollama = path.startswith("/api/")
        lines += [f"content-type: {'application/x-ndjson' if ollama else 'text/event-stream'}"]
        lines += [] if act is Act.UNTIL_CLOSE else ["transfer-encoding: chunked"]
    if act in {Act.CLOSE, Act.UNTIL_CLOSE}:
        lines += ["connection: close"]
    return "\r\n".join([*lines, "", ""]).encode()


def _framed(piece: bytes, *, chunked: bool) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece


def _paced(pieces: list[bytes], plan: Plan, *, chunked: bool) -> Iterator[Move]:
    for number, piece in enumerate(pieces):
        if number and plan.between:
            yield Pause(plan.between / 1000)
        yield _framed(piece, chunked=chunked)


def _end(act: Act, *, chunked: bool) -> bytes:
    """What follows the last piece in the same write.

    Bytes that nobody asked for come with it: those that come later, when the connection has been
    given to the next request, cannot be told from its answer by anybody who speaks HTTP/1.1.
    """
    extra = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nnever" if act is Act.EXTRA else b""
    return (b"0\r\n\r\n" if chunked else b"") + extra


def _broken_off(act: Act, pieces: list[bytes], plan: Plan, *, chunked: bool) -> Iterator[Move]:
    """About a half, and then no more: of a stream whole events, of one piece a part of it."""
    half = len(pieces) // 2
    yield from _paced(pieces[:half], plan, chunked=chunked)
    if act is Act.RAGGED_MID or not chunked:
        part = pieces[half][: len(pieces[half]) // 2]
        yield _framed(part, chunked=chunked)
    if act is Act.GARBAGE_MID and chunked:
        yield b"zz\r\n"
    yield {Act.RESET_MID: Ending.RESET, Act.SILENT_MID: Ending.SILENCE}.get(act, Ending.FIN)


def _without_end(piece: bytes) -> Iterator[Move]:
    chunk = _framed(piece, chunked=True)
    while True:
        yield chunk
