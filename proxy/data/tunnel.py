"""A WebSocket's bytes between a client and an engine, once both have switched protocols.

They pass as they came, and no frame is looked at: what is said, how it is compressed, pings and
close codes are between the two sides. Neither is read faster than the other takes it. While an
engine takes nothing its client is not read, and so would not be seen to leave: the pings of the
other direction keep such a tunnel open, and where nothing moves either way it ends by its deadline.
"""

from collections.abc import Callable

from proxy.data.client import Client
from proxy.data.exchange import Exchange
from proxy.data.ledger import Account
from proxy.data.upstream import EngineConnection


class Tunnel:
    """One tunnel, from the engine's agreement to its end, which is the exchange's to say."""

    __slots__ = ("_account", "_client", "_clock", "_engine", "_exchange")

    def __init__(
        self,
        client: Client,
        engine: EngineConnection,
        exchange: Exchange,
        account: Account,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._engine = engine
        self._exchange = exchange
        self._account = account
        self._clock = clock

    def open(self) -> None:
        """Pass on what either side has sent ahead."""
        if ahead := self._client.take_ahead():
            self.from_client(ahead)
        if ahead := self._engine.take_ahead():
            self.from_engine(ahead)

    def from_client(self, data: bytes) -> None:
        """Bytes for the engine."""
        self._exchange.tunnelled(self._clock())
        self._account.request_bytes += len(data)
        self._engine.pass_on(data)

    def from_engine(self, data: bytes) -> None:
        """Bytes for the client."""
        self._exchange.tunnelled(self._clock())
        self._account.response_bytes += len(data)
        self._client.write(data)
