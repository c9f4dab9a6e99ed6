"""Make the environment of the two real SGLang servers: `.engines/`, at the repository's root.

    .venv/bin/python tests/engines/setup.py            make it; at once if it is there
    .venv/bin/python tests/engines/setup.py --check    exit 0 if it is there, else 1

It holds a virtual environment with SGLang on a CPU build of PyTorch, and a tiny target model with
its EAGLE-3 draft. It is apart from the repository's own environment because specswitch never
imports an engine, and because the pins of the two do not agree.

PyTorch: where pip has a CPU wheel at hand it takes that. Elsewhere PyPI's build for Linux brings
the CUDA libraries along (several GB), and runs on a CPU as well; `PIP_EXTRA_INDEX_URL` set to
PyTorch's index of CPU wheels avoids them.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINES = HERE.parent.parent / ".engines"
PYTHON = ENGINES / "venv" / "bin" / "python"
TARGET = ENGINES / "models" / "target"
DRAFT = ENGINES / "models" / "draft"

_REQUIREMENTS = HERE / "requirements.txt"
_MAKE_MODELS = HERE / "make_models.py"
_STAMP = ENGINES / "stamp"

# SGLang 0.5.23 has wheels for both; a CPU wheel of PyTorch may be at hand for the first only.
_VERSIONS = ("3.11", "3.12")


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def is_set_up() -> bool:
    """Whether the environment is there, complete, and made from today's inputs."""
    try:
        stamp = _STAMP.read_text()
    except FileNotFoundError:
        return False
    return stamp == _digest() and PYTHON.exists()


def set_up() -> None:
    """Make the environment unless it is there.

    The stamp goes first and comes back last, so whatever an interrupted run leaves is made anew.

    Raises:
        SetupError: no fitting Python, or a step failed.
    """
    ENGINES.mkdir(exist_ok=True)
    with _alone():
        if is_set_up():
            _say(f"ready: {ENGINES}")
            return
        started = time.monotonic()
        _STAMP.unlink(missing_ok=True)
        _make_venv(_find_python())
        _make_models()
        _write_stamp()
        _say(f"ready after {time.monotonic() - started:.0f} s: {ENGINES}")


def _digest() -> str:
    """The inputs in one word: whoever changes one gets a new environment."""
    inputs = (_REQUIREMENTS, _MAKE_MODELS)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in inputs)).hexdigest()


def _write_stamp() -> None:
    partial = _STAMP.with_suffix(".partial")
    partial.write_text(_digest())
    partial.replace(_STAMP)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other run makes the environment; the lock goes with the process."""
    with (ENGINES / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another set-up is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _find_python() -> str:
    """Return the interpreter to build on: this one if it fits, else the first on PATH that does.

    Raises:
        SetupError: there is none.
    """
    on_path = [shutil.which(f"python{version}") for version in _VERSIONS]
    candidates = [sys.executable, *filter(None, on_path)]
    versions = {candidate: _version(candidate) for candidate in candidates}
    for version in _VERSIONS:
        for candidate in candidates:
            if versions[candidate] == version:
                return candidate
    raise SetupError(
        f"SGLang 0.5.23 needs Python {' or '.join(_VERSIONS)}; this is {versions[sys.executable]}, "
        "and neither is on PATH"
    )


def _version(python: str) -> str | None:
    """Return `major.minor`, or None where *python* does not run (a version manager's shim)."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(  # noqa: S603 - an interpreter found above, no shell
        [python, "-c", ask], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _make_venv(python: str) -> None:
    _say(f"1/4 virtual environment, with {python}")
    _run("venv", [python, "-m", "venv", "--clear", str(ENGINES / "venv")])
    # With its dependencies, unlike the rest: a build with CUDA does not load without them.
    torch = _pinned("torch")
    _say(f"2/4 {torch}")
    _pip("--constraint", str(_REQUIREMENTS), torch)
    _say(f"3/4 {_pinned('sglang')} and what it imports")
    _pip("--no-deps", "--requirement", str(_REQUIREMENTS))


def _pinned(package: str) -> str:
    """Return the line of *package* in the requirements."""
    lines = _REQUIREMENTS.read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def _make_models() -> None:
    _say("4/4 the tiny models")
    shutil.rmtree(TARGET.parent, ignore_errors=True)
    _run("make_models.py", [str(PYTHON), "-I", str(_MAKE_MODELS), str(TARGET), str(DRAFT)])


def _pip(*arguments: str) -> None:
    flags = ["-qq", "--disable-pip-version-check", "--no-input"]  # errors only
    _run("pip", [str(PYTHON), "-I", "-m", "pip", "install", *flags, *arguments])


def _run(what: str, command: Sequence[str]) -> None:
    """Run *command*; what it prints is seen.

    Raises:
        SetupError: it failed.
    """
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=offline, check=False)  # noqa: S603 - our own, no shell
    if done.returncode != 0:
        raise SetupError(f"{what} failed (exit {done.returncode}); its output is above")


def _say(line: str) -> None:
    sys.stdout.write(f"engines: {line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    if list(arguments) not in ([], ["--check"]):
        _say("usage: setup.py [--check]")
        return 2
    if arguments:
        ready = is_set_up()
        _say("set up" if ready else "not set up: run `make engines-setup`")
        return 0 if ready else 1
    try:
        set_up()
    except SetupError as error:
        _say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
