"""Shared by all tests: the event loop of production, hypothesis profiles, what is compiled."""

import asyncio
import os
import tomllib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

SLOW_SECONDS = 300
"""After which a slow test hangs: several times what the slowest takes on a busy machine, since the
end of one test at its limit is the end of the run."""

settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that serves."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test-compiled` says."""
    parser.addoption("--compiled", action="store_true", help="the tests are of the compiled wheel")


def pytest_configure(config: pytest.Config) -> None:
    """A run that is said to be of the compiled wheel must not quietly be of the source."""
    if config.getoption("--compiled") and (paths := _interpreted()):
        raise pytest.UsageError(f"not compiled: {', '.join(paths)}; see make test-compiled")


@pytest.hookimpl(trylast=True)  # what a folder says of its tests comes first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give slow tests their time; on the compiled wheel, leave out what only the source has."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    if not config.getoption("--compiled"):
        return
    for item in items:
        if mark := item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip(reason=f"on the source only: {mark.args[0]}"))


def _interpreted() -> list[str]:
    """Of the modules that the compiled wheel has compiled, those that would run as source here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    paths: list[str] = wheel["hooks"]["custom"]["compiled"]
    return [path for path in paths if not _is_compiled(path)]


def _is_compiled(path: str) -> bool:
    spec = find_spec(path.removesuffix(".py").replace("/", "."))
    return spec is not None and spec.origin is not None and spec.origin.endswith(".so")
