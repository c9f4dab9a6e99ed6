"""Clients that do not read, and clients that dribble: what they cost, and whom they slow down."""

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import Final

from bench.reliability.asking import Numbers, ask, milliseconds, percentile, request
from bench.reliability.targets import Target
from tests.harness.client import RawClient
from tests.soak.pair import Engines
from tests.soak.plans import Act, Plan

MIB: Final = 2**20
TOO_MUCH: Final = 1024 * MIB
"""Growth at which a run ends early: it has said what it has to say, and others use the machine."""

SOCKETS: Final = 300
DRIBBLE_SECONDS: Final = 12.0
_BYTE_EVERY: Final = 1.0
_ASKS: Final = 200


async def one_reads_nothing(target: Target, engines: Engines, *, seconds: float) -> Numbers:
    """One client asks for an endless stream and reads nothing, its engine sends what it can."""
    del engines
    before = target.resident()
    most, began = before, time.monotonic()
    async with await RawClient.connect(target.port) as client:
        client.send(request(Plan(id="pump", spec=Act.PUMP, base=Act.PUMP, pad=16384, stream=True)))
        await client.head()
        client.stop_reading()
        while time.monotonic() - began < seconds and most - before < TOO_MUCH:
            await asyncio.sleep(0.1)
            most = max(most, target.resident())
    return {
        "one client reads nothing: memory, MiB": (most - before) / MIB,
        "one client reads nothing: watched, s": time.monotonic() - began,
    }


async def many_dribble(target: Target, engines: Engines) -> Numbers:
    """300 sockets send a byte a second, half of them heads and half bodies; others ask as usual."""
    del engines
    alone = await _asks(target.port, "alone")
    before = target.resident()
    async with AsyncExitStack() as sockets, asyncio.TaskGroup() as dribblers:
        ends = asyncio.get_running_loop().time() + DRIBBLE_SECONDS
        for number in range(SOCKETS):
            client = await sockets.enter_async_context(await RawClient.connect(target.port))
            dribblers.create_task(_dribble(client, ends, body=number % 2 == 0))
        beside = await _asks(target.port, "beside")
        grown = target.resident() - before
    return {
        "300 dribble: p50 alone, ms": milliseconds(percentile(alone, 0.5)),
        "300 dribble: p50 beside, ms": milliseconds(percentile(beside, 0.5)),
        "300 dribble: p99 alone, ms": milliseconds(percentile(alone, 0.99)),
        "300 dribble: p99 beside, ms": milliseconds(percentile(beside, 0.99)),
        "300 dribble: memory, MiB": grown / MIB,
        "300 dribble: others not answered": float(_ASKS - len(beside)),
    }


async def _asks(port: int, name: str) -> list[float]:
    """Seconds to the head of requests that came to their end, one after the other."""
    answers = [
        await ask(port, Plan(id=f"{name}-{number}", pieces=4, between=1, stream=True))
        for number in range(_ASKS)
    ]
    return [answer.first_byte for answer in answers if answer.whole]


async def _dribble(client: RawClient, ends: float, *, body: bool) -> None:
    whole = request(Plan(id="dribble", stream=True))
    head = whole.index(b"\r\n\r\n") + 4
    at = head if body else 1
    with suppress(ConnectionError):
        client.send(whole[:at])
        while asyncio.get_running_loop().time() < ends and not client.reader.at_eof():
            await asyncio.sleep(_BYTE_EVERY)
            client.send(whole[at : at + 1])
            at = min(at + 1, len(whole) - 1)
