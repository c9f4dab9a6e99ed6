"""Make the environment of the clients: `.clients/`, at the repository's root.

    .venv/bin/python -m tests.clients.setup            make it; at once if it is there
    .venv/bin/python -m tests.clients.setup --check    exit 0 if it is there, else 1

It holds a virtual environment with the Python clients and a Node.js, and the packages of the
Node.js client, all pinned by hashes. It is apart from the repository's own environment because
specswitch needs none of them, and because their pins need not agree with ours.
"""

import os
import shutil
import sys
import venv
from pathlib import Path

from tests.harness.apart import ROOT, Apart

HERE = Path(__file__).resolve().parent
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


def _steps(it: Apart) -> None:
    RESULTS.unlink(missing_ok=True)  # of other versions
    it.say("1/2 the Python clients, and Node.js")
    venv.create(PYTHON.parent.parent, clear=True, with_pip=True)
    it.pip(PYTHON, "--upgrade", "pip")  # before 24, extras and hashes do not mix
    it.pip(PYTHON, "--require-hashes", "--requirement", str(LOCK))
    it.say("2/2 the Node.js client")
    shutil.rmtree(NODE_FOLDER, ignore_errors=True)
    NODE_FOLDER.mkdir()
    for file in (_MANIFEST, NODE_LOCK):
        shutil.copy(file, NODE_FOLDER)
    npm = str(PYTHON.with_name("npm"))
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    command = [npm, "ci", *flags, f"--cache={CLIENTS / 'npm'}", f"--prefix={NODE_FOLDER}"]
    path = f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # npm looks for node
    it.run("npm", command, PATH=path)


ENVIRONMENT = Apart("clients", (LOCK, _MANIFEST, NODE_LOCK), NODE, _steps)

if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main(sys.argv[1:]))
