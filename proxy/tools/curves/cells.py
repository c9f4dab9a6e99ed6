"""Cells: runs of a closed loop on one server, as they were measured, and what may be taken of them.

Pure. What cannot be data is refused by the name of its cell; nothing is mended or left out in
silence.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, isfinite, log, sqrt
from statistics import fmean, median, median_low, stdev
from typing import Final, TypeAlias

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError

TimePerToken: TypeAlias = float
"""Seconds per output token of one request after its first token, by its usage (TPOT)."""

_FEWEST_REQUESTS: Final = 3
"""Of a cell: fewer say nothing of how much requests differ."""

_IMPOSSIBLE_RATE: Final = 1.3
"""By Little's law a cell's rate is at most in flight / TPOT. A quarter more is left for a short
window; beyond it, one of the three figures is wrong."""

_OUTLIER: Final = 3.0
"""Times the median of its cell: a request that is shown to people."""

_UNUSUAL: Final = 2.0
"""Times the usual scatter: from there on a cell is taken at its own word."""

_MAJORITY: Final = 2
"""One run against two, two against three: fewer than half may be set aside."""

RUN_NOISE: Final = 0.02
"""Of the time per token: how much a cell moves when it is measured again. What single servers show
between restarts is of this size, and repeated cells correct it."""

MISFIT_SIGMAS: Final = 4.0
MISFIT: Final = 0.2
"""A cell this far from its curve, and this much more than its own noise, is not understood. 5 % in
a rate moves a crossover by about 10 %."""


_SHIFTED: Final = 0.1
"""Of the time per token, as a logarithm, from which on a server is another one: as much in the
ratio of two moves a crossover by a quarter."""
_ALIKE: Final = 0.5
"""Of the change common to both: with less of it, a server has not followed."""


class BadDataError(SpecswitchError):
    """Cells from which nothing may be concluded; the message names the cell and what is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class CellId:
    """What a cell measures: a closed loop of so many sequences on one server."""

    server: UpstreamName
    loop: int

    def __str__(self) -> str:
        return f"{self.server} at {self.loop} in flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a closed loop on one server, the other one idle."""

    server: UpstreamName
    loop: int
    """Sequences that were to be kept in flight."""
    concurrency: float
    """Mean in flight while it was measured."""
    samples: tuple[TimePerToken, ...]
    """One of each request."""
    rate: float
    """Output tokens a second of all of them together while it was measured."""
    errors: int = 0
    """Requests that failed."""

    @property
    def id(self) -> CellId:
        """The name that runs of the same cell share."""
        return CellId(self.server, self.loop)


@dataclass(frozen=True, slots=True)
class Point:
    """A run as the fit takes it. Seconds are per output token."""

    id: CellId
    concurrency: float
    seconds: float
    """The mean of its requests: with outputs of one length it is what makes the rate."""
    scatter: float
    """Standard error of that mean by how requests differ, relative."""
    samples: tuple[float, ...]

    def sigma(self, run_noise: float) -> float:
        """Standard error by its requests and by `run_noise` of its runs, all relative."""
        return hypot(self.scatter, run_noise)


def outliers(cell: Cell) -> tuple[TimePerToken, ...]:
    """Requests that took more than three times as long as the median of their cell.

    They stay in: a mean without them would be of another server.
    """
    usual = median(cell.samples)
    return tuple(sample for sample in cell.samples if sample > _OUTLIER * usual)


def points(cells: Sequence[Cell]) -> tuple[Point, ...]:
    """The runs of one server as points, in the order of what was in flight.

    Raises:
        BadDataError: a cell with failed requests, too few of them, or figures that cannot be.
    """
    for cell in cells:
        _reject_bad(cell)
    return tuple(sorted((_point(cell) for cell in cells), key=lambda p: p.concurrency))


def _reject_bad(cell: Cell) -> None:
    if cell.errors:
        raise BadDataError(f"{cell.id}: {cell.errors} requests failed")
    if len(cell.samples) < _FEWEST_REQUESTS:
        raise BadDataError(f"{cell.id}: {len(cell.samples)} requests are too few")
    for sample in cell.samples:
        if not (isfinite(sample) and sample > 0.0):
            raise BadDataError(f"{cell.id}: {sample} seconds per output token")
    if not (isfinite(cell.concurrency) and cell.concurrency > 0.0):
        raise BadDataError(f"{cell.id}: a mean of {cell.concurrency} in flight")
    if not (isfinite(cell.rate) and cell.rate > 0.0):
        raise BadDataError(f"{cell.id}: {cell.rate} output tokens/s")
    possible = cell.concurrency / fmean(cell.samples)
    if cell.rate > _IMPOSSIBLE_RATE * possible:
        raise BadDataError(
            f"{cell.id}: {cell.rate:.0f} output tokens/s were counted, but {cell.concurrency:.1f}"
            f" in flight at {fmean(cell.samples):.4g} s per token make at most {possible:.0f}"
        )


def _point(cell: Cell) -> Point:
    seconds = fmean(cell.samples)
    scatter = stdev(cell.samples) / sqrt(len(cell.samples)) / seconds
    return Point(cell.id, cell.concurrency, seconds, scatter, cell.samples)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What several runs of the same cells say together."""

    kept: tuple[Point, ...]
    aside: tuple[Point, ...]
    """Runs that most runs of their cell contradict."""
    disputed: tuple[CellId, ...]
    """Cells whose runs contradict each other with no majority; they are kept."""


def agreement(measured: Sequence[Point]) -> Agreement:
    """Which runs to go by: each, unless two others of its cell say something else.

    Something else is 20 % away from the lower median, and 4 sigma.
    """
    aside: list[Point] = []
    disputed: list[CellId] = []
    for cell, runs in by_cell(measured).items():
        centre = median_low(run.seconds for run in runs)
        away = [run for run in runs if _apart(run, centre)]
        if away and _MAJORITY * len(away) < len(runs):
            aside += away
        elif away:
            disputed.append(cell)
    return Agreement(tuple(p for p in measured if p not in aside), tuple(aside), tuple(disputed))


def _apart(run: Point, centre: float) -> bool:
    return abs(run.seconds / centre - 1.0) > max(MISFIT, MISFIT_SIGMAS * run.sigma(RUN_NOISE))


def evened(measured: Sequence[Point]) -> tuple[Point, ...]:
    """The same points with the scatter that is usual for their server.

    How much requests differ is a trait of server and prompts, and 16 requests tell it badly: cells
    that happen to agree would weigh too much. Where the requests of a cell differ by more than
    twice the usual, that stands.
    """
    own = [point.scatter * sqrt(len(point.samples)) for point in measured]
    usual = median(own)
    stand = [spread if spread > _UNUSUAL * usual else usual for spread in own]
    return tuple(
        replace(point, scatter=spread / sqrt(len(point.samples)))
        for point, spread in zip(measured, stand, strict=True)
    )


def by_cell(measured: Sequence[Point]) -> dict[CellId, list[Point]]:
    """The runs of each cell, in the order of `measured`."""
    runs: dict[CellId, list[Point]] = defaultdict(list)
    for point in measured:
        runs[point.id].append(point)
    return runs


Shift: TypeAlias = Mapping[UpstreamName, float]
"""How much more time per token each server takes in later runs than in the first, relative."""


def shift(cells: Sequence[Cell]) -> Shift | None:
    """How far both servers changed their speed meanwhile; None where they did not, surely.

    By cells that were run more than once, in the order of `cells`. A disturbance hits one server,
    and its next run shows it; what hits both alike, and lasts, is the machine. Runs are compared as
    they are: prompts of others stop all of them alike.
    """
    moved = {name: _moved(cells, name) for name in UpstreamName}
    known = [found for found in moved.values() if found is not None]
    if len(known) < len(moved):
        return None
    weights = [sigma**-2 for _, sigma in known]
    common = sum(w * by for w, (by, _) in zip(weights, known, strict=True)) / sum(weights)
    alike = all(by / common > _ALIKE for by, _ in known) if common else False
    sure = abs(common) > max(_SHIFTED, MISFIT_SIGMAS * sum(weights) ** -0.5)
    if not (alike and sure):
        return None
    return {name: exp(by) - 1.0 for name, (by, _) in zip(moved, known, strict=True)}


def _moved(cells: Sequence[Cell], name: UpstreamName) -> tuple[float, float] | None:
    """Mean change of a server's time per token, as a logarithm, and its standard error."""
    runs: dict[CellId, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.server is name:
            runs[cell.id].append(cell)
    changes = [_change(*found) for found in runs.values() if len(found) > 1]
    if not changes:
        return None
    weight = sum(sigma**-2 for _, sigma in changes)
    return sum(by / sigma**2 for by, sigma in changes) / weight, weight**-0.5


def _change(first: Cell, *later: Cell) -> tuple[float, float]:
    """From the first run to the mean of the later ones."""
    rest = tuple(sample for cell in later for sample in cell.samples)
    sigma = hypot(_error(first.samples, 1), _error(rest, len(later)))
    return log(fmean(rest) / fmean(first.samples)), sigma


def _error(samples: Sequence[float], runs: int) -> float:
    """Relative standard error of a mean over requests of so many runs."""
    scatter = stdev(samples) / fmean(samples) / sqrt(len(samples))
    return hypot(scatter, RUN_NOISE / sqrt(runs))
