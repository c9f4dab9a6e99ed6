"""An environment apart from the repository's own: `.NAME/` at its root, made once by `setup.py`.

It is made anew when one of its inputs has changed, or when it was left unfinished.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


@dataclass(frozen=True)
class Apart:
    """One such environment."""

    name: str
    inputs: tuple[Path, ...]
    """Whoever changes one of these files gets a new environment."""
    proof: Path
    """A program in it, without which it is not there."""
    steps: Callable[["Apart"], None]
    """Make what belongs into the folder, which exists; raises SetupError."""

    @property
    def folder(self) -> Path:
        """Where it is."""
        return ROOT / f".{self.name}"

    def is_set_up(self) -> bool:
        """Whether it is there, complete, and made from today's inputs."""
        stamp = self._stamp
        return stamp.exists() and stamp.read_text() == self._digest() and self.proof.exists()

    def set_up(self) -> None:
        """Make it unless it is there.

        The stamp goes first and comes back last, so whatever an interrupted run leaves is made
        anew.

        Raises:
            SetupError: a step failed.
        """
        self.folder.mkdir(exist_ok=True)
        with self._alone():
            if self.is_set_up():
                self.say(f"ready: {self.folder}")
                return
            started = time.monotonic()
            self._stamp.unlink(missing_ok=True)
            self.steps(self)
            self._write_stamp()
            self.say(f"ready after {time.monotonic() - started:.0f} s: {self.folder}")

    def run(self, what: str, command: Sequence[str], **variables: str) -> None:
        """Run `command` with `variables` in its environment, too; what it prints is seen.

        Raises:
            SetupError: it failed.
        """
        environment = {**os.environ, **variables}
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - no shell
        if done.returncode != 0:
            raise SetupError(f"{what} failed (exit {done.returncode}); its output is above")

    def pip(self, python: Path, *arguments: str) -> None:
        """Install into the environment of `python`; only errors are printed. Raises SetupError."""
        flags = ["-qq", "--disable-pip-version-check", "--no-input"]
        self.run("pip", [str(python), "-I", "-m", "pip", "install", *flags, *arguments])

    def say(self, line: str) -> None:
        """Tell whoever waits for it."""
        sys.stdout.write(f"{self.name}: {line}\n")
        sys.stdout.flush()

    def main(self, arguments: Sequence[str]) -> int:
        """The command: make it, or with `--check` say whether it is there. The exit status."""
        if list(arguments) not in ([], ["--check"]):
            self.say("usage: setup [--check]")
            return 2
        if arguments:
            ready = self.is_set_up()
            self.say("set up" if ready else f"not set up: run `make {self.name}-setup`")
            return 0 if ready else 1
        try:
            self.set_up()
        except SetupError as error:
            self.say(f"error: {error}")
            return 1
        return 0

    @property
    def _stamp(self) -> Path:
        return self.folder / "stamp"

    def _digest(self) -> str:
        """The inputs in one word."""
        parts = b"\0".join(path.read_bytes() for path in self.inputs)
        return hashlib.sha256(parts).hexdigest()

    def _write_stamp(self) -> None:
        partial = self._stamp.with_suffix(".partial")
        partial.write_text(self._digest())
        partial.replace(self._stamp)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other run makes it; the lock goes with the process."""
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say("another set-up is running; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
