"""What is logged: a line at the end of each request, and what changes in the pair.

Bodies, headers and keys never are.
"""

import logging
from collections.abc import Callable
from math import floor

import msgspec

from proxy.control.log import BufferedLog, iso
from proxy.control.observers import Deaf
from proxy.control.request_line import RequestLine
from proxy.core.modes import Switch
from proxy.core.observer import Record
from proxy.core.words import EjectionCause, Health, Outcome, UpstreamName


class TimeOfDay:
    """The time of day as a line tells it; one text for all lines of a millisecond.

    `wall` tells the nanoseconds since 1970. To write a time out costs as much as all the rest of a
    request's line.
    """

    __slots__ = ("_at", "_text", "_wall")

    def __init__(self, wall: Callable[[], int]) -> None:
        self._wall = wall
        self._at = -1
        self._text = ""

    def now(self) -> str:
        """ISO 8601, UTC, with milliseconds."""
        at = self._wall() // 1_000_000
        if at != self._at:
            self._at = at
            self._text = iso(at / 1000)
        return self._text


class LogObserver(Deaf):
    """Tells the log of requests, one line at the end of each, and of changes in the pair.

    A request's line in JSON goes to `log` by the short way: the records, searches and locks of
    `logging` cost more than all the rest of the request.
    """

    def __init__(self, log: BufferedLog | None, wall: Callable[[], int]) -> None:
        self._log = log
        self._time = TimeOfDay(wall)
        self._requests = logging.getLogger("proxy.requests")
        self._pair = logging.getLogger("proxy.pair")

    def ended(self, record: Record) -> None:
        """One line for the request; it says also what came before its end."""
        level = logging.WARNING if record.outcome is Outcome.FAILED else logging.INFO
        if not self._requests.isEnabledFor(level):
            return
        log = self._log
        if log is not None and log.as_json and _is_plain(record):
            name = "info" if level == logging.INFO else "warning"
            log.put(_LINE.encode(_line_of(record, self._time.now(), name)) + b"\n")
        else:
            self._requests.log(level, "request", extra={"fields": _told(record)})

    def switched(self, switch: Switch) -> None:
        """The mode changed."""
        self._pair.info("mode is now %s", switch.to, extra={"fields": _of_switch(switch)})

    def wanted(self, switch: Switch) -> None:
        """The controller changed its mind; under `observe` this line is all that comes of it."""
        self._pair.info("controller wants %s", switch.to, extra={"fields": _of_switch(switch)})

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """The servers are those that were calibrated, or not."""
        if not faults:
            self._pair.info("the servers are those that were calibrated")
            return
        self._pair.error(
            "the calibration is of other servers, so generation goes to base: %s; "
            "run `specswitch calibrate` again",
            "; ".join(faults),
        )

    def held(self, seconds: float) -> None:
        """The mode is kept on base."""
        self._pair.warning("the mode has changed too often: it stays base for %.0f s", seconds)

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """An upstream's health changed."""
        level = logging.WARNING if health is Health.EJECTED else logging.INFO
        fields: dict[str, object] = {"upstream": upstream, "health": health}
        if cause is not None:
            fields["cause"] = cause
        if detail:
            fields["detail"] = detail
        self._pair.log(level, "%s is %s", upstream, health, extra={"fields": fields})


_LINE = msgspec.json.Encoder()


def _line_of(record: Record, at: str | None, level: str | None) -> RequestLine:
    """The line, told `at` a time of day; both None where `logging` puts its own."""
    return RequestLine(
        at,
        level,
        None if at is None else "proxy.requests",
        None if at is None else "request",
        record.request_id,
        record.endpoint,
        record.method,
        record.key_name,
        record.upstream,
        record.reason,
        record.mode,
        record.outcome,
        record.status,
        record.code,
        record.stream,
        record.sequences,
        record.attempts,
        _rounded(record.waited_seconds),
        _rounded(record.first_token_seconds),
        _rounded(record.duration_seconds),
        record.output_tokens,
        record.request_bytes,
        record.response_bytes,
    )


def _told(record: Record) -> dict[str, object]:
    """The same for a line that `logging` makes."""
    line = msgspec.structs.asdict(_line_of(record, None, None))
    return {name: value for name, value in line.items() if value is not None}


def _is_plain(record: Record) -> bool:
    """Whether the words that are not ours can stand in a line as they are: the rest always can."""
    key_name, code = record.key_name, record.code
    return (key_name is None or _is_word(key_name)) and (code is None or _is_word(code))


def _is_word(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _of_switch(switch: Switch) -> dict[str, object]:
    return {"mode": switch.to, "reason": switch.reason, "in_flight": switch.in_flight}


def _rounded(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    return floor(seconds * 1_000_000 + 0.5) / 1_000_000  # `round` costs ten times as much
