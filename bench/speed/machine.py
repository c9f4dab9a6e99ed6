"""What /proc says: who used how much CPU and memory, how busy the rest was, what machine it is."""

import os
import platform
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Final

from bench.speed.errors import BenchError

MIB: Final = 2**20
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM, _OF_CHILDREN = 11, 12, 2
"""Fields of /proc/PID/stat behind the name (proc(5): 14 and 15); children's are two further."""
_STOLEN: Final = 8
"""Of the first line of /proc/stat, behind its name: what other guests had of our cores."""
_DEFERRED: Final = "ksoftirqd"


def pause(seconds: float) -> None:
    """Wait."""
    Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of a process, its threads and its children, ended ones that it waited for too."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Both."""
        return self.user + self.system

    def __sub__(self, before: "Spent") -> "Spent":
        return Spent(self.user - before.user, self.system - before.system)


NOTHING: Final = Spent(0.0, 0.0)


def tree(pid: int) -> Iterator[int]:
    """The process and all that it started and that still runs."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from tree(int(child))


def spent(pid: int) -> Spent:
    """By /proc/PID/stat, in steps of 10 ms; whoever ends meanwhile counts as his parent's."""
    user = system = 0
    for each in tree(pid):
        fields = _stat(each)[1]
        user += int(fields[_USER]) + int(fields[_USER + _OF_CHILDREN]) if fields else 0
        system += int(fields[_SYSTEM]) + int(fields[_SYSTEM + _OF_CHILDREN]) if fields else 0
    return Spent(user / _TICKS, system / _TICKS)


def others(ours: Collection[int]) -> float:
    """CPU seconds of all processes but `ours`, and of other guests of the same host.

    Process by process, since the sums of /proc/stat are sampled at ticks: for whoever works in
    bursts shorter than a tick they are a quarter too high. The kernel's threads for deferred
    traffic are left out: on loopback that traffic is ours.
    """
    total = float(Path("/proc/stat").read_text().split(maxsplit=9)[_STOLEN])
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) not in ours:
            name, fields = _stat(int(path.name))
            if fields and not name.startswith(_DEFERRED):
                times = (_USER, _SYSTEM, _USER + _OF_CHILDREN, _SYSTEM + _OF_CHILDREN)
                total += sum(int(fields[each]) for each in times)
    return total / _TICKS


def deferred(core: int) -> float:
    """CPU seconds of the kernel's own thread for what system calls on `core` have put off.

    On loopback that is traffic: who sends much has some of the receiving done by this thread, and
    /proc/PID/stat does not count it.
    """
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            name, fields = _stat(int(path.name))
            if name == f"{_DEFERRED}/{core}":
                return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    return 0.0


def _stat(pid: int) -> tuple[str, list[str]]:
    """The name of a process, and what /proc/PID/stat has behind it; nothing once it has ended."""
    try:
        before, _, behind = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return "", []
    return before.partition("(")[2], behind.split()


def resident(pid: int) -> float:
    """MiB that the process and its children hold now; what they share counts for each."""
    return sum(_memory(each, "VmRSS") for each in tree(pid))


def peak(pid: int) -> float:
    """The most MiB that each of them has held since `forget_peak`."""
    return sum(_memory(each, "VmHWM") for each in tree(pid))


def forget_peak(pid: int) -> None:
    """Let the kernel's own record of the most memory begin anew (proc(5): clear_refs)."""
    for each in tree(pid):
        with suppress(OSError):
            Path(f"/proc/{each}/clear_refs").write_text("5")


def _memory(pid: int, name: str) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024 / MIB
    return 0.0


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where: what is measured has one to itself."""

    proxy: int
    load: int
    """Of the emulator, the load and the bench itself."""


def cores() -> Cores:
    """The first two that this process may use; raises BenchError where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:  # noqa: PLR2004 - one for the proxy, one for the load
        raise BenchError("this needs two cores: one for the proxy, one for the load")
    return Cores(*usable[:2])


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Whoever is started in here stays on `core`, from the beginning and with all its threads."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def conditions() -> dict[str, object]:
    """What the figures hang on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
