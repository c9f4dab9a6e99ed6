"""`specswitch simulate`: policies side by side on simulated engines, as tables, JSON or a report.

The figures are made in `proxy/sim`; here they are asked for, and `tables.py` shows them.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from proxy.errors import ConfigError, SpecswitchError
from proxy.sim import traces
from proxy.sim.compare import Comparison, Plan, compare
from proxy.sim.knowledge import conversations, know
from proxy.sim.measures import (
    CONTENTION,
    LEAST_REQUESTS,
    LEAST_SEEDS,
    MEASURED_POLICIES,
    MEASURED_PROFILES,
    Measure,
    measures,
)
from proxy.sim.physics import PROFILES
from proxy.sim.policies import EngineKind, Policy, Setting, is_possible, play
from proxy.sim.run import Run
from proxy.sim.workloads import WORKLOADS, Workload, replay, requests
from proxy.tools import report
from proxy.tools.destination import reject_unwritable
from proxy.tools.progress import progress
from proxy.tools.simulate import tables

ALL: Final = "all"
"""Every profile, workload or policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for."""

    profiles: tuple[str, ...] = ("founding",)
    workloads: tuple[Workload, ...] = tuple(WORKLOADS.values())
    lengths: tuple[tuple[int, int], ...] = ()
    """(prompt, output) tokens of the trace that is replayed; empty: those of the workloads."""
    policies: tuple[Policy, ...] = tuple(Policy)
    engine: EngineKind = EngineKind.FLUID
    seeds: int = LEAST_SEEDS
    requests: int = 1500
    contention: float = CONTENTION
    processes: int = 0
    """0: one for each CPU."""
    measures: bool = False


def chosen(option: str, asked: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Those asked for, once each and in the order known; `all` is every one.

    Raises:
        ConfigError: a name that is none, with the option and the names that there are.
    """
    wrong = [name for name in asked if name not in known and name != ALL]
    if wrong:
        names = ", ".join([*known, ALL])
        raise ConfigError([(option, f"there is no {name}; there are {names}") for name in wrong])
    return tuple(name for name in known if ALL in asked or name in asked)


def with_trace(options: Options, path: Path) -> Options:
    """Replay the file at `path`, at its own speed, in place of the named workloads.

    Raises:
        SpecswitchError: it cannot be read, or has a bad line, which is named.
    """
    trace = traces.read(path)
    lengths = tuple((one.prompt_tokens, one.output_tokens) for one in trace)
    return replace(options, workloads=(replay(trace),), lengths=lengths)


def measured(options: Options) -> Options:
    """What the measures need, of at least the size that they are stated for."""
    return replace(
        options,
        profiles=MEASURED_PROFILES,
        workloads=tuple(WORKLOADS.values()),
        lengths=(),
        policies=MEASURED_POLICIES,
        contention=CONTENTION,
        engine=EngineKind.FLUID,
        seeds=max(options.seeds, LEAST_SEEDS),
        requests=max(options.requests, LEAST_REQUESTS),
        measures=True,
    )


def run(options: Options, *, report_to: Path | None, as_json: bool) -> int:
    """Simulate, show, and write the report; the exit code: 1 if a measure does not hold.

    Raises:
        SpecswitchError: the report cannot be made or written, or a request is too large.
    """
    if report_to is not None:
        report.require()
        reject_unwritable(report_to)
    comparisons = simulate(options, quiet=as_json)
    found = [one for each in comparisons for one in measures(each)] if options.measures else []
    if as_json:
        click.echo(json.dumps(tables.as_json(comparisons, found), allow_nan=False))
    else:
        _show(comparisons, found)
    if report_to is not None:
        _write(report_to, comparisons, found)
    return 0 if all(measure.holds for measure in found) else 1


def simulate(options: Options, *, quiet: bool) -> list[Comparison]:
    """One comparison for each profile; progress goes to standard error."""
    processes = options.processes or os.cpu_count() or 1
    plans = [_plan(options, profile) for profile in options.profiles]
    total = sum(plan.runs for plan in plans)
    console = Console(stderr=True)
    found: list[Comparison] = []
    with progress(console, total=total, what="simulating", quiet=quiet) as shown:
        for plan in plans:

            def done(workload: Workload, seed: int, plan: Plan = plan) -> None:
                note = f"{plan.setting.profile.name}, {workload.name}, seed {seed}"
                shown.step(len(plan.policies), note=note)

            found.append(compare(plan, processes=processes, done=done))
    return found


def _plan(options: Options, profile: str) -> Plan:
    chosen_profile = PROFILES[profile]
    setting = Setting(
        profile=chosen_profile,
        contention=options.contention,
        knowledge=know(chosen_profile, options.lengths or conversations()),
        engines=options.engine,
    )
    policies = tuple(one for one in options.policies if is_possible(one, options.engine))
    return Plan(
        setting=setting,
        policies=policies,
        workloads=options.workloads,
        seeds=options.seeds,
        requests=options.requests,
    )


def _show(comparisons: Sequence[Comparison], found: Sequence[Measure]) -> None:
    console = Console()
    if found:
        console.print(tables.measures_table(found))
        return
    for comparison in comparisons:
        for table in tables.compared(comparison):
            console.print(table)


def _write(path: Path, comparisons: Sequence[Comparison], found: Sequence[Measure]) -> None:
    """The report, with one run of ours shown over time for each profile."""
    shown = [(each, *_one_run(each)) for each in comparisons]
    text = report.html("specswitch simulate", tables.blocks(shown, found))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecswitchError(f"{path} cannot be written: {error.strerror}") from error


def _one_run(comparison: Comparison) -> tuple[Workload, Run] | tuple[None, None]:
    """The run of ours with the most switches: there is most to see in it."""
    plan = comparison.plan
    if Policy.SWITCH not in plan.policies:
        return None, None

    def switches(workload: Workload) -> float:
        return comparison.of(Policy.SWITCH, workload.name)[0].switches_per_minute

    busiest = max(plan.workloads, key=switches)
    arrivals = requests(busiest, plan.setting.profile, plan.requests, 0)
    return busiest, play(Policy.SWITCH, plan.setting, arrivals, seed=0)
