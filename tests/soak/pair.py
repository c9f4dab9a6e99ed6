"""The two engines of the soak as processes: started, killed, started again; and what they saw."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from tests.harness.process import free_port

NAMES: Final = ("spec", "base")
ROOT: Final = Path(__file__).parents[2]
START_SECONDS: Final = 20.0


class Line(NamedTuple):
    """One line of a ledger (engine.py)."""

    letter: str
    engine: str
    id: str
    attempt: int
    at: float


class Engines:
    """Both of them; use it as a context. `folder` takes their ledgers."""

    def __init__(self, folder: Path) -> None:
        self.ports = {name: free_port() for name in NAMES}
        self.kills = 0
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def url(self, name: str) -> str:
        """Where the engine `name` listens."""
        return f"http://127.0.0.1:{self.ports[name]}"

    async def __aenter__(self) -> Self:
        for name in NAMES:
            await self.start(name)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    async def start(self, name: str) -> None:
        """Start it, and wait until it listens."""
        port, ledger = str(self.ports[name]), str(self.ledger(name))
        program = (sys.executable, "-m", "tests.soak.engine", name, port, ledger)
        self._processes[name] = subprocess.Popen(  # noqa: ASYNC220, S603 - forks at once; our words
            program, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        async with asyncio.timeout(START_SECONDS):
            while not self._listens(name):
                assert self._processes[name].poll() is None, f"the engine {name} does not start"
                await asyncio.sleep(0.02)

    def kill(self, name: str) -> None:
        """SIGKILL: its connections are reset by the kernel, and nobody listens."""
        self.kills += 1
        self._processes[name].kill()
        self._processes[name].wait()

    async def restore(self, name: str) -> None:
        """Have it run."""
        if self._processes[name].poll() is not None:
            await self.start(name)

    def ledger(self, name: str) -> Path:
        """The file with what it saw."""
        return self._folder / f"{name}.ledger"

    def lines(self, letters: str = "RGE") -> Iterator[Line]:
        """What both have seen, of these kinds."""
        for name in NAMES:
            for text in self.ledger(name).read_text().splitlines():
                letter, asked, attempt, at = text.split(" ")
                if letter in letters:
                    yield Line(letter, name, asked, int(attempt), float(at))

    def _listens(self, name: str) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[name]), 1.0):
            return True
        return False
