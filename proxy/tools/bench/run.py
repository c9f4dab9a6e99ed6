"""`specswitch bench`: the same open-loop load on one or several endpoints, and what came of it.

One run compares: every endpoint gets the same arrivals and prompts, in rounds that alternate (there
and back, so that what drifts favours nobody) or all at once. It owns no server and changes none.
"""

import asyncio
import resource
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import click
import httpx2
from rich.console import Console

from proxy.errors import SpecswitchError
from proxy.tools.asking import Sample, ask, chat, connect, model_of
from proxy.tools.bench import standing
from proxy.tools.bench.load import Shot, Volley, fire
from proxy.tools.bench.plan import Endpoint, Level, Options, conditions, plan, planned_seconds
from proxy.tools.bench.report import show, write
from proxy.tools.bench.standing import Cell
from proxy.tools.bench.watching import read, watching
from proxy.tools.destination import reject_unwritable
from proxy.tools.progress import Progress, duration, progress
from proxy.tools.prompts import stretched
from proxy.tools.report import require

DONE, FAILED, INTERRUPTED = 0, 1, 130

_SPARE_DESCRIPTORS: Final = 64
"""For what else is open: the interpreter's own, the log, a report."""


class _StoppedError(Exception):
    """Ctrl-C: for the progress to be shown as stopped, and no further."""


async def run(options: Options, *, report: Path | None, as_json: bool) -> int:
    """Measure, print what came of it, write the report; the exit code.

    Ctrl-C ends the measuring and shows what there is; a second one ends at once.

    Raises:
        SpecswitchError: an endpoint is not there, or a file cannot be read or written.
    """
    if report is not None:
        require()
        reject_unwritable(report)
    _provide_descriptors(options)
    stop = asyncio.Event()
    cells = await _measured(options, stop, quiet=as_json)
    # Repeatable, as the arrivals are.
    found = standing.standings(cells, options.objective, Random(options.seed))  # noqa: S311 - no secret
    told = conditions(options)
    if as_json:
        click.echo(standing.as_json(found, told, interrupted=stop.is_set()))
    else:
        show(Console(), found, told, interrupted=stop.is_set())
    if report is not None:
        write(report, found, cells, told, interrupted=stop.is_set())
    if stop.is_set():
        return INTERRUPTED
    return DONE if standing.is_good(found) else FAILED


async def _measured(options: Options, stop: asyncio.Event, *, quiet: bool) -> list[Cell]:
    """What was measured by the end of the plan or the first Ctrl-C, and how far it is meanwhile.

    Nothing is announced before every endpoint has answered.
    """
    levels = plan(options)
    cells: list[Cell] = []
    console = Console(stderr=True)
    async with _connected(options, time.monotonic) as targets:
        with suppress(_StoppedError), _interruptible(stop):
            if not quiet:
                console.print(_announcement(options, levels), highlight=False, soft_wrap=True)
            # Before the clock of the progress starts: it is no part of the plan's seconds.
            await _warm_up(targets, options, levels, stop)
            total = len(targets) * _planned(levels)
            with progress(console, total=total, what="bench", quiet=quiet) as shown:
                cells = await _take(targets, options, levels, shown, stop)
                if stop.is_set():
                    raise _StoppedError
    return cells


async def measure(
    options: Options,
    levels: Sequence[Level],
    shown: Progress,
    stop: asyncio.Event,
    *,
    clock: Callable[[], float],
) -> list[Cell]:
    """Send the plan to every endpoint, round by round, until it is done or `stop` is set.

    Raises:
        SpecswitchError: an endpoint or its admin listener does not answer before anything is sent.
    """
    async with _connected(options, clock) as targets:
        await _warm_up(targets, options, levels, stop)
        return await _take(targets, options, levels, shown, stop)


Leg = Callable[[], Awaitable[None]]
"""One round at one endpoint."""


async def _together(legs: Sequence[Leg]) -> None:
    await asyncio.gather(*(leg() for leg in legs))


async def _in_turn(legs: Sequence[Leg], *, back: bool) -> None:
    """There, and in the next round back: a drift of the machine then weighs on all alike."""
    for leg in reversed(legs) if back else legs:
        await leg()


class _Target:
    """An endpoint with its connections."""

    def __init__(
        self,
        options: Options,
        endpoint: Endpoint,
        client: httpx2.AsyncClient,
        admin: httpx2.AsyncClient | None,
        clock: Callable[[], float],
    ) -> None:
        self.endpoint = endpoint
        self._options = options
        self._client = client
        self._admin = admin
        self._clock = clock
        self._model = options.model or ""
        self._nonce = secrets.token_hex(4)
        """Another in every run: a server may remember the prompts of the last one."""
        self._asked = 0

    async def look(self) -> None:
        """See that it is there, and what its model is called."""
        if not self._model:
            self._model = await model_of(self._client)
        if self._admin is not None:
            await read(self._admin, self._clock)

    async def warm_up(self, shots: Sequence[Shot], stop: asyncio.Event) -> None:
        """One after the other, and not counted: the first requests of a server are its slowest."""
        for shot in shots:
            await self._fire([replace(shot, at=0.0)], stop, lambda: None)

    async def take(
        self, cell: Cell, shots: Sequence[Shot], shown: Progress, stop: asyncio.Event
    ) -> None:
        """Fire a round and note in `cell` what came of it."""
        if stop.is_set():
            return
        rate = "" if cell.rate is None else f" at {cell.rate:g}/s"
        note = f"{cell.endpoint}{rate}"
        steps = planned_seconds(shots)
        async with watching(self._admin, self._clock) as watched:
            volley = await self._fire(shots, stop, lambda: shown.step(next(steps), note))
        cell.fired.append((shots, volley))
        if self._admin is not None:
            cell.watched.append(watched)

    async def _fire(
        self, shots: Sequence[Shot], stop: asyncio.Event, ended: Callable[[], None]
    ) -> Volley:
        return await fire(
            shots,
            self._ask,
            most_in_flight=self._options.most_in_flight,
            stop=stop,
            ended=ended,
            clock=self._clock,
        )

    async def _ask(self, shot: Shot) -> Sample:
        self._asked += 1
        question = chat(
            _messages(shot, f"{self._asked} {self._nonce}" if self._options.fresh else None),
            model=self._model,
            max_tokens=shot.output_tokens,
            ignore_eos=self._options.ignore_eos,
        )
        return await ask(self._client, question, clock=self._clock)


async def _warm_up(
    targets: Sequence[_Target], options: Options, levels: Sequence[Level], stop: asyncio.Event
) -> None:
    for target in targets:
        await target.warm_up(levels[0].rounds[0][: options.warm_up], stop)


async def _take(
    targets: Sequence[_Target],
    options: Options,
    levels: Sequence[Level],
    shown: Progress,
    stop: asyncio.Event,
) -> list[Cell]:
    """The plan at every endpoint, round by round; those cells in which anything was sent."""
    cells: list[Cell] = []
    for level in levels:
        row = [Cell(target.endpoint.name, level.rate) for target in targets]
        cells += row
        for turn, shots in enumerate(level.rounds):
            legs = [
                partial(target.take, cell, shots, shown, stop)
                for target, cell in zip(targets, row, strict=True)
            ]
            await (_together(legs) if options.together else _in_turn(legs, back=turn % 2 == 1))
    return [cell for cell in cells if cell.fired]


@asynccontextmanager
async def _connected(
    options: Options, clock: Callable[[], float]
) -> AsyncIterator[Sequence[_Target]]:
    """All endpoints, each of which has answered."""
    async with AsyncExitStack() as ends:
        yield [
            await ends.enter_async_context(_target(options, endpoint, clock))
            for endpoint in options.endpoints
        ]


@asynccontextmanager
async def _target(
    options: Options, endpoint: Endpoint, clock: Callable[[], float]
) -> AsyncIterator[_Target]:
    async with AsyncExitStack() as ends:
        client = connect(
            endpoint.url,
            api_key=endpoint.api_key,
            timeout=options.timeout,
            connections=options.most_in_flight,
        )
        await ends.enter_async_context(client)
        admin = None
        if endpoint.admin_url is not None:
            admin = await ends.enter_async_context(connect(endpoint.admin_url))
        target = _Target(options, endpoint, client, admin, clock)
        await target.look()
        yield target


def _messages(shot: Shot, mark: str | None) -> Sequence[Mapping[str, object]]:
    """The prompt as it is sent: as long as the plan says, and with its mark."""
    prompt = shot.prompt
    if shot.prompt_tokens is not None:
        return stretched(prompt, shot.prompt_tokens, (prompt,), mark or "").messages
    return prompt.messages if mark is None else _marked(prompt.messages, mark)


def _marked(messages: Sequence[Mapping[str, object]], mark: str) -> Sequence[Mapping[str, object]]:
    """The same with `mark` before the first text: no two of them share a prefix."""
    first, *rest = messages
    content = first.get("content")
    part: object = f"[{mark}] "
    if isinstance(content, list):
        part = [{"type": "text", "text": part}, *content]
    elif isinstance(content, str):
        part = f"[{mark}] {content}"
    return [{**first, "content": part}, *rest]


@contextmanager
def _interruptible(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C ends the measuring well; another is the usual one."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _announcement(options: Options, levels: Sequence[Level]) -> str:
    """What will be sent, and how long that takes at least."""
    rounds = [shots for level in levels for shots in level.rounds if shots]
    requests = sum(len(shots) for shots in rounds)
    seconds = sum(shots[-1].at for shots in rounds)
    times, to = len(options.endpoints), "to one endpoint"
    if times > 1:
        to = f"to each of {times} endpoints, {'all at once' if options.together else 'in turn'}"
    counted = "1 request" if requests == 1 else f"{requests} requests"
    return f"{counted} {to}: at least {duration(seconds if options.together else seconds * times)}"


def _planned(levels: Sequence[Level]) -> float:
    """Seconds of the plan at one endpoint, as the progress counts them."""
    return sum(sum(planned_seconds(shots)) for level in levels for shots in level.rounds)


def _provide_descriptors(options: Options) -> None:
    """Raise the soft limit to what all connections may need, as far as we may.

    Raises:
        SpecswitchError: the hard limit is below that.
    """
    at_once = len(options.endpoints) if options.together else 1
    # Kept connections of the others stay open while one is measured, but only for seconds.
    needed = options.most_in_flight * (at_once + 1) + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SpecswitchError(
            f"--max-in-flight {options.most_in_flight} may need {needed} file descriptors, and "
            f"this process may have {hard}: lower it, or raise `ulimit -n`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
