"""What is built for the configured upstreams: how requests and probes reach their servers.

A link is for the server that the configuration names. A reload that names another makes another
link; the old one's pool serves what runs on it to its end.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proxy import wiring
from proxy.config import Config
from proxy.control.engine import Findings, Reach, connect
from proxy.control.prober import Prober, ProbeRules
from proxy.core.dispatch import Dispatcher
from proxy.core.words import UpstreamName
from proxy.data.front import EngineSide
from proxy.data.pool import Pool
from proxy.data.settings import Timeouts
from proxy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Link:
    """One upstream's server: how requests reach it, and who probes it."""

    side: EngineSide
    prober: Prober
    reach: Reach
    """How it is reached for what is neither a request's nor a probe's."""

    @property
    def pool(self) -> Pool:
        """Its connections for requests."""
        return self.side.pool


class Links:
    """The link to each upstream, and what is left of those that there were."""

    def __init__(self, links: Mapping[UpstreamName, Link]) -> None:
        self._links = dict(links)
        self.retired: list[Pool] = []
        """Pools to servers that an upstream is no more; each until nothing runs on it."""

    def __getitem__(self, name: UpstreamName) -> Link:
        return self._links[name]

    @property
    def pools(self) -> list[Pool]:
        """Every pool that may have connections."""
        return [*(link.pool for link in self._links.values()), *self.retired]

    @property
    def sides(self) -> dict[UpstreamName, EngineSide]:
        """How requests reach each server."""
        return {name: link.side for name, link in self._links.items()}

    @property
    def reaches(self) -> dict[UpstreamName, Reach]:
        """How each server is asked for what it says of itself, and told what it shall do."""
        return {name: link.reach for name, link in self._links.items()}

    @property
    def findings(self) -> dict[UpstreamName, Findings]:
        """What the probers have found."""
        return {name: link.prober.findings for name, link in self._links.items()}

    def connections(self, name: UpstreamName) -> tuple[int, int]:
        """How many to the upstream `name` are in use, and how many are kept."""
        pools = [pool for pool in self.pools if pool.name is name]
        return sum(pool.active for pool in pools), sum(pool.idle for pool in pools)

    def exchange(self, name: UpstreamName, link: Link) -> None:
        """Reach the upstream `name` by `link` from now on."""
        old = self._links[name].pool
        old.retire()
        self.retired.append(old)
        self._links[name] = link

    def set_to(self, rules: ProbeRules, timeouts: Timeouts) -> None:
        """Probe by `rules`, and make and keep connections by `timeouts`, from now on."""
        for link in self._links.values():
            link.prober.set_to(rules)
            link.pool.timeouts = timeouts

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long, and let go of pools on which nothing runs."""
        for pool in self.pools:
            pool.sweep(now)
        self.retired = [pool for pool in self.retired if pool.busy]


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
        (upstream.url.host, upstream.url.port),
        tls=tls,
        timeouts=wiring.timeouts_of(config),
        clock=clock,
    )
    side = EngineSide(pool, wiring.lines_of(upstream), has_key=wiring.key_of(upstream) is not None)
    reach = Reach(str(upstream.url), tls, wiring.key_of(upstream))
    return Link(side, Prober(name, client, dispatcher, rules, clock=clock), reach)
