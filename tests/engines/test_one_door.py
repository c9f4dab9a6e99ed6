"""The pair as one server, in front of two real ones: what is read of it, and done by both.

What SGLang answers to these is SGLang's own; what is checked is that the pair says it in the same
shape, adds up what can be added up, and that what lives in one server is found there again.
"""

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engines.pair import MODEL, EnginePair, wait_until
from tests.harness.process import Specswitch

KEY = "admin-secret"
ADMIN = {"authorization": f"Bearer {KEY}"}
LONG = {"max_new_tokens": 3000, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def proxied(engines: EnginePair, tmp_path: Path) -> Iterator[Specswitch]:
    """The proxy in front of the pair, with metrics, and a key for administration."""
    with Specswitch(
        tmp_path / "specswitch.log",
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        listen_metrics="true",
        upstreams_admin_api_key=KEY,
        policy_crossover=4,
        policy_count_window=0.5,
        policy_return_dwell=0.5,
        health_interval=0.2,
        health_timeout=5,
        timeouts_wait_for_upstream=2,
    ) as process:
        wait_until(lambda: process.state()["mode"] == "spec", "speculation is on")
        yield process


@pytest.fixture
def client(proxied: Specswitch) -> Iterator[httpx2.Client]:
    """Of the endpoint."""
    with httpx2.Client(base_url=proxied.url, trust_env=False, timeout=60.0) as made:
        yield made


@pytest.fixture
def decoded(engines: EnginePair) -> None:
    """Spec has decoded something: until then it says nothing of its speculation."""
    asked = {"text": "hello", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
    url = f"{engines.spec.url}/generate"
    httpx2.post(url, json=asked, trust_env=False, timeout=60.0).raise_for_status()


# What is read ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("decoded")
def test_the_server(engines: EnginePair, client: httpx2.Client) -> None:
    """Base's account with spec's speculation, and the shape that load generators read."""
    info = client.get("/server_info").raise_for_status().json()
    spec, base = (each.get("/server_info").json() for each in (engines.spec, engines.base))
    assert info.pop("specswitch") == {"spec": "ok", "base": "ok"}
    left_out = {name for name in base if name not in info}
    assert {"api_key", "admin_api_key", "ssl_keyfile_password", "launch_command"} <= left_out
    assert all(
        name.endswith(("_key", "_password", "_token", "launch_command")) for name in left_out
    )
    assert info["speculative_algorithm"] == spec["speculative_algorithm"] == "EAGLE3"
    assert info["port"] == base["port"]
    assert info["max_running_requests"] == base["max_running_requests"]
    (state,) = info["internal_states"]
    assert state["effective_max_running_requests_per_dp"] > 0
    assert state["avg_spec_accept_length"] >= 1.0
    assert "api_key" not in json.dumps(info)
    old = client.get("/get_server_info").raise_for_status().json()
    assert set(old) - {"specswitch"} == set(info)
    assert client.get("/model_info").json() == engines.base.get("/model_info").json()


@pytest.mark.usefixtures("decoded")
def test_the_load(engines: EnginePair, client: httpx2.Client) -> None:
    """Two ranks, each as its server gives it."""
    whole = client.get("/v1/loads").raise_for_status().json()
    spec, base = (each.get("/v1/loads").json() for each in (engines.spec, engines.base))
    assert set(whole) == {*base, "specswitch"}
    assert [each["dp_rank"] for each in whole["loads"]] == [0, 1]
    for made, own in zip(whole["loads"], (spec, base), strict=True):
        assert set(made) == set(own["loads"][0])
    assert whole["loads"][0]["speculative"]["accept_length"] >= 0.0
    core = client.get("/v1/loads", params={"include": "core", "dp_rank": 1}).json()["loads"]
    assert [each["dp_rank"] for each in core] == [1]
    assert "memory" not in core[0]
    bad = client.get("/v1/loads", params={"include": "nonsense"})
    own = engines.base.get("/v1/loads?include=nonsense").status_code
    assert (own, bad.status_code) == (500, 503)  # SGLang falls over it; that is no answer of ours
    assert f"base answers {own}" in bad.json()["error"]["message"]
    text = client.get("/v1/loads", params={"format": "prometheus"}).text
    own_text = engines.spec.get("/v1/loads?format=prometheus").text
    names = {line.split("{")[0] for line in text.splitlines() if "{" in line}
    assert {line.split("{")[0] for line in own_text.splitlines() if "{" in line} <= names


@pytest.mark.usefixtures("decoded")
def test_the_metrics(engines: EnginePair, client: httpx2.Client) -> None:
    """Names that routers read, one series each, added up."""
    client.post("/generate", json={"text": "hello", "sampling_params": {"max_new_tokens": 8}})
    page = client.get("/metrics").raise_for_status().text
    families = {each.name: each for each in text_string_to_metric_families(page)}
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput"):
        (sample,) = families[f"sglang:{name}"].samples
        assert set(sample.labels) == {"engine_type", "model_name"}, name
    assert families["sglang:max_total_num_tokens"].samples[0].value == 2 * 16384
    (info,) = families["sglang:cache_config_info"].samples
    assert info.labels == {"model_name": MODEL, "page_size": "1", "num_pages": str(2 * 16384)}
    assert families["sglang:spec_num_steps"].samples[0].value == 3
    total = sum(each.value for each in families["sglang:num_requests"].samples)
    own = 0.0
    for engine in (engines.spec, engines.base):
        for family in text_string_to_metric_families(engine.get("/metrics").text):
            if family.name == "sglang:num_requests":
                own += sum(each.value for each in family.samples)
    assert total == own > 0


# What is done by both --------------------------------------------------------------------------


def administer(client: httpx2.Client, path: str, body: object = None) -> httpx2.Response:
    """The answer to who has the key."""
    return client.post(path, json={} if body is None else body, headers=ADMIN)


def test_nobody_else_administers(client: httpx2.Client) -> None:
    """404, as for any path that is not served."""
    assert client.post("/flush_cache").status_code == 404


def test_both_are_flushed(client: httpx2.Client) -> None:
    """SGLang's text, and a line for each."""
    answer = administer(client, "/flush_cache?timeout=5")
    assert answer.status_code == 200
    assert answer.text.startswith("Cache flushed.\n")
    assert answer.text.endswith("base: 200\nspec: 200, the same\n")


def test_logging_profiles_and_adapters(client: httpx2.Client) -> None:
    """What both can, and what neither can: the pair has no adapters."""
    answer = administer(client, "/configure_logging", {"log_requests": False})
    assert (answer.status_code, set(answer.json())) == (200, {"upstreams"})
    answer = administer(client, "/load_lora_adapter", {"lora_name": "a", "lora_path": "/none"})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "administration_failed"
    assert {each["status"] for each in answer.json()["upstreams"].values()} != {200}
    answer = administer(client, "/update_weights_from_disk", {"model_path": "/none"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported")


def test_both_are_profiled(client: httpx2.Client, tmp_path: Path) -> None:
    """A trace of each, of what it did between the two orders; in two files."""
    asked = {"output_dir": str(tmp_path), "activities": ["CPU"]}
    begun = administer(client, "/start_profile", asked)
    assert begun.status_code == 200, begun.text
    assert begun.text == "Start profiling.\nbase: 200\nspec: 200, the same\n"
    for fields in ({}, {"min_p": 0.1}):  # the second goes to base, by its rule
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 4, **fields}}
        client.post("/generate", json=body).raise_for_status()
    ended = administer(client, "/stop_profile")
    assert ended.status_code == 200, ended.text
    text = "Stop profiling. This will take some time.\nbase: 200\nspec: 200, the same\n"
    assert ended.text == text
    written = list(tmp_path.rglob("*.trace.json.gz"))
    assert len(written) == 2
    for trace in written:
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]

    again = administer(client, "/stop_profile")
    assert (again.status_code, again.json()["error"]["code"]) == (502, "administration_failed")
    assert {each["status"] for each in again.json()["upstreams"].values()} == {500}


def test_a_pause_is_seen_and_ended(client: httpx2.Client) -> None:
    """A paused pair is not ready; continued, it is again."""
    answer = administer(client, "/pause_generation", {"mode": "abort"})
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert {each["status"] for each in answer.json()["upstreams"].values()} == {200}
    wait_until(lambda: client.get("/ready").status_code == 503, "it is seen")
    answer = administer(client, "/continue_generation")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    wait_until(lambda: client.get("/ready").status_code == 200, "it is back")


@pytest.mark.parametrize("body", [{"rid": "door"}, {"abort_all": True}])
async def test_a_request_is_aborted_wherever_it_runs(
    proxied: Specswitch, body: dict[str, object]
) -> None:
    """By its id, or with all others; on spec and on base."""
    async with httpx2.AsyncClient(base_url=proxied.url, trust_env=False, timeout=60.0) as client:

        async def generate(rid: str, **fields: object) -> dict[str, Any]:
            asked = {"text": "hello", "rid": rid, "sampling_params": {**LONG, **fields}}
            answer = await client.post("/generate", json=asked)
            made: dict[str, Any] = answer.raise_for_status().json()
            return made

        async with asyncio.TaskGroup() as group:
            on_spec = group.create_task(generate("door"))
            on_base = group.create_task(generate("door", min_p=0.1))  # base only, by its rule
            await asyncio.to_thread(wait_until, lambda: running(proxied) == [1, 1], "both run")
            answer = await client.post("/abort_request", json=body, headers=ADMIN)
            assert answer.status_code == 200
        for task in (on_spec, on_base):
            assert task.result()["meta_info"]["finish_reason"]["type"] == "abort"


def running(proxied: Specswitch) -> list[int]:
    """Requests that run on spec and on base, as the pair says it."""
    loads = httpx2.get(f"{proxied.url}/v1/loads", trust_env=False).json()["loads"]
    return [each["num_running_reqs"] for each in loads]


# What lives in one server ----------------------------------------------------------------------


def where(answer: httpx2.Response) -> tuple[str, str]:
    """Who has answered, and why it."""
    return answer.headers["x-specswitch-upstream"], answer.headers["x-specswitch-reason"]


STATE = ("base", "eligibility:stored_state")


def test_a_session_is_found_again(client: httpx2.Client) -> None:
    """Opened at base, gone on with there, and closed there; spec would not know it."""
    opened = client.post("/open_session", json={"capacity_of_str_len": 1000})
    assert (opened.status_code, where(opened)) == (200, STATE)
    session = opened.json()
    rid = None
    for text in ("hello", " and more"):
        asked: dict[str, object] = {
            "text": text,
            "sampling_params": {"max_new_tokens": 4},
            "session_params": {"id": session, "rid": rid},
        }
        answer = client.post("/generate", json=asked)
        assert (answer.status_code, where(answer)) == (200, STATE), answer.text
        rid = answer.json()["meta_info"]["id"]
    closed = client.post("/close_session", json={"session_id": session})
    assert (closed.status_code, where(closed)) == (200, STATE)


def test_a_stored_response_is_asked_for_at_base(engines: EnginePair, client: httpx2.Client) -> None:
    """Whatever a server without a store says of it, it says it through the pair."""
    for method, path in (("GET", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel")):
        answer = client.request(method, path)
        own = httpx2.request(method, engines.base.url + path, trust_env=False)
        assert where(answer) == STATE
        assert (answer.status_code, answer.json()) == (own.status_code, own.json())
        assert own.status_code == 400
        assert "--enable-response-store" in own.json()["error"]["message"]


def test_responses_without_a_store(client: httpx2.Client) -> None:
    """A plain one is generation like any, and nothing is kept; what needs a store is refused."""

    def respond(**fields: object) -> httpx2.Response:
        asked = {"model": MODEL, "input": "hello", "max_output_tokens": 4, **fields}
        return client.post("/v1/responses", json=asked)

    plain = respond()
    assert (plain.status_code, where(plain)) == (200, ("spec", "mode")), plain.text
    stored = respond(store=True)
    assert (stored.status_code, where(stored)) == (200, STATE), stored.text
    for made in (plain, stored):
        assert client.get(f"/v1/responses/{made.json()['id']}").status_code == 400
    for needs in ({"previous_response_id": stored.json()["id"]}, {"background": True}):
        refused = respond(**needs)
        assert (refused.status_code, where(refused)) == (400, STATE)
        assert refused.json()["error"]["param"] in needs
