"""A log's lines: where they come out, and a record that is one."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

NASTY = 'a\nb\r\x1b[31m\x00\x85\u2028"= \ud800é'
"""What would break a line, or colour a screen."""


class Pipe(NamedTuple):
    """Where a log writes, and where the test reads."""

    reader: int
    writer: int

    def read_lines(self, count: int) -> list[bytes]:
        """Wait for `count` lines and return them."""
        found = b""
        while found.count(b"\n") < count:
            piece = os.read(self.reader, 65536)
            assert piece
            found += piece
        return found.splitlines()


@contextmanager
def opened_pipe() -> Iterator[Pipe]:
    """A pipe, which blocks when nobody reads, as a terminal or a collector does."""
    ends = Pipe(*os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def entry(message: str, *args: object, **extra: object) -> logging.LogRecord:
    """A record as a logger makes them."""
    record = logging.LogRecord("proxy.x", logging.WARNING, "f.py", 1, message, args, None)
    record.__dict__.update(extra)
    return record
