"""What goes out to one client: kept to the end of a turn, sent, and cut off without a lie."""

import asyncio
import socket
import struct
from typing import cast

HIGH_WATER_BYTES = 65536
"""Unsent bytes to a client at which its engine is paused; asyncio's own default."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class Outgoing:
    """The writing side of a client's transport."""

    __slots__ = ("pieces", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None before the client has connected and after its connection is closed."""
        self.pieces: list[bytes] = []
        """What `send` sends."""

    def open(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected; little is held for it where it does not read."""
        # By cast: uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        raw = self.transport.get_extra_info("socket")
        # The kernel, too, holds no more for a client that does not read: by itself up to 4 MiB.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, HIGH_WATER_BYTES)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were sent and the client has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def is_much(self) -> bool:
        """Whether so much waits to be sent that it should not wait any longer."""
        size = 0
        for piece in self.pieces:
            size += len(piece)
        return size > HIGH_WATER_BYTES

    def send(self) -> None:
        """Send what waits, if there is still somebody."""
        pieces, transport = self.pieces, self.transport
        if pieces and transport is not None:
            self.pieces = []
            transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def cut(self, *, half: bool) -> None:
        """End now; with a reset where an answer is `half` told, and closing would mark its end."""
        transport = self.transport
        if transport is None:
            return
        # With a reset, too, where the kernel would otherwise go on offering what nobody takes.
        if half or self.unsent_bytes > 0:
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
