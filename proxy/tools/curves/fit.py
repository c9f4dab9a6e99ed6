"""Measured cells to the curve of one server: seconds per output token by what is in flight.

Pure: values in, values out. It refuses what cannot be data, shows what does not fit, and decides
nothing about the pair; `crossover` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import log, sqrt
from statistics import fmean, median
from typing import Final

from proxy.core.curves import Curve
from proxy.tools.curves.cells import (
    MISFIT,
    MISFIT_SIGMAS,
    RUN_NOISE,
    BadDataError,
    Cell,
    CellId,
    Point,
    agreement,
    by_cell,
    evened,
    outliers,
    points,
)
from proxy.tools.curves.squares import Squares

__all__ = [
    "BadDataError",
    "Cell",
    "CellId",
    "Fit",
    "Jump",
    "Point",
    "fit",
    "outliers",
    "points",
    "refit",
]

_RUN_NOISE_WEIGHT: Final = 4.0
"""Repetitions that `RUN_NOISE` counts as."""

_LEAST_FIXED: Final = 0.05
"""Of the shortest time per token: a step costs something however few are in it, so that a rate at
0 stays finite."""

_KNEE_COST: Final = 5.0
"""Of chi-square, for a curve that turns straight before the last cell: a little over 2 sigma. By
simulation: at 2 lines are taken for bent ones and N* of `founding` scatters by 7 %, not 5; with no
knees at all N* of `tree` is 7 % too high, not 2."""

_BELOW_A_KNEE: Final = 4
"""Levels that must show the bend; with fewer it is the noise of the first cells."""

_JUMP_COST: Final = 16.0
"""Of chi-square, 4 sigma: up to 10 gaps are tried, so that 3 would find jumps in noise."""

_LEAST_JUMP: Final = 0.15
"""Of the time per token. Above the largest CUDA graph it is far more."""

_BELOW_A_JUMP: Final = 3
"""Levels that must show what the curve was before it jumped."""

_TELLING: Final = 4
"""Levels up to which a curve fits as well without any one of them."""

_MOST_LEFT_OUT: Final = 3
"""More disturbed cells than these are no exception; then all that is off is named."""

_LEAST_SPAN: Final = 1.2
"""From the least to the most in flight; below it a slope is noise."""

_LINE: Final = 2
"""Concurrencies that a line needs, and its parameters."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A step up between two measured concurrencies, as above the largest CUDA graph."""

    after: float
    """The last concurrency below it."""
    before: float
    """The first one above it."""
    seconds: float
    """Its height, per output token."""

    @property
    def at(self) -> float:
        """Where it is taken to be: anywhere between is as likely."""
        return (self.after + self.before) / 2.0


@dataclass(frozen=True)
class Fit:
    """A server's curve and how well it holds."""

    curve: Curve
    jump: Jump | None
    points: tuple[Point, ...]
    run_noise: float
    """Relative: how much a cell moves when it is measured again."""
    aside: tuple[Point, ...] = ()
    """Runs left out: most runs of the same cell agree on another time."""
    disputed: tuple[CellId, ...] = ()
    """Cells whose runs do not agree, with no majority."""
    misfits: tuple[tuple[Point, float], ...] = ()
    """Points that no curve explains together with the others, and how far each is above theirs,
    relative."""

    def seconds_per_token(self, in_flight: float) -> float:
        """By curve and jump."""
        step = self.jump.seconds if self.jump is not None and in_flight > self.jump.at else 0.0
        return self.curve.seconds_per_token(in_flight) + step

    def residual(self, point: Point) -> float:
        """How far a point lies above its curve, relative."""
        return point.seconds / self.seconds_per_token(point.concurrency) - 1.0

    @cached_property
    def chi_square(self) -> float:
        """Per degree of freedom: about 1 where the curve holds; 1 where none is left over."""
        free = len(self.points) - len(_columns(_levels(self.points))) - (self.jump is not None)
        away = (self.residual(point) / point.sigma(self.run_noise) for point in self.points)
        return sum(sigmas * sigmas for sigmas in away) / free if free > 0 else 1.0

    def noise(self, point: Point) -> float:
        """By how much a run of this cell moves besides what its requests explain, relative.

        The noise between runs; and where the curve holds less well than that and the requests
        explain, as much more as makes up for it (Birge's ratio).
        """
        whole = max(1.0, self.chi_square) * point.sigma(self.run_noise) ** 2
        return sqrt(whole - point.scatter**2)

    @property
    def unexplained(self) -> float:
        """That of a typical cell: how far it is from the curve for no known reason."""
        return median(map(self.noise, self.points))

    def explains(self, point: Point) -> bool:
        """Whether a point is no further away than noise, or too little to count."""
        noise = MISFIT_SIGMAS * point.sigma(self.run_noise)
        return abs(self.residual(point)) <= max(MISFIT, noise)


def fit(measured: Sequence[Point]) -> Fit:
    """The curve through the points of one server: weighted least squares.

    Time per token never falls with what is in flight and is above 0. The curve bends up to `to`,
    which is the last cell or, where that fits better, a knee before it; a jump is added where the
    points leave no doubt.

    Of several runs of a cell one that the others contradict is set aside.

    Raises:
        BadDataError: fewer than two concurrencies.
    """
    _reject_a_dot(measured)
    agreed = agreement(evened(measured))
    noise = _run_noise(agreed.kept, agreed.disputed)
    found = _fit(agreed.kept, noise)
    return replace(
        found, aside=agreed.aside, disputed=agreed.disputed, misfits=tuple(_misfits(found))
    )


def _fit(measured: Sequence[Point], noise: float) -> Fit:
    observed = _weights(measured, noise, [point.seconds for point in measured])
    smooth = _weighed_again(measured, noise, _best_curve(measured, observed, None)[1], None)
    gap = _find_jump(measured, observed)
    if gap is None:
        return smooth
    _, curve, height = _best_curve(measured, observed, gap)
    return _weighed_again(measured, noise, curve, replace(gap, seconds=height))


def _weighed_again(measured: Sequence[Point], noise: float, curve: Curve, jump: Jump | None) -> Fit:
    """The fit with weights by a first curve: by the points themselves the low ones weigh more."""
    first = Fit(curve, jump, tuple(measured), noise)
    _, again, height = _best_curve(measured, _weights_by(first), jump)
    return replace(first, curve=again, jump=replace(jump, seconds=height) if jump else None)


def _weights_by(known: Fit) -> list[float]:
    expected = [known.seconds_per_token(point.concurrency) for point in known.points]
    return _weights(known.points, known.run_noise, expected)


def _weights(measured: Sequence[Point], noise: float, expected: Sequence[float]) -> list[float]:
    pairs = zip(measured, expected, strict=True)
    return [(point.sigma(noise) * seconds) ** -2 for point, seconds in pairs]


def _misfits(found: Fit) -> Sequence[tuple[Point, float]]:
    """What is not explained, one after the other.

    A disturbed cell bends the curve towards itself, so that others look wrong: it is the one
    without which the rest fits best.
    """
    misfits: list[tuple[Point, float]] = []
    while not all(map(found.explains, found.points)):
        if len(_levels(found.points)) <= _TELLING or len(misfits) == _MOST_LEFT_OUT:
            rest = [point for point in found.points if not found.explains(point)]
            return [*misfits, *((point, found.residual(point)) for point in rest)]
        others = [_without(found, point) for point in found.points]
        best = min(range(len(others)), key=lambda place: others[place].chi_square)
        misfits.append((found.points[best], others[best].residual(found.points[best])))
        found = others[best]
    return misfits


def _without(found: Fit, left_out: Point) -> Fit:
    return _fit([point for point in found.points if point is not left_out], found.run_noise)


def _reject_a_dot(measured: Sequence[Point]) -> None:
    levels = _levels(measured)
    where = measured[0].id if measured else "a server"
    if len(levels) < _LINE:
        raise BadDataError(f"{where}: a curve needs at least two concurrencies")
    if levels[-1] < _LEAST_SPAN * levels[0]:
        raise BadDataError(
            f"{where}: all cells had about the same in flight, {levels[0]:.2f} to {levels[-1]:.2f}"
        )


def refit(known: Fit, seconds: Sequence[float], jump_at: float) -> Fit:
    """The same fit to other times of its points: one replicate of a bootstrap.

    A jump stays in its gap; `jump_at`, 0 to 1, says where in it.
    """
    pairs = zip(known.points, seconds, strict=True)
    moved = tuple(replace(point, seconds=other) for point, other in pairs)
    jump = known.jump
    _, curve, height = _best_curve(moved, _weights_by(known), jump)
    if jump is not None:
        at = jump.after + jump_at * (jump.before - jump.after)
        jump = Jump(at, at, height)
    return replace(known, curve=curve, jump=jump, points=moved)


def _levels(measured: Sequence[Point]) -> list[float]:
    """The concurrencies measured, ascending; runs of one cell count once."""
    runs = by_cell(measured).values()
    return sorted(fmean(point.concurrency for point in found) for found in runs)


def _run_noise(measured: Sequence[Point], disputed: Sequence[CellId]) -> float:
    """By how much runs of the same cell differ beyond what their requests explain, relative.

    Disputed cells have no say: one disturbed run would make all others look uncertain.
    """
    excess, repetitions = 0.0, 0
    for cell, found in by_cell(measured).items():
        if cell in disputed:
            continue
        centre = fmean(log(point.seconds) for point in found)
        explained = fmean(point.scatter**2 for point in found)
        spread = sum((log(point.seconds) - centre) ** 2 for point in found)
        repetitions += len(found) - 1
        excess += spread - (len(found) - 1) * explained
    weight = _RUN_NOISE_WEIGHT
    return sqrt((weight * RUN_NOISE**2 + max(0.0, excess)) / (weight + repetitions))


def _columns(levels: Sequence[float]) -> tuple[int, ...]:
    """Parameters that so many concurrencies allow: two make a line, three a bend."""
    return (0, 1, 2) if len(levels) > _LINE else (0, 1)


def _knots(levels: Sequence[float]) -> list[float]:
    """Where a curve may turn straight: where the bend shows, or at the last one."""
    return [*levels[_BELOW_A_KNEE:-1], levels[-1]]


def _row(concurrency: float, to: float, columns: int) -> list[float]:
    """What 1 of each parameter adds to the time per token: the floor, the slope at 0, that at `to`.

    With slopes as parameters, never falling is no more than none below 0.
    """
    if columns == _LINE:
        return [1.0, concurrency]
    within = min(concurrency, to)
    square = within * within / (2.0 * to)
    return [1.0, within - square, square + concurrency - within]


def _best_curve(
    measured: Sequence[Point], weights: Sequence[float], jump: Jump | None
) -> tuple[float, Curve, float]:
    """(chi-square, curve, height of the jump) of the best among the places of the knee."""
    levels = _levels(measured)
    columns = len(_columns(levels))
    floor = _LEAST_FIXED * min(point.seconds for point in measured)
    wanted = [point.seconds - floor for point in measured]
    best: tuple[float, Curve, float] | None = None
    for to in _knots(levels):
        rows = [_row(point.concurrency, to, columns) for point in measured]
        if jump is not None:
            for row, point in zip(rows, measured, strict=True):
                row.append(float(point.concurrency > jump.at))
        chi_square, found = Squares.of(rows, wanted, weights).least_non_negative()
        chi_square += 0.0 if to == levels[-1] else _KNEE_COST
        if best is None or chi_square < best[0]:
            height = found[-1] if jump is not None else 0.0
            best = chi_square, _curve(found[:columns], floor, to), height
    if best is None:  # pragma: no cover - there is always a last level
        raise BadDataError("no concurrencies")
    return best


def _curve(found: Sequence[float], floor: float, to: float) -> Curve:
    if len(found) == _LINE:
        return Curve(floor + found[0], found[1], 0.0, to)
    return Curve(floor + found[0], found[1], (found[2] - found[1]) / (2.0 * to), to)


def _find_jump(measured: Sequence[Point], weights: Sequence[float]) -> Jump | None:
    """The gap in which a jump explains most, if it explains enough.

    Enough is against what remains unexplained, so that noise larger than thought makes no jumps.
    """
    levels = _levels(measured)
    without, _, _ = _best_curve(measured, weights, None)
    best, left = None, without
    for after, before in pairwise(levels[_BELOW_A_JUMP - 1 :]):
        gap = Jump(after, before, 0.0)
        chi_square, curve, height = _best_curve(measured, weights, gap)
        if chi_square < left and height > _LEAST_JUMP * curve.seconds_per_token(after):
            best, left = gap, chi_square
    free = max(1, len(measured) - len(_columns(levels)) - 1)
    return best if without - left > _JUMP_COST * max(1.0, left / free) else None
