"""Reading the configuration again: what would change, and what must be built for it.

Everything that can fail is done here, before anything changes; `App` then goes by it all at once.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy import wiring
from proxy.config import Config
from proxy.core.places import Settings
from proxy.core.words import UpstreamName
from proxy.data.settings import FrontSettings
from proxy.data.tls import Certificate
from proxy.errors import ConfigError
from proxy.links import Link


@dataclass(frozen=True, slots=True)
class Renewal:
    """A configuration to go by from now on."""

    config: Config
    changed: tuple[str, ...]
    """The keys whose values are others now."""
    pair: Settings
    front: FrontSettings
    links: Mapping[UpstreamName, Link]
    """To what is reached in another way from now on."""
    renewed: frozenset[UpstreamName]
    """Those that are other servers from now on."""
    tls: ssl.SSLContext | None
    """The endpoint's certificate as its files are now."""


async def read_again(
    old: Config,
    load: Callable[[], Config] | None,
    build: Callable[[Config, UpstreamName], Link],
    certificate: Certificate | None,
) -> Renewal:
    """Return what `load` reads now; raises ConfigError where it cannot be gone by.

    In a thread: reading certificates would hold up every stream.
    """
    if load is None:
        raise ConfigError([("", "this process has no configuration to read again")])
    return await asyncio.to_thread(_read_again, old, load, build, certificate)


def _read_again(
    old: Config,
    load: Callable[[], Config],
    build: Callable[[Config, UpstreamName], Link],
    certificate: Certificate | None,
) -> Renewal:
    config = load()
    changed = wiring.changes(old, config)
    wiring.refuse_listeners(changed)
    return Renewal(
        config=config,
        changed=changed,
        pair=wiring.settings_of(config),
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
