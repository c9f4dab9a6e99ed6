"""The lane of large bodies: one thing a turn, in order, whatever becomes of it."""

import asyncio
from typing import Any

from proxy.data.lane import Lane
from tests.harness.running import until


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self._next)


async def test_one_thing_a_turn() -> None:
    """In the order in which they came, also what comes from within."""
    lane, turns = Lane(), Turns()
    done: list[tuple[str, int]] = []

    def note(name: str) -> None:
        done.append((name, turns.count))

    def first() -> None:
        note("first")
        lane.add(lambda: note("from within"))

    lane.add(first)
    lane.add(lambda: note("second"))
    assert done == []
    await until(lambda: len(done) == 3, "all is done")

    assert [name for name, _ in done] == ["first", "second", "from within"]
    assert len({turn for _, turn in done}) == 3


async def test_it_goes_on_after_a_fault() -> None:
    """What has failed without a word of its own is reported by the loop, and the next is done."""
    lane, done = Lane(), asyncio.Event()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        raise ZeroDivisionError

    lane.add(fail)
    lane.add(done.set)
    await asyncio.wait_for(done.wait(), timeout=5)
    lane.add(done.clear)
    await until(lambda: not done.is_set(), "so is what comes later")

    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
