"""Starts what is measured: specswitch and its peers, each as a process in front of the same pair.

All with the settings that they come with, but for what the pair needs. Peers spread requests evenly
over both engines; specswitch sends up to N* = 3.1 sequences to spec and the rest to base.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.reliability.asking import ask
from bench.reliability.peers import program
from tests.harness.process import PROGRAM, free_port
from tests.soak.pair import NAMES, Engines
from tests.soak.plans import Plan

START_SECONDS: Final = 120.0
"""LiteLLM needs 10 to 20 s on two quiet cores."""

STOP_SECONDS: Final = 30.0
N_STAR: Final = 3.1
SPECSWITCH: Final = "specswitch"
TARGETS: Final = (SPECSWITCH, "sglang-router", "litellm")

_LITELLM_ENVIRONMENT: Final = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched from elsewhere
    "LITELLM_TELEMETRY": "False",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


@dataclass(slots=True)
class Target:
    """What is measured, started."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def resident(self) -> int:
        """Bytes of memory of its process and of those that it started."""
        return sum(_resident(pid) for pid in _tree(self.process.pid))

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)


@asynccontextmanager
async def started(
    name: str,
    engines: Engines,
    folder: Path,
    peers: Path,
    settings: Mapping[str, object],
) -> AsyncIterator[Target]:
    """Start the target `name`; `settings` are of specswitch's configuration, for a measure's needs.

    Raises TimeoutError where it does not answer in time.
    """
    port = free_port()
    log = folder / f"{name}.log"
    arguments, environment = _command(name, port, engines, folder, peers, settings)
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks at once; our own words
            arguments,
            cwd=folder,
            env={**os.environ, "HOME": str(folder), **environment},
            stdout=out,
            stderr=out,
        )
    target = Target(name, port, process, log)
    try:
        await _until_it_serves(target)
        yield target
    finally:
        await asyncio.to_thread(_stop, process)


def _command(
    name: str,
    port: int,
    engines: Engines,
    folder: Path,
    peers: Path,
    settings: Mapping[str, object],
) -> tuple[list[str], dict[str, str]]:
    urls = [engines.url(each) for each in NAMES]
    if name == SPECSWITCH:
        keys = {
            "listen_host": "127.0.0.1",
            "listen_port": port,
            "listen_admin_port": free_port(),
            "upstreams_spec_url": urls[0],
            "upstreams_base_url": urls[1],
            "policy_crossover": N_STAR,
            **settings,
        }
        named = {f"SPECSWITCH_{key.upper()}": str(value) for key, value in keys.items()}
        return list(PROGRAM), named
    run = str(program(peers, name))
    if name == "sglang-router":
        words = f"launch --host 127.0.0.1 --port {port} --worker-urls {' '.join(urls)} --policy"
        words += f" round_robin --prometheus-port {free_port()} --log-level error"
        return [run, *words.split()], {}
    file = folder / "litellm.yaml"
    file.write_text(_litellm(urls))
    words = f"--config {file} --host 127.0.0.1 --port {port} --num_workers 1"
    return [run, *words.split()], _LITELLM_ENVIRONMENT


def _litellm(urls: list[str]) -> str:
    """One model on both engines, and as many retries as specswitch makes."""
    lines = ["model_list:"]
    for url in urls:
        params = f'{{ model: openai/tiny, api_base: "{url}/v1", api_key: none }}'
        lines += ["  - model_name: tiny", f"    litellm_params: {params}"]
    lines.append("router_settings: { routing_strategy: least-busy, num_retries: 1 }")
    lines.append("litellm_settings: { telemetry: false, num_retries: 1, request_timeout: 600 }")
    return "\n".join(lines) + "\n"


async def _until_it_serves(target: Target) -> None:
    """Until it has passed on a few requests: it has then opened what it opens."""
    deadline = time.monotonic() + START_SECONDS
    good = 0
    while good < 4:  # noqa: PLR2004 - two for each engine
        if target.process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"{target.name} does not serve: {target.log.read_text()[-2000:]}")
        answer = await ask(target.port, Plan(id=f"start-{good}", pieces=1, stream=True))
        good = good + 1 if answer.whole else 0
        if not answer.whole:
            await asyncio.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _tree(int(child))


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return sum(map(int, sizes)) * 1024
