"""Installs the peers, each into a virtual environment of its own, outside of the repository.

    python -m bench.reliability.peers [--peers FOLDER]

Versions are pinned: a table with numbers names what it measured.
"""

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

PINS: Final = {"sglang-router": "sglang-router==0.3.2", "litellm": "litellm[proxy]==1.108.7"}
"""Both from PyPI."""


def default_folder() -> Path:
    """Where the environments are unless told otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "specswitch-peers"


def program(folder: Path, name: str) -> Path:
    """The command of the peer `name`, whether it is there or not."""
    return folder / name / "bin" / name


def install(folder: Path, name: str) -> None:
    """Make its environment, unless it is there; raises CalledProcessError where pip fails."""
    if program(folder, name).exists():
        return
    venv.create(folder / name, with_pip=True)
    pip = (str(folder / name / "bin" / "python"), "-m", "pip", "install", "--quiet", PINS[name])
    subprocess.run(pip, check=True)  # noqa: S603 - our own words


def main() -> None:
    """Install all of them."""
    parser = argparse.ArgumentParser(prog="python -m bench.reliability.peers", description=__doc__)
    parser.add_argument("--peers", type=Path, default=default_folder(), help="where they go")
    folder: Path = parser.parse_args().peers
    for name in PINS:
        sys.stdout.write(f"{PINS[name]} into {folder / name}\n")
        install(folder, name)


if __name__ == "__main__":
    main()
