"""What the data plane is set to. Values only; defaults and checks are in the configuration."""

from dataclasses import dataclass

from proxy.core.keys import Keyring


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes and counts."""

    max_connections: int
    max_header_bytes: int
    max_body_bytes: int
    max_buffered_bytes: int
    """Request bodies held at one time, over all clients."""
    max_peek_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds."""

    header: float
    body: float
    """Without progress."""
    client_write: float
    """A client that accepts no byte for this long."""
    client_keep_alive: float
    connect: float
    first_byte: float
    between_chunks: float
    response: float
    idle_connection: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """All that a reload may exchange, at once."""

    limits: Limits
    timeouts: Timeouts
    keyring: Keyring
    admin_keyring: Keyring
    """The key for SGLang's administration; empty: nobody gets at it."""
    serves_metrics: bool
    """Whether the pair's metrics are among the paths that are served."""
    allow_override: bool
    """Whether a client may choose its upstream."""
