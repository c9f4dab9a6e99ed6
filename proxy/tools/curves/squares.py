"""Small least-squares problems with coefficients that may not be below 0.

In plain Python: a handful of coefficients, and no numpy for one command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul
from typing import Final

_SINGULAR: Final = 1e-10
"""Of a column's own square: what is left of it is rounding."""


@dataclass(frozen=True, slots=True)
class Squares:
    """A least-squares problem, boiled down: chi-square is x'Gx - 2 m'x + y."""

    gram: list[list[float]]
    moments: list[float]
    constant: float

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[float]], wanted: Sequence[float], weights: Sequence[float]
    ) -> "Squares":
        """For rows of what each coefficient adds, the values they should give, and weights."""
        columns = list(zip(*rows, strict=True))
        weighted = [list(map(mul, weights, column)) for column in columns]
        gram = [[_dot(one, other) for other in columns] for one in weighted]
        moments = [_dot(one, wanted) for one in weighted]
        constant = _dot(list(map(mul, weights, wanted)), wanted)
        return cls(gram, moments, constant)

    def at(self, found: Sequence[float]) -> float:
        """Chi-square of these coefficients."""
        quadratic = sum(x * _dot(row, found) for x, row in zip(found, self.gram, strict=True))
        return quadratic - 2.0 * _dot(self.moments, found) + self.constant

    def least(self, chosen: Sequence[int]) -> list[float] | None:
        """Of the coefficients `chosen`, all others 0; None where they cannot be told apart."""
        matrix = [[*(self.gram[i][j] for j in chosen), self.moments[i]] for i in chosen]
        size = len(chosen)
        for turn in range(size):
            pivot = matrix[turn][turn]
            if pivot <= _SINGULAR * self.gram[chosen[turn]][chosen[turn]]:
                return None
            for lower in matrix[turn + 1 :]:
                factor = lower[turn] / pivot
                for place in range(turn, size + 1):
                    lower[place] -= factor * matrix[turn][place]
        found = [0.0] * size
        for turn in reversed(range(size)):
            row = matrix[turn]
            known = sum(row[place] * found[place] for place in range(turn + 1, size))
            found[turn] = (row[size] - known) / row[turn]
        return found

    def least_non_negative(self) -> tuple[float, list[float]]:
        """(chi-square, coefficients), none below 0, by trying all sets of those above it.

        At most four coefficients: 16 sets.
        """
        count = len(self.moments)
        best = self.constant, [0.0] * count
        for size in range(count, 0, -1):
            for chosen in combinations(range(count), size):
                found = self.least(chosen)
                if found is None or min(found) < 0.0:
                    continue
                whole = [0.0] * count
                for place, value in zip(chosen, found, strict=True):
                    whole[place] = value
                best = min(best, (self.at(whole), whole))
            if size == count and any(best[1]):
                return best  # no bound is touched, so no other set does better
        return best


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Of vectors of one length. Most of a calibration's time is spent in it: no generator."""
    total: float = sum(map(mul, left, right))
    return total
