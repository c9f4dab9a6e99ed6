"""How a value is written: in the environment, in a message, in the file."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, time
from enum import StrEnum
from re import compile as pattern
from typing import Final


class Kind(StrEnum):
    """The form of a value, as the documentation names it."""

    INTEGER = "whole number"
    NUMBER = "number"
    SECONDS = "seconds"
    SIZE = "size"
    FLAG = "true or false"
    WORD = "word"
    CAP = "whole number or auto"
    NUMBER_OR_AUTO = "number or auto"
    HOST = "host"
    HOSTS = "list of hosts"
    ORIGINS = "list of origins"
    URL = "URL"
    PATH = "URL path"
    FILE = "file"
    FILE_NAME = "file name"
    SECRET = "secret"  # noqa: S105 - the name of a kind
    KEYS = "table of keys"

    @property
    def private(self) -> bool:
        """Whether a value of this kind may hold a secret, even by mistake, and is not repeated."""
        return self in {Kind.SECRET, Kind.KEYS, Kind.URL, Kind.FILE}


_SHOWN_CHARACTERS: Final = 40
_SHOWN_NUMBER: Final = 10**18
"""Python refuses to write integers of more than 4,300 digits, and nobody wants to read one."""

_FORMS: Final = (
    ((int, float), "a number"),
    (str, "text"),
    (dict, "a table"),
    ((list, tuple), "a list"),
    ((date, time), "a date or time"),
)


def form(value: object) -> str:
    """What `value` is, without what it says."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return next((name for types, name in _FORMS if isinstance(value, types)), "nothing of TOML")


def shown(value: object) -> str:
    """`value` as a message repeats it: short and on one line."""
    match value:
        case bool():
            return form(value)
        case int() if abs(value) >= _SHOWN_NUMBER:
            return "a number of more than 18 digits"
        case int() | float():
            return repr(value)
        case str():
            fits = len(value) <= _SHOWN_CHARACTERS
            return json.dumps(value if fits else f"{value[:_SHOWN_CHARACTERS]}...")
        case _:
            return form(value)


_INTEGER = pattern(r"[+-]?[0-9]{1,18}")
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def from_text(kind: Kind, text: str) -> object:
    """The value that `text` of an environment variable stands for.

    What cannot be read stays text, so that the check of its key says what it must be.
    """
    bare = text.strip()
    match kind:
        case Kind.INTEGER | Kind.CAP | Kind.SIZE:
            return int(bare) if _INTEGER.fullmatch(bare) else text
        case Kind.NUMBER | Kind.SECONDS | Kind.NUMBER_OR_AUTO:
            with suppress(ValueError):
                return float(bare)
            return text
        case Kind.FLAG:
            return _FLAGS.get(bare.lower(), text)
        case Kind.HOSTS | Kind.ORIGINS:
            return [part.strip() for part in text.split(",")] if bare else []
        case _:
            return text


_UNITS: Final = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}
_SIZE = pattern(r"([0-9]{1,15}) ?([KMG]iB|B)")


def size_from_text(text: str) -> int:
    """Bytes, from `64MiB` or the like; raises ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'must be a size in B, KiB, MiB or GiB such as "64MiB", is {shown(text)}')
    return int(match[1]) * _UNITS[match[2]]


def size_text(size: int) -> str:
    """`size` bytes in the largest unit that holds it without a fraction."""
    unit = next(unit for unit, factor in _UNITS.items() if size % factor == 0)
    return f"{size // _UNITS[unit]}{unit}"


def toml(kind: Kind, value: object) -> str:
    """`value` of a key of this kind as the file writes it; a secret stays hidden."""
    if kind is Kind.SIZE and isinstance(value, int):
        return f'"{size_text(value)}"'
    if value is None:
        return '""'
    # What JSON writes for these values is TOML as well.
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, default=str)
