"""The compose files as Compose renders them, and what a service of them says."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.docker.conftest import SECRETS
from tests.deploy.docker.stack import ROOT, rendered

BASE_FILE = "docker-compose.yml"
OVERRIDES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("deploy/compose/*.yml"))
OURS = ("specswitch", "calibrate")
EXAMPLE = (ROOT / ".env.example").read_text()
COMPOSE_TEXT = "\n".join((ROOT / name).read_text() for name in (BASE_FILE, *OVERRIDES))

Service = Mapping[str, object]


def services(*overrides: str, **environment: str) -> dict[str, dict[str, object]]:
    """The services that Compose would run with these variables."""
    return of(rendered(BASE_FILE, *overrides, environment={**SECRETS, **environment}))


def planned_by(file: Path, *overrides: str) -> dict[str, dict[str, object]]:
    """The services that Compose would run with this .env."""
    return of(rendered(BASE_FILE, *overrides, environment=SECRETS, variables=file))


def of(whole: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The services of a project."""
    found = whole["services"]
    return {name: dict(each) for name, each in found.items() if isinstance(each, dict)}


def words(service: Service) -> list[str]:
    """Its command."""
    command = service["command"]
    assert isinstance(command, list)
    return [str(word) for word in command]


def flags(service: Service) -> dict[str, str]:
    """The command's flags with their values."""
    return valued(words(service))


def valued(found: list[str]) -> dict[str, str]:
    """Flags with their values; without one, an empty text."""
    return {
        word: following if not following.startswith("--") else ""
        for word, following in zip(found, [*found[1:], "--"], strict=True)
        if word.startswith("--")
    }


def devices(service: Service) -> dict[str, object]:
    """Which GPUs it reserves."""
    reserved = json.loads(json.dumps(service))["deploy"]["resources"]["reservations"]["devices"]
    (device,) = reserved
    return {key: device[key] for key in ("count", "device_ids") if key in device}
