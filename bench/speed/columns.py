"""What the tables show, by the kind of a work."""

from dataclasses import dataclass
from typing import Final

from bench.speed.works import Kind, Table, Work


@dataclass(frozen=True, slots=True)
class Column:
    """A figure, how it is shown, and whether it is compared."""

    title: str
    figure: str
    digits: int = 0
    scale: float = 1.0
    above_direct: bool = False
    """What the target adds to asking directly."""
    compared: bool = False
    """Its ratio to the reference is shown, too."""


_MS: Final = 1e-3
"""Of a figure in microseconds."""

_PERCENT: Final = 100.0

_EXACT: Final = Column("exact %", "exact_share", 1, _PERCENT)
_FOREIGN: Final = Column("others' cores", "foreign", 2)
_LAST: Final = (
    Column("peak MiB", "peak_mib"),
    _EXACT,
    Column("by spec %", "spec_share", 0, _PERCENT),
    _FOREIGN,
)
_REQUESTS: Final = (
    Column("req/s", "per_second", compared=True),
    Column("p50 ms", "us_p50", 3, _MS),
    Column("added p50 ms", "us_p50", 3, _MS, above_direct=True, compared=True),
    Column("p99 ms", "us_p99", 2, _MS, compared=True),
    Column("CPU us/req", "cpu_us", 1, compared=True),
    Column("user", "user_us", 1),
    Column("kernel", "system_us", 1),
    Column("deferred", "deferred_us", 1),
    *_LAST,
)
_STREAMS: Final = (
    Column("in time %", "in_time_share", 1, _PERCENT),
    Column("chunks/s", "per_second", compared=True),
    Column("first p50 ms", "first_us_p50", 2, _MS),
    Column("delay p50 ms", "us_p50", 3, _MS),
    Column("p99 ms", "us_p99", 2, _MS),
    Column("added p99 ms", "us_p99", 2, _MS, above_direct=True, compared=True),
    Column("p99.9 ms", "us_p999", 1, _MS),
    Column("CPU us/chunk", "cpu_us", 2, compared=True),
    Column("user", "user_us", 1),
    Column("kernel", "system_us", 1),
    Column("deferred", "deferred_us", 1),
    *_LAST,
)
_SCRAPES: Final = (
    Column("max ms", "us_max", 1, _MS),
    Column("longest scrape ms", "scrape_ms_max", 1),
)
_STEADY: Final = (
    Column("in time %", "in_time_share", 1, _PERCENT),
    Column("steady CPU us/chunk", "steady_cpu_us", 2, compared=True),
    Column("user", "steady_user_us", 1),
    Column("kernel", "steady_system_us", 1),
    Column("delay p50 ms", "us_p50", 3, _MS),
    Column("p99 ms", "us_p99", 2, _MS),
    *_LAST,
)
_MEMORY: Final = (
    Column("idle MiB", "before_mib", 1),
    Column("peak MiB", "peak_mib", 1, compared=True),
    Column("in time %", "in_time_share", 1, _PERCENT),
)
_LATENESS: Final = (
    Column("p50 ms", "us_p50", 2, _MS),
    Column("p99 ms", "us_p99", 2, _MS),
    Column("max ms", "us_max", 1, _MS),
    Column("added p99 ms", "us_p99", 2, _MS, above_direct=True, compared=True),
    Column("loop late at most ms", "lag_ms_most", 1),
    Column("times over 10 ms", "lag_over_10_ms"),
    _FOREIGN,
)
_LEAVING: Final = (
    Column("closed p50 ms", "closed_ms_p50", 3, compared=True),
    Column("max ms", "closed_ms_max", 1),
    Column("never", "never_closed"),
    _FOREIGN,
)
_STALL: Final = (
    Column("grown MiB", "grown_mib", 1),
    Column("watched s", "watched_s", 1),
)
_START: Final = (
    Column("first answer s", "start_s", 2, compared=True),
    Column("MiB", "peak_mib"),
)
_BY_TABLE: Final = {
    Table.STEADY: _STEADY,
    Table.MEMORY: _MEMORY,
    Table.LATENESS: _LATENESS,
}
_BY_KIND: Final = {
    Kind.REQUESTS: _REQUESTS,
    Kind.STREAMS: _STREAMS,
    Kind.LEAVING: _LEAVING,
    Kind.STALL: _STALL,
    Kind.START: _START,
}


def columns_of(work: Work) -> tuple[Column, ...]:
    """What its table shows."""
    found = _BY_TABLE.get(work.table) or _BY_KIND[work.kind]
    return (*found, *_SCRAPES) if work.scraped else found


@dataclass(frozen=True, slots=True)
class Beside:
    """The same target in two works of a group: what the difference between them costs."""

    title: str
    work: str
    other: str
    figure: str
    minus: bool = False
    """Whether the difference is shown, in milliseconds, in place of the ratio."""


BESIDES: Final = (
    *(
        Beside(
            f"CPU per chunk, {count:,} streams to 64, as many chunks in all",
            f"flat-{count}",
            "flat-64",
            "steady_cpu_us",
        )
        for count in (256, 1024, 4096)
    ),
    Beside("CPU per request, 1,000 in flight to 1", "held-1000", "requests-1", "cpu_us"),
    Beside("latency p50, 1,000 in flight to 1", "held-1000", "requests-1", "us_p50"),
    *(
        Beside(
            f"chunk delay {name}, metrics read each second less not, ms",
            "scraped-1024",
            "streams-1024",
            f"us_{figure}",
            minus=True,
        )
        for name, figure in (("p99", "p99"), ("p99.9", "p999"), ("longest", "max"))
    ),
)
"""Below the tables."""
