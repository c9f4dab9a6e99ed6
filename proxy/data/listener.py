"""The endpoint's listening sockets, and what becomes of them where file descriptors run out.

Then the loop would close each client that comes, or, without the descriptor that it keeps for doing
that, try to take it again and again as fast as it can. So we look whether one is free, and while
there is none take nobody: clients wait in the kernel's queue, which outlives the loop's server
since we hold its socket too.

The loop takes one client a turn. A turn of a busy loop takes tens of milliseconds, so of hundreds
that come at once the last would wait for seconds; where one has come, we take those behind it.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
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

RESUME_FREE: Final = 8
"""Descriptors that must be free before clients are taken again."""

BURST: Final = 64
"""Clients that are taken in one turn, beside the loop's one; each takes some 15 us."""

_log = logging.getLogger(__name__)


class Listener:
    """Takes clients, each by a protocol of `make`."""

    def __init__(self, front: Front, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._front = front
        self._protocol = make
        self._opening: set[asyncio.Task[None]] = set()
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
        server = await loop.create_server(self._make, host, port, backlog=BACKLOG)
        self._servers = [server]
        self._sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
        for each in self._sockets:
            each.setblocking(False)  # as the loop has its own: the two are one

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
        if self.paused:
            if descriptors_are_free(RESUME_FREE):
                await self._resume()
        elif not descriptors_are_free(1):
            self._pause()
        without, self._without = self._without, self._front.connects_without_descriptor
        self._unsaid += self._without - without
        if (self.paused or self._unsaid) and now - self._said_at >= SAY_SECONDS:
            self._say()
            self._said_at = now

    def close(self) -> None:
        """Take nobody any more, and give up those whose handshake is not done."""
        self._pause()
        for task in tuple(self._opening):
            task.cancel()
        for each in self._sockets:
            each.close()
        for handshake in tuple(self._front.handshakes):
            handshake.close()

    def _make(self) -> asyncio.BaseProtocol:
        """The protocol of a client that the loop has taken; others may stand behind it."""
        asyncio.get_running_loop().call_soon(self._take_burst)
        return self._protocol()

    def _take_burst(self) -> None:
        if self.paused:
            return
        for each in self._sockets:
            try:
                for _ in range(BURST):
                    self._take(each.accept()[0])
            except OSError:
                continue  # nobody else is there; or what is wrong, `look` finds

    def _take(self, client: socket.socket) -> None:
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._open(client))
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, client))

    async def _open(self, client: socket.socket) -> None:
        # One that has left already is taken, too, and found to be gone at its first read.
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, client)

    def _opened(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if task.cancelled():
            client.close()

    def _pause(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []

    async def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for each in self._sockets:
                own = each.dup()
                server = await loop.create_server(self._make, sock=own, backlog=BACKLOG)
                self._servers.append(server)
        except OSError:
            self._pause()  # somebody else was faster; it is looked again soon

    def _say(self) -> None:
        _log.error(
            "out of file descriptors, of which %d are allowed: new clients %s; %d requests were "
            "refused for want of a connection to their engine",
            descriptor_limit(),
            "have to wait" if self.paused else "are taken",
            self._unsaid,
        )
        self._unsaid = 0
