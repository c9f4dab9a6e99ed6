"""The emulator and what stands before it: started, looked at, ended."""

import json
import os
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, Self

from bench.speed import machine
from bench.speed.asking import get, serves
from bench.speed.errors import BenchError
from bench.speed.processes import build, free_port, last_of, start, stop, wait_until
from bench.speed.targets import Site, Target

_STARTS: Final = 2
"""How often a target may fail to start; then it is no longer waited for."""

_EMULATOR_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 20.0
_QUIET_LOOK: Final = 0.15
_QUIET_CPU: Final = 0.03
"""Seconds of CPU in a look: what an idle proxy's timers and probes need."""


@dataclass(slots=True)
class Running:
    """A target that runs."""

    target: Target
    site: Site
    log: Path
    process: subprocess.Popen[bytes] | None = None
    """None for the emulator asked directly."""
    start_seconds: float | None = None
    """From its start to its first answer."""

    @property
    def port(self) -> int:
        """Where clients ask."""
        return self.site.port if self.process else self.site.spec_port

    def spent(self) -> machine.Spent:
        """Its CPU time; nothing for the emulator, whose own it is."""
        return machine.spent(self.process.pid) if self.process else machine.NOTHING

    def resident(self) -> float:
        """MiB."""
        return machine.resident(self.process.pid) if self.process else 0.0

    def peak(self) -> float:
        """The most MiB since `forget_peak`."""
        return machine.peak(self.process.pid) if self.process else 0.0

    def forget_peak(self) -> None:
        """Let its record of the most memory begin anew."""
        if self.process:
            machine.forget_peak(self.process.pid)

    @property
    def ended(self) -> bool:
        """Whether it is gone though nobody ended it."""
        return self.process is not None and self.process.poll() is not None


@dataclass(slots=True)
class Stage:
    """Use it as a context: at its end nothing runs that it started."""

    peers: Path
    cores: machine.Cores = field(default_factory=machine.cores)
    load: Path = field(default_factory=lambda: build("load"))
    _emulator: subprocess.Popen[bytes] | None = None
    _ports: tuple[int, int] = (0, 0)
    _folder: Path = Path()
    _running: dict[str, Running] = field(default_factory=dict)
    _failures: dict[str, list[BenchError]] = field(default_factory=dict)
    _ends: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self._folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="speed-")))
            usable = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {self.cores.load})
            ends.callback(os.sched_setaffinity, 0, usable)
            ends.callback(self._stop_all)
            self._start_emulator()
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.__exit__(kind, error, trace)

    @property
    def emulator_pid(self) -> int:
        """Of the process that is both servers."""
        assert self._emulator is not None  # noqa: S101 - only within the context
        return self._emulator.pid

    def _start_emulator(self) -> None:
        self._ports = (free_port(), free_port())
        log = self._folder / "emulator.log"
        words = [str(build("emulator")), *map(str, self._ports)]
        self._emulator = start(words, core=self.cores.load, log=log)
        if not wait_until(lambda: serves(self._ports[0]), _EMULATOR_SECONDS):
            raise BenchError(f"the emulator does not answer: {last_of(log)}")

    def running(self, target: Target, *, fresh: bool = False) -> Running:
        """The target, started if it does not run, or anew if asked; raises BenchError."""
        if fresh or (target.name in self._running and self._running[target.name].ended):
            self.end(target)
        if target.name not in self._running:
            failures = self._failures.setdefault(target.name, [])
            if len(failures) == _STARTS:
                raise failures[-1]
            try:
                self._running[target.name] = self._started(target)
            except BenchError as error:
                failures.append(error)
                raise
        return self._running[target.name]

    def end(self, target: Target) -> None:
        """End it, if it runs."""
        running = self._running.pop(target.name, None)
        if running is not None and running.process is not None:
            stop(running.process)

    def _started(self, target: Target) -> Running:
        folder = self._folder / target.name
        folder.mkdir(exist_ok=True)
        site = Site(
            folder=folder,
            peers=self.peers,
            port=free_port(),
            admin_port=free_port(),
            spec_port=self._ports[0],
            base_port=self._ports[1],
        )
        found = Running(target, site, folder / "log")
        if target.command is None:
            return found
        command = target.command(site)
        began = monotonic()
        found.process = start(
            command.words,
            core=self.cores.proxy,
            log=found.log,
            environment=command.environment,
            folder=folder,
        )
        try:
            _await_answer(found)
        except BaseException:  # a Ctrl-C, too: nobody else knows of it yet
            stop(found.process)
            raise
        found.start_seconds = monotonic() - began
        return found

    def _stop_all(self) -> None:
        for running in list(self._running.values()):
            self.end(running.target)
        if self._emulator is not None:
            stop(self._emulator)

    def ask(self, path: str) -> bytes:
        """What the emulator says at `path`."""
        return get(self._ports[0], path)

    def streams(self) -> int:
        """That the emulator has not ended."""
        running = json.loads(self.ask("/emulator/stats"))["running"]
        return int(sum(running))

    def requests(self) -> tuple[int, int]:
        """That each server has had since the last reset: of clients, of probes."""
        spec, base = json.loads(self.ask("/emulator/stats"))["requests"]
        return int(spec), int(base)

    def reset(self) -> None:
        """Let the emulator's counts begin anew."""
        self.ask("/emulator/reset")

    def quiet(self, running: Running) -> bool:
        """Whether within 20 s nothing of the work before was left."""
        return wait_until(lambda: self.streams() == 0 and self._idles(running), _QUIET_SECONDS)

    def _idles(self, running: Running) -> bool:
        before = running.spent().total
        machine.pause(_QUIET_LOOK)
        return running.spent().total - before <= _QUIET_CPU

    def forget_log(self, running: Running) -> None:
        """Empty its log: at a line for each request it has 10 MB a second."""
        with suppress(OSError):
            os.truncate(running.log, 0)


def _await_answer(running: Running) -> None:
    target = running.target
    wait_until(lambda: running.ended or serves(running.port), target.start_seconds)
    if running.ended or not serves(running.port):
        raise BenchError(f"{target.name} does not serve: {last_of(running.log)}")
