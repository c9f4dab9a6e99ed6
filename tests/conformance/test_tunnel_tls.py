"""WebSockets with TLS on either side: what TLS says of ends in other words comes to the same."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from tests.harness.running import Rig, rig
from tests.harness.tls import Identity, TlsClient, secured, shaken
from tests.harness.tunnels import PATH, SWITCH, dialled, echo, offer
from tests.harness.upstream import PassTo, Received, ScriptedUpstream, Send, Tunnel


class TlsUpstream(ScriptedUpstream):
    """A scripted upstream that speaks TLS."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__(speculative=False)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)

    @property
    def url(self) -> str:
        """By https."""
        return f"https://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls, limit=1 << 26
        )
        self.port = self._server.sockets[0].getsockname()[1]


@pytest.fixture
def base(tmp_path: Path) -> TlsUpstream:
    """An engine by https, whose authority is in a file."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsUpstream(authority)


async def ended(it: Rig, outcome: str) -> None:
    """Wait until a tunnel has ended so."""
    labels = {"endpoint": PATH, "outcome": outcome}
    await it.until(lambda: it.total("requests_total", **labels) == 1, f"counted as {labels}")


async def opened(it: Rig, identity: Identity) -> tuple[TlsClient, Received]:
    """A raw tunnel with TLS below the client."""
    it.base.script(Send(SWITCH), Tunnel(stays=True))
    client = await shaken(it, identity)
    client.send(offer())
    assert (await client.head())[0] == 101
    return client, (await it.base.received(1))[0]


async def test_an_engine_by_https(base: TlsUpstream, tmp_path: Path) -> None:
    """Everything is heard, large messages too, and the close codes are kept."""
    async with rig(base=base, upstreams__base__ca_file=str(tmp_path / "ca.pem")) as it:
        async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
            base.always(PassTo(next(iter(server.sockets)).getsockname()[1]))
            async with dialled(it, max_size=None) as socket:
                for said in ("hello", b"x" * 2_000_000):
                    await socket.send(said)
                    assert await socket.recv() == said
                await socket.close(4000, "over")
                assert (socket.close_code, socket.close_reason) == (4000, "over")
        await ended(it, "ok")


async def test_a_client_of_an_https_engine_sends_no_more(base: TlsUpstream, tmp_path: Path) -> None:
    """TLS as the loop has it cannot say half of an end: the engine has all, and then its end."""
    async with rig(base=base, upstreams__base__ca_file=str(tmp_path / "ca.pem")) as it:
        base.script(Send(SWITCH), Tunnel())
        client = await it.client()
        client.send(offer())
        assert (await client.head())[0] == 101
        client.send(b"goodbye")
        client.half_close()
        (request,) = await base.received(1)
        await asyncio.wait_for(request.finished.wait(), 5)
        assert request.came == b"goodbye"
        assert await client.at_end()
        await ended(it, "ok")


@pytest.mark.parametrize("end", ["goodbye", "fin"])
async def test_a_client_by_tls_sends_no_more(tmp_path: Path, end: str) -> None:
    """With TLS's goodbye or only TCP's FIN: what the engine still says is heard."""
    identity = Identity(tmp_path)
    async with secured(identity) as it:
        client, request = await opened(it, identity)
        client.send(b"my last")
        if end == "goodbye":
            client.goodbye()
        client.half_close()
        await asyncio.wait_for(request.finished.wait(), 5)
        assert request.came == b"my last"
        request.say(b"yours")
        request.over()
        assert await asyncio.wait_for(client.reader.readexactly(5), 5) == b"yours"
        await ended(it, "ok")


async def test_an_engine_ends_a_tunnel_by_tls(tmp_path: Path) -> None:
    """The client hears the last bytes, and then TLS's goodbye."""
    identity = Identity(tmp_path)
    async with secured(identity) as it:
        client, request = await opened(it, identity)
        request.say(b"last")
        request.fin()
        assert await asyncio.wait_for(client.reader.read(), 5) == b"last"
        request.over()
        await ended(it, "ok")


async def test_a_client_by_tls_is_gone(tmp_path: Path) -> None:
    """The engine is let go at once."""
    identity = Identity(tmp_path)
    async with secured(identity) as it:
        client, request = await opened(it, identity)
        client.reset()
        await asyncio.wait_for(request.finished.wait(), 1)
        request.over()
        await ended(it, "ok")


async def test_both_sides_by_tls(base: TlsUpstream, tmp_path: Path) -> None:
    """By wss to us, and by https to the engine."""
    identity = Identity(tmp_path)
    async with rig(
        base=base,
        upstreams__base__ca_file=str(tmp_path / "ca.pem"),
        listen__tls_cert=str(identity.cert),
        listen__tls_key=str(identity.key),
    ) as it:
        async with serve(echo, "127.0.0.1", 0) as server:
            base.always(PassTo(next(iter(server.sockets)).getsockname()[1]))
            url = f"wss://127.0.0.1:{it.app.port}{PATH}"
            async with connect(url, ssl=identity.context(), proxy=None) as socket:
                await socket.send("hello")
                assert await socket.recv() == "hello"
        await ended(it, "ok")
