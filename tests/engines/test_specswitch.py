"""specswitch, a real process, in front of two real SGLang servers, through the official client.

These servers are the judge of behaviour, not of speed: on a CPU speculation gains nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from proxy.core.words import UpstreamName
from tests.engines.pair import BASE, MODEL, SPEC, Engine, EnginePair, Options, wait_until
from tests.harness.process import Specswitch

N_STAR = 4
PROMPTS = ["hello", "Tell me about lists, please.", "for loop over the tuple " * 40, "ä € 𝄞"]
# A reply of some ten seconds: long enough to be in the middle of it whenever a test looks.
LONG = {"max_tokens": 3900, "extra_body": {"ignore_eos": True}}
VARYING = {"id", "created", "request_id", "_request_id"}


@pytest.fixture
def proxied(engines: EnginePair, tmp_path: Path) -> Iterator[Specswitch]:
    """The proxy in front of the pair, quick to notice and quick to return to speculation."""
    with Specswitch(
        tmp_path / "specswitch.log",
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        policy_crossover=N_STAR,
        policy_count_window=0.5,
        policy_return_dwell=0.5,
        policy_flap_limit=100,
        health_interval=0.2,
        health_timeout=2,
        timeouts_wait_for_upstream=2,
    ) as process:
        wait_until(lambda: process.state()["mode"] == "spec", "speculation is on")
        yield process


@pytest.fixture
async def client(proxied: Specswitch) -> AsyncIterator[AsyncOpenAI]:
    """The official client, which retries nothing on its own."""
    async with AsyncOpenAI(
        base_url=f"{proxied.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as made:
        yield made


def direct(engine: Engine) -> AsyncOpenAI:
    """The official client, to a server itself."""
    return AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=60)


def same(answer: BaseModel) -> object:
    """`answer` without what differs between two equal ones: ids and times."""
    return _same(answer.model_dump(warnings=False))


def _same(value: object) -> object:
    if isinstance(value, dict):
        return {name: _same(each) for name, each in value.items() if name not in VARYING}
    return [_same(each) for each in value] if isinstance(value, list) else value


async def chat(client: AsyncOpenAI, prompt: str, **fields: object) -> ChatCompletion:
    """A greedy chat answer, whole."""
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        **{"max_tokens": 60, "temperature": 0, **fields},  # type: ignore[call-overload]
    )
    assert isinstance(answer, ChatCompletion)
    return answer


async def chat_stream(
    client: AsyncOpenAI, prompt: str, **fields: object
) -> list[ChatCompletionChunk]:
    """The chunks of a greedy streamed chat answer."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        stream_options={"include_usage": True},
        **{"max_tokens": 60, "temperature": 0, **fields},  # type: ignore[call-overload]
    )
    return [chunk async for chunk in stream]


def as_json(answer: BaseModel) -> str:
    """All of it, fields that the client's models do not know included."""
    return json.dumps(answer.model_dump(warnings=False))


async def where(client: AsyncOpenAI, **fields: object) -> tuple[str, str]:
    """The upstream and the reason of a short chat."""
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        **{"max_tokens": 8, "temperature": 0, **fields},  # type: ignore[call-overload]
    )
    return raw.headers["x-specswitch-upstream"], raw.headers["x-specswitch-reason"]


def text(chunks: list[ChatCompletionChunk]) -> str:
    """What a streamed answer says."""
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)


@pytest.mark.parametrize("name", list(UpstreamName))
async def test_answers_are_those_of_the_server(
    engines: EnginePair, proxied: Specswitch, client: AsyncOpenAI, name: UpstreamName
) -> None:
    """Through us or not: the same text and the same fields, ids and times aside."""
    proxied.control(name)
    async with direct(engines[name]) as server:
        for prompt in PROMPTS:
            assert same(await chat(client, prompt)) == same(await chat(server, prompt))
            ours, theirs = await chat_stream(client, prompt), await chat_stream(server, prompt)
            assert text(ours) == text(theirs)
            assert same(ours[-1]) == same(theirs[-1])  # usage
            assert {str(chunk.model_fields_set) for chunk in ours} == {
                str(chunk.model_fields_set) for chunk in theirs
            }
        said = [
            await each.completions.create(
                model=MODEL, prompt="for", max_tokens=20, temperature=0, echo=False
            )
            for each in (client, server)
        ]
        assert same(said[0]) == same(said[1])
        models, served = await client.models.list(), await server.models.list()
        assert [m.id for m in models.data] == [m.id for m in served.data] == [MODEL]


async def test_greedy_text_is_the_same_on_both(proxied: Specswitch, client: AsyncOpenAI) -> None:
    """Speculation changes the speed and not the text."""
    said = {}
    for name in UpstreamName:
        proxied.control(name)
        said[name] = [text(await chat_stream(client, prompt)) for prompt in PROMPTS]

    assert said[UpstreamName.SPEC] == said[UpstreamName.BASE]
    assert all(said[UpstreamName.SPEC])


@pytest.mark.parametrize("stream", [False, True])
async def test_speculation_details_appear_where_they_should(
    proxied: Specswitch,
    client: AsyncOpenAI,
    stream: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Asked for, `spec_tokens_details` come from spec and not from base; usage from both."""
    asked = {"extra_body": {"return_spec_tokens_details": True}}
    for name, expected in ((UpstreamName.SPEC, True), (UpstreamName.BASE, False)):
        proxied.control(name)
        if stream:
            told = "".join(map(as_json, await chat_stream(client, "hello", **asked)))
        else:
            told = as_json(await chat(client, "hello", **asked))
        assert ('"spec_tokens_details"' in told) is expected
        assert '"completion_tokens":' in told
        assert '"spec_tokens_details"' not in as_json(await chat(client, "hello"))


async def test_a_burst_goes_to_base_and_calm_returns_to_spec(
    engines: EnginePair, proxied: Specswitch, client: AsyncOpenAI
) -> None:
    """Alone: spec. A burst of 24: at most N* on spec, the rest on base, none refused. Then: spec.

    The servers' own counters agree with ours.
    """
    before = {name: engines[name].metric("num_requests_total") or 0 for name in UpstreamName}
    for _ in range(3):
        assert await where(client) == ("spec", "mode")
    burst = await asyncio.gather(*(where(client, max_tokens=200) for _ in range(24)))
    on_spec = [reason for upstream, reason in burst if upstream == "spec"]
    assert 1 <= len(on_spec) <= N_STAR
    assert {upstream for upstream, _ in burst} == {"spec", "base"}
    wait_until(lambda: proxied.state()["mode"] == "spec", "calm has returned")
    assert await where(client) == ("spec", "mode")

    assert proxied.metric("requests_total", outcome="ok") == 28
    for name in UpstreamName:
        ours = proxied.metric("requests_total", upstream=name, outcome="ok")
        theirs = (engines[name].metric("num_requests_total") or 0) - before[name]
        assert ours == theirs
    assert proxied.metric("in_flight") == 0
    tokens = proxied.metric("output_tokens_total")
    assert 4 * 8 < tokens <= 4 * 8 + 24 * 200  # a reply may end before its limit


@pytest.mark.parametrize("name", list(UpstreamName))
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_aborted(
    engines: EnginePair,
    proxied: Specswitch,
    client: AsyncOpenAI,
    name: UpstreamName,
    stream: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The engine is told by its connection closing: it aborts, and nothing is in flight."""
    proxied.control(name)
    engine = engines[name]
    before = engine.metric("num_aborted_requests_total") or 0
    asking = asyncio.get_running_loop().create_task(
        chat_stream(client, "go on", **LONG) if stream else chat(client, "go on", **LONG)
    )
    await asyncio.to_thread(wait_until, lambda: engine.load()[0] == 1, "it runs")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.to_thread(
        wait_until,
        lambda: (engine.metric("num_aborted_requests_total") or 0) > before,
        "it is aborted",
    )

    assert proxied.metric("in_flight") == 0
    assert proxied.metric("requests_total", outcome="abandoned") == 1


@pytest.mark.parametrize("name", list(UpstreamName))
async def test_a_killed_server(
    engines: EnginePair, proxied: Specswitch, client: AsyncOpenAI, name: UpstreamName
) -> None:
    """SIGKILL under load: who had not started does not fail, and later requests go to the other.

    Those it was answering see an error and never a finished answer. Restarted, it serves again.
    """
    proxied.control(name)
    running = [
        asyncio.get_running_loop().create_task(chat_stream(client, f"{number}", **LONG))
        for number in range(4)
    ]
    await asyncio.to_thread(wait_until, lambda: engines[name].load()[0] == 4, "four run")
    engines.kill(name)
    results = await asyncio.gather(*running, return_exceptions=True)
    errors = openai.APIError | httpx2.TransportError
    assert all(isinstance(result, errors) for result in results), results

    # Fewer than the other may have: a connection that fails is retried where a place is free.
    after = await asyncio.gather(*(where(client) for _ in range(12)))
    assert {upstream for upstream, _ in after} == {name.other}
    assert {reason for _, reason in after} <= {"health", "retry", "full"}
    assert proxied.metric("midstream_failures_total", upstream=name) == 4

    await asyncio.to_thread(engines.restart, name)
    await asyncio.to_thread(
        wait_until,
        lambda: proxied.metric("upstream_healthy", upstream=name) == 1,
        "it is back",
    )
    proxied.control(name)
    assert (await where(client))[0] == name


async def test_queue_full_on_spec_is_retried_on_base(
    engines: EnginePair, proxied: Specswitch, client: AsyncOpenAI
) -> None:
    """A full queue is an error event inside a 200; it is tried once on base before we answer."""
    await asyncio.to_thread(
        engines.restart,
        UpstreamName.SPEC,
        replace(SPEC, max_running_requests=1, max_queued_requests=1),
    )
    wait_until(lambda: proxied.metric("upstream_healthy", upstream="spec") == 1, "spec is back")
    proxied.control("spec")
    blockers = await _fill(engines.spec, running=1, waiting=1)
    try:
        for stream in (False, True):
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=8,
                stream=stream,
            )
            assert raw.headers["x-specswitch-upstream"] == "base"
            assert raw.headers["x-specswitch-reason"] in {"retry", "full"}
    finally:
        await _end(blockers)


async def test_queue_full_on_both_passes_unchanged(
    engines: EnginePair, proxied: Specswitch, client: AsyncOpenAI
) -> None:
    """When both refuse, the client gets SGLang's own error, and we count it as failed."""
    full = Options(max_running_requests=1, max_queued_requests=1)
    for name in UpstreamName:
        await asyncio.to_thread(engines.restart, name, full)
    wait_until(lambda: proxied.metric("upstream_healthy") == 2, "both are back")
    proxied.control("spec")
    blockers = [
        *await _fill(engines.spec, running=1, waiting=1),
        *await _fill(engines.base, running=1, waiting=1),
    ]
    try:
        # Read to its end: the official client leaves at the error event, which may be before it.
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as raw:
            answer = await raw.post(f"{proxied.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert b"queue is full" in answer.content
        assert answer.content.endswith(b"data: [DONE]\n\n")
        with pytest.raises(openai.InternalServerError, match="queue is full"):
            await chat(client, "hello")
        wait_until(
            lambda: proxied.metric("requests_total", outcome="failed") == 2, "they are counted"
        )
        assert proxied.metric("retries_total", cause="refusal") == 2
        with pytest.raises(openai.APIError, match="queue is full"):
            await chat_stream(client, "hello")
    finally:
        await _end(blockers)


def until_load(engine: Engine, load: tuple[int, int]) -> None:
    """Wait until as many run and wait in the server as `load` says."""
    wait_until(lambda: engine.load() == load, f"{load} run and wait")


async def _fill(
    engine: Engine, *, running: int, waiting: int
) -> list[asyncio.Task[list[ChatCompletionChunk]]]:
    """Occupy a server directly, and wait until it is as full as said."""

    async def block() -> list[ChatCompletionChunk]:
        async with direct(engine) as server:
            return await chat_stream(server, "go on", **LONG)

    tasks = []
    for count in range(1, running + waiting + 1):
        tasks.append(asyncio.get_running_loop().create_task(block()))
        # One after the other: a queue of one is full while the first has not begun to run.
        await asyncio.to_thread(until_load, engine, (min(count, running), max(0, count - running)))
    return tasks


async def _end(tasks: list[asyncio.Task[list[ChatCompletionChunk]]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_body": {"min_p": 0.2}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"extra_body": {"repetition_penalty": 1.3}},
    ],
)
async def test_what_spec_would_get_wrong_goes_to_base(
    proxied: Specswitch, client: AsyncOpenAI, fields: dict[str, object]
) -> None:
    """A real min_p or penalty always goes to base, whatever the operator says."""
    proxied.control("spec")
    upstream, reason = await where(client, **fields)

    assert upstream == "base"
    assert reason in {"eligibility:min_p", "eligibility:penalties"}


async def test_neutral_values_change_nothing(client: AsyncOpenAI) -> None:
    """`min_p: 0` and `frequency_penalty: 0` ask for nothing."""
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0}
    extra = {"min_p": 0, "repetition_penalty": 1, "min_tokens": 0}

    assert await where(client, **neutral, extra_body=extra) == ("spec", "mode")


async def test_ineligible_when_base_is_down(
    engines: EnginePair, proxied: Specswitch, client: AsyncOpenAI
) -> None:
    """With base gone such a request fails, named, rather than being answered wrongly."""
    engines.kill(UpstreamName.BASE)
    wait_until(lambda: proxied.metric("upstream_healthy", upstream="base") == 0, "it is noticed")
    with pytest.raises(openai.InternalServerError) as caught:
        await where(client, extra_body={"min_p": 0.2})
    assert caught.value.status_code == 503
    assert caught.value.code == "ineligible"

    assert (await where(client))[0] == "spec"
    assert BASE.max_queued_requests is None


async def test_the_log_tells_each_request(proxied: Specswitch, client: AsyncOpenAI) -> None:
    """One JSON line a request, with where and why and the tokens from usage."""
    await chat(client, "hello", max_tokens=8)
    wait_until(lambda: any("endpoint" in line for line in proxied.lines()), "it is logged")
    (line,) = [line for line in proxied.lines() if "endpoint" in line]

    assert line["endpoint"] == "/v1/chat/completions"
    assert line["upstream"] == "spec"
    assert line["outcome"] == "ok"
