"""From what was measured to what is concluded: N*, λ*, verdict, contention, long prompts. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import sqrt
from random import Random
from statistics import fmean
from typing import Final, Literal

from proxy import __version__, calibration
from proxy.calibration import Calibration, Contention, Interval, LongContext, Workload
from proxy.core.curves import Prefill
from proxy.core.fingerprint import fingerprint_of
from proxy.core.words import UpstreamName
from proxy.tools.calibrate import prefill as calibrate_prefill
from proxy.tools.calibrate.cells import Measurement, Part, Place, in_flight, step_seconds
from proxy.tools.calibrate.state import Scalar, State
from proxy.tools.curves import crossover
from proxy.tools.curves.cells import BadDataError, Cell
from proxy.tools.curves.crossover import Conditions, Findings, more_needed
from proxy.tools.curves.fit import fit, points
from proxy.tools.curves.pairing import Pairing, Spread, quantile, redrawn
from proxy.tools.curves.verdict import interval
from proxy.tools.doctor.server_info import ServerInfo
from proxy.tools.prompts import Prompt

_SEPARATE: Final = 1.4
"""The sum of relative rates from which both servers at once beat one at a time: by simulation the
break-even is at 1.3 to 1.4, see docs/policy.md."""
_HINDERED: Final = 0.8
"""Below it two processes waste a fifth of the GPU on each other: time slicing without MPS."""
_MOVED: Final = 2.0
"""A factor on N* that a single threshold does not cover: off by two costs up to 10 %."""
_SURE: Final = 0.95
_ONE_SIDED: Final = 1.64
"""Standard errors below which the truth is once in twenty times."""
_LEVELS_FOR_A_LINE: Final = 2

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """All that follows from a state."""

    findings: Findings
    state: State
    infos: Mapping[UpstreamName, ServerInfo]
    prefill: Mapping[UpstreamName, Prefill]
    cells: tuple[Cell, ...]
    """Of the sweep, as they were fitted."""
    workload: Workload
    contention: Contention | None = None
    long_context: LongContext | None = None
    notes: tuple[str, ...] = ()

    @property
    def more(self) -> tuple[Place, ...]:
        """Cells to be measured again, or at all, before it can be decided."""
        return tuple(
            Place(Part.SWEEP, cell.server, cell.loop) for cell in more_needed(self.findings)
        )

    @property
    def levels(self) -> list[int]:
        """Concurrencies that were measured on both servers."""
        own = {name: {c.loop for c in self.cells if c.server is name} for name in UpstreamName}
        return sorted(own[SPEC] & own[BASE])

    @property
    def contention_level(self) -> int:
        """Where both servers are run at once: the measured concurrency nearest to N*.

        Where there is none, the middle of what was measured: busy, and not saturated.
        """
        found = self.findings.crossover
        if found is None:
            return self.levels[len(self.levels) // 2]
        return min(self.levels, key=lambda level: abs(level - found.value))

    def long_levels(self, tokens: int, output_tokens: int) -> tuple[int, ...]:
        """N*/2, N* and 2 N*, as far as prompts of so many tokens fit; empty if too few do."""
        found = self.findings.crossover
        if found is None or tokens <= 0:
            return ()
        wanted = sorted({max(1, round(found.value * factor)) for factor in (0.5, 1.0, 2.0)})
        most = min((_room(info, tokens + output_tokens) for info in self.infos.values()), default=0)
        fitting = tuple(level for level in wanted if level <= most)
        return fitting if len(fitting) >= _LEVELS_FOR_A_LINE else ()

    def file(self, conditions: Mapping[str, Scalar]) -> Calibration:
        """The file."""
        found = self.findings
        notes = " ".join(f"{note.rstrip('.')}." for note in self.notes) or None
        return Calibration(
            created=datetime.fromisoformat(self.state.created),
            specswitch=__version__,
            verdict=found.verdict,
            crossover=calibration.Crossover(
                in_flight=found.crossover, tokens_per_second=found.rate
            ),
            servers=calibration.Servers(spec=self._server(SPEC), base=self._server(BASE)),
            contention=self.contention,
            long_context=self.long_context,
            workload=self.workload,
            conditions={**conditions, "notes": notes},
        )

    def _server(self, name: UpstreamName) -> calibration.Server:
        known = self.findings.servers[name]
        curve, prefill = known.curve, known.prefill
        sweep = list(self.state.of(Part.SWEEP, name))
        lengths = [m.acceptance_length for m in sweep if m.acceptance_length is not None]
        return calibration.Server(
            fingerprint=dict(fingerprint_of(self.infos[name].identity)),
            decode=calibration.Decode(
                fixed=curve.fixed,
                per_sequence=curve.per_sequence,
                bend=curve.bend,
                to=curve.to,
            ),
            prefill=calibration.Prefill(fixed=prefill.fixed, per_token=prefill.per_token),
            cap=known.cap,
            acceptance_length=fmean(lengths) if lengths else None,
            cells=tuple(self._cell(found) for found in sweep),
        )

    def _cell(self, found: Measurement) -> calibration.Cell:
        return calibration.Cell(
            concurrency=in_flight(found, self.prefill[found.place.server]),
            requests=len(found.measured),
            tokens_per_second=found.rate,
            seconds_per_token=found.seconds_per_token,
            first_token_seconds=found.first_token_seconds,
        )


def conclude(
    state: State,
    *,
    infos: Mapping[UpstreamName, ServerInfo],
    prompts: Sequence[Prompt],
    seed: int,
    resamples: int,
    rate: bool = True,
) -> Conclusion:
    """What follows from `state` so far; without λ*, which takes seconds, where `rate` is false.

    Raises:
        BadDataError: nothing may be concluded from it; says which cell and why.
    """
    prefill = {name: calibrate_prefill.fit(name, state.filled[name]) for name in UpstreamName}
    cells = tuple(
        _cell(found, prefill) for name in UpstreamName for found in state.of(Part.SWEEP, name)
    )
    lengths = _lengths(state, prompts)
    caps = {name: infos[name].identity.cap for name in UpstreamName}
    findings = crossover.conclude(
        cells,
        Conditions(prefill=prefill, caps=caps, lengths=lengths if rate else ()),
        random=Random(seed),  # noqa: S311 - a bootstrap that can be repeated
        resamples=resamples,
    )
    begun = Conclusion(
        findings=findings,
        state=state,
        infos=infos,
        prefill=prefill,
        cells=cells,
        workload=_workload(state, prompts, lengths),
        notes=(*state.notes, *findings.notes),
    )
    contention, both_notes = _contention(state, findings)
    long_context, long_notes = _long_context(begun, Random(seed), resamples)  # noqa: S311 - again
    notes = (*begun.notes, *long_notes, *both_notes)
    return replace(begun, contention=contention, long_context=long_context, notes=notes)


_NOT_SURE: Final = (
    "by their sum both servers at once are worth it, but runs differ too much to build on that"
)
_HINDRANCE: Final = (
    "both servers at once do less than 80 % of what one does alone: run them under NVIDIA MPS, "
    "above all with tensor parallelism"
)


def _cell(found: Measurement, prefill: Mapping[UpstreamName, Prefill]) -> Cell:
    own = prefill[found.place.server]
    return Cell(
        server=found.place.server,
        loop=found.place.concurrency,
        concurrency=in_flight(found, own),
        samples=tuple(step_seconds(found, own)),
        rate=found.rate,
    )


def _lengths(state: State, prompts: Sequence[Prompt]) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each prompt whose answer's length is known.

    Prompts are as long as the server counted them, where one was sent.
    """
    counted = {
        each.prompt: each.prompt_tokens
        for found in state.cells
        if found.place.part is Part.SWEEP
        for each in found.requests
        if each.prompt_tokens is not None
    }
    natural = state.natural or {}
    outputs = {i: p.output_tokens or natural.get(i) for i, p in enumerate(prompts)}
    return [
        (counted.get(i) or prompts[i].tokens, output)
        for i, output in outputs.items()
        if output is not None
    ]


def _workload(
    state: State, prompts: Sequence[Prompt], lengths: Sequence[tuple[int, int]]
) -> Workload:
    told = sum(prompt.output_tokens is not None for prompt in prompts)
    source = f"{told} prompts with the length of their answers"
    if state.natural:
        source += f", {len(state.natural)} answers measured"
    return Workload(
        prompt_tokens=fmean(prompt for prompt, _ in lengths),
        output_tokens=fmean(output for _, output in lengths),
        source=source,
    )


def _contention(state: State, findings: Findings) -> tuple[Contention | None, tuple[str, ...]]:
    """Both rates at once in shares of each alone, added, and what to say of it."""
    total, variance, level = 0.0, 0.0, 0
    for name in UpstreamName:
        every = list(state.of(Part.BOTH, name))
        level = every[-1].place.concurrency if every else 0
        both = [m for m in every if m.place.concurrency == level]
        alone = state.rounds(Place(Part.SWEEP, name, level))
        if not alone:
            return None, ()
        share = fmean(m.rate for m in both) / fmean(m.rate for m in alone)
        noise = findings.fits[name].unexplained
        total += share
        variance += (share * noise) ** 2 * (1.0 / len(both) + 1.0 / len(alone))
    separate = total - _ONE_SIDED * sqrt(variance) >= _SEPARATE
    topology: Literal["shared", "separate"] = "separate" if separate else "shared"
    notes = (_NOT_SURE,) if total >= _SEPARATE and not separate else ()
    if total < _HINDERED:
        notes = (_HINDRANCE,)
    return Contention(concurrency=float(level), sum=total, topology=topology), notes


_FARTHER = (
    "speculation stays ahead for more than twice as long, as far as was measured: where such "
    "prompts are the rule, calibrate with prompts like them"
)
_NEARER = (
    "speculation stops to pay at less than half of N*: eligibility.max_spec_prompt_tokens keeps "
    "such prompts on base"
)


def _long_context(
    begun: Conclusion, random: Random, resamples: int
) -> tuple[LongContext | None, tuple[str, ...]]:
    """N* with long prompts, where those were measured, and what to say of it."""
    measured = [found for name in UpstreamName for found in begun.state.of(Part.LONG, name)]
    usual = begun.findings.crossover
    if not measured or usual is None:
        return None, ()
    try:
        pairing = _paired([_cell(found, begun.prefill) for found in measured])
    except BadDataError as error:
        return None, (f"nothing is concluded for long prompts: {error}",)
    tokens = fmean(m.prompt_tokens for m in measured)
    spread = Spread.of([redrawn(pairing, random) for _ in range(resamples)])
    found = _crossing(pairing, spread)
    moves = _moves(spread, found, usual.value)
    if moves is None:
        return None, (f"with prompts of {tokens:.0f} tokens it is not clear where the curves meet",)
    ahead = found.value > usual.value if found is not None else spread.lasting >= _SURE
    note = f"with prompts of {tokens:.0f} tokens {_FARTHER if ahead else _NEARER}"
    return (
        LongContext(prompt_tokens=tokens, crossover=found, moves=moves),
        (note,) if moves else (),
    )


def _paired(cells: Sequence[Cell]) -> Pairing:
    fits = {
        name: fit(points([cell for cell in cells if cell.server is name])) for name in UpstreamName
    }
    return Pairing(fits[SPEC], fits[BASE])


def _crossing(pairing: Pairing, spread: Spread) -> Interval | None:
    ends = [crossing.in_flight for crossing in pairing.crossings() if crossing.ends_lead]
    return interval(ends[0], spread.first) if ends else None


def _moves(spread: Spread, found: Interval | None, usual: float) -> bool | None:
    """Whether N* is beyond a factor of two; None where that is not clear.

    Where it was not found, one of the two is ahead throughout, up to twice the usual N*.
    """
    if found is not None:
        apart = not usual / _MOVED <= found.value <= usual * _MOVED
        return apart and not found.low <= usual <= found.high
    if spread.lasting >= _SURE:
        return True
    behind = quantile(spread.first, _SURE) <= 1.0
    return usual > _MOVED if behind else None


def _room(info: ServerInfo, tokens: int) -> int:
    """Sequences of so many tokens that a server runs at once; 0 if its context is too short."""
    context = info.context_length
    # Half the context: how many tokens a text has is known to within a half only.
    if context is not None and tokens > context // 2:
        return 0
    bounds = [info.identity.cap, None if info.kv_tokens is None else info.kv_tokens // tokens]
    return min((bound for bound in bounds if bound is not None), default=1024)
