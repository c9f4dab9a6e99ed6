"""One engine, one build of the image and one stack for all tests of a session."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.docker import engine as engines
from tests.deploy.docker import images
from tests.deploy.docker.engine import Engine
from tests.deploy.docker.stack import DEMO, Stack, compose, compose_program, rendered

HERE = Path(__file__).parent
IMAGE = "specswitch:0.1.0"
SECRETS = {
    "MODEL": "m",
    "DRAFT_MODEL": "d",
    "SPECSWITCH_ADMIN_TOKEN": "t",
    "GRAFANA_ADMIN_PASSWORD": "p",
}
"""What must be set."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of these tests waits for all that is made for the others, too."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine; what the tests have made in somebody's is gone afterwards."""
    with engines.running() as found:
        yield found
        if found.borrowed and found.made:
            found.run("image", "rm", *found.made, check=False)


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """Our image, built as `docker compose up` builds it."""
    images.ensure(engine, images.base())
    words = ("--env-file", str(DEMO), "build", "specswitch")
    compose(*words, environment=engine.environment, timeout=900)
    engine.made.append(IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def stack(engine: Engine, image: str) -> Iterator[Stack]:
    """The demo, up; each test leaves it so that both engines run."""
    compose_program()
    services = rendered("docker-compose.yml", environment=SECRETS)["services"]
    for target in ("prometheus", "alertmanager", "grafana"):
        service = services[target]
        assert isinstance(service, dict)
        images.ensure(engine, str(service["image"]), target=target)
    found = Stack(engine)
    try:
        found.up()
        yield found
    finally:
        found.down()


def labels(engine: Engine, image: str) -> dict[str, str]:
    """The labels of an image."""
    found = json.loads(engine.ask("inspect", "--format", "{{json .Config.Labels}}", image))
    assert isinstance(found, dict)
    return found
