"""One calibration of one simulated pair, by `specswitch calibrate` in a process of its own."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.calibration.profiles import KNOWN
from proxy.calibration import Calibration, Interval, VerdictKind, parse
from proxy.errors import SpecswitchError
from proxy.sim import physics

_START_SECONDS: Final = 30.0
_CONCLUDED: Final = (0, 3)
"""Exit codes with which there is a file: a verdict, or undecided."""
_OF_THIS_MACHINE: Final = "late for its clock"
"""In the refusal of a cell that this machine was too busy for: an operator gives the command again.
"""
MOST_GOES: Final = 6
NEAR: Final = 0.15
"""Of N*: as near as one calibration is to be."""


class _Addresses(msgspec.Struct):
    spec: str
    base: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How each is calibrated."""

    scale: float
    """How many times faster than real the simulated GPU is."""
    words: tuple[str, ...] = ()
    """Further options of `calibrate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one calibration."""

    profile: str
    seed: int
    seconds: float
    """Of this machine's time."""
    goes: int = 0
    """Times that the command was given; more than once where this machine was too busy to measure
    with, and it went on from where it had refused."""
    truth: float | None = None
    """N* of the profile with as much context as these requests had; infinite: none."""
    verdict: VerdictKind | None = None
    crossover: Interval | None = None
    """N*."""
    rate: Interval | None = None
    """λ*, at the real speed of the GPU."""
    late_seconds: float | None = None
    """By how much the generator was late at most, as cells say (9 of 10 looks)."""
    error: str | None = None
    """Why there is no verdict."""

    @property
    def off(self) -> float | None:
        """How far N* is from the truth, relative; None where it was not found."""
        if self.crossover is None or not self.truth:
            return None
        return self.crossover.value / self.truth - 1.0

    @property
    def near(self) -> bool:
        """Whether N* is as near as it should be."""
        return self.off is not None and abs(self.off) < NEAR

    @property
    def held(self) -> bool:
        """Whether the 90 % interval holds the truth."""
        found, truth = self.crossover, self.truth
        return found is not None and truth is not None and found.low <= truth <= found.high


async def run(profile: str, seed: int, plan: Plan) -> Run:
    """Start a pair and calibrate it; a failure is what came of it, and no error."""
    begun = time.monotonic()
    try:
        async with _pair(profile, seed, plan.scale) as pair:
            found, goes = await _calibrated(pair, seed, plan)
    except (SpecswitchError, TimeoutError) as error:
        spent = time.monotonic() - begun
        return Run(profile=profile, seed=seed, seconds=spent, error=str(error))
    rate = found.crossover.tokens_per_second
    late = found.conditions.get("latest_look_at_clock_seconds")
    return Run(
        profile=profile,
        seed=seed,
        seconds=time.monotonic() - begun,
        goes=goes,
        truth=physics.crossover(KNOWN[profile], _context(found)),
        verdict=found.verdict.kind,
        crossover=found.crossover.in_flight,
        rate=None if rate is None else _slower(rate, plan.scale),
        late_seconds=late if isinstance(late, float) else None,
    )


def _context(found: Calibration) -> float:
    """Tokens that a sequence had in its cache while it was measured, on average."""
    output = found.conditions["output_tokens"]
    return found.workload.prompt_tokens + (output / 2.0 if isinstance(output, int) else 0.0)


def _slower(rate: Interval, scale: float) -> Interval:
    return Interval(value=rate.value / scale, low=rate.low / scale, high=rate.high / scale)


@asynccontextmanager
async def _pair(profile: str, seed: int, scale: float) -> AsyncIterator[_Addresses]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.calibration.pair", profile, str(seed), str(scale)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline() if process.stdout is not None else b""
        if not line:
            raise TimeoutError("the simulated pair did not start")
        yield msgspec.json.decode(line, type=_Addresses)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


async def _calibrated(pair: _Addresses, seed: int, plan: Plan) -> tuple[Calibration, int]:
    """The calibration, and the number of goes it took; raises SpecswitchError where none came."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calibration.json"
        words = ("--spec-url", pair.spec, "--base-url", pair.base, "--out", str(out))
        said = ""
        for go in range(1, MOST_GOES + 1):
            code, said = await _typed(*words, "--seed", str(seed), "--json", *plan.words)
            if code in _CONCLUDED:
                return parse(out.read_bytes(), str(out)), go
            if _OF_THIS_MACHINE not in said:
                break
        raise SpecswitchError(said.strip()[-500:])


async def _typed(*words: str) -> tuple[int | None, str]:
    """Exit code and standard error of `specswitch calibrate` with these words."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "calibrate", *words),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode, said.decode(errors="replace")
