"""What is told of the pair is so: books that balance, series that end, one truth in every place.

The problems are those of other proxies' monitoring. Prometheus' multiprocess mode, from which some
of them came, is not used here: one process has all the numbers.
"""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from proxy.core.words import Outcome, UpstreamName
from tests.harness.client import CHAT, CHAT_STREAM, RawClient, get, post
from tests.harness.process import Specswitch
from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    DONE,
    STREAM_HEAD,
    Fin,
    Gate,
    Reset,
    ScriptedUpstream,
    Send,
    Silence,
    Step,
    chunk,
    event,
    reply,
    stream,
)

TOKEN = chunk(event({"choices": [{"delta": {"content": "a"}}]}))

SCRAPE = """
from proxy.control.metrics import Metrics

metrics = Metrics("1")
metrics.started()
print(metrics.render()[0].decode())
"""


async def scrape(it: Rig) -> list[Metric]:
    """The families of GET /metrics."""
    async with await RawClient.connect(it.app.admin_port) as client:
        client.send(get("/metrics"))
        response = await client.response()
    return list(text_string_to_metric_families(response.body.decode()))


def value(families: list[Metric], name: str, **labels: str) -> float | None:
    """The sum of the series `name` with these labels, None where there is none."""
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


# Several processes -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_two_on_one_host_know_nothing_of_each_other(tmp_path: Path) -> None:
    """BerriAI/litellm#42566: the second to start wiped the first one's counts.

    Here nothing is shared and nothing is written: each counts its own.
    """
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    async with spec, base:
        urls = {"spec_url": spec.url, "base_url": base.url}
        async with Specswitch(folders[0] / "log", **urls) as first:
            await _ask(first, 3)
            async with Specswitch(folders[1] / "log", **urls) as second:
                await _ask(second, 2)
                await _ask(first, 1)
                counts = [
                    await asyncio.to_thread(each.metric, "requests_started_total")
                    for each in (first, second)
                ]
            await _ask(first, 1)
            after = await asyncio.to_thread(first.metric, "requests_started_total")
    assert (counts, after) == ([4, 2], 5)
    assert [sorted(each.name for each in folder.iterdir()) for folder in folders] == [["log"]] * 2


async def _ask(it: Specswitch, count: int) -> None:
    async with await RawClient.connect(it.port) as client:
        for _ in range(count):
            client.send(post("/generate", CHAT))
            assert (await client.response()).status == 200


@pytest.mark.parametrize("exists", [True, False])
def test_the_engines_environment_is_not_ours(exists: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter
    """ptrlrd/spire-codex#297: SGLang's PROMETHEUS_MULTIPROC_DIR may stand in the same shell.

    The client library obeys it: our counts would be written among the engine's, and told by it;
    or, where it has gone, nothing would start.
    """
    folder = tmp_path / "engine"
    if exists:
        folder.mkdir()
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", SCRAPE],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"specswitch_requests_started_total 1.0" in done.stdout
    assert not exists or not list(folder.iterdir())


# Form ------------------------------------------------------------------------------------------


async def test_the_metrics_are_well_formed() -> None:
    """llm-d/llm-d-router#2165: what `promtool check metrics` and a dashboard would trip over.

    Names, units, types and help; no negative value, no NaN, buckets that grow, each series once.
    After traffic of every outcome, for series that come into being late are series too.
    """
    async with rig() as it:
        await _every_outcome(it)
        families = await scrape(it)
    seen = set()
    for family in families:
        assert family.name.startswith("specswitch_")
        assert family.name == family.name.lower()
        assert family.documentation.endswith(".")
        assert family.type in {"counter", "gauge", "histogram", "info"}
        last: dict[tuple[str, ...], float] = {}
        for sample in family.samples:
            key = (sample.name, *sorted(map(str, sample.labels.items())))
            assert key not in seen
            seen.add(key)
            assert sample.value >= 0, sample  # never true of NaN
            if sample.name.endswith("_bucket"):
                labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "le")
                assert sample.value >= last.get(labels, 0.0), sample
                last[labels] = sample.value
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert all(each.name.endswith("_total") for each in family.samples)
        else:
            assert not family.name.endswith("_total")


# Endings ---------------------------------------------------------------------------------------

ENDINGS: list[tuple[str, tuple[Step, ...], Outcome]] = [
    ("a whole stream", (Send(stream(event({"choices": []}), DONE)),), Outcome.OK),
    ("its own 400", (Send(reply(b"{}", status="400 Bad Request")),), Outcome.OK),
    ("its own 500", (Send(reply(b"{}", status="500 x")),), Outcome.FAILED),
    ("an error event", (Send(stream(event({"error": {"code": 500}}), DONE)),), Outcome.FAILED),
    ("a reset", (Send(STREAM_HEAD + TOKEN), Reset()), Outcome.FAILED),
    ("an end in the middle", (Send(STREAM_HEAD + TOKEN), Fin()), Outcome.FAILED),
    ("silence in the middle", (Send(STREAM_HEAD + TOKEN), Silence()), Outcome.FAILED),
    ("silence from the start", (Silence(),), Outcome.FAILED),
    ("no HTTP", (Send(b"nonsense\r\n\r\n"),), Outcome.FAILED),
]
QUICK: dict[str, object] = {
    "timeouts__between_chunks": 0.2,
    "timeouts__first_byte": 0.2,
    "health__passive_failures": 1000,
}


async def _every_outcome(it: Rig) -> None:
    client = await it.client()
    for raw in (post("/generate", CHAT), get("/nowhere"), get("/v1/models")):
        client.send(raw)
        await client.response()
    it.spec.script(Send(STREAM_HEAD + TOKEN), Silence())
    leaves = await it.client()
    leaves.send(post("/v1/chat/completions", CHAT_STREAM))
    await leaves.head()
    leaves.reset()
    await it.until(lambda: it.metric("requests_total", outcome="abandoned") == 1, "it is booked")


@pytest.mark.parametrize(("what", "steps", "outcome"), ENDINGS, ids=[each[0] for each in ENDINGS])
async def test_an_outcome_is_what_happened_at_the_end(
    what: str, steps: tuple[Step, ...], outcome: Outcome
) -> None:
    """BerriAI/litellm#29602: a stream that broke off after its 200 was booked as a success.

    Booked once, at the end, as what it came to; the sum over all outcomes is what was started.
    """
    async with rig(**QUICK) as it:  # type: ignore[arg-type]  # keys of the configuration only
        it.spec.script(*steps)
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM))
        await client.response()
        await it.until(lambda: it.app.front.open_requests == 0, "it has ended")
        families = await scrape(it)
        for each in Outcome:
            expected = float(each is outcome)
            assert value(families, "requests_total", outcome=each, upstream="spec") == expected
        assert value(families, "requests_total") == value(families, "requests_started_total") == 1


async def test_a_client_that_leaves_is_no_failure_and_no_success() -> None:
    """The fourth and the last outcomes: abandoned, and rejected by us."""
    async with rig() as it:
        await _every_outcome(it)
        families = await scrape(it)
        told = {each: value(families, "requests_total", outcome=each) for each in Outcome}
        assert told == {"ok": 2, "abandoned": 1, "rejected": 1, "failed": 0}
        assert value(families, "responses_total") == 3  # nobody was there to be answered


# What is gone ----------------------------------------------------------------------------------


async def test_a_reading_of_an_engine_that_has_gone_ends() -> None:
    """The series of a removed worker stayed for ever. Here what is not known is not told.

    The two upstreams themselves are always there: their names are a closed set, and a series that
    says 0 is what an alert needs.
    """
    async with rig(health__interval=0.05) as it:
        families: list[Metric] = []
        async with asyncio.timeout(10):
            while value(families, "engine_running", upstream="spec") is None:
                families = await scrape(it)
        await it.spec.stop()
        async with asyncio.timeout(10):
            while value(families, "engine_running", upstream="spec") is not None:
                families = await scrape(it)
        for name in ("engine_waiting", "engine_token_usage", "engine_acceptance_length"):
            assert value(families, name, upstream="spec") is None
        assert value(families, "engine_running", upstream="base") is not None
        await it.until(lambda: not it.healthy(UpstreamName.SPEC), "it is ejected")
        families = await scrape(it)
        assert value(families, "upstream_healthy", upstream="spec") == 0
        assert value(families, "upstream_seen", upstream="spec") == 1
        assert value(families, "in_flight", upstream="spec") == 0
        began = it.app.pair.facts.started.timestamp()
        assert value(families, "process_start_time_seconds") == began


def _run(it: Rig, count: int) -> bool:
    return it.app.dispatcher.in_flight.total == count


async def _state(it: Rig) -> dict[str, Any]:
    """GET /admin/state."""
    async with await RawClient.connect(it.app.admin_port) as client:
        client.send(get("/admin/state"))
        state = json.loads((await client.response()).body)
    assert isinstance(state, dict)
    return state


# One truth -------------------------------------------------------------------------------------


async def test_state_metrics_and_headers_agree() -> None:
    """ai-dynamo/dynamo#6972: nobody could tell which setting acts on which number.

    Load, thresholds, mode, who set the control and why a request went where it did: in the state,
    in the metrics and in the answer's own headers, and the same in each.
    """
    async with rig() as it:
        gate = asyncio.Event()
        clients = [await it.client() for _ in range(5)]
        for number, client in enumerate(clients):
            for upstream in (it.spec, it.base):
                upstream.always(Gate(gate), Send(reply(b"{}")))
            client.send(post("/generate", CHAT))
            await it.until(partial(_run, it, number + 1), "it runs")
        state, families = await _state(it), await scrape(it)
        in_flight = state["in_flight"]
        assert in_flight == {"spec": 4, "base": 1}
        for name, count in in_flight.items():
            assert value(families, "in_flight", upstream=name) == count
        assert (state["mode"], state["mode_reason"]) == ("base", "in_flight")
        assert value(families, "mode", mode="base") == 1
        assert value(families, "mode", mode="spec") == 0
        assert value(families, "control", control=str(state["control"])) == 1
        assert state["control_set_by"] == "configuration"
        crossover = state["crossover"]["in_flight"]
        assert value(families, "crossover_in_flight") == crossover == 4
        assert state["gate"] == 1
        assert value(families, "queue_depth") == state["queue_depth"] == 0
        switched = value(families, "mode_switches_total", to="base", reason="in_flight")
        assert switched == 1
        gate.set()
        went = [await client.response() for client in clients]
        assert [each.header("x-specswitch-upstream") for each in went] == ["spec"] * 4 + ["base"]
        assert {each.header("x-specswitch-reason") for each in went} == {"mode"}
        families = await scrape(it)
        assert value(families, "decisions_total", upstream="spec", reason="mode") == 4
        assert value(families, "decisions_total", upstream="base", reason="mode") == 1


# The last decisions ----------------------------------------------------------------------------


async def test_decisions_tell_of_those_that_run_and_those_that_have_ended() -> None:
    """Whoever waits has none yet, and an idle connection has nothing to tell."""
    gate = asyncio.Event()
    async with rig(policy__control="base", upstreams__base__max_in_flight=1) as it:
        await it.client()
        it.base.script(Send(STREAM_HEAD + TOKEN), Gate(gate), Send(chunk(DONE)), Fin())
        running, waiting = await it.client(), await it.client()
        running.send(post("/v1/chat/completions", CHAT_STREAM, headers={"x-request-id": "runs"}))
        await running.head()
        waiting.send(post("/v1/chat/completions", CHAT, headers={"x-request-id": "waits"}))
        await it.until(lambda: len(it.app.dispatcher.room) == 1, "one waits")
        (only,) = json.loads((await it.admin("GET", "/admin/decisions")).body)["decisions"]
        assert (only["request_id"], only["outcome"]) == ("runs", None)
        assert (only["upstream"], only["reason"], only["in_flight"]) == ("base", "control", 1)
        gate.set()
        assert (await waiting.response()).status == 200
        told = json.loads((await it.admin("GET", "/admin/decisions")).body)["decisions"]
        assert [one["request_id"] for one in told] == ["waits", "runs"]
        assert told[0]["outcome"] == "ok"
