"""The waiting room: first come, first served, and no more than fit."""

import pytest

from proxy.core.waiting import WaitingRoom


def room_with(*tickets: str, size: int = 9) -> WaitingRoom[str]:
    """Return a room in which `tickets` stand in that order."""
    room: WaitingRoom[str] = WaitingRoom(size)
    for ticket in tickets:
        room.enter(ticket)
    return room


def test_it_is_a_line() -> None:
    """Those inside are known, counted, and stand in the order in which they came."""
    room = room_with("b", "a", "c")

    assert list(room) == ["b", "a", "c"]
    assert len(room) == 3
    assert "a" in room
    assert "z" not in room


@pytest.mark.parametrize(("size", "inside", "full"), [(0, 0, True), (2, 1, False), (2, 2, True)])
def test_it_is_bounded(*, size: int, inside: int, full: bool) -> None:
    """It is full at its size; one of size 0 always is."""
    assert room_with(*map(str, range(inside)), size=size).full is full


def test_leaving_is_told_from_not_having_been_there() -> None:
    """One who leaves is gone, and cannot leave again."""
    room = room_with("a", "b", size=2)

    assert room.leave("a") is True
    assert list(room) == ["b"]
    assert not room.full
    assert room.leave("a") is False


def test_those_behind_keep_their_order() -> None:
    """A place in the line that became free is nobody's: a newcomer stands at the end."""
    room = room_with("a", "b", "c")
    room.leave("b")
    room.enter("d")

    assert list(room) == ["a", "c", "d"]


def test_the_room_may_change_while_it_is_walked() -> None:
    """A walk sees the line as it stood when it began."""
    room = room_with("a", "b", "c")

    seen = []
    for ticket in room:
        seen.append(ticket)
        room.leave(ticket)
        room.enter(ticket + "'")

    assert seen == ["a", "b", "c"]
    assert list(room) == ["a'", "b'", "c'"]


def test_taking_passes_over_those_not_wanted() -> None:
    """Who is wanted goes, oldest first; the others stay as they stood."""
    room = room_with("a1", "b1", "a2", "b2")

    assert room.take(lambda ticket: ticket.startswith("a")) == ["a1", "a2"]
    assert list(room) == ["b1", "b2"]
    assert room.take(lambda _: False) == []
