"""Three pairs: specswitch as a process, and behind each two engines that keep a list of what came.

The engines are those of the soak, in the test's own loop: what one does with a request stands in
the request (tests/soak/plans.py), and a client knows what must come back.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.harness.process import Specswitch
from tests.harness.tunnels import SWITCH
from tests.soak.engine import Asked, Conversation, Engine
from tests.soak.pair import NAMES, Line

COUNT: Final = 3
SETTINGS: Final = {
    "policy_crossover": 4.0,
    "health_interval": 0.2,
    "timeouts_drain": 20.0,
}


class Listed(Engine):
    """An engine that writes down what it sees in a list."""

    def __init__(self, name: str, lines: list[Line]) -> None:
        super().__init__(name, -1)
        self._lines = lines

    def note(self, letter: str, asked: Asked) -> None:
        """Write it down."""
        now = asyncio.get_running_loop().time()
        self._lines.append(Line(letter, self.name, asked.id, int(asked.attempt), now))


class Spoken(Conversation):
    """A conversation with it; one that is to be a WebSocket says everything again, byte by byte."""

    _is_tunnel = False

    def data_received(self, data: bytes) -> None:
        """A part of a request, or of what is said in a tunnel."""
        if not self._is_tunnel and b"\r\nsec-websocket-key:" in data.lower():
            self._is_tunnel = True
            data = SWITCH
        if self._is_tunnel:
            self._open().write(data)
        else:
            super().data_received(data)


@dataclass
class Pair:
    """One pair; `lines` is what its engines saw."""

    process: Specswitch
    lines: list[Line]
    up: AsyncExitStack = field(default_factory=AsyncExitStack)
    """The process, once it is started."""

    @property
    def address(self) -> str:
        """Host and port of its endpoint."""
        return f"127.0.0.1:{self.process.port}"

    is_up: bool = False

    async def start(self) -> None:
        """Start specswitch, and wait until it is ready."""
        self.process.exit_code = 0
        await self.up.enter_async_context(self.process)
        self.is_up = True

    def drain(self) -> None:
        """SIGTERM."""
        self.process.send(signal.SIGTERM)
        self.is_up = False

    def kill(self) -> None:
        """SIGKILL."""
        self.process.exit_code = -signal.SIGKILL
        self.process.send(signal.SIGKILL)
        self.is_up = False

    def received(self, prefix: str = "") -> set[str]:
        """Requests whose name begins so, and that an engine of it has got."""
        return self._named("R", prefix)

    def gone(self, prefix: str = "") -> set[str]:
        """Those of them that were aborted there."""
        return self._named("G", prefix)

    def _named(self, letter: str, prefix: str) -> set[str]:
        return {
            line.id for line in self.lines if line.letter == letter and line.id.startswith(prefix)
        }


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[list[Pair]]:
    """Three pairs that can be started; those that were are stopped at the end."""
    async with AsyncExitStack() as stack:
        pairs = []
        for number in range(COUNT):
            lines: list[Line] = []
            urls = {
                f"{name}_url": await stack.enter_async_context(_engine(name, lines))
                for name in NAMES
            }
            log = folder / f"pair-{number + 1}.log"
            process = Specswitch(
                log, spec_url=urls["spec_url"], base_url=urls["base_url"], **SETTINGS
            )
            pairs.append(Pair(process, lines))
            stack.push_async_exit(pairs[-1].up)
        yield pairs


async def start(pairs: Iterable[Pair]) -> None:
    """All of them at once."""
    await asyncio.gather(*(pair.start() for pair in pairs))


@asynccontextmanager
async def _engine(name: str, lines: list[Line]) -> AsyncIterator[str]:
    """An engine, listening; its URL."""
    engine = Listed(name, lines)
    server = await asyncio.get_running_loop().create_server(lambda: Spoken(engine), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
