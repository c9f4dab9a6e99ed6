"""What this process does with memory that it has freed."""

import ctypes
from typing import Final

KEPT_BYTES: Final = 16 << 20
"""Freed memory that is kept, at most; ample for the bodies that are under way at one time."""

_TRIM_THRESHOLD: Final = -1  # mallopt(3)
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Keep some of it, where the C library is glibc; others have ways of their own.

    Left to itself glibc gives it back to the kernel after a few large bodies, and each page of the
    next ones is a page fault: more than a quarter of what a body of 1 MB costs.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
