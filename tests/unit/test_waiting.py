"""The waiting room: first come, first served, and no more than fit."""

from dataclasses import dataclass

import pytest

from proxy.core.waiting import WaitingRoom


@dataclass(frozen=True)
class Stand:
    """One who waits: a name, whose first letter is what it wants."""

    name: str

    @property
    def want(self) -> str:
        """Stands with the same letter want the same."""
        return self.name[0]


def room_with(*names: str, size: int = 9) -> WaitingRoom[Stand]:
    """Return a room in which stands of these names are, in that order."""
    room: WaitingRoom[Stand] = WaitingRoom(size)
    for name in names:
        room.enter(Stand(name))
    return room


def names(stands: object) -> list[str]:
    """The names of `stands`, in order."""
    assert isinstance(stands, WaitingRoom | list)
    return [stand.name for stand in stands]


def test_it_is_a_line() -> None:
    """Those inside are known, counted, and stand in the order in which they came."""
    room = room_with("b1", "a1", "b2", "c1", "a2")

    assert names(room) == ["b1", "a1", "b2", "c1", "a2"]
    assert len(room) == 5
    assert Stand("a1") in room
    assert Stand("z1") not in room


@pytest.mark.parametrize(("size", "inside", "full"), [(0, 0, True), (2, 1, False), (2, 2, True)])
def test_it_is_bounded(*, size: int, inside: int, full: bool) -> None:
    """It is full at its size; one of size 0 always is."""
    assert room_with(*map(str, range(inside)), size=size).full is full


def test_leaving_is_told_from_not_having_been_there() -> None:
    """One who leaves is gone, and cannot leave again."""
    room = room_with("a1", "b1", size=2)

    assert room.leave(Stand("a1")) is True
    assert names(room) == ["b1"]
    assert not room.full
    assert room.leave(Stand("a1")) is False


def test_those_behind_keep_their_order() -> None:
    """A place in the line that became free is nobody's: a newcomer stands at the end."""
    room = room_with("a1", "a2", "a3")
    room.leave(Stand("a2"))
    room.enter(Stand("a2"))

    assert names(room) == ["a1", "a3", "a2"]


def test_the_room_may_change_while_it_is_walked() -> None:
    """A walk sees the line as it stood when it began."""
    room = room_with("a1", "b1", "c1")

    seen = []
    for stand in room:
        seen.append(stand.name)
        room.leave(stand)
        room.enter(Stand(stand.name + "'"))

    assert seen == ["a1", "b1", "c1"]
    assert names(room) == ["a1'", "b1'", "c1'"]


def test_the_fronts_are_the_oldest_of_each_want() -> None:
    """Only they need be asked, oldest first; the next of the same want follows when one leaves."""
    room = room_with("b1", "a1", "b2", "c1", "a2")

    assert names(room.fronts()) == ["b1", "a1", "c1"]
    room.leave(Stand("b1"))
    assert names(room.fronts()) == ["a1", "b2", "c1"]
    room.leave(Stand("c1"))
    assert names(room.fronts()) == ["a1", "b2"]
    assert room_with().fronts() == []


def test_who_comes_again_stands_in_front() -> None:
    """Of all who came for the first time, and behind those who came again before."""
    room = room_with("a1")
    room.enter(Stand("b2"), again=True)
    room.enter(Stand("a3"))
    room.enter(Stand("c4"), again=True)
    assert names(room) == ["b2", "c4", "a1", "a3"]
    assert names(room.fronts()) == ["b2", "c4", "a1"]
