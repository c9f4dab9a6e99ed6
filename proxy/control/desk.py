"""Runs errands: asks both servers, and has one answer made of what they say.

What many ask at the same time is asked once. How many errands run at one time is bounded, so that
whoever asks for what costs an engine time, or us connections, takes them from nobody else. The data
plane starts errands and is told of their end (core/errands).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from proxy.control import fanout
from proxy.control.engine import Answer, Question, Reach, Within, ask
from proxy.control.pages import ABSENT, PAGES, Heard, Page
from proxy.core.errands import Asker, Errand, Result
from proxy.core.refusals import RETRY_AFTER_BUSY
from proxy.core.words import UpstreamName
from proxy.errors import EngineError, InternalError, Overloaded

_log = logging.getLogger("proxy.pair")

CHANGES = frozenset({"/load_lora_adapter", "/unload_lora_adapter"})
"""What a server serves is something else after these, whatever it has answered."""
MOST_PAGES = 8
"""Pages that are put together at one time, each over two connections; others wait in turn, no
longer than a server may take for one."""
MOST_ORDERS = 8
"""The same of administration, which may take minutes: others are refused at once."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a server may take."""

    connect: float
    page: float
    administration: float


@dataclass(slots=True, eq=False)
class _Run:
    """An errand that runs, for all who wait for the same."""

    errand: Errand
    task: asyncio.Task[Result]
    askers: list[Asker] = field(default_factory=list)


class _Visit:
    """One asker's share in a run."""

    def __init__(self, desk: "Desk", run: _Run, asker: Asker) -> None:
        self._desk = desk
        self._run = run
        self._asker = asker

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._desk.left(self._run, self._asker)


class Desk:
    """Runs errands on the two servers of the pair."""

    def __init__(
        self,
        reaches: Callable[[], Mapping[UpstreamName, Reach]],
        patience: Callable[[], Patience],
        changed: Callable[[], None],
        waiting: Callable[[], int],
    ) -> None:
        """The first two are asked for at the start of an errand: a reload counts for the next.

        `changed` is told when the servers may serve something else than before. `waiting` says how
        many requests wait here for a place at a server.
        """
        self._reaches = reaches
        self._patience = patience
        self._changed = changed
        self._waiting = waiting
        self._runs: set[_Run] = set()
        self._shared: dict[Errand, _Run] = {}
        self._pages = asyncio.Semaphore(MOST_PAGES)
        self._orders = asyncio.Semaphore(MOST_ORDERS)

    def start(self, errand: Errand, asker: Asker) -> _Visit:
        """Run `errand`, or wait with those who ask for the same; `asker` is told later."""
        # What is never shared is not looked for: to compare it takes as long as its body is.
        page = PAGES.get(errand.template)
        run = None
        if page is not None:
            errand = page.alike(errand)
            run = self._shared.get(errand)
        if run is None:
            task = asyncio.get_running_loop().create_task(self._run(errand), name=errand.template)
            run = _Run(errand, task)
            self._runs.add(run)
            if page is not None:
                self._shared[errand] = run
            task.add_done_callback(lambda _: self._over(run))
        run.askers.append(asker)
        return _Visit(self, run, asker)

    def left(self, run: _Run, asker: Asker) -> None:
        """Somebody waits no longer; what nobody waits for is not gone on with."""
        if asker in run.askers:
            run.askers.remove(asker)
            if not run.askers:
                self._forget(run)
                run.task.cancel()

    async def close(self) -> None:
        """End what runs; nobody waits for it any more."""
        tasks = [run.task for run in self._runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, run: _Run) -> None:
        if run.errand.template in PAGES and self._shared.get(run.errand) is run:
            del self._shared[run.errand]

    def _over(self, run: _Run) -> None:
        self._forget(run)
        self._runs.discard(run)
        if run.task.cancelled():
            return
        fault = run.task.exception()
        if fault is None:
            result = run.task.result()
        else:
            context = {"message": "an errand failed within specswitch", "exception": fault}
            asyncio.get_running_loop().call_exception_handler(context)
            result = InternalError("specswitch itself has failed at this; its log says more")
        askers, run.askers = run.askers, []
        for asker in askers:
            asker.errand_over(result)

    async def _run(self, errand: Errand) -> Result:
        page = PAGES.get(errand.template)
        if page is None:
            return await self._order(errand, self._patience())
        return await self._page(errand, page, self._patience())

    async def _order(self, errand: Errand, patience: Patience) -> Result:
        if self._orders.locked():
            why = f"{MOST_ORDERS} orders of administration are being carried out already"
            return Overloaded(why, retry_after=RETRY_AFTER_BUSY)
        async with self._orders:
            within = Within(patience.connect, patience.administration)
            try:
                heard = await self._heard(errand, (fanout.question(errand),), within)
            finally:  # also where its client has left: the servers may have begun
                if errand.template in CHANGES:
                    self._changed()
        reply = fanout.result(errand, heard)
        if reply.refusal is not None:  # a request's own line has no room for which one, and why
            fields = {"endpoint": errand.template, "code": reply.refusal.code}
            _log.warning("administration: %s", reply.refusal, extra={"fields": fields})
        return reply

    async def _page(
        self, errand: Errand, page: Page[dict[str, object]] | Page[str], patience: Patience
    ) -> Result:
        try:
            async with asyncio.timeout(patience.page):
                await self._pages.acquire()
        except TimeoutError:
            why = f"{MOST_PAGES} other pages have been waited for for {patience.page:g} s"
            return Overloaded(why, retry_after=RETRY_AFTER_BUSY)
        try:
            within = Within(patience.connect, patience.page)
            heard = await self._heard(errand, page.questions(errand), within)
        finally:
            self._pages.release()
        # A page of many ranks takes long to read, and streams must not wait for it.
        return await asyncio.to_thread(page.result, errand, heard, self._waiting())

    async def _heard(
        self, errand: Errand, questions: tuple[Question, ...], within: Within
    ) -> Heard:
        """Ask both at the same time."""
        administers = errand.template not in PAGES
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(
                    _answer(
                        reach,
                        questions,
                        key=errand.key if administers else _key_for(reach, errand.key),
                        within=within,
                    )
                )
                for name, reach in self._reaches().items()
            }
        return {name: task.result() for name, task in asked.items()}


def _key_for(reach: Reach, theirs: bytes | None) -> bytes | None:
    """The server's own, or else the client's as it came: the server judges it."""
    return reach.api_key.encode() if reach.api_key else theirs


async def _answer(
    reach: Reach, questions: tuple[Question, ...], *, key: bytes | None, within: Within
) -> Answer | EngineError:
    """The answer of one server to the first of `questions` that it knows; or why there is none."""
    try:
        for question in questions:
            answer = await ask(reach, question, key=key, within=within)
            if answer.status not in ABSENT:
                break
    except EngineError as error:
        return error
    return answer
