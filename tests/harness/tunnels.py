"""WebSockets for tests: raw ones, byte by byte, and those of the library `websockets`.

The raw ones show what passes where; the library shows that it means what it should.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.harness.client import RawClient, get
from tests.harness.running import Rig
from tests.harness.upstream import PassTo, Received, Send, Step, Tunnel

PATH = "/v1/realtime"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""Both are the example of RFC 6455 section 1.3."""

OFFER = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: " + ACCEPT.encode() + b"\r\n\r\n"
)

Handler = Callable[[ServerConnection], Awaitable[None]]


def offer(
    path: str = PATH, *, headers: Mapping[str, str] | None = None, without: str = ""
) -> bytes:
    """A request for a WebSocket, less the header `without`."""
    lines = {**OFFER, **(headers or {})}
    return get(path, headers={name: value for name, value in lines.items() if name != without})


async def opened(
    it: Rig, *steps: Step, client: RawClient | None = None
) -> tuple[RawClient, Received]:
    """A raw tunnel to base, whose engine keeps what comes, or goes on by `steps`."""
    it.base.script(Send(SWITCH), *(steps or (Tunnel(),)))
    client = client or await it.client()
    before = len(it.base.requests)
    client.send(offer())
    assert (await client.head())[0] == 101
    return client, (await it.base.received(before + 1))[before]


@asynccontextmanager
async def served(it: Rig, handler: Handler, **settings: object) -> AsyncIterator[None]:
    """Have base answer by a WebSocket server of the library, with `handler`."""
    async with serve(handler, "127.0.0.1", 0, **settings) as server:  # type: ignore[arg-type]  # its own
        it.base.always(PassTo(next(iter(server.sockets)).getsockname()[1]))
        yield


def dialled(it: Rig, path: str = PATH, **settings: object) -> connect:
    """A WebSocket of the library through specswitch."""
    url = f"ws://127.0.0.1:{it.app.port}{path}"
    return connect(url, proxy=None, **settings)  # type: ignore[arg-type]  # the library's own


async def echo(connection: ServerConnection) -> None:
    """Say everything again, until it is closed with whatever code."""
    with suppress(ConnectionClosed):
        async for message in connection:
            await connection.send(message)
