"""What is to be written in this turn of the loop, kept to be written at its end and in one go.

A write to a peer that sleeps wakes it, which costs more than all the rest of a write: some 11 us
on the machine of bench/NOTES.md. Where each read is followed by its write, every peer has answered
and sleeps again before the next write; of those one after the other most find theirs awake.
"""

import asyncio
from typing import Final, Protocol

MOST: Final = 32
"""Connections after which it is written without waiting for the end of the turn, so that in a turn
of a thousand chunks none waits for more than some 0.3 ms."""


class Writer(Protocol):
    """A connection that has something to write."""

    def flush(self) -> None:
        """Write it."""

    def failed(self, fault: Exception) -> None:
        """A fault of ours in doing so."""


class Outbox:
    """Has each connection write at the end of the turn; shared by all of one loop."""

    __slots__ = ("_loop", "_most", "_waiting")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        """Asked for once: asking is a system call."""
        self._waiting: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """Have `writer` flush at the end of this turn; if it has by then, it has nothing to do."""
        waiting = self._waiting
        waiting.append(writer)
        if len(waiting) >= self._most:
            self._end_turn()
        elif len(waiting) == 1:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        writers = iter(waiting)
        try:
            for writer in writers:
                try:
                    writer.flush()
                except Exception as fault:  # noqa: BLE001 - it reports it, and gives up
                    writer.failed(fault)
        finally:
            for writer in writers:  # where not even that went well, the others have theirs to say
                self.add(writer)
