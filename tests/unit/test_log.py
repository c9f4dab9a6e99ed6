"""Log lines: whole, one line each, and never in the way."""

import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from proxy.control.log import (
    BufferedLog,
    LogFormat,
    LogObserver,
    TimeOfDay,
    json_line,
    logging_to,
    text_line,
)
from proxy.core.modes import Switch
from proxy.core.observer import Observer, Record
from proxy.core.route import REASONS
from proxy.core.words import (
    EjectionCause,
    Health,
    Outcome,
    RetryCause,
    SwitchReason,
    UpstreamName,
)

NASTY = 'a\nb\r\x1b[31m\x00\x85\u2028"= \ud800é'


class Pipe(NamedTuple):
    """Where a log writes, and where the test reads."""

    reader: int
    writer: int

    def read_lines(self, count: int) -> list[bytes]:
        """Wait for `count` lines and return them."""
        found = b""
        while found.count(b"\n") < count:
            piece = os.read(self.reader, 65536)
            assert piece
            found += piece
        return found.splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe, which blocks when nobody reads, as a terminal or a collector does."""
    ends = Pipe(*os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def entry(message: str, *args: object, **extra: object) -> logging.LogRecord:
    """A record as a logger makes them."""
    record = logging.LogRecord("proxy.x", logging.WARNING, "f.py", 1, message, args, None)
    record.__dict__.update(extra)
    return record


def failed() -> logging.LogRecord:
    """A record with a traceback whose message has lines of its own."""
    record = entry("it broke")
    with pytest.raises(ValueError, match="two") as caught:
        fail()
    record.exc_info = (caught.type, caught.value, caught.tb)
    return record


def fail() -> None:
    """Raise what a library might."""
    raise ValueError("one\ntwo\x1b[31m")


# One line --------------------------------------------------------------------------------------


def test_a_json_line_holds_everything() -> None:
    """Time with its zone, level, logger, message and the fields, in one object."""
    line = json_line(entry("hello %s", "you", fields={"upstream": UpstreamName.SPEC, "n": 2}))

    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "proxy.x",
        "message": "hello you",
        "upstream": "spec",
        "n": 2,
    }


@pytest.mark.parametrize("render", [json_line, text_line])
def test_nothing_can_break_a_line_or_colour_a_screen(render: type) -> None:
    """Values come from engines and clients; a forged second line would be believed."""
    line = render(entry("%s", NASTY, fields={"detail": NASTY}))

    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert len(line.splitlines()) == 1


def test_json_gives_back_what_was_logged() -> None:
    """Escaping loses nothing."""
    told = json.loads(json_line(entry("%s", NASTY, fields={"detail": NASTY, "x": {1}})))

    assert told["message"] == told["detail"] == NASTY
    assert told["x"] == "{1}"


def test_text_is_readable() -> None:
    """Plain values stand bare, others in quotes."""
    fields = {"a": "b", "n": 1.5, "detail": "two words", "empty": "", "mode": UpstreamName.BASE}

    line = text_line(entry("hello", fields=fields))

    assert line.endswith(
        'WARNING hello  a=b  n=1.5  detail="two words"  empty=""  mode=base\n',
    )


def test_a_traceback_belongs_to_its_line() -> None:
    """In JSON it is a field, in text it is marked, and neither lets a message start a line."""
    assert json.loads(json_line(failed()))["exception"].endswith("two\x1b[31m")
    first, *rest = text_line(failed()).splitlines()
    assert first.endswith("it broke")
    assert rest[-1] == "    | two\\x1b[31m"
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)


def test_a_wrong_log_call_is_still_logged() -> None:
    """A format that does not fit must not end a request, and must be seen."""
    line = json_line(entry("%d of %d", "x"))

    assert json.loads(line)["message"] == "%d of %d ('x',)"


# Never in the way ------------------------------------------------------------------------------


def test_lines_come_out_in_order(pipe: Pipe) -> None:
    """What is logged is written, by another thread, in the order of logging."""
    log = BufferedLog(pipe.writer, as_json=True)
    log.handle(entry("x" * 200_000))  # more than a pipe holds: the rest piles up behind it
    assert os.read(pipe.reader, 1)
    for number in range(1200):
        log.handle(entry("%d", number))

    _, *lines = pipe.read_lines(1201)

    assert [json.loads(line)["message"] for line in lines] == [str(n) for n in range(1200)]
    assert log.dropped == 0
    log.close()


def test_a_stalled_reader_costs_lines_and_no_time(pipe: Pipe) -> None:
    """A full buffer drops and counts; what it held is written when the reader is back."""
    log = BufferedLog(pipe.writer, as_json=False, capacity=3)
    log.handle(entry("x" * 200_000))  # more than a pipe holds
    assert os.read(pipe.reader, 1)  # the writer has taken it, and is stuck

    for number in range(5):
        log.handle(entry("%d", number))

    assert log.dropped == 2
    assert [line[-1:] for line in pipe.read_lines(4)] == [b"x", b"0", b"1", b"2"]
    log.close()
    log.handle(entry("after the end"))
    assert log.dropped == 3


def test_closing_writes_what_is_left(pipe: Pipe) -> None:
    """The last lines of a process are often the ones that matter."""
    log = BufferedLog(pipe.writer, as_json=False)
    log.handle(entry("the last"))
    log.close()
    log.close()

    assert pipe.read_lines(1)[0].endswith(b"the last")
    assert not log._thread.is_alive()


def test_closing_does_not_wait_for_ever(pipe: Pipe) -> None:
    """A reader that is stuck does not keep the process."""
    log = BufferedLog(pipe.writer, as_json=False)
    log.handle(entry("x" * 200_000))
    assert os.read(pipe.reader, 1)

    log.close(0.01)

    assert log._thread.is_alive()
    pipe.read_lines(1)
    log._thread.join(10)
    assert not log._thread.is_alive()


def test_a_reader_that_went_away_is_counted() -> None:
    """A broken pipe ends no thread: each line is tried."""
    reader, writer = os.pipe()
    os.close(reader)
    log = BufferedLog(writer, as_json=False)
    log.handle(entry("nobody hears"))
    log.close()
    os.close(writer)

    assert log.dropped == 1


def test_a_non_blocking_terminal_loses_nothing(pipe: Pipe) -> None:
    """Whoever shares our terminal may have made it non-blocking."""
    os.set_blocking(pipe.writer, False)
    log = BufferedLog(pipe.writer, as_json=False)
    log.handle(entry("x" * 200_000))

    assert len(pipe.read_lines(1)[0]) > 200_000
    assert log.dropped == 0
    log.close()


# Where it goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "is_json"), [(LogFormat.JSON, True), (LogFormat.TEXT, False), (LogFormat.AUTO, True)]
)
def test_the_form_is_chosen(pipe: Pipe, form: LogFormat, is_json: bool) -> None:  # noqa: FBT001 - a parameter
    """Left to itself it is JSON where nobody sits in front of it."""
    with logging_to(pipe.writer, form=form):
        logging.getLogger("proxy.y").info("hello")

    assert pipe.read_lines(1)[0].startswith(b"{") is is_json


def test_a_terminal_gets_text() -> None:
    """Left to itself it is text where somebody does."""
    reader, writer = os.openpty()
    with logging_to(writer):
        logging.getLogger("proxy.y").info("hello")
    found = os.read(reader, 4096)
    os.close(writer)
    os.close(reader)

    assert found.rstrip().endswith(b"INFO    hello")


def test_libraries_may_only_warn(pipe: Pipe) -> None:
    """The HTTP client tells of each request at INFO, and so would of each probe."""
    with logging_to(pipe.writer, level="debug"):
        logging.getLogger("httpx2").info("HTTP Request: GET http://me:secret@engine")
        logging.getLogger("httpx2").warning("w")
        logging.getLogger("proxy.y").debug("d")

    assert [json.loads(line)["message"] for line in pipe.read_lines(2)] == ["w", "d"]


def test_logging_is_left_as_it_was(pipe: Pipe) -> None:
    """Tests and commands start and stop it many times in one process."""
    root, own = logging.getLogger(), logging.getLogger("proxy")
    before = (root.level, own.level, list(root.handlers))

    with logging_to(pipe.writer, level="error"):
        assert root.level == own.level == logging.ERROR

    assert (root.level, own.level, list(root.handlers)) == before


# What is told ----------------------------------------------------------------------------------

RECORD = Record(
    request_id="r1",
    endpoint="/v1/chat/completions",
    method="POST",
    key_name="alice",
    upstream=UpstreamName.SPEC,
    reason="mode",
    mode=UpstreamName.SPEC,
    outcome=Outcome.OK,
    status=200,
    stream=True,
    sequences=1,
    attempts=1,
    first_token_seconds=0.0123456789,
    duration_seconds=1.5,
    output_tokens=12,
    request_bytes=100,
    response_bytes=2000,
)


def told(caplog: pytest.LogCaptureFixture) -> tuple[str, str, dict[str, object]]:
    """Level, message and fields of the one line logged."""
    (record,) = caplog.records
    return record.levelname, record.getMessage(), record.__dict__["fields"]


def test_one_line_a_request(caplog: pytest.LogCaptureFixture) -> None:
    """With what an operator asks for, and without what is unknown."""
    caplog.set_level(logging.INFO, "proxy")
    observer: Observer = LogObserver()
    observer.started()
    observer.decided(UpstreamName.SPEC, "mode")
    observer.retried(RetryCause.CONNECT)

    observer.ended(RECORD)

    assert told(caplog) == (
        "INFO",
        "request",
        {
            "request_id": "r1",
            "endpoint": "/v1/chat/completions",
            "method": "POST",
            "key_name": "alice",
            "upstream": "spec",
            "reason": "mode",
            "mode": "spec",
            "outcome": "ok",
            "status": 200,
            "stream": True,
            "sequences": 1,
            "attempts": 1,
            "first_token_seconds": 0.012346,
            "duration_seconds": 1.5,
            "output_tokens": 12,
            "request_bytes": 100,
            "response_bytes": 2000,
        },
    )


def test_a_failed_request_warns(caplog: pytest.LogCaptureFixture) -> None:
    """That is the upstream's fault, so somebody should look; and our own code is named."""
    caplog.set_level(logging.WARNING, "proxy")
    LogObserver().ended(RECORD)
    failed = Record(request_id="r2", endpoint="other", method="GET", outcome=Outcome.FAILED)
    failed.code = "upstream_reset"

    LogObserver().ended(failed)

    level, _, fields = told(caplog)
    assert level == "WARNING"
    assert fields["code"] == "upstream_reset"
    assert "upstream" not in fields


def test_a_switch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """What the controller wants too: under `observe` nothing else comes of it."""
    caplog.set_level(logging.INFO, "proxy")
    switch = Switch(UpstreamName.BASE, SwitchReason.IN_FLIGHT, 5.0, 4)
    observer = LogObserver()

    observer.wanted(switch)
    observer.switched(switch)

    assert [record.getMessage() for record in caplog.records] == [
        "controller wants base",
        "mode is now base",
    ]
    assert caplog.records[1].__dict__["fields"] == {
        "mode": "base",
        "reason": "in_flight",
        "in_flight": 4,
    }


def test_an_ejection_warns_with_its_detail(caplog: pytest.LogCaptureFixture) -> None:
    """Half the pair is gone: with cause, and with what the probe saw."""
    LogObserver().health_changed(
        UpstreamName.SPEC, Health.EJECTED, EjectionCause.PROBE, "http://e/ready answers 503"
    )

    assert told(caplog) == (
        "WARNING",
        "spec is ejected",
        {
            "upstream": "spec",
            "health": "ejected",
            "cause": "probe",
            "detail": "http://e/ready answers 503",
        },
    )


def test_a_recovery_is_good_news(caplog: pytest.LogCaptureFixture) -> None:
    """No warning, no cause, and no detail where there is none."""
    caplog.set_level(logging.INFO, "proxy")

    LogObserver().health_changed(UpstreamName.BASE, Health.HEALTHY, None, "")

    assert told(caplog) == ("INFO", "base is healthy", {"upstream": "base", "health": "healthy"})


def test_lines_gather() -> None:
    """Lines that come close together are written together: a thread woken for each is a brake."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with reader, writer:
        log = BufferedLog(writer.fileno(), as_json=False)
        for number in range(200):
            log.emit(logging.makeLogRecord({"msg": f"line {number}"}))
        log.close()
        writer.close()
        packets = iter(lambda: reader.recv(1 << 20), b"")
        sizes = [packet.count(b"\n") for packet in packets]

    assert sum(sizes) == 200
    assert len(sizes) <= 3


# The short way of a request's line -------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        Record(request_id=None, endpoint="other", method="", status=400, code="bad_request"),
        Record(request_id="f", endpoint="/generate", method="POST", outcome=Outcome.FAILED),
        replace(RECORD, waited_seconds=1 / 3, stream=False, output_tokens=0, status=None),
        replace(RECORD, key_name="zo\u00eb"),
        replace(RECORD, code="\u65e5\u672c"),
        replace(RECORD, code=NASTY),
        replace(RECORD, code="a\x7fb"),
        replace(RECORD, code="a\x1f\nb"),
        replace(RECORD, request_id='",\\"level":"error'),
    ],
)
def test_both_ways_say_the_same(
    record: Record, pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    """Byte for byte but for the time, in ASCII, and the time is of the same form."""
    caplog.set_level(logging.INFO, "proxy")
    with logging_to(pipe.writer, form=LogFormat.JSON) as log:
        LogObserver(log).ended(record)
        LogObserver().ended(record)
        one, other = pipe.read_lines(2)

    assert json.loads(one)["time"][:16] <= json.loads(other)["time"][:16]
    assert re.sub(rb'"time":"[-\d:.T]{23}\+00:00"', b"T", one) == re.sub(
        rb'"time":"[-\d:.T]{23}\+00:00"', b"T", other
    )
    assert one.decode("ascii").isprintable()


def test_many_requests_are_told_as_logging_would(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    """Names, values and their order, whatever is known of a request and whatever is not."""
    caplog.set_level(logging.INFO, "proxy")
    with logging_to(pipe.writer, form=LogFormat.JSON) as log:
        short, long = LogObserver(log), LogObserver()
        for record in map(drawn, range(300)):
            short.ended(record)
            long.ended(record)
        lines = [pairs(line) for line in pipe.read_lines(600)]

    assert lines[::2] == lines[1::2]
    assert all(len(line) >= 10 for line in lines)


def pairs(line: bytes) -> list[tuple[str, object]]:
    """Names and values as they stand in a line, its time left out."""
    told: list[tuple[str, object]] = json.loads(line, object_pairs_hook=list)
    return told[1:]


def drawn(seed: int) -> Record:
    """A record of which any part may be unknown."""
    lot = Random(seed)

    def seconds() -> float | None:
        return lot.choice([None, 0.0, 1e-7, 5e-7, 1.25e-5, 12.0, lot.expovariate(1), 86400.123])

    return Record(
        request_id=lot.choice([None, "r1", '"\\', "!~"]),
        endpoint=lot.choice(["/v1/chat/completions", "other"]),
        method=lot.choice(["", "GET", "POST"]),
        key_name=lot.choice([None, "alice", "a-b_c.9", "zo\u00eb"]),
        upstream=lot.choice([None, *UpstreamName]),
        reason=lot.choice([None, *REASONS]),
        mode=lot.choice([None, *UpstreamName]),
        outcome=lot.choice([*Outcome]),
        status=lot.choice([None, 200, 503, 0]),
        code=lot.choice([None, "429", "upstream_reset", "\u65e5", NASTY, ""]),
        stream=lot.random() < 0.5,
        sequences=lot.choice([0, 1, 128]),
        attempts=lot.choice([0, 1, 2]),
        waited_seconds=seconds(),
        first_token_seconds=seconds(),
        duration_seconds=seconds() or 0.0,
        output_tokens=lot.choice([None, 0, 1, 10**9]),
        request_bytes=lot.choice([0, 10**8]),
        response_bytes=lot.choice([0, 10**12]),
    )


def test_the_time_is_told_to_the_millisecond() -> None:
    """Cut and not rounded, so that no line comes from the future; as `logging` tells it."""
    stamps = [1_796_000_000_000_000_000 + add for add in (0, 999_999, 1_000_000, 999_999_999)]
    ticks = iter([*stamps, 0])
    time = TimeOfDay(lambda: next(ticks))

    told = [time.now() for _ in range(5)]

    assert told == [
        "2026-11-30T00:53:20.000+00:00",
        "2026-11-30T00:53:20.000+00:00",
        "2026-11-30T00:53:20.001+00:00",
        "2026-11-30T00:53:20.999+00:00",
        "1970-01-01T00:00:00.000+00:00",
    ]
    assert all(
        json.loads(json_line(logging.makeLogRecord({"created": stamp / 1e9})))["time"] == text
        for stamp, text in zip(stamps[::2], told[::2], strict=False)
    )


def test_each_line_has_its_own_time(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    """That of its request's end; the first one is not told for ever."""
    caplog.set_level(logging.INFO, "proxy")
    log = BufferedLog(pipe.writer, as_json=True)
    ticks = iter([0, 7_000_000, 60_000_000_000])
    observer = LogObserver(log, clock=lambda: next(ticks))
    for _ in range(3):
        observer.ended(RECORD)
    log.close()

    assert [json.loads(line)["time"][14:23] for line in pipe.read_lines(3)] == [
        "00:00.000",
        "00:00.007",
        "01:00.000",
    ]


def test_the_short_way_is_no_way_around_the_level(
    pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    """What is logged is the level's business, whichever way it takes."""
    caplog.set_level(logging.WARNING, "proxy")
    log = BufferedLog(pipe.writer, as_json=True)
    LogObserver(log).ended(RECORD)
    LogObserver(log).ended(replace(RECORD, outcome=Outcome.FAILED))

    (line,) = pipe.read_lines(1)
    log.close()

    assert json.loads(line)["level"] == "warning"
    assert not caplog.records


def test_a_reload_changes_the_next_line(pipe: Pipe) -> None:
    """Form and level are asked for at each line, also on the short way."""
    with logging_to(pipe.writer, form=LogFormat.JSON) as log:
        observer = LogObserver(log)
        observer.ended(RECORD)
        log.set_to(LogFormat.TEXT, "info")
        observer.ended(RECORD)
        log.set_to(LogFormat.JSON, "warning")
        observer.ended(RECORD)
        log.set_to(LogFormat.JSON, "info")
        observer.ended(RECORD)

    first = [line[:1] for line in pipe.read_lines(3)]
    assert first == [b"{", b"2", b"{"]


def test_text_is_made_by_logging(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    """There is one place that knows how a line for people looks."""
    caplog.set_level(logging.INFO, "proxy")
    log = BufferedLog(pipe.writer, as_json=False)
    LogObserver(log).ended(RECORD)
    log.close()

    assert told(caplog)[2]["request_id"] == "r1"


def test_what_finds_no_room_is_counted(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    """A full buffer, or one that is closed, drops a request's line as any other."""
    caplog.set_level(logging.INFO, "proxy")
    log = BufferedLog(pipe.writer, as_json=True, capacity=1)
    log.handle(entry("x" * 200_000))  # more than a pipe holds
    assert os.read(pipe.reader, 1)  # the writer has taken it, and is stuck
    for _ in range(3):
        LogObserver(log).ended(RECORD)

    assert log.dropped == 2
    pipe.read_lines(2)
    log.close()
    LogObserver(log).ended(RECORD)
    assert log.dropped == 3
