"""How long a client may take: what it leaves unread, and a timer for whatever is due next.

What a client that answers nothing costs is bounded here; what it is told is for its connection.
"""

import asyncio
from collections.abc import Callable
from math import inf

from proxy.data.front import Front


class Unread:
    """What a client has not taken of what was written, and how long it may leave it so."""

    __slots__ = ("_idle_bytes", "_paused_bytes", "cut_at")

    def __init__(self) -> None:
        self._paused_bytes = 0
        self._idle_bytes = inf
        self.cut_at = inf
        """When a client that reads nothing is cut, monotonic seconds; inf while it keeps up."""

    def falls_behind(self, unsent: int, cut_at: float) -> None:
        """More than the high-water mark is unsent: `unsent` bytes; it has until `cut_at`."""
        self._paused_bytes = unsent
        self.cut_at = cut_at

    def catches_up(self) -> None:
        """It has taken enough of it."""
        self.cut_at = inf

    def still_falls(self, unsent: int, cut_at: float) -> bool:
        """Its time is over: whether it has taken no byte in it. Else it has until `cut_at`."""
        if unsent >= self._paused_bytes:
            return True
        self.falls_behind(unsent, cut_at)
        return False

    def begins_to_idle(self) -> None:
        """An answer is written; what is unsent of it from now on is its client's to take."""
        self._idle_bytes = inf

    def idles_on(self, unsent: int) -> bool:
        """Whether it has taken no byte since this was asked before; the first time it has."""
        if unsent >= self._idle_bytes:
            return True
        self._idle_bytes = float(unsent)
        return False


class Alarm:
    """Rings no later than what is due; one that rings early is for looking again."""

    __slots__ = ("_at", "_front", "_timer")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf

    def set(self, due: float, ring: Callable[[], None]) -> None:
        """Call `ring` at `due`, or before. It is not kept here: whoever rings would keep itself."""
        if due >= self._at:
            return
        self.cancel()
        self._at = due
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(due - self._front.clock(), self._rings, ring)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = inf

    def _rings(self, ring: Callable[[], None]) -> None:
        self._timer = None
        self._at = inf
        ring()
