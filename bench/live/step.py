"""A step up and down again: is the mode switched in time, once each, and is nobody kept waiting?"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import floor
from pathlib import Path
from random import Random
from typing import Final

import httpx2
import msgspec

from bench.live.clients import Patience, asker, shots
from bench.live.finding import Finding
from bench.live.pairs import CONTENTION, PROFILE, both, knowledge, windows
from bench.live.replay import Rule, leaves_at, longest_busy, moments, returns_at
from proxy.config.model import Policy
from proxy.core.words import UpstreamName
from proxy.sim.lengths import CONVERSATION_PROMPTS, CONVERSATION_REPLIES, spread
from proxy.sim.physics import prefill_work
from proxy.sim.traces import Request
from proxy.sim.workloads import capacity
from proxy.tools.asking import Sample, connect
from proxy.tools.bench.load import fire
from proxy.tools.bench.watching import read

_TICK_SECONDS: Final = 1.0
"""The controller looks at each arrival, each end and each second."""
_POLL_SECONDS: Final = 0.1
_SLACK_SECONDS: Final = 0.25
"""For this machine: a scheduler that is busy with something else, and a poll under way."""
_MOST_IN_FLIGHT: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The load over time: (seconds, share of the plain server's capacity)."""

    scale: float = 1.0
    phases: Sequence[tuple[float, float]] = ((40.0, 0.05), (60.0, 0.8), (110.0, 0.05))


class _State(msgspec.Struct):
    mode: UpstreamName


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What came of it; monotonic seconds."""

    up: float
    """When the load rose."""
    down: float
    """When it fell."""
    samples: Sequence[Sample]
    silence: Patience
    """The longest one of all."""
    modes: Sequence[tuple[float, UpstreamName]]
    switches: float


async def run(folder: Path, settings: Settings, seed: int) -> list[Finding]:
    """Measure it once."""
    async with AsyncExitStack() as ends:
        ours = await ends.enter_async_context(both(folder, settings.scale))
        client = await ends.enter_async_context(connect(ours.url))
        admin = await ends.enter_async_context(connect(ours.admin_url))
        seen = await _seen(client, admin, settings, seed)
    return list(_findings(seen, settings.scale))


async def _seen(
    client: httpx2.AsyncClient, admin: httpx2.AsyncClient, settings: Settings, seed: int
) -> _Seen:
    planned = requests(settings.phases, Random(seed))  # noqa: S311 - can be repeated
    silences: list[Patience] = []
    modes: list[tuple[float, UpstreamName]] = []
    before = await read(admin, time.monotonic)
    until = sum(seconds for seconds, _ in settings.phases) / settings.scale
    watching = asyncio.get_running_loop().create_task(_watch(admin, modes, time.monotonic))
    try:
        volley = await fire(
            shots(planned, settings.scale),
            asker(client, time.monotonic, silences),
            most_in_flight=_MOST_IN_FLIGHT,
            stop=asyncio.Event(),
            ended=lambda: None,
            clock=time.monotonic,
        )
        await asyncio.sleep(max(0.0, volley.started_at + until - time.monotonic()))
        if watching.done():
            watching.result()  # raises why it ended
    finally:
        watching.cancel()
    after = await read(admin, time.monotonic)
    up = volley.started_at + settings.phases[0][0] / settings.scale
    return _Seen(
        up=up,
        down=up + settings.phases[1][0] / settings.scale,
        samples=[one for one in volley.samples if one is not None],
        silence=max(silences, key=lambda one: one.longest),
        modes=modes,
        switches=after.switches - before.switches,
    )


def requests(phases: Sequence[tuple[float, float]], random: Random) -> list[Request]:
    """One request in each 1/rate seconds, at a random moment of them.

    So how soon the load shows is not a matter of luck, as it would be with independent arrivals.
    """
    times = list(_times(phases, random))
    prompts = spread(CONVERSATION_PROMPTS, len(times), random)
    replies = spread(CONVERSATION_REPLIES, len(times), random)
    return [Request(*one) for one in zip(times, prompts, replies, strict=True)]


def _times(phases: Sequence[tuple[float, float]], random: Random) -> Iterator[float]:
    begins = 0.0
    for seconds, load in phases:
        gap = 1.0 / (load * capacity(PROFILE))
        for turn in range(floor(seconds / gap)):
            yield begins + (turn + random.random()) * gap
        begins += seconds


async def _watch(
    admin: httpx2.AsyncClient,
    modes: list[tuple[float, UpstreamName]],
    clock: Callable[[], float],
) -> None:
    """Note the mode, each time that it is another one."""
    while True:
        answer = await admin.get("/admin/state")
        mode = msgspec.json.decode(answer.content, type=_State).mode
        if not modes or modes[-1][1] is not mode:
            modes.append((clock(), mode))
        await asyncio.sleep(_POLL_SECONDS)


def _rule(scale: float) -> Rule:
    """Of the first leaving; those after it would be judged by what came of it."""
    known, policy, seconds = knowledge(), Policy(), windows(scale)
    most = policy.up_factor * known.crossover
    return Rule(
        rate=known.crossover_rate * scale,
        most=most,
        gate=max(1.0, policy.gate_factor * most),
        up=policy.rate_up,
        down=policy.rate_down,
        fast=seconds["fast_window"],
        slow=seconds["slow_window"],
        output_tokens=known.output_tokens,
    )


def _findings(seen: _Seen, scale: float) -> Iterator[Finding]:
    rule = _rule(scale)
    found = list(moments(seen.samples, rule))
    yield from _leaving(seen, rule, leaves_at(found, rule, seen.up), scale)
    yield from _returning(seen, returns_at(found, rule, seen.down), scale)
    yield Finding(name="step: switches", value=seen.switches, at_least=2.0, at_most=2.0)
    yield Finding(
        name="step: longest silence of a stream, s",
        value=seen.silence.longest * scale,
        at_most=_longest_silence(seen, max(one.in_flight for one in found), scale),
    )
    yield Finding(
        name="step: that silence, s after the step up",
        value=(seen.silence.began - seen.up) * scale,
    )
    bad = sum(not one.ok for one in seen.samples)
    yield Finding(name="step: no good end", value=float(bad), at_most=0.0)


def _leaving(seen: _Seen, rule: Rule, due: float | None, scale: float) -> Iterator[Finding]:
    on_base = [
        one.sent_at
        for one in seen.samples
        if one.sent_at >= seen.up and one.upstream == UpstreamName.BASE
    ]
    left = min(on_base, default=None)
    yield Finding(
        name="step: on base, s after the step up",
        value=None if left is None else (left - seen.up) * scale,
        at_most=rule.fast * scale,
    )
    late = [
        one
        for one in seen.samples
        if due is not None and due <= one.sent_at < seen.down and one.upstream == UpstreamName.SPEC
    ]
    yield Finding(
        name="step: sent to spec although the rule asked for base",
        value=None if due is None else float(len(late)),
        at_most=0.0,
    )


def _returning(seen: _Seen, due: float | None, scale: float) -> Iterator[Finding]:
    back = [at for at, mode in seen.modes if at >= seen.down and mode is UpstreamName.SPEC]
    returned = min(back, default=None)
    yield Finding(
        name="step: back on spec, s after the rule asked for it",
        value=None if returned is None or due is None else (returned - due) * scale,
        at_most=(_TICK_SECONDS + _POLL_SECONDS + _SLACK_SECONDS) * scale,
    )
    yield Finding(
        name="step: back on spec, s after the step down",
        value=None if returned is None else (returned - seen.down) * scale,
    )


def _longest_silence(seen: _Seen, in_flight: int, scale: float) -> float:
    """What the engines alone may take, in seconds of the GPU, and something for this machine.

    A stream waits while prompts are filled, which goes before decoding, and then for one step. Both
    engines may be at it, then each is slower by 2/eta. Prompts come from one queue here, although
    they may be on two engines, so this is the most.
    """
    slower = 2.0 / CONTENTION
    arrivals = [
        (
            one.sent_at * scale,
            slower * prefill_work(PROFILE, UpstreamName.SPEC, one.prompt_tokens or 0).seconds,
        )
        for one in sorted(seen.samples, key=lambda one: one.sent_at)
    ]
    step = max(
        PROFILE.cost(UpstreamName.BASE).work(in_flight, 0.0).seconds,
        PROFILE.cost(UpstreamName.SPEC).work(floor(_rule(scale).most), 0.0).seconds,
    )
    return longest_busy(arrivals) + slower * step + _SLACK_SECONDS * scale
