"""Clients that leave, in all the ways in which other proxies have lost count of them.

What each test says of another project is why it is here; `test_every_ending` has the same events in
every state. Every test ends with the rig's own check: nothing in flight, the books balanced.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass

import httpx2
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from proxy.core.endpoints import ENDPOINTS, Kind
from proxy.core.words import Control, UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, post
from tests.harness.families import FAMILIES, GENERATE, Family
from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    ByHand,
    Received,
    Send,
    Silence,
    chunk,
    event,
    stream,
)

SOON_SECONDS = 1.0
"""Within which the engine must see FIN; the real figure is a hundredth of it."""
GENERATION = [e.template for e in ENDPOINTS if e.kind is Kind.GENERATION]
CHATTING = post("/v1/chat/completions", CHAT_STREAM)
TOKEN = event({"choices": [{"index": 0, "delta": {"content": "a"}}]})


async def gone(request: Received) -> None:
    """Its engine sees the connection close."""
    async with asyncio.timeout(SOON_SECONDS):
        await request.gone.wait()


def abandoned(it: Rig) -> float:
    """How many were counted as left by their client."""
    return it.total("requests_total", outcome="abandoned")


# Before the head, and mid-stream -------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("said", [False, True], ids=["no head", "head only"])
async def test_a_long_prefill_for_a_client_that_left(family: Family, said: bool) -> None:  # noqa: FBT001 - a parameter
    """No chunk need be sent to find out that nobody is there, streamed or not.

    smg-project/smg#2136: noticed at the next chunk only. BerriAI/litellm#37140: never, unless
    streamed.
    """
    async with rig() as it:
        it.spec.script(*([Send(family.head)] if said else []), Silence())
        client = await it.client()
        client.send(family.request)
        (request,) = await it.spec.received(1)
        if said and not family.holds:
            assert (await client.head())[0] == 200
        client.reset()
        await gone(request)

        await it.until(lambda: abandoned(it) == 1, "it is counted")
        assert it.app.dispatcher.in_flight.total == 0


async def test_few_chunks_are_made_for_a_client_that_left() -> None:
    """Gone at the fifth of 100 chunks, the engine hears of it before the eighth.

    BerriAI/litellm#30244: the slot was given back, the engine's connection stayed.
    """
    async with rig() as it:
        it.spec.script(ByHand())
        client = await it.client()
        client.send(GENERATE.request)
        (request,) = await it.spec.received(1)
        request.say(GENERATE.head)
        await client.head()
        for _ in range(5):
            request.say(chunk(GENERATE.first))
            assert await client.chunk() == GENERATE.first
        client.close()
        further = 0
        for _ in range(95):
            if request.gone.is_set():
                break
            request.say(chunk(GENERATE.first))
            further += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await request.gone.wait()

        assert further < 3
        await gone(request)


async def test_many_clients_that_reset_at_once() -> None:
    """50 clients leave with their request sent, over four places; the next is served at once.

    opensandbox-group/OpenSandbox#1488: each left one connection of the pool behind.
    """
    async with rig(policy__control="base", upstreams__base__max_in_flight=4) as it:
        it.base.always(Silence())
        for _ in range(50):
            client = await it.client()
            client.send(GENERATE.request)
            client.reset()
        await it.until(lambda: not it.app.front.open_requests, "all are gone")
        it.base.always(Send(GENERATE.whole))
        client = await it.client()
        client.send(GENERATE.request)
        async with asyncio.timeout(SOON_SECONDS):
            response = await client.response()

        assert response.body == GENERATE.answer
        await it.until(
            lambda: it.app.links.pools[0].active + it.app.links.pools[1].active == 0, "none is used"
        )


async def test_a_client_that_stops_reading_and_resets() -> None:
    """Its engine says 50 MB; at most 1 MiB is held for it, and nothing once it has gone.

    Kludex/uvicorn#2754: a task waited for ever for such a client to read.
    """
    async with rig() as it:
        it.spec.script(Send(STREAM_HEAD), *[Send(chunk(b"x" * (1 << 20)))] * 50, Send(END))
        client = await it.client(receive_bytes=4096)
        client.stop_reading()
        client.send(GENERATE.request)
        (request,) = await it.spec.received(1)
        (connection,) = it.app.front.connections
        await it.until(lambda: connection.slow, "it is slow")
        most = connection.unsent_bytes
        client.reset()
        await gone(request)

        assert most < 1 << 20
        await it.until(lambda: abandoned(it) == 1, "it is counted")


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_a_client_that_leaves_a_session(path: str) -> None:
    """A session's turn lives in base; there, too, the engine's connection closes at once.

    sgl-project/sglang#36552 is about what SGLang then does with it: not ours to mend.
    """
    async with rig() as it:
        it.base.script(Send(STREAM_HEAD + chunk(TOKEN)), Silence())
        client = await it.client()
        client.send(post(path, {**CHAT_STREAM, "text": "a", "session_params": {"id": "s"}}))
        (request,) = await it.base.received(1)
        await client.head()
        client.close()

        await gone(request)


# Real clients --------------------------------------------------------------------------------

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "a"}]


@dataclass
class Seen:
    """What a library's user cannot see: the engine's side."""

    it: Rig

    async def at_engine(self) -> None:
        """Wait until the request is there."""
        await self.it.spec.received(1)

    async def gone(self) -> None:
        """Wait until its connection has closed."""
        await gone((await self.it.spec.received(1))[0])


def openai(seen: Seen) -> AsyncOpenAI:
    """The official client, which never retries here."""
    return AsyncOpenAI(base_url=f"{seen.it.app.url}/v1", api_key="x", max_retries=0)


def httpx(seen: Seen, *, timeout: float = 10.0) -> httpx2.AsyncClient:
    """The library below it."""
    # No TLS is spoken here, and reading the system's certificates takes longer than a test.
    return httpx2.AsyncClient(
        base_url=seen.it.app.url, trust_env=False, verify=False, timeout=timeout
    )


async def _openai_closes_a_stream(seen: Seen) -> None:
    async with openai(seen) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        await anext(aiter(answer))
        await answer.close()
        await seen.gone()


async def _openai_is_cancelled_in_a_stream(seen: Seen) -> None:
    async with openai(seen) as client:
        read = asyncio.Event()

        async def reads() -> None:
            answer = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            async for _ in answer:
                read.set()

        await _cancel(reads(), read.wait())
        await seen.gone()


async def _openai_is_cancelled_waiting(seen: Seen) -> None:
    async with openai(seen) as client:

        async def asks() -> None:
            await client.chat.completions.create(model="m", messages=MESSAGES)

        await _cancel(asks(), seen.at_engine())
        await seen.gone()


async def _httpx_closes_a_stream(seen: Seen) -> None:
    async with httpx(seen) as client:
        async with client.stream("POST", "/v1/chat/completions", json=CHAT_STREAM) as response:
            assert await anext(response.aiter_bytes())
        await seen.gone()


async def _httpx_loses_patience(seen: Seen) -> None:
    async with httpx(seen, timeout=0.3) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.post("/v1/chat/completions", json=CHAT)
        await seen.gone()


async def _cancel(
    work: Coroutine[None, None, None], underway: Coroutine[None, None, object]
) -> None:
    """Cancel `work` once it is under way."""
    task = asyncio.get_running_loop().create_task(work)
    async with asyncio.timeout(10):
        await underway
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "leave",
    [
        _openai_closes_a_stream,
        _openai_is_cancelled_in_a_stream,
        _openai_is_cancelled_waiting,
        _httpx_closes_a_stream,
        _httpx_loses_patience,
    ],
)
async def test_client_libraries_that_stop(leave: Callable[[Seen], Awaitable[None]]) -> None:
    """What users press as "Stop" ends the work, while the library's client lives on.

    open-webui/open-webui#16251: the output was hidden, and the backend went on.
    """
    async with rig() as it:
        streamed = "stream" in leave.__name__
        it.spec.script(Send(STREAM_HEAD + chunk(TOKEN) if streamed else b""), Silence())
        await leave(Seen(it))
        await it.until(lambda: abandoned(it) == 1, "it is counted")


# Counting --------------------------------------------------------------------------------------


async def test_a_burst_does_not_pile_up() -> None:
    """Of 200 requests at once no more than N* are at spec: who is chosen is counted at once.

    vllm-project/aibrix#2422: chosen first, counted some lines later.
    """
    async with rig(policy__crossover=8.0) as it:
        for upstream in (it.spec, it.base):
            upstream.always(Silence())
        clients = await asyncio.gather(*(it.client() for _ in range(200)))
        for client in clients:
            client.send(GENERATE.request)
        await it.base.received(192)

        assert len(it.spec.requests) == 8
        assert it.app.dispatcher.in_flight.total == 200


async def test_load_counts_before_any_answer() -> None:
    """Requests whose heads have not come are load: the ninth of 20 goes to base.

    smg-project/smg#1714, sgl-project/sglang#27547: counted with the head, so that a long prefill
    looked idle.
    """
    async with rig(policy__crossover=8.0) as it:
        for upstream in (it.spec, it.base):
            upstream.always(Silence())
        for count in range(1, 21):
            client = await it.client()
            client.send(GENERATE.request)
            await it.until(lambda: it.app.dispatcher.in_flight.total == count, "it is counted")  # noqa: B023 - called at once
            assert it.app.dispatcher.in_flight.spec == min(count, 8)


@pytest.mark.parametrize("word", [*Control, "override"])
@pytest.mark.parametrize("path", GENERATION)
async def test_every_way_in_is_counted(path: str, word: str) -> None:
    """On each path, under each word of the operator and by the client's own choice.

    smg-project/smg#2146: counted under two policies only.
    """
    control = Control.AUTO if word == "override" else Control(word)
    headers = {"x-specswitch-route": "base"} if word == "override" else {}
    async with rig(policy__control=control, policy__allow_override=True) as it:
        for upstream in (it.spec, it.base):
            upstream.always(Silence())
        client = await it.client()
        client.send(post(path, {**CHAT, "prompt": "a", "text": "a", "input": "a"}, headers=headers))
        counts = it.app.dispatcher.in_flight
        await it.until(lambda: counts.total == 1, "it is counted")
        at_spec = word in {Control.AUTO, Control.SPEC}
        assert (counts.spec, counts.base) == ((1, 0) if at_spec else (0, 1))
        upstream = it.upstream(UpstreamName.SPEC if at_spec else UpstreamName.BASE)
        (request,) = await upstream.received(1)
        client.close()
        await gone(request)

        await it.until(lambda: counts.total == 0, "it is given back")


async def test_whole_answers_abort_nothing() -> None:
    """100 streams that end well: 100 requests over one connection, and nothing else is asked.

    ROCm/ATOM#1589: an abort was sent at each normal end, too.
    """
    async with rig(timeouts__idle_connection=30.0) as it:
        it.spec.always(Send(stream(TOKEN, DONE)))
        client = await it.client()
        for _ in range(100):
            client.send(CHATTING)
            assert (await client.response()).complete

        assert {request.path for request in it.spec.requests} == {"/v1/chat/completions"}
        assert len(it.spec.requests) == 100
        assert {request.connection for request in it.spec.requests[1:]} == {
            it.spec.requests[0].connection
        }
        assert not it.spec.requests[-1].gone.is_set()


# At random -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_that_leave_at_any_moment(seed: int) -> None:
    """1,000 clients leave before, in and after everything; the count is nought, and spec has it.

    vllm-project/router#215: 400 counts a day were left behind by clients that aborted.
    """
    lots = random.Random(seed)
    async with rig(policy__crossover=64.0) as it:
        for upstream in (it.spec, it.base):
            upstream.always(Send(STREAM_HEAD), *[Send(chunk(TOKEN))] * 3, Send(chunk(DONE) + END))
        for _ in range(100):
            await asyncio.gather(*(_leaves_sometime(it, lots) for _ in range(10)))
        await it.until(lambda: not it.app.front.open_requests, "all have ended")

        assert it.app.dispatcher.in_flight.total == 0
        assert it.app.dispatcher.mode is UpstreamName.SPEC
        assert it.metric("requests_started_total") <= 1000
        client = await it.client()
        client.send(CHATTING)
        assert (await client.response()).complete


async def _leaves_sometime(it: Rig, lots: random.Random) -> None:
    client = await it.client()
    request = lots.choice(FAMILIES).request
    client.send(request[: lots.choice((0, 20, len(request) - 3, len(request), len(request)))])
    for _ in range(lots.randrange(4)):
        await asyncio.sleep(0)  # so many turns of the loop later
    if lots.random() < 0.5:
        with suppress(asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            async with asyncio.timeout(lots.random() / 100):
                await client.reader.readexactly(lots.randrange(1, 600))
    lots.choice((client.close, client.reset, client.half_close))()
