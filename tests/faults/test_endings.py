"""How requests end when something goes wrong: client gone, engine gone, silence, refusals.

Every test ends with the rig's own check: nothing in flight, nothing held, the books balanced.
"""

import asyncio
import json
from statistics import median

import pytest

from proxy.core.words import UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, get, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    Fin,
    Gate,
    Reset,
    Send,
    Silence,
    Step,
    chunk,
    event,
    reply,
    stream,
)

CHATTING = post("/v1/chat/completions", CHAT_STREAM)
GENERATING = post("/generate", {"text": "a", "stream": True})
ASKING = post("/generate", {"text": "a"})
REFUSED = event({"error": {"message": "The request queue is full.", "code": 503}})
QUEUE_FULL = b'{"object":"error","message":"The request queue is full.","code":503}'


async def ask(it: Rig, request: bytes, *steps: Step) -> RawClient:
    """A client that has sent `request`, which spec answers by `steps`."""
    it.spec.script(*steps)
    client = await it.client()
    client.send(request)
    return client


def outcomes(it: Rig, name: str) -> float:
    """How many requests ended so."""
    total = 0.0
    for upstream in ("spec", "base", "none"):
        for endpoint in ("/v1/chat/completions", "/generate", "/v1/models", "other"):
            labels = {"upstream": upstream, "endpoint": endpoint, "outcome": name}
            total += it.metric("requests_total", **labels)
    return total


# The client leaves --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
@pytest.mark.parametrize("request_bytes", [CHATTING, GENERATING, ASKING])
@pytest.mark.parametrize(
    "said", [b"", STREAM_HEAD, STREAM_HEAD + chunk(event(1)), b"HTTP/1.1 200 OK\r\n\r\nab"]
)
async def test_client_leaves(how: str, request_bytes: bytes, said: bytes) -> None:
    """However and whenever a client leaves, its engine's connection is closed at once."""
    async with rig() as it:
        client = await ask(it, request_bytes, Send(said), Silence())
        (request,) = await it.spec.received(1)
        getattr(client, how)()
        await asyncio.wait_for(request.gone.wait(), 2)

        assert outcomes(it, "abandoned") == 1
        assert it.app.dispatcher.in_flight.total == 0


@pytest.mark.parametrize("mid_stream", [False, True])
async def test_client_leaves_in_time(mid_stream: bool) -> None:  # noqa: FBT001 - a parameter
    """From the client's leaving to the engine's connection closed: a median under 10 ms.

    Probed seldom: where others keep the machine busy, probes would take most of what is left.
    """
    said = STREAM_HEAD + chunk(event(1)) if mid_stream else b""
    async with rig(health__interval=30.0) as it:
        it.spec.always(Send(said), Silence())
        took = []
        for count in range(1, 31):
            client = await it.client()
            client.send(CHATTING)
            request = (await it.spec.received(count))[-1]
            if mid_stream:
                await client.head()
            left_at = asyncio.get_running_loop().time()
            client.close()
            await asyncio.wait_for(request.gone.wait(), 2)
            assert request.gone_at is not None
            took.append(request.gone_at - left_at)

        assert median(took) < 0.010


async def test_client_leaves_while_sending() -> None:
    """A client that leaves before its request is whole has reached no engine."""
    async with rig() as it:
        client = await it.client()
        client.send(CHATTING[:-5])
        await it.until(lambda: it.app.front.open_requests == 1, "the head is read")
        client.close()
        await it.until(lambda: it.app.front.open_requests == 0, "it is over")

        assert outcomes(it, "abandoned") == 1
        assert not it.spec.requests


async def test_client_leaves_while_waiting() -> None:
    """A waiting client that leaves frees its place and never reaches an engine."""
    async with rig(upstreams__base__max_in_flight=1, policy__control="base") as it:
        gate = asyncio.Event()
        it.base.always(Gate(gate), Send(reply(b"{}")))
        first, leaver, last = [await it.client() for _ in range(3)]
        first.send(ASKING)
        await it.base.received(1)
        leaver.send(ASKING)
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "one waits")
        last.send(ASKING)
        await it.until(lambda: len(it.app.dispatcher.room) == 2, "two wait")
        leaver.close()
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "one has left")
        gate.set()

        assert (await first.response()).status == 200
        assert (await last.response()).status == 200
        assert len(it.base.requests) == 2


# The engine goes ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Reset(), Fin()])
@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 O", STREAM_HEAD, STREAM_HEAD + b"10\r\ndata: {", b"no HTTP\r\n\r\n"],
)
async def test_engine_dies_before_the_head_is_passed(end: Step, said: bytes) -> None:
    """An engine that dies before anything reached the client: 502 with a code, sent once."""
    async with rig() as it:
        client = await ask(it, CHATTING, Send(said), end)
        response = await client.response()

        assert (response.status, response.code) == (502, "upstream_reset")
        assert response.header("x-specswitch-upstream") == "spec"
        assert len(it.spec.requests) + len(it.base.requests) == 1
        assert outcomes(it, "failed") == 1


@pytest.mark.parametrize("end", [Reset(), Fin()])
async def test_stream_breaks_off_at_a_boundary(end: Step) -> None:
    """A stream cut between events ends with an error event and no final chunk, never with DONE."""
    async with rig() as it:
        client = await ask(it, CHATTING, Send(STREAM_HEAD + chunk(event(1))), end)
        response = await client.response()

        assert not response.complete
        assert response.chunks[0] == event(1)
        error = json.loads(response.chunks[1].removeprefix(b"data: "))["error"]
        assert (error["code"], error["type"]) == ("upstream_reset", "upstream_error")
        assert b"[DONE]" not in response.body
        assert outcomes(it, "failed") == 1
        assert it.metric("midstream_failures_total", upstream="spec") == 1


async def test_stream_breaks_off_within_an_event() -> None:
    """Cut within an event, nothing is added to it."""
    async with rig() as it:
        half = b'data: {"a":'
        said = STREAM_HEAD + chunk(event(1)) + chunk(half)
        client = await ask(it, CHATTING, Send(said), Fin())
        response = await client.response()

        assert not response.complete
        assert response.body == event(1) + half


async def test_anthropic_stream_breaks_off() -> None:
    """The error event has the shape of the protocol that the client speaks."""
    async with rig() as it:
        body = {"model": "m", "max_tokens": 8, "messages": [], "stream": True}
        first = b'event: message_start\ndata: {"type":"message_start"}\n\n'
        said = Send(STREAM_HEAD + chunk(first))
        client = await ask(it, post("/v1/messages", body), said, Fin())
        response = await client.response()

        assert not response.complete
        assert response.chunks[1].startswith(b'event: error\ndata: {"type": "error"')


async def test_counted_answer_breaks_off() -> None:
    """With a Content-Length nothing is added; the length itself tells that bytes are missing."""
    async with rig() as it:
        said = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"
        client = await ask(it, ASKING, Send(said), Fin())
        response = await client.response()

        assert not response.complete
        assert response.body == b"abc"


async def test_http_1_0_stream_breaks_off_with_a_reset() -> None:
    """Where closing marks the end, a stream that breaks off is reset: it must not look whole."""
    async with rig() as it:
        gate = asyncio.Event()
        steps = (Send(STREAM_HEAD + chunk(event(1))), Gate(gate), Fin())
        client = await ask(it, CHATTING.replace(b"HTTP/1.1", b"HTTP/1.0"), *steps)
        await client.head()
        assert await client.reader.readuntil(b"\n\n") == event(1)
        gate.set()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 3\r\ntransfer-encoding: chunked",
        b"transfer-encoding: gzip",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
    ],
)
async def test_ambiguous_framing_of_an_answer_is_refused(framing: bytes) -> None:
    """An engine whose answer could end in two places is not believed."""
    async with rig() as it:
        said = b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n0\r\n\r\n"
        client = await ask(it, ASKING, Send(said))
        response = await client.response()

        assert (response.status, response.code) == (502, "upstream_reset")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 200 O\x01K\r\ncontent-length: 0\r\n\r\n", "control characters"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000, "its head is larger than"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 12_000, "its head is larger than"),
    ],
    ids=["a phrase", "a header", "interim heads"],
)
async def test_heads_that_no_client_would_take(head: bytes, why: str) -> None:
    """What an engine may send before its answer begins is bounded, and not passed on blindly."""
    async with rig() as it:
        client = await ask(it, ASKING, Send(head), Silence())
        response = await client.response()

        assert (response.status, response.code) == (502, "upstream_reset")
        assert why in response.body.decode()


# Silence ------------------------------------------------------------------------------------


async def test_no_head_in_time() -> None:
    """A stream whose head does not come in time: 504, and the engine is let go."""
    async with rig(timeouts__first_byte=0.2) as it:
        client = await ask(it, CHATTING, Silence())
        response = await client.response()

        assert (response.status, response.code) == (504, "upstream_timeout")
        assert it.spec.requests[0].gone.is_set() or await it.spec.requests[0].gone.wait()


async def test_no_first_event_in_time() -> None:
    """A held head whose first event does not come in time: 504, since nothing was passed."""
    async with rig(timeouts__first_byte=0.2) as it:
        client = await ask(it, CHATTING, Send(STREAM_HEAD), Silence())

        assert (await client.response()).code == "upstream_timeout"


async def test_silence_after_a_head_that_was_passed() -> None:
    """On `/generate` the head passes at once, so the same silence is a mid-stream failure."""
    async with rig(timeouts__first_byte=0.2) as it:
        client = await ask(it, GENERATING, Send(STREAM_HEAD), Silence())
        response = await client.response()

        assert response.status == 200
        assert not response.complete
        assert b"upstream_timeout" in response.body


async def test_silence_between_chunks() -> None:
    """A stream that falls silent is broken off with an event that says so."""
    async with rig(timeouts__between_chunks=0.2) as it:
        client = await ask(it, CHATTING, Send(STREAM_HEAD + chunk(event(1))), Silence())
        response = await client.response()

        assert not response.complete
        assert b"upstream_timeout" in response.chunks[1]


async def test_whole_answer_in_time() -> None:
    """What is not streamed has one deadline for the whole answer."""
    async with rig(timeouts__response=0.2) as it:
        client = await ask(it, ASKING, Silence())

        assert (await client.response()).code == "upstream_timeout"


@pytest.mark.slow
async def test_head_and_body_deadlines() -> None:
    """A head or a body that dribbles past its deadline is 408 and closed."""
    async with rig(limits__header_timeout=1.0, limits__body_timeout=0.2) as it:
        for sent in (CHATTING[:20], CHATTING[:-3]):
            client = await it.client()
            client.send(sent)
            response = await client.response()
            assert (response.status, response.code) == (408, "request_timeout")
            assert await client.at_end()
        assert not it.spec.requests


@pytest.mark.slow
async def test_idle_clients_are_closed_without_a_word() -> None:
    """A kept connection idle past its time, and one that never asked, are closed silently."""
    async with rig(limits__header_timeout=1.0, timeouts__client_keep_alive=0.2) as it:
        fresh, idle = await it.client(), await it.client()
        idle.send(get("/livez"))
        await idle.response()

        assert await idle.at_end()
        assert await fresh.at_end()


# Retry --------------------------------------------------------------------------------------


async def test_refused_connection_goes_to_the_other() -> None:
    """An upstream that cannot be connected to: the other serves, once, with reason `retry`."""
    async with rig(health__fall=1000) as it:
        await it.spec.stop()
        client = await it.client()
        client.send(CHATTING)
        response = await client.response()

        assert response.status == 200
        assert response.header("x-specswitch-upstream") == "base"
        assert response.header("x-specswitch-reason") == "retry"
        assert it.metric("retries_total", cause="connect") == 1


async def test_nobody_can_be_connected_to() -> None:
    """With both gone and not yet noticed: 502 that names what was tried."""
    async with rig(health__fall=1000) as it:
        await it.spec.stop()
        await it.base.stop()
        client = await it.client()
        client.send(CHATTING)
        response = await client.response()

        assert (response.status, response.code) == (502, "upstream_connect")


@pytest.mark.parametrize(
    "refusal",
    [
        reply(QUEUE_FULL, status="503 Service Unavailable"),
        reply(QUEUE_FULL, status="429 Too Many Requests"),
        stream(REFUSED, DONE),
        stream(REFUSED, event({"choices": [], "usage": {"completion_tokens": 0}}), DONE),
    ],
)
async def test_refusal_by_spec_is_retried_once(refusal: bytes) -> None:
    """A full queue on spec, as a status or as a first event, is tried once on base."""
    async with rig() as it:
        it.base.script(Send(stream(event("good"), DONE)))
        client = await ask(it, CHATTING, Send(refusal))
        response = await client.response()

        assert response.body == event("good") + DONE
        assert response.header("x-specswitch-reason") == "retry"
        assert it.metric("retries_total", cause="refusal") == 1
        assert [r.header("x-specswitch-attempt") for r in it.base.requests] == ["2"]
        assert outcomes(it, "ok") == 1
        assert it.app.dispatcher.spec.health.usable


@pytest.mark.parametrize(
    ("refusal", "status", "body"),
    [
        (reply(QUEUE_FULL, status="503 Service Unavailable"), 503, QUEUE_FULL),
        (stream(REFUSED, DONE), 200, REFUSED + DONE),
    ],
)
async def test_refusal_by_both_passes_unchanged(refusal: bytes, status: int, body: bytes) -> None:
    """When both refuse, the second's own answer passes as it came and counts as failed."""
    async with rig() as it:
        it.base.script(Send(refusal))
        client = await ask(it, CHATTING, Send(refusal))
        response = await client.response()

        assert (response.status, response.body) == (status, body)
        assert response.complete
        assert outcomes(it, "failed") == 1
        assert len(it.spec.requests) == len(it.base.requests) == 1


async def test_refusal_by_base_is_not_retried() -> None:
    """On shared GPUs a full base is no reason to run spec beside it."""
    async with rig(policy__control="base") as it:
        it.base.script(Send(reply(QUEUE_FULL, status="503 Service Unavailable")))
        client = await it.client()
        client.send(CHATTING)

        assert (await client.response()).body == QUEUE_FULL
        assert not it.spec.requests


async def test_error_after_the_first_event_passes() -> None:
    """An error event in the middle passes as it came and the request counts as failed."""
    async with rig() as it:
        client = await ask(it, CHATTING, Send(stream(event("good"), REFUSED, DONE)))
        response = await client.response()

        assert response.body == event("good") + REFUSED + DONE
        assert outcomes(it, "failed") == 1
        assert not it.base.requests


async def test_stale_connection_is_replaced() -> None:
    """A kept connection that the engine has closed is replaced, and the request sent once more."""
    async with rig() as it:
        client = await ask(it, ASKING, Send(reply(b"1")))
        assert (await client.response()).body == b"1"
        it.spec.script(Reset())
        it.spec.script(Send(reply(b"2")))
        client.send(ASKING)

        assert (await client.response()).body == b"2"
        assert [r.header("x-specswitch-attempt") for r in it.spec.requests] == ["1", "1", "2"]
        assert not it.base.requests
        assert it.metric("retries_total", cause="stale_connection") == 1


async def test_fresh_connection_that_dies_is_not_replaced() -> None:
    """A fresh connection that dies after sending may have begun to work: never sent twice."""
    async with rig() as it:
        client = await ask(it, ASKING, Reset())

        assert (await client.response()).code == "upstream_reset"
        assert len(it.spec.requests) == 1


async def test_base_only_request_never_reaches_spec() -> None:
    """With base gone, what only base may serve fails rather than being served wrongly."""
    async with rig(timeouts__wait_for_upstream=0.2) as it:
        await it.base.stop()
        await it.until(lambda: not it.app.dispatcher.base.in_service, "base is ejected")
        client = await it.client()
        client.send(post("/v1/chat/completions", {**CHAT, "min_p": 0.1}))
        response = await client.response()

        assert (response.status, response.code) == (503, "ineligible")
        assert "min_p" in json.loads(response.body)["error"]["message"]
        assert response.header("retry-after") is not None
        assert not it.spec.requests
        client.send(post("/v1/chat/completions", {**CHAT, "min_p": 0, "frequency_penalty": 0.0}))
        assert (await client.response()).header("x-specswitch-upstream") == "spec"


# Slow clients -------------------------------------------------------------------------------


async def test_slow_client_pauses_its_engine() -> None:
    """A client that reads nothing costs a bounded amount of memory, and its engine waits."""
    async with rig() as it:
        megabyte = chunk(b"x" * (1 << 20))
        it.spec.script(Send(STREAM_HEAD), *[Send(megabyte)] * 64, Send(END))
        client = await it.client()
        client.stop_reading()
        client.send(GENERATING)
        await it.spec.received(1)
        (connection,) = it.app.front.connections
        await it.until(lambda: connection.slow, "the client is slow")
        engine_side = it.app.links[UpstreamName.SPEC].pool
        assert engine_side.active == 1
        assert connection.unsent_bytes < 2 << 20
        client.read_on()
        assert len((await client.response()).body) == 64 << 20


async def test_client_that_reads_nothing_is_cut() -> None:
    """After `client_write` seconds without a byte taken, the lease is given back: abandoned."""
    async with rig(limits__client_write=0.2) as it:
        it.spec.script(Send(STREAM_HEAD), *[Send(chunk(b"x" * (1 << 20)))] * 64, Send(END))
        client = await it.client()
        client.stop_reading()
        client.send(GENERATING)
        (request,) = await it.spec.received(1)
        await asyncio.wait_for(request.gone.wait(), 5)

        assert outcomes(it, "abandoned") == 1
