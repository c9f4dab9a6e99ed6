"""Our end of a connection without sockets, as uvloop would have it; a script plays the peer.

Stricter than a socket where a real one would forgive or fail by luck: what uvloop refuses after a
connection is lost is refused here at once.
"""

import asyncio
import os
import socket
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable


_SILENT = os.eventfd(0)


class End(asyncio.Transport):
    """What the protocol writes waits in `unsent` until the peer takes it."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._paused = False
        self._told_to_pause = False
        self._high, self._low = 65536, 16384
        self._eof = False
        self._resets = False
        self._coming = b""
        self._coming_end: Callable[[], None] | None = None
        self.unsent = b""
        self.taken = b""
        """What the peer has received."""
        self.given = b""
        """What the protocol has received."""
        self.eof_given = False
        self.lost = False
        self.closing = False
        self.ended: str | None = None
        """How the peer saw it end: by `fin` or `reset`."""
        self.dropped = 0
        """Bytes that were written and never reached the peer."""
        self.while_slow = 0
        """Bytes written since the protocol was told to pause."""
        self.on_taken: Callable[[], None] = lambda: None

    # the peer

    @property
    def readable(self) -> bool:
        """Whether the protocol would be told of what comes."""
        return not (self._paused or self.closing or self.lost or self.eof_given)

    @property
    def paused(self) -> bool:
        """Whether the protocol has stopped reading, of a connection that goes on."""
        return self._paused and not self.closing and not self.lost

    @property
    def slow(self) -> bool:
        """Whether the protocol has been told that the peer reads slowly."""
        return self._told_to_pause

    def give(self, data: bytes) -> None:
        """The peer sends `data`."""
        self._coming += data
        self.pump()

    def finish(self) -> None:
        """The peer sends FIN, behind what it has sent."""
        self._coming_end = self._give_eof
        self.pump()

    def pump(self) -> None:
        """Tell the protocol what has come, as far as it reads."""
        if self._coming and self.readable:
            data, self._coming = self._coming, b""
            self.given += data
            self._protocol.data_received(data)
        if self._coming_end is not None and not self._coming and self.readable:
            end, self._coming_end = self._coming_end, None
            end()

    def _give_eof(self) -> None:
        self.eof_given = True
        if not self._protocol.eof_received():
            self.close()

    def break_off(self) -> None:
        """The peer resets the connection; what is under way is lost."""
        if not self.lost:
            self._coming = b""
            self.dropped += len(self.unsent)
            self.unsent = b""
            self.closing = True
            self._lose(ConnectionResetError("reset by peer"))

    def take(self, most: int) -> None:
        """The peer reads up to `most` bytes."""
        if not self.unsent or self.lost or self.ended is not None:
            return
        self.taken += self.unsent[:most]
        self.unsent = self.unsent[most:]
        if self._told_to_pause and len(self.unsent) <= self._low:
            self._told_to_pause = False
            self._protocol.resume_writing()
        if not self.unsent:
            self._all_sent()
        self.on_taken()

    def _all_sent(self) -> None:
        if self.closing:
            self._lose(None)
        elif self._eof:
            self.ended = "fin"

    # asyncio

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who is told."""
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it for the peer."""
        self._alive()
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.closing and self.ended is not None:
            self.dropped += len(data)
            return
        self.unsent += bytes(data)
        if self._told_to_pause:
            self.while_slow += len(data)
        if len(self.unsent) > self._high and not self._told_to_pause:
            self._told_to_pause = True
            self.while_slow = 0
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Pause above `high`, resume at a quarter of it."""
        self._alive()
        assert high is not None
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """What the peer has not taken."""
        return 0 if self.lost else len(self.unsent)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The socket, which is this, for its option to reset on close."""
        return self if name == "socket" else default

    def fileno(self) -> int:
        """Of a socket on which nothing waits: what is said comes by itself."""
        return _SILENT

    def setsockopt(self, level: int, option: int, _value: object) -> None:
        """Of those that are set, SO_LINGER says how it ends; it is set to reset."""
        self._resets = self._resets or (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER)

    def pause_reading(self) -> None:
        """Read no more."""
        self._alive()
        self._paused = True

    def resume_reading(self) -> None:
        """Read on, in a turn of its own."""
        self._alive()
        if self._paused:
            self._paused = False
            self._loop.call_soon(self.pump)

    def abort(self) -> None:
        """Close at once."""
        if self.ended is not None and self.closing:
            return
        self.closing = True
        self.dropped += len(self.unsent)
        self._lose(None)

    def close(self) -> None:
        """Close when the peer has taken everything."""
        if self.closing:
            return
        self.closing = True
        if not self.unsent:
            self._lose(None)

    def is_closing(self) -> bool:
        """Whether it was closed, from either side."""
        return self.closing

    def can_write_eof(self) -> bool:
        """As a socket can."""
        return True

    def write_eof(self) -> None:
        """Send FIN behind what is unsent."""
        self._alive()
        self._eof = True
        if not self.unsent:
            self.ended = "fin"

    def _alive(self) -> None:
        if self.lost:
            raise RuntimeError("the handler is closed")

    def _lose(self, fault: Exception | None) -> None:
        if self.ended is None:
            self.ended = "reset" if self._resets or fault is not None else "fin"
        self._loop.call_soon(self._tell_lost, fault)

    def _tell_lost(self, fault: Exception | None) -> None:
        if not self.lost:
            self._protocol.connection_lost(fault)
            self.lost = True
            self.unsent = b""


def as_protocol(made: asyncio.BaseProtocol) -> asyncio.Protocol:
    """Every protocol here is one of bytes."""
    return cast("asyncio.Protocol", made)
