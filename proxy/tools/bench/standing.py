"""How endpoints stand to one another: figures of each, and ratios to the first. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Final

import msgspec

from proxy.tools.asking import Sample
from proxy.tools.bench.load import Shot, Volley
from proxy.tools.bench.objective import (
    Figures,
    Objective,
    Ratio,
    end_to_end_of,
    figures,
    first_token_of,
    marks,
    per_token_of,
    ratio,
    values,
)
from proxy.tools.bench.watching import Watched, both_active_share, per_minute

VERSION: Final = 1
"""Of the JSON; a change that a reader has to know of raises it."""


@dataclass(slots=True)
class Cell:
    """One endpoint at one rate: what was sent, and what came of it."""

    endpoint: str
    rate: float | None
    """Requests a second; None: a trace as it was recorded."""
    fired: list[tuple[Sequence[Shot], Volley]] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Of one endpoint to the first one, over the requests that ended well at both."""

    to: str
    end_to_end: Ratio | None
    first_token: Ratio | None
    per_token: Ratio | None
    met: Ratio | None
    """Of the shares that met the objective."""
    tokens_per_second: float | None
    """Of the rates over the whole, which have no interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What there is to say of one endpoint at one rate."""

    endpoint: str
    rate: float | None
    figures: Figures
    switches_per_minute: float | None
    both_active_share: float | None
    admin_missed: int
    """Times that its admin listener did not answer."""
    ratios: Ratios | None
    """None for the first endpoint."""

    @property
    def good(self) -> bool:
        """Whether something was measured and no request failed; being full is no failure."""
        return self.figures.ok > 0 and self.figures.failed == 0


def standings(cells: Sequence[Cell], objective: Objective, random: Random) -> list[Standing]:
    """Return how each stands to the first of its rate, in the order of `cells`."""
    first: dict[float | None, Cell] = {}
    for cell in cells:
        first.setdefault(cell.rate, cell)
    return [_standing(cell, first[cell.rate], objective, random) for cell in cells]


def is_good(found: Sequence[Standing]) -> bool:
    """Whether something was measured everywhere and no request failed."""
    return bool(found) and all(one.good for one in found)


def as_json(found: Sequence[Standing], conditions: object, *, interrupted: bool) -> str:
    """Return one object: the conditions and every standing; what is unknown is null."""
    whole = {
        "version": VERSION,
        "interrupted": interrupted,
        "conditions": conditions,
        "results": [asdict(one) for one in found],
    }
    return msgspec.json.encode(whole).decode()


def _standing(cell: Cell, first: Cell, objective: Objective, random: Random) -> Standing:
    return Standing(
        endpoint=cell.endpoint,
        rate=cell.rate,
        figures=figures(cell.fired, objective),
        switches_per_minute=per_minute(cell.watched),
        both_active_share=both_active_share(cell.watched),
        admin_missed=sum(one.missed for one in cell.watched),
        ratios=None if cell is first else _ratios(cell, first, objective, random),
    )


def _ratios(cell: Cell, first: Cell, objective: Objective, random: Random) -> Ratios:
    def of(value: Callable[[Sample], float | None]) -> Ratio | None:
        return ratio(values(cell.fired, value), values(first.fired, value), random)

    ours = figures(cell.fired, objective).tokens_per_second
    theirs = figures(first.fired, objective).tokens_per_second
    return Ratios(
        to=first.endpoint,
        end_to_end=of(end_to_end_of),
        first_token=of(first_token_of),
        per_token=of(per_token_of),
        met=ratio(marks(cell.fired, objective), marks(first.fired, objective), random),
        tokens_per_second=ours / theirs if ours is not None and theirs else None,
    )
