"""Shared by all tests: the event loop of production, and hypothesis profiles."""

import asyncio
import os
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import settings

from proxy.data import relay

settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that serves."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a compiled wheel, leave out what reaches into what only the source has."""
    if relay.__file__.endswith(".py"):
        return
    for item in items:
        if item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip(reason="compiled: no such parts to reach into"))
