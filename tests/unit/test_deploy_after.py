"""How the compose file starts base: when spec has its memory, or is not there."""

import subprocess
import sys
from collections.abc import Iterable
from itertools import repeat

import pytest

from deploy.compose.after import there, why_go
from tests.harness.process import free_port
from tests.unit.test_deploy_health import SCRIPT, answering

AFTER = SCRIPT.parent / "compose" / "after.py"


def started(*command: str, after: str) -> subprocess.CompletedProcess[str]:
    """What comes of it."""
    return subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-I", str(AFTER), *command],
        env={"START_AFTER": after, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([True], "is ready"),
        ([False, None, False, True], "is ready"),
        ([None, None, None], "is not there"),
        ([None, None, False, None, None, True], "is ready"),
        (repeat(False), "is still not ready"),
    ],
)
def test_when_it_may_start(seen: Iterable[bool | None], why: str) -> None:
    """At the first good answer; or when nobody had the name three times in a row, or after long."""
    assert why_go(iter(seen), absent=3, longest=10) == why


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, False)])
def test_what_an_answer_says(status: int, ready: bool) -> None:  # noqa: FBT001 - a table of them
    """Only 200 is ready."""
    with answering(status) as (port, asked):
        assert there(f"http://127.0.0.1:{port}/ready") is ready
    assert asked == ["/ready"]


def test_who_refuses_is_loading() -> None:
    """SGLang listens only when its model is loaded."""
    assert there(f"http://127.0.0.1:{free_port()}/ready") is False


def test_who_has_no_name_is_absent() -> None:
    """A container that does not run is not in Docker's names."""
    assert there("http://spec.invalid:30001/ready") is None


def test_it_becomes_the_command() -> None:
    """With its exit code and its words, once the other is ready."""
    with answering(200) as (port, _):
        url = f"http://127.0.0.1:{port}/ready"
        done = started("sh", "-c", "echo base; exit 7", after=url)
    assert (done.returncode, done.stdout) == (7, "base\n")
    assert done.stderr == f"after.py: {url} is ready\n"


def test_nothing_to_wait_for() -> None:
    """Where both have GPUs of their own the override leaves the URL empty."""
    done = started("echo", "base", after="")
    assert (done.stdout, done.stderr) == ("base\n", "")


def test_nothing_to_start() -> None:
    """It says so."""
    done = started(after="")
    assert (done.returncode, done.stderr) == (1, "after.py: there is no command\n")
