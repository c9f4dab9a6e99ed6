"""Freed memory is kept for the next bodies."""

import subprocess
import sys

import pytest

ROUNDS, AT_ONCE, MIB = 40, 8, 1 << 20

PROGRAM = f"""
import resource, sys
from proxy.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
before = 0
for number in range({ROUNDS}):
    bodies = [b"x" * {MIB} for _ in range({AT_ONCE})]
    del bodies
    if number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Page faults of a process that holds some bodies and lets them go, again and again."""
    ran = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", PROGRAM, how], capture_output=True, check=True, text=True, timeout=30
    )
    return int(ran.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_bodies_find_the_memory_of_those_before() -> None:
    """Not page by page from the kernel, as it is without."""
    pages = ROUNDS * AT_ONCE * MIB // 4096

    assert faults("kept") < pages // 100
    assert faults("as it is") > pages // 2
