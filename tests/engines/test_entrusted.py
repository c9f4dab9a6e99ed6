"""What is entrusted to real servers, to be kept there: LoRA adapters, and responses.

Adapters are loaded and unloaded at both, through the pair. This one is random: what it says has no
sense, but is another text than the model's own. Responses are kept by base alone, since all that
may be stored goes there; what servers without a store say is in test_one_door.py.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    "--enable-response-store",
)


@pytest.fixture(scope="module")
def proxy(engines: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Specswitch]:
    """In front of two servers that take adapters and have none, and that keep responses."""
    for name, usual in ((UpstreamName.SPEC, SPEC), (UpstreamName.BASE, BASE)):
        engines[name].kill()
        engines[name].start(replace(usual, extra=EXTRA))
    for name in UpstreamName:
        engines[name].wait_until_ready()
    with Specswitch(
        tmp_path_factory.mktemp("entrusted") / "specswitch.log",
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


@pytest.fixture
def servers(engines: EnginePair) -> Iterator[tuple[httpx2.Client, httpx2.Client]]:
    """Of spec itself, and of base."""
    with (
        httpx2.Client(base_url=engines.spec.url, trust_env=False, timeout=60.0) as spec,
        httpx2.Client(base_url=engines.base.url, trust_env=False, timeout=60.0) as base,
    ):
        yield spec, base


# Adapters --------------------------------------------------------------------------------------


def said(answer: httpx2.Response) -> str:
    """The text of a completion."""
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def ask(client: httpx2.Client, model: str, **fields: str) -> httpx2.Response:
    """A greedy completion."""
    body = {"model": model, "prompt": "hello", "max_tokens": 12, "temperature": 0, **fields}
    return client.post("/v1/completions", json=body)


def models(client: httpx2.Client) -> list[str]:
    """The names in /v1/models."""
    return [each["id"] for each in client.get("/v1/models").raise_for_status().json()["data"]]


def order(client: httpx2.Client, path: str, **body: str) -> httpx2.Response:
    """An order to both."""
    return client.post(path, json=body, headers=ADMIN)


def test_an_adapter_comes_and_goes(
    client: httpx2.Client, servers: tuple[httpx2.Client, httpx2.Client]
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
    for each in (client, *servers):
        assert models(each) == [MODEL, NAME]

    # Known to the rule from the next probe on, which no answer waits for.
    wait_until(
        lambda: ask(client, adapter).headers["x-specswitch-reason"] == "eligibility:lora",
        "the adapter is known",
    )
    answer = ask(client, adapter)
    assert answer.headers["x-specswitch-upstream"] == "base"
    spoken = said(answer)
    assert spoken != plain
    for each in servers:  # spec would do: only the draft knows nothing
        assert said(ask(each, adapter)) == spoken
    assert said(ask(client, MODEL)) == plain
    by_path = ask(client, MODEL, lora_path=NAME)
    assert by_path.headers["x-specswitch-reason"] == "eligibility:lora"
    assert said(by_path) == spoken
    # By its id alone, as /v1/models has it, SGLang does not know it, and speaks without it.
    assert said(ask(client, NAME)) == plain
    assert words(respond(client, model=adapter).json()) == words(respond(client).json())

    unloaded = order(client, "/unload_lora_adapter", lora_name=NAME)
    assert unloaded.status_code == 200, unloaded.text
    assert unloaded.json()["loaded_adapters"] == {}
    for each in (client, *servers):
        assert models(each) == [MODEL]
    wait_until(
        lambda: ask(client, NAME).headers["x-specswitch-reason"] == "mode",
        "the adapter is forgotten",
    )

    # SGLang remembers where it was: at the server that is asked for it, it is there once more.
    assert said(ask(client, adapter)) == spoken
    assert sorted(models(each) for each in servers) == [[MODEL], [MODEL, NAME]]
    half = order(client, "/unload_lora_adapter", lora_name=NAME)
    assert (half.status_code, half.json()["error"]["code"]) == (502, "partial_failure")
    for each in servers:
        assert models(each) == [MODEL]


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


# Responses -------------------------------------------------------------------------------------

KEPT = ("base", "eligibility:stored_state")


def where(answer: httpx2.Response) -> tuple[str, str]:
    """Who has answered, and why it."""
    return answer.headers["x-specswitch-upstream"], answer.headers["x-specswitch-reason"]


def respond(client: httpx2.Client, what: object = "hello", **fields: object) -> httpx2.Response:
    """A greedy response."""
    body = {"model": MODEL, "input": what, "max_output_tokens": 8, "temperature": 0, **fields}
    return client.post("/v1/responses", json=body)


def find(client: httpx2.Client, made: dict[str, Any]) -> httpx2.Response:
    """The same again, by its id."""
    return client.get(f"/v1/responses/{made['id']}")


def words(made: dict[str, Any]) -> str:
    """The text of a response."""
    return str(made["output"][0]["content"][0]["text"])


def test_a_response_is_kept_unasked(
    client: httpx2.Client, servers: tuple[httpx2.Client, httpx2.Client]
) -> None:
    """It is made by base, and found there; spec does not know it."""
    for fields in ({}, {"store": True}):
        answer = respond(client, **fields)
        assert (answer.status_code, where(answer)) == (200, KEPT), answer.text
        again = find(client, answer.json())
        assert (again.status_code, where(again)) == (200, KEPT)
        assert again.json() == answer.json()
        assert client.head(f"/v1/responses/{answer.json()['id']}").status_code == 200
        statuses = [find(each, answer.json()).status_code for each in servers]
        assert statuses == [404, 200]

    own = respond(client, request_id="resp_my own \u00e9").json()
    assert client.get("/v1/responses/resp_my%20own%20%C3%A9").json() == own


def test_a_response_that_is_not_to_be_kept(client: httpx2.Client) -> None:
    """`false` leaves the choice of the server; null is heeded, though SGLang keeps nothing then."""
    free = respond(client, store=False)
    assert (free.status_code, where(free)) == (200, ("spec", "mode"))
    null = respond(client, store=None)
    assert (null.status_code, where(null)) == (200, KEPT)
    for answer in (free, null):
        lost = find(client, answer.json())
        assert (lost.status_code, where(lost)) == (404, KEPT)


def test_a_response_is_gone_on_with(client: httpx2.Client) -> None:
    """As if all of the conversation had been sent; whole and as a stream, and kept in turn."""
    first = respond(client).json()
    conversation = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": words(first)},
        {"role": "user", "content": "and more"},
    ]
    whole = respond(client, conversation, store=False)
    assert where(whole) == ("spec", "mode")  # which says the same, by all that it was sent
    alone = words(respond(client, "and more").json())

    then = respond(client, "and more", previous_response_id=first["id"])
    assert (then.status_code, where(then)) == (200, KEPT), then.text
    assert words(then.json()) == words(whole.json()) != alone
    assert then.json()["previous_response_id"] == first["id"]

    streamed = respond(client, "and more", previous_response_id=first["id"], stream=True)
    assert (streamed.status_code, where(streamed)) == (200, KEPT)
    last = json.loads(streamed.text.rstrip().rpartition("data: ")[2])["response"]
    assert words(last) == words(then.json())
    for made in (then.json(), last):
        assert find(client, made).json() == made

    last_word = respond(client, "and more", previous_response_id=first["id"], store=False)
    assert (last_word.status_code, where(last_word)) == (200, KEPT)
    assert words(last_word.json()) == words(then.json())
    assert find(client, last_word.json()).status_code == 404

    unknown = respond(client, "and more", previous_response_id="resp_unknown")
    assert (unknown.status_code, where(unknown)) == (404, KEPT)


def test_a_response_in_the_background(
    engines: EnginePair, proxy: Specswitch, client: httpx2.Client
) -> None:
    """Answered at once, found when it is made; and ended where it runs, which is not counted."""
    answer = respond(client, background=True)
    assert (answer.status_code, where(answer)) == (200, KEPT), answer.text
    assert answer.json()["status"] == "queued"
    made = answer.json()
    wait_until(lambda: bool(find(client, made).json()["output"]), "it is made")
    assert words(find(client, made).json()) == words(respond(client).json())

    refused = respond(client, background=True, store=False)  # SGLang: where would it be?
    assert (refused.status_code, where(refused)) == (400, KEPT)

    long = respond(client, background=True, max_output_tokens=4000).json()
    wait_until(lambda: engines.base.load() == (1, 0), "it runs")
    assert proxy.metric("in_flight") == 0
    ended = client.post(f"/v1/responses/{long['id']}/cancel")
    assert (ended.status_code, where(ended)) == (200, KEPT)
    assert ended.json()["status"] == find(client, long).json()["status"] == "cancelled"
    engines.base.wait_until_idle()
