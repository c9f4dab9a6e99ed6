"""The simulated engines answer in the shapes of SGLang 0.5.23, and the official client reads them.

The trees of keys below were taken from recorded answers of two real servers of that version, one
plain and one with EAGLE-3. `...` stands for a value.
"""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from types import EllipsisType

import httpx2
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, InternalServerError

from proxy.core.words import UpstreamName
from proxy.sim.engine import Limits
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair

Tree = EllipsisType | dict[str, "Tree"] | list["Tree"]


def _keys(*names: str) -> dict[str, Tree]:
    return dict.fromkeys(names, ...)


ENDING = _keys("logprobs", "finish_reason", "matched_stop")
USAGE = _keys(
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "reasoning_tokens",
    "completion_tokens_details",
)
WEIGHTS: Tree = [_keys("version", "start", "end")]
HEAD = _keys("id", "object", "created", "model")
WHOLE: dict[str, Tree] = {
    **HEAD,
    "usage": USAGE,
    "metadata": {"weight_version": ..., "weight_versions": WEIGHTS},
}
SPEC_META = _keys(
    "spec_accept_rate",
    "spec_accept_length",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
    "spec_correct_drafts_histogram",
)
SPEC_DETAILS: dict[str, Tree] = {
    "spec_tokens_details": {
        **SPEC_META,
        **_keys("spec_cap_length", "spec_block_accept_length", "spec_cap_lens_histogram"),
    }
}
META: dict[str, Tree] = {
    **_keys(
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "num_retractions",
        "storage_prefetch_wait",
        "storage_staging_wait",
        "forward_entry_time",
        "prefill_finished_time",
        "queue_time",
        "reasoning_tokens",
        "completion_tokens",
        "cached_tokens",
        "dp_rank",
    ),
    "cached_tokens_details": _keys("device", "host"),
}
SENT = _keys("response_sent_to_client_ts")
FINAL_META: dict[str, Tree] = {
    **META,
    **SENT,
    **_keys(
        "e2e_latency",
        "request_received_ts",
        "first_token_latency",
        "api_server_dispatch_finish_ts",
        "request_finished_ts",
        "decode_throughput",
    ),
    "weight_versions": WEIGHTS,
    "finish_reason": _keys("type", "length"),
}
MESSAGE = _keys("role", "content", "reasoning_content")
LOADS: dict[str, Tree] = {
    **_keys(
        "timestamp",
        "dp_rank",
        "num_running_reqs",
        "num_waiting_reqs",
        "num_waiting_uncached_tokens",
        "num_used_tokens",
        "num_total_tokens",
        "num_active_tokens",
        "num_prealloc_ready_tokens",
        "max_total_num_tokens",
        "max_running_requests",
        "token_usage",
        "gen_throughput",
        "cache_hit_rate",
        "utilization",
        "total_prefill_uncached_tokens",
        "total_prefill_busy_us",
        "decode_moments",
    ),
    "memory": _keys("weight_gb", "kv_cache_gb", "graph_gb", "token_capacity"),
    "disaggregation": _keys(
        "mode",
        "prefill_bootstrap_queue_reqs",
        "prefill_inflight_queue_reqs",
        "decode_prealloc_queue_reqs",
        "decode_transfer_queue_reqs",
        "decode_retracted_queue_reqs",
        "kv_transfer_speed_gb_s",
        "kv_transfer_latency_ms",
    ),
    "queues": _keys("waiting", "grammar", "paused", "retracted", "prealloc_ready"),
}
MODEL = _keys("id", "object", "created", "owned_by", "root", "parent", "max_model_len")
ERROR = _keys("object", "message", "type", "param", "code")

MESSAGES = [{"role": "user", "content": "hello"}]


def _tree(value: object) -> Tree:
    """The keys of a value, all the way down; a list of objects by its first."""
    if isinstance(value, dict):
        return {key: _tree(one) for key, one in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_tree(value[0])]
    return ...


@pytest_asyncio.fixture(params=[UpstreamName.SPEC, UpstreamName.BASE])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator["Engine"]:
    """Each of the two engines in turn, fast."""
    options = PairOptions(time_scale=100.0, spec=Limits(max_running=48, max_queued=0))
    async with SimulatedPair(options) as pair, httpx2.AsyncClient() as client:
        yield Engine(request.param, pair, client)


class Engine:
    """One engine and a client for it."""

    def __init__(self, name: UpstreamName, pair: SimulatedPair, client: httpx2.AsyncClient) -> None:
        self.speculative = name is UpstreamName.SPEC
        self.url = pair.spec_url if self.speculative else pair.base_url
        self.client = client
        self.pair = pair

    def openai(self) -> AsyncOpenAI:
        """The official client."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def speculates(self, tree: dict[str, Tree]) -> dict[str, Tree]:
        """A tree that only the speculative engine shows."""
        return tree if self.speculative else {}

    async def post(self, path: str, **body: object) -> httpx2.Response:
        """The answer to a body."""
        return await self.client.post(self.url + path, json=body)

    async def get(self, path: str) -> httpx2.Response:
        """A page."""
        return await self.client.get(self.url + path)

    async def events(self, path: str, **body: object) -> list[dict[str, object]]:
        """The events of a stream, each of which fills one chunk, up to the [DONE]."""
        made = []
        async with self.client.stream("POST", self.url + path, json=body | {"stream": True}) as it:
            assert it.status_code == 200
            assert list(it.headers) == [
                "date",
                "server",
                "content-type",
                "vary",
                "transfer-encoding",
            ]
            assert it.headers["content-type"] == "text/event-stream; charset=utf-8"
            text = "".join([piece async for piece in it.aiter_text()])
        *pieces, done, rest = text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        for piece in pieces:
            assert piece.startswith("data: ")
            made.append(json.loads(piece.removeprefix("data: ")))
        return made


async def test_chat(engine: Engine) -> None:
    """A whole chat reply; acceptance is told where it was asked for and there is any."""
    answer = await engine.post(
        "/v1/chat/completions", messages=MESSAGES, max_tokens=8, return_spec_tokens_details=True
    )
    assert list(answer.headers) == ["date", "server", "content-length", "content-type", "vary"]
    assert _tree(answer.json()) == {
        **WHOLE,
        "choices": [{"index": ..., "message": MESSAGE, **ENDING}],
        **engine.speculates({"sglext": SPEC_DETAILS}),
    }
    plain = await engine.post("/v1/chat/completions", messages=MESSAGES, max_tokens=8)
    assert "sglext" not in plain.json()


async def test_chat_with_meta_info(engine: Engine) -> None:
    """The native figures, one level down."""
    answer = await engine.post(
        "/v1/chat/completions", messages=MESSAGES, max_tokens=8, return_meta_info=True
    )
    meta = {**FINAL_META, **engine.speculates(SPEC_META)}
    assert _tree(answer.json()["choices"]) == [
        {"index": ..., "message": MESSAGE, **ENDING, "meta_info": meta}
    ]


async def test_chat_stream(engine: Engine) -> None:
    """Role, contents, finish, and what was asked for at the end."""
    made = await engine.events(
        "/v1/chat/completions",
        messages=MESSAGES,
        max_tokens=8,
        return_spec_tokens_details=True,
        stream_options={"include_usage": True},
    )
    trees = [_tree(one) for one in made]

    def delta(*names: str) -> Tree:
        own = {"index": ..., "delta": _keys("reasoning_content", *names), **ENDING}
        return {**HEAD, "choices": [own]}

    details = [{**HEAD, "choices": ..., "usage": ..., "sglext": SPEC_DETAILS}]
    usage = {**HEAD, "choices": ..., "usage": USAGE}
    tail = [delta(), *(details if engine.speculative else []), usage]
    assert trees[0] == delta("role", "content")
    assert trees[-len(tail) :] == tail
    contents = trees[1 : -len(tail)]
    assert contents == [delta("content")] * len(contents)
    assert len({one["id"] for one in made}) == 1


async def test_chat_stream_without_wishes(engine: Engine) -> None:
    """No usage event unless it was asked for."""
    made = await engine.events("/v1/chat/completions", messages=MESSAGES, max_tokens=3)
    assert all("usage" not in one for one in made)


async def test_completion(engine: Engine) -> None:
    """A whole completion, for several prompts in their order."""
    answer = await engine.post("/v1/completions", prompt=["one", "two"], n=2, max_tokens=8)
    assert _tree(answer.json()) == {**WHOLE, "choices": [{"index": ..., "text": ..., **ENDING}]}
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in choices}) == 4
    assert answer.json()["usage"]["prompt_tokens"] == 2
    assert answer.json()["usage"]["completion_tokens"] == 32


async def test_completion_stream(engine: Engine) -> None:
    """The last tokens carry the finish; then usage, if asked for."""
    made = await engine.events(
        "/v1/completions", prompt="x", max_tokens=8, stream_options={"include_usage": True}
    )
    piece = {**HEAD, "choices": [{"index": ..., "text": ..., **ENDING}], "usage": ...}
    assert [_tree(one) for one in made[:-1]] == [piece] * (len(made) - 1)
    assert _tree(made[-1]) == {**HEAD, "choices": ..., "usage": USAGE}
    reasons = [one["choices"][0]["finish_reason"] for one in made[:-1]]  # type: ignore[index]  # JSON
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


async def test_generate(engine: Engine) -> None:
    """One object for one prompt, a list for a list."""
    params = {"max_new_tokens": 8}
    expected = {
        "text": ...,
        "output_ids": ...,
        "meta_info": {**FINAL_META, **engine.speculates(SPEC_META)},
    }
    answer = await engine.post("/generate", text="x", sampling_params=params)
    assert _tree(answer.json()) == expected
    answer = await engine.post("/generate", text=["x", "y"], sampling_params=params)
    assert _tree(answer.json()) == [expected]
    assert len(answer.json()) == 2


async def test_generate_stream(engine: Engine) -> None:
    """Each event holds all so far; the first says when it was sent, the last how it went."""
    params = {"max_new_tokens": 40}
    made = await engine.events("/generate", text="x", sampling_params=params)
    trees = [_tree(one) for one in made]

    def event(meta: dict[str, Tree]) -> Tree:
        return {"text": ..., "output_ids": ..., "meta_info": meta}

    assert trees[0] == event({**META, **SENT})
    assert trees[1:-1] == [event(META)] * (len(trees) - 2)
    assert trees[-1] == event({**FINAL_META, **engine.speculates(SPEC_META)})
    texts = [one["text"] for one in made]
    assert all(str(late).startswith(str(early)) for early, late in pairwise(texts))


async def test_generate_stream_of_several(engine: Engine) -> None:
    """Events of several prompts say which one they are of."""
    made = await engine.events("/generate", text=["x", "y"], sampling_params={"max_new_tokens": 4})
    assert {one["index"] for one in made} == {0, 1}


async def test_a_natural_end(engine: Engine) -> None:
    """A reply that is not cut stops at the end token, in each shape."""
    chat = (await engine.post("/v1/chat/completions", messages=MESSAGES, max_tokens=600)).json()
    assert chat["choices"][0]["finish_reason"] == "stop"
    assert chat["choices"][0]["matched_stop"] == 2
    params = {"max_new_tokens": 600}
    native = (await engine.post("/generate", text="x", sampling_params=params)).json()
    assert native["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}


async def test_several_samples(engine: Engine) -> None:
    """Each has its index, its role and its finish; acceptance becomes a list."""
    made = await engine.events(
        "/v1/chat/completions",
        messages=MESSAGES,
        n=2,
        max_tokens=8,
        return_spec_tokens_details=True,
    )
    choices = [one["choices"][0] for one in made if one["choices"]]  # type: ignore[index]  # JSON
    roles = [choice["index"] for choice in choices if "role" in choice["delta"]]
    ends = [choice["index"] for choice in choices if choice["finish_reason"]]
    assert (roles, ends) == ([0, 1], [0, 1])
    if engine.speculative:
        details = made[-1]["sglext"]
        assert isinstance(details, dict)
        assert len(details["spec_tokens_details"]) == 2


async def test_acceptance_adds_up(engine: Engine) -> None:
    """Rounds, histogram and tokens fit together; one token is no round and tells nothing."""
    params = {"max_new_tokens": 200, "ignore_eos": True}
    meta = (await engine.post("/generate", text="x", sampling_params=params)).json()["meta_info"]
    if engine.speculative:
        rounds, histogram = meta["spec_verify_ct"], meta["spec_correct_drafts_histogram"]
        assert sum(histogram) == rounds
        assert (
            sum(n * times for n, times in enumerate(histogram)) == meta["spec_num_correct_drafts"]
        )
        assert 199 <= rounds + meta["spec_num_correct_drafts"] <= 199 + 5
        assert meta["spec_accept_length"] == 200 / rounds
    params = {"max_new_tokens": 1}
    meta = (await engine.post("/generate", text="x", sampling_params=params)).json()["meta_info"]
    assert "spec_verify_ct" not in meta


async def test_ids(engine: Engine) -> None:
    """The `rid` of the request becomes the id; otherwise 32 hexadecimal digits."""
    given = await engine.post("/v1/chat/completions", messages=MESSAGES, rid="mine", max_tokens=1)
    assert given.json()["id"] == "mine"
    made = await engine.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1)
    assert len(bytes.fromhex(made.json()["id"])) == 16


async def test_models(engine: Engine) -> None:
    """The list, one of it, and one that is not there."""
    assert _tree((await engine.get("/v1/models")).json()) == {"object": ..., "data": [MODEL]}
    assert _tree((await engine.get("/v1/models/simulated")).json()) == MODEL
    missing = await engine.get("/v1/models/other")
    assert missing.status_code == 404
    assert _tree(missing.json()) == {"error": _keys("message", "type", "param", "code")}


@pytest.mark.parametrize("path", ["/ready", "/health", "/health_generate", "/ping"])
async def test_signs_of_life(engine: Engine, path: str) -> None:
    """Status 200 and nothing else; no token is generated."""
    answer = await engine.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert list(answer.headers) == ["date", "server", "content-length", "vary"]


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_model_info(engine: Engine, path: str) -> None:
    """What kind of model it is."""
    info = (await engine.get(path)).json()
    assert info["served_model_name"] == info["tokenizer_path"] == "simulated"
    assert info["is_generation"] is True


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_server_info(engine: Engine, path: str) -> None:
    """What tells the two engines apart, what must be equal on both, and the caps."""
    info = (await engine.get(path)).json()
    (state,) = info["internal_states"]
    cap = 48 if engine.speculative else 2048
    assert info["max_running_requests"] == state["effective_max_running_requests_per_dp"] == cap
    assert info["cuda_graph_config"]["decode"]["max_bs"] == info["cuda_graph_max_bs_decode"] == cap
    assert info["speculative_algorithm"] == ("EAGLE3" if engine.speculative else None)
    assert info["speculative_num_steps"] == (5 if engine.speculative else None)
    assert info["speculative_eagle_topk"] == (8 if engine.speculative else None)
    assert info["speculative_num_draft_tokens"] == (32 if engine.speculative else None)
    assert ("avg_spec_accept_length" in state) is engine.speculative
    same = ("model_path", "revision", "dtype", "quantization", "context_length", "tp_size")
    assert [info[key] for key in same] == ["simulated", None, "bfloat16", None, 32768, 1]
    assert (info["version"], info["frontend"]) == ("0.5.23", "python")


async def test_loads(engine: Engine) -> None:
    """The load of its one rank; only the speculative engine has acceptance."""
    await engine.post("/generate", text="x")
    loads = (await engine.get("/v1/loads?include=all")).json()
    speculative = engine.speculates({"speculative": _keys("accept_length", "accept_rate")})
    assert _tree(loads) == {
        **_keys("timestamp", "version", "accelerator", "num_accelerators"),
        "loads": [{**LOADS, **speculative}],
    }
    (rank,) = loads["loads"]
    assert rank["total_prefill_uncached_tokens"] == 1
    if engine.speculative:
        assert 1.0 <= rank["speculative"]["accept_length"] <= 6.0


async def _metrics(engine: Engine) -> dict[str, float]:
    page = await engine.get("/metrics")
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [line for line in page.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in samples)}


async def test_metrics(engine: Engine) -> None:
    """Gauges from the start, counters once they have counted, under SGLang's names and labels."""
    rank = 'engine_type="unified",model_name="simulated",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    before = await _metrics(engine)
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput"):
        assert before[f"sglang:{name}{{{rank}}}"] == 0.0
    assert before[f"sglang:spec_num_steps{{{rank}}}"] == (5.0 if engine.speculative else 0.0)
    assert not any("_total" in name and "max_total" not in name for name in before)
    await engine.post("/generate", text="x", sampling_params={"max_new_tokens": 10})
    await engine.events("/generate", text="x", sampling_params={"max_new_tokens": 20})
    after = await _metrics(engine)
    for stream, tokens in (("false", 10.0), ("true", 20.0)):
        labels = f'engine_type="unified",is_streaming="{stream}",model_name="simulated"'
        assert after[f"sglang:num_requests_total{{{labels}}}"] == 1.0
        assert after[f"sglang:prompt_tokens_total{{{labels}}}"] == 1.0
        assert after[f"sglang:generation_tokens_total{{{labels}}}"] == tokens
    rounds = 'sglang:spec_verify_calls_total{engine_type="unified",model_name="simulated"}'
    assert (rounds in after) is engine.speculative
    assert (after[f"sglang:spec_accept_length{{{rank}}}"] > 1.0) is engine.speculative


async def test_flush_cache(engine: Engine) -> None:
    """Bench clients empty the cache before a run."""
    answer = await engine.client.post(f"{engine.url}/flush_cache")
    assert (answer.status_code, answer.text[:14]) == (200, "Cache flushed.")


async def test_abort_request(engine: Engine) -> None:
    """An empty 200, as SGLang gives it whether it knows the request or not."""
    answer = await engine.client.post(f"{engine.url}/abort_request", json={"rid": "a"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await engine.client.get(f"{engine.url}/abort_request")).status_code == 405


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"a"', b'{"rid": 1}'])
async def test_abort_request_without_an_object(engine: Engine, body: bytes) -> None:
    """400, as for every body that is not what it should be."""
    answer = await engine.client.post(f"{engine.url}/abort_request", content=body)
    assert answer.status_code == 400
    assert _tree(answer.json()) == ERROR


@pytest.mark.parametrize(
    "body", [b'{"messages": [', b"{}", b'{"messages": [], "temperature": "hot"}']
)
async def test_bad_requests(engine: Engine, body: bytes) -> None:
    """Broken JSON, a missing field and a wrong type: 400 with a flat error."""
    headers = {"content-type": "application/json"}
    url = f"{engine.url}/v1/chat/completions"
    answer = await engine.client.post(url, content=body, headers=headers)
    assert answer.status_code == 400
    assert _tree(answer.json()) == ERROR


async def test_a_wrong_content_type(engine: Engine) -> None:
    """400, not 415."""
    answer = await engine.client.post(f"{engine.url}/v1/chat/completions", content=b"{}")
    assert answer.status_code == 400
    assert "Only 'application/json' is allowed" in answer.json()["message"]


async def test_generate_too_long_in_a_stream(engine: Engine) -> None:
    """/generate has said 200 before it looks: the error is an event."""
    (error,) = await engine.events("/generate", text="x" * 200_000)
    assert _tree(error) == {"error": _keys("message", "type", "code", "retryable")}


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/v1/responses", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("DELETE", "/generate", 405, "POST, PUT"),
        ("DELETE", "/flush_cache", 405, "GET, POST"),
    ],
)
async def test_unknown_paths_and_methods(
    engine: Engine, method: str, path: str, status: int, allow: str | None
) -> None:
    """FastAPI's own errors."""
    answer = await engine.client.request(method, engine.url + path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert _tree(answer.json()) == _keys("detail")


async def test_the_official_client(engine: Engine) -> None:
    """The openai package reads whole and streamed replies of both kinds to the same text."""
    async with engine.openai() as client:
        whole = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=20
        )
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert text == whole.choices[0].message.content
        assert whole.choices[0].finish_reason == "length"
        assert chunks[-1].usage == whole.usage
        completion = await client.completions.create(model="m", prompt="hello", max_tokens=20)
        assert len(completion.choices[0].text.split()) == 20
        assert [model.id async for model in client.models.list()] == ["simulated"]


async def test_errors_in_the_official_client(engine: Engine) -> None:
    """Too much is a BadRequestError, and a full queue a 503, also without a stream."""
    async with engine.openai() as client:
        with pytest.raises(BadRequestError, match="maximum context length"):
            await client.completions.create(model="m", prompt="x", max_tokens=50_000)
        if engine.speculative:
            with pytest.raises(InternalServerError, match="queue is full"):
                await client.completions.create(model="m", prompt=["x"] * 49, max_tokens=5)
