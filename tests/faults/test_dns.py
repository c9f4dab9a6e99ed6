"""Upstreams by a name whose address changes: found anew by whatever is connected next.

These tests run on asyncio's own event loop, whose look-up a test can answer; uvloop's asks the
system, in C. What is tested is ours: nothing here keeps an address.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Literal

import pytest

from proxy.core.words import Health, UpstreamName
from tests.harness.client import CHAT_STREAM, RawClient, post
from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    DONE,
    STREAM_HEAD,
    Gate,
    ScriptedUpstream,
    Send,
    chunk,
    event,
    reply,
    stream,
)

NAME = "engine.test"
OLD, NEW = "127.0.0.2", "127.0.0.3"
CHATTING = post("/v1/chat/completions", CHAT_STREAM)
ASKING = post("/generate", {"text": "a"})
ONE_TOKEN = event({"choices": [{"delta": {"content": "a"}}]})
INTERVAL = 0.5

Found = list[
    tuple[Literal[socket.AddressFamily.AF_INET], socket.SocketKind, int, str, tuple[str, int]]
    | tuple[
        Literal[socket.AddressFamily.AF_INET6],
        socket.SocketKind,
        int,
        str,
        tuple[str, int, int, int] | tuple[int, bytes],
    ]
]


class Names(asyncio.SelectorEventLoop):
    """A loop that knows one name."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses = [OLD]
        """What the name stands for; none: it is unknown."""
        self.answers = asyncio.Event()
        """Cleared, a look-up hangs."""
        self.answers.set()
        self.lookups = 0

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - as the loop has it
        proto: int = 0,
        flags: int = 0,
    ) -> Found:
        """Look up the one name here, and others where they always are."""
        hosts = [host]
        if host in {NAME, NAME.encode()}:
            self.lookups += 1
            await self.answers.wait()
            if not self.addresses:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            hosts = list(self.addresses)
        found: Found = []
        for each in hosts:
            found += await super().getaddrinfo(
                each, port, family=family, type=type, proto=proto, flags=flags
            )
        return found


class Placed(ScriptedUpstream):
    """A scripted upstream at an address of its own, called by the name."""

    def __init__(self, address: str, *, port: int = 0) -> None:
        super().__init__(speculative=True)
        self.address = address
        self.port = port

    @property
    def url(self) -> str:
        """By name."""
        return f"http://{NAME}:{self.port}"

    async def start(self) -> None:
        """Listen there."""
        self._server = await asyncio.start_server(self._serve, self.address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]


def on_names(test: Callable[[Names], Coroutine[None, None, None]]) -> None:
    """Run `test` on such a loop."""
    loop = Names()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(asyncio.wait_for(test(loop), 50))


async def answered_by(it: Rig, request: bytes = ASKING) -> tuple[int, str | None, str | None]:
    """Status, upstream and reason of one request on a connection of its own."""
    async with await RawClient.connect(it.app.port) as client:
        client.send(request)
        response = await client.response()
        upstream = response.header("x-specswitch-upstream")
        return response.status, upstream, response.header("x-specswitch-reason")


async def streaming(it: Rig, count: int) -> list[RawClient]:
    """`count` clients, each in the middle of a stream from spec."""
    clients = [await it.client() for _ in range(count)]
    for client in clients:
        it.spec.script(Send(STREAM_HEAD + chunk(ONE_TOKEN)), Gate(asyncio.Event()))
        client.send(CHATTING)
        assert (await client.head())[0] == 200
        assert await client.chunk() == ONE_TOKEN
    return clients


def test_a_name_that_changes_its_address() -> None:
    """A server made anew elsewhere is found at once (NginxProxyManager#1021); old streams end.

    Nothing is restarted here: requests that come after the change go to the new address, whatever
    connections were kept to the old one, and nobody's is lost between.
    """

    async def changes(names: Names) -> None:
        old = Placed(OLD)
        async with rig(spec=old, health__interval=INTERVAL) as it:
            for _ in range(5):  # so that connections to the old one are kept
                assert await answered_by(it) == (200, "spec", "mode")
            before = len(old.requests)
            clients = await streaming(it, 3)
            async with Placed(NEW, port=old.port) as new:
                names.addresses = [NEW]
                flipped_at = names.time()
                await old.stop()
                went = [await answered_by(it) for _ in range(20)]
                assert {status for status, _, _ in went} == {200}
                while not new.requests:
                    await answered_by(it)
                    assert names.time() - flipped_at < INTERVAL + 1.0
                for client in clients:
                    error = await client.chunk()
                    assert error is not None
                    assert b"upstream_reset" in error
                    with pytest.raises(ConnectionError):
                        await client.chunk()
                assert len(old.requests) == before + 3
                probes = new.probes
                await it.until(lambda: new.probes > probes + 1, "the new one is probed")
                assert it.app.dispatcher.spec.health.state is not Health.EJECTED

    on_names(changes)


def test_an_unknown_name_is_an_engine_that_is_not_there() -> None:
    """While its name is not known the other serves; when it is known again, it comes back."""

    async def vanishes(names: Names) -> None:
        spec = Placed(OLD)
        async with rig(spec=spec, health__fall=3) as it:
            names.addresses = []
            await spec.stop()
            assert await answered_by(it) == (200, "base", "retry")
            await it.until(lambda: not it.app.dispatcher.spec.in_service, "spec is out")
            assert await answered_by(it) == (200, "base", "health")
            await spec.start()
            names.addresses = [OLD]
            await it.until(lambda: it.healthy(UpstreamName.SPEC), "spec is back")

    on_names(vanishes)


def test_a_look_up_that_hangs_is_a_connection_that_does_not_come() -> None:
    """A name server that is silent costs `timeouts.connect`, and not the request."""

    async def hangs(names: Names) -> None:
        spec = Placed(OLD)
        async with rig(
            spec=spec, timeouts__connect=0.2, health__timeout=0.2, health__fall=1000
        ) as it:
            names.answers.clear()
            await spec.stop()
            assert await answered_by(it) == (200, "base", "retry")
            assert not it.app.links[UpstreamName.SPEC].pool._connecting
            names.answers.set()

    on_names(hangs)


@pytest.mark.parametrize("request_bytes", [ASKING, CHATTING])
def test_a_name_with_two_addresses_is_one_server(request_bytes: bytes) -> None:
    """The address that answers is used, the request is sent once, and nothing is held against it.

    nginx counts `localhost` as two servers, one for each address, and sends a POST to both.
    """

    async def two(names: Names) -> None:
        names.addresses = [NEW, OLD]  # nobody is at the first
        spec = Placed(OLD)
        async with rig(spec=spec) as it:
            spec.always(
                Send(stream(ONE_TOKEN, DONE) if request_bytes is CHATTING else reply(b"{}"))
            )
            for _ in range(10):
                assert await answered_by(it, request_bytes) == (200, "spec", "mode")
            assert len(spec.requests) == 10
            assert not it.base.requests
            assert it.metric("retries_total", cause="connect") == 0

    on_names(two)


def test_no_address_is_kept() -> None:
    """Each new connection looks the name up; a kept connection needs none."""

    async def looked_up(names: Names) -> None:
        spec = Placed(OLD)
        async with rig(spec=spec, health__interval=60.0) as it:
            before = names.lookups
            client = await it.client()
            for _ in range(5):
                client.send(ASKING)
                assert (await client.response()).status == 200
            assert names.lookups == before + 1
            clients = await streaming(it, 3)
            assert names.lookups == before + 3
            for each in clients:
                each.close()

    on_names(looked_up)
