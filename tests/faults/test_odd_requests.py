"""Odd ids, bodies and words from both sides: each passes or is refused, and nothing believes it.

What a client or an engine can choose ends up in headers, in logs and in front of people; none of it
may end a line, stand for a key of ours, or make an error of a request that an engine would answer.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.control.log import LogFormat, logging_to
from tests.harness.client import CHAT, CHAT_STREAM, get, post
from tests.harness.running import rig
from tests.harness.upstream import (
    DONE,
    Gate,
    ScriptedUpstream,
    Send,
    event,
    reply,
    stream,
)

FAKE = 'tiny\nLEVEL=ERROR fake\r\n{"level": "error", "message": "fake"}\x1b[31m\x00\x85\u2028"= x'
BODY_PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"),
    *("/api/chat", "/api/generate", "/invocations", "/v1/embeddings", "/open_session"),
)
BODIES = [
    b"",
    b"{",
    b"{}",
    b"[]",
    b"null",
    b'"x"',
    b"0",
    b"\xef\xbb\xbf{}",
    '{"model": "tiny"}'.encode("utf-16"),
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"messages": []}',
    b'{"stream": "yes"}',
    b'{"stream": 1e999, "n": -1, "max_tokens": "many"}',
    b'{"n": ' + b"9" * 5000 + b"}",
    b'{"stream": true, "stream": false}',
    b'{"model": "\\ud800\\u0000"}',
    b'{"x": NaN, "y": Infinity, "z": -0}',
    b"\xff\x00\xfe",
]


@contextmanager
def logged(file: Path, form: LogFormat) -> Iterator[None]:
    """Our log, in a file, at its most talkative."""
    with file.open("wb") as sink, logging_to(sink.fileno(), form=form, level="debug"):
        yield


# Ids -------------------------------------------------------------------------------------------


async def test_one_id_twice_at_the_same_time(caplog: pytest.LogCaptureFixture) -> None:
    """vllm-project/vllm#10583, ray-project/ray#45723: a client's id was taken for a key.

    Here both run, are counted, and end, each with its own answer; the id is theirs to repeat.
    """
    with caplog.at_level(logging.INFO, "proxy.requests"):
        async with rig() as it:
            gate = asyncio.Event()
            clients = [await it.client() for _ in range(2)]
            for number, client in enumerate(clients):
                it.spec.script(Gate(gate), Send(reply(b'{"n":%d}' % number)))
                client.send(post("/generate", CHAT, headers={"X-Request-Id": "same"}))
                await it.spec.received(number + 1)
            assert it.app.dispatcher.in_flight.spec == 2
            gate.set()
            answers = [await client.response() for client in clients]
            assert [answer.body for answer in answers] == [b'{"n":0}', b'{"n":1}']
            assert {answer.header("x-request-id") for answer in answers} == {"same"}
            assert it.app.dispatcher.in_flight.total == 0
            assert [each.header("x-request-id") for each in it.spec.requests] == ["same", "same"]
    told = [getattr(record, "fields", {}).get("request_id") for record in caplog.records]
    assert told == ["same", "same"]


@pytest.mark.parametrize(
    "offered",
    ["", " ", "x" * 129, "x" * 20_000, "a b", "a\tb", "ä", "\xff", "x\x7f", "x\x80", "x\xa0y"],
)
async def test_an_id_that_is_none_is_replaced(offered: str) -> None:
    """Too long, with spaces or beyond ASCII: ours instead, the same for client and engine.

    A control byte other than the tab makes it no HTTP at all.
    """
    async with rig() as it:
        client = await it.client()
        raw = post("/generate", CHAT, headers={"X-Request-Id": "@"})
        client.send(raw.replace(b"@", offered.encode("latin-1"), 1))
        answer = await client.response()
        if offered == "x\x7f":
            assert answer.status == 400
            return
        ours = answer.header("x-request-id")
        assert re.fullmatch("[0-9a-f]{32}", ours or "")
        assert answer.count("x-request-id") == 1
        (received,) = it.spec.requests
        assert (received.header("x-request-id"), received.count("x-request-id")) == (ours, 1)


@pytest.mark.parametrize(
    "offered", ["a", "x" * 128, '{"level":"error"}', "%0a", "<b>", "../..", "0"]
)
async def test_an_id_that_is_one_passes(offered: str) -> None:
    """Any visible ASCII, as it came, to the engine and back."""
    async with rig() as it:
        client = await it.client()
        headers = {"X-Request-Id": offered}
        for raw in (post("/generate", CHAT, headers=headers), get("/livez", headers=headers)):
            client.send(raw)
            assert (await client.response()).header("x-request-id") == offered
        assert it.spec.requests[0].header("x-request-id") == offered


async def test_our_ids_are_unique() -> None:
    """Also of requests that are refused, and whatever ids clients made up before."""
    async with rig() as it:
        client = await it.client()
        ids = []
        for raw in (post("/generate", CHAT), get("/nowhere"), get("/livez")) * 100:
            client.send(raw)
            ids.append((await client.response()).header("x-request-id"))
        assert len(set(ids)) == 300
        client.send(post("/generate", CHAT, headers={"x-request-id": f"{ids[-1]}"}))
        assert (await client.response()).status == 200


async def test_an_id_is_told_once_in_a_stream() -> None:
    """envoyproxy/ai-gateway#1340: a 1 MB id came back with every chunk. Here: 431."""
    async with rig() as it:
        it.spec.script(Send(stream(*(event({"n": n}) for n in range(50)), DONE)))
        client = await it.client()
        client.send(post("/v1/chat/completions", CHAT_STREAM, headers={"x-request-id": "once"}))
        answer = await client.response()
        assert (answer.count("x-request-id"), answer.header("x-request-id")) == (1, "once")
        assert b"once" not in answer.body
        client.send(post("/v1/chat/completions", CHAT, headers={"x-request-id": "x" * 1_000_000}))
        assert (await client.response()).code == "headers_too_large"
        assert len(it.spec.requests) == 1


# Bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODY_PATHS)
async def test_no_body_is_a_fault_of_ours(path: str, tmp_path: Path) -> None:
    """vllm-project/production-stack#1017: a body that was no JSON made a 500 of the proxy's own.

    Here the engine judges: it gets every byte, and its answer is the answer. No traceback, and no
    warning: its 400 is not our failure.
    """
    log = tmp_path / "log"
    with logged(log, LogFormat.JSON):
        async with rig() as it:
            answer = Send(reply(b'{"object":"error"}', status="400 Bad Request"))
            it.spec.always(answer)
            it.base.always(answer)
            for body in BODIES:
                for kind in ("application/json", "text/plain", "nonsense", ""):
                    client = await it.client()
                    raw = post(path, body)
                    client.send(raw.replace(b"application/json", kind.encode(), 1))
                    response = await client.response()
                    assert (response.status, response.body) == (400, b'{"object":"error"}')
                    (received,) = it.spec.requests + it.base.requests
                    assert received.body == body
                    it.spec.requests.clear()
                    it.base.requests.clear()
                    client.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["level"] for line in lines} <= {"info", "debug"}
    assert not [line for line in lines if "exception" in line]


# Lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.TEXT])
async def test_nobody_writes_our_log(form: LogFormat, tmp_path: Path) -> None:
    """What clients and engines say can end no line of the log and begin none.

    Words of clients: model, id, path, header. Words of engines: what they are (a mismatch is told
    loudly, with both values), a reason phrase, an answer that is no HTTP.
    """
    log = tmp_path / "log"
    spec, base = ScriptedUpstream(speculative=True), ScriptedUpstream(speculative=False)
    for upstream, name in ((spec, FAKE), (base, f"{FAKE}2")):
        assert upstream.info is not None
        upstream.info |= {"model_path": name, "dtype": FAKE, "version": FAKE}
    with logged(log, form):
        async with rig(spec=spec, base=base, wait=False, timeouts__wait_for_upstream=5.0) as it:
            await it.until(lambda: it.app.dispatcher.usable, "one is usable")
            client = await it.client()
            for raw in (
                post("/v1/chat/completions", {**CHAT, "model": FAKE, "user": FAKE}),
                post("/generate", CHAT, headers={"x-request-id": '","level":"error","x":"'}),
                post("/generate", CHAT, headers={"x-request-id": "a  level=error  message=fake"}),
                get("/%0aLEVEL=ERROR%20fake%0d%0a"),
                get("/nowhere", method="TRACE", headers={"x-specswitch-route": "spec LEVEL=ERROR"}),
            ):
                client.send(raw)
                assert (await client.response()).status in {200, 404, 405}
            for upstream in (spec, base):
                upstream.script(Send(reply(b"{}", status="500 x LEVEL=ERROR fake")))
            client.send(post("/generate", CHAT))
            assert (await client.response()).status == 500
            await it.until(lambda: bool(spec.probes > 5 and base.probes > 5), "both are known")
    lines = log.read_text().split("\n")
    assert lines.pop() == ""
    assert len(lines) == len("\n".join(lines).splitlines())  # also by Unicode's line ends
    assert all(line.isprintable() for line in lines)
    assert any("misconfigured" in line for line in lines)
    if form is LogFormat.JSON:
        told = [json.loads(line) for line in lines]
        assert {each["level"] for each in told} <= {"debug", "info", "warning"}
        assert not [each for each in told if each["message"] == "fake"]
    else:
        stamp = re.compile(r"20\d\d-\d\d-\d\dT\S+ (DEBUG|INFO|WARNING) ")
        assert all(stamp.match(line) for line in lines)
        assert not [line for line in lines if re.search(r"  level=error", line)]
