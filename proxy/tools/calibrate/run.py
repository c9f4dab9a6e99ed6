"""`specswitch calibrate`: measure both servers, and conclude where their curves cross.

    outcome = await calibrate(options, clock=time.monotonic, console=console)
    outcome.exit_code  # 0 concluded, 3 undecided; it raises SpecswitchError where it refuses

Every step is written down as soon as it is measured; a run that is stopped, or whose server dies,
goes on from there when it is started again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from proxy.calibration import Calibration, VerdictKind, dump
from proxy.core.fingerprint import fingerprint_of
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools import prompts as prompt_lists
from proxy.tools import report as reports
from proxy.tools.asking import connect, model_of
from proxy.tools.calibrate import handover
from proxy.tools.calibrate.conclusion import Conclusion, conclude
from proxy.tools.calibrate.plan import LEVELS, Plan, fitting, sweep_seconds
from proxy.tools.calibrate.report import blocks
from proxy.tools.calibrate.servers import Side, Sides
from proxy.tools.calibrate.state import (
    Scalar,
    State,
    StateError,
    digest,
    path_of,
    resumed,
    save,
)
from proxy.tools.calibrate.steps import Manner, Steps
from proxy.tools.destination import reject_unwritable, write
from proxy.tools.doctor.diagnosis import Severity
from proxy.tools.doctor.examine import examine
from proxy.tools.doctor.server_info import ServerInfo
from proxy.tools.progress import duration, progress
from proxy.tools.prompts import Prompt

_REFINEMENTS: Final = 2
"""Times that cells beside the crossing are measured again: each halves their share of the noise by
about a third, and policy.md's Monte Carlo finds little left to gain after that."""

_LONG_TOKENS: Final = 4096
_BESIDES: Final = 1.3
"""The whole in shares of the sweep, by how it went on simulated pairs: prefill, both at once, long
prompts."""
_CONCLUDED, _UNDECIDED = 0, 3

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure and how."""

    spec_url: str
    base_url: str
    out: Path
    spec_api_key: str | None = None
    base_api_key: str | None = None
    prompts: Path | None = None
    """None for the built-in ones."""
    levels: tuple[int, ...] = LEVELS
    """Concurrencies."""
    output_tokens: int = 128
    """Of each measured request."""
    temperature: float = 0.0
    report: Path | None = None
    reload: str | None = None
    """The admin listener of the specswitch that is to go by it."""
    admin_token: str | None = None
    """Its token."""
    force: bool = False
    """Measure although doctor finds errors."""
    fresh: bool = False
    """Discard what an earlier run has measured."""
    whole: bool = False
    """Sweep all levels, also where the crossing is clear before."""
    contention: bool = True
    long_tokens: int = _LONG_TOKENS
    """Tokens of the prompts of the long-context check; 0 to leave it out."""
    seed: int = 0
    timeout: float = 600.0
    """Seconds for one request."""
    patience: float = 30.0
    """Seconds for a server to become idle."""
    most_late: float = 0.05
    """The share of an answer's time by which our own loop may be late."""
    prefill_tokens: tuple[int, ...] | None = None
    """Prompt lengths for the prefill, if not those that fit the context."""
    resamples: int = 400
    """Of the bootstrap."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    calibration: Calibration
    conclusion: Conclusion
    state: State

    @property
    def exit_code(self) -> int:
        """0 with any verdict but undecided, which is 3."""
        undecided = self.calibration.verdict.kind is VerdictKind.UNDECIDED
        return _UNDECIDED if undecided else _CONCLUDED


async def calibrate(
    options: Options, *, clock: Callable[[], float], console: Console, quiet: bool = False
) -> Outcome:
    """Measure, conclude, and write the file (and the report); progress goes to `console`.

    Raises:
        SpecswitchError: the servers are no pair, a request failed, or nothing may be concluded from
            what was measured. What was measured until then is kept. Or the specswitch that is to
            go by it does not.
    """
    _reject_lost_work(options)
    if options.reload is not None:
        await handover.reload(options.reload, token=options.admin_token)
    prompts = (
        prompt_lists.builtin() if options.prompts is None else prompt_lists.read(options.prompts)
    )
    servers = await _examined(options, clock, console)
    path = path_of(options.out)
    try:
        async with _connected(options, servers) as sides:
            plan = _plan(options, sides)
            state = _state(options, sides, plan, prompts)
            outcome = await _run(
                _Task(options, sides, prompts, plan, state), clock, console, quiet=quiet
            )
    except (SpecswitchError, asyncio.CancelledError) as error:
        if isinstance(error, StateError) or not path.exists():
            raise
        hint = f"what was measured is kept in {path}: the same command goes on from there"
        if isinstance(error, SpecswitchError):
            raise SpecswitchError(f"{error}\n{hint}") from error
        console.print(hint, markup=False, highlight=False, soft_wrap=True)
        raise
    _write(options, outcome)
    if options.reload is not None:
        await _hand_over(options, options.reload, outcome, console)
    else:
        _say(console, f"{options.out} is written; a specswitch that runs reads it at a reload")
    return outcome


async def _hand_over(options: Options, url: str, outcome: Outcome, console: Console) -> None:
    try:
        await handover.hand_over(url, outcome.calibration, token=options.admin_token)
    except SpecswitchError as error:
        raise SpecswitchError(f"{error}\n{options.out} is written all the same") from error
    _say(console, f"the specswitch at {url} goes by it now")


def _reject_lost_work(options: Options) -> None:
    """Raise SpecswitchError where a result could not be written: before the work, not after."""
    if options.report is not None:
        reports.require()
    for path in (options.out, options.report):
        reject_unwritable(path)


@dataclass(frozen=True, slots=True)
class _Task:
    """What one run is about."""

    options: Options
    sides: Sides
    prompts: Sequence[Prompt]
    plan: Plan
    state: State


async def _examined(
    options: Options, clock: Callable[[], float], console: Console
) -> Mapping[UpstreamName, ServerInfo]:
    """Both servers as doctor reads them; raises SpecswitchError where they make no pair."""
    report = await examine(
        options.spec_url,
        options.base_url,
        spec_api_key=options.spec_api_key,
        base_api_key=options.base_api_key,
        clock=clock,
    )
    errors = report.of(Severity.ERROR)
    listed = "\n".join(f"{each.server or 'both'}: {each.what}" for each in errors)
    if len(report.servers) < len(UpstreamName):
        raise SpecswitchError(listed)
    if errors and not options.force:
        raise SpecswitchError(
            f"{listed}\nspecswitch doctor says what to change; --force measures all the same"
        )
    for each in (*errors, *report.of(Severity.WARNING)):
        console.print(f"doctor: {each.what}", markup=False, highlight=False, soft_wrap=True)
    return report.servers


@asynccontextmanager
async def _connected(
    options: Options, servers: Mapping[UpstreamName, ServerInfo]
) -> AsyncIterator[Sides]:
    spec = connect(options.spec_url, api_key=options.spec_api_key, timeout=options.timeout)
    base = connect(options.base_url, api_key=options.base_api_key, timeout=options.timeout)
    async with spec, base:
        yield {
            name: Side(servers[name], client, servers[name].served_model or await model_of(client))
            for name, client in ((SPEC, spec), (BASE, base))
        }


def _plan(options: Options, sides: Sides) -> Plan:
    """The levels that both servers can run; raises SpecswitchError where too few are left."""
    caps = [side.cap for side in sides.values() if side.cap is not None]
    levels = fitting(options.levels, most=min(caps, default=None))
    if len(levels) < 2:  # noqa: PLR2004 - a curve needs two points
        raise SpecswitchError(
            f"of the concurrencies {', '.join(map(str, options.levels))} both servers run "
            f"{len(levels)}: the spec server takes {sides[SPEC].cap}, base {sides[BASE].cap}"
        )
    return Plan(levels=levels, output_tokens=options.output_tokens)


def _state(options: Options, sides: Sides, plan: Plan, prompts: Sequence[Prompt]) -> State:
    """What an earlier run has left, or nothing yet; raises SpecswitchError if it is of others."""
    subject: dict[str, Scalar] = {
        "concurrencies": ",".join(map(str, plan.levels)),
        "output_tokens": options.output_tokens,
        "temperature": options.temperature,
        "prompts": digest(repr(prompt.messages).encode() for prompt in prompts),
        "seed": options.seed,
        "spec url": options.spec_url,
        "base url": options.base_url,
    }
    for name, side in sides.items():
        found = fingerprint_of(side.info.identity)
        subject |= {f"{name} {key}": value for key, value in found.items()}
    path = path_of(options.out)
    if options.fresh:
        path.unlink(missing_ok=True)
    state = resumed(path, subject)
    return state or State(subject=subject, created=datetime.now(UTC).isoformat(timespec="seconds"))


async def _run(
    task: _Task, clock: Callable[[], float], console: Console, *, quiet: bool
) -> Outcome:
    options, state = task.options, task.state
    begun, before = clock(), state.seconds

    def keep() -> None:
        state.seconds = before + clock() - begun
        save(path_of(options.out), state)

    steps = Steps(
        sides=task.sides,
        prompts=task.prompts,
        manner=_manner(options),
        state=state,
        keep=keep,
        clock=clock,
    )
    if not quiet:
        _say(console, "guessing how long it takes")
    await steps.pace()
    total = _BESIDES * sweep_seconds(task.plan, state.paces)
    if not quiet:
        resuming = f", {duration(before)} of it done before" if before else ""
        _say(console, f"about {duration(total)} at most{resuming}")
    with progress(console, total=total, what="calibrating", quiet=quiet, clock=clock) as shown:
        steps.progress = shown
        return await _measure(task, steps)


def _manner(options: Options) -> Manner:
    return Manner(
        output_tokens=options.output_tokens,
        temperature=options.temperature,
        seed=options.seed,
        patience=options.patience,
        most_late=options.most_late,
        prefill_tokens=options.prefill_tokens,
    )


async def _measure(task: _Task, steps: Steps) -> Outcome:
    """All steps, and what follows from them."""
    options, state = task.options, task.state
    await steps.prefill()
    await steps.natural()
    await steps.sweep(task.plan, whole=options.whole)
    await steps.again(task.plan)
    conclusion = _concluded(task, rate=False)
    for _ in range(_REFINEMENTS):
        if not conclusion.more:
            break
        for place in conclusion.more:
            await steps.alone(place, rounds=len(state.rounds(place)) + 1)
        conclusion = _concluded(task, rate=False)
    if options.contention:
        await steps.both(conclusion.contention_level)
    levels = conclusion.long_levels(options.long_tokens, options.output_tokens)
    if levels:
        await steps.long(levels, options.long_tokens)
    conclusion = _concluded(task, rate=True)
    return Outcome(conclusion.file(conditions(task)), conclusion, state)


def _concluded(task: _Task, *, rate: bool) -> Conclusion:
    return conclude(
        task.state,
        infos={name: side.info for name, side in task.sides.items()},
        prompts=task.prompts,
        seed=task.options.seed,
        resamples=task.options.resamples,
        rate=rate,
    )


def conditions(task: _Task) -> dict[str, Scalar]:
    """How it was measured, for people who read the file."""
    options, state = task.options, task.state
    late = max((found.late_seconds for found in state.cells), default=0.0)
    found: dict[str, Scalar] = {
        "begun": state.created,
        "seconds": round(state.seconds, 1),
        "prompts": str(options.prompts or "built in"),
        "prompt_digest": state.subject.get("prompts"),
        "concurrencies": state.subject.get("concurrencies"),
        "output_tokens": options.output_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
        "requests": sum(len(found.requests) for found in state.cells),
        "latest_look_at_clock_seconds": round(late, 6),
    }
    return found | {
        f"{name}_{key}": value
        for name, side in task.sides.items()
        for key, value in (("url", side.info.url), ("sglang", side.info.version))
    }


def _write(options: Options, outcome: Outcome) -> None:
    write(options.out, dump(outcome.calibration).encode())
    if options.report is not None:
        page = reports.html(
            "specswitch calibration", blocks(outcome.calibration, outcome.conclusion)
        )
        write(options.report, page.encode())
    if outcome.exit_code == _CONCLUDED:  # an undecided one goes on from where it is
        path_of(options.out).unlink(missing_ok=True)


def _say(console: Console, text: str) -> None:
    console.print(f"calibrating: {text}", markup=False, highlight=False, soft_wrap=True)
