"""Open-loop load: requests are sent when their time has come, however many are not answered yet.

A closed loop waits for answers, so a slow server is asked less and looks better than it is. What
this loop cannot do is said: how late it was, and what it held back so as not to drown the machine
that it runs on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice, pairwise
from random import Random
from typing import Final

from proxy.sim import arrivals
from proxy.tools.asking import Sample
from proxy.tools.prompts import Prompt

__all__ = ["Shot", "Volley", "Workload", "drawn", "fire", "rounds"]

DEFAULT_OUTPUT_TOKENS: Final = 128
"""Where neither the user nor the prompt says how long an answer is: the median of the conversation
trace of 2023 in the Azure public dataset is 129."""


class Workload(StrEnum):
    """How requests arrive; what each is like is in sim/arrivals.py."""

    POISSON = "poisson"
    BURST = "burst"
    RARE_BURST = "rare-burst"
    SQUARE = "square"
    DIURNAL = "diurnal"
    LADDER = "ladder"  # Poisson, at one rate after the other
    TRACE = "trace"


_ARRIVALS: Final = {
    Workload.POISSON: arrivals.poisson,
    Workload.LADDER: arrivals.poisson,
    Workload.BURST: arrivals.bursts,
    Workload.RARE_BURST: arrivals.rare_bursts,
    Workload.SQUARE: arrivals.square,
    Workload.DIURNAL: arrivals.diurnal,
}


@dataclass(frozen=True, slots=True)
class Shot:
    """One request of the plan, the same for each endpoint."""

    at: float
    """Seconds from the start of its round."""
    prompt: Prompt
    output_tokens: int
    prompt_tokens: int | None = None
    """How long the prompt is to be made; None: as it stands."""


@dataclass(slots=True)
class Volley:
    """What came of the shots of one round at one endpoint, by their place in it."""

    started_at: float
    samples: list[Sample | None]
    """None: not sent, or not over when the run was stopped."""
    unsent: set[int] = field(default_factory=set)
    """Held back, since the most that may be in flight were."""
    interrupted: bool = False

    @property
    def ended_at(self) -> float:
        """When the last answer ended; monotonic seconds, as `started_at`."""
        ends = [one.sent_at + one.duration_seconds for one in self.samples if one is not None]
        return max([self.started_at, *ends])

    def lateness(self, shots: Sequence[Shot]) -> Iterator[float]:
        """Seconds by which each request left after its time."""
        for shot, sample in zip(shots, self.samples, strict=True):
            if sample is not None:
                yield max(0.0, sample.sent_at - self.started_at - shot.at)


def drawn(
    workload: Workload,
    rate: float,
    prompts: Sequence[Prompt],
    random: Random,
    *,
    count: int,
    output_tokens: int | None = None,
) -> list[Shot]:
    """Return `count` requests at a mean of `rate` a second; a trace is not drawn but read.

    Prompts come in an order that is drawn, too: each once before any comes again. `output_tokens`
    None: as many as the prompt says.
    """
    times = islice(_ARRIVALS[workload](rate, random), count)
    order = random.sample(prompts, len(prompts))
    return [
        Shot(at, prompt, output_tokens or prompt.output_tokens or DEFAULT_OUTPUT_TOKENS)
        for at, prompt in zip(times, cycle(order), strict=False)
    ]


def rounds(shots: Sequence[Shot], number: int) -> list[list[Shot]]:
    """Cut the shots into `number` rounds of about as many, each of which begins at 0 again."""
    number = max(1, min(number, len(shots)))
    bounds = [len(shots) * turn // number for turn in range(number + 1)]
    made, before = [], 0.0
    for first, last in pairwise(bounds):
        part = shots[first:last]
        made.append([_earlier(shot, before) for shot in part])
        before = part[-1].at if part else before
    return made


def _earlier(shot: Shot, seconds: float) -> Shot:
    return Shot(shot.at - seconds, shot.prompt, shot.output_tokens, shot.prompt_tokens)


async def fire(  # noqa: PLR0913 - time and its end come from outside
    shots: Sequence[Shot],
    ask: Callable[[Shot], Awaitable[Sample]],
    *,
    most_in_flight: int,
    stop: asyncio.Event,
    ended: Callable[[], None],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Volley:
    """Ask each shot at its time and wait for all answers.

    `ended` is called for each shot that is over or was held back. When `stop` is set, what is under
    way is given up and what has ended is kept.
    """
    firing = _Firing(shots, ask, most_in_flight, ended)
    volley = firing.volley = Volley(clock(), [None] * len(shots))
    loop = asyncio.get_running_loop()
    sending = loop.create_task(firing.send(clock, sleep))
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        volley.interrupted = not sending.done()
    finally:
        stopping.cancel()
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending  # raises what went wrong within
    return volley


class _Firing:
    """One round under way."""

    volley: Volley

    def __init__(
        self,
        shots: Sequence[Shot],
        ask: Callable[[Shot], Awaitable[Sample]],
        most_in_flight: int,
        ended: Callable[[], None],
    ) -> None:
        self._shots = shots
        self._ask = ask
        self._most = most_in_flight
        self._ended = ended
        self._in_flight = 0

    async def send(
        self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        started_at = self.volley.started_at
        async with asyncio.TaskGroup() as tasks:
            for index, shot in enumerate(self._shots):
                # Also when it is late: those before it have to get on their way.
                await sleep(max(0.0, started_at + shot.at - clock()))
                if self._in_flight >= self._most:
                    self.volley.unsent.add(index)
                    self._ended()
                    continue
                self._in_flight += 1
                tasks.create_task(self._one(index, shot))

    async def _one(self, index: int, shot: Shot) -> None:
        try:
            self.volley.samples[index] = await self._ask(shot)
        finally:
            self._in_flight -= 1
        self._ended()
