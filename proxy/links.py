"""What is built for one configured upstream: how requests and probes reach its server.

A link is for the server that the configuration names. A reload that names another makes another
link; the old one's pool serves what runs on it to its end.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from proxy import wiring
from proxy.config import Config
from proxy.control.engine import connect
from proxy.control.prober import Prober
from proxy.core.dispatch import Dispatcher
from proxy.core.words import UpstreamName
from proxy.data.front import EngineSide
from proxy.data.pool import Pool
from proxy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Link:
    """One upstream's server: how requests reach it, and who probes it."""

    side: EngineSide
    prober: Prober

    @property
    def pool(self) -> Pool:
        """Its connections for requests."""
        return self.side.pool


def build_link(
    config: Config, name: UpstreamName, dispatcher: Dispatcher, *, clock: Callable[[], float]
) -> Link:
    """The link to the upstream `name`; nothing is connected to yet.

    Reads certificates, which takes 75 ms where they are the system's. Raises ConfigError where they
    cannot be read.
    """
    upstream = wiring.upstream_of(config, name)
    try:
        tls = ssl.create_default_context(cafile=upstream.ca_file) if upstream.url.secure else None
        rules = wiring.probes_of(config)
        client = connect(
            str(upstream.url),
            api_key=wiring.key_of(upstream),
            tls=tls,
            timeout=rules.timeout,
        )
    except OSError as error:
        raise ConfigError([(f"upstreams.{name}.ca_file", f"cannot be read: {error}")]) from error
    pool = Pool(
        name,
        upstream.url.host,
        upstream.url.port,
        tls=tls,
        idle_seconds=config.timeouts.idle_connection,
        clock=clock,
    )
    side = EngineSide(pool, wiring.lines_of(upstream), has_key=wiring.key_of(upstream) is not None)
    return Link(side, Prober(name, client, dispatcher, rules, clock=clock))
