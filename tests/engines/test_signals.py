"""What the prober learns of real SGLang servers: acceptance, queue, memory, lengths, and their age.

The acceptance length is what was counted between two readings, as the controller needs it; what
SGLang calls `accept_length` is since its start.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest

from proxy.control.engine import connect, read_counters, read_load
from proxy.control.prober import Prober, ProbeRules
from proxy.core.dispatch import Dispatcher
from proxy.core.signals import EngineSignals
from proxy.core.words import UpstreamName
from tests.engines.pair import MODEL, Engine, EnginePair
from tests.harness.pair import SETTINGS, Recorder

DRAFT_TOKENS = 4
"""That the pair's speculative server verifies in a round: no more can be accepted."""
RULES = ProbeRules(path="/ready", interval=0.5, timeout=30.0)
"""Probes often, so that a test is short, and patiently."""
PATIENCE = 60.0


class Told(Dispatcher):
    """A dispatcher that keeps what it is told of its engines."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, Recorder(), now=asyncio.get_running_loop().time())
        self.signals: list[EngineSignals] = []
        self.ended: list[tuple[float, int]] = []

    def signals_read(self, name: UpstreamName, signals: EngineSignals, now: float) -> None:
        """Keep it."""
        self.signals.append(signals)
        super().signals_read(name, signals, now)

    def lengths_read(self, output_tokens: float, sequences: int) -> None:
        """Keep it."""
        self.ended.append((output_tokens, sequences))
        super().lengths_read(output_tokens, sequences)


@asynccontextmanager
async def probed(engine: Engine) -> AsyncIterator[Told]:
    """What is told of `engine` while it is probed."""
    told = Told()
    client = connect(engine.url, api_key=None, tls=None, timeout=RULES.timeout)
    clock = asyncio.get_running_loop().time
    prober = Prober(engine.name, client, told, RULES, clock=clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(prober.run())
        try:
            await until(lambda: bool(told.signals))
            yield told
        finally:
            task.cancel()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what a probe will find."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - probes happen when they happen
            await asyncio.sleep(0.05)


async def ask(engine: Engine, count: int, tokens: int) -> None:
    """That many chats at one time, each with so many tokens."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a b c"}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        url = f"{engine.url}/v1/chat/completions"
        answers = await asyncio.gather(*(client.post(url, json=body) for _ in range(count)))
    assert {answer.status_code for answer in answers} == {200}


async def test_acceptance_is_read_of_the_speculative_server(engines: EnginePair) -> None:
    """Between a token and all drafts with one more, from the load, while requests run."""
    async with probed(engines.spec) as told:
        await ask(engines.spec, 4, 200)
        await until(lambda: any(one.acceptance_length for one in told.signals))
    lengths = [one.acceptance_length for one in told.signals if one.acceptance_length is not None]
    assert all(1.0 <= length <= DRAFT_TOKENS for length in lengths)


async def test_load_and_metrics_agree(engines: EnginePair) -> None:
    """Both count the same rounds, but the load leaves out steps that followed no other at once."""
    async with connect(engines.spec.url, api_key=None, tls=None, timeout=30.0) as client:
        before = await read_load(client), await read_counters(client)
        await ask(engines.spec, 4, 200)
        await until(lambda: engines.spec.load() == (0, 0))
        after = await read_load(client), await read_counters(client)
    assert before[1] is not None
    assert after[1] is not None
    assert after[0].decoded is not None
    drafted = after[0].decoded
    if before[0].decoded is not None:
        since = after[0].decoded.since(before[0].decoded)
        assert since is not None
        drafted = since
    counted = after[1].verified.since(before[1].verified)
    assert counted is not None
    assert counted.tokens == 4 * 199
    assert 0 < drafted.times <= counted.times
    by_load, by_metrics = drafted.tokens / drafted.times, counted.tokens / counted.times
    assert by_load == pytest.approx(by_metrics, rel=0.15)


async def test_the_plain_server_has_no_acceptance(engines: EnginePair) -> None:
    """It decodes a token at a time, and verifies nothing."""
    async with probed(engines.base) as told:
        seen = len(told.signals)
        await ask(engines.base, 4, 200)
        await until(lambda: len(told.signals) > seen + 1)
    assert {one.acceptance_length for one in told.signals} == {None}
    async with connect(engines.base.url, api_key=None, tls=None, timeout=30.0) as client:
        counters = await read_counters(client)
    assert counters is not None
    assert counters.rounds == 0
    assert counters.ended.tokens >= 800


async def test_queue_and_memory_are_read(engines: EnginePair) -> None:
    """More requests than the server runs at once wait in its queue, and those that run hold KV."""
    async with probed(engines.spec) as told, asyncio.TaskGroup() as group:
        asked = group.create_task(ask(engines.spec, 40, 60))
        await until(lambda: any(one.waiting for one in told.signals))
        await until(lambda: any(one.token_usage for one in told.signals))
        await asked
    assert all(0 <= one.age_seconds < PATIENCE for one in told.signals)
    assert all(one.token_usage is not None and one.token_usage <= 1 for one in told.signals)


async def test_lengths_are_read(engines: EnginePair) -> None:
    """Mean output tokens of a sequence, once enough of them have ended."""
    async with probed(engines.spec) as told:
        async with asyncio.timeout(PATIENCE):
            while not told.ended:  # again: what ends before its counters were first read is missed
                await ask(engines.spec, 30, 20)
    tokens, sequences = told.ended[-1]
    assert tokens / sequences == pytest.approx(20.0)


async def test_a_frozen_scheduler_makes_them_stale(engines: EnginePair) -> None:
    """Its HTTP server goes on answering what was so before it stopped; that is told once only."""
    clock = asyncio.get_running_loop().time
    async with probed(engines.spec) as told:
        engines.spec.freeze()
        try:
            await asyncio.sleep(2 * RULES.interval)  # what it wrote before may still be read
            last = told.signals[-1]
            await until(lambda: told.signals[-1].age(clock()) > 5.0)
            assert told.signals[-1] == last
        finally:
            engines.spec.thaw()
        await until(lambda: told.signals[-1].age(clock()) < 3.0)
