"""The command line: argv to a Config, and a Config to a command. No logic lives here.

What a command needs is imported when it runs, so that `--help` and a typing error answer at once.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import click
import uvloop

from proxy import __version__
from proxy.commands.bench import bench
from proxy.commands.calibrate import calibrate
from proxy.commands.doctor import doctor
from proxy.commands.plan import plan
from proxy.commands.simulate import simulate
from proxy.errors import ConfigError, SpecswitchError

if TYPE_CHECKING:
    from proxy.sim.options import Asked

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_FILE = Path("specswitch.toml")

_EPILOG = """\b
Exit codes:
  0    done; a server: told to stop, and nothing was cut
  1    it ran and failed: an address is taken, requests were cut or failed
  2    wrong usage or configuration; each finding is a line `path: message`
  130  interrupted before it was done
"""


_HELP = {"help_option_names": ["-h", "--help"]}
"""Of each command too: whoever calls one by itself gets the same."""


def _terminated(number: int, _: FrameType | None) -> None:
    """End as one that the signal has ended, in the words of a shell."""
    sys.exit(128 + number)


class _Commands(click.Group):
    """Commands that end with 130 when they are interrupted, wherever they stand."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the one that is asked for."""
        if os.getpid() == 1:
            # The first process of a container: a signal that it does not handle is ignored, and
            # whoever stops it waits until it is killed. A server sets a handler of its own later.
            signal.signal(signal.SIGTERM, _terminated)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(130)


def _form() -> str:
    """Whether what every request passes through is compiled; one module tells for all."""
    found = find_spec("proxy.core.dispatch")
    is_compiled = found is not None and isinstance(found.loader, ExtensionFileLoader)
    return "compiled" if is_compiled else "interpreted"


@click.group(
    cls=_Commands,
    context_settings={**_HELP, "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(__version__, message=f"specswitch %(version)s ({_form()})")
def main() -> None:
    """One OpenAI-compatible endpoint in front of two SGLang servers of the same model.

    One server decodes speculatively (EAGLE-3 and the like), which is faster while few requests run;
    the other does not, which carries more once many do. Each new request goes to the one that is
    right for the present load. No GPU at hand? Try `specswitch demo`.
    """
    _fill_standard_streams()


def _fill_standard_streams() -> None:
    """Put /dev/null where whoever started us closed one: else a socket would take its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one


def _config_options(command: F) -> F:
    """The flags of `serve`: each is a key of the configuration under its own name."""
    options = (
        click.option(
            "--config",
            "file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Configuration file. Without it ./specswitch.toml is read if it is there.",
        ),
        click.option("--spec-url", metavar="URL", help="The server with speculation.  [:30001]"),
        click.option("--base-url", metavar="URL", help="The server without.  [:30000]"),
        click.option("--host", metavar="HOST", help="Address of the endpoint.  [0.0.0.0]"),
        click.option("--port", type=int, metavar="PORT", help="Port of the endpoint.  [8000]"),
        click.option(
            "--admin-host", metavar="HOST", help="Address of the admin listener.  [127.0.0.1]"
        ),
        click.option(
            "--admin-port", type=int, metavar="PORT", help="Port of the admin listener.  [8001]"
        ),
        click.option(
            "--calibration",
            metavar="FILE",
            help="What `specswitch calibrate` wrote.  [calibration.json, if it is there]",
        ),
        click.option(
            "--crossover",
            type=float,
            metavar="N",
            help="N* by hand, in place of a calibration: sequences in flight at which both servers "
            "give the same total rate. Above it, new requests go to base.",
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
    "calibration": "policy.calibration",
    "crossover": "policy.crossover",
}


@main.command(short_help="The proxy in front of two running servers.", context_settings=_HELP)
@_config_options
@click.option("--check", is_flag=True, help="Check the configuration and exit: 0, or 2 if bad.")
@click.option(
    "--json", "as_json", is_flag=True, help='With --check: {"errors": [{"path", "message"}]}.'
)
def serve(file: Path | None, *, check: bool, as_json: bool, **flags: object) -> None:
    """Serve: the proxy in front of two running servers.

    \b
      specswitch serve --spec-url http://127.0.0.1:30001 \\
                       --base-url http://127.0.0.1:30000 --crossover 4

    Flags win over the environment (SPECSWITCH_<SECTION>_<KEY>), which wins over the file, which
    wins over the defaults; docs/configuration.md has every key.

    SIGTERM or Ctrl-C drains: what runs may end, new requests are refused, and the exit code is 0 if
    nothing was cut, else 1. A second one cuts at once. The log goes to standard error: text on a
    terminal, a JSON object in a line elsewhere.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    if as_json and not check:
        raise click.UsageError("--json goes with --check; for the log there is log.format")
    from proxy.calibrated import calibration_of  # noqa: PLC0415 - `--help` need not wait for it
    from proxy.config import load  # noqa: PLC0415 - the same

    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    _must_be_there(flags["calibration"])
    overrides = {_PATHS[name]: value for name, value in flags.items() if value is not None}
    read = partial(load, file=file, env=dict(os.environ), overrides=overrides)
    try:
        config = read()
        calibration_of(config)
    except ConfigError as error:
        _tell(error, as_json=as_json)
        sys.exit(2)
    if check:
        click.echo('{"errors": []}' if as_json else "the configuration is good")
        return
    gc.disable()  # what is imported is kept: to look for garbage in it takes 50 ms of the start
    from proxy import process  # noqa: PLC0415 - nor a check for FastAPI
    from proxy.control.log import LogFormat, logging_to  # noqa: PLC0415 - the same

    try:
        with logging_to(2, form=LogFormat(config.log.format), level=config.log.level) as log:
            code = _run(process.serve(config, log, read))
    finally:
        gc.enable()  # a start that failed has not
    sys.exit(code)


_profile_option = click.option(
    "--profile",
    default="founding",
    show_default=True,
    metavar="NAME",
    help="The simulated GPU: founding (N* about 3), tree (about 20) or chain (about 80); "
    "docs/model.md has them.",
)


@main.command(short_help="Try it without a GPU.", context_settings=_HELP)
@_profile_option
@click.option("--port", default=8000, show_default=True, help="Port of the endpoint; 0: any free.")
@click.option(
    "--admin-port", default=8001, show_default=True, help="Of the admin listener; 0: any free."
)
@click.option("--once", is_flag=True, help="End after the traffic instead of staying up.")
@click.option(
    "--json", "as_json", is_flag=True, help="An object in a line: the addresses, then each part."
)
def demo(profile: str, *, port: int, admin_port: int, once: bool, as_json: bool) -> None:
    """Try it without a GPU: a simulated pair, the proxy in front, and a little traffic.

    A few requests one after the other, then a burst, then single ones again, with a live view of
    where each went and why; then it stays up for your own curl. Ctrl-C stops all. Takes a quarter
    of a minute with --once, which ends with 1 if a request failed.
    """
    from proxy.demo import run_demo  # noqa: PLC0415 - `--help` need not wait for it

    sys.exit(_run(run_demo(profile, port=port, admin_port=admin_port, once=once, as_json=as_json)))


@main.command(short_help="Only the simulated pair, for your own proxy.", context_settings=_HELP)
@_profile_option
@click.option("--spec-port", default=30001, show_default=True, help="0: any free.")
@click.option("--base-port", default=30000, show_default=True, help="0: any free.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address of both."
)
@click.option(
    "--only",
    type=click.Choice(["spec", "base"]),
    help="Just this one, on a simulated GPU of its own: the other may run elsewhere.",
)
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
@click.option("--json", "as_json", is_flag=True, help="The addresses and N* as an object.")
def engines(profile: str, *, only: str | None, as_json: bool, **asked: Unpack["Asked"]) -> None:
    """Only the simulated pair: two SGLang-shaped servers on one simulated GPU.

    \b
      specswitch engines &
      specswitch serve --crossover 3.1

    They speak HTTP as SGLang 0.5.23 does, and share the GPU: what one decodes, the other waits for;
    with --only each has its own, and neither waits. Of its paths they have chat, completions,
    /generate, the pages of models, server, load, metrics and health, /flush_cache and
    /abort_request; all else is 404. Ctrl-C stops both.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    from proxy.core.words import UpstreamName  # noqa: PLC0415 - `--help` need not wait for it
    from proxy.demo import run_engines  # noqa: PLC0415 - the same

    one = None if only is None else UpstreamName(only)
    sys.exit(_run(run_engines(profile, only=one, as_json=as_json, **asked)))


for command in (plan, doctor, calibrate, simulate, bench):
    main.add_command(command)


def _must_be_there(calibration: object) -> None:
    """Whoever names a file by hand means one that is there; the default may be made later."""
    if calibration and not Path(str(calibration)).exists():
        raise click.BadParameter(f"there is no file {calibration}", param_hint="--calibration")


def _tell(error: ConfigError, *, as_json: bool) -> None:
    """All findings: one a line for people, as a failed reload tells them for programs."""
    if as_json:
        errors = [{"path": path, "message": message} for path, message in error.findings]
        click.echo(json.dumps({"errors": errors}))
        return
    for path, message in error.findings:
        click.echo(f"{path}: {message}", err=True)


def _run(command: Coroutine[None, None, int]) -> int:
    try:
        return uvloop.run(command)
    except ConfigError as error:
        _tell(error, as_json=False)
        return 2
    except SpecswitchError as error:
        click.echo(f"specswitch: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        return 130
