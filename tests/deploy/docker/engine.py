"""A Docker engine to test with: the one that answers, or one that is started for the tests.

Starting one takes root and the programs of Debian's docker.io; no service manager is needed. Its
data lie in a folder of their own and are gone afterwards, unless SPECSWITCH_DOCKER_DATA names a
folder that is kept, which saves building everything anew. What stays is what any engine leaves in
the kernel: IP forwarding, and its chains of rules.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.conftest import program, unable

KEPT = "SPECSWITCH_DOCKER_DATA"
START_SECONDS = 60.0
STOP_SECONDS = 60.0
COMMAND_SECONDS = 600.0
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that answers."""

    environment: Mapping[str, str]
    """How its client finds it."""
    borrowed: bool
    """Whether it is somebody's: what it has is to be left as it is."""
    made: list[str] = field(default_factory=list)
    """Tags that the tests have given."""

    def run(
        self, *words: str, timeout: float = COMMAND_SECONDS, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`docker words`; with `check`, an AssertionError with all that it said where it fails."""
        done = subprocess.run(  # noqa: S603 - our own words
            ["docker", *words],  # noqa: S607 - as the user finds it
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def ask(self, *words: str, timeout: float = COMMAND_SECONDS) -> str:
        """What `docker words` says on standard output."""
        return self.run(*words, timeout=timeout).stdout.strip()

    def has(self, image: str) -> bool:
        """Whether it has an image under this name."""
        return self.run("image", "inspect", image, check=False).returncode == 0


@contextmanager
def running() -> Iterator[Engine]:
    """An engine for the time of the block; the test is given up where there can be none."""
    program("docker", "docker.io")
    borrowed = Engine({}, borrowed=True)
    if borrowed.run("info", check=False, timeout=30).returncode == 0:
        yield borrowed
        return
    if os.geteuid() != 0:
        unable("no Docker engine answers, and only root can start one")
    program("dockerd", "docker.io")
    program("iptables", "iptables")
    with _folder() as folder, _started(folder) as engine:
        yield engine


@contextmanager
def _folder() -> Iterator[Path]:
    kept = os.environ.get(KEPT)
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept).resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="specswitch-docker-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _started(folder: Path) -> Iterator[Engine]:
    host = f"unix://{folder}/docker.sock"
    words = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    words += ["--pidfile", f"{folder}/docker.pid", "--host", host]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own words
            words, stdout=output, stderr=output, start_new_session=True
        )
    engine = Engine({"DOCKER_HOST": host}, borrowed=False)
    try:
        _wait(engine, process, log)
        yield engine
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while engine.run("info", check=False, timeout=30).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"the Docker engine does not start: {last}")
        time.sleep(POLL_SECONDS)  # noqa: TID251 - a poll with a deadline, and no loop to hold up
