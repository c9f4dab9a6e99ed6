"""The waiting room: one line, first come first served, bounded.

Those waiting are not in flight. When a place comes free the line is asked in order, and whoever
cannot use that place is passed over; nobody behind may take what somebody in front is waiting for
(that is decided by the caller, who knows what each would take). Most of a full room wants the same,
so tickets stand in one file for each want, and only those in front of their file need be asked.
"""

from collections.abc import Hashable, Iterator
from heapq import merge
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What stands in the room."""

    @property
    def want(self) -> Hashable:
        """Equal for two that any place would suit alike."""


T = TypeVar("T", bound=Waiting)

_IN_FRONT = 2**62
"""More than ever come. Who comes again wants what nobody wants who comes for the first time, since
that it comes again is part of its want; so within one file all numbers rise."""


class WaitingRoom(Generic[T]):
    """At most `size` tickets in the order in which they came."""

    __slots__ = ("_came", "_files", "_numbers", "empty", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.empty = True
        """Whether nobody waits; kept, since it is asked for each request."""
        self._files: dict[Hashable, dict[T, None]] = {}
        self._numbers: dict[T, int] = {}
        self._came = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, ticket: T) -> bool:
        return ticket in self._numbers

    def __iter__(self) -> Iterator[T]:
        """The tickets as they stand now, oldest first; the room may change meanwhile."""
        files = (tuple(file) for file in tuple(self._files.values()))
        return iter(tuple(merge(*files, key=self._numbers.__getitem__)))

    @property
    def full(self) -> bool:
        """Whether nobody more may enter."""
        return len(self._numbers) >= self.size

    def enter(self, ticket: T, *, again: bool = False) -> None:
        """Stand at the end of the line; the caller has asked `full`.

        Who comes `again` was called before all who wait now, and stands in front of them, behind
        those who came again before it.
        """
        self._came += 1
        self.empty = False
        self._numbers[ticket] = self._came - _IN_FRONT if again else self._came
        self._files.setdefault(ticket.want, {})[ticket] = None

    def leave(self, ticket: T) -> bool:
        """Give up one's stand; whether there was one."""
        if self._numbers.pop(ticket, None) is None:
            return False
        self.empty = not self._numbers
        file = self._files[ticket.want]
        del file[ticket]
        if not file:
            del self._files[ticket.want]
        return True

    def fronts(self) -> list[T]:
        """The oldest of each want, oldest first."""
        return sorted((next(iter(file)) for file in self._files.values()), key=self._number)

    def _number(self, ticket: T) -> int:
        return self._numbers[ticket]
