"""The body of one request while it is held, and what it takes of what all may hold."""

from proxy.core.refusals import RETRY_AFTER_BUSY
from proxy.data.front import Front
from proxy.errors import Overloaded


class HeldBody:
    """Counted in `Front.buffered` from its first byte until it is let go."""

    __slots__ = ("_counted", "_front", "content", "whole")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._counted = 0
        self.content: bytes | bytearray = b""
        self.whole = False
        """Whether all of it has come; true still when it has been let go."""

    def grow(self, held: int) -> Overloaded | None:
        """`held` bytes of it have come so far; a refusal where that is more than all may hold."""
        self._count(held)
        total, allowed = self._front.buffered, self._front.limits.max_buffered_bytes
        if total <= allowed:
            return None
        why = f"{total} bytes of request bodies are held, {allowed} are allowed"
        return Overloaded(why, retry_after=RETRY_AFTER_BUSY)

    def keep(self, content: bytes | bytearray) -> None:
        """It has come, all of it."""
        self.content = content
        self.whole = True

    def let_go(self) -> None:
        """Nobody needs it any more."""
        if self._counted:
            self.content = b""
            self._count(0)

    def _count(self, held: int) -> None:
        self._front.buffered += held - self._counted
        self._counted = held
