"""A specswitch that a test starts as a process is the one that the tests run: source or compiled.

`make test-compiled` tests the compiled wheel beside a source of the same name; what a test starts
must not be the other one without a word.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import proxy.data.relay
from tests.harness.process import PROGRAM

SCRIPT = str(Path(sys.executable).with_name("specswitch"))


@pytest.mark.parametrize("program", [PROGRAM[:-1], (SCRIPT,)], ids=["module", "script"])
def test_what_a_test_starts_is_what_it_runs(program: Sequence[str]) -> None:
    """Compiled, or not."""
    told = subprocess.run(  # noqa: S603 - our own program
        [*program, "--version"], capture_output=True, check=True, text=True, timeout=30
    )
    here = "compiled" if proxy.data.relay.__file__.endswith(".so") else "interpreted"

    assert told.stdout.rstrip().endswith(f"({here})")
