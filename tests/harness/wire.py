"""The data plane without sockets: a transport that keeps what is written, and a pool of fakes.

For the few states that real sockets reach only by luck. Everything else is tested over real ones.
"""

import asyncio
import os
from dataclasses import dataclass, field, replace

from proxy.core.cors import Cors
from proxy.core.errands import Asker, Errand
from proxy.core.http import RequestIds
from proxy.core.keys import Keyring
from proxy.core.words import UpstreamName
from proxy.data.downstream import ClientConnection
from proxy.data.front import EngineSide, Front
from proxy.data.outbox import Outbox
from proxy.data.pool import Dial, Pool
from proxy.data.settings import FrontSettings, Limits
from proxy.data.upstream import EngineConnection
from tests.harness.pair import BASE, SPEC, Pair
from tests.harness.talk import TIMEOUTS

LIMITS = Limits(
    max_connections=8,
    max_header_bytes=4096,
    max_body_bytes=4096,
    max_buffered_bytes=8192,
    max_peek_bytes=4096,
)


_SILENT = os.eventfd(0)
"""A descriptor on which nothing ever comes."""


class FakeSocket:
    """What is known of a socket that is none."""

    def __init__(self) -> None:
        self.options: list[object] = []
        self.descriptor = _SILENT

    def fileno(self) -> int:
        """Of one that is silent, if the test has not set another."""
        return self.descriptor

    def setsockopt(self, *option: object) -> None:
        """Note it."""
        self.options.append(option)


class FakeTransport(asyncio.Transport):
    """Keeps what is written; the test says how much of it is unsent."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.reads = [True]
        self.aborts = 0
        self.closed = False
        self.takes_eof = True
        self.socket = FakeSocket()
        self.eof = False
        self.fault: Exception | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it, or fail as the test has said."""
        if self.fault is not None:
            raise self.fault
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of no effect: the test calls pause_writing."""

    def get_write_buffer_size(self) -> int:
        """What the test has said."""
        return self.unsent

    def pause_reading(self) -> None:
        """Note it."""
        self.reads.append(False)

    def resume_reading(self) -> None:
        """Note it."""
        self.reads.append(True)

    def abort(self) -> None:
        """Note it."""
        self.aborts += 1

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The socket."""
        return self.socket if name == "socket" else default

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def is_closing(self) -> bool:
        """Whether it was closed or aborted."""
        return self.closed or self.aborts > 0

    def can_write_eof(self) -> bool:
        """Not with TLS."""
        return self.takes_eof

    def write_eof(self) -> None:
        """Note it."""
        self.eof = True


@dataclass
class FakeDesk:
    """Takes errands, and ends them when a test does."""

    started: list[tuple[Errand, Asker]] = field(default_factory=list)
    cancelled: int = 0

    def start(self, errand: Errand, asker: Asker) -> "FakeDesk":
        """Note it; the desk is the visit, too."""
        self.started.append((errand, asker))
        return self

    def cancel(self) -> None:
        """Note it."""
        self.cancelled += 1


def pool_with(dial: Dial, *, connect: float = TIMEOUTS.connect) -> Pool:
    """A pool to spec whose connections come about as a test says, in `connect` seconds or not."""
    timeouts = replace(TIMEOUTS, connect=connect)
    return Pool(SPEC, ("127.0.0.1", 1), tls=None, timeouts=timeouts, clock=lambda: 0.0, dial=dial)


@dataclass
class Wire:
    """A client's connection to specswitch and, once asked, an engine's, all without sockets."""

    pair: Pair = field(default_factory=Pair)
    limits: Limits = LIMITS
    client: FakeTransport = field(default_factory=FakeTransport)
    engine: FakeTransport = field(default_factory=FakeTransport)
    desk: FakeDesk = field(default_factory=FakeDesk)

    def __post_init__(self) -> None:
        self.pools = {name: self._pool(name) for name in (SPEC, BASE)}
        self.front = Front(
            dispatcher=self.pair.dispatcher,
            desk=self.desk,
            observer=self.pair.told,
            engines={
                name: EngineSide(pool, (), has_key=False) for name, pool in self.pools.items()
            },
            cors=Cors(),
            outbox=Outbox(most=1),  # at once: there is no loop that turns
            settings=FrontSettings(
                limits=self.limits,
                timeouts=TIMEOUTS,
                keyring=Keyring({}),
                admin_keyring=Keyring({}),
                serves_metrics=False,
                allow_override=False,
            ),
            ids=RequestIds("0" * 16),
            clock=lambda: self.pair.now,
        )
        self.connection = ClientConnection(self.front)
        self.connection.connection_made(self.client)
        self.upstream = self.keep_engine()

    def keep_engine(self) -> EngineConnection:
        """A kept connection to spec."""
        made = EngineConnection(self.pools[SPEC])
        made.connection_made(self.engine)
        made.keep()
        return made

    def _pool(self, name: UpstreamName) -> Pool:
        return Pool(
            name,
            ("127.0.0.1", 1),
            tls=None,
            timeouts=TIMEOUTS,
            clock=lambda: self.pair.now,
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass and have the client's timer look at it."""
        self.pair.now += seconds
        self.connection._time_passed()
