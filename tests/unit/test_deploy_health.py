"""The image's health check, as a process: well where /livez says so, else 1 and a line."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "health.py"


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A server that answers with this: its port, and the paths that it was asked for."""
    asked: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], asked
        finally:
            server.shutdown()
            thread.join()


def check(**environment: str) -> subprocess.CompletedProcess[str]:
    """What it says and exits with."""
    settings = {f"SPECSWITCH_LISTEN_ADMIN_{name.upper()}": v for name, v in environment.items()}
    return subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-I", str(SCRIPT)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1"])
def test_well(host: str) -> None:
    """It asks where the admin listener is, also where that is every address."""
    with answering(200) as (port, asked):
        done = check(port=str(port), host=host)
    assert (done.returncode, done.stderr) == (0, "")
    assert asked == ["/livez"]


def test_another_status() -> None:
    """Anything but 200 is not well."""
    with answering(503) as (port, _):
        done = check(port=str(port))
    assert (done.returncode, done.stderr) == (1, "/livez: 503\n")


@pytest.mark.parametrize("port", ["1", "no number"])
def test_nobody_there(port: str) -> None:
    """A line, and no traceback."""
    done = check(port=port)
    assert done.returncode == 1
    assert done.stderr.startswith("/livez: ")
    assert done.stderr.count("\n") == 1
