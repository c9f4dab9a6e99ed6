"""The pairs, and specswitch in front of each, started once; and what the run says of each row."""

import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import pytest

from tests.clients import setup as clients
from tests.clients.results import Results
from tests.clients.rows import PairKind
from tests.clients.stand import Pair, Stand
from tests.engines import setup as engines
from tests.engines.pair import BASE, MODEL, SPEC, EnginePair, Options

HERE = Path(__file__).parent
TEST_SECONDS = 300
"""The first test in front of the real pair waits for its start."""
TOOLS = (
    "--tool-call-parser=pythonic",
    "--constrained-json-disable-any-whitespace",
    "--enable-response-store",
)
"""What tools, structured output and stored responses need of a server. A model without sense must
be held to a schema from its first token on, and would else put spaces between two without end."""

_RESULTS = pytest.StashKey[Results]()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, all of which need the clients."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how a row fares, whatever phase of its test says so."""
    report = yield
    mark = item.get_closest_marker("row")
    if mark is not None and (report.when == "call" or not report.passed):
        results = item.session.stash.setdefault(_RESULTS, Results())
        params = item.callspec.params
        (row,) = [each for each in mark.args if each.client == params["client"]]
        results.note(row, PairKind(str(params["stand"])), report.outcome)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what was seen, for `python -m tests.clients.table`."""
    results = session.stash.get(_RESULTS, None)
    if results is not None:
        results.versions["curl"] = curl_version()
        results.write(clients.RESULTS)


def curl_version() -> str:
    """Of the one on PATH; empty where there is none."""
    curl = which("curl")
    if curl is None:
        return ""
    told = subprocess.run([curl, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return told.stdout.split()[1]


@pytest.fixture(scope="session", autouse=True)
def _set_up() -> None:
    for made, how in ((clients, "clients-setup"), (engines, "engines-setup")):
        if not made.ENVIRONMENT.is_set_up():
            pytest.fail(f"not set up: run `make {how}`", pytrace=False)


@pytest.fixture(scope="session")
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    """One pair, and specswitch in front of it, for all tests that ask for that kind."""
    logs = tmp_path_factory.mktemp(str(request.param))
    with _PAIRS[request.param](logs) as pair, Stand.of(pair, logs) as made:
        yield made


@contextmanager
def _simulated(logs: Path) -> Iterator[Pair]:
    """`specswitch engines`, as a newcomer would start it."""
    command = [sys.executable, "-m", "proxy", "engines", "--spec-port=0", "--base-port=0", "--json"]
    with (
        (logs / "engines.log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,  # noqa: S603
    ):
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield Pair(PairKind.SIMULATED, "simulated", told["spec"], told["base"])
        finally:
            process.kill()


@contextmanager
def _real(logs: Path) -> Iterator[Pair]:
    """Two SGLang servers on the CPU, which can call tools."""
    options = {
        name: Options(max_running_requests=usual.max_running_requests, extra=TOOLS)
        for name, usual in (("spec", SPEC), ("base", BASE))
    }
    with EnginePair(logs, **options) as pair:
        yield Pair(PairKind.REAL, MODEL, pair.spec.url, pair.base.url)


_PAIRS = {PairKind.SIMULATED: _simulated, PairKind.REAL: _real}
