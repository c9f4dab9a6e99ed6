"""Ollama's lines, Anthropic's events and SageMaker's name: each line passes as it comes, and tells.

How each of them ends when something breaks is in tests/faults/test_every_ending.py and
test_outcomes.py; here are the paths that share a dialect, and what is read off their streams.
"""

import json
from dataclasses import replace

import pytest

from tests.harness.client import post
from tests.harness.families import CHAT_FAMILY, MESSAGES, OLLAMA, Family
from tests.harness.running import Rig, rig
from tests.harness.upstream import ByHand, Received, Send, event, reply, stream

GENERATED = replace(
    OLLAMA,
    name="ollama_generate",
    path="/api/generate",
    body={"model": "tiny", "prompt": "hello"},
    first=b'{"response":"a","done":false}\n',
    second=b'{"response":"b","done":false}\n',
    last=b'{"response":"","done":true,"done_reason":"stop","eval_count":2}\n',
)
CHATTED = replace(OLLAMA, name="ollama_chat", body={"model": "tiny", "messages": []})
"""Without `stream`: Ollama streams unless it is told not to."""
INVOKED = replace(
    CHAT_FAMILY,
    name="invocations",
    path="/invocations",
    holds=False,
    last=event({"choices": [], "usage": {"completion_tokens": 2}}) + b"data: [DONE]\n\n",
)
TOLD = replace(
    MESSAGES,
    last=b"event: message_delta\n"
    + event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}})
    + MESSAGES.last,
)
FAMILIES = (CHATTED, GENERATED, INVOKED, TOLD)
ALL = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
SHORT = 0.2


async def asked(it: Rig, family: Family) -> Received:
    """The request of a client, which spec answers by hand."""
    it.spec.script(ByHand())
    client = await it.client()
    client.send(family.request)
    return (await it.spec.received(1))[0]


@ALL
async def test_a_stream_passes_as_it_comes(family: Family) -> None:
    """Head at once, each piece for itself; its first token and its usage are seen."""
    async with rig() as it:
        request = await asked(it, family)
        client = it.clients[0]
        request.say(family.head)
        status, headers = await client.head()
        named = {name.lower(): value for name, value in headers}
        assert (status, named["content-type"]) == (200, family.content_type)
        for piece in (family.first, family.second, family.last):
            request.say(family.framed(piece))
            assert await client.chunk() == piece
        request.say(family.end)
        request.over()
        assert await client.chunk() is None
        await it.until(lambda: it.metric("output_tokens_total", upstream="spec") == 2, "counted")
        assert it.metric("time_to_first_token_seconds_count", upstream="spec") == 1
        assert it.metric("requests_total", endpoint=family.path, outcome="ok", upstream="spec") == 1


@ALL
async def test_a_stream_that_falls_silent(family: Family) -> None:
    """Also where `stream` is not said: the deadline is a stream's, and the error has its shape."""
    async with rig(timeouts__between_chunks=SHORT) as it:
        request = await asked(it, family)
        request.say(family.head + family.framed(family.first))
        response = await it.clients[0].response()
        assert not response.complete
        assert response.chunks[0] == family.first
        assert family.code_in is not None
        assert family.code_in(response.chunks[1]) == "upstream_timeout"


@pytest.mark.parametrize("family", [CHATTED, GENERATED, TOLD], ids=lambda each: str(each.name))
async def test_what_is_not_streamed(family: Family) -> None:
    """Its usage is read off the whole answer, and it has a whole answer's time."""
    tokens = {"usage": {"output_tokens": 3}} if family is TOLD else {"eval_count": 3}
    body = json.dumps({"done": True, **tokens}).encode()
    asks = post(family.path, {**family.body, "stream": False})
    async with rig(timeouts__first_byte=60.0) as it:
        it.spec.script(Send(reply(body)))
        client = await it.client()
        client.send(asks)
        assert (await client.response()).body == body
        await it.until(lambda: it.metric("output_tokens_total", upstream="spec") == 3, "counted")


async def test_a_refusal_in_a_stream_of_sagemaker_passes() -> None:
    """Its head has gone by then, as SGLang sends it at once there: failed, and not retried."""
    full = event({"error": {"message": "The request queue is full.", "code": 503}})
    async with rig() as it:
        it.spec.script(Send(stream(full, b"data: [DONE]\n\n")))
        client = await it.client()
        client.send(INVOKED.request)
        response = await client.response()
        assert (response.complete, response.chunks[0]) == (True, full)
        await it.until(
            lambda: it.total("requests_total", endpoint="/invocations", outcome="failed") == 1,
            "counted",
        )
        assert not it.base.requests


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_our_own_errors_are_anthropics_there(path: str) -> None:
    """Type, words and code, on both of its paths."""
    async with rig(auth__api_keys={"team": "sk-right"}) as it:
        client = await it.client()
        client.send(post(path, {}))
        response = await client.response()
        told = json.loads(response.body)
        assert (response.status, told["type"]) == (401, "error")
        assert told["error"]["type"] == "authentication_error"
        assert told["error"]["message"].endswith("(invalid_api_key)")
