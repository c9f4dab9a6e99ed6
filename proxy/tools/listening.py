"""Reads an answer as its client does: when the first and last tokens came, and what its end says.

Cheap for each piece that arrives: `core/sse` watches the bytes, JSON is read of the first events
until one shows text, and of the last ones when all is over.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.core.peek import Dialect
from proxy.core.sse import StreamWatch
from proxy.core.usage import code_of

__all__ = ["Last", "Reading", "said"]

_HELD_BYTES: Final = 16 * 1024
"""What is kept of a stream's end: the last events with usage, details and any error."""
_SLACK_BYTES: Final = 64 * 1024
"""Held at most before it is cut back to `_HELD_BYTES`, so that cutting is rare."""
_MARKS: Final = 64
"""Pieces whose time is known at the end; the last token is among the last few."""
_MESSAGE_CHARS: Final = 300


@dataclass(slots=True)
class Last:
    """What the last events of a stream say."""

    token_at: float | None = None
    finish_reason: str | None = None
    acceptance_length: float | None = None
    message: str = "no message"


class Reading:
    """A stream as it comes in: the watch, its first text, its end."""

    def __init__(self, dialect: Dialect) -> None:
        self.watch = StreamWatch(dialect)
        self._text_at: float | None = None
        self._first = bytearray()  # what came before the first text
        self._end = bytearray()
        self._seen = 0
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MARKS)

    def feed(self, piece: bytes, now: float) -> None:
        """Take the next bytes, which arrived at `now`."""
        self.watch.feed(piece, now)
        self._seen += len(piece)
        self._marks.append((self._seen, now))
        self._end += piece
        if len(self._end) > _SLACK_BYTES:
            del self._end[:-_HELD_BYTES]
        if self._text_at is None:
            self._look_for_text(piece, now)

    @property
    def error(self) -> int | str | None:
        """The code of an error event."""
        return self.watch.error_code

    @property
    def first_token_at(self) -> float | None:
        """When the first text came; where none is ever shown, the first event of a choice."""
        return self.watch.first_token_at if self._text_at is None else self._text_at

    def last(self) -> Last:
        """What the end of the stream says."""
        found = Last()
        for end, event in self._events():
            _note(found, event)
            if event.shows_text or event.finished:
                found.token_at = self._time_of(end)
        if self.first_token_at is None:
            found.token_at = None  # an end without a token: it was aborted before
        elif found.token_at is None:
            found.token_at = self.watch.last_token_at
        return found

    def _look_for_text(self, piece: bytes, now: float) -> None:
        self._first += piece
        *whole, rest = bytes(self._first).split(b"\n")
        self._first = bytearray(rest[-_SLACK_BYTES:])
        if any(event.shows_text for event in map(_decoded, whole) if event is not None):
            self._text_at = now

    def _events(self) -> Iterator[tuple[int, "_Event"]]:
        """The events that are held, each with the count of bytes up to its end."""
        at = self._seen - len(self._end)
        for line in bytes(self._end).split(b"\n"):
            at += len(line) + 1
            event = _decoded(line)
            if event is not None:
                yield at - 1, event

    def _time_of(self, end: int) -> float | None:
        return next((now for seen, now in self._marks if seen >= end), None)


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: object = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def shows_text(self) -> bool:
        delta = self.delta or _Delta()
        return bool(self.text or delta.content or delta.reasoning_content or delta.tool_calls)


class _SpecDetails(msgspec.Struct, gc=False):
    spec_accept_length: float | None = None


class _Extension(msgspec.Struct, gc=False):
    spec_tokens_details: _SpecDetails | list[_SpecDetails] | None = None


class _Finish(msgspec.Struct, gc=False):
    type: str | None = None
    message: str | None = None


class _Meta(msgspec.Struct, gc=False):
    finish_reason: _Finish | str | None = None
    spec_accept_length: float | None = None


class _Event(msgspec.Struct):
    """What is read of an event of chat, completions or /generate."""

    choices: list[_Choice] = msgspec.field(default_factory=list)
    text: str | None = None
    meta_info: _Meta | None = None
    sglext: _Extension | None = None
    error: object = None
    message: str | None = None

    @property
    def shows_text(self) -> bool:
        return bool(self.text) or any(choice.shows_text for choice in self.choices)

    @property
    def failure(self) -> str | None:
        """What went wrong, in the engine's words."""
        if self.error is not None:
            return _message_of(self.error)
        reason = None if self.meta_info is None else self.meta_info.finish_reason
        return reason.message if isinstance(reason, _Finish) else None

    @property
    def finished(self) -> str | None:
        """Why a sequence ended in this event."""
        reasons = [choice.finish_reason for choice in self.choices if choice.finish_reason]
        if self.meta_info is not None and self.meta_info.finish_reason is not None:
            reason = self.meta_info.finish_reason
            reasons.append((reason if isinstance(reason, str) else reason.type) or "stop")
        return reasons[-1] if reasons else None

    @property
    def acceptance_length(self) -> float | None:
        """Of several sequences the mean."""
        details = None if self.sglext is None else self.sglext.spec_tokens_details
        if isinstance(details, _SpecDetails):
            return details.spec_accept_length
        lengths = [one.spec_accept_length for one in details or [] if one.spec_accept_length]
        if lengths:
            return sum(lengths) / len(lengths)
        return None if self.meta_info is None else self.meta_info.spec_accept_length


_EVENT: Final = msgspec.json.Decoder(_Event)


class _Errors(msgspec.Struct):
    error: object = None
    message: str | None = None
    detail: object = None


def _decoded(line: bytes) -> _Event | None:
    if not line.startswith(b"data:"):
        return None
    try:
        return _EVENT.decode(line[len(b"data:") :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # [DONE], or half an event


def _note(found: Last, event: _Event) -> None:
    found.finish_reason = event.finished or found.finish_reason
    found.acceptance_length = event.acceptance_length or found.acceptance_length
    found.message = event.failure or found.message


def _message_of(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or code_of(error))[:_MESSAGE_CHARS]


def said(body: bytes) -> str:
    """What an error's body says, in one line."""
    try:
        errors = msgspec.json.decode(body, type=_Errors)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return " ".join(body[:_MESSAGE_CHARS].decode("utf-8", "replace").split()) or "no body"
    found = errors.error or errors.message or errors.detail
    return "no message" if found is None else _message_of(found)
