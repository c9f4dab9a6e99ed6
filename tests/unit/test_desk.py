"""The desk by itself: who is told of what, and that nothing is gone on with for nobody."""

import asyncio
from dataclasses import dataclass, field

from proxy.control.desk import IN_TURN, MOST_ORDERS, MOST_PAGES, Desk, Patience
from proxy.control.engine import Answer, Reach
from proxy.control.pages import Heard
from proxy.core.errands import Errand, Result
from proxy.core.words import UpstreamName
from proxy.errors import NoUpstream, Overloaded

NOBODY = Reach("http://127.0.0.1:1", None, None)
"""Where nobody listens."""
LOADS = Errand(template="/v1/loads", method="GET", query=b"")


@dataclass(eq=False)
class Asker:
    """Keeps what it is told."""

    told: list[Result] = field(default_factory=list)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def errand_over(self, result: Result) -> None:
        """Keep it."""
        self.told.append(result)
        self.event.set()


def desk(page: float = 1.0, administration: float = 1.0) -> Desk:
    """In front of two servers that are not there."""
    reaches = dict.fromkeys(UpstreamName, NOBODY)
    patience = Patience(connect=1.0, page=page, administration=1.0)
    return Desk(lambda: reaches, lambda: patience, lambda: None, lambda: 0)


async def test_who_comes_after_the_last_has_left_is_told() -> None:
    """In the same turn: what was left is being ended, and nobody is to wait for that."""
    made, first, second = desk(), Asker(), Asker()
    visit = made.start(LOADS, first)
    visit.cancel()
    visit.cancel()  # may be said again
    made.start(LOADS, second)
    async with asyncio.timeout(5):
        await second.event.wait()
    assert [type(each) for each in second.told] == [NoUpstream]
    assert first.told == []


async def test_all_who_ask_the_same_are_told_the_same_once() -> None:
    """But for who has left; and to leave afterwards changes nothing."""
    made, askers = desk(), [Asker(), Asker(), Asker()]
    visits = [made.start(LOADS, asker) for asker in askers]
    visits[1].cancel()
    async with asyncio.timeout(5):
        await askers[2].event.wait()
    visits[0].cancel()
    assert askers[0].told == askers[2].told
    assert len(askers[0].told) == 1
    assert askers[1].told == []


async def test_administration_is_never_shared() -> None:
    """Said twice, it is done twice."""
    made, askers = desk(), [Asker(), Asker()]
    order = Errand(template="/flush_cache", method="POST", query=b"")
    for asker in askers:
        made.start(order, asker)
    async with asyncio.timeout(5):
        for asker in askers:
            await asker.event.wait()
    assert askers[0].told[0] is not askers[1].told[0]


async def test_more_orders_than_may_run_are_refused_at_once() -> None:
    """One may take an hour: nobody is to wait behind them, nor an order that would end them."""
    held = asyncio.Event()
    made = desk()
    made._heard = lambda *_: held.wait()  # type: ignore[assignment,method-assign]
    order = Errand(template="/pause_generation", method="POST", query=b"")
    before = [Asker() for _ in range(MOST_ORDERS)]
    visits = [made.start(order, asker) for asker in before]
    late = Asker()
    made.start(Errand(template="/abort_request", method="POST", query=b""), late)
    async with asyncio.timeout(5):
        await late.event.wait()
    assert [type(each) for each in late.told] == [Overloaded]
    assert str(late.told[0]).startswith(f"{MOST_ORDERS} orders")
    for visit in visits:
        visit.cancel()
    await made.close()


def order(path: str) -> Errand:
    """Somebody's wish."""
    return Errand(template=path, method="POST", query=b"")


class Servers:
    """Both servers, which take orders as they come and have done one when the test says so."""

    def __init__(self, desk: Desk) -> None:
        self.begun: list[str] = []
        self._done = {path: asyncio.Event() for paths in IN_TURN for path in paths}
        self._told = asyncio.Condition()
        desk._heard = self._heard  # type: ignore[assignment,method-assign]

    async def _heard(self, errand: Errand, *_: object) -> Heard:
        self.begun.append(errand.template)
        async with self._told:
            self._told.notify_all()
        await self._done[errand.template].wait()
        return dict.fromkeys(UpstreamName, Answer(200, "", b""))

    def has_done(self, *paths: str) -> None:
        """From now on, these are done at once."""
        for path in paths:
            self._done[path].set()

    async def until(self, count: int) -> list[str]:
        """What has been begun when so many are."""
        async with asyncio.timeout(5), self._told:
            await self._told.wait_for(lambda: len(self.begun) >= count)
        return self.begun


PAUSE, GO_ON = "/pause_generation", "/continue_generation"


async def test_orders_that_change_the_same_are_carried_out_in_turn() -> None:
    """Side by side they could reach the two servers in different orders; others do not wait."""
    made, askers = desk(administration=30.0), [Asker() for _ in range(4)]
    servers = Servers(made)
    for path, asker in zip((PAUSE, GO_ON, PAUSE, "/start_profile"), askers, strict=True):
        made.start(order(path), asker)
    assert await servers.until(2) == [PAUSE, "/start_profile"]
    servers.has_done(PAUSE, GO_ON)
    async with asyncio.timeout(5):
        for asker in askers[:3]:
            await asker.event.wait()
    assert servers.begun == [PAUSE, "/start_profile", GO_ON, PAUSE]
    assert askers[3].told == []
    await made.close()


async def test_an_order_waits_no_longer_in_turn_than_for_a_server() -> None:
    """And is not carried out then; one whose client leaves while it waits is not, either."""
    made, second = desk(administration=0.05), Asker()
    servers = Servers(made)
    first = made.start(order(PAUSE), Asker())
    made.start(order(GO_ON), second)
    made.start(order(GO_ON), Asker()).cancel()
    async with asyncio.timeout(5):
        await second.event.wait()
    assert [type(each) for each in second.told] == [Overloaded]
    assert servers.begun == [PAUSE]
    first.cancel()
    made.start(order(GO_ON), Asker())
    assert await servers.until(2) == [PAUSE, GO_ON]
    await made.close()


async def test_a_page_waits_no_longer_in_turn_than_for_a_server() -> None:
    """And says why it was not asked for; who comes afterwards finds its turn free."""
    held = asyncio.Event()
    made = desk(page=0.05)
    heard = made._heard
    made._heard = lambda *_: held.wait()  # type: ignore[assignment,method-assign]
    slow = [Asker() for _ in range(MOST_PAGES)]
    visits = [
        made.start(Errand(template="/v1/loads", method="GET", query=b"%d" % number), asker)
        for number, asker in enumerate(slow)
    ]
    late = Asker()
    made.start(LOADS, late)
    async with asyncio.timeout(5):
        await late.event.wait()
    assert [type(each) for each in late.told] == [Overloaded]
    for visit in visits:
        visit.cancel()
    made._heard = heard  # type: ignore[method-assign]
    last = Asker()
    made.start(LOADS, last)
    async with asyncio.timeout(5):
        await last.event.wait()
    assert [type(each) for each in last.told] == [NoUpstream]
    await made.close()


class Large(bytes):
    """A body that is too large to be compared."""

    def __hash__(self) -> int:
        raise AssertionError("a body was compared")


async def test_what_is_not_shared_is_not_compared() -> None:
    """To compare a body takes as long as it is, and the loop would wait."""
    made, asker = desk(), Asker()
    made.start(Errand(template="/flush_cache", method="POST", query=b"", body=Large(b"x")), asker)
    async with asyncio.timeout(5):
        await asker.event.wait()
    assert len(asker.told) == 1


async def test_the_end_waits_for_what_ran() -> None:
    """Nobody is told, and no task is left when it returns."""
    made, asker = desk(), Asker()
    before = asyncio.all_tasks()
    made.start(LOADS, asker)
    await made.close()
    assert asyncio.all_tasks() == before
    assert asker.told == []
