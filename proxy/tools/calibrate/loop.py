"""Closed loops: so many requests in flight at all times, until enough of them have ended.

The first requests only warm the server up, with outputs of graded lengths, so that the loop is out
of step from then on: in step, a plain server would fill all prompts together and decode
undisturbed, while a speculative one, whose answers end at different times, would not. Those that
count are the next so many that are sent, not the first that end, which would be the quick ones.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from statistics import quantiles
from typing import Final

import httpx2

from proxy.errors import SpecswitchError
from proxy.tools.asking import Question, Sample, ask
from proxy.tools.calibrate.cells import Measurement, Place, Timed, flaw, timed

_LOOK_SECONDS: Final = 0.02
"""Between two looks at how late our own loop is: often enough for the shortest cells."""

_CLIENT_ERRORS: Final = range(400, 500)


class CellError(SpecswitchError):
    """A request of a cell failed, so that the cell tells nothing."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again
        """Whether it may go well another time."""


class IntruderError(CellError):
    """A server had other work than ours."""


class Asked:
    """The prompts in a new order for each round, and the requests that they make."""

    def __init__(
        self, order: Sequence[int], make: Callable[[int, int], Question], sources: Sequence[str]
    ) -> None:
        """`make(prompt, output_tokens)` is a request; `sources` say where each prompt is from."""
        self._order = order
        self._make = make
        self._sources = sources

    def prompt(self, number: int) -> int:
        """Which prompt the request `number` of a round has."""
        return self._order[number % len(self._order)]

    def question(self, number: int, output_tokens: int) -> Question:
        """The request `number` of a round."""
        return self._make(self.prompt(number), output_tokens)

    def source(self, number: int) -> str:
        """Where its prompt is from."""
        return self._sources[self.prompt(number)]


@dataclass(slots=True)
class Loop:
    """One closed loop on one server: how it is to be, and what has become of it."""

    client: httpx2.AsyncClient
    place: Place
    asked: Asked
    requests: int
    """That count."""
    output_tokens: int
    clock: Callable[[], float]
    sent: int = 0
    left: int = field(init=False)
    open: dict[int, float] = field(default_factory=dict)
    """When those in flight were sent, by number."""
    found: list[Timed] = field(default_factory=list)
    origin: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.requests
        self.origin = self.clock()

    @property
    def warm_up(self) -> int:
        """Requests before the first that counts."""
        return self.place.concurrency

    def counts(self, number: int) -> bool:
        """Whether the request `number` does."""
        return self.warm_up <= number < self.warm_up + self.requests

    def tokens(self, number: int) -> int:
        """What the request `number` asks for: graded while warming up, else all alike."""
        if number >= self.warm_up:
            return self.output_tokens
        return max(2, ceil(self.output_tokens * (number + 1) / self.warm_up))

    async def work(self, over: asyncio.Event, loops: Sequence["Loop"]) -> None:
        """One place of the loop: a request after the other, until cancelled.

        Sets `over` when all `loops` have what counts.

        Raises:
            CellError: an answer is not what was asked for.
        """
        while True:
            number, self.sent = self.sent, self.sent + 1
            self.open[number] = self.clock() - self.origin
            asked = self.tokens(number)
            sample = await ask(self.client, self.asked.question(number, asked), clock=self.clock)
            del self.open[number]
            self._note(number, sample, asked)
            if not any(loop.left for loop in loops):
                over.set()

    def result(self, late: float) -> Measurement:
        """The round, once it is over; those that are still in flight were given up."""
        given_up = [
            Timed(prompt=self.asked.prompt(number), measured=False, sent=sent)
            for number, sent in self.open.items()
        ]
        return Measurement(place=self.place, requests=(*self.found, *given_up), late_seconds=late)

    def _note(self, number: int, sample: Sample, asked: int) -> None:
        wrong = flaw(sample, asked)
        if wrong is not None:
            # A 4xx is about this prompt and comes again; all else may be the server's bad moment.
            theirs = sample.status not in _CLIENT_ERRORS or sample.refused
            raise CellError(f"{self.place}: {self.asked.source(number)}: {wrong}", again=theirs)
        counts = self.counts(number)
        self.found.append(
            timed(self.asked.prompt(number), sample, measured=counts, origin=self.origin)
        )
        self.left -= counts


async def run(
    loops: Sequence[Loop], watch: Callable[[], Awaitable[str]] | None = None
) -> list[Measurement]:
    """Run `loops` side by side until each has what counts; then what is in flight is given up.

    `watch` looks at the servers meanwhile, and comes back with a sentence when what it sees spoils
    the cell.

    Raises:
        CellError: an answer is not what was asked for, or `watch` has come back.
    """
    late: list[float] = []
    over = asyncio.Event()
    jobs = [
        *(loop.work(over, loops) for loop in loops for _ in range(loop.place.concurrency)),
        _look_at_clock(late, loops[0].clock),
        *([] if watch is None else [_watched(watch)]),
    ]
    with one_error():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(job) for job in jobs]
            await over.wait()
            for task in running:
                task.cancel()
    typical = quantiles(late, n=10)[-1] if len(late) > 1 else max(late, default=0.0)
    return [loop.result(typical) for loop in loops]


@contextmanager
def one_error() -> Iterator[None]:
    """Of the errors of a task group the first, where it is one of ours; any other passes whole."""
    first: Exception | None = None
    try:
        yield
    except* SpecswitchError as group:
        first = group.exceptions[0]
    if first is not None:
        raise first


async def _look_at_clock(late: list[float], clock: Callable[[], float]) -> None:
    """Note how late this loop is, again and again."""
    while True:
        due = clock() + _LOOK_SECONDS
        await asyncio.sleep(_LOOK_SECONDS)
        late.append(max(0.0, clock() - due))


async def _watched(watch: Callable[[], Awaitable[str]]) -> None:
    raise IntruderError(await watch(), again=True)
