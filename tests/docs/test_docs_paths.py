"""docs/admin.md and docs/endpoints.md name what the code has, and nothing else."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from time import time_ns

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Route

from proxy.app import App
from proxy.cli import engines
from proxy.config import Config
from proxy.control import state
from proxy.control.engine import Answer
from proxy.control.guard import Guard
from proxy.control.pages import PAGES, Heard
from proxy.control.state import CalibrationState, PerUpstream, State, UpstreamState
from proxy.core.endpoints import ENDPOINTS, Kind, find
from proxy.core.errands import Errand, Reply
from proxy.core.words import UpstreamName
from proxy.errors import EngineError, EngineSilentError, EngineUnaskedError
from proxy.sim.desk import HAS

DOCS = Path(__file__).parents[2] / "docs"
ADMIN = (DOCS / "admin.md").read_text(encoding="utf-8")
PATHS = (DOCS / "endpoints.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What stands below a heading of the second level."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in `text` that begin with a name."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def named(cell: str) -> tuple[str, ...]:
    """The names in a cell, in alphabetical order."""
    return tuple(sorted(re.findall(r"`([^`]+)`", cell)))


async def admin_app() -> FastAPI:
    """The admin application as it is served."""
    clock = asyncio.get_running_loop().time
    made = App(Config(), clock=clock, wall=time_ns, log=None, load=None)
    guard = made.admin()._server.config.app
    assert isinstance(guard, Guard)
    assert isinstance(guard._app, FastAPI)
    return guard._app


async def test_every_admin_route_is_documented_and_no_other() -> None:
    """With its methods; several routes of one path are one row."""
    served: dict[str, set[str]] = {}
    for route in (await admin_app()).routes:
        assert isinstance(route, Route | APIRoute)
        served.setdefault(route.path, set()).update(route.methods or ())
    documented = {
        path.strip("`"): set(named(methods))
        for methods, path, _, _ in rows(section(ADMIN, "Routes"))
    }
    assert documented == served


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The fields of a model with those of the models within it, dotted."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if name == "upstreams":
            yield from fields(UpstreamState, f"{name}.*.")
        elif name == "calibration":
            yield name
            yield from fields(CalibrationState, f"{name}.")
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_of_the_state_is_explained_and_no_other() -> None:
    """In their order."""
    assert [name.strip("`") for name, _ in rows(section(ADMIN, "The state"))] == [*fields(State)]
    assert PerUpstream.model_fields.keys() == {"spec", "base"}


def test_the_example_is_a_state() -> None:
    """It has every field and no other, with values that they can have."""
    (example,) = re.findall(r"```json\n(.*?)```", section(ADMIN, "The state"), re.DOTALL)
    made = State.model_validate_json(example)
    assert made.model_dump(mode="json").keys() == json.loads(example).keys()
    assert set(made.upstreams) == {"spec", "base"}
    for name, upstream in json.loads(example)["upstreams"].items():
        assert upstream.keys() == state.UpstreamState.model_fields.keys(), name


@pytest.mark.parametrize("kind", Kind)
def test_every_path_is_documented_under_its_kind_and_no_other(kind: Kind) -> None:
    """With its methods, in the order of the code."""
    documented = [
        (path.strip("`"), named(methods))
        for path, methods, _ in rows(section(PATHS, kind.capitalize()))
    ]
    served = [(e.template, tuple(sorted(e.methods))) for e in ENDPOINTS if e.kind is kind]
    assert documented == served


def test_what_is_said_not_to_be_served_is_not() -> None:
    """And it is SGLang's: tests/engines/test_routes.py holds the page to a server's own list."""
    missing = re.findall(r"`(/[^`]*)`", section(PATHS, "Not served"))
    assert len(missing) > 20
    assert [path for path in missing if find(path.encode()) is not None] == []


def test_keys_are_needed_where_the_page_says() -> None:
    """Everywhere but on the paths that specswitch answers."""
    assert {e.kind for e in ENDPOINTS if not e.needs_key} == {Kind.OWN}
    assert {e.kind for e in ENDPOINTS if e.needs_key} == set(Kind) - {Kind.OWN}


def plain(text: str) -> str:
    """Without marks of code, and with one space between words."""
    return " ".join(text.replace("`", "").split())


def test_what_a_simulated_engine_has_is_said_in_one_way() -> None:
    """By its 404, by the command that starts it, and by both pages that tell of it."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert engines.help is not None
    for text in (PATHS, readme, engines.help):
        assert HAS in plain(text)


def test_every_word_of_a_missing_server_is_explained() -> None:
    """And none that is not said."""
    outcomes: list[Answer | EngineError] = [
        Answer(200, "application/json", b"{}"),
        Answer(404, "application/json", b"{}"),
        Answer(200, "application/json", b"[]"),
        EngineSilentError("a"),
        EngineError("a"),
        EngineUnaskedError("a"),
    ]
    page, errand = PAGES["/server_info"], Errand(template="/server_info", method="GET", query=b"")
    said = set()
    for outcome in outcomes:
        heard: Heard = {UpstreamName.SPEC: outcome, UpstreamName.BASE: outcomes[0]}
        made = page.result(errand, heard, 0)
        assert isinstance(made, Reply)
        said.add(json.loads(made.body)["specswitch"]["spec"])
    words = re.findall(r"^- `([^`]+)`", section(PATHS, "Pair"), re.MULTILINE)
    assert set(words) == said
