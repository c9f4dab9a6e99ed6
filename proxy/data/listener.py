"""The endpoint's listening sockets, and what becomes of them where file descriptors run out.

Then the loop would close each client that comes, or, without the descriptor that it keeps for doing
that, try to take it again and again as fast as it can. So we look whether one is free, and while
there is none take nobody: clients wait in the kernel's queue, which outlives the loop's server
since we hold its socket too.

A server of the loop takes one client a turn. A turn of a busy loop takes tens of milliseconds, so
of hundreds that come at once the last would wait for seconds. So several of its servers listen on
each socket, and as many clients are taken a turn; to accept those behind the first ourselves would
take 20 us more for each.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from math import inf
from typing import Final

from proxy.data.descriptors import descriptor_limit, descriptors_are_free
from proxy.data.front import Front

BACKLOG: Final = 4096
"""Connections that the kernel holds for us; a burst of clients should wait, not be refused."""

LOOK_SECONDS: Final = 0.25
"""How often it is looked whether a descriptor is free."""

SAY_SECONDS: Final = 1.0
"""How often it is said that there was none."""

AT_ONCE: Final = 16
"""Clients that are taken in one turn. Each server asks in vain where there are fewer: 1 us."""

RESUME_FREE: Final = 8
"""Descriptors that must be free before clients are taken again, beside those of the servers, which
pausing has freed itself."""

HANDSHAKE_SECONDS: Final = 0.1
"""What a handshake that has begun is given to come into the kernel's queue: a round trip."""

SO_ATTACH_FILTER: Final = 26
"""Linux, asm-generic/socket.h."""

_WITHOUT_SYN: Final = (
    (0x30, 0, 0, 13),  # ldb [13]: the flags of the TCP header
    (0x45, 0, 1, 0x02),  # jset SYN: the next one, else the one after it
    (0x06, 0, 0, 0),  # ret 0: drop
    (0x06, 0, 0, 0xFFFFFFFF),  # ret all of it
)
"""A classic BPF program (linux/filter.h: code, jump if true, jump if false, operand)."""

_log = logging.getLogger(__name__)


class Listener:
    """Takes clients, each by a protocol of `make`."""

    def __init__(self, front: Front, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._front = front
        self._protocol = make
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        """Empty while no client is taken."""
        self._without = 0
        """Requests without a descriptor for their engine, up to the last look."""
        self._unsaid = 0
        self._said_at = -inf

    async def listen(self, host: str, port: int) -> None:
        """Open the sockets; raises OSError."""
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(self._protocol, host, port, backlog=BACKLOG)
        self._servers = [bound]
        self._sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in bound.sockets]
        for each in self._sockets:
            each.setblocking(False)  # as the loop has its own: the two are one
        try:
            await self._serve(AT_ONCE - 1)
        except OSError:
            self.close()
            raise

    @property
    def port(self) -> int:
        """The port that is listened on; never 0."""
        port = self._sockets[0].getsockname()[1]
        assert isinstance(port, int)  # noqa: S101 - for the type: IP sockets have numbers
        return port

    @property
    def paused(self) -> bool:
        """Whether no client is taken, for want of descriptors."""
        return not self._servers

    async def watch(self) -> None:
        """Look at the descriptors, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look(self._front.clock())

    async def look(self, now: float) -> None:
        """Take nobody while no descriptor is free, and say so."""
        if not self._sockets:
            return  # it has stopped
        if self.paused:
            if descriptors_are_free(RESUME_FREE + AT_ONCE * len(self._sockets)):
                await self._resume()
        elif not descriptors_are_free(1):
            self._pause()
        without, self._without = self._without, self._front.connects_without_descriptor
        self._unsaid += self._without - without
        if (self.paused or self._unsaid) and now - self._said_at >= SAY_SECONDS:
            self._say()
            self._said_at = now

    async def stop(self) -> None:
        """Take those who are in the kernel's queue, and from then on nobody.

        Who comes later is refused by the kernel, which says that nothing was done. It resets who is
        in its queue when the socket is closed, though that one may have asked already: so nobody
        new is let into the queue before the last look at it. Their SYN is lost, and the next one, a
        second later, is refused.
        """
        for each in self._sockets:
            _let_nobody_new_in(each)
        await asyncio.sleep(HANDSHAKE_SECONDS)
        self._pause()
        last = [client for each in self._sockets for client in _queue_of(each)]
        self._close_sockets()
        loop = asyncio.get_running_loop()
        for client in last:
            await loop.connect_accepted_socket(self._protocol, client)

    def close(self) -> None:
        """Take nobody any more, and give up those whose handshake is not done."""
        self._pause()
        self._close_sockets()
        for handshake in tuple(self._front.handshakes):
            handshake.close()

    def _close_sockets(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _pause(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []

    async def _resume(self) -> None:
        try:
            await self._serve(AT_ONCE)
        except OSError:
            self._pause()  # somebody else was faster; it is looked again soon

    async def _serve(self, servers: int) -> None:
        """Let so many more servers of the loop take clients from each socket."""
        loop = asyncio.get_running_loop()
        for each in self._sockets * servers:
            server = await loop.create_server(self._protocol, sock=each.dup(), backlog=BACKLOG)
            self._servers.append(server)

    def _say(self) -> None:
        _log.error(
            "out of file descriptors, of which %d are allowed: new clients %s; %d requests were "
            "refused for want of a connection to their engine",
            descriptor_limit(),
            "have to wait" if self.paused else "are taken",
            self._unsaid,
        )
        self._unsaid = 0


def _let_nobody_new_in(listening: socket.socket) -> None:
    """Have the kernel drop what would begin a connection; not where it has no such filters."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *op) for op in _WITHOUT_SYN))
    found = struct.pack("HP", len(_WITHOUT_SYN), ctypes.addressof(program))
    with contextlib.suppress(OSError):  # the end is as before then: one in a thousand may be reset
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, found)


def _queue_of(listening: socket.socket) -> Iterator[socket.socket]:
    """Those whom the kernel holds for a socket; as many as there are descriptors for."""
    while True:
        try:
            client, _ = listening.accept()
        except OSError:  # nobody is left, or nothing to take them with
            return
        client.setblocking(False)
        yield client
