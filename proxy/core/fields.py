"""JSON from a server, where any field may be missing or of any type: both mean unknown."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

_LARGEST: Final = 2**53
"""Beyond it a float no longer holds every whole number, and no count of ours is real."""


class Fields:
    """An object of JSON that may hold anything; what has the wrong type is unknown."""

    __slots__ = ("_values",)

    def __init__(self, value: object = None) -> None:
        self._values: Mapping[str, object] = value if isinstance(value, dict) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __bool__(self) -> bool:
        return bool(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, name: str) -> str | None:
        """A string that is not empty."""
        value = self._values.get(name)
        return value if isinstance(value, str) and value else None

    def count(self, name: str) -> int | None:
        """A whole number from 0."""
        return _count(self._values.get(name))

    def amount(self, name: str) -> float | None:
        """A finite number from 0."""
        return _amount(self._values.get(name))

    def number(self, name: str) -> float | None:
        """A finite number."""
        return _number(self._values.get(name))

    def counts(self, name: str) -> list[int]:
        """The whole numbers of a list."""
        value = self._values.get(name)
        found = [_count(each) for each in value] if isinstance(value, list) else []
        return [each for each in found if each is not None]

    def amounts(self, name: str) -> list[float | None]:
        """The numbers from 0 of a list, each in its place."""
        value = self._values.get(name)
        return [_amount(each) for each in value] if isinstance(value, list) else []

    def flag(self, name: str) -> bool | None:
        """True, false, or unknown."""
        value = self._values.get(name)
        return value if isinstance(value, bool) else None

    def within(self, name: str) -> "Fields":
        """The object below `name`, also where it is written as a string of JSON."""
        value = self._values.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        return Fields(value)

    def many(self, name: str) -> list["Fields"]:
        """The objects of a list."""
        value = self._values.get(name)
        return [Fields(each) for each in value] if isinstance(value, list) else []

    def canonical(self, name: str) -> str | None:
        """The value as text that is equal for equal values; None where there is no such field."""
        if name not in self._values:
            return None
        return json.dumps(self._values[name], sort_keys=True, ensure_ascii=False)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST else None


def _amount(value: object) -> float | None:
    number = _number(value)
    return None if number is None or number < 0 else number


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _LARGEST else None  # never true of NaN


NOTHING: Final = Fields()
"""An object without fields."""
