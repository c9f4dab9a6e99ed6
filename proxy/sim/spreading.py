"""How a router in front of several pairs spreads requests over them, by what each has in flight.

Those are the rules of routers that people have (docs/scaling.md says which is whose), and packing,
which none of them has: it fills one pair before the next gets anything. None looks at prompts:
prefix caches are not in the simulation.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random

Choose = Callable[[Sequence[int]], int]
"""The number of the pair that a request goes to, by the sequences in flight on each."""


class Spreading(StrEnum):
    """A rule."""

    POWER_OF_TWO = "power-of-two"
    """The one with less in flight, of two that are drawn."""
    LEAST = "least"
    """One of those with the least in flight."""
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    PACK = "pack"
    """The first that has fewer than so many in flight; where none has, as LEAST."""


def chooser(spreading: Spreading, *, random: Random, bound: float) -> Choose:
    """The rule at work; `bound` is how many sequences packing gives a pair before the next.

    Raises:
        ValueError: `bound` is below one sequence.
    """
    if bound < 1.0:
        raise ValueError(f"a pair takes at least one sequence, not {bound}")
    match spreading:
        case Spreading.POWER_OF_TWO:
            return lambda in_flight: _fewer_of_two(in_flight, random)
        case Spreading.LEAST:
            return lambda in_flight: _least(in_flight, random)
        case Spreading.RANDOM:
            return lambda in_flight: random.randrange(len(in_flight))
        case Spreading.ROUND_ROBIN:
            return _round_robin()
        case Spreading.PACK:
            return lambda in_flight: _pack(in_flight, bound, random)


def _fewer_of_two(in_flight: Sequence[int], random: Random) -> int:
    if len(in_flight) == 1:
        return 0
    return min(random.sample(range(len(in_flight)), 2), key=in_flight.__getitem__)


def _least(in_flight: Sequence[int], random: Random) -> int:
    """By lot among equals: the first of them would be packing where little is in flight."""
    least = min(in_flight)
    return random.choice([pair for pair, count in enumerate(in_flight) if count == least])


def _round_robin() -> Choose:
    turn = -1

    def choose(in_flight: Sequence[int]) -> int:
        nonlocal turn
        turn = (turn + 1) % len(in_flight)
        return turn

    return choose


def _pack(in_flight: Sequence[int], bound: float, random: Random) -> int:
    for pair, count in enumerate(in_flight):
        if count + 1 <= bound:
            return pair
    return _least(in_flight, random)
