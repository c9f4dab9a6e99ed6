"""The image, built from the Dockerfile as it is: what is in it, how it starts, how it stops."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest

from proxy import __version__
from tests.deploy.docker import images
from tests.deploy.docker.conftest import labels
from tests.deploy.docker.engine import Engine
from tests.deploy.docker.stack import POLL_SECONDS

CONFINED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
PATIENCE_SECONDS = 60.0
MOST_MEGABYTES = 150
"""What we put on top of the base; 8 MB of it are ours (docs/deployment.md)."""


@contextmanager
def started(engine: Engine, *words: str) -> Iterator[str]:
    """`docker run --detach words`: the container's id; removed afterwards."""
    container = engine.ask("run", "--detach", *words)
    try:
        yield container
    finally:
        engine.run("rm", "--force", "--volumes", container)


def field(engine: Engine, thing: str, template: str) -> str:
    """A field of an image or a container, as a Go template."""
    return engine.ask("inspect", "--format", template, thing)


def until_answer(engine: Engine, container: str, path: str) -> None:
    """Wait until the endpoint answers `path` with 200."""
    address = field(engine, container, "{{.NetworkSettings.IPAddress}}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if httpx2.get(f"http://{address}:8000{path}", trust_env=False).is_success:
                return
        except httpx2.HTTPError:
            pass
        assert time.monotonic() < deadline, engine.run("logs", container).stderr
        time.sleep(POLL_SECONDS / 10)  # noqa: TID251 - a poll with a deadline, and no loop to hold up


def until_says(engine: Engine, container: str, words: str) -> None:
    """Wait until the container has written `words`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        logs = engine.run("logs", container)
        if words in logs.stdout + logs.stderr:
            return
        assert time.monotonic() < deadline, logs.stdout + logs.stderr
        time.sleep(POLL_SECONDS / 10)  # noqa: TID251 - a poll with a deadline, and no loop to hold up


def stopped(engine: Engine, container: str) -> tuple[int, float]:
    """The exit code after SIGTERM, and the seconds that it took; it has a minute."""
    begun = time.monotonic()
    engine.run("stop", "--time", "60", container)
    return int(field(engine, container, "{{.State.ExitCode}}")), time.monotonic() - begun


# What it is -----------------------------------------------------------------------------------


def test_what_it_says_of_itself(engine: Engine, image: str) -> None:
    """Labels, a user by number, the signal it wants, its health check, what it runs."""
    found = labels(engine, image)
    prefix = "org.opencontainers.image"
    assert found[f"{prefix}.title"] == "specswitch"
    assert found[f"{prefix}.version"] == __version__
    assert found[f"{prefix}.licenses"] == "Apache-2.0"
    config = json.loads(field(engine, image, "{{json .Config}}"))
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["specswitch"]
    assert config["Cmd"] == ["serve"]
    assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp"}
    assert config["Healthcheck"]["Test"][-1].endswith("/health.py")


def test_it_is_the_compiled_one(engine: Engine, image: str) -> None:
    """What every request passes through is compiled."""
    said = engine.ask("run", "--rm", image, "--version")
    assert said == f"specswitch {__version__} (compiled)"


def test_nothing_to_build_with_is_left(engine: Engine, image: str) -> None:
    """No compiler, no pip, none of the build's own packages.

    But for what a distribution's packages own, where the base had to be made of its Python: the
    real one has its own in /usr/local.
    """
    modules = ("pip", "setuptools", "mypy", "hatchling", "ensurepip")
    code = (
        "from importlib.util import find_spec; from shutil import which; import sys; "
        f"specs = [*filter(None, map(find_spec, {modules}))]; "
        "ours = [s.name for s in specs if not str(s.origin).startswith('/usr/lib/python3')]; "
        "pips = [p for p in map(which, ('pip', 'pip3')) if p and not p.startswith('/usr/bin')]; "
        "print(ours, pips, which('gcc'), which('cc'), sys._base_executable)"
    )
    python = "python"
    for _ in ("in its environment", "in the Python below"):
        said = engine.ask("run", "--rm", "--entrypoint", python, image, "-c", code)
        nothing, python = said.rsplit(" ", 1)
        assert nothing == "[] [] None None"


def test_its_size(
    engine: Engine, image: str, record_property: Callable[[str, object], None]
) -> None:
    """What is ours on top of the base stays small."""
    size, base = (int(field(engine, each, "{{.Size}}")) / 1e6 for each in (image, images.base()))
    record_property("image_megabytes", round(size))
    print(f"{size:.0f} MB, of which the base {base:.0f} MB")  # noqa: T201 - for docs/deployment.md
    assert size - base < MOST_MEGABYTES


# How it runs ----------------------------------------------------------------------------------


def test_it_runs_confined(
    engine: Engine, image: str, record_property: Callable[[str, object], None]
) -> None:
    """As nobody in particular, on a root that cannot be written, without any capability."""
    begun = time.monotonic()
    with started(engine, *CONFINED, image) as container:
        until_answer(engine, container, "/livez")
        seconds = time.monotonic() - begun
        record_property("start_seconds", round(seconds, 2))
        print(f"/livez after {seconds:.1f} s")  # noqa: T201 - for docs/deployment.md
        until_says(engine, container, "there is no calibration")
        code = "import os; print(os.getuid(), os.getgid()); open('/etc/specswitch/x', 'w')"
        done = engine.run("exec", container, "python", "-c", code, check=False)
        assert done.stdout.split() == ["10001", "10001"]
        assert "Read-only file system" in done.stderr
        status = "{{.State.Health.Status}}"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while field(engine, container, status) != "healthy":
            assert time.monotonic() < deadline, field(engine, container, "{{json .State.Health}}")
            time.sleep(POLL_SECONDS)  # noqa: TID251 - a poll with a deadline, and no loop to hold up
        assert stopped(engine, container)[0] == 0


def test_the_health_check_can_fail(engine: Engine, image: str) -> None:
    """Where nobody answers it says so, and exits with 1."""
    words = ("--rm", "--entrypoint", "python", image, "-I", "/opt/specswitch/health.py")
    done = engine.run("run", *words, check=False)
    assert done.returncode == 1
    assert re.search("/livez: .*refused", done.stderr)


def test_a_volume_for_the_calibration_can_be_written(engine: Engine, image: str) -> None:
    """The first time that a volume is mounted there it belongs to whom we run as."""
    words = ("--rm", *CONFINED, "--volume", "/var/lib/specswitch", "--entrypoint", "python", image)
    engine.run("run", *words, "-c", "open('/var/lib/specswitch/calibration.json', 'w').close()")


def test_a_configuration_that_is_mounted_is_read(engine: Engine, image: str) -> None:
    """By its folder, without being named."""
    folder = images.ROOT / "deploy" / "specswitch"
    words = ("--rm", "--volume", f"{folder}:/etc/specswitch:ro", image, "serve", "--check")
    assert engine.ask("run", *words) == "the configuration is good"
    done = engine.run("run", "--rm", "--env", "SPECSWITCH_LISTEN_PROT=1", image, check=False)
    assert done.returncode == 2


# How it stops: it is the first process of its container, whose unhandled signals are ignored ---


def test_sigterm_while_it_serves(engine: Engine, image: str) -> None:
    """It ends at once where nothing runs."""
    with started(engine, image) as container:
        until_answer(engine, container, "/livez")
        code, seconds = stopped(engine, container)
    assert code == 0
    assert seconds < 30


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("engines", "--only=spec", "--spec-port=0"), "Ctrl-C stops it", 0),
        (("demo",), "specswitch serves at", 0),
        (("simulate", "--seeds=1000", "--processes=1"), "simulating: ", 143),
    ],
)
def test_sigterm_while_it_does_something_else(
    engine: Engine, image: str, words: tuple[str, ...], said: str, code: int
) -> None:
    """Every command heeds it, and none waits to be killed."""
    with started(engine, image, *words) as container:
        until_says(engine, container, said)
        found, seconds = stopped(engine, container)
    assert (found, seconds < 30) == (code, True)
