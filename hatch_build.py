"""Builds the wheel with its hot modules compiled, where `SPECSWITCH_COMPILE=1` asks for it.

mypyc turns typed Python into a C extension: the same source, about twice as fast (docs/adr).
Without it the wheel is pure Python and runs anywhere. Which modules are compiled is a list in
pyproject.toml; every module's source is in the wheel either way, for tracebacks and for readers.
Run as a script it says what compiling lacks on this machine, if anything.
"""

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "SPECSWITCH_COMPILE"


class CompiledWheel(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel."""

    PLUGIN_NAME = "custom"

    @property
    def _wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get(SWITCH) == "1"

    def dependencies(self) -> list[str]:
        """What compiling needs: mypyc, and what the compiled modules import, for its types."""
        if not self._wanted:
            return []
        needed: list[str] = self.config["requires"]
        return [*needed, *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the results packed; raises SystemExit where that cannot be."""
        del version
        if not self._wanted:
            return
        if lack := lacking():
            raise SystemExit(lack)
        root = Path(self.root)
        self._scratch = tempfile.TemporaryDirectory(prefix="specswitch-mypyc-")
        folder = Path(self._scratch.name)
        for built in _compiled(root, self.config, folder):
            build_data["force_include"][str(built)] = str(built.relative_to(folder / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is packed: what was compiled is in it."""
        del version, build_data, artifact_path
        if self._wanted:
            self._scratch.cleanup()


def lacking() -> str | None:
    """What is not there and compiling needs, as a sentence; None where all is."""
    words = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler = shlex.split(str(words))[0]
    if shutil.which(compiler) is None:
        return f"compiling needs {compiler}, which is not there; Debian: gcc and libc6-dev"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"compiling needs {header}, which is not there; Debian: python3-dev"
    return None


def _compiled(root: Path, config: dict[str, Any], folder: Path) -> list[Path]:
    """Compile the configured modules into `folder`; the extension modules."""
    # Here, since an ordinary build has neither.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    with contextlib.chdir(root):  # mypy names modules by where they are
        extensions = mypycify(
            list(config["compiled"]),
            opt_level="3",
            debug_level="0",
            target_dir=str(folder / "c"),
            group_name="specswitch",
        )
    command = build_ext(Distribution({"name": "specswitch", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    command.ensure_finalized()
    command.run()
    return sorted((folder / "lib").rglob("*.so"))


if __name__ == "__main__":
    sys.exit(lacking())
