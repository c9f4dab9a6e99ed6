"""What is logged of requests and of the pair, by the short way and by `logging`."""

import json
import logging
import os
import re
from collections.abc import Iterator
from random import Random
from time import time_ns

import pytest
from msgspec.structs import replace

from proxy.control.log import BufferedLog, LogFormat, json_line, logging_to
from proxy.control.logged import LogObserver, TimeOfDay
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
from tests.harness.lines import NASTY, Pipe, entry, opened_pipe

# What is told ----------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Where a log writes."""
    with opened_pipe() as ends:
        yield ends


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
    observer: Observer = LogObserver(None, time_ns)
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
    LogObserver(None, time_ns).ended(RECORD)
    failed = Record(request_id="r2", endpoint="other", method="GET", outcome=Outcome.FAILED)
    failed.code = "upstream_reset"

    LogObserver(None, time_ns).ended(failed)

    level, _, fields = told(caplog)
    assert level == "WARNING"
    assert fields["code"] == "upstream_reset"
    assert "upstream" not in fields


def test_a_switch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """What the controller wants too: under `observe` nothing else comes of it."""
    caplog.set_level(logging.INFO, "proxy")
    switch = Switch(UpstreamName.BASE, SwitchReason.IN_FLIGHT, 5.0, 4)
    observer = LogObserver(None, time_ns)

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
    LogObserver(None, time_ns).health_changed(
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

    LogObserver(None, time_ns).health_changed(UpstreamName.BASE, Health.HEALTHY, None, "")

    assert told(caplog) == ("INFO", "base is healthy", {"upstream": "base", "health": "healthy"})


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
        LogObserver(log, time_ns).ended(record)
        LogObserver(None, time_ns).ended(record)
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
        short, long = LogObserver(log, time_ns), LogObserver(None, time_ns)
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
    observer = LogObserver(log, lambda: next(ticks))
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
    LogObserver(log, time_ns).ended(RECORD)
    LogObserver(log, time_ns).ended(replace(RECORD, outcome=Outcome.FAILED))

    (line,) = pipe.read_lines(1)
    log.close()

    assert json.loads(line)["level"] == "warning"
    assert not caplog.records


def test_a_reload_changes_the_next_line(pipe: Pipe) -> None:
    """Form and level are asked for at each line, also on the short way."""
    with logging_to(pipe.writer, form=LogFormat.JSON) as log:
        observer = LogObserver(log, time_ns)
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
    LogObserver(log, time_ns).ended(RECORD)
    log.close()

    assert told(caplog)[2]["request_id"] == "r1"


def test_what_finds_no_room_is_counted(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    """A full buffer, or one that is closed, drops a request's line as any other."""
    caplog.set_level(logging.INFO, "proxy")
    log = BufferedLog(pipe.writer, as_json=True, capacity=1)
    log.handle(entry("x" * 200_000))  # more than a pipe holds
    assert os.read(pipe.reader, 1)  # the writer has taken it, and is stuck
    for _ in range(3):
        LogObserver(log, time_ns).ended(RECORD)

    assert log.dropped == 2
    pipe.read_lines(2)
    log.close()
    LogObserver(log, time_ns).ended(RECORD)
    assert log.dropped == 3
