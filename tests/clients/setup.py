"""Make the environment of the clients: `.clients/`, at the repository's root.

    .venv/bin/python tests/clients/setup.py            make it; at once if it is there
    .venv/bin/python tests/clients/setup.py --check    exit 0 if it is there, else 1

It holds a virtual environment with the Python clients and a Node.js, and the packages of the
Node.js client, all pinned by hashes. It is apart from the repository's own environment because
specswitch needs none of them, and because their pins need not agree with ours.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CLIENTS = ROOT / ".clients"
LOCK = ROOT / "requirements" / "clients.lock"
NODE_LOCK = HERE / "node" / "package-lock.json"
PYTHON = CLIENTS / "venv" / "bin" / "python"
NODE = PYTHON.with_name("node")
NODE_FOLDER = CLIENTS / "node"
"""Where a script of Node.js runs: its `node_modules` has the client."""
RESULTS = CLIENTS / "results.json"
"""What the last run of the tests has seen (results.py)."""

_MANIFEST = HERE / "node" / "package.json"
_STAMP = CLIENTS / "stamp"


class SetupError(Exception):
    """The environment cannot be made; its output says why."""


def is_set_up() -> bool:
    """Whether the environment is there, complete, and made from today's inputs."""
    return _STAMP.exists() and _STAMP.read_text() == _digest() and NODE.exists()


def set_up() -> None:
    """Make the environment unless it is there.

    The stamp goes first and comes back last, so whatever an interrupted run leaves is made anew.

    Raises:
        SetupError: a step failed.
    """
    CLIENTS.mkdir(exist_ok=True)
    with (CLIENTS / "lock").open("w") as alone:  # the lock goes with the process
        fcntl.flock(alone, fcntl.LOCK_EX)
        if is_set_up():
            _say(f"ready: {CLIENTS}")
            return
        started = time.monotonic()
        _STAMP.unlink(missing_ok=True)
        RESULTS.unlink(missing_ok=True)  # of other versions
        _make_python()
        _make_node()
        _STAMP.write_text(_digest())
        _say(f"ready after {time.monotonic() - started:.0f} s: {CLIENTS}")


def _digest() -> str:
    """The inputs in one word: whoever changes one gets a new environment."""
    inputs = (LOCK, _MANIFEST, NODE_LOCK)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in inputs)).hexdigest()


def _make_python() -> None:
    _say("1/2 the Python clients, and Node.js")
    folder = PYTHON.parent.parent
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(PYTHON), "-I", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    _run("pip", [*pip, "--upgrade", "pip"])  # before 24, extras and hashes do not mix
    _run("pip", [*pip, "--no-input", "--require-hashes", "-r", str(LOCK)])


def _make_node() -> None:
    _say("2/2 the Node.js client")
    shutil.rmtree(NODE_FOLDER, ignore_errors=True)
    NODE_FOLDER.mkdir()
    for file in (_MANIFEST, NODE_LOCK):
        shutil.copy(file, NODE_FOLDER)
    npm = str(PYTHON.with_name("npm"))
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run("npm", [npm, "ci", *flags, f"--cache={CLIENTS / 'npm'}", f"--prefix={NODE_FOLDER}"])


def _run(what: str, command: Sequence[str]) -> None:
    """Run *command*; what it prints is seen.

    Raises:
        SetupError: it failed.
    """
    path = f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # npm looks for node
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - no shell
    if done.returncode != 0:
        raise SetupError(f"{what} failed (exit {done.returncode}); its output is above")


def _say(line: str) -> None:
    sys.stdout.write(f"clients: {line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    if list(arguments) not in ([], ["--check"]):
        _say("usage: setup.py [--check]")
        return 2
    if arguments:
        ready = is_set_up()
        _say("set up" if ready else "not set up: run `make clients-setup`")
        return 0 if ready else 1
    try:
        set_up()
    except SetupError as error:
        _say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
