"""What the pair did in the last 15 minutes, second by second, for whoever looks later.

A request costs nothing for it: once a second the counts that there are anyway are read.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from proxy.control.metrics import Metrics
from proxy.control.observers import Deaf
from proxy.control.tallies import Sum
from proxy.core.dispatch import Dispatcher
from proxy.core.modes import Switch
from proxy.core.words import UpstreamName

INTERVAL_SECONDS = 1.0
"""Finer than a person can tell apart in a plot of 15 minutes that is 900 pixels wide."""
KEPT = 900
"""Rows: 15 minutes, in some 700 kB."""
SWITCHES_KEPT = 50
"""Changes of mode; `policy.flap_limit` allows no more than that within 12 minutes by default."""
_DIGITS = 6
"""Of a second: microseconds."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What requests that ended have added up to, by upstream; seconds."""

    first_token: Sum
    per_token: Sum


@dataclass(frozen=True, slots=True)
class Row:
    """One second."""

    at: float
    """Its end, in seconds since the process began."""
    mode: UpstreamName
    spec: int
    """Sequences in flight there when the pair had most within the second."""
    base: int
    offered: float | None
    """Offered work over the fast window, output tokens/s; None before any length is known."""
    queue_depth: int
    times: dict[UpstreamName, Sums]
    """Of the requests that ended within it."""


@dataclass(frozen=True, slots=True)
class PastSwitch:
    """A switch, and when."""

    at: float
    """In seconds since the process began."""
    day: int
    """The time of day, in nanoseconds since 1970."""
    switch: Switch


class History(Deaf):
    """An observer that keeps the last switches, and a look at the pair for each second.

    `clock` is monotonic, in seconds; `wall` the time of day, in nanoseconds since 1970.
    """

    def __init__(
        self, metrics: Metrics, *, clock: Callable[[], float], wall: Callable[[], int]
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._began = clock()
        self._due = self._began + INTERVAL_SECONDS
        self._spec = 0
        self._base = 0
        self._before = {name: self._sums(name) for name in UpstreamName}
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self._switches: deque[PastSwitch] = deque(maxlen=SWITCHES_KEPT)

    @property
    def now(self) -> float:
        """Seconds since the process began."""
        return self._since(self._clock())

    def switched(self, switch: Switch) -> None:
        """Keep it."""
        self._switches.append(PastSwitch(self.now, self._wall(), switch))

    def look(self, dispatcher: Dispatcher, now: float) -> None:
        """Look at the pair, several times a second; what it had most of is what is kept."""
        counts = dispatcher.in_flight
        if counts.total >= self._spec + self._base:
            self._spec, self._base = counts.spec, counts.base
        if now < self._due:
            return
        # On a grid, so that looks which come a little late do not add up.
        self._due = now + INTERVAL_SECONDS - (now - self._due) % INTERVAL_SECONDS
        self._keep(dispatcher, now)
        self._spec, self._base = counts.spec, counts.base

    def rows(self, after: float) -> list[Row]:
        """Those that ended later than `after`, oldest first."""
        found = [*takewhile(lambda each: each.at > after, reversed(self._rows))]
        found.reverse()
        return found

    def switches(self, after: float) -> list[PastSwitch]:
        """The last ones, newest first, likewise."""
        return [*takewhile(lambda each: each.at > after, reversed(self._switches))]

    def _keep(self, dispatcher: Dispatcher, now: float) -> None:
        sums = {name: self._sums(name) for name in UpstreamName}
        before, self._before = self._before, sums
        known = dispatcher.lengths.output_tokens is not None
        self._rows.append(
            Row(
                at=self._since(now),
                mode=dispatcher.mode,
                spec=self._spec,
                base=self._base,
                offered=dispatcher.controller.offered_fast(now) if known else None,
                queue_depth=len(dispatcher.room),
                times={name: _between(before[name], sums[name]) for name in UpstreamName},
            )
        )

    def _since(self, now: float) -> float:
        # As it is told: whoever asks for what came after a row must not be given that row again.
        return round(now - self._began, _DIGITS)

    def _sums(self, name: UpstreamName) -> Sums:
        return Sums(self._metrics.first_token(name), self._metrics.per_token(name))


def _between(before: Sums, now: Sums) -> Sums:
    return Sums(now.first_token - before.first_token, now.per_token - before.per_token)
