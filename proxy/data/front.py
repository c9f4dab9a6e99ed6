"""What all client connections share: the pair, the pools, the limits, what is held together."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from proxy.core.cors import Cors
from proxy.core.dispatch import Dispatcher
from proxy.core.eligibility import Eligibility, Rule, Traits, Verdict, judge
from proxy.core.endpoints import Endpoint, Kind
from proxy.core.errands import Desk
from proxy.core.http import RequestIds
from proxy.core.keys import presented
from proxy.core.observer import Observer, Record
from proxy.core.peek import peek
from proxy.core.route import Need
from proxy.core.words import UpstreamName
from proxy.data.descriptors import MOST_TOLD
from proxy.data.lane import Lane
from proxy.data.ledger import PLAIN
from proxy.data.outbox import Outbox
from proxy.data.pool import Pool
from proxy.data.reader import RequestHead
from proxy.data.settings import FrontSettings

if TYPE_CHECKING:  # each holds the other
    from proxy.data.downstream import ClientConnection
    from proxy.data.tls import TlsConnection

_ANY = Eligibility(Verdict.ANY, None)
_STATE = Eligibility(Verdict.BASE, Rule.STORED_STATE)


@dataclass(frozen=True, slots=True)
class EngineSide:
    """How to speak to one upstream."""

    pool: Pool
    lines: tuple[bytes, ...] = field(repr=False)
    """Whole header lines for every request: Host, and the upstream's own key where it has one."""
    has_key: bool


class Front:
    """Shared by all client connections of one listener."""

    __slots__ = (
        "admin_keyring",
        "allow_override",
        "buffered",
        "clock",
        "connections",
        "connects_without_descriptor",
        "cors",
        "descriptors_suffice_for",
        "desk",
        "dispatcher",
        "engines",
        "handshakes",
        "ids",
        "keyring",
        "lane",
        "limits",
        "observer",
        "open_requests",
        "outbox",
        "serves_metrics",
        "timeouts",
        "told",
    )

    def __init__(  # noqa: PLR0913 - by name; it is where all of them meet
        self,
        *,
        dispatcher: Dispatcher,
        desk: Desk,
        observer: Observer,
        engines: Mapping[UpstreamName, EngineSide],
        settings: FrontSettings,
        ids: RequestIds,
        clock: Callable[[], float],
        cors: Cors,
        outbox: Outbox,
    ) -> None:
        self.dispatcher = dispatcher
        self.desk = desk
        self.observer = observer
        self.engines = engines
        self.ids = ids
        self.clock = clock
        """Monotonic seconds."""
        self.cors = cors
        self.outbox = outbox
        self.lane = Lane()
        self.connections: set[ClientConnection] = set()
        self.buffered = 0
        """Bytes of request bodies held now."""
        self.open_requests = 0
        self.handshakes: set[TlsConnection] = set()
        """Clients that have connected by TLS and are not known yet."""
        self.descriptors_suffice_for: float = inf
        """Clients; above it file descriptors would run out, whatever the limits say."""
        self.told = MOST_TOLD
        """Clients above that which are told so at one time."""
        self.connects_without_descriptor = 0
        """Connections to engines that were not made because file descriptors had run out."""
        self.keep_to(settings)

    def keep_to(self, settings: FrontSettings) -> None:
        """Serve by these from now on."""
        self.limits = settings.limits
        self.timeouts = settings.timeouts
        self.keyring = settings.keyring
        self.admin_keyring = settings.admin_keyring
        self.serves_metrics = settings.serves_metrics
        self.allow_override = settings.allow_override

    @property
    def max_connections(self) -> int:
        """Client connections that are served at one time."""
        return int(min(self.limits.max_connections, self.descriptors_suffice_for))

    @property
    def unfinished(self) -> int:
        """Clients whose request is open, or who have not taken all of their answer."""
        return sum(client.unfinished for client in self.connections)

    def running(self) -> Iterator[Record]:
        """What has a place now, as far as it has come."""
        return (found for each in self.connections if (found := each.decision) is not None)

    def opened(self) -> None:
        """A request has begun; `closed` ends it."""
        self.open_requests += 1
        self.observer.started()

    def closed(self, record: Record) -> None:
        """A request that was opened has ended."""
        self.open_requests -= 1
        self.observer.ended(record)

    def offers(self, endpoint: Endpoint, head: RequestHead) -> bool:
        """Whether a path that is reserved is there for who sends `head`."""
        if endpoint.kind is Kind.PAIR:
            return self.serves_metrics
        return self.admin_keyring.name_of(presented(head.headers, head.first)) is not None

    @property
    def estimates_prompts(self) -> bool:
        """Whether a rule asks how long prompts are."""
        return self.dispatcher.settings.rules.max_spec_prompt_tokens > 0

    def traits(self, endpoint: Endpoint, body: bytes | bytearray) -> Traits:
        """What `body` says that decides."""
        if endpoint.dialect is None:
            return PLAIN
        if len(body) > self.limits.max_peek_bytes:
            return Traits.unpeeked()
        return peek(
            body,
            endpoint.dialect,
            estimate_prompt=self.estimates_prompts,
            limits=self.dispatcher.spec_limits,
        )

    def need(self, endpoint: Endpoint, traits: Traits, override: bytes | None) -> Need:
        """What the decision needs to know of a request with these `traits`."""
        if endpoint.kind is Kind.GENERATION:
            pair = self.dispatcher
            eligibility = judge(
                traits,
                pair.settings.rules,
                pair.adapters,
                pair.spec_limits,
                stored=traits.store_unsaid and pair.store_responses,
            )
            return Need(traits.sequences, eligibility, self._override(override))
        if endpoint.kind is Kind.STATE:
            return Need(0, _STATE)
        if endpoint.kind is Kind.MODEL:
            return Need(0, _ANY, base_first=True)
        raise ValueError(f"{endpoint.template} is answered by us")

    def _override(self, value: bytes | None) -> UpstreamName | None:
        if value is None or not self.allow_override:
            return None
        try:
            return UpstreamName(value.strip().lower().decode("ascii"))
        except ValueError:
            return None
