"""The connections to one upstream: those kept, those in use, those being made."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

from proxy.core.refusals import RETRY_AFTER_BUSY
from proxy.core.words import UpstreamName
from proxy.data.descriptors import descriptors_ran_out
from proxy.data.upstream import Connecting, EngineConnection, Sink, tell
from proxy.errors import Overloaded

Dial = Callable[[EngineConnection, str, int, ssl.SSLContext | None], Awaitable[object]]
"""Connects to a host and a port; OSError where that fails."""


def dial(
    engine: EngineConnection, host: str, port: int, tls: ssl.SSLContext | None
) -> Awaitable[object]:
    """Over TCP, by the running loop."""
    loop = asyncio.get_running_loop()
    return loop.create_connection(lambda: engine, host, port, ssl=tls)


class Pool:
    """Connections to one upstream: those kept, those in use, those being made."""

    def __init__(
        self,
        name: UpstreamName,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        idle_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._host = host
        self._port = port
        self._tls = tls
        self.idle_seconds = idle_seconds
        """How long a connection is kept."""
        self.dial: Dial = dial
        """How one is made; tests have their own ways."""
        self._retired = False
        self._clock = clock
        self._idle: dict[EngineConnection, None] = {}
        """A set in the order in which they were put back."""
        self._active: set[EngineConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._waiting: dict[Connecting, None] = {}
        """Those in the making whose requests would as well take one that comes free, in order."""

    @property
    def secure(self) -> bool:
        """Whether its connections speak TLS."""
        return self._tls is not None

    @property
    def idle(self) -> int:
        """Connections that are kept."""
        return len(self._idle)

    @property
    def active(self) -> int:
        """Connections in use."""
        return len(self._active)

    @property
    def busy(self) -> bool:
        """Whether a connection is in use or being made."""
        return bool(self._active or self._connecting)

    def obtain(self, sink: Sink, *, fresh: bool) -> EngineConnection | Connecting:
        """Return a kept connection, the one used last first, or start making one for `sink`.

        A kept one is only used while the engine will hardly have closed it. With `fresh` none that
        has served before will do; else `sink` gets the one in the making or one that comes free
        meanwhile, whichever is sooner: in a burst the loop has little time for making them.
        """
        oldest = self._clock() - self.idle_seconds
        while self._idle and not fresh:
            engine, _ = self._idle.popitem()
            if engine.idle_since >= oldest and not engine.restless:
                self._active.add(engine)
                return engine
            engine.drop()
        connecting = Connecting(sink)
        # The set keeps the task alive; `close` and `Connecting.drop` end it.
        task = asyncio.get_running_loop().create_task(self._connect(connecting))
        connecting.started(task)
        self._connecting.add(task)
        if not fresh:
            self._waiting[connecting] = None
        task.add_done_callback(partial(self._made, connecting))
        return connecting

    def _made(self, connecting: Connecting, task: asyncio.Task[None]) -> None:
        """It is made, has failed or was given up: nobody waits for it any more."""
        self._connecting.discard(task)
        self._waiting.pop(connecting, None)

    def keep(self, engine: EngineConnection) -> None:
        """Give `engine` to a request that waits for a connection, else keep it for the next one."""
        if self._retired:
            engine.drop()
            return
        if self._waiting:
            if engine.restless:
                engine.drop()
                return
            if (sink := self._first_waiting()) is not None:
                self._active.add(engine)
                tell(sink, lambda sink: sink.engine_connected(engine, reused=engine.served))
                return
        self._active.discard(engine)
        engine.idle_since = self._clock()
        self._idle[engine] = None

    def _first_waiting(self) -> Sink | None:
        while self._waiting:
            connecting = next(iter(self._waiting))
            del self._waiting[connecting]
            if (sink := connecting.take_sink()) is not None:
                return sink
        return None

    def forget(self, engine: EngineConnection) -> None:
        """`engine` is closed, or is about to be."""
        self._active.discard(engine)
        self._idle.pop(engine, None)

    def sweep(self, now: float) -> None:
        """Close the kept connections that have been idle for too long; the oldest stand first."""
        for engine in tuple(self._idle):
            if now - engine.idle_since <= self.idle_seconds:
                break
            engine.drop()

    def retire(self) -> None:
        """Keep nothing from now on; what is in use may end."""
        self._retired = True
        for engine in tuple(self._idle):
            engine.drop()

    def close(self) -> None:
        """Close every connection."""
        for task in tuple(self._connecting):
            task.cancel()
        for engine in (*self._idle, *self._active):
            engine.drop()

    async def _connect(self, connecting: Connecting) -> None:
        try:
            engine = await self._open(connecting)
        except OSError as error:
            if (sink := connecting.take_sink()) is not None:
                tell(sink, partial(self._tell_failure, error))
            return
        if (sink := connecting.take_sink()) is not None:
            tell(sink, partial(self._tell_connected, engine))
        elif not engine.lost:
            self.keep(engine)  # its request has had another one

    def _tell_failure(self, error: OSError, sink: Sink) -> None:
        if descriptors_ran_out(error):
            for engine in tuple(self._idle):
                engine.drop()  # each takes one, and nobody needs it now
            why = f"no file descriptor is free for a connection to {self.name}"
            sink.engine_refused(Overloaded(why, retry_after=RETRY_AFTER_BUSY))
        else:
            sink.engine_not_connected(str(error))

    def _tell_connected(self, engine: EngineConnection, sink: Sink) -> None:
        if engine.lost:  # what is written to it would vanish, and nobody would hear of it again
            sink.engine_not_connected("it was closed as soon as it was made")
        else:
            self._active.add(engine)
            sink.engine_connected(engine, reused=False)

    async def _open(self, connecting: Connecting) -> EngineConnection:
        engine = connecting.engine = EngineConnection(self)
        await self.dial(engine, self._host, self._port, self._tls)
        return engine
