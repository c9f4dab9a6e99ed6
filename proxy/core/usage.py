"""What one event of a stream, or a whole JSON answer, says of itself: its tokens and its errors.

Read in all dialects alike, since no field means one thing in one and another in another.
"""

import re
from typing import Final

import msgspec

from proxy.core.peek import Dialect

__all__ = ["Event", "Finish", "add", "code_of", "counts", "decode", "failure", "usage_of"]

# In JSON a quote inside a string is escaped, so these match keys only.
_COMPLETION: Final = re.compile(
    rb'"(?:completion_tokens|output_tokens|eval_count)"\s*:\s*(\d{1,9})'
)
_PROMPT: Final = re.compile(rb'"(?:prompt_tokens|input_tokens|prompt_eval_count)"\s*:\s*(\d{1,9})')

_ANTHROPIC_CODES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_timeout_error": 408,
    "rate_limit_error": 429,
    "api_error": 500,
    "overloaded_error": 503,
}
"""SGLang's own table (entrypoints/anthropic/serving.py, ERROR_TYPE_MAP), read backwards."""


_MOST_TOKENS: Final = 1 << 31
"""No answer is near it, and JSON has numbers that no float can hold."""


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    input_tokens: int | None = None


class Finish(msgspec.Struct, gc=False):
    """Why a sequence on /generate ended; a status only where something went wrong."""

    status_code: int | None = None


class _Meta(msgspec.Struct, gc=False):
    finish_reason: Finish | str | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class _Inner(msgspec.Struct):
    """The `response` of Responses, the `message` of Anthropic."""

    usage: _Usage | None = None
    error: object = None


class Event(msgspec.Struct):
    """What the events and answers of all dialects hold for us; the rest is skipped."""

    type: str | None = None
    kind: str | None = msgspec.field(name="object", default=None)
    code: int | str | None = None
    error: object = None
    usage: _Usage | None = None
    meta_info: _Meta | None = None
    response: _Inner | str | None = None  # Ollama's is the text
    message: _Inner | str | None = None  # an error's is a text
    done: bool | None = None
    eval_count: int | None = None
    prompt_eval_count: int | None = None


_EVENT: Final = msgspec.json.Decoder(Event)
_EVENTS: Final = msgspec.json.Decoder(list[Event])


_STATUS_DIGITS = 3  # and int() refuses thousands


def code_of(error: object) -> int | str:
    """Return the HTTP status of an error, or the engine's word where it gives none."""
    code = error
    if isinstance(error, dict):
        code = error.get("code") or error.get("type")
    if isinstance(code, str) and code.isdecimal() and len(code) <= _STATUS_DIGITS:
        return int(code)
    if isinstance(code, str):
        return _ANTHROPIC_CODES.get(code, code)
    return code if isinstance(code, int) and code is not True else "error"


def failure(event: Event | None) -> object:
    """Return what an error event holds of its error, None where it says nothing."""
    if event is None:
        return None
    inner = event.response
    return event.error or (inner.error if isinstance(inner, _Inner) else None) or event.code


def counts(data: bytes, event: Event | None = None) -> tuple[int | None, int | None]:
    """Return the output and prompt tokens that an event reports, decoded already or not."""
    if not data:
        return None, None
    event = event or decode(data.removeprefix(b"data: "))
    if event is not None:
        return _reported(event)
    return _last_number(_COMPLETION, data), _last_number(_PROMPT, data)


def _reported(event: Event) -> tuple[int | None, int | None]:
    completion, prompt = _written(event)
    return _known(completion), _known(prompt)


def _written(event: Event) -> tuple[int | None, int | None]:
    if event.meta_info is not None:
        return event.meta_info.completion_tokens, event.meta_info.prompt_tokens
    if isinstance(event.message, _Inner) and event.message.usage is not None:
        return None, event.message.usage.input_tokens  # a stream's start: no output is known yet
    inner = event.response
    usage = event.usage or (inner.usage if isinstance(inner, _Inner) else None)
    if usage is None:
        return event.eval_count, event.prompt_eval_count
    return _first(usage.completion_tokens, usage.output_tokens), _first(
        usage.prompt_tokens, usage.input_tokens
    )


def _known(tokens: int | None) -> int | None:
    """Return a count; a negative or an absurd one is nonsense, and counters only grow."""
    return tokens if tokens is not None and 0 <= tokens <= _MOST_TOKENS else None


def _last_number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def add(one: int | None, other: int | None) -> int | None:
    """Return the sum of two counts; an unknown one adds nothing."""
    return _first(one, other) if one is None or other is None else one + other


def decode(data: bytes) -> Event | None:
    """Return what an event's data says, None where it is no such JSON object."""
    try:
        return _EVENT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def usage_of(body: bytes, dialect: Dialect) -> int | None:
    """Return the output tokens that a whole JSON answer reports, of a batch the sum; else None."""
    try:
        if dialect is not Dialect.GENERATE or body.lstrip()[:1] != b"[":
            return _known(_written(_EVENT.decode(body))[0])
        events = _EVENTS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    total = None
    for event in events:
        total = add(total, _known(_written(event)[0]))
    return total
