"""Shared by all tests: the event loop of production, and hypothesis profiles."""

import asyncio
import os
from collections.abc import Callable, Mapping

import uvloop
from hypothesis import settings

settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that serves."""
    return {"uvloop": uvloop.new_event_loop}
