"""Doctor against servers over HTTP: the simulated pair, and some that misbehave."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from proxy.control.engine import connect, read_identity
from proxy.core.words import UpstreamName
from proxy.sim.options import PairOptions
from proxy.sim.physics import FOUNDING
from proxy.sim.server import SimulatedPair
from proxy.tools.doctor.diagnosis import Finding, Report, Severity
from proxy.tools.doctor.examine import examine
from proxy.tools.doctor.live import REQUESTS
from tests.harness.server_infos import SPEC, arguments
from tests.harness.upstream import DONE, END, STREAM_HEAD, ScriptedUpstream, Send, chunk, reply

BASE = UpstreamName.BASE

CHAIN = replace(FOUNDING, name="chain-3", draft_steps=3, draft_topk=1, draft_tokens=4)


@asynccontextmanager
async def pair(**options: object) -> AsyncIterator[SimulatedPair]:
    """A simulated pair that is fast."""
    async with SimulatedPair(PairOptions(**{"time_scale": 200.0, **options})) as running:  # type: ignore[arg-type]  # the test's own names
        yield running


def worse_than_notes(report: Report) -> dict[str, Finding]:
    """Warnings and errors by code."""
    bad = (Severity.WARNING, Severity.ERROR)
    return {each.code: each for each in report.findings if each.severity in bad}


@pytest.mark.asyncio
async def test_a_pair_with_the_flags_of_the_documentation() -> None:
    """The founding profile has them, which is the one warning; acceptance is the profile's."""
    async with pair() as running:
        report = await examine(running.spec_url, running.base_url)
    assert worse_than_notes(report).keys() == {"spec.demo_flags"}
    assert report.exit_code == 1
    assert report.acceptance_length == pytest.approx(FOUNDING.acceptance_length, rel=0.25)
    assert {"live.stream", "live.usage", "live.prompt_tokens", "live.error_shape"} <= {
        each.code for each in report.of(Severity.OK)
    }


@pytest.mark.asyncio
async def test_a_good_pair_exits_with_0() -> None:
    """A chain of three is fine; adaptive speculation is a note."""
    async with pair(profile=CHAIN) as running:
        report = await examine(running.spec_url, running.base_url)
    assert worse_than_notes(report) == {}
    assert report.exit_code == 0


@pytest.mark.asyncio
async def test_without_requests_nothing_is_generated() -> None:
    """Neither server has counted a token."""
    async with pair() as running:
        report = await examine(running.spec_url, running.base_url, requests=False)
        counted = [running.load(name).counters.prefilled_tokens for name in UpstreamName]
    assert counted == [0, 0]
    assert report.acceptance_length is None
    assert not [each for each in report.findings if each.code.startswith("live.")]


@pytest.mark.asyncio
async def test_swapped_servers_are_told() -> None:
    """By what they say, and by what they do."""
    async with pair() as running:
        report = await examine(running.base_url, running.spec_url)
    assert {"pair.swapped", "live.base_drafts", "live.acceptance_unknown"} <= worse_than_notes(
        report
    ).keys()
    assert report.exit_code == 2


@pytest.mark.asyncio
async def test_one_server_twice_is_told_and_asked_nothing() -> None:
    """There is nothing to compare it with."""
    async with pair() as running:
        report = await examine(running.spec_url, running.spec_url)
        assert running.load(SPEC).counters.prefilled_tokens == 0
    assert [each.code for each in report.findings] == ["pair.same_server"]


@pytest.mark.asyncio
async def test_a_server_that_is_down_is_an_error_and_the_other_is_examined() -> None:
    """Half an answer is better than none."""
    async with pair(profile=CHAIN) as running:
        await running.stop(BASE)
        report = await examine(running.spec_url, running.base_url)
    assert worse_than_notes(report).keys() == {"reach.unreachable"}
    assert report.servers.keys() == {SPEC}
    assert report.acceptance_length is not None


@pytest.mark.asyncio
async def test_the_identity_is_the_one_that_the_proxy_reads() -> None:
    """Of both servers, over sockets."""
    async with pair() as running:
        report = await examine(running.spec_url, running.base_url, requests=False)
        for name, url in ((SPEC, running.spec_url), (BASE, running.base_url)):
            async with connect(url, api_key=None, tls=None, timeout=10.0) as client:
                assert report.servers[name].identity == await read_identity(client)


_MODELS = Send(reply(json.dumps({"data": [{"id": "llama", "max_model_len": 32768}]}).encode()))
# Of /model_info, by both its names; the rest of what is read of it counts as probes there.
_NO_PAGE = Send(reply(b"{}", status="404 Not Found"))


async def examined(*answers: Send, always: Send, asked: int = REQUESTS) -> Report:
    """The report on a scripted spec, beside a base that is not there.

    After `answers` it is asked that many times.
    """
    async with ScriptedUpstream(speculative=True) as upstream:
        upstream.info = arguments(SPEC)
        for answer in answers:
            upstream.script(answer)
        upstream.always(always)
        report = await examine(upstream.url, "http://127.0.0.1:1", spec_api_key="our-secret")
        assert len(upstream.requests) == len(answers) + asked
        return report


@pytest.mark.asyncio
async def test_a_server_that_refuses_the_key_is_told_so() -> None:
    """With the flag that gives one, and without the key."""
    refused = Send(reply(b'{"error":"Unauthorized"}', status="401 Unauthorized"))
    report = await examined(always=refused, asked=1)
    finding = worse_than_notes(report)["reach.key"]
    assert "SPECSWITCH_UPSTREAMS_SPEC_API_KEY" in finding.change
    assert "our-secret" not in str([each.fields() for each in report.findings])


@pytest.mark.asyncio
async def test_an_error_within_a_200_is_an_error() -> None:
    """SGLang says so when its queue is full; one failure ends the trial."""
    event = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n'
    full = Send(STREAM_HEAD + chunk(event) + chunk(DONE) + END)
    report = await examined(_MODELS, _NO_PAGE, _NO_PAGE, always=full, asked=1)
    live = [each for each in report.findings if each.code.startswith("live.")]
    assert [(each.code, each.severity) for each in live] == [("live.stream", Severity.ERROR)]


@pytest.mark.asyncio
async def test_a_stream_without_its_end_mark_is_an_error() -> None:
    """It ends cleanly as HTTP, and is cut short all the same."""
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    report = await examined(
        _MODELS, _NO_PAGE, _NO_PAGE, always=Send(STREAM_HEAD + chunk(event) + END), asked=1
    )
    assert worse_than_notes(report)["live.stream"].severity is Severity.ERROR


@pytest.mark.asyncio
async def test_streams_without_usage_and_answers_without_text_are_warnings() -> None:
    """Another vendor may stream well and leave these out."""
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    report = await examined(
        _MODELS, _NO_PAGE, _NO_PAGE, always=Send(STREAM_HEAD + chunk(event) + chunk(DONE) + END)
    )
    assert {"live.usage", "live.acceptance_unknown"} <= worse_than_notes(report).keys()
    assert "live.error_shape" in {each.code for each in report.of(Severity.NOTE)}
