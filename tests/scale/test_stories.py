"""What people do with several pairs, by each router with its configuration of deploy/scale-out.

A pair is added, drained and killed while requests come. A request that no engine had got must be
served; one that was in a pair that is killed is lost, and its client must be able to tell.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import count
from pathlib import Path

import pytest

from tests.harness.client import RawClient
from tests.harness.running import until
from tests.harness.tunnels import offer
from tests.scale.clients import Got, ask, request
from tests.scale.pairs import Pair, start, three
from tests.scale.routers import ROUTERS, SESSIONS, Router
from tests.scale.seen import Story, note
from tests.soak.plans import Plan

CLIENTS = 24
LEAST_SHARE = 5
"""Requests of 60 that each pair must get; two pairs drawn by lot are no even shares."""
LEFT_SECONDS = 2.0
"""Within which an engine must know that a client has left."""


@pytest.fixture(params=ROUTERS)
def name(request: pytest.FixtureRequest) -> str:
    """Each router."""
    return str(request.param)


@asynccontextmanager
async def fleet(name: str, folder: Path, *, late: int = 0) -> AsyncIterator[Router]:
    """A router in front of three pairs, of which the last `late` are not there yet."""
    async with three(folder) as pairs:
        await start(pairs[: len(pairs) - late])
        async with Router(name, folder, pairs) as router:
            yield router


class Crowd:
    """Clients that ask one request after the other, streams and others, until told to stop."""

    def __init__(self, router: Router) -> None:
        self.answers: list[Got] = []
        self._router = router
        self._over = False

    async def during(self, what: Callable[[], Awaitable[None]]) -> None:
        """Ask while `what` is done."""
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._client(number))
            try:
                await what()
            finally:
                self._over = True

    async def more(self, answers: int) -> None:
        """Wait for so many further ones."""
        wanted = len(self.answers) + answers
        await until(lambda: len(self.answers) >= wanted, f"{wanted} answers", 30.0)

    @property
    def failed(self) -> list[Got]:
        """Those that were not served."""
        return [got for got in self.answers if not got.whole]

    async def _client(self, number: int) -> None:
        for each in count():
            if self._over:
                return
            plan = Plan(id=f"crowd-{number}-{each}", pieces=4, between=20, stream=bool(number % 2))
            self.answers.append(await ask(self._router.port, plan))


async def test_a_pair_is_added_and_has_its_part(name: str, tmp_path: Path) -> None:
    """Nobody notices it coming; then load spreads over all three, and answers pass as they are."""
    async with fleet(name, tmp_path, late=1) as router:
        await _added(router)
        await _spread(router)
        await _left(router)
        await _socket(router)
        await _session(router)


async def _added(router: Router) -> None:
    crowd, new = Crowd(router), router.pairs[-1]

    async def add() -> None:
        await crowd.more(50)
        await new.start()
        await router.add(new)
        await until(lambda: len(new.received("crowd-")) >= 20, "it is used", 20.0)
        await crowd.more(50)

    await crowd.during(add)
    assert not crowd.failed
    note(router.name, Story.ADDED, "0 lost")


async def _spread(router: Router) -> None:
    """Each pair has its part; the client's id and our headers pass, and every answer is whole."""
    plans = [
        Plan(id=f"spread-{each}", pieces=5, between=40, stream=bool(each % 2)) for each in range(60)
    ]
    answers = await asyncio.gather(*(ask(router.port, plan) for plan in plans))
    shares = [len(pair.received("spread-")) for pair in router.pairs]
    ids = [plan.id for plan in plans]

    assert all(got.whole for got in answers)
    assert sum(shares) == len(plans)
    assert min(shares) >= LEAST_SHARE, shares
    assert [got.headers["x-request-id"] for got in answers] == ids
    assert {got.headers["x-specswitch-upstream"] for got in answers} <= {"spec", "base"}
    await until(lambda: set(ids) <= _logged(router), "each id is in a log")
    note(router.name, Story.SPREAD, f"each {LEAST_SHARE} or more of {len(plans)}")


def _logged(router: Router) -> set[str]:
    return {str(line.get("request_id")) for p in router.pairs for line in p.process.lines()}


async def _left(router: Router) -> None:
    """A stream comes event by event, and its engine stops when the client has gone."""
    client = await RawClient.connect(router.port)
    client.send(request(Plan(id="left", pieces=600, between=100, stream=True)))
    status, _ = await client.head()
    first = await client.chunk()
    assert status == 200
    assert first
    assert not any(pair.gone("left") for pair in router.pairs)
    client.close()
    await until(
        lambda: any(pair.gone("left") for pair in router.pairs), "the engine knows", LEFT_SECONDS
    )
    note(router.name, Story.STREAM, f"by events; at the engine within {LEFT_SECONDS:.0f} s")


async def _socket(router: Router) -> None:
    """A tunnel to an engine, through a router that has them."""
    async with await RawClient.connect(router.port) as client:
        client.send(offer())
        status, _ = await client.head()
        opens = status == HTTPStatus.SWITCHING_PROTOCOLS
        if opens:
            client.send(b"hello")
            async with asyncio.timeout(5.0):
                assert await client.reader.readexactly(5) == b"hello"
    assert opens is not router.name.startswith("sglang-router")
    note(router.name, Story.SOCKET, "yes" if opens else "no")


async def _session(router: Router) -> None:
    """What bears a client's mark stays with one pair, while others come: its state lives there."""
    header = SESSIONS.get(router.name)
    if header is None:
        note(router.name, Story.SESSION, "no")
        return
    crowd = Crowd(router)
    marks = [{header: f"session-{number}"} for number in range(4)]

    async def stay() -> None:
        for number, mark in enumerate(marks):
            for turn in range(8):
                plan = Plan(id=f"session-{number}-{turn}", pieces=1)
                got = await ask(router.port, plan, mark)
                assert got.whole
                mark[header] = got.headers.get(header, mark[header])  # a mark of its own, or ours

    await crowd.during(stay)
    homes = [
        sum(bool(pair.received(f"session-{number}-")) for pair in router.pairs)
        for number in range(len(marks))
    ]
    assert homes == [1] * len(marks)
    note(router.name, Story.SESSION, f"`{header}`")


async def test_a_pair_is_drained(name: str, tmp_path: Path) -> None:
    """SIGTERM: what runs there ends whole, what comes goes to the others, the process ends well."""
    async with fleet(name, tmp_path) as router:
        crowd, leaving = Crowd(router), router.pairs[0]
        plans = [Plan(id=f"long-{n}", pieces=20, between=100, stream=True) for n in range(12)]
        running = asyncio.gather(*(ask(router.port, plan) for plan in plans))

        async def drain() -> None:
            await until(lambda: sum(map(_has_long, router.pairs)) == 12, "the long ones run")
            await crowd.more(50)
            leaving.drain()
            assert await asyncio.to_thread(leaving.process.ended) == 0
            await crowd.more(100)

        await crowd.during(drain)
        assert _has_long(leaving)
        assert all(got.whole for got in await running)

    assert not crowd.failed
    note(name, Story.DRAINED, "0 lost, 0 of 12 streams cut")


def _has_long(pair: Pair) -> int:
    return len(pair.received("long-"))


async def test_a_pair_is_killed_and_comes_back(name: str, tmp_path: Path) -> None:
    """SIGKILL: lost is what was under way there, and it can be seen; all else is served."""
    async with fleet(name, tmp_path) as router:
        await _killed(router)
        await _back(router)


async def _killed(router: Router) -> None:
    crowd, dying = Crowd(router), router.pairs[0]
    dead_at = 0.0

    async def kill() -> None:
        nonlocal dead_at
        await crowd.more(100)
        dying.kill()
        assert await asyncio.to_thread(dying.process.ended) == -signal.SIGKILL
        dead_at = asyncio.get_running_loop().time()
        await crowd.more(200)

    await crowd.during(kill)
    lost = crowd.failed
    others = [pair.received("crowd-") for pair in router.pairs[1:]]
    twice = len(dying.received("crowd-") & set().union(*others))

    assert all(got.asked_at <= dead_at for got in lost)
    assert not any(got.pretends for got in lost)
    repeats = router.name.startswith("sglang-router")
    assert repeats or not twice
    again = "may be done twice" if repeats else "0 done twice"
    note(router.name, Story.KILLED, f"lost is what was under way there, {again}; 0 after it")


async def _back(router: Router) -> None:
    crowd, back = Crowd(router), router.pairs[0]
    before = len(back.received("crowd-"))

    async def restart() -> None:
        await crowd.more(50)
        await back.start()
        await until(lambda: len(back.received("crowd-")) >= before + 20, "it is used", 20.0)

    await crowd.during(restart)
    assert not crowd.failed
    note(router.name, Story.BACK, "0 lost")


MOST_LOST = 2 * CLIENTS
"""Of two pairs that drain at once. HAProxy avoids only the pair that has just refused, and asks the
other one of them, until a check has seen both: within 50 ms of the first answer that was lost so.
Who was refused asks again at once. Seen were 2 to 15; with checks by the second alone, up to 493.
"""


@pytest.mark.parametrize("name", ["HAProxy"])
@pytest.mark.parametrize("long", [0, 12])
async def test_two_of_three_are_drained_at_once(name: str, long: int, tmp_path: Path) -> None:
    """Little is lost, all of it refused before an engine had it; what runs there ends whole."""
    async with fleet(name, tmp_path) as router:
        crowd, leaving = Crowd(router), router.pairs[:2]
        plans = [Plan(id=f"long-{n}", pieces=20, between=100, stream=True) for n in range(long)]
        running = asyncio.gather(*(ask(router.port, plan) for plan in plans))

        async def drain() -> None:
            await until(lambda: sum(map(_has_long, router.pairs)) == long, "the long ones run")
            await crowd.more(100)
            for pair in leaving:
                pair.drain()
            for pair in leaving:
                assert await asyncio.to_thread(pair.process.ended) == 0
            await crowd.more(400)

        await crowd.during(drain)
        assert all(got.whole for got in await running)

    received = set().union(*(pair.received("crowd-") for pair in router.pairs))
    assert len(crowd.failed) <= MOST_LOST
    assert not received & {got.id for got in crowd.failed}
