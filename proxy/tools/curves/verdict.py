"""The verdict on two fitted curves: what the data allow to say, and which cells would allow more.

Pure, and honest before useful: a number comes out only where both curves hold, the servers stood
still, and speculation is surely ahead below it and surely behind above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from proxy.calibration import Interval, VerdictKind
from proxy.core.words import UpstreamName
from proxy.tools.curves.cells import CellId, Shift
from proxy.tools.curves.fit import Fit
from proxy.tools.curves.pairing import EDGE, Pairing, Spread, quantile

_SURE: Final = 0.95
"""The share of replicates that must agree on what kind of pair this is."""

_WORTH_IT: Final = 1.05
"""The lead of speculation below which it is not worth a second server."""

_WIDEST: Final = 2.0
"""Upper over lower end of N*. A threshold off by a quarter costs 3 % at most, off by two 10 %."""

_WIDEST_GAP: Final = 4.0
"""From one measured concurrency to the next around N*: a curve does not vouch for more."""

_POOREST_FIT: Final = 6.0
"""Chi-square per degree of freedom. With two degrees, the fewest of a sweep that ends early, chance
exceeds it once in 400 times."""

_MOST_UNEXPLAINED: Final = 0.05
"""What cells may be off their curve beyond their noise, relative: 5 % in a rate move N* by 10 to
13 %. A curve may be as wrong as that however exactly it was measured; intervals allow for it."""

_MOST_RUN_NOISE: Final = 0.1
"""What a cell may differ by when it is measured again. In simulated sweeps with as much, the 90 %
interval held N* in 70 % of them."""

_MOST_OFF: Final = 3
"""Cells of a poor curve that are measured again: the rest is then seen to be right or not."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What is said of a pair."""

    kind: VerdictKind
    sentence: str
    crossover: Interval | None = None
    wanted: tuple[CellId, ...] = ()
    """Cells that need more requests, or a first run; empty where that would not help."""


def judge(pairing: Pairing, spread: Spread, shift: Shift | None) -> Judged:
    """The first of these that the data allow; `shift` as `cells.shift` gives it."""
    return (
        _moved(shift)
        or _not_understood(pairing)
        or _poor(pairing)
        or _never_wins(pairing, spread)
        or _no_crossover(pairing, spread)
        or _crosses(pairing, spread)
        or _undecided(pairing, spread)
    )


def interval(value: float, ascending: Sequence[float]) -> Interval:
    """The middle 90 % of replicates, with the value in it."""
    low, high = quantile(ascending, EDGE), quantile(ascending, 1.0 - EDGE)
    return Interval(value=value, low=min(low, value), high=max(high, value))


def _moved(shift: Shift | None) -> Judged | None:
    """Servers that were not the same at the end as at the start."""
    if shift is None:
        return None
    spec, base = (_percent(1.0 + shift[name]) for name in UpstreamName)
    return Judged(
        VerdictKind.UNDECIDED,
        f"Undecided: both servers changed their speed meanwhile; measured again, time per token was"
        f" {spec} on spec and {base} on base. Clocks that rise or fall, heat, or other work on the"
        f" machine do that: wait until it is steady, and begin anew with --fresh.",
    )


def _not_understood(pairing: Pairing) -> Judged | None:
    """Cells that are off their curve, or whose runs contradict each other."""
    both = (pairing.spec, pairing.base)
    off = [(point.id, away) for fit in both for point, away in fit.misfits]
    said = [f"{cell} is {away:+.0%} off its curve" for cell, away in off]
    disputed = [cell for fit in both for cell in fit.disputed]
    said += [f"two runs of {cell} contradict each other" for cell in disputed]
    if not said:
        return None
    return Judged(
        VerdictKind.UNDECIDED,
        f"Undecided: {', '.join(said)}, more than noise explains. Was something else running?",
        wanted=tuple(sorted({*disputed, *(cell for cell, _ in off)})),
    )


def _poor(pairing: Pairing) -> Judged | None:
    """Curves that do not hold, however wide an interval is made for them."""
    bad = [name for name in UpstreamName if poor(pairing.of(name))]
    if not bad:
        return None
    said = " and ".join(_how_poor(name, pairing.of(name)) for name in bad)
    return Judged(
        VerdictKind.UNDECIDED,
        f"Undecided: {said}. No number can be taken from that. Was something else running, or is"
        f" an answer too short to measure? Keep the machine quiet, ask for more --output-tokens,"
        f" and begin anew with --fresh.",
        wanted=tuple(sorted(cell for name in bad for cell in _most_off(pairing.of(name)))),
    )


def poor(fit: Fit) -> bool:
    """Whether a curve holds too badly for anything to be concluded from it."""
    unlike = fit.chi_square > _POOREST_FIT and fit.unexplained > _MOST_UNEXPLAINED
    return unlike or fit.run_noise > _MOST_RUN_NOISE


def _how_poor(name: UpstreamName, fit: Fit) -> str:
    if fit.run_noise > _MOST_RUN_NOISE:
        return f"cells of {name} that were measured again differ by about {fit.run_noise:.0%}"
    return (
        f"no curve holds for {name}: beyond their noise its cells are off by about"
        f" {fit.unexplained:.0%} (chi-square {fit.chi_square:.1f} per degree of freedom)"
    )


def _most_off(fit: Fit) -> list[CellId]:
    """The cells that are furthest from the curve in shares of their noise, each once."""
    by_distance = sorted(
        fit.points, key=lambda p: abs(fit.residual(p)) / p.sigma(fit.run_noise), reverse=True
    )
    return list(dict.fromkeys(point.id for point in by_distance))[:_MOST_OFF]


def _never_wins(pairing: Pairing, spread: Spread) -> Judged | None:
    """Not alone, where it should win most; unless it does so clearly later."""
    upper = quantile(spread.alone, 1.0 - EDGE)
    if upper >= _WORTH_IT:
        return None
    alone = f"{_percent(pairing.lead(1.0))} (90 %: at most {_percent(upper)})"
    if quantile(spread.best, EDGE) > _WORTH_IT:
        starts = next((c.in_flight for c in pairing.crossings() if not c.ends_lead), 1.0)
        return Judged(
            VerdictKind.UNDECIDED,
            f"Undecided: speculation changes the rate of a lone request by {alone}, but is ahead"
            f" from about {starts:.1f} in flight on: the reverse of what speculation does. Are the"
            f" two URLs swapped? A model with experts can be so; one crossover cannot describe it.",
        )
    return Judged(
        VerdictKind.NEVER_WINS,
        f"Speculation never wins: it changes the rate of a lone request by {alone}, and a second"
        f" server should bring {_percent(_WORTH_IT)}. Run base alone.",
    )


def _no_crossover(pairing: Pairing, spread: Spread) -> Judged | None:
    if spread.lasting < _SURE:
        return None
    gain = _percent(pairing.lead(pairing.reach))
    return Judged(
        VerdictKind.NO_CROSSOVER,
        f"No crossover up to {pairing.reach:.0f} in flight, where speculation still gains {gain}."
        f" Below that you need no base server.",
    )


def _crosses(pairing: Pairing, spread: Spread) -> Judged | None:
    ends = [crossing.in_flight for crossing in pairing.crossings() if crossing.ends_lead]
    if spread.crossing < _SURE or not ends:
        return None
    found = interval(ends[0], spread.first)
    if found.high > _WIDEST * found.low or _gap(pairing, found.value) > _WIDEST_GAP:
        return None
    if not spread.parts(found.value):
        return None
    return Judged(
        VerdictKind.CROSSOVER,
        f"Crossover at {found.value:.1f} in flight (90 %: {found.low:.1f} to {found.high:.1f}):"
        f" speculation below, base above.",
        found,
    )


def _undecided(pairing: Pairing, spread: Spread) -> Judged:
    low, high = quantile(spread.first, EDGE), quantile(spread.first, 1.0 - EDGE)
    if quantile(spread.alone, EDGE) <= 1.0:
        loops = _loops(pairing)[:2]
        where = "which may be none"
    else:
        loops = _bracket(pairing, quantile(spread.first, 0.5))
        where = f"but where that ends is not clear: between {low:.1f} and {high:.1f} in flight"
        where += ", if at all" if spread.lasting > EDGE else ""
    return Judged(
        VerdictKind.UNDECIDED,
        f"Undecided: speculation changes the rate of a lone request by"
        f" {_percent(pairing.lead(1.0))}, {where}. More requests are needed at"
        f" {_listed(loops)} in flight.",
        wanted=tuple(CellId(name, loop) for name in UpstreamName for loop in loops),
    )


def _listed(loops: Sequence[int]) -> str:
    *others, last = map(str, loops)
    return f"{', '.join(others)} and {last}"


def _bracket(pairing: Pairing, in_flight: float) -> list[int]:
    """The loops next to a number in flight; one between, if they are far apart."""
    low, high = _neighbours(pairing, in_flight)
    if high > _WIDEST_GAP * low:
        return [low, round((low * high) ** 0.5), high]
    return [low, high]


def _gap(pairing: Pairing, in_flight: float) -> float:
    low, high = _neighbours(pairing, in_flight)
    return high / low


def _neighbours(pairing: Pairing, in_flight: float) -> tuple[int, int]:
    """The loops just below and above; at an end, the last two."""
    loops = _loops(pairing)
    above = next((place for place, loop in enumerate(loops) if loop > in_flight), len(loops) - 1)
    above = max(1, above)
    return loops[above - 1], loops[above]


def _loops(pairing: Pairing) -> list[int]:
    """What was measured on both servers, or, where they share too little, on any."""
    spec, base = ({point.id.loop for point in fit.points} for fit in (pairing.spec, pairing.base))
    return sorted(spec & base) if len(spec & base) > 1 else sorted(spec | base)


def _percent(lead: float) -> str:
    return f"{lead - 1.0:+.0%}" if isfinite(lead) else "?"
