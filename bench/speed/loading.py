"""Runs the load generator, and reads along what it says."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Final

from bench.speed.errors import BenchError
from bench.speed.targets import KEY

_GRACE_SECONDS: Final = 30.0
"""Beyond its own bounds; then it hangs, and is killed."""

LIMIT_SECONDS: Final = 60.0

Said = dict[str, object]
"""The load's own numbers."""


def words(
    load: Path, mode: str, port: int, options: Mapping[str, int], path: str | None
) -> list[str]:
    """Its command line; `path` is got in place of asking for a chat."""
    line = [str(load), mode, str(port), *(f"{name}={value}" for name, value in options.items())]
    return line if path is None else [*line, f"get={path}"]


def run(line: list[str], on_word: Callable[[str], None] = lambda _: None) -> Said:
    """Run it to its end; `on_word` is called with each word that it says before.

    Raises BenchError where it fails: it says why on standard error.
    """
    with _started(line) as load:
        assert load.stdout is not None  # noqa: S101 - a pipe was asked for
        watchdog = Timer(LIMIT_SECONDS + _GRACE_SECONDS, load.kill)
        watchdog.start()
        try:
            last = _read(load.stdout, on_word)
            load.wait()
        finally:
            watchdog.cancel()
    found = json.loads(last) if last else None
    if not isinstance(found, dict):
        raise BenchError(f"the load ended with {load.returncode} and without its numbers")
    return found


@contextmanager
def beside(line: list[str]) -> Iterator[int]:
    """Run it all the while, under the process id that this gives; its numbers do not count."""
    with _started(line) as load:
        yield load.pid


@contextmanager
def _started(line: list[str]) -> Iterator[subprocess.Popen[str]]:
    """It inherits the core of the bench, and is gone at the end whatever happens."""
    load = subprocess.Popen(  # noqa: S603 - our own words
        line,
        env={"LOAD_KEY": KEY},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield load
    finally:
        if load.poll() is None:
            load.kill()
        load.communicate()


def _read(lines: Iterator[str], on_word: Callable[[str], None]) -> str | None:
    last = None
    for line in lines:
        word = line.strip()
        if word.startswith("{"):
            last = word
        else:
            on_word(word)
    return last
