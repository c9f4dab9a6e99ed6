"""What builds the compiled wheel says what it lacks before it begins."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_missing_compiler_is_named() -> None:
    """Whoever runs `make check` without one learns it at once, and not from a build's log."""
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, str(ROOT / "hatch_build.py")],
        env={**os.environ, "CC": "no-such-compiler -pthread"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("compiling needs no-such-compiler, which is not there")
