"""What the admin listener says of the last 15 minutes: a column for each thing, a row a second."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from pydantic import BaseModel

from proxy.control.history import INTERVAL_SECONDS, History, PastSwitch, Row, Sums
from proxy.control.state import day
from proxy.control.tallies import Sum
from proxy.core.words import SwitchReason, UpstreamName

_DIGITS = 6
"""Microseconds, and as much of a token: more would be noise that makes the answer longer."""


class Times(BaseModel):
    """Of the requests that ended within each second: how many have this time, and its sum."""

    requests: list[int]
    seconds: list[float]


class UpstreamColumns(BaseModel):
    """One upstream."""

    in_flight: list[int]
    time_to_first_token: Times
    time_per_output_token: Times


class SwitchLine(BaseModel):
    """One change of mode."""

    time: datetime
    """The time of day."""
    at: float
    to: UpstreamName
    reason: SwitchReason
    in_flight: int


class HistoryColumns(BaseModel):
    """The last 15 minutes, oldest first; the switches newest first. null is unknown."""

    started: datetime
    """When the process began whose seconds these are; time of day."""
    now: float
    """Seconds since then."""
    interval: float
    at: list[float]
    """The end of each second, on the same clock."""
    mode: list[UpstreamName]
    offered: list[float | None]
    queue_depth: list[int]
    upstreams: dict[UpstreamName, UpstreamColumns]
    switches: list[SwitchLine]


def columns(history: History, started: datetime, after: float) -> HistoryColumns:
    """What happened later than `after`, in seconds since the process `started`."""
    rows = history.rows(after)
    return HistoryColumns(
        started=started,
        now=history.now,
        interval=INTERVAL_SECONDS,
        at=[each.at for each in rows],
        mode=[each.mode for each in rows],
        offered=[None if each.offered is None else round(each.offered, 1) for each in rows],
        queue_depth=[each.queue_depth for each in rows],
        upstreams={name: _upstream(name, rows) for name in UpstreamName},
        switches=[_line(each) for each in history.switches(after)],
    )


def _upstream(name: UpstreamName, rows: Sequence[Row]) -> UpstreamColumns:
    spec = name is UpstreamName.SPEC
    sums = [each.times[name] for each in rows]
    return UpstreamColumns(
        in_flight=[each.spec if spec else each.base for each in rows],
        time_to_first_token=_times(sums, lambda each: each.first_token),
        time_per_output_token=_times(sums, lambda each: each.per_token),
    )


def _times(sums: Iterable[Sums], which: Callable[[Sums], Sum]) -> Times:
    chosen = [which(each) for each in sums]
    return Times(
        requests=[each.count for each in chosen],
        seconds=[round(each.total, _DIGITS) for each in chosen],
    )


def _line(changed: PastSwitch) -> SwitchLine:
    switch = changed.switch
    return SwitchLine(
        time=day(changed.day),
        at=changed.at,
        to=switch.to,
        reason=switch.reason,
        in_flight=switch.in_flight,
    )
