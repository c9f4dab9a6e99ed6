"""A target's metrics: read each second as Prometheus would, and how late its loop says it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Final

from bench.speed.asking import get
from bench.speed.stage import Running

_EVERY_SECONDS: Final = 1.0
_BUCKET: Final = 'specswitch_loop_lag_seconds_bucket{le="'
_TOO_LATE_SECONDS: Final = 0.01


@contextmanager
def scraped(running: Running) -> Iterator[list[float]]:
    """Read its metrics each second; the list gets the seconds of each time."""
    took: list[float] = []
    over = Event()
    thread = Thread(target=_scrape, args=(running, over, took), daemon=True)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def _scrape(running: Running, over: Event, took: list[float]) -> None:
    path = running.target.metrics or "/metrics"
    while not over.wait(_EVERY_SECONDS):
        began = monotonic()
        get(running.site.admin_port, path)
        took.append(monotonic() - began)


@dataclass(frozen=True, slots=True)
class Lag:
    """Counts of specswitch's histogram of how late its loop came back, by upper end in seconds."""

    counts: dict[float, float]
    """Not summed up: how many were in each bucket alone."""

    def __sub__(self, before: "Lag") -> "Lag":
        return Lag({end: n - before.counts.get(end, 0.0) for end, n in self.counts.items()})

    @property
    def most_ms(self) -> float | None:
        """The end of the highest bucket that has any: no lateness was above it."""
        return max((end * 1e3 for end, n in self.counts.items() if n), default=None)

    @property
    def over_10_ms(self) -> int:
        """How often it was later than that."""
        return int(sum(n for end, n in self.counts.items() if end > _TOO_LATE_SECONDS))


def lag_of(running: Running) -> Lag | None:
    """What specswitch has counted up to now; None for all others."""
    if running.process is None or running.target.metrics is None:
        return None
    page = get(running.site.admin_port, running.target.metrics).decode()
    return lag_in(page)


def lag_in(page: str) -> Lag | None:
    """What a page of metrics says of it; None where it says nothing."""
    summed = {}
    for line in page.splitlines():
        if line.startswith(_BUCKET):
            end_text, _, count = line.removeprefix(_BUCKET).partition('"} ')
            summed[float(end_text)] = float(count)
    if not summed:
        return None
    counts, below = {}, 0.0
    for end in sorted(summed):
        counts[end] = summed[end] - below
        below = summed[end]
    return Lag(counts)
