"""The images that the stack is tested with, where the real ones cannot be pulled.

Without a registry they are made on the spot, under the names that Dockerfile and compose file pin:
the base of our own image from this machine's distribution and Python, Prometheus and Alertmanager
from its packages, and for Grafana, which no package has, a program that reads what is mounted as
Grafana would and fails where that is wrong. So the tests are of our files, not of those images.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.deploy.conftest import program, unable
from tests.deploy.docker.engine import Engine

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TEMPLATES = Path("/usr/share/prometheus/alertmanager")
"""Beside Debian's Alertmanager, which does not start without; the real one has them inside."""
STANDINS = Path(__file__).parent / "standins"

_DEBIAN = ("ca-certificates", "netbase", "tzdata")
_LIBRARIES = (
    "libbz2-1.0",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libncursesw6",
    "libreadline8",
    "libsqlite3-0",
    "libssl3",
    "libuuid1",
    "zlib1g",
)
"""What a Python that was built on this distribution is linked to."""
_PACKAGED = ("python-is-python3", "python3-dev", "python3-pip", "python3-venv")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OMITTED = ("site-packages", "test", "__pycache__", "*.a", "idlelib", "tkinter", "turtledemo")


def base() -> str:
    """The image that ours begins with, as the Dockerfile pins it."""
    found = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def ensure(engine: Engine, image: str, *, target: str | None = None) -> None:
    """See that `engine` has `image`: as it is, pulled, or made here; `target` is its stand-in."""
    if engine.has(image) and (engine.borrowed or target is None):
        return  # a stand-in of an earlier run may be of other files; what is the same costs nothing
    if engine.borrowed and engine.run("pull", image, check=False, timeout=900).returncode == 0:
        return
    if target is None:
        _make_base(engine, image)
    else:
        _make(engine, image, target)
    engine.made.append(image)


def _make_base(engine: Engine, image: str) -> None:
    program("debootstrap", "debootstrap")
    if os.geteuid() != 0:
        unable(f"{image} cannot be pulled, and only root can make one like it")
    own = sys.base_prefix != "/usr"
    with tempfile.TemporaryDirectory(prefix="specswitch-base-") as folder:
        root = Path(folder)
        _debian(root, (*_DEBIAN, *(_LIBRARIES if own else _PACKAGED)))
        if own:
            _python(Path(sys.base_prefix), root)
        _trust(root)
        changes = ('CMD ["python3"]', f"ENV PATH={_PATH}", "ENV LANG=C.UTF-8")
        words = [word for change in changes for word in ("--change", change)]
        with subprocess.Popen(  # noqa: S603 - our own words
            ["tar", "--directory", folder, "--numeric-owner", "--create", "."],  # noqa: S607 - Debian's
            stdout=subprocess.PIPE,
        ) as tar:
            subprocess.run(  # noqa: S603 - our own words
                ["docker", "import", *words, "-", image],  # noqa: S607 - as the user finds it
                env={**os.environ, **engine.environment},
                stdin=tar.stdout,
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=120,
            )


def _debian(root: Path, packages: Iterable[str]) -> None:
    """This machine's distribution, from where this machine has it."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    sites = _run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)").splitlines()
    site = next(line.split()[0] for line in sites if line.split()[-1] == release)
    words = ("--variant=minbase", f"--include={','.join(packages)}", release, str(root), site)
    _run("debootstrap", *words, timeout=300)


def _python(prefix: Path, root: Path) -> None:
    """The Python that runs this, where the official image has its own."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    place = root / "usr" / "local"
    for each in ("python", "python3", name):
        shutil.copy2(prefix / "bin" / each, place / "bin" / each, follow_symlinks=False)
    for library in (prefix / "lib").glob("libpython*.so*"):
        shutil.copy2(library, place / "lib" / library.name, follow_symlinks=False)
    for folder in (Path("lib", name), Path("include", name)):
        ignored = shutil.ignore_patterns(*_OMITTED)
        shutil.copytree(prefix / folder, place / folder, symlinks=True, ignore=ignored)
    _run("chroot", str(root), "ldconfig")
    _run("chroot", str(root), "/usr/local/bin/python3", "-m", "ensurepip", "--default-pip")


def _trust(root: Path) -> None:
    """The certificates that this machine trusts: a network's own may stand before the index."""
    if CERTIFICATES.exists():
        shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        (root / "etc" / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")


def _make(engine: Engine, image: str, target: str) -> None:
    """A stand-in of tests/deploy/docker/standins."""
    ensure(engine, base())
    with tempfile.TemporaryDirectory(prefix="specswitch-standin-") as folder:
        context = Path(folder)
        shutil.copytree(STANDINS, context, dirs_exist_ok=True)
        # One context for all: what a target does not take, it need not find either.
        for name, package in (
            ("prometheus", "prometheus"),
            ("promtool", "prometheus"),
            ("prometheus-alertmanager", "prometheus-alertmanager"),
        ):
            shutil.copy2(program(name, package), context / name)
        shutil.copytree(TEMPLATES, context / "templates")
        shutil.copytree(Path(yaml.__file__).parent, context / "yaml")
        words = ("--build-arg", f"BASE={base()}", "--target", target, "--tag", image, folder)
        engine.run("build", *words, timeout=300)


def _run(*words: str, timeout: float = 60.0) -> str:
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{_PATH}"}
    done = subprocess.run(  # noqa: S603 - our own words
        words, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{words[0]}: {done.stdout}{done.stderr}"
    return done.stdout
