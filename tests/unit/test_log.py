"""Log lines: whole, one line each, and never in the way."""

import json
import logging
import os
import socket
from collections.abc import Iterator

import pytest

from proxy.control.log import (
    BufferedLog,
    LogFormat,
    json_line,
    logging_to,
    text_line,
)
from proxy.core.words import (
    UpstreamName,
)
from tests.harness.lines import NASTY, Pipe, entry, opened_pipe


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Where a log writes."""
    with opened_pipe() as ends:
        yield ends


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
