"""`specswitch simulate`: options and help; the work is in `proxy/tools/simulate/run.py`."""

import sys
from pathlib import Path

import click

from proxy.errors import ConfigError, SpecswitchError

_EPILOG = """\b
Exit codes:
  0    done; with --measures: every measure holds
  1    a trace or a report could not be read or written, or a measure does not
       hold
  2    wrong usage
  130  interrupted
"""


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    if value != value:  # noqa: PLR0124 - NaN passes every range
        raise click.BadParameter("nan is no number")
    return value


def _reject_both(*, measures: bool, chosen: bool) -> None:
    if measures and chosen:
        raise click.UsageError("--measures chooses profiles, workloads and policies by itself")


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    short_help="The controller on simulated engines, beside other policies.",
    epilog=_EPILOG,
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME",
    help="founding, tree, chain, or all. May be given several times.  [founding]",
)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="One of the named workloads, or all (14 of them); a wrong name lists them. "
    "May be given several times.  [all]",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="switch (ours), count-only, hysteresis-quarter, hysteresis-half, static, spill-half, "
    "spill, always-spec, always-base, ideal, ideal-10, or all. May be given several times.  [all]",
)
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(1, 1000), help="Runs of each."
)
@click.option(
    "--requests",
    default=1500,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="In each run.",
)
@click.option(
    "--contention",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0.0, 2.0, min_open=True),
    callback=_number,
    metavar="ETA",
    help="What both engines reach together, in shares of one alone: 0.65 poor time slicing, "
    "0.9 time slicing, 1.1 MPS, 2 two GPUs.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replay this file of arrivals (docs/model.md has the formats) instead of --workload.",
)
@click.option(
    "--engine",
    default="fluid",
    show_default=True,
    type=click.Choice(["fluid", "steps"]),
    help="How the engines are simulated: rates between events, or step by step (slow; no ideal).",
)
@click.option(
    "--processes",
    default=0,
    show_default=True,
    type=click.IntRange(0, 256),
    help="How many work at a time; 0: one for each CPU.",
)
@click.option(
    "--measures", is_flag=True, help="Only what docs/policy.md promises, with its bounds."
)
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML report here."
)
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def simulate(  # noqa: PLR0913 - one for each option
    *,
    profiles: tuple[str, ...],
    workloads: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int,
    requests: int,
    contention: float,
    trace: Path | None,
    engine: str,
    processes: int,
    measures: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """Simulate: the controller in virtual time, on the same arrivals as other policies.

    \b
      specswitch simulate --profile founding --workload all
      specswitch simulate --workload bursts --policy switch --policy always-base
      specswitch simulate --trace arrivals.csv --report out.html
      specswitch simulate --measures

    What decides is the code that serves, unchanged; only engines and time are simulated
    (docs/model.md). `ideal` is one engine that switches speculation at every step, which no router
    can reach. Trust the order of policies, not the seconds.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    from proxy.sim.physics import PROFILES  # noqa: PLC0415 - `--help` need not wait for it
    from proxy.sim.policies import EngineKind, Policy  # noqa: PLC0415 - the same
    from proxy.sim.workloads import WORKLOADS  # noqa: PLC0415 - the same
    from proxy.tools.simulate import run  # noqa: PLC0415 - the same

    chosen = bool(workloads or profiles or policies)
    _reject_both(measures=measures, chosen=chosen or trace is not None)
    if trace is not None and workloads:
        raise click.UsageError("--trace takes the place of --workload; give one of the two")
    try:
        names = run.chosen("--workload", workloads or [run.ALL], list(WORKLOADS))
        options = run.Options(
            profiles=run.chosen("--profile", profiles or ["founding"], list(PROFILES)),
            workloads=tuple(WORKLOADS[name] for name in names),
            policies=tuple(
                Policy(name) for name in run.chosen("--policy", policies or [run.ALL], list(Policy))
            ),
            engine=EngineKind(engine),
            seeds=seeds,
            requests=requests,
            contention=contention,
            processes=processes,
        )
        if measures:
            options = run.measured(options)
        elif trace is not None:
            options = run.with_trace(options, trace)
        code = run.run(options, report_to=report, as_json=as_json)
    except ConfigError as error:
        for path, message in error.findings:
            click.echo(f"{path}: {message}", err=True)
        code = 2
    except SpecswitchError as error:
        click.echo(f"specswitch: {error}", err=True)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
