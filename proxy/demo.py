"""`specswitch demo` and `specswitch engines`: the simulated pair, with and without the proxy."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import click

from proxy.app import App, running
from proxy.config import load
from proxy.control.log import LogFormat, logging_to
from proxy.errors import ConfigError, SpecswitchError
from proxy.sim.options import PairOptions
from proxy.sim.physics import PROFILES, Profile, crossover
from proxy.sim.server import SimulatedPair
from proxy.tools.traffic import show_traffic

_SETTLE_SECONDS = 3.0
"""The demo's controller returns to speculation sooner than by default, so that one can watch it."""


async def run_engines(
    profile: str, *, ports: tuple[int, int], contention: float, time_scale: float
) -> int:
    """Serve the simulated pair until a signal says stop."""
    chosen = _profile(profile)
    try:
        options = PairOptions(
            profile=chosen,
            spec_port=ports[0],
            base_port=ports[1],
            contention=contention,
            time_scale=time_scale,
        )
    except ValueError as error:
        raise ConfigError([("engines", str(error))]) from error
    async with _listening(options) as pair:
        click.echo(f"spec  {pair.spec_url}")
        click.echo(f"base  {pair.base_url}")
        click.echo(f"N* of this profile is {crossover(chosen):.2f}; Ctrl-C stops both.")
        with _stop_signal() as stopped:
            await stopped.wait()
    return 0


async def run_demo(profile: str, *, port: int, admin_port: int, once: bool) -> int:
    """The simulated pair, the proxy in front, a little traffic; then up until a signal."""
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
                with _stop_signal() as stopped:
                    return await _show(app, chosen, stopped, once=once)


async def _show(app: App, profile: Profile, stopped: asyncio.Event, *, once: bool) -> int:
    click.echo(f"A simulated GPU pair ({profile.name}, N* {crossover(profile):.2f}) is behind")
    click.echo(f"  {app.url}    admin: {app.admin_url}")
    loop = asyncio.get_running_loop()
    # Both end within this function: whichever is first, the other is cancelled and awaited.
    traffic = loop.create_task(show_traffic(app.url, app.admin_url))
    stop = loop.create_task(stopped.wait())
    try:
        await asyncio.wait((traffic, stop), return_when=asyncio.FIRST_COMPLETED)
        if traffic.done():
            await traffic
            if not once:
                click.echo(_INVITATION.format(url=app.url, admin=app.admin_url))
                await stop
    finally:
        for task in (traffic, stop):
            task.cancel()
        await asyncio.gather(traffic, stop, return_exceptions=True)
    return 0


_INVITATION = """
Now it is yours; Ctrl-C stops all.

  curl -i {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 32}}'

  curl {admin}/admin/state      what it thinks, and why
  curl {admin}/metrics          the same for Prometheus
  {admin}/docs     the admin API"""


def _profile(name: str) -> Profile:
    found = PROFILES.get(name)
    if found is None:
        raise ConfigError([("--profile", f"{name!r} is none of {', '.join(PROFILES)}")])
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


@contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    """An event that SIGINT or SIGTERM sets, while the block runs."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
