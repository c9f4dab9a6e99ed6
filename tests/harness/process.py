"""specswitch as a real process on free ports, the way an operator runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
from prometheus_client.parser import text_string_to_metric_families

START_SECONDS = 20.0


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


class Specswitch:
    """One process; use it as a context. Its log is JSON lines in `log`."""

    def __init__(self, log: Path, *, spec_url: str, base_url: str, **settings: object) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.log = log
        self._environment = {
            "SPECSWITCH_LISTEN_HOST": "127.0.0.1",
            "SPECSWITCH_LISTEN_PORT": str(self.port),
            "SPECSWITCH_LISTEN_ADMIN_PORT": str(self.admin_port),
            "SPECSWITCH_UPSTREAMS_SPEC_URL": spec_url,
            "SPECSWITCH_UPSTREAMS_BASE_URL": base_url,
            **{f"SPECSWITCH_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "proxy", "serve"],
                env={**os.environ, **self._environment},
                cwd=self.log.parent,
                stderr=log,
            )
        self.until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code = self.stop()
        if error is None:
            assert code == 0, self.log.read_text()

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)

    def until_ready(self) -> None:
        """Wait until it can serve."""
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            assert self._process is not None
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()

    def _ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/readyz", trust_env=False).is_success
        except httpx2.HTTPError:
            return False

    def state(self) -> dict[str, object]:
        """GET /admin/state."""
        answer = httpx2.get(f"{self.admin_url}/admin/state", trust_env=False).raise_for_status()
        state = answer.json()
        assert isinstance(state, dict)
        return state

    def control(self, word: str) -> None:
        """PUT /admin/control."""
        url = f"{self.admin_url}/admin/control"
        httpx2.put(url, json={"control": word}, trust_env=False).raise_for_status()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels; 0 where there are none."""
        text = httpx2.get(f"{self.admin_url}/metrics", trust_env=False).raise_for_status().text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items()
        )

    def lines(self) -> list[dict[str, object]]:
        """What it has logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]
