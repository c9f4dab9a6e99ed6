"""The command line: argv to a Config, and a Config to a command. No logic lives here.

Exit codes: 0 done; 1 the command ran and failed (`serve`: an address is taken, or requests were cut
at shutdown); 2 wrong usage or configuration.
"""

import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from proxy import __version__
from proxy.errors import ConfigError, SpecswitchError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_FILE = Path("specswitch.toml")

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="specswitch")
def main() -> None:
    """One OpenAI-compatible endpoint in front of two SGLang servers of the same model.

    One server decodes speculatively (EAGLE-3 and the like), which is faster while few requests run;
    the other does not, which carries more once many do. Each new request goes to the one that is
    right for the present load. No GPU at hand? Try `specswitch demo`.
    """


def _config_options(command: F) -> F:
    """The flags of `serve`: each is a key of the configuration under its own name."""
    options = (
        click.option(
            "--config",
            "file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Configuration file. Without it ./specswitch.toml is read if it is there.",
        ),
        click.option("--spec-url", metavar="URL", help="The server with speculation."),
        click.option("--base-url", metavar="URL", help="The server without."),
        click.option("--host", help="Address of the endpoint.  [0.0.0.0]"),
        click.option("--port", type=int, help="Port of the endpoint.  [8000]"),
        click.option("--admin-host", help="Address of the admin listener.  [127.0.0.1]"),
        click.option("--admin-port", type=int, help="Port of the admin listener.  [8001]"),
        click.option(
            "--crossover",
            type=float,
            metavar="N",
            help="N*: sequences in flight at which both servers give the same total rate. "
            "Above it, new requests go to base. Without it, all do.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


_PATHS = {
    "spec_url": "upstreams.spec.url",
    "base_url": "upstreams.base.url",
    "host": "listen.host",
    "port": "listen.port",
    "admin_host": "listen.admin_host",
    "admin_port": "listen.admin_port",
    "crossover": "policy.crossover",
}


@main.command()
@_config_options
@click.option("--check", is_flag=True, help="Check the configuration and exit: 0, or 2 if bad.")
def serve(file: Path | None, *, check: bool, **flags: object) -> None:
    r"""Serve: the proxy in front of two running servers.

    Flags win over the environment (SPECSWITCH_<SECTION>_<KEY>), which wins over the file, which
    wins over the defaults; docs/configuration.md has every key.

    \b
      specswitch serve --spec-url http://127.0.0.1:30001 \\
                       --base-url http://127.0.0.1:30000 --crossover 4

    SIGTERM drains: what runs may end, new requests are refused. A second one ends at once.
    """
    from proxy import app  # noqa: PLC0415 - `--help` need not wait for FastAPI
    from proxy.config import load  # noqa: PLC0415 - the same for pydantic
    from proxy.control.log import LogFormat, logging_to  # noqa: PLC0415 - the same

    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    overrides = {_PATHS[name]: value for name, value in flags.items() if value is not None}
    config = _or_exit(lambda: load(file=file, env=os.environ, overrides=overrides))
    if check:
        click.echo("the configuration is good")
        return
    with logging_to(2, form=LogFormat(config.log.format), level=config.log.level) as log:
        code = _run(app.serve(config, log))
    sys.exit(code)


@main.command()
@click.option("--profile", default="founding", show_default=True, help="The simulated GPU.")
@click.option("--port", default=8000, show_default=True, help="Port of the endpoint; 0: any free.")
@click.option("--admin-port", default=8001, show_default=True, help="Of the admin listener.")
@click.option("--once", is_flag=True, help="End after the traffic instead of staying up.")
def demo(profile: str, port: int, admin_port: int, *, once: bool) -> None:
    """Try it without a GPU: a simulated pair, the proxy in front, and a little traffic.

    A few requests one after the other, then a burst, then single ones again, with a live view of
    where each went and why; then it stays up for your own curl. Ctrl-C stops all.
    """
    from proxy.demo import run_demo  # noqa: PLC0415 - `--help` need not wait for it

    sys.exit(_run(run_demo(profile, port=port, admin_port=admin_port, once=once)))


@main.command()
@click.option("--profile", default="founding", show_default=True, help="The simulated GPU.")
@click.option("--spec-port", default=30001, show_default=True, help="0: any free.")
@click.option("--base-port", default=30000, show_default=True, help="0: any free.")
@click.option(
    "--contention",
    default=0.9,
    show_default=True,
    metavar="ETA",
    help="What both engines reach together, in shares of one alone: 0.65 poor time slicing, "
    "0.9 time slicing, 1.1 MPS, 2 two GPUs.",
)
@click.option(
    "--time-scale", default=1.0, show_default=True, metavar="X", help="2: twice as fast as real."
)
def engines(
    profile: str, spec_port: int, base_port: int, contention: float, time_scale: float
) -> None:
    """Only the simulated pair: two SGLang-shaped servers on one simulated GPU."""
    from proxy.demo import run_engines  # noqa: PLC0415 - `--help` need not wait for it

    sys.exit(
        _run(
            run_engines(
                profile,
                ports=(spec_port, base_port),
                contention=contention,
                time_scale=time_scale,
            )
        )
    )


def _or_exit(make: Callable[[], T]) -> T:
    try:
        return make()
    except ConfigError as error:
        for path, message in error.findings:
            click.echo(f"{path}: {message}", err=True)
        sys.exit(2)


def _run(command: Coroutine[None, None, int]) -> int:
    try:
        return uvloop.run(command)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except SpecswitchError as error:
        click.echo(f"specswitch: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        return 130
