"""HTTPS on the endpoint: all that holds on a plain socket holds here, over real sockets.

Every test ends with the rig's own check: nothing in flight, nothing held, the books balanced, and
no exception in the loop.
"""

import asyncio
import json
import ssl
from statistics import median

import pytest

from tests.harness.client import CHAT, CHAT_STREAM, get, post
from tests.harness.tls import Identity, TlsClient, ask, secured, shaken
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
ASKING = post("/generate", {"text": "a"})
OLD = ASKING.replace(b"HTTP/1.1", b"HTTP/1.0")
FIRST = STREAM_HEAD + chunk(event({"choices": [{"delta": {"content": "a"}}]}))
MEGABYTE = b"x" * (1 << 20)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The endpoint's certificate."""
    return Identity(tmp_path_factory.mktemp("tls"))


# Speaking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_it_serves(identity: Identity, version: ssl.TLSVersion) -> None:
    """A stream comes piece by piece and unchanged, the connection is kept, the URL is https."""
    context = identity.context()
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with secured(identity) as it:
        assert it.app.url == f"https://127.0.0.1:{it.app.port}"
        assert it.app.admin_url.startswith("http://")
        client = await TlsClient.shaken(it.app.port, context)
        it.clients.append(client)
        assert client.tls.selected_alpn_protocol() == "http/1.1"
        for _ in range(2):
            gate = asyncio.Event()
            it.spec.script(Send(FIRST), Gate(gate), Send(chunk(DONE) + END))
            client.send(CHATTING)
            status, _ = await client.head()
            assert status == 200
            assert FIRST.endswith((await client.chunk() or b"") + b"\r\n")
            gate.set()
            assert await client.chunk() == DONE
            assert await client.chunk() is None


async def test_tls_1_1_is_refused(identity: Identity) -> None:
    """What is older than 1.2 gets no handshake."""
    context = identity.context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with secured(identity) as it:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await TlsClient.shaken(it.app.port, context)


async def test_a_large_request_and_a_large_answer(identity: Identity) -> None:
    """Megabytes pass both ways byte for byte, over the borders of records and buffers."""
    body = json.dumps({"text": "é" * (1 << 20)}, ensure_ascii=False).encode()
    answer = bytes(range(256)) * (5 << 12)
    async with secured(identity) as it:
        client = await ask(it, identity, post("/generate", body), Send(reply(answer)))
        assert (await client.response()).body == answer
        assert it.spec.requests[0].body == body


async def test_many_requests_in_one_record(identity: Identity) -> None:
    """Requests sent ahead are answered in order."""
    async with secured(identity) as it:
        it.spec.always(Send(reply(b"{}")))
        client = await shaken(it, identity)
        client.send(ASKING * 20)
        assert [(await client.response()).status for _ in range(20)] == [200] * 20


async def test_bytes_that_dribble(identity: Identity) -> None:
    """A record cut into single bytes is read as one that came whole."""
    async with secured(identity) as it:
        client = await shaken(it, identity)
        client.tls.write(ASKING)
        for byte in client._outgoing.read():
            client.send_plainly(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.response()).status == 200


# The client leaves -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "half_close", "goodbye"])
@pytest.mark.parametrize("said", [b"", FIRST])
async def test_client_leaves(identity: Identity, how: str, said: bytes) -> None:
    """By FIN, RST or close_notify, before the head and after: its engine is closed at once."""
    async with secured(identity) as it:
        client = await ask(it, identity, CHATTING, Send(said), Silence())
        (request,) = await it.spec.received(1)
        if said:
            await client.head()
        getattr(client, how)()
        await asyncio.wait_for(request.gone.wait(), 2)

        assert it.total("requests_total", outcome="abandoned") == 1
        assert it.app.dispatcher.in_flight.total == 0


@pytest.mark.parametrize("mid_stream", [False, True])
async def test_client_leaves_in_time(identity: Identity, *, mid_stream: bool) -> None:
    """As on a plain socket: a median under 10 ms."""
    async with secured(identity, health__interval=30.0) as it:
        it.spec.always(Send(FIRST if mid_stream else b""), Silence())
        took = []
        for count in range(1, 21):
            client = await shaken(it, identity)
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


async def test_client_with_unread_bytes_leaves(identity: Identity) -> None:
    """FIN from a client that has not read what was sent is heard at once: nothing is flushed."""
    async with secured(identity) as it:
        it.spec.script(Send(STREAM_HEAD + chunk(MEGABYTE) * 8), Silence())
        client = await shaken(it, identity, receive_bytes=4096)
        client.stop_reading()
        client.send(CHATTING)
        await it.until(lambda: any(c.slow for c in it.app.front.connections), "it is slow")
        (request,) = it.spec.requests
        client.half_close()
        await asyncio.wait_for(request.gone.wait(), 2)


# The engine goes -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Reset(), Fin()])
async def test_a_broken_stream_is_no_clean_end(identity: Identity, end: Step) -> None:
    """Chunked, it says what happened and has no final chunk; TLS's own end makes no difference."""
    async with secured(identity) as it:
        client = await ask(it, identity, CHATTING, Send(FIRST), end)
        response = await client.response()
        assert response.status == 200
        assert not response.complete
        assert b"upstream_reset" in response.chunks[-1]


@pytest.mark.parametrize("end", [Reset(), Fin()])
async def test_a_broken_answer_that_closing_would_end(identity: Identity, end: Step) -> None:
    """HTTP/1.0 without a length: the truncation is seen, since TLS is never ended cleanly."""
    steps = (Send(STREAM_HEAD + chunk(b"half of it")), end)
    async with secured(identity) as it:
        client = await ask(it, identity, OLD, *steps)
        response = await client.response()
        assert response.status == 200
        assert not response.complete


async def test_an_answer_that_closing_ends(identity: Identity) -> None:
    """HTTP/1.0 without a length: the end is marked by close_notify."""
    async with secured(identity) as it:
        client = await ask(it, identity, OLD, Send(stream(b"all", b" of it")))
        response = await client.response()
        assert response.complete
        assert response.body == b"all of it"


async def test_an_http_1_0_answer_with_much_unsent(identity: Identity) -> None:
    """What is unsent when it ends is sent, and close_notify comes after the last of it."""
    async with secured(identity) as it:
        client = await ask(it, identity, OLD, Send(stream(*[MEGABYTE] * 8)))
        response = await client.response()
        assert response.complete
        assert len(response.body) == 8 << 20


# Slow clients ----------------------------------------------------------------------------------


async def test_a_client_that_reads_nothing_is_cut(identity: Identity) -> None:
    """It pauses its engine, costs no more than a megabyte, and is cut after `client_write`."""
    sent = 0

    async def pour(client: TlsClient) -> None:
        nonlocal sent
        client.stop_reading()
        client.send(CHATTING)
        (request,) = await it.spec.received(1)
        while not request.gone.is_set():
            held = [c.unsent_bytes for c in it.app.front.connections]
            sent = max(sent, *held, 0)
            await asyncio.sleep(0.005)

    async with secured(identity, limits__client_write=0.3) as it:
        it.spec.script(Send(STREAM_HEAD), *[Send(chunk(MEGABYTE))] * 64, Silence())
        client = await shaken(it, identity, receive_bytes=4096)
        async with asyncio.timeout(20):
            await pour(client)
        assert 0 < sent < 1 << 20
        assert it.total("requests_total", outcome="abandoned") == 1


async def test_a_slow_client_gets_everything(identity: Identity) -> None:
    """One that pauses and reads on has lost nothing."""
    async with secured(identity) as it:
        it.spec.script(Send(stream(*[MEGABYTE] * 12)))
        client = await shaken(it, identity, receive_bytes=4096)
        client.stop_reading()
        client.send(CHATTING)
        await it.until(lambda: any(c.slow for c in it.app.front.connections), "it is slow")
        client.read_on()
        response = await client.response()
        assert response.complete
        assert len(response.body) == 12 << 20


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /\x00 HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 5000, 431, "headers_too_large"),
        (post("/generate", MEGABYTE), 413, "body_too_large"),
        (get("/nowhere"), 404, "not_found"),
    ],
)
async def test_refusals_survive(
    identity: Identity, request_bytes: bytes, status: int, code: str
) -> None:
    """The answer is read whole although the client goes on sending."""
    limits = {"limits__max_header_bytes": 4096, "limits__max_body_bytes": 65536}
    async with secured(identity, **limits) as it:
        client = await shaken(it, identity)
        client.send(request_bytes)
        client.send(b"z" * 300_000)
        response = await client.response()
        assert response.status == status
        assert response.code == code
        assert response.complete
        assert not it.spec.requests


async def test_who_lingers_is_let_go(identity: Identity) -> None:
    """After a last answer a client that neither leaves nor reads has a second."""
    async with secured(identity) as it:
        client = await shaken(it, identity)
        client.send(get("/livez", headers={"Connection": "close"}))
        assert (await client.response()).status == 200
        assert await client.at_end()
        client.send(b"z" * 1000)
        await it.until(lambda: not it.app.front.connections, "it is let go")


async def test_draining(identity: Identity) -> None:
    """A stream that runs goes to its end; what is unsent counts as unfinished."""
    async with secured(identity) as it:
        gate = asyncio.Event()
        client = await ask(it, identity, CHATTING, Send(FIRST), Gate(gate), Send(chunk(DONE) + END))
        await client.head()
        ending = asyncio.get_running_loop().create_task(it.app.until_stopped())
        it.app.stop()
        await it.until(lambda: it.app.dispatcher.draining, "it drains")
        late = await shaken(it, identity)
        late.send(post("/v1/chat/completions", CHAT))
        refused = await late.response()
        assert refused.code == "draining"
        gate.set()
        assert (await client.chunk(), await client.chunk()) != (None, None)
        assert await asyncio.wait_for(ending, 5) == 0


async def test_what_has_not_been_read_is_unfinished(identity: Identity) -> None:
    """An answer that is written and not taken keeps the drain waiting, down to its last byte."""
    async with secured(identity) as it:
        it.spec.script(Send(stream(*[MEGABYTE] * 8)))
        client = await shaken(it, identity, receive_bytes=4096)
        client.stop_reading()
        client.send(CHATTING)
        await it.until(lambda: any(c.slow for c in it.app.front.connections), "it is slow")
        ending = asyncio.get_running_loop().create_task(it.app.until_stopped())
        it.app.stop()
        client.read_on()
        response = await client.response()
        assert response.complete
        assert len(response.body) == 8 << 20
        assert await asyncio.wait_for(ending, 5) == 0


async def test_going_down_ends_handshakes(identity: Identity) -> None:
    """A client whose handshake is not done does not hold up the end."""
    async with secured(identity) as it:
        client = await it.client()
        await it.until(lambda: len(it.app.front.handshakes) == 1, "it is known")
        await it.end()
        assert await client.at_end()
