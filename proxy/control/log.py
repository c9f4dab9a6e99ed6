"""Log lines that never hold up the event loop.

A line is one line whatever is in it, JSON or text. It goes through a bounded buffer to a thread
that writes: when the reader of our output stalls, lines are dropped and counted, and requests go
on.
"""

import contextlib
import json
import logging
import os
import select
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from threading import Event, Thread

CAPACITY = 10_000
"""Lines: about 5 MB, and some seconds of the busiest proxy."""
_GATHER_SECONDS = 0.1
"""How long the writing thread lets lines gather, unless half the buffer is full. While it waits for
the interpreter, the event loop pays a system call each time it lets go of it, which is several
times a request: woken every 20 ms, it took a tenth of a request's CPU (bench/NOTES.md)."""
_CLOSE_SECONDS = 2.0
_CONTINUATION = "    | "


class LogFormat(StrEnum):
    """How a line looks."""

    AUTO = "auto"  # text on a terminal, JSON elsewhere
    TEXT = "text"
    JSON = "json"


class BufferedLog(logging.Handler):
    """Writes lines to a file descriptor from a thread of its own.

    The descriptor is written to directly: a Python stream would hold its lock while it blocks, and
    an interpreter that ends meanwhile would abort.
    """

    def __init__(self, fd: int, *, as_json: bool, capacity: int = CAPACITY) -> None:
        super().__init__()
        self._fd = fd
        self._line = json_line if as_json else text_line
        self._capacity = capacity
        self._lines: deque[bytes] = deque()
        self._full = 0  # counted by whoever logs, under the handler's lock
        self._untold = 0  # counted by the thread of the requests
        self._unwritten = 0  # counted by the writing thread
        self._closing = False
        self._some = Event()  # a line waits to be written
        self._hurry = Event()  # nothing should be gathered any more
        self._thread = Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def set_to(self, form: LogFormat, level: str) -> None:
        """Write lines of this form from now on, and our own from `level` up.

        Libraries may only warn: the HTTP client would otherwise tell of every probe.
        """
        self._line = json_line if _is_json(form, self._fd) else text_line
        chosen = logging.getLevelNamesMapping()[level.upper()]
        logging.getLogger().setLevel(max(logging.WARNING, chosen))
        logging.getLogger("proxy").setLevel(chosen)

    @property
    def dropped(self) -> int:
        """Lines that were not written since the start."""
        return self._full + self._untold + self._unwritten

    @property
    def as_json(self) -> bool:
        """Whether a line is a JSON object."""
        return self._line is json_line

    def put(self, line: bytes) -> None:
        """Queue a line that is made already, from the one thread that requests run in."""
        if not self._queued(line):
            self._untold += 1

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it where there is no room."""
        if not self._queued(self._line(record).encode()):
            self._full += 1

    def close(self, deadline: float = _CLOSE_SECONDS) -> None:
        """Write what is queued, for at most `deadline` seconds; later lines are dropped."""
        if not self._closing:
            self._closing = True
            self._hurry.set()
            self._some.set()
            self._thread.join(deadline)
        super().close()

    def _queued(self, line: bytes) -> bool:
        lines = self._lines
        waiting = len(lines)
        if self._closing or waiting >= self._capacity:
            return False
        lines.append(line)
        if not self._some.is_set():
            self._some.set()
        elif waiting >= self._capacity // 2 and not self._hurry.is_set():
            self._hurry.set()
        return True

    def _write_lines(self) -> None:
        closing = False
        while not closing:
            self._some.wait()
            self._hurry.wait(_GATHER_SECONDS)
            self._hurry.clear()
            self._some.clear()  # before we look: what comes from here on sets it anew
            closing = self._closing
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            try:
                _write_all(self._fd, b"".join(lines))
            except OSError:
                # Nobody reads any more, or the disk is full: there is no better place to say so.
                self._unwritten += len(lines)


@contextlib.contextmanager
def logging_to(
    fd: int, *, form: LogFormat = LogFormat.AUTO, level: str = "info"
) -> Iterator[BufferedLog]:
    """Send the log of this process to `fd` while the block runs."""
    root, own = logging.getLogger(), logging.getLogger("proxy")
    levels = root.level, own.level
    log = BufferedLog(fd, as_json=_is_json(form, fd))
    log.set_to(form, level)
    root.addHandler(log)
    try:
        yield log
    finally:
        root.removeHandler(log)
        root.setLevel(levels[0])
        own.setLevel(levels[1])
        log.close()


def _is_json(form: LogFormat, fd: int) -> bool:
    return form is LogFormat.JSON or (form is LogFormat.AUTO and not os.isatty(fd))


def json_line(record: logging.LogRecord) -> str:
    """A JSON object in one line of ASCII; no character of a value can end it or colour a screen."""
    entry: dict[str, object] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
    }
    entry.update(_fields(record))
    if (trace := _traceback(record)) is not None:
        entry["exception"] = trace
    return json.dumps(entry, default=str, separators=(",", ":")) + "\n"


def text_line(record: logging.LogRecord) -> str:
    """A line for people; a traceback follows it in lines that show that they belong to it."""
    head = f"{_time(record)} {record.levelname:<7} {_printable(_message(record))}"
    parts = [head, *(f"{name}={_value(value)}" for name, value in _fields(record).items())]
    lines = ["  ".join(parts)]
    if (trace := _traceback(record)) is not None:
        lines += [_CONTINUATION + _printable(line) for line in trace.splitlines()]
    return "\n".join(lines) + "\n"


def _time(record: logging.LogRecord) -> str:
    return iso(record.created)


def iso(seconds: float) -> str:
    """A time of day, in seconds since 1970: ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # a log call that is wrong must not end a request
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def _traceback(record: logging.LogRecord) -> str | None:
    return _TRACEBACKS.formatException(record.exc_info) if record.exc_info else None


_TRACEBACKS = logging.Formatter()


def _value(value: object) -> str:
    text = str(value)
    bare = text.isprintable() and text and not set(text) & set(' "=')
    return text if bare else json.dumps(text)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # somebody who shares the terminal has made it non-blocking
            select.select([], [fd], [])
