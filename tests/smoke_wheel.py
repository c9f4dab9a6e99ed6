"""Build the wheel and try it in an empty environment: what is shipped is what is tested.

Run by `make wheel`. Dependencies come from the lock, so that a smoke test is no lottery.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

INSTALLED = "import proxy, sys; sys.exit(not proxy.__file__.startswith(sys.prefix))"
"""That what runs is the wheel, and no checkout that a variable of the environment points to."""


def main() -> None:
    """Build, install, run."""
    with tempfile.TemporaryDirectory() as scratch:
        dist, home = Path(scratch, "dist"), Path(scratch, "env")
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist))
        (wheel,) = dist.glob("*.whl")
        venv.create(home, with_pip=True)
        python, command = home / "bin" / "python", home / "bin" / "specswitch"
        pip = (str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        run(*pip, "--upgrade", "pip")
        run(*pip, "--constraint", str(unhashed(Path(scratch))), str(wheel))
        run(str(python), "-c", INSTALLED, cwd=scratch)
        run(str(command), "--version", cwd=scratch)
        run(str(command), "serve", "--check", cwd=scratch)
        run(str(python), "-m", "proxy", "demo", "--once", "--port=0", "--admin-port=0", cwd=scratch)
    print(f"the wheel {wheel.name} works")  # noqa: T201 - a script tells


def unhashed(scratch: Path) -> Path:
    """The lock as constraints, which may not carry hashes."""
    lock = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    pins = [line.removesuffix("\\").strip() for line in lock if line and line[0].isalnum()]
    path = scratch / "constraints.txt"
    path.write_text("\n".join(pins))
    return path


def run(*command: str, cwd: str | Path = ROOT) -> None:
    """Run a command, and stop where it fails."""
    print("$", *command, flush=True)  # noqa: T201 - a script tells
    subprocess.run(command, cwd=cwd, check=True, timeout=300)  # noqa: S603 - our own words


if __name__ == "__main__":
    main()
