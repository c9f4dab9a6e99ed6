"""`specswitch demo` and `specswitch engines`: the simulated pair, with and without the proxy."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

import click
from rich.console import Console

from proxy.app import App, running
from proxy.config import load
from proxy.control.log import LogFormat, logging_to
from proxy.core.words import UpstreamName
from proxy.errors import ConfigError, SpecswitchError
from proxy.process import call_on_signals
from proxy.sim.options import Asked, PairOptions
from proxy.sim.physics import PROFILES, Profile, crossover, output_rate
from proxy.sim.server import SimulatedPair
from proxy.tools.traffic import BURST, View, show_traffic

_SETTLE_SECONDS = 2.0
"""The demo's controller returns to speculation sooner than by default, so that one can watch it."""

_INTERRUPTED = 130
"""What a shell says of a command that SIGINT ended."""


async def run_engines(
    profile: str, *, only: UpstreamName | None, as_json: bool, **asked: Unpack[Asked]
) -> int:
    """Serve the simulated pair, or one of it, until a signal says stop; the exit code."""
    chosen = _profile(profile)
    try:
        options = PairOptions(profile=chosen, only=only, **asked)
    except ValueError as error:
        raise ConfigError([("engines", str(error))]) from error
    stopped = asyncio.Event()
    call_on_signals(stopped.set)
    async with _listening(options) as pair:
        if as_json:
            found = {"profile": profile, "crossover": crossover(chosen)}
            click.echo(json.dumps({**pair.urls, **found}))
        else:
            for name, url in pair.urls.items():
                click.echo(f"{name}  {url}")
            what = "both" if options.only is None else "it"
            click.echo(f"N* of this profile is {crossover(chosen):.2f}; Ctrl-C stops {what}.")
        await stopped.wait()
    return 0


async def run_demo(profile: str, *, port: int, admin_port: int, once: bool, as_json: bool) -> int:
    """The simulated pair, the proxy in front, a little traffic; then up until a signal.

    Returns the exit code: 1 if a request failed.
    """
    chosen = _profile(profile)
    with logging_to(2, form=LogFormat.TEXT, level="error"):
        async with _listening(PairOptions(profile=chosen)) as pair:
            config = load(
                file=None,
                env={},
                overrides={
                    "listen.host": "127.0.0.1",
                    "listen.port": port,
                    "listen.admin_port": admin_port,
                    "upstreams.spec.url": pair.spec_url,
                    "upstreams.base.url": pair.base_url,
                    "policy.crossover": crossover(chosen),
                    "policy.return_dwell": _SETTLE_SECONDS,
                    "policy.count_window": _SETTLE_SECONDS,
                },
            )
            async with running(config) as app:
                call_on_signals(app.stop)
                _introduce(app, chosen, as_json=as_json)
                return await _show(app, chosen, once=once, as_json=as_json)


async def _show(app: App, profile: Profile, *, once: bool, as_json: bool) -> int:
    loop = asyncio.get_running_loop()
    view = View.JSON if as_json else View.AUTO
    # Both end within this function: whichever is first, the other is cancelled and awaited.
    dwell = app.config.policy.return_dwell
    traffic = loop.create_task(
        show_traffic(app.url, app.admin_url, Console(), view=view, dwell=dwell)
    )
    stop = loop.create_task(app.stopping.wait())
    try:
        await asyncio.wait((traffic, stop), return_when=asyncio.FIRST_COMPLETED)
        if not traffic.done():
            return _INTERRUPTED if once else 0
        failed = await traffic
        if not as_json:
            click.echo(_alone(profile))
        if not once:
            if not as_json:
                click.echo(_INVITATION.format(url=app.url, admin=app.admin_url))
            await stop
    finally:
        for task in (traffic, stop):
            task.cancel()
        await asyncio.gather(traffic, stop, return_exceptions=True)
    return 1 if failed else 0


def _introduce(app: App, profile: Profile, *, as_json: bool) -> None:
    n_star = crossover(profile)
    if as_json:
        urls = {"url": app.url, "admin_url": app.admin_url}
        click.echo(json.dumps({**urls, "profile": profile.name, "crossover": n_star}))
    else:
        click.echo(
            _INTRODUCTION.format(url=app.url, admin=app.admin_url, name=profile.name, n_star=n_star)
        )


def _alone(profile: Profile) -> str:
    """What either server would give without the other, to compare with what came of the traffic."""
    rows = [
        f"  {name}  {output_rate(profile, name, 1):9.0f}  {output_rate(profile, name, BURST):10.0f}"
        for name in UpstreamName
    ]
    first = int(crossover(profile))
    moral = _SPLIT.format(first=first) if first < BURST else _WHOLE
    return _ALONE.format(rows="\n".join(rows), burst=BURST) + moral


_ALONE = """
For comparison, one server alone on the GPU, by this profile's cost model
(docs/model.md; without prefill), tokens/s in all:

        1 request  {burst} at once
{rows}
"""

_SPLIT = """
The burst ends between the two: its first {first} went to spec before it was known to
be one, and share the GPU with base; but they are soon done, and the rest then
runs at base's full rate."""

_WHOLE = """
With this profile speculation pays for the whole burst, so all of it went to spec:
nothing is lost where base is never needed."""

_INTRODUCTION = """
specswitch serves at   {url}
its admin listener at  {admin}

Behind it are two simulated servers of one model on one GPU (profile {name}):
spec decodes speculatively and is faster while at most N* = {n_star:.1f} requests run,
base does not and carries more once many do. Each request goes to the right one.
"""

_INVITATION = """
Now it is yours; Ctrl-C stops all.

  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 32}}'

  {admin}                     in a browser: the status page, live

  curl {admin}/admin/state    # what it thinks, and why
  curl {admin}/metrics        # the same for Prometheus
  curl {admin}/openapi.json   # the admin API; docs/admin.md explains it

  # speculation off by hand; {{"control": "auto"}} gives it back
  curl -X PUT {admin}/admin/control -H 'content-type: application/json' \\
    -d '{{"control": "base"}}'"""


def _profile(name: str) -> Profile:
    found = PROFILES.get(name)
    if found is None:
        raise ConfigError([("--profile", f"must be one of {', '.join(PROFILES)}, is {name!r}")])
    return found


@asynccontextmanager
async def _listening(options: PairOptions) -> AsyncIterator[SimulatedPair]:
    """The pair, listening; a port that is taken is an error with words."""
    pair = SimulatedPair(options)
    try:
        await pair.start()
    except OSError as error:
        raise SpecswitchError(f"the simulated pair cannot listen: {error.strerror}") from error
    try:
        yield pair
    finally:
        await pair.close()
