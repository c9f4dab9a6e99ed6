"""How much memory a process holds, as Linux counts it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


def resident(pid: int) -> int:
    """Bytes of memory that process `pid` holds now."""
    return _field(pid, "VmRSS")


@dataclass
class Growth:
    """By how many bytes a process grew at its most; known when the block is over."""

    peak: int = 0
    left: int = 0
    """By how much it is larger at the end."""


@contextmanager
def growth(pid: int) -> Iterator[Growth]:
    """Watch process `pid`: the kernel itself keeps the peak, so that none is missed."""
    before = resident(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    seen = Growth()
    yield seen
    seen.peak = _field(pid, "VmHWM") - before
    seen.left = resident(pid) - before


def _field(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(each for each in status.splitlines() if each.startswith(name + ":"))
    return int(line.split()[1]) * 1024
