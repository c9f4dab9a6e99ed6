"""A client's connection to the admin listener: uvicorn's own, with an end to what it puts up with.

uvicorn waits for ever for the rest of a request, and takes a head of any size. Its connections are
open files of the process that also carries the streams, so their number, their time and their bytes
are bounded here. Whoever is over a bound is cut without a word; nobody's doing is logged.
"""

import asyncio
from typing import Any, cast

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_CONNECTIONS = 64
"""Two scrapers, the probes of an orchestrator and ten status pages of six connections each. The one
that has been silent longest makes room for the next: an operator is never locked out."""
MAX_BYTES = 256 * 1024
"""Between two answers: a body as the guard takes it, a head as the endpoint takes it (32 KiB), and
the rest of a larger body, so that its sender can still read why it was refused."""
SECONDS = 15.0
"""Between two answers, uvicorn's idle 5 s included; a dribbled request ends within it, and so does
an answer that nobody reads."""


class Connection(HttpToolsProtocol):
    """One client."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.since = self.loop.time()
        """When it was opened, or last answered."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """A client has connected."""
        super().connection_made(transport)
        self._expect()
        if len(self.connections) > MAX_CONNECTIONS:
            others = cast("set[Connection]", self.connections - {self})
            min(others, key=lambda each: each.since).cut()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            self.cut()
        else:
            super().data_received(data)

    def on_response_complete(self) -> None:
        """A request is answered; the next one, or the reading of this answer, has its own time."""
        super().on_response_complete()
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def cut(self) -> None:
        """End it now."""
        self.connections.discard(self)  # it is told of its end only in the next turn of the loop
        self.transport.abort()

    def _expect(self) -> None:
        self.since, self._bytes = self.loop.time(), 0
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(SECONDS, self.cut)
