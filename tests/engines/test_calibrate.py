"""Calibrate two real SGLang servers, and do what it says.

On a CPU speculation gains nothing dependable, and a busy machine measures badly: what is looked at
is that calibrate gets to its end and claims no more than its own figures hold.
"""

import asyncio
import json
import time
from io import StringIO
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from proxy.calibrated import calibration_of
from proxy.calibration import VerdictKind, read
from proxy.config import load
from proxy.core.words import UpstreamName
from proxy.tools.calibrate.run import Options, calibrate
from tests.engines.pair import MODEL, EnginePair, wait_until
from tests.harness.process import Specswitch

WORST_FIT = 6.0
"""Chi-square per degree of freedom: a number that comes out of a worse one is made up."""

CLAIMS = {VerdictKind.CROSSOVER, VerdictKind.NO_CROSSOVER}
"""Verdicts by which something would go to spec."""


def options(engines: EnginePair, out: Path) -> Options:
    """As little as a curve needs; a late clock is put up with, since servers share its cores."""
    prompts = out.with_name("prompts.jsonl")
    lines = [{"prompt": f"Count from {n} on, please.", "max_tokens": 60} for n in range(12)]
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return Options(
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        out=out,
        prompts=prompts,
        levels=(1, 2, 3, 4, 6),
        output_tokens=32,
        long_tokens=0,
        prefill_tokens=(64, 256),
        most_late=1e9,
        resamples=100,
    )


@pytest.mark.asyncio
async def test_it_runs_to_its_end_and_claims_nothing_that_does_not_hold(
    engines: EnginePair, tmp_path: Path
) -> None:
    """A valid file, whatever the verdict; no number out of a poor fit; serve does as it says."""
    out = tmp_path / "calibration.json"
    console = Console(file=StringIO(), width=200)
    outcome = await calibrate(options(engines, out), clock=time.monotonic, console=console)

    found = read(out)
    assert found == outcome.calibration
    assert outcome.exit_code == (3 if found.verdict.kind is VerdictKind.UNDECIDED else 0)
    assert all(found.server(name).cells for name in UpstreamName)
    assert found.servers.spec.acceptance_length is not None
    assert found.contention is not None
    fits = outcome.conclusion.findings.fits
    print(found.verdict.sentence, {name: fit.chi_square for name, fit in fits.items()})  # noqa: T201 - read with -s
    if found.verdict.kind in CLAIMS:
        assert all(fit.chi_square <= WORST_FIT for fit in fits.values()), found.verdict.sentence
        assert not any(fit.misfits or fit.disputed for fit in fits.values())

    config = load(file=None, env={}, overrides={"policy.calibration": str(out)})
    assert calibration_of(config) == found
    expected = UpstreamName.SPEC if found.verdict.kind in CLAIMS else UpstreamName.BASE
    assert await asyncio.to_thread(_served_by, engines, out) == expected


def _served_by(engines: EnginePair, calibration: Path) -> str:
    """The upstream that serve gives a lone request to, going by this file."""
    log = calibration.with_name("specswitch.log")
    with Specswitch(
        log,
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        policy_calibration=calibration,
        health_interval=0.2,
    ) as process:
        healthy = dict.fromkeys(UpstreamName, "healthy")
        wait_until(lambda: _health(process) == healthy, "both are healthy")
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        with httpx2.Client(trust_env=False, timeout=60.0) as client:
            answer = client.post(f"{process.url}/v1/chat/completions", json=body)
    assert answer.is_success
    return str(answer.headers["x-specswitch-upstream"])


def _health(process: Specswitch) -> dict[str, object]:
    upstreams = process.state()["upstreams"]
    assert isinstance(upstreams, dict)
    return {name: each["health"] for name, each in upstreams.items()}
