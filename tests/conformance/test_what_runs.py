"""A specswitch that a test starts as a process is the one that the tests run: source or compiled.

`make test-compiled` tests the compiled wheel beside a source of the same name; what a test starts
must not be the other one without a word.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import proxy
import proxy.app
from tests.harness.process import PROGRAM, Specswitch, free_port

SCRIPT = str(Path(sys.executable).with_name("specswitch"))
HOME = str(Path(proxy.__file__).parent)


def compiled_here() -> set[str]:
    """The same of this process."""
    files = {
        module.__file__ or "" for module in sys.modules.values() if hasattr(module, "__file__")
    }
    return {
        file.removeprefix(HOME) for file in files if file.startswith(HOME) and file.endswith(".so")
    }


def compiled(pid: int) -> set[str]:
    """The compiled modules that a process has loaded, as paths in the package; from /proc."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in maps}
    return {path.removeprefix(HOME) for path in paths if "/proxy/" in path}


@pytest.mark.parametrize("program", [PROGRAM, (SCRIPT, "serve")], ids=["module", "script"])
def test_what_a_test_starts_is_what_it_runs(program: Sequence[str], tmp_path: Path) -> None:
    """Each of the same modules is compiled, or none."""
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    it = Specswitch(tmp_path / "log", spec_url=urls[0], base_url=urls[1])
    it.program = program
    it.wait = False
    with it:
        it.until_up()
        assert compiled(it.pid) == compiled_here()
