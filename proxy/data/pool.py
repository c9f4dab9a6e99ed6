"""The connections to one upstream: those kept, those in use, those being made."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

from proxy.core.refusals import RETRY_AFTER_BUSY
from proxy.core.words import UpstreamName
from proxy.data.descriptors import descriptors_ran_out
from proxy.data.settings import Timeouts
from proxy.data.upstream import EngineConnection, Sink, tell
from proxy.errors import Overloaded

Dial = Callable[[EngineConnection, str, int, ssl.SSLContext | None], Awaitable[object]]
"""Connects to a host and a port; OSError where that fails."""


def over_tcp(
    engine: EngineConnection, host: str, port: int, tls: ssl.SSLContext | None
) -> Awaitable[object]:
    """Connect by the running loop."""
    loop = asyncio.get_running_loop()
    return loop.create_connection(lambda: engine, host, port, ssl=tls)


class Connecting:
    """A connection in the making, for `sink`."""

    __slots__ = ("_sink", "_task")

    def __init__(self, sink: Sink) -> None:
        self._sink: Sink | None = sink
        self._task: asyncio.Task[None] | None = None

    def started(self, task: asyncio.Task[None]) -> None:
        """`task` is making it."""
        self._task = task
        task.add_done_callback(self._ended)

    def take_sink(self) -> Sink | None:
        """Whom to tell what came of it; None if somebody has been told, or it was given up."""
        sink, self._sink = self._sink, None
        return sink

    def drop(self) -> None:
        """Give it up; the sink hears no more of it."""
        self._sink = None
        assert self._task is not None  # noqa: S101 - who could drop it has it from `obtain`
        self._task.cancel()

    @staticmethod
    def _ended(task: asyncio.Task[None]) -> None:
        """What it failed with, beyond what it handles, is a fault of ours."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            context = {"message": "making a connection failed", "exception": fault}
            task.get_loop().call_exception_handler(context)


class Pool:
    """Connections to one upstream: those kept, those in use, those being made."""

    def __init__(
        self,
        name: UpstreamName,
        address: tuple[str, int],
        *,
        tls: ssl.SSLContext | None,
        timeouts: Timeouts,
        clock: Callable[[], float],
        dial: Dial = over_tcp,
    ) -> None:
        self.name = name
        self._host, self._port = address
        self._tls = tls
        self.timeouts = timeouts
        """How long a connection may be in the making, and how long one is kept."""
        self._dial = dial
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
        oldest = self._clock() - self.timeouts.idle_connection
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
        longest = self.timeouts.idle_connection
        for engine in tuple(self._idle):
            if now - engine.idle_since <= longest:
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
            engine = await self._open()
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

    async def _open(self) -> EngineConnection:
        """Make one; raises OSError where there is none within `timeouts.connect`.

        The request's own deadline is no bound: it goes with the request, which may have another.
        """
        engine = EngineConnection(self)
        seconds = self.timeouts.connect
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._dial(engine, self._host, self._port, self._tls)
        except BaseException as error:
            engine.drop()  # it may have come up just before
            if limit.expired():
                raise TimeoutError(f"no connection within {seconds:g} s") from error
            raise
        return engine
