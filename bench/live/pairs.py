"""Starts simulated pairs, and specswitch in front of one, each as a process of its own.

A pair may run faster than real. Then its curves are steeper, its rates are higher, and the windows
of the controller are shorter by the same factor, so all happens as it would, only sooner. What does
not scale is this machine: whatever costs CPU weighs more.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from proxy import __version__
from proxy.calibration import (
    Calibration,
    Crossover,
    Decode,
    Interval,
    Prefill,
    Server,
    Servers,
    Verdict,
    VerdictKind,
    Workload,
    dump,
)
from proxy.config.model import Policy
from proxy.core.fingerprint import Fingerprint, fingerprint_of
from proxy.core.words import UpstreamName
from proxy.sim.knowledge import Knowledge, conversations, know, mean_context, server
from proxy.sim.physics import FOUNDING, Profile
from proxy.tools.asking import connect
from proxy.tools.doctor.server_info import read_server
from tests.harness.process import Specswitch

PROFILE: Final = FOUNDING
CONTENTION: Final = 0.9
"""eta of time slicing, as `specswitch engines` has it."""

_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_SCALED: Final = (
    "fast_window",
    "slow_window",
    "count_window",
    "return_dwell",
    "flap_window",
    "flap_hold",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two simulated servers on one simulated GPU."""

    spec_url: str
    base_url: str
    scale: float
    """How many times faster than real."""


class _Addresses(msgspec.Struct):
    spec: str
    base: str


class _Upstream(msgspec.Struct):
    health: str


class _State(msgspec.Struct):
    mode: str
    upstreams: dict[str, _Upstream]

    @property
    def speculates(self) -> bool:
        """By choice, and not because base has not been looked at yet."""
        healthy = all(one.health == "healthy" for one in self.upstreams.values())
        return healthy and self.mode == UpstreamName.SPEC


@cache
def knowledge() -> Knowledge:
    """What a perfect calibration knows of the profile: N*, λ*, the mean length."""
    return know(PROFILE, conversations())


def windows(scale: float) -> Mapping[str, float]:
    """The controller's seconds, by their key under [policy]: the defaults, over `scale`."""
    policy = Policy()
    return {name: getattr(policy, name) / scale for name in _SCALED}


@asynccontextmanager
async def simulated(folder: Path, scale: float = 1.0) -> AsyncIterator[Pair]:
    """Start a pair; raises TimeoutError where it does not come up."""
    words = ("engines", "--profile", PROFILE.name, "--spec-port", "0", "--base-port", "0")
    more = ("--contention", str(CONTENTION), "--time-scale", str(scale), "--json")
    with (folder / "engines.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy", *words, *more, stdout=subprocess.PIPE, stderr=log
        )
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline() if process.stdout is not None else b""
        if not line:
            raise TimeoutError(f"no pair: {(folder / 'engines.log').read_text()[-2000:]}")
        found = msgspec.json.decode(line, type=_Addresses)
        yield Pair(found.spec, found.base, scale)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


@asynccontextmanager
async def served(folder: Path, pair: Pair, **settings: object) -> AsyncIterator[Specswitch]:
    """Start `specswitch serve` in front of `pair`, calibrated, and wait until it speculates.

    `settings` are further keys, as `tests.harness.process` takes them.

    Raises:
        TimeoutError: it stays on base.
    """
    name = f"serve-{pair.spec_url.rpartition(':')[2]}"
    file = folder / f"{name}.json"
    file.write_text(dump(await _calibration(pair)))
    policy = {f"policy_{key}": seconds for key, seconds in windows(pair.scale).items()}
    process = Specswitch(
        folder / f"{name}.log",
        spec_url=pair.spec_url,
        base_url=pair.base_url,
        policy_calibration=file,
        **policy,
        **settings,
    )
    async with process:
        await _until_it_speculates(process)
        yield process


@asynccontextmanager
async def both(folder: Path, scale: float = 1.0) -> AsyncIterator[Specswitch]:
    """Start a pair with specswitch in front."""
    async with AsyncExitStack() as ends:
        pair = await ends.enter_async_context(simulated(folder, scale))
        yield await ends.enter_async_context(served(folder, pair))


async def _until_it_speculates(process: Specswitch) -> None:
    async with connect(process.admin_url) as admin:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while True:
                    answer = await admin.get("/admin/state")
                    if msgspec.json.decode(answer.content, type=_State).speculates:
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"it stays on base: {process.log.read_text()[-2000:]}") from None


async def _calibration(pair: Pair) -> Calibration:
    known, lengths = knowledge(), conversations()
    sentence = "as the profile is, not measured"
    return Calibration(
        created=datetime.now(UTC),
        specswitch=__version__,
        verdict=Verdict(kind=VerdictKind.CROSSOVER, sentence=sentence),
        crossover=Crossover(
            in_flight=_exactly(known.crossover),
            tokens_per_second=_exactly(known.crossover_rate * pair.scale),
        ),
        servers=Servers(
            spec=await _server(UpstreamName.SPEC, pair.spec_url, pair.scale),
            base=await _server(UpstreamName.BASE, pair.base_url, pair.scale),
        ),
        contention=None,
        long_context=None,
        workload=Workload(
            prompt_tokens=fmean(prompt for prompt, _ in lengths),
            output_tokens=known.output_tokens,
            source="the lengths that are asked for",
        ),
    )


def _exactly(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


async def _server(name: UpstreamName, url: str, scale: float) -> Server:
    known = server(PROFILE, name, mean_context(conversations()), knowledge().crossover)
    curve, filling = known.curve, known.prefill
    return Server(
        fingerprint=await _fingerprint(name, url),
        decode=Decode(
            fixed=curve.fixed / scale,
            per_sequence=curve.per_sequence / scale,
            bend=curve.bend / scale,
            to=curve.to,
        ),
        prefill=Prefill(fixed=filling.fixed / scale, per_token=filling.per_token / scale),
        cap=known.cap,
        acceptance_length=_acceptance(PROFILE, name),
        cells=(),
    )


async def _fingerprint(name: UpstreamName, url: str) -> Fingerprint:
    async with connect(url) as client:
        return fingerprint_of((await read_server(name, client)).identity)


def _acceptance(profile: Profile, name: UpstreamName) -> float | None:
    return profile.acceptance_length if name is UpstreamName.SPEC else None
