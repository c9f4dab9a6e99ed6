"""How long a client may leave unread what it was sent, and the timer for what is due next."""

import asyncio
from math import inf
from types import SimpleNamespace
from typing import cast

import pytest

from proxy.data.front import Front
from proxy.data.patience import Alarm, Unread
from tests.harness.running import until


def test_a_client_that_takes_nothing() -> None:
    """It has its time, more of it for each byte that it takes, and none for taking nothing."""
    unread = Unread()
    assert unread.cut_at == inf

    unread.falls_behind(100, cut_at=60.0)
    assert not unread.still_falls(99, cut_at=120.0)
    assert unread.cut_at == 120.0
    assert unread.still_falls(99, cut_at=180.0)
    assert unread.cut_at == 120.0

    unread.catches_up()
    assert unread.cut_at == inf


def test_a_client_that_idles_on_an_answer() -> None:
    """It is looked at twice before it is said to take nothing; the next answer begins anew."""
    unread = Unread()
    assert not unread.idles_on(5)
    assert not unread.idles_on(4)
    assert unread.idles_on(4)

    unread.begins_to_idle()

    assert not unread.idles_on(4)


@pytest.mark.interpreted("its front is none")
async def test_the_alarm_rings_no_later_than_what_is_due() -> None:
    """What is due sooner moves it; what is due later does not."""
    loop = asyncio.get_running_loop()
    alarm = Alarm(cast("Front", SimpleNamespace(clock=loop.time)))
    rung: list[str] = []
    now = loop.time()
    alarm.set(now + 3600, lambda: rung.append("late"))
    alarm.set(now, lambda: rung.append("soon"))
    alarm.set(now + 3600, lambda: rung.append("later"))

    await until(lambda: bool(rung), "it rings")

    assert rung == ["soon"]


@pytest.mark.interpreted("its front is none")
async def test_an_alarm_that_is_cancelled() -> None:
    """It does not ring, and can be set again."""
    loop = asyncio.get_running_loop()
    alarm = Alarm(cast("Front", SimpleNamespace(clock=loop.time)))
    rung: list[str] = []
    alarm.set(loop.time(), lambda: rung.append("cancelled"))
    alarm.cancel()
    alarm.set(loop.time(), lambda: rung.append("again"))

    await until(lambda: bool(rung), "it rings")

    assert rung == ["again"]
