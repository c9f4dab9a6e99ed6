"""An engine of the soak, as a process of its own: it can be killed, and started again.

    python -m tests.soak.engine NAME PORT LEDGER

It answers as a request's plan says (plans.py) and writes one line to the ledger for what it has
seen, at once and past all buffers, so that nothing is forgotten when it is killed:

    R id attempt seconds        a whole request is here
    G id attempt seconds        its connection has gone before the answer was over
    E id attempt seconds        the answer is over

Seconds are those of the machine's monotonic clock, which all processes share.
"""

import asyncio
import os
import signal
import socket
import struct
import sys
import time
from typing import Final, cast

import httptools
import uvloop

from tests.harness.tunnels import SWITCH
from tests.harness.upstream import reply
from tests.soak.answers import Ending, Pause, moves
from tests.soak.plans import IN_TUNNELS, Act, Plan, plan_in

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_BACKLOG: Final = 1024
_MODEL: Final = '"model_path":"tiny","served_model_name":"tiny","max_running_requests":48'


class Engine:
    """What all conversations of one engine share."""

    def __init__(self, name: str, ledger: int) -> None:
        self.name = name
        self._ledger = ledger
        speculative = '"EAGLE3"' if name == "spec" else "null"
        info = reply(f'{{{_MODEL},"speculative_algorithm":{speculative}}}'.encode())
        models = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'
        loads = b'{"loads":[{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0}]}'
        self.known = {
            "/ready": reply(b""),
            "/health": reply(b""),
            "/server_info": info,
            "/get_server_info": info,
            "/model_info": reply(b'{"model_path":"tiny"}'),
            "/get_model_info": reply(b'{"model_path":"tiny"}'),
            "/v1/models": reply(models),
            "/v1/loads": reply(loads),
        }

    def note(self, letter: str, asked: "Asked") -> None:
        """Write a line to the ledger."""
        line = f"{letter} {asked.id} {asked.attempt} {time.monotonic():.6f}\n"
        os.write(self._ledger, line.encode())


class Asked:
    """One request."""

    __slots__ = ("attempt", "id", "path", "plan")

    def __init__(self, path: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self.path = path.partition("?")[0]
        self.plan = plan_in(body)
        if self.plan is None:  # what asks for a tunnel has no body
            self.plan = plan_in(headers.get(b"x-soak", b""))
        name = headers.get(b"x-request-id", b"-").decode("latin-1")
        self.id = name if self.plan is None else self.plan.id
        self.attempt = headers.get(b"x-specswitch-attempt", b"0").decode("latin-1")


class Conversation(asyncio.Protocol):
    """One connection to it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked: Asked | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._left: int | None = None
        """In a tunnel: bytes that are said again before it does what its plan says."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """A part of a request, or what comes through a tunnel."""
        if self._left is not None:
            self._say_again(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if rest := data[upgrade.args[0] :]:
                self._say_again(rest)
        except httptools.HttpParserError:
            self._open().abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """Whoever was there has gone."""
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        if self._asked is not None:
            self._engine.note("G", self._asked)
            self._asked = None

    def pause_writing(self) -> None:
        """The other side takes no more for now."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    # llhttp

    def on_message_begin(self) -> None:
        """A request begins."""
        self._path = b""
        self._headers = {}
        self._body = []

    def on_url(self, part: bytes) -> None:
        """A part of its target."""
        self._path += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of it."""
        self._headers[name.lower()] = value

    def on_body(self, part: bytes) -> None:
        """A part of its body."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """The whole of it is here."""
        asked = Asked(self._path.decode("latin-1"), self._headers, b"".join(self._body))
        if asked.plan is None:
            if asked.id != "-":
                self._engine.note("R", asked)
            missing = reply(b"{}", status="404 Not Found")
            self._open().write(self._engine.known.get(asked.path, missing))
            return
        self._engine.note("R", asked)
        self._asked = asked
        if b"upgrade" in self._headers and asked.plan.act(self._engine.name) in IN_TUNNELS:
            self._open_tunnel(asked.plan)
            return
        self._task = asyncio.get_running_loop().create_task(self._answer(asked, asked.plan))

    async def _answer(self, asked: Asked, plan: Plan) -> None:
        for move in moves(plan.act(self._engine.name), asked.path, plan):
            if isinstance(move, bytes):
                self._open().write(move)
                await self._room.wait()
            elif isinstance(move, Pause):
                await asyncio.sleep(move.seconds)
            else:
                await self._end(move)
        self._engine.note("E", asked)
        self._asked = None

    # tunnels

    def _open_tunnel(self, plan: Plan) -> None:
        act = plan.act(self._engine.name)
        self._left = 1 << 30 if act is Act.OK else (plan.pad + 1) * plan.pieces // 2
        self._open().write(SWITCH)

    def _say_again(self, data: bytes) -> None:
        assert self._left is not None
        assert self._asked is not None
        assert self._asked.plan is not None
        said = data[: self._left]
        self._left -= len(said)
        if self._transport is None:
            return
        self._transport.write(said)
        if len(said) == len(data) and self._left:
            return
        act = self._asked.plan.act(self._engine.name)
        if act is Act.RESET_MID:
            _reset(self._transport)
        elif act is Act.FIN_MID:
            self._transport.close()

    async def _end(self, ending: Ending) -> None:
        if ending is Ending.SILENCE:
            await asyncio.Event().wait()
        transport = self._open()
        if ending is Ending.RESET:
            _reset(transport)
        else:
            transport.close()

    def _open(self) -> asyncio.Transport:
        assert self._transport is not None  # the task is cancelled before it goes
        return self._transport


def _reset(transport: asyncio.Transport) -> None:
    raw: socket.socket = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


async def _serve(name: str, port: int, ledger: int) -> None:
    engine = Engine(name, ledger)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(
        lambda: Conversation(engine), "127.0.0.1", port, backlog=_BACKLOG
    )
    await stopped.wait()
    server.close()


def main(name: str, port: str, ledger: str) -> None:
    """Serve until told to stop."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    uvloop.run(_serve(name, int(port), os.open(ledger, flags, 0o600)))


if __name__ == "__main__":
    main(*sys.argv[1:])
