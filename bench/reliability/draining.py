"""SIGTERM under load: what is cut, what is refused and how, and when is it over?"""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Final

from bench.reliability.asking import Answer, Numbers, ask
from bench.reliability.targets import Target
from tests.harness.running import until
from tests.soak.pair import Engines
from tests.soak.plans import Plan

STREAMS: Final = 100
"""Each takes 3 s."""

_NEW_EVERY: Final = 0.02
_GIVE_UP_SECONDS: Final = 15.0


async def measure(target: Target, engines: Engines) -> Numbers:
    """100 streams of 3 s run when SIGTERM comes, and new requests go on coming."""
    streams = [_stream(target.port, number) for number in range(STREAMS)]
    running = asyncio.gather(*streams)
    await _until_received(engines, STREAMS)
    began = time.monotonic()
    target.terminate()
    new = await _new_requests(target)
    ended = time.monotonic() - began
    answers = await running
    kinds = Counter(map(_kind, new))
    return {
        "drain: streams cut of 100": float(sum(not answer.whole for answer in answers)),
        "drain: exit code": None if (code := target.process.poll()) is None else float(code),
        "drain: seconds to the exit": ended,
        "drain: new requests told 503": float(kinds["refused"]),
        "drain: new requests served": float(kinds["served"]),
        "drain: new requests without an answer": float(kinds["nothing"]),
    }


async def _stream(port: int, number: int) -> Answer:
    return await ask(port, Plan(id=f"drain-{number}", pieces=30, between=100, stream=True))


async def _until_received(engines: Engines, count: int) -> None:
    """Until the engines have `count` of them; who has fewer by then has fewer."""
    with suppress(AssertionError):
        await until(lambda: _received(engines) >= count, "the streams run", _GIVE_UP_SECONDS)


def _received(engines: Engines) -> int:
    return sum(line.id.startswith("drain-") for line in engines.lines("R"))


async def _new_requests(target: Target) -> list[Answer]:
    """Ask now and then until the process has ended."""
    answers: list[Answer] = []
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while target.process.poll() is None and time.monotonic() < deadline:
        number = len(answers)
        answers.append(await ask(target.port, Plan(id=f"new-{number}", pieces=1, stream=True)))
        await asyncio.sleep(_NEW_EVERY)
    return answers


def _kind(answer: Answer) -> str:
    if answer.status is None:
        return "nothing"
    return "served" if answer.whole else "refused"
