"""The waiting room: one line, first come first served, bounded.

Those waiting are not in flight. When a place comes free the line is asked in order, and whoever
cannot use that place is passed over; nobody behind may take what somebody in front is waiting for
(that is decided by the caller, who knows what each would take).
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingRoom(Generic[T]):
    """At most `size` tickets in the order in which they came."""

    __slots__ = ("_tickets", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._tickets: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: T) -> bool:
        return ticket in self._tickets

    def __iter__(self) -> Iterator[T]:
        """The tickets as they stand now, oldest first; the room may change meanwhile."""
        return iter(tuple(self._tickets))

    @property
    def full(self) -> bool:
        """Whether nobody more may enter."""
        return len(self._tickets) >= self.size

    def enter(self, ticket: T) -> None:
        """Stand at the end of the line; the caller has asked `full`."""
        self._tickets[ticket] = None

    def leave(self, ticket: T) -> bool:
        """Give up one's stand; whether there was one."""
        if ticket not in self._tickets:
            return False
        del self._tickets[ticket]
        return True

    def take(self, wanted: Callable[[T], bool]) -> list[T]:
        """Remove and return, oldest first, every ticket that `wanted` says yes to."""
        taken = [ticket for ticket in self._tickets if wanted(ticket)]
        for ticket in taken:
            del self._tickets[ticket]
        return taken
