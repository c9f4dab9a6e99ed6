"""`specswitch bench`: options and help; the work is in `proxy/tools/bench/run.py`."""

import sys
from math import inf
from pathlib import Path

import click

from proxy.commands.keys import keys_of_endpoints
from proxy.errors import ConfigError, SpecswitchError

_EPILOG = """\b
Exit codes:
  0    done, and every request that the servers took ended well
  1    a request failed, an endpoint was not there or answered none, or a file
       could not be read or written; refusals (429, 503) are counted apart and
       are no failure
  2    wrong usage
  130  interrupted; what was measured until then is shown
"""
_WORKLOADS = ("poisson", "burst", "rare-burst", "square", "diurnal", "ladder", "trace")


def _seconds(_: click.Context, __: click.Parameter, value: float) -> float:
    if not 0.0 < value < inf:
        raise click.BadParameter(f"{value:g} is no time; give seconds above 0")
    return value


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    short_help="Open-loop load on running endpoints, side by side.",
    epilog=_EPILOG,
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    required=True,
    metavar="[NAME=]URL",
    help="What to measure; several are compared with the first.",
)
@click.option(
    "--admin-url",
    "admin_urls",
    multiple=True,
    metavar="NAME=URL",
    help="The admin listener of an endpoint that is a specswitch, for switches and both-active.",
)
@click.option(
    "--workload",
    type=click.Choice(_WORKLOADS),
    help="How requests arrive; docs/model.md has the figures. ladder is Poisson at each of "
    "--rates.  [poisson; trace with --trace]",
)
@click.option(
    "--rate",
    type=float,
    metavar="R",
    help="Requests a second, on average, to each endpoint. Needed for all but a trace.",
)
@click.option("--rates", metavar="A,B,C", help="Several of them, one after the other.")
@click.option(
    "--requests",
    default=200,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="To each endpoint at each rate.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replay this file of arrivals and lengths (docs/model.md has the formats); without "
    "--rate at its own pace.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False),
    help='JSON lines: {"messages": [...], "max_tokens": N} or {"prompt": "..."}.  [built in]',
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Of every answer.  [as the prompt or the trace says]",
)
@click.option(
    "--ignore-eos/--natural-end",
    default=True,
    show_default=True,
    help="Whether answers are exactly that long, so that all endpoints do the same work.",
)
@click.option(
    "--fresh/--cached",
    default=True,
    show_default=True,
    help="Whether each prompt begins with a mark of its own, so that no prefix cache of an "
    "earlier round answers for a server.",
)
@click.option(
    "--ttft",
    default=0.5,
    show_default=True,
    callback=_seconds,
    metavar="S",
    help="The objective's TTFT.",
)
@click.option(
    "--tpot",
    default=0.03,
    show_default=True,
    callback=_seconds,
    metavar="S",
    help="The objective's TPOT, seconds.",
)
@click.option(
    "--interleave/--together",
    default=True,
    show_default=True,
    help="Alternate between the endpoints in rounds, as is right where they share a GPU; or load "
    "all at once.",
)
@click.option(
    "--rounds", default=2, show_default=True, type=click.IntRange(1, 1000), help="At each rate."
)
@click.option(
    "--warm-up",
    default=2,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Requests to each endpoint before, not counted.",
)
@click.option(
    "--max-in-flight",
    default=1024,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="At one endpoint. Arrivals beyond are not sent, and counted so: it protects this machine.",
)
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0.0, min_open=True),
    metavar="S",
    help="For each request as a whole.",
)
@click.option("--model", metavar="NAME", help="As the servers call it.  [the first they name]")
@click.option("--seed", default=0, show_default=True, help="Of arrivals and the order of prompts.")
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML report here."
)
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def bench(  # noqa: PLR0913 - one for each option
    *,
    urls: tuple[str, ...],
    admin_urls: tuple[str, ...],
    workload: str | None,
    rate: float | None,
    rates: str | None,
    requests: int,
    trace: Path | None,
    prompts: Path | None,
    output_tokens: int | None,
    ignore_eos: bool,
    fresh: bool,
    ttft: float,
    tpot: float,
    interleave: bool,
    rounds: int,
    warm_up: int,
    max_in_flight: int,
    timeout: float,
    model: str | None,
    seed: int,
    report: Path | None,
    as_json: bool,
) -> None:
    """Bench: the same open-loop load on one or several running endpoints, in one run.

    \b
      specswitch bench --url http://127.0.0.1:8000 --rate 4
      specswitch bench --url ours=http://127.0.0.1:8000 \\
                       --admin-url ours=http://127.0.0.1:8001 \\
                       --url spec=http://127.0.0.1:30001 \\
                       --url base=http://127.0.0.1:30000 \\
                       --rates 0.5,1,2,4 --report bench.html

    Requests are sent when their time has come, however many are not answered yet. Told of each
    endpoint: goodput under the objective, E2E, TTFT and TPOT, tok/s, what failed and why, and its
    ratio to the first one with an interval. TPOT comes from usage, as a speculative chunk holds
    several tokens. An error event inside a 200 and a stream that breaks off are failures. Nothing
    is downloaded. Ctrl-C ends early with what there is.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    import uvloop  # noqa: PLC0415 - `--help` need not wait for what follows

    from proxy.tools.bench.load import Workload  # noqa: PLC0415 - the same
    from proxy.tools.bench.objective import Objective  # noqa: PLC0415 - the same
    from proxy.tools.bench.plan import Options, endpoints  # noqa: PLC0415 - the same
    from proxy.tools.bench.run import run  # noqa: PLC0415 - the same

    try:
        options = Options(
            endpoints=endpoints(urls, admin_urls, keys_of_endpoints()),
            workload=Workload(workload or ("trace" if trace else "poisson")),
            rates=_numbers(rate, rates),
            requests=requests,
            rounds=rounds,
            together=not interleave,
            trace=trace,
            prompts=prompts,
            output_tokens=output_tokens,
            ignore_eos=ignore_eos,
            fresh=fresh,
            objective=Objective(ttft, tpot),
            most_in_flight=max_in_flight,
            timeout=timeout,
            warm_up=warm_up,
            model=model,
            seed=seed,
        )
        code = uvloop.run(run(options, report=report, as_json=as_json))
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


def _numbers(rate: float | None, rates: str | None) -> tuple[float, ...]:
    """The rates of both options; raises ConfigError where one is no number."""
    listed = [] if rate is None else [rate]
    for word in rates.split(",") if rates else ():
        try:
            listed.append(float(word))
        except ValueError as error:
            finding = f"{word!r} is no number; give them like 0.5,1,2"
            raise ConfigError([("--rates", finding)]) from error
    return tuple(listed)
