"""What befalls a conversation beside its bytes, and the limits it is played within.

They are small, so that inputs of a few hundred bytes reach every one of them.
"""

from collections import deque
from dataclasses import dataclass
from random import Random
from zlib import crc32

from proxy.data.settings import Limits, Timeouts
from tests.harness.pair import BASE, SPEC

LIMITS = Limits(
    max_connections=4,
    max_header_bytes=1500,
    max_body_bytes=4000,
    max_buffered_bytes=3500,
    max_peek_bytes=2000,
)
TIMEOUTS = Timeouts(
    header=3.0,
    body=6.0,
    client_write=5.0,
    client_keep_alive=8.0,
    connect=2.0,
    first_byte=20.0,
    between_chunks=10.0,
    response=40.0,
    idle_connection=3.0,
)
AHEAD = HIGH_WATER = HELD = 600
"""The data plane's own bounds, scaled down like the limits."""
HEAD = 3000
"""The same for an engine's head: above every one of the corpus."""
FAR = 1 << 30
"""A bound that nothing reaches."""
READ = 256
"""Bytes that a peer sends at most in one piece, but for pieces that are the whole."""
OWN_ANSWER = 700
"""Bytes of an answer of our own, at most, and of the headers that we add to an engine's."""
PORTS = {1: SPEC, 2: BASE}
MOST_STEPS = 60_000
MOST_TURNS = 1000
LONGEST = 20_000.0
"""Seconds after which a conversation would never end: the timeouts of its requests, many times."""


class Violation(AssertionError):  # noqa: N818 - it is what is found, not what is thrown
    """Something that must hold does not."""


def require(holds: object, why: str) -> None:
    """Raise `Violation` unless it holds."""
    if not holds:
        raise Violation(why)


@dataclass(slots=True, kw_only=True)
class Plan:
    """What befalls a conversation beside its bytes."""

    client_cut: int = 0
    """0: in one piece; else about so many bytes a piece."""
    engine_cut: int = 0
    appetite: int = 0
    """Bytes the client takes at a time; 0: everything, at once."""
    leaves_at: int | None = None
    """The step at which the client leaves; None: it waits for the end."""
    resets: bool = False
    """Whether its leaving is a reset."""
    lingers: bool = False
    """Whether it says nothing in the end, rather than leave."""
    kept: int = 0
    """Connections to each engine that are there already."""
    refuses: float = 0.0
    """How often a connection does not come about."""
    stale: float = 0.0
    """How often a kept connection dies as it is used again."""
    occupied: bool = False
    """Whether both servers are full in the beginning."""
    keys: bool = False
    spacious: bool = False
    """Whether the data plane's own bounds are out of reach."""


def plan_of(seed: bytes) -> tuple[Plan, Random]:
    """Draw what befalls; of the seed `calm` nothing does, of `cut` only the cuts."""
    lots = Random(crc32(seed))
    if seed.startswith(b"calm"):
        return Plan(spacious=True), lots
    cuts = (lots.choice((0, 0, 1, 7, 60, READ)), lots.choice((0, 0, 1, 7, 60, READ)))
    if seed.startswith(b"cut"):
        return Plan(client_cut=cuts[0], engine_cut=cuts[1], spacious=True), lots
    plan = Plan(
        client_cut=cuts[0],
        engine_cut=cuts[1],
        appetite=lots.choice((0, 0, 0, 1, 40, 300)),
        leaves_at=lots.choice((None, None, lots.randrange(12), lots.randrange(300))),
        resets=lots.random() < 0.5,
        lingers=lots.random() < 0.5,
        kept=lots.choice((0, 1, 2)),
        refuses=lots.choice((0.0, 0.0, 0.4)),
        stale=lots.choice((0.0, 0.0, 0.4)),
        occupied=lots.random() < 0.1,
        keys=lots.random() < 0.1,
        spacious=lots.random() < 0.2,
    )
    return plan, lots


def cut(data: bytes, about: int, lots: Random) -> deque[bytes]:
    """Cut `data` into pieces of about this size."""
    if not about or not data:
        return deque([data] if data else [])
    pieces: deque[bytes] = deque()
    at = 0
    while at < len(data):
        size = 1 if about == 1 else lots.randint(1, 2 * about)
        pieces.append(data[at : at + size])
        at += size
    return pieces
