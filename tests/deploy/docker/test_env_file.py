"""`.env`: what the example has, what is asked for, and what plan and a hand write into it."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import main
from tests.deploy.docker.composed import (
    BASE_FILE,
    COMPOSE_TEXT,
    EXAMPLE,
    devices,
    flags,
    planned_by,
    services,
    valued,
)
from tests.deploy.docker.conftest import SECRETS


def variables(text: str) -> dict[str, str | None]:
    """The variables that compose files read, with their defaults; None for one without."""
    found: dict[str, str | None] = {}
    for name, kind, value in re.findall(r"\$\{(\w+)(:-|:\?|:\+)?((?:[^{}]|\$\{\w+\})*)\}", text):
        found.setdefault(name, value if kind == ":-" else None)
    return found


def test_every_variable_is_explained() -> None:
    """.env.example has each variable of the compose files but the demo's own, and no other."""
    told = set(re.findall(r"^(?:# )?([A-Z_]+)=", EXAMPLE, re.MULTILINE))
    read = {name for name in variables(COMPOSE_TEXT) if not name.startswith("DEMO_")}
    assert told == read | {"COMPOSE_FILE"}


def test_defaults_are_those_of_the_compose_file() -> None:
    """What is commented out stands at its default."""
    read = variables(COMPOSE_TEXT)
    for name, value in re.findall(r"^# ([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE):
        if name not in {"COMPOSE_FILE", "SERVED_MODEL_NAME"}:
            assert (read[name] or "") == value, name


def test_what_is_needed_is_said() -> None:
    """What Compose insists on is set, or marked as needed."""
    needed = set(re.findall(r"\$\{(\w+):\?", COMPOSE_TEXT))
    assert needed == set(SECRETS)
    for name in needed:
        above = EXAMPLE.partition(f"\n{name}=")[0].rpartition("\n\n")[2]
        assert above.startswith("# Needed: "), name


def test_the_example_can_be_used() -> None:
    """With the two secrets filled in, it is a .env."""
    filled = re.sub(
        r"^(SPECSWITCH_ADMIN_TOKEN|GRAFANA_ADMIN_PASSWORD)=$", r"\1=x", EXAMPLE, flags=re.MULTILINE
    )
    given = dict(re.findall(r"^([A-Z_]+)=(.*)$", filled, re.MULTILINE))
    found = services(**given)
    assert flags(found["spec"])["--model-path"] == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("separate", [(), ("--gpus=2", "--topology=separate")])
def test_what_plan_writes_is_what_the_engines_get(tmp_path: Path, separate: Sequence[str]) -> None:
    """As documented: the example is copied, then filled in; and both start as the plan says."""
    file = tmp_path / ".env"
    file.write_text(EXAMPLE)
    asked = ["plan", "--gpu-memory=80GiB", "--parameters=8B", f"--env={file}", "--force"]
    done = CliRunner().invoke(main, [*asked, *separate])
    assert done.exit_code == 0, done.output
    written = dict(re.findall(r"^([A-Z_]+)=(.*)", file.read_text(), re.MULTILINE))
    overrides = written.pop("COMPOSE_FILE", BASE_FILE).split(":")[1:]
    assert written.keys() <= variables(COMPOSE_TEXT).keys()
    made = planned_by(file, *overrides)
    if separate:
        assert [devices(made[name])["device_ids"] for name in ("spec", "base")] == [
            ["0,1"],
            ["2,3"],
        ]
    for name, text in zip(("spec", "base"), done.output.split("launch_server")[1:], strict=True):
        planned = valued(text.partition("\n\n")[0].replace("\\\n", " ").split())
        # --base-gpu-id: the container has no other GPUs.
        named = ("--model-path", "--speculative-draft-model-path")
        for flag in ("--host", "--base-gpu-id", *named):
            planned.pop(flag, None)
        found = flags(made[name])
        assert {flag: found[flag] for flag in planned} == planned
