"""The last decisions, with their reasons, for an operator who asks why a request went there."""

from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from proxy.control.decision_list import DecisionLine, DecisionList
from proxy.control.observers import Deaf
from proxy.core.observer import Record
from proxy.core.words import Outcome

KEPT = 1000
"""How many are kept: some 600 kB."""


class Decisions(Deaf):
    """An observer that keeps the last records of requests that were given a place.

    `running` gives the records so far of those that have one now: they are asked for when somebody
    looks, so that a request costs nothing for it. `clock` is monotonic, in seconds, `wall` the time
    of day, in nanoseconds since 1970. Both are read at a request's end and not when somebody looks:
    if the time of day is set meanwhile, what was decided before stays where it was. The sum of the
    two can wait.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall: Callable[[], int],
        running: Callable[[], Iterable[Record]] = tuple,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._running = running
        self._ended: deque[tuple[float, float, int, Record]] = deque(maxlen=KEPT)

    def ended(self, record: Record) -> None:
        """Keep it, if it had a place."""
        if record.decided_at is not None:
            self._ended.append((record.decided_at, self._clock(), self._wall(), record))

    def newest(self) -> DecisionList:
        """Of those that run and those that have ended, the last ones."""
        now, day = self._clock(), self._wall()
        running = [
            (record.decided_at, now, day, record, None)
            for record in self._running()
            if record.decided_at is not None
        ]
        ended = [(at, then, date, r, r.outcome) for at, then, date, r in self._ended]
        # Stable: of two at the same moment, the one that was told last comes first.
        found = sorted((*running, *reversed(ended)), key=lambda each: each[0], reverse=True)
        return DecisionList(decisions=[_line(*each) for each in found[:KEPT]])


def _line(at: float, now: float, day: int, record: Record, outcome: Outcome | None) -> DecisionLine:
    """The line of a decision made `at`, where `now` is the monotonic stamp of the time `day`.

    `day` in nanoseconds since 1970, the others in seconds.
    """
    assert record.upstream is not None  # noqa: S101 - who was decided has a place
    assert record.reason is not None  # noqa: S101 - and a place has these
    assert record.mode is not None  # noqa: S101
    return DecisionLine(
        time=datetime.fromtimestamp(day / 1e9 - (now - at), UTC),
        request_id=record.request_id,
        endpoint=record.endpoint,
        upstream=record.upstream,
        reason=record.reason,
        mode=record.mode,
        in_flight=record.in_flight,
        outcome=outcome,
    )
