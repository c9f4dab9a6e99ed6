"""What an ending is called, and that nothing is sent twice, on every path of generation."""

import asyncio
import json

import pytest

from proxy.core.words import Outcome
from tests.harness.client import post
from tests.harness.families import (
    CHAT_FAMILY,
    FAMILIES,
    GENERATE,
    MESSAGES,
    OLLAMA,
    PLAIN,
    RESPONSES,
    Family,
)
from tests.harness.running import Rig, rig
from tests.harness.upstream import ByHand, Reset, Send, event, reply

FULL = reply(b'{"error": {"code": 503}}', status="503 Service Unavailable")
STREAMS = [family for family in FAMILIES if family.streams]


def named(kind: str, told: dict[str, object]) -> bytes:
    """A server-sent event with a name."""
    return f"event: {kind}\n".encode() + event({"type": kind, **told})


ERRORS: dict[str, bytes] = {
    CHAT_FAMILY.name: event({"error": {"message": "no", "type": "BadRequest", "code": 400}}),
    GENERATE.name: event({"error": {"message": "no", "code": 500}}),
    MESSAGES.name: named("error", {"error": {"type": "api_error", "message": "no"}}),
    OLLAMA.name: b'{"error": "no"}\n',
    RESPONSES.name: named("response.failed", {"response": {"error": {"code": "server_error"}}}),
}


def name_of(family: Family) -> str:
    """It as a test's name."""
    return family.name


def outcome(it: Rig, family: Family) -> dict[str, float]:
    """What was counted for its path."""
    counts = {
        word: it.total("requests_total", endpoint=family.path, outcome=word) for word in Outcome
    }
    return {word: count for word, count in counts.items() if count}


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("family", STREAMS, ids=name_of)
async def test_an_error_inside_a_200_is_a_failure(family: Family, first: bool) -> None:  # noqa: FBT001 - a parameter
    """It passes as it came, to the end, and the request counts as failed.

    BerriAI/litellm#40578: the event was dropped, and counted as a success.
    """
    body = (b"" if first else family.first) + ERRORS[family.name] + family.last
    async with rig() as it:
        it.spec.script(Send(family.head + family.framed(body) + family.end))
        client = await it.client()
        client.send(family.request)
        response = await client.response()

        assert (response.status, response.complete, response.body) == (200, True, body)
        assert outcome(it, family) == {"failed": 1}
        assert not it.base.requests


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("family", STREAMS, ids=name_of)
async def test_leaving_at_the_end_of_a_stream_is_no_departure(family: Family, leave: str) -> None:
    """OpenAI's client for Python closes at [DONE], before HTTP's own end of it may have come."""
    async with rig() as it:
        it.spec.script(ByHand())
        client = await it.client()
        client.send(family.request)
        (request,) = await it.spec.received(1)
        request.say(family.head + b"".join(map(family.framed, (family.first, family.last))))
        await client.head()
        assert await client.chunk() == family.first
        assert await client.chunk() == family.last
        getattr(client, leave)()
        await request.gone.wait()
        await it.until(lambda: outcome(it, family) != {}, "it is counted")

        assert outcome(it, family) == {"ok": 1}
        assert it.total("responses_total", upstream="spec", code="200") == 1


async def test_half_an_answer_and_then_nothing() -> None:
    """An answer that stalls in its body breaks off, and counts as failed by its deadline.

    sgl-project/sglang#39463 is about the code of a 504. Here the head has passed by then, as every
    head that is not held does: bodies are not kept back until they are whole, so there is no status
    left to choose; the length tells the client that bytes are missing.
    """
    async with rig(timeouts__response=0.3) as it:
        it.spec.script(ByHand())
        client = await it.client()
        client.send(PLAIN.request)
        (request,) = await it.spec.received(1)
        request.say(PLAIN.head + PLAIN.first)
        response = await client.response()
        async with asyncio.timeout(1):
            await request.gone.wait()

        assert (response.status, response.complete, response.body) == (200, False, PLAIN.first)
        assert outcome(it, PLAIN) == {"failed": 1}
        assert it.metric("midstream_failures_total", upstream="spec") == 1


@pytest.mark.parametrize("family", STREAMS, ids=name_of)
async def test_the_outcome_is_known_at_the_end(family: Family) -> None:
    """Nothing is counted while a stream runs; one that falls silent then is no success.

    BerriAI/litellm#29602: booked as a success with the head.
    """
    async with rig(timeouts__between_chunks=0.3) as it:
        it.spec.script(ByHand())
        client = await it.client()
        client.send(family.request)
        (request,) = await it.spec.received(1)
        request.say(family.head + family.framed(family.first))
        assert (await client.head())[0] == 200
        assert await client.chunk() == family.first
        assert outcome(it, family) == {}
        assert it.total("responses_total") == 0
        told = await client.chunk()
        assert told is not None
        assert family.code_in is not None
        assert family.code_in(told) == "upstream_timeout"

        assert outcome(it, family) == {"failed": 1}
        assert it.metric("responses_total", upstream="spec", code="200") == 1


# Nothing is sent twice ---------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "new"])
@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
async def test_an_engine_that_read_the_request_has_had_it(family: Family, kept: bool) -> None:  # noqa: FBT001 - a parameter
    """It resets without a byte, later than a stale connection would: 502, and nobody else is asked.

    radixark/miles#1334: retried on any exception, so that two generations ran.
    """
    async with rig() as it:
        client = await it.client()
        if kept:
            it.spec.script(Send(reply(b"{}")))
            client.send(post("/v1/completions", {"prompt": "a"}))
            assert (await client.response()).status == 200
        it.spec.script(ByHand())
        client.send(family.request)
        request = (await it.spec.received(1 + kept))[-1]
        loop = asyncio.get_running_loop()
        due = loop.time() + 0.15
        await it.until(lambda: loop.time() > due, "it cannot be a stale connection any more")
        request.reset()
        response = await client.response()

        assert response.status == 502
        assert b"upstream_reset" in response.body
        assert len(it.spec.requests) == 1 + kept
        assert not it.base.requests


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
async def test_who_cannot_be_connected_to_has_had_nothing(family: Family) -> None:
    """Refused by one, the request goes to the other, once."""
    async with rig(health__fall=1000) as it:
        await it.spec.stop()
        it.base.always(Send(family.whole))
        client = await it.client()
        client.send(family.request)
        response = await client.response()

        assert response.body == family.answer
        assert len(it.base.requests) == 1
        assert it.metric("retries_total", cause="connect") == 1


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
async def test_both_refuse(family: Family) -> None:
    """Each is asked once, however often a client could be asked to wait.

    huggingface/trl#5892: retries within retries, 90 of them.
    """
    async with rig() as it:
        for upstream in (it.spec, it.base):
            upstream.always(Send(FULL))
        client = await it.client()
        client.send(family.request)
        response = await client.response()

        assert (response.status, response.body) == (503, b'{"error": {"code": 503}}')
        assert [len(it.spec.requests), len(it.base.requests)] == [1, 1]
        assert it.total("retries_total") == 1


@pytest.mark.parametrize("family", FAMILIES, ids=name_of)
async def test_nobody_can_be_connected_to(family: Family) -> None:
    """Both are tried once, at once, and the answer says what was tried last."""
    async with rig(health__fall=1000) as it:
        await it.spec.stop()
        await it.base.stop()
        client = await it.client()
        client.send(family.request)
        async with asyncio.timeout(2):
            response = await client.response()

        assert response.status == 502
        assert b"upstream_connect" in response.body
        assert it.total("retries_total") == 1
        assert it.total("decisions_total") == 2


@pytest.mark.parametrize("tokens", [-5, 1 << 70, "7", None, 1.5])
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_engine_that_counts_oddly(tokens: object, streamed: bool) -> None:  # noqa: FBT001 - a parameter
    """What an engine says of its tokens may be nonsense; its answer passes, and ends, as ever."""
    usage = {"choices": [], "usage": {"completion_tokens": tokens}}
    family = CHAT_FAMILY if streamed else PLAIN
    body = family.first + event(usage) + family.last if streamed else json.dumps(usage).encode()
    async with rig() as it:
        answer = family.head + family.framed(body) + family.end if streamed else reply(body)
        it.spec.script(Send(answer))
        client = await it.client()
        client.send(family.request)
        response = await client.response()

        assert (response.status, response.complete, response.body) == (200, True, body)
        assert outcome(it, family) == {"ok": 1}


async def test_a_reset_at_the_very_end() -> None:
    """Everything but the end mark, and then a reset: no success, though every event was there."""
    async with rig() as it:
        it.spec.script(Send(GENERATE.head + GENERATE.framed(GENERATE.answer)), Reset())
        client = await it.client()
        client.send(GENERATE.request)
        response = await client.response()

        assert not response.complete
        assert response.body.startswith(GENERATE.answer)
        assert outcome(it, GENERATE) == {"failed": 1}
