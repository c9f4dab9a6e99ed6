"""What goes wrong with real SGLang servers, and the vendor's own load against the pair."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from proxy.core.words import UpstreamName
from tests.engines import setup
from tests.engines.launch import ENVIRONMENT, STUBS
from tests.engines.pair import MODEL, EnginePair, wait_until
from tests.harness.process import Specswitch

REQUESTS = 1000


@pytest.fixture
def proxied(engines: EnginePair, tmp_path: Path) -> Iterator[Specswitch]:
    """The proxy in front of the pair, quick to find an engine stalled and to try it again."""
    with Specswitch(
        tmp_path / "specswitch.log",
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        policy_crossover=4,
        policy_count_window=0.5,
        policy_return_dwell=0.5,
        policy_flap_limit=100,
        health_interval=0.2,
        health_stalled=3,
        health_ejection=1,
        limits_queue_timeout=300,
    ) as process:
        wait_until(lambda: process.state()["mode"] == "spec", "speculation is on")
        yield process


def ask(proxied: Specswitch) -> httpx2.Response:
    """A short chat."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    with httpx2.Client(trust_env=False, timeout=60.0) as client:
        return client.post(f"{proxied.url}/v1/chat/completions", json=body)


async def test_a_frozen_scheduler_is_found_out(engines: EnginePair, proxied: Specswitch) -> None:
    """Its HTTP server answers `/ready` and takes requests; the other serves, and it may come back.

    Who was sent there before is answered once it runs again: nothing was lost, or sent twice.
    """
    engines.spec.freeze()
    try:
        assert engines.spec.ready()
        hung = asyncio.get_running_loop().create_task(asyncio.to_thread(ask, proxied))
        await asyncio.to_thread(
            wait_until,
            lambda: proxied.metric("ejections_total", upstream="spec", cause="stalled") == 1,
            "it is stalled",
        )
        answer = await asyncio.to_thread(ask, proxied)
        assert answer.status_code == 200
        assert answer.headers["x-specswitch-upstream"] == "base"
        assert engines.spec.ready()
    finally:
        engines.spec.thaw()
    assert (await hung).status_code == 200
    await asyncio.to_thread(
        wait_until,
        lambda: ask(proxied).headers["x-specswitch-upstream"] == "spec",
        "it serves again",
    )
    assert proxied.metric("retries_total") == 0


def test_a_long_prefill_is_not_stalled(engines: EnginePair, proxied: Specswitch) -> None:
    """An engine at work moves its load, and stays; here with many prompts one behind another."""
    prompts = ["word " * 300 for _ in range(40)]
    body = {"model": MODEL, "prompt": prompts, "max_tokens": 60, "ignore_eos": True}
    with httpx2.Client(trust_env=False, timeout=120.0) as client:
        answer = client.post(f"{proxied.url}/v1/completions", json=body)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == len(prompts)
    for name in UpstreamName:
        assert proxied.metric("ejections_total", upstream=name) == 0


def test_the_vendors_load_generator_loses_nothing(
    engines: EnginePair, proxied: Specswitch, tmp_path: Path
) -> None:
    """SGLang's own: 1,000 streams at an infinite rate, every one counted, none failed."""
    out = tmp_path / "serving.jsonl"
    command = [
        str(setup.PYTHON),
        "-m",
        "sglang.benchmark.serving",
        "--backend=sglang-oai",
        f"--base-url={proxied.url}",
        f"--model={MODEL}",
        f"--tokenizer={setup.TARGET}",
        "--dataset-name=random-ids",
        f"--num-prompts={REQUESTS}",
        "--request-rate=inf",
        "--random-input-len=16",
        "--random-output-len=4",
        "--random-range-ratio=1",
        "--warmup-requests=0",
        "--disable-tqdm",
        f"--output-file={out}",
    ]
    # It imports a library for data sets from a hub before it knows that none is asked for.
    (tmp_path / "datasets.py").write_text("load_dataset = None\n")
    path = os.pathsep.join((STUBS, str(tmp_path)))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}
    ran = subprocess.run(  # noqa: S603 - our own words
        command, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    (result,) = map(json.loads, out.read_text().splitlines())
    assert result["completed"] == REQUESTS
    ok = proxied.metric("requests_total", endpoint="/v1/completions", outcome="ok")
    assert ok == REQUESTS
    assert proxied.metric("in_flight") == 0
    assert proxied.metric("queue_depth") == 0
    del engines
