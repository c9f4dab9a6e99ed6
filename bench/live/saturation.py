"""At saturation: does specswitch carry what the plain server carries?

A closed loop on each of three endpoints at the same time, each on a simulated GPU of its own. All
ask for answers of the same length, since a steady rate is then known sooner; the first ones are
graded, or all would end and begin together for ever.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from random import Random
from typing import Final

import httpx2

from bench.live.clients import question, shots
from bench.live.finding import Finding
from bench.live.pairs import both, knowledge, simulated
from proxy.sim.lengths import CONVERSATION_PROMPTS, spread
from proxy.sim.traces import Request
from proxy.tools.asking import Sample, ask, connect
from proxy.tools.bench.load import Shot

OF_BASE: Final = 0.97
"""Output tokens a second relative to always-base: at least that."""
OF_SPEC: Final = 1.8
"""The same relative to always-spec."""

_PROMPTS: Final = 500
"""Lengths that are drawn before they come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured; seconds."""

    scale: float = 1.0
    in_flight: int = 64
    warm_up: float = 25.0
    """Not counted: specswitch begins on spec, and the first answers are short."""
    seconds: float = 60.0
    of_base: float = OF_BASE
    of_spec: float = OF_SPEC


async def run(folder: Path, settings: Settings, seed: int) -> list[Finding]:
    """Measure all three at the same time."""
    async with AsyncExitStack() as ends:
        ours = await ends.enter_async_context(both(folder, settings.scale))
        plain = await ends.enter_async_context(simulated(folder, settings.scale))
        fast = await ends.enter_async_context(simulated(folder, settings.scale))
        planned = _planned(settings, seed)
        loops = []
        for url in (ours.url, plain.base_url, fast.spec_url):
            client = await ends.enter_async_context(connect(url))
            loops.append(_Loop(client, planned, settings, time.monotonic))
        await asyncio.gather(*(loop.run() for loop in loops))
        switches = await asyncio.to_thread(ours.metric, "mode_switches_total", to="base")
    return [*_findings(loops, settings), Finding(name="saturation: switches", value=switches)]


def _planned(settings: Settings, seed: int) -> Sequence[Shot]:
    """Without an end: the place in it is all that counts."""
    prompts = spread(CONVERSATION_PROMPTS, _PROMPTS, Random(seed))  # noqa: S311 - can be repeated
    usual = round(knowledge().output_tokens)
    graded = [ceil(usual * (turn + 1) / settings.in_flight) for turn in range(settings.in_flight)]
    outputs = [*graded, *[usual] * (_PROMPTS - len(graded))]
    return shots(
        [Request(0.0, prompt, output) for prompt, output in zip(prompts, outputs, strict=True)], 1.0
    )


@dataclass(slots=True)
class _Loop:
    """One endpoint with so many clients, each of which asks again as soon as it was answered."""

    client: httpx2.AsyncClient
    planned: Sequence[Shot]
    settings: Settings
    clock: Callable[[], float]
    begins: float = field(init=False)
    """When counting begins; monotonic seconds."""
    samples: list[Sample] = field(default_factory=list)
    _sent: int = 0
    _counted: int = 0
    """Under way, and begun before the counting ended."""

    def __post_init__(self) -> None:
        self.begins = self.clock() + self.settings.warm_up / self.settings.scale

    @property
    def ends(self) -> float:
        """When counting ends."""
        return self.begins + self.settings.seconds / self.settings.scale

    async def run(self) -> None:
        """Until all that were under way when counting ended have their answers.

        The load stays the same until then, so the last ones are answered as fast as the others.
        """
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            clients = [
                tasks.create_task(self._client(over)) for _ in range(self.settings.in_flight)
            ]
            await over.wait()
            for client in clients:
                client.cancel()

    async def _client(self, over: asyncio.Event) -> None:
        while True:
            number, self._sent = self._sent, self._sent + 1
            counted = self.clock() < self.ends
            self._counted += counted
            # The graded ones come once.
            usual = self.settings.in_flight
            place = usual + (number - usual) % (len(self.planned) - usual)
            shot = self.planned[number if number < usual else place]
            self.samples.append(
                await ask(self.client, question(shot, str(number)), clock=self.clock)
            )
            self._counted -= counted
            if self.clock() >= self.ends and not self._counted:
                over.set()

    @property
    def rate(self) -> float:
        """Output tokens a second while it counts; those of an answer come evenly over its time."""
        tokens = sum(_within(one, self.begins, self.ends) for one in self.samples)
        return tokens / (self.ends - self.begins)

    @property
    def bad(self) -> int:
        """Requests without a good end."""
        return sum(not one.ok for one in self.samples)


def _within(sample: Sample, begins: float, ends: float) -> float:
    """Its output tokens between two moments."""
    first, last, tokens = (
        sample.first_token_seconds,
        sample.last_token_seconds,
        sample.output_tokens,
    )
    if not sample.ok or first is None or last is None or tokens is None:
        return 0.0
    begun, ended = sample.sent_at + first, sample.sent_at + last
    if ended <= begun:
        return float(tokens) if begins <= begun < ends else 0.0
    return tokens * max(0.0, min(ended, ends) - max(begun, begins)) / (ended - begun)


def _findings(loops: Sequence[_Loop], settings: Settings) -> list[Finding]:
    ours, base, spec = (loop.rate for loop in loops)
    told = [one.upstream for one in loops[0].samples if one.sent_at >= loops[0].begins]
    return [
        Finding(
            name="saturation: tok/s to always-base",
            value=ours / base if base else None,
            at_least=settings.of_base,
        ),
        Finding(
            name="saturation: tok/s to always-spec",
            value=ours / spec if spec else None,
            at_least=settings.of_spec,
        ),
        *(
            Finding(name=f"saturation: tok/s of {name}", value=rate / settings.scale)
            for name, rate in (
                ("specswitch", ours),
                ("always-base", base),
                ("always-spec", spec),
            )
        ),
        Finding(
            name="saturation: share served by spec",
            value=told.count("spec") / len(told) if told else None,
        ),
        Finding(
            name="saturation: no good end",
            value=float(sum(loop.bad for loop in loops)),
            at_most=0.0,
        ),
    ]
