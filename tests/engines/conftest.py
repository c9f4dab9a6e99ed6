"""The pair of real engines, started once for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import setup
from tests.engines.pair import EnginePair

HERE = Path(__file__).parent

# A start takes half a minute on two idle cores, and each test may need one before it begins.
TEST_SECONDS = 600


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, all of which need the pair."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))  # a test's own comes first


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    """Both servers; a test may kill, stop and restart them as it likes."""
    if not setup.ENVIRONMENT.is_set_up():
        pytest.fail("the real engines are not set up: run `make engines-setup`", pytrace=False)
    with EnginePair(tmp_path_factory.mktemp("engines")) as pair:
        yield pair


@pytest.fixture(autouse=True)
def _as_usual(engines: EnginePair) -> None:
    """Begin each test with both servers up, idle and with their usual options."""
    engines.restore()
