"""The works: what the clients do, one line each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from bench.speed.targets import CORE, DIRECT, SGLANG_ROUTER, SPECSWITCH


class Kind(StrEnum):
    """How a work is done, and so what its numbers are."""

    REQUESTS = "requests"
    """A closed loop of answers without a stream."""
    STREAMS = "streams"
    """Each client reads one stream to its end."""
    LEAVING = "leaving"
    """Each client leaves its stream; when is its engine told?"""
    STALL = "stall"
    """A client reads nothing of an endless stream."""
    START = "start"
    """From nothing to the first answer."""


class Table(StrEnum):
    """What of a run its table shows."""

    LOAD = "load"
    """What its kind has."""
    STEADY = "steady"
    """What a chunk costs while all streams run, and none begins or ends."""
    MEMORY = "memory"
    LATENESS = "lateness"
    """How long others wait."""


MiB: Final = 2**20
FAST: Final = (DIRECT, SPECSWITCH, SGLANG_ROUTER, "vllm-router", "nginx", "haproxy", "envoy")
"""Those that carry 4,096 streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One of them."""

    name: str
    title: str
    kind: Kind
    load: Mapping[str, int] = field(default_factory=dict)
    """Words of the load's command line."""
    beside: Mapping[str, int] | None = None
    """A second load, of `beside_kind`, that runs all the time; what is counted is the first."""
    beside_kind: Kind = Kind.REQUESTS
    own_path: bool = False
    """The first load asks for what the target answers by itself: its own loop and nothing else."""
    scraped: bool = False
    """Its metrics are read each second."""
    fresh: bool = False
    """The target is started anew before each run: what earlier works left behind would count."""
    most_rounds: int | None = None
    """Where more would say no more."""
    only: tuple[str, ...] | None = None
    """The targets that it is for; None for all."""
    quick: bool = False
    """Whether `--quick` has it."""
    group: str | None = None
    """Works of one group take turns in each round, and so can be compared with one another."""
    table: Table = Table.LOAD


def _streams(
    count: int, *, ramp_ms: int, chunks: int = 200, interval_us: int = 20000
) -> dict[str, int]:
    return {
        "clients": count,
        "chunks": chunks,
        "interval_us": interval_us,
        "ramp_ms": ramp_ms,
        "limit_s": 15,
    }


FLAT_PER_SECOND: Final = 12_800
"""Chunks a second in all, however many streams: then their number is all that differs. It is what
256 streams make at 50 a second, and a third of what a core carries."""


def _flat(count: int) -> Work:
    interval = count * 1_000_000 // FLAT_PER_SECOND
    seconds = 5.0 + interval / 1e6
    load = _streams(
        count,
        ramp_ms=2000,
        chunks=max(8, int(seconds * 1e6) // interval),
        interval_us=interval,
    )
    return Work(
        name=f"flat-{count}",
        title=f"{count:,} streams, {FLAT_PER_SECOND:,} chunks/s in all",
        kind=Kind.STREAMS,
        load=load,
        only=(SPECSWITCH, SGLANG_ROUTER, "nginx"),
        group="flat",
        table=Table.STEADY,
    )


def _lag(name: str, others: str, *, clients: int, mib: int) -> Work:
    """What the target answers by itself, asked beside `clients` with bodies of almost `mib` MiB."""
    return Work(
        name=name,
        title=f"the target's own answers, beside {others} with bodies of {mib} MB",
        kind=Kind.REQUESTS,
        load={"clients": 1, "seconds": 3},
        beside={"clients": clients, "seconds": 4, "body": mib * MiB - 4096},
        own_path=True,
        only=CORE,
        table=Table.LATENESS,
    )


_ALL: Final = (
    Work(
        name="requests-1",
        title="1 KB in and out, 1 connection",
        kind=Kind.REQUESTS,
        load={"clients": 1, "seconds": 2},
        quick=True,
        group="one",
    ),
    Work(
        name="requests-32",
        title="1 KB in and out, 32 connections",
        kind=Kind.REQUESTS,
        load={"clients": 32, "seconds": 2},
        quick=True,
    ),
    Work(
        name="requests-256",
        title="1 KB in and out, 256 connections",
        kind=Kind.REQUESTS,
        load={"clients": 256, "seconds": 2, "ramp_ms": 200},
        quick=True,
    ),
    Work(
        name="renew-32",
        title="a new connection for each request, 32 at a time; the client closes",
        kind=Kind.REQUESTS,
        load={"clients": 32, "seconds": 2, "renew": 2},
        quick=True,
    ),
    Work(
        name="close-32",
        title="the same, and the proxy is asked to close",
        kind=Kind.REQUESTS,
        load={"clients": 32, "seconds": 2, "renew": 1},
    ),
    Work(
        name="body-1mb",
        title="1 MB in, 4 connections",
        kind=Kind.REQUESTS,
        load={"clients": 4, "seconds": 2, "body": 1_000_000},
        quick=True,
    ),
    Work(
        name="body-10mb",
        title="10 MB in, 4 connections",
        kind=Kind.REQUESTS,
        load={"clients": 4, "seconds": 3, "body": 10_000_000},
        quick=True,
    ),
    Work(
        name="streams-1",
        title="1 stream, 50 chunks/s",
        kind=Kind.STREAMS,
        load=_streams(1, ramp_ms=0),
    ),
    Work(
        name="streams-64",
        title="64 streams, 50 chunks/s each",
        kind=Kind.STREAMS,
        load=_streams(64, ramp_ms=500),
        quick=True,
    ),
    Work(
        name="streams-256",
        title="256 streams, 50 chunks/s each",
        kind=Kind.STREAMS,
        load=_streams(256, ramp_ms=1000),
        quick=True,
    ),
    Work(
        name="streams-1024",
        title="1,024 streams, 50 chunks/s each",
        kind=Kind.STREAMS,
        load=_streams(1024, ramp_ms=2000),
        quick=True,
        group="scraped",
    ),
    Work(
        name="streams-4096",
        title="4,096 streams, 8 chunks/s each",
        kind=Kind.STREAMS,
        load=_streams(4096, ramp_ms=3000, chunks=40, interval_us=125_000),
        only=FAST,
    ),
    Work(
        name="lockstep-256",
        title="256 streams in lock-step, 50 chunks/s each",
        kind=Kind.STREAMS,
        load={**_streams(256, ramp_ms=1000), "lockstep": 1},
        quick=True,
    ),
    Work(
        name="unpaced-16",
        title="16 streams as fast as they go",
        kind=Kind.STREAMS,
        load=_streams(16, ramp_ms=0, chunks=40_000, interval_us=0),
        quick=True,
    ),
    *(_flat(count) for count in (64, 256, 1024, 4096)),
    Work(
        name="leave-waiting",
        title="32 clients leave before the head, one after the other",
        kind=Kind.LEAVING,
        load={**_streams(32, ramp_ms=320, chunks=500), "first_ms": 3000, "leave_after": 0},
    ),
    Work(
        name="leave-at-once",
        title="32 clients leave before the head, all at once",
        kind=Kind.LEAVING,
        load={**_streams(32, ramp_ms=0, chunks=500), "first_ms": 3000, "leave_after": 0},
    ),
    Work(
        name="leave-reading",
        title="32 clients leave in mid-stream",
        kind=Kind.LEAVING,
        load={**_streams(32, ramp_ms=200, chunks=500), "leave_after": 20},
    ),
    Work(
        name="stall",
        title="one client reads nothing for 30 s",
        kind=Kind.STALL,
        load={"clients": 1, "seconds": 30},
        fresh=True,
        most_rounds=1,
    ),
    Work(
        name="memory-1024",
        title="memory at 1,024 streams",
        kind=Kind.STREAMS,
        load=_streams(1024, ramp_ms=2000),
        fresh=True,
        most_rounds=3,
        table=Table.MEMORY,
    ),
    Work(
        name="scraped-1024",
        title="1,024 streams, metrics read each second",
        kind=Kind.STREAMS,
        load=_streams(1024, ramp_ms=2000),
        scraped=True,
        only=CORE[1:],
        group="scraped",
    ),
    Work(
        name="held-1000",
        title="1 connection, while 1,000 requests wait at the engines",
        kind=Kind.REQUESTS,
        load={"clients": 1, "seconds": 2},
        beside={**_streams(1000, ramp_ms=500, chunks=1), "first_ms": 6000},
        beside_kind=Kind.STREAMS,
        only=CORE,
        group="one",
    ),
    _lag("lag-8mb", "1 connection", clients=1, mib=8),
    _lag("lag-8mb-4", "4 connections", clients=4, mib=8),
    _lag("lag-64mb", "2 connections", clients=2, mib=64),
    Work(
        name="start",
        title="from its start to its first answer",
        kind=Kind.START,
        fresh=True,
        most_rounds=5,
    ),
)

WORKS: Final = {work.name: work for work in _ALL}
"""In the order of the table."""
