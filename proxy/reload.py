"""Reading the configuration again: what would change, and what must be built for it.

Everything that can fail is done here, before anything changes; `App` then goes by it all at once.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Final, NamedTuple

from proxy import wiring
from proxy.calibrated import calibration_of
from proxy.calibration import Calibration
from proxy.config import Config
from proxy.core.places import Settings
from proxy.core.words import UpstreamName
from proxy.data.settings import FrontSettings
from proxy.data.tls import Certificate
from proxy.errors import ConfigError
from proxy.links import Link

READ_SECONDS: Final = 10.0
"""For all files together; one that hangs (a pipe, a network file system) must not keep us from
another reload, nor from ending."""


class Basis(NamedTuple):
    """What is gone by: the configuration, and the calibration that it names."""

    config: Config
    calibration: Calibration | None


@dataclass(frozen=True, slots=True)
class Renewal:
    """A configuration to go by from now on."""

    config: Config
    changed: tuple[str, ...]
    """The keys whose values are others now."""
    calibration: Calibration | None
    pair: Settings
    front: FrontSettings
    links: Mapping[UpstreamName, Link]
    """To what is reached in another way from now on."""
    renewed: frozenset[UpstreamName]
    """Those that are other servers from now on."""
    tls: ssl.SSLContext | None
    """The endpoint's certificate as its files are now."""


async def read_again(
    old: Basis,
    load: Callable[[], Config] | None,
    build: Callable[[Config, UpstreamName], Link],
    certificate: Certificate | None,
) -> Renewal:
    """Return what `load` reads now; raises ConfigError where it cannot be gone by.

    In a thread: reading certificates would hold up every stream.
    """
    if load is None:
        raise ConfigError([("", "this process has no configuration to read again")])
    read = partial(_read_again, old, load, build, certificate)
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await _in_a_thread(read)
    except TimeoutError:
        why = f"could not be read within {READ_SECONDS:g} s"
        raise ConfigError([("", why)]) from None


async def _in_a_thread(read: Callable[[], Renewal]) -> Renewal:
    """Call `read` in a thread that nobody waits for at the end; the loop's own would be."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Renewal] = loop.create_future()

    def tell(outcome: Renewal | Exception) -> None:
        if done.done():
            return  # nobody waits any more
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def work() -> None:
        outcome: Renewal | Exception
        try:
            outcome = read()
        except Exception as fault:  # noqa: BLE001 - told where it is waited for
            outcome = fault
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, outcome)

    Thread(target=work, name="reload", daemon=True).start()
    return await done


def refuse_vanishing(old: Basis, config: Config, calibration: Calibration | None) -> None:
    """Raise ConfigError if the same file was a calibration and is not there now.

    Who means it says so: `policy.calibration = ""`.
    """
    same = old.config.policy.calibration == config.policy.calibration
    gone = old.calibration is not None and calibration is None
    if gone and same and not config.policy.crossover:
        what = f"{config.policy.calibration} was there and is gone"
        raise ConfigError([("policy.calibration", what)])


def _read_again(
    old: Basis,
    load: Callable[[], Config],
    build: Callable[[Config, UpstreamName], Link],
    certificate: Certificate | None,
) -> Renewal:
    config = load()
    calibration = calibration_of(config)
    refuse_vanishing(old, config, calibration)
    changed = wiring.changes(old.config, config)
    wiring.refuse_listeners(changed)
    wiring.refuse_opening(old.config, config)
    if calibration != old.calibration and "policy.calibration" not in changed:
        changed = (*changed, "policy.calibration")
    return Renewal(
        config=config,
        changed=changed,
        calibration=calibration,
        pair=wiring.settings_of(config, calibration),
        front=wiring.front_of(config),
        links={
            name: build(config, name)
            for name in UpstreamName
            if _is_reached_otherwise(config, name, changed)
        },
        renewed=frozenset(name for name in UpstreamName if f"upstreams.{name}.url" in changed),
        tls=None if certificate is None else certificate.read(),
    )


def _is_reached_otherwise(config: Config, name: UpstreamName, changed: tuple[str, ...]) -> bool:
    """Whether anything but its cap has changed; what a file of certificates holds may have."""
    prefix, cap = f"upstreams.{name}.", f"upstreams.{name}.max_in_flight"
    has_file = wiring.upstream_of(config, name).ca_file is not None
    return has_file or any(path.startswith(prefix) and path != cap for path in changed)
