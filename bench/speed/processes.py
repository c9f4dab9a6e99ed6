"""Starts what a bench needs and ends it again, each by its own process id."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from time import monotonic
from typing import Final

from bench.speed.errors import BenchError
from bench.speed.machine import on_core, pause, tree

TOOLS: Final = Path(__file__).parent / "tools"
BUILD: Final = Path(__file__).parent / "build"
"""What gcc makes, raw results and logs; not in git."""

_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
_STOP_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01


def build(name: str) -> Path:
    """The program of tools/NAME.c, compiled where its sources are newer; raises BenchError."""
    made, source = BUILD / name, TOOLS / f"{name}.c"
    newest = max(path.stat().st_mtime for path in (source, *TOOLS.glob("*.h")))
    if made.exists() and made.stat().st_mtime > newest:
        return made
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        raise BenchError("gcc is missing: emulator and load are C; install it or set CC")
    BUILD.mkdir(exist_ok=True)
    words = [compiler, *_FLAGS, "-o", str(made), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if done.returncode:
        raise BenchError(f"{source.name} does not compile:\n{done.stderr}")
    return made


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)  # noqa: S101 - AF_INET has numbers
    return port


def start(
    words: Sequence[str],
    *,
    core: int,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start it on `core`, with what it says appended to `log`; raises BenchError.

    In a session of its own: Ctrl-C is for the bench, which then ends all in their order.
    """
    with log.open("ab") as out, on_core(core):
        try:
            return subprocess.Popen(  # noqa: S603 - our own words
                words,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        except OSError as error:
            raise BenchError(f"{words[0]} does not start: {error}") from error


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to it, then SIGKILL to what is left of it and its children."""
    family = list(tree(process.pid))
    for number in (SIGTERM, SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            break
    for pid in family[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true within `seconds`."""
    deadline = monotonic() + seconds
    while not true():
        if monotonic() > deadline:
            return False
        pause(_POLL_SECONDS)
    return True


def last_of(log: Path, lines: int = 5) -> str:
    """The end of a log, for the message of whoever did not start."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
