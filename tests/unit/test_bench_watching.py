"""What the admin listener tells of a measured stretch, and when it tells nothing."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import httpx2
import pytest

from proxy.errors import SpecswitchError
from proxy.tools.asking import connect
from proxy.tools.bench.watching import (
    Reading,
    Watched,
    both_active_share,
    parse,
    per_minute,
    read,
    watching,
)
from tests.harness.upstream import reply

TEXT = """\
# HELP specswitch_mode_switches_total Changes of mode.
# TYPE specswitch_mode_switches_total counter
specswitch_mode_switches_total{reason="calm",to="spec"} 3.0
specswitch_mode_switches_total{reason="in_flight",to="base"} 4.0
specswitch_both_active_seconds_total 12.5
specswitch_mode{mode="spec"} 0.0
specswitch_mode{mode="base"} 1.0
specswitch_mode_wanted{mode="spec"} 1.0
specswitch_in_flight{upstream="spec"} 0.0
specswitch_in_flight{upstream="base"} 7.0
specswitch_crossover_in_flight +Inf
specswitch_loop_lag_seconds_bucket{le="+Inf"} 9.0
"""


def reading(at: float, switches: float = 0.0, both: float = 0.0) -> Reading:
    """One reading."""
    return Reading(at, switches, both, "spec", {})


def watched(*readings: Reading, whole: bool = True) -> Watched:
    """A stretch."""
    return Watched(list(readings), whole=whole)


def test_metrics_are_read() -> None:
    """Switches of all reasons are added up; other names and values do not matter."""
    assert parse(TEXT, 5.0) == Reading(5.0, 7.0, 12.5, "base", {"spec": 0.0, "base": 7.0})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no specswitch_mode_switches_total"),
        ("sglang:num_running_reqs 3\n", "no specswitch_mode_switches_total"),
        (TEXT.replace("12.5", "NaN"), "hold NaN as a number"),
        (TEXT.replace("12.5", "abc"), "hold 'abc' as a number"),
    ],
)
def test_metrics_of_somebody_else(text: str, said: str) -> None:
    """What is missing or no number is named."""
    with pytest.raises(SpecswitchError, match=said):
        parse(text, 0.0)


def test_rates_over_stretches() -> None:
    """Counts and times of the stretches are added; what was between them does not count."""
    stretches = [
        watched(reading(0, 5, 1), reading(30, 6, 2), reading(60, 7, 4)),
        watched(reading(600, 20, 50), reading(660, 20, 53)),
    ]
    assert per_minute(stretches) == 1.0
    assert both_active_share(stretches) == 0.05


@pytest.mark.parametrize(
    "stretch",
    [
        watched(reading(0, 5, 5), reading(30, 1, 1), reading(60, 8, 8)),  # started anew
        watched(reading(30), reading(60, 3, 3), whole=False),  # silent at one end
        watched(whole=False),
        watched(reading(30, 3, 3)),  # no time between
    ],
)
def test_what_is_not_known(stretch: Watched) -> None:
    """A restart, a missing end or no time at all: no figure, rather than a wrong one."""
    known = watched(reading(0), reading(60))
    assert per_minute([stretch]) is None
    assert both_active_share([stretch]) is None
    if stretch.seconds > 0:
        assert per_minute([known, stretch]) is None
    assert per_minute([]) is None


def _text(switches: int) -> bytes:
    """Metrics with so many switches."""
    return re.sub(r"(?m)^specswitch_mode_switches.*\n", "", TEXT).encode() + (
        b"specswitch_mode_switches_total %d.0\n" % switches
    )


class _Admin:
    """An admin listener that answers by a script, then no more."""

    def __init__(self, *answers: bytes) -> None:
        self.asked = 0
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        if self._answers:
            writer.write(self._answers.pop(0))
            await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def _listening(*answers: bytes) -> AsyncIterator[tuple[_Admin, httpx2.AsyncClient]]:
    admin = _Admin(*answers)
    server = await asyncio.start_server(admin.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, connect(f"http://127.0.0.1:{port}") as client:
        yield admin, client


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    return reply(body, status=status, content_type="text/plain", headers={"connection": "close"})


async def test_watching() -> None:
    """It reads at both ends, and now and then between."""
    ticks = count()
    polled = asyncio.Event()

    async def sleep(_: float) -> None:
        if admin.asked > 2:
            polled.set()
            await asyncio.Event().wait()

    answers = [_answer(_text(switches)) for switches in (3, 4, 4, 9)]
    async with (
        _listening(*answers) as (admin, client),
        watching(client, lambda: float(next(ticks)), sleep) as stretch,
    ):
        await asyncio.wait_for(polled.wait(), 10)
    assert stretch.whole
    assert stretch.switches == 6.0
    assert (len(stretch.readings), stretch.missed, stretch.seconds) == (4, 0, 3.0)


async def test_a_listener_that_went_away() -> None:
    """It is missed, and nothing is concluded; the measuring goes on."""
    async with (
        _listening(_answer(_text(3))) as (_, client),
        watching(client, lambda: 0.0) as stretch,
    ):
        pass
    assert (stretch.whole, stretch.missed, stretch.switches) == (False, 1, None)


async def test_without_an_admin_listener() -> None:
    """There is nothing to see, and that is no fault."""
    async with watching(None, lambda: 0.0) as stretch:
        pass
    assert stretch == Watched()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_answer(b"x", "404 Not Found"), "/metrics answers 404"),
        (_answer(b"x 1\n"), "not a specswitch's"),
        (b"", "does not answer"),
    ],
)
async def test_what_is_no_specswitch(answer: bytes, said: str) -> None:
    """It is said before anything is measured, with the address."""
    async with _listening(answer) as (_, client):
        with pytest.raises(SpecswitchError, match=said):
            await read(client, lambda: 0.0)
