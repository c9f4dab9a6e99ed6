"""`specswitch calibrate`: options and help; the work is in `proxy/tools/calibrate/run.py`."""

import sys
from pathlib import Path

import click

from proxy.commands.keys import NOTE, admin_token, key_of
from proxy.errors import ConfigError, SpecswitchError

_EPILOG = """\b
Exit codes:
  0    concluded, whatever the verdict; the calibration file is written
  1    a server failed, or what was measured allows no conclusion, or the
       specswitch of --reload does not go by it; it says why
  2    wrong usage
  3    undecided: the file is written, and serve stays on base with it; run it
       again for more
  130  interrupted; the same command goes on from there
"""


def _levels(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Numbers with commas between."""
    if value is None:
        return None
    try:
        levels = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers, like 1,2,4,8") from None
    if min(levels) < 1:
        raise click.BadParameter("a concurrency is at least 1")
    if len(set(levels)) < 2:  # noqa: PLR2004 - a curve
        raise click.BadParameter("at least two different concurrencies are needed")
    return levels


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    short_help="Measure both servers, and find where speculation stops to pay.",
    epilog=_EPILOG + NOTE,
)
@click.option(
    "--spec-url",
    metavar="URL",
    default="http://127.0.0.1:30001",
    show_default=True,
    help="The server with speculation.",
)
@click.option(
    "--base-url",
    metavar="URL",
    default="http://127.0.0.1:30000",
    show_default=True,
    help="The server without.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("calibration.json"),
    show_default=True,
    help="The file for `specswitch serve --calibration`; beside it, ending in .partial, what was "
    "measured so far.",
)
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML report here."
)
@click.option(
    "--reload",
    metavar="URL",
    help="Afterwards, have the specswitch with this admin listener go by it: POST /admin/reload, "
    "with the token in SPECSWITCH_AUTH_ADMIN_TOKEN. Its policy.calibration must be this file.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help='JSON lines: {"messages": [...], "max_tokens": N} or {"prompt": "..."}. Take those of '
    "your users: acceptance depends on the text. max_tokens is how long the answer is in real "
    "life, which is measured where it is missing.  [built in]",
)
@click.option(
    "--concurrency",
    "levels",
    callback=_levels,
    metavar="A,B,C",
    help="Requests in flight to measure at, as far as both servers run them.  "
    "[1,2,3,4,6,8,12,16,24,32,48,64]",
)
@click.option(
    "--output-tokens",
    default=128,
    show_default=True,
    type=click.IntRange(16, 100_000),
    help="Of each measured request, with ignore_eos.",
)
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0.0, 2.0),
    help="Of the requests; a high one lowers acceptance.",
)
@click.option("--whole", is_flag=True, help="Sweep to the end, also where the crossing is clear.")
@click.option(
    "--contention/--no-contention", default=True, show_default=True, help="Run both at once, too."
)
@click.option(
    "--long-tokens",
    default=4096,
    show_default=True,
    type=click.IntRange(0),
    help="Prompts of the long-context check; 0 leaves it out.",
)
@click.option("--force", is_flag=True, help="Measure although doctor finds errors.")
@click.option("--fresh", is_flag=True, help="Discard what an earlier, unfinished run has measured.")
@click.option("--seed", default=0, show_default=True, help="Of the order of prompts.")
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0.0, min_open=True),
    metavar="S",
    help="For each request as a whole.",
)
@click.option("--json", "as_json", is_flag=True, help="The calibration on standard output.")
def calibrate(*, as_json: bool, levels: tuple[int, ...] | None, **given: object) -> None:
    """Measure both servers, and find where speculation stops to pay.

    \b
      specswitch calibrate --out calibration.json --report report.html
      specswitch serve --calibration calibration.json

    It checks the pair as `specswitch doctor` does, says how long it will take (some minutes), and
    measures each server alone, at one concurrency after the other, then both at once, then with
    long prompts. Keep all other traffic away meanwhile: a server that has other work is noticed,
    and nothing is concluded beside it.

    What comes out is N*, the sequences in flight at which both servers give the same total rate,
    and the crossover rate, the offered output tokens/s at which requests take equally long on both;
    each with a 90 % interval. Or, as honestly, that there is no crossover, or that speculation
    never wins. docs/calibration.md explains how to read it.

    It goes on where it was stopped: by Ctrl-C, or by a server that died.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    import time  # noqa: PLC0415 - `--help` need not wait for these

    import uvloop  # noqa: PLC0415 - the same
    from rich.console import Console  # noqa: PLC0415 - the same

    from proxy.calibration import dump  # noqa: PLC0415 - the same
    from proxy.tools.calibrate import run  # noqa: PLC0415 - the same
    from proxy.tools.calibrate.plan import LEVELS  # noqa: PLC0415 - the same
    from proxy.tools.calibrate.report import show  # noqa: PLC0415 - the same

    given |= {"spec_api_key": key_of("spec"), "base_api_key": key_of("base")}
    given["admin_token"] = admin_token()
    options = run.Options(levels=levels or LEVELS, **given)  # type: ignore[arg-type]  # click's own names and types
    console = Console(stderr=True)
    try:
        outcome = uvloop.run(
            run.calibrate(options, clock=time.monotonic, console=console, quiet=as_json)
        )
    except ConfigError as error:
        click.echo(f"specswitch: {error}", err=True)
        sys.exit(2)
    except SpecswitchError as error:
        click.echo(f"specswitch: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    if as_json:
        click.echo(dump(outcome.calibration), nl=False)
    else:
        show(outcome.calibration, Console())
    sys.exit(outcome.exit_code)
