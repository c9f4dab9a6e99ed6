"""An event loop without sockets, on which time passes only when nothing else is left to do.

A conversation of hours is played in a millisecond, and the same script is the same conversation.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

START = 1000.0


class Dial(Protocol):
    """Who decides what becomes of a new connection."""

    def __call__(
        self, make: Callable[[], asyncio.BaseProtocol], port: int
    ) -> Awaitable[asyncio.Transport]:
        """Connect the protocol that `make` makes; OSError: there is no connection."""


class Stuck(RuntimeError):  # noqa: N818 - as the loop's word for it
    """Nothing is ready and nothing is due: what is waited for will never come."""


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. It is its own selector: where others wait for sockets, this moves its clock."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._now = START
        self.faults: list[str] = []
        """What was told to the exception handler."""
        self.dial: Dial | None = None
        self.set_exception_handler(self._note_fault)

    def time(self) -> float:
        """Seconds that the clock shows."""
        return self._now

    def restart(self) -> None:
        """Begin again; what is left on the loop would be a fault of who ran before."""
        self._now = START
        self.faults = []

    @property
    def busy(self) -> bool:
        """Whether something is ready to run."""
        return bool(vars(self)["_ready"])

    @property
    def pending(self) -> list[asyncio.TimerHandle]:
        """Timers that are still to fire."""
        scheduled: list[asyncio.TimerHandle] = vars(self)["_scheduled"]
        return [handle for handle in scheduled if not handle.cancelled()]

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,  # noqa: ARG002 - asyncio's name
        port: int,
        **_options: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Have `dial` decide."""
        assert self.dial is not None
        transport = await self.dial(protocol_factory, port)
        return transport, transport.get_protocol()

    def select(self, timeout: float | None) -> list[object]:
        """Pass the time until the next timer."""
        if timeout is None:
            raise Stuck("nothing is due")
        self._now += timeout
        return []

    def _process_events(self, _events: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else's thread wakes this loop."""

    def _note_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context['message']}: {context.get('exception')!r}")
