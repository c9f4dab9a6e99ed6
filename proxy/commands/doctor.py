"""`specswitch doctor`: options and help; the work is in `proxy/tools/doctor/examine.py`."""

import asyncio
import sys

import click

from proxy.commands.keys import NOTE, key_of
from proxy.errors import SpecswitchError

_EPILOG = """\b
Exit codes:
  0    nothing worse than a note
  1    warnings: it works, and could be faster or more alike
  2    errors: this is not a pair that can serve, or a server cannot be read;
       also wrong usage
  130  interrupted
"""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    short_help="Are these two servers a good pair? What to change.",
    epilog=_EPILOG + NOTE,
)
@click.option(
    "--spec-url",
    default="http://127.0.0.1:30001",
    show_default=True,
    metavar="URL",
    help="The server with speculation.",
)
@click.option(
    "--base-url",
    default="http://127.0.0.1:30000",
    show_default=True,
    metavar="URL",
    help="The server without.",
)
@click.option(
    "--no-requests", is_flag=True, help="Only read what they say; let them generate nothing."
)
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def doctor(
    *,
    spec_url: str,
    base_url: str,
    no_requests: bool,
    as_json: bool,
) -> None:
    """Are these two servers a good pair? What is wrong, why it matters, what to change.

    \b
      specswitch doctor --spec-url http://127.0.0.1:30001 \\
                        --base-url http://127.0.0.1:30000
      specswitch doctor --json | jq '.findings[] | select(.severity == "warning")'

    Compares what both say of themselves (model, tokenizer, context, dtype, templates, parsers,
    keys, versions), looks for flags that are known to cost speculation its gain, and for how they
    share memory. Then it sends each a few short requests, one at a time, within seconds: do streams
    end well, how many drafts are kept, do both answer alike. Run it while nothing else does.

    Each finding has a code that stays. Nothing is changed on either server.
    """  # noqa: D301 - \b is click's mark for lines to be left as they are
    from proxy.tools.doctor.examine import run  # noqa: PLC0415 - `--help` need not wait for it

    try:
        code = asyncio.run(
            run(
                spec_url,
                base_url,
                spec_api_key=key_of("spec"),
                base_api_key=key_of("base"),
                requests=not no_requests,
                json_only=as_json,
            )
        )
    except SpecswitchError as error:
        click.echo(f"specswitch: {error}", err=True)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
