"""Make the environment of the two real SGLang servers: `.engines/`, at the repository's root.

    .venv/bin/python -m tests.engines.setup            make it; at once if it is there
    .venv/bin/python -m tests.engines.setup --check    exit 0 if it is there, else 1

It holds a virtual environment with SGLang on a CPU build of PyTorch, and a tiny target model with
its EAGLE-3 draft and a LoRA adapter. It is apart from the repository's own environment because
specswitch never imports an engine, and because the pins of the two do not agree.

PyTorch: where pip has a CPU wheel at hand it takes that. Elsewhere PyPI's build for Linux brings
the CUDA libraries along (several GB), and runs on a CPU as well; `PIP_EXTRA_INDEX_URL` set to
PyTorch's index of CPU wheels avoids them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.apart import ROOT, Apart, SetupError

HERE = Path(__file__).resolve().parent
ENGINES = ROOT / ".engines"
PYTHON = ENGINES / "venv" / "bin" / "python"
TARGET = ENGINES / "models" / "target"
DRAFT = ENGINES / "models" / "draft"
ADAPTER = ENGINES / "models" / "adapter"

_REQUIREMENTS = HERE / "requirements.txt"
_MAKE_MODELS = HERE / "make_models.py"

# SGLang 0.5.23 has wheels for both; a CPU wheel of PyTorch may be at hand for the first only.
_VERSIONS = ("3.11", "3.12")


def _steps(it: Apart) -> None:
    """Make the environment and the models.

    Raises:
        SetupError: no fitting Python, or a step failed.
    """
    python = _find_python()
    it.say(f"1/4 virtual environment, with {python}")
    it.run("venv", [python, "-m", "venv", "--clear", str(ENGINES / "venv")])
    # With its dependencies, unlike the rest: a build with CUDA does not load without them.
    torch = _pinned("torch")
    it.say(f"2/4 {torch}")
    it.pip(PYTHON, "--constraint", str(_REQUIREMENTS), torch)
    it.say(f"3/4 {_pinned('sglang')} and what it imports")
    it.pip(PYTHON, "--no-deps", "--requirement", str(_REQUIREMENTS))
    it.say("4/4 the tiny models")
    shutil.rmtree(TARGET.parent, ignore_errors=True)
    make = [str(PYTHON), "-I", str(_MAKE_MODELS), str(TARGET), str(DRAFT), str(ADAPTER)]
    it.run("make_models.py", make, HF_HUB_OFFLINE="1")


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


def _pinned(package: str) -> str:
    """Return the line of *package* in the requirements."""
    lines = _REQUIREMENTS.read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


ENVIRONMENT = Apart("engines", (_REQUIREMENTS, _MAKE_MODELS), PYTHON, _steps)

if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main(sys.argv[1:]))
