"""Prometheus and Alertmanager as real processes on free ports, with the files of deploy/.

What they are given is what is deployed, but for the addresses and for time: everything is scraped
and evaluated each second, and an alert waits for a part of its `for` only.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import msgspec
import yaml

from tests.harness.process import free_port

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
START_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.1
STEP_SECONDS: Final = 1
"""Between two scrapes, two evaluations, and two points of an answer."""
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600}


class Series(msgspec.Struct):
    """One series of an answer: its labels, and its points as [time, text of the value]."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct):
    result: list[Series]


class _Answer(msgspec.Struct):
    status: str
    data: _Matrix | None = None
    error: str = ""


class _Values(msgspec.Struct):
    data: list[str]


class _Alert(msgspec.Struct):
    labels: dict[str, str]
    annotations: dict[str, str]


class _Target(msgspec.Struct):
    labels: dict[str, str]
    health: str
    last_error: str = msgspec.field(default="", name="lastError")


class _Targets(msgspec.Struct):
    active: list[_Target] = msgspec.field(name="activeTargets")


class _Told(msgspec.Struct):
    data: _Targets


class QueryError(Exception):
    """Prometheus does not understand a query; the message has both."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    url: str
    client: httpx2.Client

    def query(self, expr: str, start: float, end: float) -> list[Series]:
        """What `expr` was between two times of day; raises QueryError."""
        asked = {"query": expr, "start": start, "end": end, "step": STEP_SECONDS}
        answer = self.client.post(f"{self.url}/api/v1/query_range", data=asked)
        found = msgspec.json.decode(answer.content, type=_Answer)
        if found.data is None:
            raise QueryError(f"{found.error}: {expr}")
        return found.data.result

    def label_values(self, label: str, selector: str) -> list[str]:
        """The values of a label, among the series that `selector` selects."""
        url = f"{self.url}/api/v1/label/{label}/values"
        answer = self.client.get(url, params={"match[]": selector}).raise_for_status()
        return msgspec.json.decode(answer.content, type=_Values).data

    def health(self) -> dict[str, str]:
        """The targets by job and upstream: `up`, or what is wrong."""
        answer = self.client.get(f"{self.url}/api/v1/targets").raise_for_status()
        targets = msgspec.json.decode(answer.content, type=_Told).data.active
        return {
            " ".join(filter(None, (t.labels["job"], t.labels.get("upstream")))): (
                t.health if t.health == "up" else t.last_error
            )
            for t in targets
        }


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """One that runs."""

    url: str
    client: httpx2.Client

    def alerts(self, *, inhibited: bool = False) -> list[tuple[dict[str, str], dict[str, str]]]:
        """The labels and annotations of what it has been told, and has not silenced."""
        asked = {"inhibited": str(inhibited).lower()}
        answer = self.client.get(f"{self.url}/api/v2/alerts", params=asked).raise_for_status()
        found = msgspec.json.decode(answer.content, type=list[_Alert])
        return [(alert.labels, alert.annotations) for alert in found]


@contextmanager
def prometheus(
    program: str, folder: Path, addresses: Mapping[str, str], *, shorter: int = 1
) -> Iterator[Prometheus]:
    """Run one in `folder`; `addresses` are those to use for the ones that are deployed.

    `shorter` is by how much each `for` of the alerts is divided.

    Raises:
        KeyError: an address that is deployed has none to use for it.
        TimeoutError: it does not come up.
    """
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(_configuration(addresses)), encoding="utf-8")
    for name in ("recording.yml", "alerts.yml"):
        rules = (DEPLOY / "prometheus" / name).read_text(encoding="utf-8")
        (folder / name).write_text(_hastened(rules, shorter), encoding="utf-8")
    port = free_port()
    words = (
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with _running((program, *words), folder / "prometheus.log", port, "/-/ready") as client:
        yield Prometheus(f"http://127.0.0.1:{port}", client)


@contextmanager
def alertmanager(program: str, folder: Path, port: int) -> Iterator[Alertmanager]:
    """Run one in `folder` on `port`, alone; raises TimeoutError where it does not come up."""
    words = (
        f"--config.file={DEPLOY / 'alertmanager' / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )
    with _running((program, *words), folder / "alertmanager.log", port, "/-/ready") as client:
        yield Alertmanager(f"http://127.0.0.1:{port}", client)


def _configuration(addresses: Mapping[str, str]) -> object:
    deployed = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    deployed["global"] = dict.fromkeys(deployed["global"], f"{STEP_SECONDS}s")
    scraped = [each for job in deployed["scrape_configs"] for each in job["static_configs"]]
    told = [each for one in deployed["alerting"]["alertmanagers"] for each in one["static_configs"]]
    for each in (*scraped, *told):
        each["targets"] = [addresses[target] for target in each["targets"]]
    return deployed


def _hastened(rules: str, shorter: int) -> str:
    def less(found: re.Match[str]) -> str:
        milliseconds = int(found[1]) * _SECONDS[found[2]] * 1000 // shorter
        return f"for: {milliseconds}ms"

    return re.sub(r"for: (\d+)([smh])", less, rules)


@contextmanager
def _running(words: Sequence[str], log: Path, port: int, path: str) -> Iterator[httpx2.Client]:
    with log.open("wb") as written:
        process = subprocess.Popen(words, stdout=written, stderr=written)  # noqa: S603 - our own words
    try:
        with httpx2.Client(trust_env=False, verify=False) as client:
            until(
                lambda: _answers(client, f"http://127.0.0.1:{port}{path}", process, log), str(log)
            )
            yield client
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _answers(client: httpx2.Client, url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise TimeoutError(f"it ended with {process.returncode}: {log.read_text()[-2000:]}")
    with suppress(httpx2.HTTPError):
        return client.get(url).status_code == httpx2.codes.OK
    return False


def until(true: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Poll until `true`; raises TimeoutError with `what` where it does not become so."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"never: {what}")
        time.sleep(POLL_SECONDS)  # noqa: TID251 - no event loop here
