"""Cells of both servers to what is found: verdict, N*, λ*, how sure they are, and what is wanted.

Pure. Data that cannot be are refused, data that do not tell give `undecided` (see `verdict`), and
every interval is a 90 % one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from random import Random
from typing import Final

from proxy.calibration import Interval, Verdict
from proxy.core.curves import Prefill, Server
from proxy.core.words import UpstreamName
from proxy.sim.openloop import crossover_rate, expected_crossover_rate, saturation
from proxy.tools.curves.cells import shift
from proxy.tools.curves.fit import BadDataError, Cell, CellId, Fit, fit, outliers, points
from proxy.tools.curves.pairing import EDGE, Pairing, Spread, quantile, redrawn
from proxy.tools.curves.verdict import interval, judge

_RESAMPLES: Final = 400
"""Of the bootstrap: an end of a 90 % interval then rests on 20 of them."""

_LONE: Final = 2.0
"""A sweep starts at or below this: what a lone request gains is half of the question."""

_POOR_FIT: Final = 3.0
"""Chi-square per degree of freedom that is told."""

_BAND_STRIDE: Final = 2
"""Every other step is enough to draw."""

_ALL_QUIET: Final = 1e-9
"""Of a rate: what counts as none."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What besides the cells decides."""

    prefill: Mapping[UpstreamName, Prefill]
    caps: Mapping[UpstreamName, int | None]
    """Sequences that each runs at once; None for no bound."""
    lengths: Sequence[tuple[int, int]]
    """(prompt, output) tokens of the requests that λ* is for, each as long as it naturally gets.
    Empty: λ* stays unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a calibration found."""

    verdict: Verdict
    crossover: Interval | None
    """N*, sequences in flight; None unless the verdict is `crossover`."""
    rate: Interval | None
    """λ*, offered output tokens/s; likewise."""
    alone: Interval
    """X_spec / X_base with one sequence in flight."""
    crossings: tuple[float, ...]
    """Every number in flight at which the fitted curves meet, as far as was measured."""
    reach: float
    """The most in flight that was measured on both."""
    fits: Mapping[UpstreamName, Fit]
    servers: Mapping[UpstreamName, Server]
    """As λ* was computed for them."""
    bands: Mapping[UpstreamName, tuple[tuple[float, float, float], ...]]
    """(in flight, lower, upper end) of the seconds per output token, for plots."""
    notes: tuple[str, ...]
    """What a reader should know besides, a sentence each."""
    wanted: tuple[CellId, ...]
    """Cells that need more requests, or a first run; empty where that would not help."""


def more_needed(findings: Findings) -> Sequence[CellId]:
    """The cells to run next; empty where all is said, or where more of the same would not help."""
    return findings.wanted


def conclude(
    cells: Sequence[Cell], conditions: Conditions, *, random: Random, resamples: int = _RESAMPLES
) -> Findings:
    """The verdict on a pair.

    N* is where the curves cross, both free of prefill; λ* comes from a simulated open loop with the
    prefill in it, its interval from the same curves redrawn.

    Raises:
        BadDataError: cells from which nothing may be concluded; it names the cell.
    """
    pairing = Pairing(*(_fitted(cells, conditions, name) for name in UpstreamName))
    replicates = [redrawn(pairing, random) for _ in range(resamples)]
    spread = Spread.of(replicates)
    judged = judge(pairing, spread, shift(cells))
    servers = {name: _server(pairing.of(name), conditions, name) for name in UpstreamName}
    rate = None
    if judged.crossover is not None and conditions.lengths:
        rate = _rate(servers, replicates, conditions, random)
    return Findings(
        verdict=Verdict(kind=judged.kind, sentence=judged.sentence + _rate_sentence(rate)),
        crossover=judged.crossover,
        rate=rate,
        alone=interval(pairing.lead(1.0), spread.alone),
        crossings=tuple(crossing.in_flight for crossing in pairing.crossings()),
        reach=pairing.reach,
        fits={name: pairing.of(name) for name in UpstreamName},
        servers=servers,
        bands={name: _band(name, pairing, replicates) for name in UpstreamName},
        notes=tuple(_notes(cells, pairing)),
        wanted=judged.wanted,
    )


def _fitted(cells: Sequence[Cell], conditions: Conditions, name: UpstreamName) -> Fit:
    own = [cell for cell in cells if cell.server is name]
    if not own:
        raise BadDataError(f"{name}: no cells were measured")
    cap = conditions.caps[name]
    for cell in own:
        if cap is not None and cell.loop > cap:
            raise BadDataError(
                f"{cell.id}: the server runs {cap} at once, so some of these requests waited"
            )
    found = fit(points(own))
    if found.points[0].concurrency > _LONE:
        raise BadDataError(
            f"{found.points[0].id} is the smallest cell of {name}: measure a lone request as well"
        )
    return found


def _server(found: Fit, conditions: Conditions, name: UpstreamName) -> Server:
    """As an open loop sees it; speculation is kept below a jump, where it would be lost."""
    cap = conditions.caps[name]
    if name is UpstreamName.SPEC and found.jump is not None:
        cap = max(1, min(floor(found.jump.after), cap or floor(found.jump.after)))
    return Server(found.curve, conditions.prefill[name], cap)


def _rate(
    servers: Mapping[UpstreamName, Server],
    replicates: Sequence[Pairing],
    conditions: Conditions,
    random: Random,
) -> Interval:
    """λ* by simulation; its spread by the chain without noise, scaled to agree with it.

    At most what base can carry: beyond, no rate is offered for long.
    """
    spec, base = servers[UpstreamName.SPEC], servers[UpstreamName.BASE]
    lengths = conditions.lengths
    most = saturation(base, lengths)
    value = min(crossover_rate(spec, base, lengths, seed=random.getrandbits(32)), most)
    expected = expected_crossover_rate(spec, base, lengths)
    usable = _ALL_QUIET < expected < inf and _ALL_QUIET < value < most
    scale = value / expected if usable else 1.0
    redrawn_rates = sorted(
        min(scale * expected_crossover_rate(*_redrawn_servers(pairing, conditions), lengths), most)
        for pairing in replicates
    )
    return interval(value, redrawn_rates)


def _redrawn_servers(pairing: Pairing, conditions: Conditions) -> tuple[Server, Server]:
    spec, base = (_server(pairing.of(name), conditions, name) for name in UpstreamName)
    return spec, base


def _rate_sentence(rate: Interval | None) -> str:
    if rate is None:
        return ""
    if rate.value <= 0.0:
        return " In an open loop base is as fast from the lowest load on."
    return (
        f" By offered work: {rate.value:.0f} output tokens/s"
        f" (90 %: {rate.low:.0f} to {rate.high:.0f})."
    )


def _band(
    name: UpstreamName, pairing: Pairing, replicates: Sequence[Pairing]
) -> tuple[tuple[float, float, float], ...]:
    band = []
    for in_flight in pairing.steps()[::_BAND_STRIDE]:
        times = sorted(other.of(name).seconds_per_token(in_flight) for other in replicates)
        band.append((in_flight, quantile(times, EDGE), quantile(times, 1.0 - EDGE)))
    return tuple(band)


def _notes(cells: Sequence[Cell], pairing: Pairing) -> Sequence[str]:
    notes = [
        f"{cell.id}: {len(found)} of {len(cell.samples)} requests took more than three times the"
        f" median, up to {max(found):.4g} s per token; they are counted."
        for cell in cells
        if (found := outliers(cell))
    ]
    for name in UpstreamName:
        notes += _fit_notes(name, pairing.of(name))
    crossings = pairing.crossings()
    if len(crossings) > 1:
        places = ", ".join(f"{crossing.in_flight:.1f}" for crossing in crossings)
        notes.append(f"The curves meet more than once: at {places} in flight.")
    return notes


def _fit_notes(name: UpstreamName, found: Fit) -> Sequence[str]:
    notes = []
    if found.jump is not None:
        jump = found.jump
        share = jump.seconds / found.curve.seconds_per_token(jump.after)
        notes.append(
            f"{name}: time per token jumps by {share:.0%} between {jump.after:.0f} and"
            f" {jump.before:.0f} in flight, as it does above the largest CUDA graph."
        )
    notes += [
        f"{run.id}: a run with {run.seconds:.4g} s per token is left out, since most runs agree on"
        f" another time."
        for run in found.aside
    ]
    if found.chi_square > _POOR_FIT:
        notes.append(
            f"{name}: the curve holds poorly (chi-square {found.chi_square:.1f} per degree of"
            f" freedom); intervals are wider for it."
        )
    return notes
