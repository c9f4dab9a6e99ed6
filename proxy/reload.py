"""Reading the configuration again: what would change, and what must be built for it.

Everything that can fail is done here, before anything changes; `App` then goes by it all at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy import wiring
from proxy.config import Config
from proxy.core.words import UpstreamName
from proxy.errors import ConfigError
from proxy.links import Link


@dataclass(frozen=True, slots=True)
class Renewal:
    """A configuration to go by from now on."""

    config: Config
    changed: tuple[str, ...]
    """The keys whose values are others now."""
    links: Mapping[UpstreamName, Link]
    """To what is reached in another way from now on."""
    renewed: frozenset[UpstreamName]
    """Those that are other servers from now on."""


async def read_again(
    old: Config,
    load: Callable[[], Config] | None,
    build: Callable[[Config, UpstreamName], Link],
) -> Renewal:
    """Return what `load` reads now; raises ConfigError where it cannot be gone by.

    In a thread: reading certificates would hold up every stream.
    """
    if load is None:
        raise ConfigError([("", "this process has no configuration to read again")])
    config = await asyncio.to_thread(load)
    changed = wiring.changes(old, config)
    wiring.refuse_listeners(changed)
    rebuilt = [name for name in UpstreamName if _is_reached_otherwise(name, changed)]
    links = {name: await asyncio.to_thread(build, config, name) for name in rebuilt}
    renewed = frozenset(name for name in rebuilt if f"upstreams.{name}.url" in changed)
    return Renewal(config, changed, links, renewed)


def _is_reached_otherwise(name: UpstreamName, changed: tuple[str, ...]) -> bool:
    """Whether anything but its cap has changed."""
    prefix, cap = f"upstreams.{name}.", f"upstreams.{name}.max_in_flight"
    return any(path.startswith(prefix) and path != cap for path in changed)
