"""LoRA adapters of two real servers, loaded and unloaded through the pair.

The adapter is random: what it says has no sense, but is another text than the model's own.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from proxy.core.words import UpstreamName
from tests.engines import setup
from tests.engines.pair import BASE, MODEL, SPEC, EnginePair, wait_until
from tests.harness.process import Specswitch

KEY = "admin-secret"
ADMIN = {"authorization": f"Bearer {KEY}"}
NAME = "words"
EXTRA = (
    "--enable-lora",
    "--max-lora-rank=8",
    "--lora-target-modules=o_proj",
    "--lora-backend=torch_native",
    "--max-loras-per-batch=2",
)


@pytest.fixture(scope="module")
def proxy(engines: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Specswitch]:
    """In front of two servers that take adapters and have none."""
    for name, usual in ((UpstreamName.SPEC, SPEC), (UpstreamName.BASE, BASE)):
        engines[name].kill()
        engines[name].start(replace(usual, extra=EXTRA))
    for name in UpstreamName:
        engines[name].wait_until_ready()
    with Specswitch(
        tmp_path_factory.mktemp("adapters") / "specswitch.log",
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        upstreams_admin_api_key=KEY,
        policy_crossover=4,
        health_interval=0.2,
    ) as process:
        wait_until(lambda: process.state()["mode"] == "spec", "speculation is on")
        yield process


@pytest.fixture(autouse=True)
def _as_usual(proxy: Specswitch) -> None:
    """Instead of the folder's: this file has servers of its own kind, and kills none."""
    proxy.control("auto")


@pytest.fixture
def client(proxy: Specswitch) -> Iterator[httpx2.Client]:
    """Of the endpoint."""
    with httpx2.Client(base_url=proxy.url, trust_env=False, timeout=60.0) as made:
        yield made


def said(answer: httpx2.Response) -> str:
    """The text of a completion."""
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def ask(client: httpx2.Client, model: str) -> httpx2.Response:
    """A greedy completion."""
    body = {"model": model, "prompt": "hello", "max_tokens": 12, "temperature": 0}
    return client.post("/v1/completions", json=body)


def own(url: str, model: str) -> str:
    """What a server itself says to the same."""
    with httpx2.Client(base_url=url, trust_env=False, timeout=60.0) as client:
        return said(ask(client, model))


def models(client: httpx2.Client) -> list[str]:
    """The names in /v1/models."""
    return [each["id"] for each in client.get("/v1/models").raise_for_status().json()["data"]]


def order(client: httpx2.Client, path: str, **body: str) -> httpx2.Response:
    """An order to both."""
    return client.post(path, json=body, headers=ADMIN)


def test_an_adapter_comes_and_goes(
    engines: EnginePair, proxy: Specswitch, client: httpx2.Client
) -> None:
    """Both load it; what names it goes to base and speaks with it; both unload it."""
    adapter = f"{MODEL}:{NAME}"
    plain = said(ask(client, MODEL))

    loaded = order(client, "/load_lora_adapter", lora_name=NAME, lora_path=str(setup.ADAPTER))
    assert loaded.status_code == 200, loaded.text
    assert loaded.json()["success"] is True
    assert loaded.json()["loaded_adapters"] == {NAME: str(setup.ADAPTER)}
    results = loaded.json()["upstreams"].values()
    assert [each["status"] for each in results] == [200, 200]
    assert models(client) == [MODEL, NAME]

    # Known to the rule from the next probe on, which no answer waits for.
    wait_until(
        lambda: ask(client, adapter).headers["x-specswitch-reason"] == "eligibility:lora",
        "the adapter is known",
    )
    answer = ask(client, adapter)
    assert answer.headers["x-specswitch-upstream"] == "base"
    spoken = said(answer)
    assert spoken == own(engines.base.url, adapter) != plain
    assert spoken == own(engines.spec.url, adapter)  # it would do: only the draft knows nothing
    assert said(ask(client, MODEL)) == plain

    unloaded = order(client, "/unload_lora_adapter", lora_name=NAME)
    assert unloaded.status_code == 200, unloaded.text
    assert unloaded.json()["loaded_adapters"] == {}
    assert models(client) == [MODEL]
    wait_until(
        lambda: ask(client, NAME).headers["x-specswitch-reason"] == "mode",
        "the adapter is forgotten",
    )


def test_an_adapter_that_one_has_already(engines: EnginePair, client: httpx2.Client) -> None:
    """Loaded at base itself: half of the order fails, and says so; undone, both are alike."""
    body = {"lora_name": "other", "lora_path": str(setup.ADAPTER)}
    httpx2.post(
        f"{engines.base.url}/load_lora_adapter", json=body, trust_env=False, timeout=60.0
    ).raise_for_status()

    half = order(client, "/load_lora_adapter", **body)
    assert (half.status_code, half.json()["error"]["code"]) == (502, "partial_failure")
    assert half.json()["upstreams"]["spec"]["body"]["success"] is True
    assert half.json()["upstreams"]["base"]["status"] == 400
    assert "already" in half.json()["upstreams"]["base"]["body"]["error_message"]

    assert order(client, "/unload_lora_adapter", lora_name="other").status_code == 200
    assert models(client) == [MODEL]


def test_an_adapter_that_nobody_finds(client: httpx2.Client, tmp_path: Path) -> None:
    """Neither has loaded it, and each says why."""
    failed = order(client, "/load_lora_adapter", lora_name="none", lora_path=str(tmp_path))
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "administration_failed")
    for result in failed.json()["upstreams"].values():
        assert result["body"]["success"] is False
        assert result["body"]["error_message"]
    assert models(client) == [MODEL]
