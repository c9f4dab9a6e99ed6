"""Sizes and counts as they are typed and shown: `80GiB`, `16GB`, `8B`."""

from re import compile as pattern
from typing import Final

GIB: Final = 2**30
MIB: Final = 2**20

_BYTES: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 2**40,
}
_FACTORS: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SIZE: Final = pattern(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMGT]i?B|B)")
_COUNT: Final = pattern(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMBT]?)")
_MOST: Final = 2**50
"""A pebibyte, or as many parameters: no model and no GPU comes near."""
_SHOWN: Final = 40


def size(text: str) -> int:
    """Bytes, from `80GiB` (2^30 each), `16GB` (10^9 each) or the like; may be 0.

    Raises:
        ValueError: it is none; the message is a part of a sentence.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'must be a size such as "80GiB" or "16GB", is {_cut(text)}')
    return _bounded(float(match[1]) * _BYTES[match[2]])


def some(text: str) -> int:
    """The same, of what there must be.

    Raises:
        ValueError: it is none, or 0.
    """
    return _positive(size(text))


def count(text: str) -> int:
    """A number of parameters, from `8B`, `70.6B`, `500M` or digits.

    Raises:
        ValueError: it is none, or 0.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'must be a number such as "8B" or "500M", is {_cut(text)}')
    return _positive(_bounded(float(match[1]) * _FACTORS[match[2]]))


def gib(amount: float) -> str:
    """Bytes in GiB with one digit; two below 10."""
    value = amount / GIB
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004 - one digit more


def gigabytes(amount: float) -> str:
    """Bytes in GB, as data sheets and model pages count them."""
    return f"{amount / 10**9:.1f} GB"


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError("must be more than 0")
    return value


def _bounded(value: float) -> int:
    if value > _MOST:
        raise ValueError("must be less than a million GiB")
    return round(value)


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
