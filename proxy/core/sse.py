"""Watches a stream go by: events, first token, usage, errors, its end. Never alters a byte.

Right for any split of the bytes. Most pieces are whole events with nothing special in them and cost
a few searches in C; JSON is decoded only where a search says that it may matter.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proxy.core.peek import Dialect
from proxy.core.usage import Event, Finish, add, code_of, counts, decode, failure

MAX_EVENT_BYTES: Final = 64 * 1024
"""A longer event is not held: only its first 1 KiB and last 4 KiB are read."""

_HEAD_BYTES: Final = 1024
_TAIL_BYTES: Final = 4096  # SGLang writes usage and meta_info last

# A line ends with CRLF, LF or CR (WHATWG HTML, 9.2.5); possessive, as half a CRLF is not a CR.
_BLANK_LINE: Final = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)[\r\n]*")
_LINE_END: Final = re.compile(rb"\n[\r\n]*")
_UNFINISHED_DELIMITER: Final = 2  # bytes of a blank line that may be here before the rest: CRLF
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_RUNNING: Final = b'"finish_reason":null'
_LINES_OF_ONE_EVENT: Final = 2  # its data and the blank one, so two line ends
_LF: Final = ord("\n")
_CR: Final = ord("\r")
# The quick paths search with `find` and `rfind`: `in` with bytes tries first whether they are a
# number, at three times the cost. `rfind` is a quarter cheaper than `find` on these events.

_ENDS: Final = frozenset(
    {b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"}
)
_FAILURES: Final = frozenset({b"error", b"response.failed"})


def _sse_fields(block: bytes) -> tuple[bytes, bytes | None]:
    """Return an event's name and data; no data: no event (comments, a lone `event:`)."""
    name = b""
    data = []
    for line in block.splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(data) if data else None


def _line_fields(block: bytes) -> tuple[bytes, bytes | None]:
    return b"", block.strip() or None


def _reports_usage(text: bytes) -> bool:
    last = text.rfind(b'"usage"')
    if last < 0:
        return False
    # Completions carry `"usage":null` in every event.
    if text.startswith(b'"usage":null', last) and text.rfind(b'"usage"', 0, last) < 0:
        return False
    return text.count(b'"usage"') != text.count(b'"usage":null')


def _line_matters(text: bytes) -> bool:
    return text.rfind(b'"done":false') < 0 or text.rfind(b'"error"') >= 0


def _is_delta(name: bytes) -> bool:
    return name == b"content_block_delta" or name.endswith(b".delta")


@dataclass(frozen=True, slots=True)
class _How:
    """How one dialect's stream is cut into events, and what they say."""

    separator: re.Pattern[bytes]
    fields: Callable[[bytes], tuple[bytes, bytes | None]]
    quick: "Callable[[StreamWatch, bytes, float], bool]"
    """Deal with a piece of nothing but whole and ordinary events; else False, and nothing done."""
    read: "Callable[[StreamWatch, bytes, bytes, float], None]"


class StreamWatch:
    """What has been seen of one streamed response so far.

    A token is an event with output: on OpenAI's, SGLang's and Ollama's paths every event that is no
    error (SGLang sends the head only with the first token); Anthropic's content_block_delta;
    Responses' events that end in `.delta`.
    """

    __slots__ = (
        "_completion",
        "_cut",
        "_held",
        "_how",
        "_latest",
        "_prompt",
        "_quick",
        "ended",
        "error_code",
        "events",
        "first_token_at",
        "last_token_at",
        "oversized",
    )

    def __init__(self, dialect: Dialect) -> None:
        self.events = 0
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.error_code: int | str | None = None
        """Of an error event: its HTTP status where it tells one, else the engine's word for it."""
        self.ended = False
        """Whether the dialect's own end was seen: [DONE], message_stop, done, and the like."""
        self.oversized = 0
        """Events over MAX_EVENT_BYTES: counted and timed, but an error in one may be missed."""
        self._completion: int | None = None
        self._prompt: int | None = None
        self._held = bytearray()  # the event that is not complete yet
        self._cut = b""  # its first bytes, once it is over the bound and no longer held
        self._latest = b""  # /generate: the last event of a sequence that still runs, not decoded
        self._how = _HOW[dialect]
        self._quick = self._how.quick

    def feed(self, piece: bytes, now: float) -> None:
        """Look at the next bytes, which arrived at *now* (seconds, monotonic)."""
        if self._held or len(piece) > MAX_EVENT_BYTES or not self._quick(self, piece, now):
            self._scan(piece, now)

    def finish(self, now: float) -> None:
        """The stream has ended well: an event without its blank line counts, too."""
        if self._held:
            last = bytes(self._held)
            self._held.clear()
            self._complete(last.rstrip(b"\r\n"), now)

    @property
    def at_boundary(self) -> bool:
        """Whether the stream stands between two events, so that another could be put there."""
        return not self._held

    @property
    def completion_tokens(self) -> int | None:
        """Output tokens over all sequences, as the engine has counted them.

        Of a batch on /generate that was cut: those of its finished sequences and one that ran.
        """
        running, _ = counts(self._latest)
        return add(self._completion, running)

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens; of a batch on /generate those of the sequence that was seen last."""
        _, running = counts(self._latest)
        return self._prompt if running is None else running

    def _scan(self, piece: bytes, now: float) -> None:
        held = self._held
        start = max(len(held) - _UNFINISHED_DELIMITER, 0)
        held += piece if held else piece.lstrip(b"\r\n")  # blank lines between events say nothing
        done = 0
        while match := self._how.separator.search(held, start):
            self._complete(bytes(held[done : match.start()]), now)
            done = start = match.end()
        del held[:done]
        if len(held) > MAX_EVENT_BYTES + _UNFINISHED_DELIMITER:
            self._cut = self._cut or bytes(held[:_HEAD_BYTES])
            del held[: -(_TAIL_BYTES + _UNFINISHED_DELIMITER)]

    def _complete(self, block: bytes, now: float) -> None:
        if self._cut or len(block) > MAX_EVENT_BYTES:
            self.oversized += 1
            block = (self._cut or block[:_HEAD_BYTES]) + block[-_TAIL_BYTES:]
            self._cut = b""
        if not self.events:
            block = block.removeprefix(_BYTE_ORDER_MARK)
        name, data = self._how.fields(block)
        if data is not None:
            self.events += 1
            self._how.read(self, name, data, now)

    def _quick_openai(self, piece: bytes, now: float) -> bool:
        # The brace tells an object from [DONE].
        if _CR in piece or not piece.startswith(b"data: {") or piece[-1] != _LF:
            return False
        events = 1
        if piece.find(b"\n") != len(piece) - _LINES_OF_ONE_EVENT:
            events = piece.count(b"\n\n")
            if piece.count(b"\n\ndata: {") != events - 1 or not piece.endswith(b"\n\n"):
                return False
        if piece.rfind(b'"error"') >= 0 or _reports_usage(piece):
            return False
        self.events += events
        self._token(now)
        return True

    def _read_openai(self, _name: bytes, data: bytes, now: float) -> None:
        if data.strip() == b"[DONE]":
            self.ended = True
            return
        if data.rfind(b'"error"') >= 0 or _reports_usage(data):
            event = decode(data)
            if event is not None and (event.error or event.kind == "error"):
                self.error_code = code_of(event.error or event.code)
                return
            self._count(event, data)
        self._token(now)

    def _quick_generate(self, piece: bytes, now: float) -> bool:
        if _CR in piece or not piece.startswith(b"data: ") or piece[-1] != _LF:
            return False
        if piece.find(b"\n") != len(piece) - _LINES_OF_ONE_EVENT:
            return False
        # From the right: the text so far comes first in these events, and grows.
        if piece.rfind(_RUNNING) < 0:
            return False
        self.events += 1
        self._latest = piece
        self._token(now)
        return True

    def _read_generate(self, _name: bytes, data: bytes, now: float) -> None:
        if data.strip() == b"[DONE]":
            self.ended = True
            return
        event = None if data.rfind(_RUNNING) >= 0 else decode(data)
        meta = None if event is None else event.meta_info
        if event is not None and event.error:
            self.error_code = code_of(event.error)
            return
        if meta is None or meta.finish_reason is None:
            self._latest = data
        else:
            self._latest = b""
            self._completion = add(self._completion, meta.completion_tokens)
            self._prompt = meta.prompt_tokens
            if isinstance(meta.finish_reason, Finish) and meta.finish_reason.status_code:
                self.error_code = meta.finish_reason.status_code
                return
        self._token(now)

    def _quick_typed(self, piece: bytes, now: float) -> bool:
        if _CR in piece or not piece.startswith(b"event: ") or piece[-1] != _LF:
            return False
        end = piece.find(b"\n")
        name, after = piece[len(b"event: ") : end], end + 1
        if not _is_delta(name) or not piece.startswith(b"data: ", after):
            return False
        if piece.find(b"\n", after) != len(piece) - _LINES_OF_ONE_EVENT:
            return False
        self.events += 1
        self._token(now)
        return True

    def _read_typed(self, name: bytes, data: bytes, now: float) -> None:
        event = None
        if not name:
            event = decode(data)
            name = b"" if event is None or event.type is None else event.type.encode()
        if _is_delta(name):
            self._token(now)
            return
        self.ended = self.ended or name in _ENDS
        if b'"usage"' in data or name in _FAILURES:
            event = event or decode(data)
            self._count(event, data)
        if name in _FAILURES:
            self.error_code = code_of(failure(event))

    def _quick_line(self, piece: bytes, now: float) -> bool:
        if piece.find(b"\n") != len(piece) - 1 or _line_matters(piece):
            return False
        self.events += 1
        self._token(now)
        return True

    def _read_line(self, _name: bytes, data: bytes, now: float) -> None:
        if _line_matters(data):
            event = decode(data)
            if event is not None and event.error:
                self.error_code = code_of(event.error)
                return
            self.ended = self.ended or (event is not None and event.done is True)
            self._count(event, data)
        self._token(now)

    def _token(self, now: float) -> None:
        if self.error_code is not None:
            return  # what follows an error event is its usage, and no token
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now

    def _count(self, event: Event | None, data: bytes) -> None:
        completion, prompt = counts(data, event)
        self._completion = self._completion if completion is None else completion
        self._prompt = self._prompt if prompt is None else prompt


_OPENAI: Final = _How(_BLANK_LINE, _sse_fields, StreamWatch._quick_openai, StreamWatch._read_openai)
_GENERATE: Final = _How(
    _BLANK_LINE, _sse_fields, StreamWatch._quick_generate, StreamWatch._read_generate
)
_TYPED: Final = _How(_BLANK_LINE, _sse_fields, StreamWatch._quick_typed, StreamWatch._read_typed)
_LINES: Final = _How(_LINE_END, _line_fields, StreamWatch._quick_line, StreamWatch._read_line)
_HOW: Final = {
    Dialect.OPENAI_CHAT: _OPENAI,
    Dialect.OPENAI_COMPLETIONS: _OPENAI,
    Dialect.OPENAI_RESPONSES: _TYPED,
    Dialect.ANTHROPIC: _TYPED,
    Dialect.GENERATE: _GENERATE,
    Dialect.OLLAMA_CHAT: _LINES,
    Dialect.OLLAMA_GENERATE: _LINES,
}
