"""Servers while they are measured: idle before, caches emptied, nobody else there."""

import asyncio
import time
from collections.abc import Callable

import httpx2
import pytest

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.calibrate import servers as calibrate_servers
from proxy.tools.calibrate.servers import Side, intruder, until_idle
from proxy.tools.doctor.server_info import ServerInfo

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
Handler = Callable[[httpx2.Request], httpx2.Response]


def _side(handler: Handler, name: UpstreamName = SPEC) -> Side:
    client = httpx2.AsyncClient(
        base_url="http://engine", transport=httpx2.MockTransport(handler), trust_env=False
    )
    return Side(ServerInfo(name=name, url="http://engine", known=True), client, "tiny")


def _loads(*counts: tuple[object, object]) -> Handler:
    """A server that says so of its ranks."""
    ranks = [{"num_running_reqs": run, "num_waiting_reqs": wait} for run, wait in counts]
    return lambda _: httpx2.Response(200, json={"loads": ranks})


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (_loads((0, 0)), 0),
        (_loads((3, 1), (2, 0)), 6),
        (_loads((float(2), 0)), None),
        (_loads((-1, 0)), None),
        (_loads(("3", 0)), None),
        (_loads((3, None)), None),
        (_loads(), None),
        (lambda _: httpx2.Response(404), None),
        (lambda _: httpx2.Response(200, content=b"{NaN"), None),
        (lambda _: httpx2.Response(200, content=b"[]"), None),
    ],
)
async def test_what_a_server_has_in_hand(handler: Handler, expected: int | None) -> None:
    """A sum over its ranks; unknown where any part of it is no count."""
    assert await _side(handler).busy() == expected


def _gone(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("connection refused")


async def test_a_server_that_is_gone_is_named() -> None:
    """With its address and what happened."""
    with pytest.raises(
        SpecswitchError, match=r"spec \(http://engine\) does not answer: connection"
    ):
        await _side(_gone).busy()
    with pytest.raises(SpecswitchError, match="does not answer"):
        await _side(_gone).flush()


@pytest.mark.parametrize(("status", "emptied"), [(200, True), (404, False), (401, False)])
async def test_a_cache_is_emptied_where_the_server_lets_us(*, status: int, emptied: bool) -> None:
    """It is a note where it does not."""
    assert await _side(lambda _: httpx2.Response(status)).flush() is emptied


async def test_a_cache_is_emptied_once_the_server_has_dropped_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang says 400 until then."""
    monkeypatch.setattr(calibrate_servers, "_POLL_SECONDS", 0.0)
    statuses = iter([400, 400, 200])
    assert await _side(lambda _: httpx2.Response(next(statuses))).flush()
    assert not await _side(lambda _: httpx2.Response(400)).flush()


async def test_idle_servers_are_waited_for() -> None:
    """Until the last request is gone; who says nothing is told."""
    counts = iter([2, 1, 0])
    spec = _side(lambda _: httpx2.Response(200, json=_body(next(counts))))
    base = _side(lambda _: httpx2.Response(404), BASE)
    found = await until_idle({SPEC: spec, BASE: base}, patience=60.0, clock=time.monotonic)
    assert found == (BASE,)
    assert next(counts, None) is None


def _body(count: int) -> dict[str, object]:
    return {"loads": [{"num_running_reqs": count, "num_waiting_reqs": 0}]}


async def test_a_server_that_stays_busy_is_refused() -> None:
    """What it does is not ours."""
    with pytest.raises(SpecswitchError, match="spec has 2 requests in hand that are not ours"):
        await until_idle({SPEC: _side(_loads((2, 0)))}, patience=0.0, clock=iter(range(9)).__next__)


async def test_an_intruder_is_told_when_seen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look may catch a request that has just been given up."""
    monkeypatch.setattr(calibrate_servers, "_WATCH_SECONDS", 0.0)
    counts = iter([4, 5, 4, 5, 5])
    spec = _side(lambda _: httpx2.Response(200, json=_body(next(counts))))
    async with asyncio.timeout(10):
        said = await intruder({SPEC: spec, BASE: _side(_gone, BASE)}, {SPEC: 4})
    assert said.startswith("spec has 5 requests in hand, of which 4 are ours")
    assert next(counts, None) is None
