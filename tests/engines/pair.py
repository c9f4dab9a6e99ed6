"""Two real SGLang servers on this machine's CPU: `spec` with EAGLE-3, `base` without.

    with EnginePair(log_folder) as engines:
        httpx2.get(engines.spec.url + "/v1/models")
        engines.kill(UpstreamName.SPEC)
        engines.restart(UpstreamName.SPEC, replace(SPEC, max_queued_requests=1))

Every call blocks until it is done: from a coroutine, `await asyncio.to_thread(engines.restart,
...)`. It ends what it started and nothing else, and what it started ends with this process, however
that ends (launch.py, `--lifeline`).
"""

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Self

import httpx2

from proxy.core.words import UpstreamName
from tests.engines import setup

MODEL: Final = "tiny"

_LAUNCH = Path(__file__).resolve().parent / "launch.py"
_READY_SECONDS = 240.0  # both start in 34 s on two idle cores; this is for busy ones
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps it
_DRAIN_SECONDS = 60.0  # SGLang drains for some 20 s after SIGTERM
_POLL_SECONDS = 0.1

# Below the range that Linux takes the ports of outgoing connections from (32768 on): so nothing
# takes the port of a server that is down for a while.
_PORTS = range(20000, 32768)


class EngineError(Exception):
    """A server did not start or end as it should; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Options:
    """How one server is started, as far as tests differ; the names are SGLang's."""

    max_running_requests: int
    max_queued_requests: int | None = None  # None: no bound
    api_key: str | None = None
    extra: tuple[str, ...] = ()  # any other options of launch_server

    def arguments(self) -> list[str]:
        """Return them as SGLang's command line has them."""
        bound = self.max_queued_requests
        return [
            f"--max-running-requests={self.max_running_requests}",
            *([] if bound is None else [f"--max-queued-requests={bound}"]),
            *([] if self.api_key is None else [f"--api-key={self.api_key}"]),
            *self.extra,
        ]


SPEC: Final = Options(max_running_requests=16)
BASE: Final = Options(max_running_requests=64)  # a burst of 24 runs, and does not queue

_COMMON = [
    f"--model-path={setup.TARGET}",
    f"--served-model-name={MODEL}",
    "--host=127.0.0.1",
    "--enable-metrics",
    "--max-total-tokens=16384",
]
_SPECULATION = [
    "--speculative-algorithm=EAGLE3",
    f"--speculative-draft-model-path={setup.DRAFT}",
    "--speculative-num-steps=3",
    "--speculative-eagle-topk=1",
    "--speculative-num-draft-tokens=4",
]


class Engine:
    """One SGLang server: an address that stays, and the processes behind it, which may not."""

    def __init__(self, name: UpstreamName, log: Path, options: Options) -> None:
        self.name = name
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log  # of all its starts, one after the other
        self.options = options
        self._group: _Group | None = None

    def __repr__(self) -> str:
        """Say which, where and whether."""
        return f"<{self.name} at {self.url}, {'running' if self.running else 'down'}>"

    @property
    def running(self) -> bool:
        """Whether the main process lives; it may not answer yet."""
        return self._group is not None and not self._group.exited(0.0)

    @property
    def pid(self) -> int | None:
        """The main process, which is also the number of the group; None while it is down."""
        return None if self._group is None else self._group.pid

    def ready(self) -> bool:
        """Whether it says that it takes requests."""
        try:
            return self.get("/ready").is_success
        except httpx2.TransportError:
            return False

    def start(self, options: Options) -> None:
        """Start the processes and return at once; `wait_until_ready` waits for them."""
        if self.running:
            raise EngineError(f"{self.name} runs already")
        self.kill()  # what a crash of the main process may have left
        self.options = options
        speculation = _SPECULATION if self.name is UpstreamName.SPEC else []
        arguments = [*_COMMON, f"--port={self.port}", *speculation, *options.arguments()]
        self._group = _Group(arguments, self.log)

    def wait_until_ready(self, seconds: float = _READY_SECONDS) -> None:
        """Return once it takes requests.

        Raises:
            EngineError: it died, or was not ready after *seconds*.
        """
        deadline = time.monotonic() + seconds
        while not self.ready():
            if self._group is None or self._group.exited(_POLL_SECONDS):
                raise EngineError(f"{self.name} died before it was ready\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise EngineError(f"{self.name} not ready after {seconds:.0f} s\n{self.log_tail()}")

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Return once nothing runs or waits in it.

        Raises:
            EngineError: something still did after *seconds*.
        """
        wait_until(lambda: self.load() == (0, 0), f"{self.name} idle", seconds)

    def stop(self) -> None:
        """Ask it to end, as an operator would: it finishes what it has begun."""
        if self._group is not None:
            self._group.end(signal.SIGTERM, _DRAIN_SECONDS)
            self._group = None

    def kill(self) -> None:
        """End all its processes at once, as a crash or the kernel would."""
        if self._group is not None:
            self._group.end(signal.SIGKILL, _DRAIN_SECONDS)
            self._group = None

    def freeze(self) -> None:
        """Stop its scheduler where it is; its HTTP server answers on."""
        self._scheduler(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its scheduler go on."""
        self._scheduler(signal.SIGCONT)

    def _scheduler(self, how: signal.Signals) -> None:
        group = self._group
        found = [] if group is None else group.members("sglang::scheduler")
        if not found:
            raise EngineError(f"{self.name} has no scheduler")
        for pid in found:
            os.kill(pid, how)

    def get(self, path: str) -> httpx2.Response:
        """Return its answer to GET *path*, with its key if it has one."""
        key = self.options.api_key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        with httpx2.Client(trust_env=False, timeout=5.0) as client:
            return client.get(self.url + path, headers=headers)

    def load(self) -> tuple[int, int]:
        """Return how many requests run and how many wait, as /v1/loads has it."""
        rank = self.get("/v1/loads").raise_for_status().json()["loads"][0]
        return int(rank["num_running_reqs"]), int(rank["num_waiting_reqs"])

    def metric(self, name: str) -> float | None:
        """Return `sglang:`*name*, summed over its labels; None while there is none."""
        line = re.compile(rf"^sglang:{re.escape(name)}(?:\{{.*\}})? (\S+)$", re.MULTILINE)
        values = line.findall(self.get("/metrics").raise_for_status().text)
        return sum(map(float, values)) if values else None

    def log_tail(self, lines: int = 30) -> str:
        """Return the end of the log, headed by its path."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"{self.log}:", *text.splitlines()[-lines:]])


class _Group:
    """The processes of one start, in a process group of their own: main, scheduler, detokenizer."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        # For SGLang's sockets and scratch, which a killed server leaves; short, since the path of
        # a socket may have 107 bytes only.
        self._scratch = Path(tempfile.mkdtemp(prefix="engine-"))
        with log.open("ab") as sink:
            self._main = subprocess.Popen(  # noqa: S603 - our own file, no shell
                [str(setup.PYTHON), str(_LAUNCH), "--lifeline", *arguments],
                stdin=subprocess.PIPE,  # the lifeline
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self._scratch), "PYTHONPATH": ""},
                start_new_session=True,
            )
        self.pid = self._main.pid
        self._exit = os.pidfd_open(self.pid)

    def exited(self, seconds: float) -> bool:
        """Whether the main process has ended, or does so within *seconds*."""
        return bool(select.select([self._exit], [], [], seconds)[0])

    def end(self, how: signal.Signals, seconds: float) -> None:
        """Signal the main process, wait up to *seconds* for it, then kill the whole group."""
        shared = self._shared_memory()
        try:
            self._signal(how)
            self.exited(seconds)
        finally:
            # The main process is reaped last: until then no other group can bear its number.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._main.wait()
            self._close()
            for file in shared:
                file.unlink(missing_ok=True)

    def _signal(self, how: signal.Signals) -> None:
        if how is signal.SIGKILL:
            os.killpg(self.pid, how)
        else:
            self._main.send_signal(how)

    def members(self, title: str) -> list[int]:
        """Return the processes of the group whose title begins with *title*."""
        return [
            int(process.name)
            for process in self._processes()
            if (process / "cmdline").read_bytes().startswith(title.encode())
        ]

    def _processes(self) -> Iterator[Path]:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended meanwhile, or not ours to look at
                if os.getpgid(int(process.name)) == self.pid:
                    yield process

    def _shared_memory(self) -> list[Path]:
        """Return the files that the group has mapped there: killed, it leaves them."""
        inodes: set[int] = set()  # not names: a semaphore gets its own after it is mapped
        for process in self._processes():
            with contextlib.suppress(OSError):
                maps = (process / "maps").read_text().splitlines()
                inodes |= {int(line.split()[4]) for line in maps if str(_SHARED_MEMORY) in line}
        return [file for file in _SHARED_MEMORY.iterdir() if file.stat().st_ino in inodes]

    def _close(self) -> None:
        os.close(self._exit)
        if self._main.stdin is not None:
            self._main.stdin.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class EnginePair:
    """Both servers, and their ends."""

    def __init__(self, logs: Path, *, spec: Options = SPEC, base: Options = BASE) -> None:
        """Take two ports; *logs* is the folder for `spec.log` and `base.log`."""
        self.spec = Engine(UpstreamName.SPEC, logs / "spec.log", spec)
        self.base = Engine(UpstreamName.BASE, logs / "base.log", base)
        self._usual = {UpstreamName.SPEC: spec, UpstreamName.BASE: base}

    def __getitem__(self, name: UpstreamName) -> Engine:
        """Return the one called *name*."""
        return self.spec if name is UpstreamName.SPEC else self.base

    def __enter__(self) -> Self:
        """Start both, side by side."""
        self.restore()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill both."""
        self.close()

    def restore(self) -> None:
        """Have both up, idle and with their usual options, whatever was done to them before.

        Raises:
            EngineError: one did not start, or is still busy after half a minute.
        """
        try:
            for name, usual in self._usual.items():
                engine = self[name]
                if engine.options != usual or not engine.ready():
                    engine.kill()
                    engine.start(usual)
            for engine in (self.spec, self.base):
                engine.wait_until_ready()
                engine.wait_until_idle()
        except BaseException:
            self.close()
            raise

    def stop(self, name: UpstreamName) -> None:
        """Let it drain and end."""
        self[name].stop()

    def kill(self, name: UpstreamName) -> None:
        """End all its processes at once."""
        self[name].kill()

    def restart(self, name: UpstreamName, options: Options | None = None) -> None:
        """Start it anew on its port, as usual or with *options*, and wait until it is ready.

        Raises:
            EngineError: it did not start.
        """
        engine = self[name]
        engine.kill()
        engine.start(options or self._usual[name])
        engine.wait_until_ready()

    def close(self) -> None:
        """Kill both; again does nothing."""
        try:
            self.spec.kill()
        finally:
            self.base.kill()


def wait_until(met: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Return once *met* says so, asked ten times a second.

    Raises:
        EngineError: it did not within *seconds*.
    """
    deadline = time.monotonic() + seconds
    while not met():
        if time.monotonic() > deadline:
            raise EngineError(f"not within {seconds:.0f} s: {what}")
        threading.Event().wait(_POLL_SECONDS)


def _free_port() -> int:
    for port in Random().sample(_PORTS, k=100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise EngineError("no free port among a hundred tried")
