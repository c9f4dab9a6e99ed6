"""specswitch as a real process on free ports, the way an operator runs it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.harness import books

START_SECONDS = 20.0
SETTLED_SECONDS = 2.0
"""Within which nothing may be left after a test."""
STRAYS = ("Traceback", "never retrieved", "never awaited", "was destroyed", "failed within")
"""What the log says of an exception that nobody has foreseen."""
POLL_SECONDS = 0.02
PROGRAM = (sys.executable, "-m", "proxy", "serve")


PORTS = range(10_000, 20_000)
"""Below those that systems give to who asks for any. A router still asks for a pair that was there
and has ended; were its port given to the server of another test, that one would get the requests.
"""


def free_port(host: str = "127.0.0.1") -> int:
    """A port on loopback that nobody listens on, nor is given by the system."""
    for port in Random().sample(PORTS, k=100):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # who was there may linger
            with suppress(OSError):
                probe.bind((host, port))
                return port
    raise AssertionError("no free port among a hundred tried")


class Specswitch:
    """One process; use it as a context. Its log is JSON lines in `log`.

    A test whose upstreams live in its own loop uses it as an asynchronous context, and calls what
    waits for an answer by `asyncio.to_thread`.
    """

    def __init__(
        self,
        log: Path,
        *,
        spec_url: str,
        base_url: str,
        **settings: object,
    ) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.log = log
        self.exit_code = 0
        """The one that it has to end with."""
        self.program: Sequence[str] = PROGRAM
        self.leaves_nothing = False
        """Whether leaving it, without an error, asks `nothing_left` first."""
        self.wait = True
        """Whether entering it waits until it can serve."""
        self._environment = {
            "SPECSWITCH_LISTEN_HOST": "127.0.0.1",
            "SPECSWITCH_LISTEN_PORT": str(self.port),
            "SPECSWITCH_LISTEN_ADMIN_PORT": str(self.admin_port),
            "SPECSWITCH_UPSTREAMS_SPEC_URL": spec_url,
            "SPECSWITCH_UPSTREAMS_BASE_URL": base_url,
            **{f"SPECSWITCH_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        # Nothing here speaks TLS, and reading the system's certificates takes longer than a start.
        self._client = httpx2.Client(trust_env=False, verify=False)

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                self.program,
                env={**os.environ, **self._environment},
                cwd=self.log.parent,
                stderr=log,
            )
        try:
            if self.wait:
                self.until_ready()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self.leaves_nothing:
                self.nothing_left()
        finally:
            self._client.close()
            code = self.stop()
        if error is None:
            assert code == self.exit_code, self.log.read_text()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    @property
    def pid(self) -> int:
        """The process."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._running.send_signal(number)

    def ended(self, seconds: float = 20.0) -> int:
        """Wait for its end; the exit code."""
        return self._running.wait(seconds)

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, and the exit code; SIGKILL and an error where it does not end."""
        if self._running.poll() is None:
            self.send(signal.SIGTERM)
        try:
            return self.ended(seconds)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
            raise

    def until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until it can serve."""
        self._until(lambda: self.readyz() == httpx2.codes.OK, seconds)

    def until_up(self, seconds: float = START_SECONDS) -> None:
        """Wait until it answers, whether it can serve or not."""
        self._until(lambda: self.readyz() is not None, seconds)

    def _until(self, true: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.log.read_text()
            with suppress(subprocess.TimeoutExpired):
                code = self._running.wait(POLL_SECONDS)
                raise AssertionError(f"ended with {code}: {self.log.read_text()}")

    def readyz(self) -> int | None:
        """The status of GET /readyz on the endpoint, None where nobody answers."""
        try:
            return self._client.get(f"{self.url}/readyz").status_code
        except httpx2.HTTPError:
            return None

    def state(self) -> dict[str, object]:
        """GET /admin/state."""
        answer = self._client.get(f"{self.admin_url}/admin/state").raise_for_status()
        state = answer.json()
        assert isinstance(state, dict)
        return state

    def control(self, word: str) -> None:
        """PUT /admin/control."""
        url = f"{self.admin_url}/admin/control"
        self._client.put(url, json={"control": word}).raise_for_status()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels; 0 where there are none."""
        return sum(
            sample.value
            for sample in self.samples()
            if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items()
        )

    def samples(self) -> list[Sample]:
        """One scrape."""
        text = self._client.get(f"{self.admin_url}/metrics").raise_for_status().text
        return [s for family in text_string_to_metric_families(text) for s in family.samples]

    def nothing_left(self) -> None:
        """Within two seconds nothing is going on any more, the books balance, the log is clean."""
        self._until(lambda: not books.left(self.samples()), SETTLED_SECONDS)
        wrong = books.faults(self.samples())
        text = self.log.read_text()
        assert not wrong, "; ".join(wrong)
        assert not any(word in text for word in STRAYS), text

    def lines(self) -> list[dict[str, object]]:
        """What it has logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]
