"""The pair itself, without specswitch: what our other tests, and specswitch, take for granted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from proxy.core.words import UpstreamName
from tests.engines.pair import (
    BASE,
    MODEL,
    SPEC,
    Engine,
    EngineError,
    EnginePair,
    Options,
    wait_until,
)

CHAT = "/v1/chat/completions"
PROMPTS = ["hello", "Tell me about lists, please.", "for loop over the tuple " * 40, "ä € 𝄞"]

# A reply of some ten seconds: long enough to be in the middle of it whenever a test looks.
LONG = {"max_tokens": 3900, "ignore_eos": True, "stream": True}


def chat(prompt: str, **fields: object) -> dict[str, object]:
    """Return a greedy chat request."""
    message = {"role": "user", "content": prompt}
    return {"model": MODEL, "messages": [message], "max_tokens": 60, "temperature": 0, **fields}


def ask(
    engine: Engine, body: dict[str, object], path: str = CHAT, key: str | None = None
) -> httpx2.Response:
    """Return the whole answer, whatever its status."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx2.Client(trust_env=False, timeout=60.0) as client:
        return client.post(engine.url + path, json=body, headers=headers)


def events(text: str) -> list[str]:
    """Return the data of each event of a stream."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line]


def written(stream: str) -> str:
    """Return the text of a streamed chat reply."""
    chunks = [json.loads(event) for event in events(stream) if event != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def hold(engine: Engine, prompt: str, **fields: object) -> httpx2.Response:
    """Ask for a long reply and read it to its end; cancelled, it is a client that leaves."""
    key = engine.options.api_key
    async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as client:
        return await client.post(
            engine.url + CHAT,
            json=chat(prompt, **(LONG | fields)),
            headers={} if key is None else {"authorization": f"Bearer {key}"},
        )


async def loaded(engine: Engine, running: int, waiting: int) -> None:
    """Return once so many requests run and wait."""
    what = f"{running} running, {waiting} waiting"
    await asyncio.to_thread(wait_until, lambda: engine.load() == (running, waiting), what)


@pytest.fixture(params=list(UpstreamName))
def engine(request: pytest.FixtureRequest, engines: EnginePair) -> Engine:
    """Each of the two in turn."""
    name: UpstreamName = request.param
    return engines[name]


@pytest.fixture
def other(engine: Engine, engines: EnginePair) -> Engine:
    """The one that is not *engine*."""
    return engines[engine.name.other]


def test_both_serve_the_model(engine: Engine) -> None:
    """Each server names the model and answers for it."""
    models = engine.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    reply = ask(engine, chat("hello")).json()
    assert reply["usage"]["completion_tokens"] == 60
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_same_on_both(engines: EnginePair, prompt: str) -> None:
    """Speculation changes how fast a greedy reply comes, and no letter of it."""
    base, spec = (
        ask(server, chat(prompt, max_tokens=200)).json() for server in (engines.base, engines.spec)
    )
    assert base["choices"][0]["message"]["content"]
    assert base["choices"] == spec["choices"]
    assert base["usage"] == spec["usage"]


def test_completions_are_the_same_on_both(engines: EnginePair) -> None:
    """The older endpoint agrees as well."""
    body = {"model": MODEL, "prompt": PROMPTS[1], "max_tokens": 200, "temperature": 0}
    base, spec = (
        ask(server, body, "/v1/completions").json() for server in (engines.base, engines.spec)
    )
    assert base["choices"][0]["text"]
    assert base["choices"] == spec["choices"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_text_is_the_plain_text(engine: Engine, prompt: str) -> None:
    """A stream spells what the plain answer says, and ends with its mark."""
    plain = ask(engine, chat(prompt)).json()
    stream = ask(engine, chat(prompt, stream=True))
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert events(stream.text)[-1] == "[DONE]"
    assert written(stream.text) == plain["choices"][0]["message"]["content"]


def test_only_spec_speculates(engines: EnginePair) -> None:
    """On spec a round gives more than one token, and it says so when asked; base is silent."""
    body = chat("hello", max_tokens=200, return_spec_tokens_details=True)
    details = ask(engines.spec, body).json()["sglext"]["spec_tokens_details"]
    assert details["spec_accept_length"] > 1.5
    assert details["spec_verify_ct"] < 200
    assert "sglext" not in ask(engines.base, body).json()


def test_speculation_is_left_out_unless_asked_for(engine: Engine) -> None:
    """Neither server adds the details by itself."""
    assert "sglext" not in ask(engine, chat("hello")).json()


def test_server_info_tells_the_two_apart(engines: EnginePair) -> None:
    """What must differ between the servers differs, what must agree agrees."""
    base, spec = (
        server.get("/server_info").raise_for_status().json()
        for server in (engines.base, engines.spec)
    )
    assert (base["speculative_algorithm"], spec["speculative_algorithm"]) == (None, "EAGLE3")
    assert spec["speculative_num_steps"] == 3
    assert spec["speculative_eagle_topk"] == 1
    assert spec["speculative_num_draft_tokens"] == 4
    assert (base["max_running_requests"], spec["max_running_requests"]) == (64, 16)
    for key in ("model_path", "revision", "dtype", "quantization", "context_length", "tp_size"):
        assert key in base
        assert base[key] == spec[key]


def test_the_metrics_we_read_exist(engine: Engine) -> None:
    """After one reply every name is there that specswitch, or a test of it, reads."""
    ask(engine, chat("hello", max_tokens=200)).raise_for_status()
    names = [
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "gen_throughput",
        "num_requests_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "spec_accept_length",
        "spec_num_steps",
    ]
    wait_until(lambda: None not in map(engine.metric, names), f"all of {names}")


def test_speculation_shows_in_the_counters(engines: EnginePair) -> None:
    """The counters alone give the acceptance length: tokens by rounds, on spec only."""

    def growth(engine: Engine) -> tuple[float, float]:
        """Return by how many tokens and rounds one reply of 200 tokens raises the counters."""
        names = ("generation_tokens_total", "spec_verify_calls_total")
        before = [engine.metric(name) or 0.0 for name in names]
        ask(engine, chat("hello", max_tokens=200)).raise_for_status()
        tokens, rounds = (
            (engine.metric(name) or 0.0) - start for name, start in zip(names, before, strict=True)
        )
        return tokens, rounds

    tokens, rounds = growth(engines.spec)
    assert tokens == 200
    assert tokens / rounds > 1.5
    assert growth(engines.base) == (200, 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_counted(engine: Engine, *, stream: bool) -> None:
    """The server notices, streaming or not, stops the request and counts it as aborted."""
    before = engine.metric("num_aborted_requests_total") or 0.0
    async with asyncio.TaskGroup() as clients:
        client = clients.create_task(hold(engine, "go on", stream=stream))
        await loaded(engine, 1, 0)
        client.cancel()
    wait_until(lambda: engine.metric("num_aborted_requests_total") == before + 1, "one aborted")
    engine.wait_until_idle()


def test_options_are_sglangs_words() -> None:
    """Only what is asked for is passed on."""
    assert Options(2).arguments() == ["--max-running-requests=2"]
    assert Options(2, 0, "k", ("-x",)).arguments() == [
        "--max-running-requests=2",
        "--max-queued-requests=0",
        "--api-key=k",
        "-x",
    ]


async def test_a_full_queue_refuses(engines: EnginePair) -> None:
    """Beyond one running and one waiting: 503 plainly, 200 with an error event in a stream."""
    options = Options(1, max_queued_requests=1, api_key="secret", extra=("--watchdog-timeout=299",))
    await asyncio.to_thread(engines.restart, UpstreamName.SPEC, options)
    spec = engines.spec
    assert spec.get("/server_info").json()["watchdog_timeout"] == 299
    assert ask(spec, chat("hello")).status_code == 401
    async with asyncio.TaskGroup() as clients:
        first = clients.create_task(hold(spec, "the first runs"))
        await loaded(spec, 1, 0)
        second = clients.create_task(hold(spec, "the second waits"))
        await loaded(spec, 1, 1)
        plain = ask(spec, chat("the third"), key="secret")
        stream = ask(spec, chat("the fourth", stream=True), key="secret")
        first.cancel()
        second.cancel()
    assert plain.status_code == 503
    assert plain.json()["code"] == 503
    assert stream.status_code == 200
    error, end = events(stream.text)
    assert json.loads(error)["error"]["code"] == 503
    assert end == "[DONE]"


def test_each_test_begins_as_usual(engines: EnginePair) -> None:
    """Whatever the test before has changed is undone."""
    assert (engines.spec.options, engines.base.options) == (SPEC, BASE)
    assert engines.spec.get("/server_info").json()["max_running_requests"] == 16
    assert ask(engines.spec, chat("hello")).is_success


async def test_kill_and_restart(engines: EnginePair, engine: Engine, other: Engine) -> None:
    """Killed: streams break off, the port refuses, the other carries on. Restarted: as before."""
    before, url = ask(engine, chat("hello")).json()["choices"], engine.url
    async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as client:
        body = chat("go on", **LONG)
        async with client.stream("POST", engine.url + CHAT, json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            engines.kill(engine.name)
            with pytest.raises(httpx2.TransportError):
                assert "data: [DONE]" not in [line async for line in lines]
    assert not engine.running
    with pytest.raises(httpx2.ConnectError):
        ask(engine, chat("hello"))
    assert ask(other, chat("hello")).json()["choices"] == before
    await asyncio.to_thread(engines.restart, engine.name)
    assert engine.url == url
    assert ask(engine, chat("hello")).json()["choices"] == before


async def test_a_stopped_server_finishes_first(engines: EnginePair) -> None:
    """SIGTERM lets a reply in flight come to its end."""
    async with asyncio.TaskGroup() as clients:
        client = clients.create_task(hold(engines.base, "go on", max_tokens=1500))
        await loaded(engines.base, 1, 0)
        await asyncio.to_thread(engines.stop, UpstreamName.BASE)
    assert events(client.result().text)[-1] == "[DONE]"
    assert not engines.base.running


def test_no_server_outlives_its_starter(engines: EnginePair, tmp_path: Path) -> None:
    """A test run that is itself killed leaves nothing behind."""
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from tests.engines.pair import BASE, Engine; from proxy.core.words import UpstreamName;"
        "engine = Engine(UpstreamName.BASE, Path(sys.argv[1]), BASE); engine.start(BASE);"
        "print(engine.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    starter = subprocess.run(  # noqa: S603 - this interpreter, no shell
        [sys.executable, "-c", script, str(tmp_path / "orphan.log")],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # what nobody is left to clear away
    )
    assert starter.returncode == -signal.SIGKILL, starter.stderr
    wait_until(lambda: not _exists(int(starter.stdout)), "the server is gone")


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_that_cannot_start_says_why(engines: EnginePair) -> None:
    """The error holds the end of the log."""
    with pytest.raises(EngineError, match="no-such-option"):
        engines.restart(UpstreamName.SPEC, replace(SPEC, extra=("--no-such-option",)))
