"""Our own refusals: bad input, limits, the waiting room, draining; each says why and is counted."""

import asyncio
import json

import pytest

from tests.harness.client import CHAT, get, post
from tests.harness.running import rig
from tests.harness.upstream import Gate, ScriptedUpstream, Send, chunk, reply

ASKING = post("/generate", {"text": "a"})
TWO_LENGTHS = b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\n\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET http://evil/ HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"CONNECT evil:443 HTTP/1.1\r\nHost: evil\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: a\r\n" + TWO_LENGTHS,
        b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\x00\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused(raw: bytes) -> None:
    """Bad syntax and ambiguous framing: 400, closed, nothing reaches an engine, counted once."""
    async with rig() as it:
        client = await it.client()
        client.send(raw)
        response = await client.response()

        assert (response.status, response.code) == (400, "bad_request")
        assert response.header("connection") == "close"
        assert await client.at_end()
        assert not it.spec.requests
        assert not it.base.requests
        assert it.metric("responses_total", upstream="none", code="400") == 1


async def test_unknown_paths_and_methods() -> None:
    """404 names the path, 405 the methods; with OpenAI's or Anthropic's shape."""
    async with rig() as it:
        client = await it.client()
        client.send(get("/v1/../flush_cache") + post("/flush_cache", {}))
        for _ in range(2):
            response = await client.response()
            assert (response.status, response.code) == (404, "not_found")
        client.send(get("/v1/chat/completions"))
        response = await client.response()
        assert (response.status, response.code) == (405, "method_not_allowed")
        assert response.header("allow") == "POST"
        client.send(get("/v1/models", method="TRACE"))
        assert (await client.response()).code == "method_not_allowed"
        client.send(get("/v1/messages") + get("/v1/messages/x"))
        for _ in range(2):
            assert json.loads((await client.response()).body)["type"] == "error"
        assert not it.spec.requests


@pytest.mark.parametrize("declared", [True, False])
async def test_body_too_large(declared: bool) -> None:  # noqa: FBT001 - a parameter
    """A body over the limit, declared or chunked: a 413 that survives; no engine was touched."""
    async with rig(limits__max_body_bytes=1000) as it:
        client = await it.client()
        if declared:
            client.send(post("/generate", b"x" * 100_000))
        else:
            head = b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.send(head + chunk(b"x" * 600) * 100)
        response = await client.response()

        assert (response.status, response.code) == (413, "body_too_large")
        assert await client.at_end()
        assert not it.spec.requests


async def test_headers_too_large() -> None:
    """A head over the limit is 431."""
    async with rig(limits__max_header_bytes=1000) as it:
        client = await it.client()
        client.send(get("/livez", headers={"X": "y" * 2000}))

        assert (await client.response()).code == "headers_too_large"


async def test_too_many_connections() -> None:
    """Beyond `max_connections` a client is told so and not left hanging."""
    async with rig(limits__max_connections=2) as it:
        first, second, third = [await it.client() for _ in range(3)]
        response = await third.response()

        assert (response.status, response.code) == (429, "overloaded")
        assert response.header("x-request-id")
        first.send(get("/livez"))
        assert (await first.response()).status == 200
        second.close()


async def test_far_too_many_connections() -> None:
    """Beyond those who can be told, a connection is closed: telling would take what others need."""
    async with rig(limits__max_connections=1) as it:
        it.app.front.told = 1
        first, second, third = [await it.client() for _ in range(3)]
        assert (await second.response()).status == 429
        assert await third.at_end()
        first.send(get("/livez"))
        assert (await first.response()).status == 200


@pytest.mark.parametrize("whole", [True, False])
async def test_too_many_bytes_held(whole: bool) -> None:  # noqa: FBT001 - a parameter
    """Bodies held over `max_buffered_bytes` are refused, whole or still coming in."""
    async with rig(limits__max_body_bytes=1000, limits__max_buffered_bytes=1000) as it:
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(reply(b"{}")))
        holder, other = await it.client(), await it.client()
        holder.send(post("/generate", b"x" * 800))
        await it.spec.received(1)
        request = post("/generate", b"x" * 300)
        other.send(request if whole else request[:-1])
        response = await other.response()
        assert (response.status, response.code) == (429, "overloaded")
        gate.set()

        assert (await holder.response()).status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe{\x00", b"[" * 100_000, b'{"stream":"y"}']
)
async def test_bodies_that_are_not_ours_to_judge(body: bytes) -> None:
    """Whatever a body is, it passes untouched and the engine answers."""
    async with rig() as it:
        it.spec.always(Send(reply(b'{"object":"error"}', status="400 Bad Request")))
        it.base.always(Send(reply(b'{"object":"error"}', status="400 Bad Request")))
        client = await it.client()
        client.send(post("/v1/chat/completions", body))
        response = await client.response()

        assert (response.status, response.body) == (400, b'{"object":"error"}')
        (request,) = it.spec.requests + it.base.requests
        assert request.body == body


async def test_waiting_room() -> None:
    """A full room refuses with counts and Retry-After; patience ends; a place goes to the first."""
    async with rig(
        upstreams__base__max_in_flight=1,
        policy__control="base",
        limits__queue_size=1,
        limits__queue_timeout=0.4,
    ) as it:
        gate = asyncio.Event()
        it.base.script(Gate(gate), Send(reply(b"{}")))
        runs, waits, refused = [await it.client() for _ in range(3)]
        runs.send(ASKING)
        await it.base.received(1)
        waits.send(ASKING)
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "one waits")
        refused.send(ASKING)
        response = await refused.response()
        assert (response.status, response.code) == (429, "overloaded")
        assert response.header("retry-after") == "1"
        assert "1 of 1 waiting" in json.loads(response.body)["error"]["message"]
        response = await waits.response()
        assert (response.status, response.code) == (503, "queue_timeout")
        waits.send(ASKING)
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "one waits again")
        gate.set()

        assert (await runs.response()).status == 200
        assert (await waits.response()).status == 200


async def test_no_upstream() -> None:
    """With nothing usable a request waits, and then learns why there is nothing."""
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    spec.ready = base.ready = False
    async with rig(spec=spec, base=base, wait=False, timeouts__wait_for_upstream=0.3) as it:
        client = await it.client()
        client.send(ASKING)
        response = await client.response()
        assert (response.status, response.code) == (503, "no_upstream")
        client.send(get("/readyz") + get("/health") + get("/livez"))
        assert [(await client.response()).status for _ in range(3)] == [503, 503, 200]
        base.ready = True
        client.send(get("/readyz"))
        await it.until(lambda: it.app.dispatcher.usable, "base is back")
        await client.response()
        client.send(ASKING)

        assert (await client.response()).header("x-specswitch-reason") == "health"


async def test_swapped_upstreams() -> None:
    """Spec and base exchanged: both unusable, said loudly, and the process stays up."""
    spec, base = ScriptedUpstream(speculative=False), ScriptedUpstream(speculative=True)
    async with rig(spec=spec, base=base, wait=False, timeouts__wait_for_upstream=0.3) as it:
        await it.until(
            lambda: bool(it.app.dispatcher.spec.faults and it.app.dispatcher.base.faults),
            "both are found out",
        )
        client = await it.client()
        client.send(ASKING)
        response = await client.response()

        assert (response.status, response.code) == (503, "no_upstream")
        assert "misconfigured" in json.loads(response.body)["error"]["message"]
        assert it.metric("ejections_total", upstream="spec", cause="misconfigured") == 1
        spec.info, base.info = base.info, spec.info
        await it.until(lambda: it.app.dispatcher.usable, "it heals when mended")


async def test_draining() -> None:
    """While draining, what runs may end and new requests are refused; then the way is clear."""
    async with rig() as it:
        gate = asyncio.Event()
        it.spec.script(Gate(gate), Send(reply(b"{}")))
        runs, comes = await it.client(), await it.client()
        runs.send(ASKING)
        await it.spec.received(1)
        it.app.stop()
        ended = asyncio.get_running_loop().create_task(it.app.until_stopped())
        await it.until(lambda: it.app.dispatcher.draining, "it drains")
        comes.send(get("/readyz") + post("/v1/chat/completions", CHAT))
        assert (await comes.response()).status == 503
        response = await comes.response()
        assert (response.status, response.code) == (503, "draining")
        assert response.header("connection") == "close"
        gate.set()

        assert (await runs.response()).status == 200
        assert await ended == 0


async def test_second_stop_cuts() -> None:
    """Told twice to stop, it does not wait, and says that something was cut."""
    async with rig() as it:
        it.spec.script(Gate(asyncio.Event()))
        client = await it.client()
        client.send(ASKING)
        await it.spec.received(1)
        it.app.stop()
        it.app.stop()

        assert await it.app.until_stopped() == 1
