"""`specswitch bench` on live servers: the simulated pair, specswitch, and ones that misbehave."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from proxy.app import running
from proxy.commands.bench import bench
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.sim.options import PairOptions
from proxy.sim.server import SimulatedPair
from proxy.tools.asking import Fault
from proxy.tools.bench.objective import figures
from proxy.tools.bench.plan import Endpoint, Options, plan
from proxy.tools.bench.run import measure
from proxy.tools.bench.standing import Cell
from proxy.tools.progress import progress
from tests.harness.configs import config
from tests.harness.upstream import (
    DONE,
    END,
    STREAM_HEAD,
    ByHand,
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

ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
TEXT = event({"choices": [{"index": 0, "delta": {"content": "word"}}]})
LAST = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
GOOD = Send(stream(ROLE, TEXT, LAST, USAGE, DONE))


async def measured(options: Options, stop: asyncio.Event | None = None) -> list[Cell]:
    """What came of it."""
    with progress(Console(), total=1, what="requests", quiet=True) as shown:
        return await measure(
            options, plan(options), shown, stop or asyncio.Event(), clock=time.monotonic
        )


def quick(endpoints: Sequence[Endpoint], **more: object) -> Options:
    """A short run at a high rate."""
    fields: dict[str, object] = {"rates": (200.0,), "requests": 40, "model": "tiny", **more}
    return Options(endpoints=endpoints, output_tokens=20, **fields)  # type: ignore[arg-type]  # the test's own names


@pytest.mark.slow
async def test_the_pair_and_specswitch_in_one_run() -> None:
    """Every endpoint gets the same work, and specswitch tells of switches and of who served."""
    async with SimulatedPair(PairOptions(time_scale=20.0)) as pair:
        keys = {
            "listen.host": "127.0.0.1",
            "listen.port": 0,
            "listen.admin_port": 0,
            "upstreams.spec.url": pair.spec_url,
            "upstreams.base.url": pair.base_url,
            "policy.crossover": 3.1,
        }
        async with running(config(overrides=keys)) as app:
            endpoints = [
                Endpoint(name="ours", url=app.url, admin_url=app.admin_url),
                Endpoint(name="spec", url=pair.spec_url),
                Endpoint(name="base", url=pair.base_url),
            ]
            cells = await measured(quick(endpoints, rates=(40.0, 200.0), model=None))
        assert pair.load(UpstreamName.SPEC).running == 0
    assert [(cell.endpoint, cell.rate) for cell in cells] == [
        (name, rate) for rate in (40.0, 200.0) for name in ("ours", "spec", "base")
    ]
    options = quick(endpoints)
    for cell in cells:
        found = figures(cell.fired, options.objective)
        assert (found.ok, found.planned, found.uncounted) == (40, 40, 0), found.messages
        assert found.tokens_per_second is not None
        samples = [sample for _, volley in cell.fired for sample in volley.samples]
        assert {sample.output_tokens for sample in samples if sample} == {20}
        assert (found.spec_share is not None) is (cell.endpoint == "ours")
        assert len(cell.watched) == (2 if cell.endpoint == "ours" else 0)
        assert all(watched.whole for watched in cell.watched)


async def test_the_same_to_each() -> None:
    """Arrivals and prompts are the same; only the marks, against a cache, are not."""
    sent: dict[bool, list[list[str]]] = {}
    async with ScriptedUpstream(speculative=True) as one, ScriptedUpstream(speculative=True) as two:
        one.always(GOOD)
        two.always(GOOD)
        endpoints = [Endpoint(name="one", url=one.url), Endpoint(name="two", url=two.url)]
        for fresh in (True, False):
            del one.requests[:], two.requests[:]
            cells = await measured(quick(endpoints, fresh=fresh, warm_up=0))
            sent[fresh] = [
                sorted(_prompt(request.body) for request in upstream.requests)
                for upstream in (one, two)
            ]
    there, back = ([cell.fired[turn][1].started_at for cell in cells] for turn in (0, 1))
    assert there[0] < there[1] < back[1] < back[0]  # what drifts favours nobody
    assert [shots for shots, _ in cells[0].fired] == [shots for shots, _ in cells[1].fired]
    assert sent[False][0] == sent[False][1]
    assert not set(sent[True][0]) & set(sent[True][1])
    assert len(set(sent[True][0])) == 40
    assert sorted(text.split("] ", 1)[1] for text in sent[True][0]) == sent[False][0]


@pytest.mark.parametrize("together", [True, False])
async def test_how_far_it_is_goes_by_planned_seconds(*, together: bool) -> None:
    """A slow rate takes longer than a fast one, with as many requests."""
    async with ScriptedUpstream(speculative=True) as one, ScriptedUpstream(speculative=True) as two:
        one.always(GOOD)
        two.always(GOOD)
        endpoints = [Endpoint(name="one", url=one.url), Endpoint(name="two", url=two.url)]
        options = quick(endpoints, rates=(100.0, 400.0), together=together)
        with progress(Console(), total=1, what="bench", quiet=True) as shown:
            await measure(options, plan(options), shown, asyncio.Event(), clock=time.monotonic)
    rounds = [shots for level in plan(options) for shots in level.rounds]
    seconds = sum(shots[-1].at for shots in rounds)
    assert shown.done == pytest.approx(2 * (seconds + 0.001 * 80))


def _prompt(body: bytes) -> str:
    class Message(msgspec.Struct):
        content: str

    class Body(msgspec.Struct):
        messages: list[Message]

    return msgspec.json.decode(body, type=Body).messages[0].content


async def test_together() -> None:
    """All at once, all get everything."""
    async with ScriptedUpstream(speculative=True) as one, ScriptedUpstream(speculative=True) as two:
        one.always(GOOD)
        two.always(GOOD)
        endpoints = [Endpoint(name="one", url=one.url), Endpoint(name="two", url=two.url)]
        cells = await measured(quick(endpoints, together=True, warm_up=0))
    for cell in cells:
        ((_, volley),) = cell.fired
        assert all(sample is not None and sample.ok for sample in volley.samples)
    starts = [cell.fired[0][1].started_at for cell in cells]
    assert abs(starts[0] - starts[1]) < 0.1


async def test_every_bad_end_is_counted_by_its_kind() -> None:
    """An error event, a cut, a missing end, a refusal and silence each have their own line."""
    error = event({"error": {"message": "out of memory", "code": 500}})
    bad: dict[Fault, list[Step]] = {
        Fault.ERROR_EVENT: [Send(stream(ROLE, TEXT, error, DONE))],
        Fault.CUT: [Send(STREAM_HEAD + chunk(TEXT)), Reset()],
        Fault.UNFINISHED: [Send(stream(ROLE, TEXT, LAST, USAGE))],
        Fault.STATUS: [Send(reply(b"{}", status="500 Internal Server Error"))],
        Fault.NO_STREAM: [Send(reply(b"{}"))],
        Fault.LOST: [Reset()],
        Fault.TIMEOUT: [Silence()],
        Fault.REFUSED: [Send(reply(b"{}", status="503 Service Unavailable"))],
    }
    async with ScriptedUpstream(speculative=True) as upstream:
        for steps in bad.values():
            upstream.script(*steps)
        upstream.always(GOOD)
        options = quick(
            [Endpoint(name="a", url=upstream.url)], requests=12, warm_up=0, rounds=1, timeout=1.0
        )
        (cell,) = await measured(options)
    found = figures(cell.fired, options.objective)
    assert (found.planned, found.ok, found.failed, found.refused) == (12, 4, 7, 1)
    assert dict(found.faults) == dict.fromkeys(set(bad) - {Fault.REFUSED}, 1)


async def test_a_slow_head_is_a_slow_first_token() -> None:
    """What the server takes to begin is the server's, not the generator's."""
    async with ScriptedUpstream(speculative=True) as upstream:
        upstream.script(ByHand())
        options = quick([Endpoint(name="a", url=upstream.url)], requests=1, warm_up=0)
        measuring = asyncio.get_running_loop().create_task(measured(options))
        (request,) = await upstream.received(1)
        await asyncio.wait({measuring}, timeout=0.2)
        request.say(STREAM_HEAD + b"".join(map(chunk, (TEXT, LAST, USAGE, DONE))) + END)
        (cell,) = await measuring
    (sample,) = cell.fired[0][1].samples
    assert sample is not None
    assert sample.first_token_seconds is not None
    assert sample.first_token_seconds > 0.19


async def test_what_is_held_back_is_counted() -> None:
    """With few allowed in flight and a server that does not answer, the rest is not sent."""
    async with ScriptedUpstream(speculative=True) as upstream:
        upstream.always(Silence())
        options = quick(
            [Endpoint(name="a", url=upstream.url)],
            requests=10,
            warm_up=0,
            rounds=1,
            most_in_flight=3,
            timeout=0.5,
        )
        (cell,) = await measured(options)
        assert len(upstream.requests) == 3
    found = figures(cell.fired, options.objective)
    assert (found.unsent, found.failed) == (7, 3)


async def test_stopping_keeps_what_there_is() -> None:
    """What had ended is there, later rounds and endpoints are not begun, no connection is left."""
    stop = asyncio.Event()
    async with ScriptedUpstream(speculative=True) as one, ScriptedUpstream(speculative=True) as two:
        one.script(GOOD)
        one.always(Silence())
        endpoints = [Endpoint(name="one", url=one.url), Endpoint(name="two", url=two.url)]
        options = quick(endpoints, warm_up=0)
        measuring = asyncio.get_running_loop().create_task(measured(options, stop))
        await one.received(5)
        stop.set()
        (cell,) = await measuring
        assert not two.requests
    found = figures(cell.fired, options.objective)
    assert (found.planned, found.ok, found.failed) == (1, 1, 0)


@pytest.mark.parametrize("what", ["server", "admin"])
async def test_an_endpoint_that_is_not_there(what: str) -> None:
    """It is said before a request is sent."""
    async with ScriptedUpstream(speculative=True) as upstream:
        upstream.always(GOOD)
        gone = "http://127.0.0.1:9"  # discard: nobody listens there
        endpoint = Endpoint(
            name="a",
            url=gone if what == "server" else upstream.url,
            admin_url=gone if what == "admin" else None,
        )
        model = None if what == "server" else "tiny"
        with pytest.raises(SpecswitchError, match="does not answer"):
            await measured(quick([endpoint], model=model))
        assert not upstream.requests


def invoked(*argv: str) -> Result:
    """The command as it is typed."""
    return CliRunner().invoke(bench, argv)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "--url"),
        (("--url", "http://x"), "--rate: is needed"),
        (
            ("--url", "http://x", "--rates", "1,x"),
            "--rates: 'x' is no number; give them like 0.5,1,2",
        ),
        (("--url", "http://x", "--rate", "-1"), "--rate: must be above 0"),
        (("--url", "http://x", "--rate", "1", "--workload", "storm"), "--workload"),
        (("--url", "http://x", "--admin-url", "y=http://z", "--rate", "1"), "--admin-url"),
    ],
)
def test_wrong_usage(argv: tuple[str, ...], said: str) -> None:
    """It ends with 2 and names the option."""
    result = invoked(*argv)
    assert result.exit_code == 2
    assert said in result.output


def test_a_server_that_is_not_there() -> None:
    """It ends with 1 and says where there is none, and nothing of what it would have sent."""
    result = invoked("--url", "http://127.0.0.1:9", "--rate", "1")
    assert result.exit_code == 1
    assert "does not answer" in result.output
    assert "at least" not in result.output
    assert "stopped" not in result.output


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    """It ends with 1 before an endpoint is asked; there is none here."""
    pytest.importorskip("matplotlib")
    page = tmp_path / "no" / "out.html"
    result = invoked("--url", "http://127.0.0.1:9", "--rate", "1", "--report", str(page))
    assert result.exit_code == 1
    assert "cannot be written: there is no such folder" in result.output


def test_more_connections_than_this_process_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is sent, instead of counted as failures of the server."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    result = invoked("--url", "http://127.0.0.1:9", "--rate", "1", "--max-in-flight", "5000")
    assert result.exit_code == 1
    assert "--max-in-flight 5000 may need" in result.output


COMMAND = (sys.executable, "-c", "from proxy.commands.bench import bench; bench()")


async def _process(*argv: str, stop_after: asyncio.Event | None = None) -> tuple[int, str, str]:
    """The command in a process of its own: exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        if stop_after is not None:
            await stop_after.wait()
            process.send_signal(signal.SIGINT)
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(), errors.decode()


@pytest.mark.slow
async def test_the_command(tmp_path: Path) -> None:
    """A table and a report, or one object; 0, and 1 where a request failed."""
    async with SimulatedPair(PairOptions(time_scale=20.0)) as pair:
        argv = ["--url", f"base={pair.base_url}", "--rate", "100", "--requests", "20"]
        argv += ["--output-tokens", "10"]
        page = tmp_path / "out.html"
        code, output, errors = await _process(*argv, "--report", str(page))
        assert code == 0, errors
        assert "poisson at 100 requests/s" in output
        assert errors.startswith("20 requests to one endpoint: at least 0 s\nbench: ")
        assert page.read_text().count("<svg") == 3
        code, output, errors = await _process(*argv, "--json")
        assert (code, errors) == (0, "")
        assert json.loads(output)["results"][0]["figures"]["ok"] == 20
    async with ScriptedUpstream(speculative=True) as upstream:
        upstream.script(Reset())
        upstream.always(GOOD)
        argv = ["--url", upstream.url, "--rate", "100", "--requests", "5", "--warm-up", "0"]
        code, output, _ = await _process(*argv, "--model", "tiny")
        assert code == 1
        assert "1 failed: lost" in output


@pytest.mark.slow
async def test_ctrl_c() -> None:
    """It ends with 130 and shows what had ended by then."""
    async with ScriptedUpstream(speculative=True) as upstream:
        upstream.script(GOOD)
        upstream.always(Silence())
        asked = asyncio.Event()

        async def watch() -> None:
            await upstream.received(3)
            asked.set()

        watching = asyncio.get_running_loop().create_task(watch())
        argv = ("--url", upstream.url, "--rate", "50", "--requests", "100", "--warm-up", "0")
        code, output, errors = await _process(*argv, "--model", "tiny", stop_after=asked)
        await watching
    assert code == 130, errors
    assert "interrupted" in output
    assert "stopped after" in errors
