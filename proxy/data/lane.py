"""Work on large bodies that takes milliseconds: one piece of it in a turn of the loop.

To look into a body of 8 MiB takes 6 ms. Bodies that are complete in the same turn would hold the
loop for all of them, and everybody else would wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Lane:
    """Does one thing a turn, in the order in which they came; shared by all of one loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        """The first of them is the one that runs, or does so next."""

    def add(self, work: Callable[[], None]) -> None:
        """Do `work` in a turn of its own; what fails in it, it reports itself."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._turn)
