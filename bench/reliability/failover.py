"""An engine dies: what does the next request pay, and which requests are lost?"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from bench.reliability.asking import Answer, Numbers, ask, milliseconds, percentile
from bench.reliability.targets import Target
from tests.soak.pair import Engines
from tests.soak.plans import Plan

SETTINGS: Final[Mapping[str, object]] = {"upstreams_base_max_in_flight": 100}
"""So that of 200 clients some are waiting in specswitch when an engine dies."""

CLIENTS: Final = 200
TRIALS: Final = 5
_AFTER_A_DEATH: Final = 4  # requests, one after the other: peers take turns between engines
_TRY_EVERY: Final = 0.5
_TRIES: Final = 20


async def added_time(target: Target, engines: Engines) -> Numbers:
    """SIGKILL, and at once a few requests, one after the other: the slowest of them pays for it.

    The engine that served last is the one to die.
    """
    usual: list[float] = []
    paid: list[float] = []
    lost = 0
    for trial in range(TRIALS):
        before = await _few(target.port, f"usual-{trial}")
        usual += [answer.first_byte for answer in before]
        name = max(engines.lines("R"), key=lambda line: line.at).engine
        await asyncio.to_thread(engines.kill, name)
        after = await _few(target.port, f"after-{trial}")
        paid.append(max(answer.first_byte for answer in after))
        lost += sum(not answer.whole for answer in after)
        await engines.start(name)
        await _until_used(target.port, engines, name, f"again-{trial}")
    median = percentile(usual, 0.5) or 0.0
    return {
        "failover: time added, p50 ms": milliseconds((percentile(paid, 0.5) or 0.0) - median),
        "failover: time added, worst ms": milliseconds(max(paid) - median),
        f"failover: lost of {TRIALS * _AFTER_A_DEATH}": float(lost),
    }


async def _few(port: int, name: str) -> list[Answer]:
    return [
        await ask(port, Plan(id=f"{name}-{number}", pieces=2, stream=True))
        for number in range(_AFTER_A_DEATH)
    ]


async def _until_used(port: int, engines: Engines, engine: str, name: str) -> None:
    """Until requests, one after the other, are all answered and `engine` has some; or never."""
    for number in range(_TRIES):
        asked = f"{name}-{number}"
        answers = await _few(port, asked)
        used = {line.engine for line in engines.lines("R") if line.id.startswith(f"{asked}-")}
        if engine in used and all(answer.whole for answer in answers):
            return
        await asyncio.sleep(_TRY_EVERY)


async def killed_under_load(
    target: Target, engines: Engines, *, name: str, seconds: float
) -> Numbers:
    """200 clients ask without a pause; the engine `name` is killed, and comes back after 2 s.

    A request that the dead engine had received is lost, whatever a proxy does: nothing is sent
    twice. One that no engine had received need not be.
    """
    answers: dict[str, Answer] = {}
    ends = time.monotonic() + seconds
    async with asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(_keep_asking(target.port, f"kill-{number}", ends, answers))
        await asyncio.sleep(seconds / 4)
        await asyncio.to_thread(engines.kill, name)
        await asyncio.sleep(min(2.0, seconds / 4))
        await engines.start(name)
    received = Counter(line.id for line in engines.lines("R"))
    lost = [each for each, answer in answers.items() if not answer.whole]
    sent = sum(received[each] > 0 for each in lost)
    twice = sum(count > 1 for each, count in received.items() if each in answers)
    return {
        f"{name} killed: answered": float(len(answers) - len(lost)),
        f"{name} killed: lost, an engine had them": float(sent),
        f"{name} killed: lost, no engine had them": float(len(lost) - sent),
        f"{name} killed: reached an engine twice": float(twice),
    }


async def _keep_asking(port: int, prefix: str, ends: float, answers: dict[str, Answer]) -> None:
    number = 0
    while time.monotonic() < ends:
        name = f"{prefix}-{number}"
        number += 1
        answers[name] = await ask(port, Plan(id=name, pieces=10, between=40, stream=True))
        if not answers[name].whole:
            await asyncio.sleep(0.2)  # as a client's library does; or those who fail do all asking
