"""Each dialect of a real server, streamed and not: the bytes through specswitch are the server's.

All goes to base, by control, so that the same server answers twice; what it makes up for each
answer (ids, times) is masked, and nothing else.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.engines.pair import EnginePair
from tests.harness.process import Specswitch

MESSAGES = [{"role": "user", "content": "hello there"}]
SHORT = {"model": "tiny", "max_tokens": 8, "temperature": 0}
OPTIONS = {"num_predict": 8, "temperature": 0}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {**SHORT, "messages": MESSAGES},
    "/v1/completions": {**SHORT, "prompt": "hello"},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 8, "temperature": 0}},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "options": OPTIONS},
    "/api/generate": {"model": "tiny", "prompt": "hello", "options": OPTIONS},
    "/v1/messages": {**SHORT, "messages": MESSAGES},
    "/invocations": {**SHORT, "messages": MESSAGES},
}
OLLAMA = ("/api/chat", "/api/generate")
_MADE_UP = re.compile(
    rb'"(id|created|created_at|modified_at'
    rb'|[a-z0-9_]*(?:time|ts|latency|duration|delay|throughput|wait)[a-z0-9_]*)"'
    rb'\s*:\s*("[^"]*"|[-0-9.e]+)'
)
_CACHED = re.compile(rb'"(cached_tokens|device)":\s*\d+')
TIMES = 8
"""A server sends what it has when it comes to sending, one token or two: a stream of the same
tokens comes in other events now and then."""


@pytest.fixture
def proxied(engines: EnginePair, tmp_path: Path) -> Iterator[Specswitch]:
    """The proxy in front of the pair, with everything sent to base."""
    with Specswitch(
        tmp_path / "specswitch.log",
        spec_url=engines.spec.url,
        base_url=engines.base.url,
        policy_control="base",
    ) as process:
        yield process


def told(url: str, body: object) -> tuple[int, str, bytes]:
    """Status, media type and body of an answer, without what was made up for it alone."""
    answer = httpx2.post(url, json=body, trust_env=False, timeout=60.0)
    masked = _CACHED.sub(b"", _MADE_UP.sub(rb'"\1"', answer.content))
    return answer.status_code, answer.headers.get("content-type", ""), masked


@pytest.mark.parametrize("stream", [None, True, False], ids=["unsaid", "streamed", "whole"])
@pytest.mark.parametrize("path", BODIES)
def test_the_bytes_are_the_servers(
    engines: EnginePair, proxied: Specswitch, path: str, *, stream: bool | None
) -> None:
    """Whatever the client says of streaming, and where it says nothing."""
    body = BODIES[path] if stream is None else {**BODIES[path], "stream": stream}
    told(engines.base.url + path, body)  # so that both find the same in the cache
    streams = path in OLLAMA if stream is None else stream
    for _ in range(TIMES if streams else 1):
        direct, through = told(engines.base.url + path, body), told(proxied.url + path, body)
        assert direct[0] == 200
        assert (b"\n" in direct[2].strip()) is streams
        if through == direct:
            break
    assert through == direct


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": "tiny"}),
        ("/v1/messages", {**BODIES["/v1/messages"], "max_tokens": 100_000, "stream": True}),
        ("/api/chat", {"model": "tiny"}),
        ("/invocations", {"model": "tiny", "messages": "none"}),
        ("/api/show", {"model": "tiny"}),
        ("/v1/messages/count_tokens", BODIES["/v1/messages"]),
        ("/parse_function_call", {"text": "x"}),
        ("/separate_reasoning", {"text": "x"}),
        ("/v1/decisions", {}),
        ("/v1/systemone", {}),
    ],
)
def test_errors_and_others_are_the_servers(
    engines: EnginePair, proxied: Specswitch, path: str, body: object
) -> None:
    """Each dialect has its own shape for them, which is passed on and not made again."""
    assert told(proxied.url + path, body) == told(engines.base.url + path, body)


@pytest.mark.parametrize("path", OLLAMA)
def test_a_stream_that_the_server_breaks_off(
    engines: EnginePair, proxied: Specswitch, path: str
) -> None:
    """A prompt that is too long: the server's 200 never ends, and so does ours, with a word why."""
    long = "a " * 9000
    content = {"messages": [{"role": "user", "content": long}], "prompt": long}
    body = {"model": "tiny", **content}
    for url in (engines.base.url, proxied.url):
        heard: list[bytes] = []
        asked = httpx2.stream("POST", url + path, json=body, trust_env=False, timeout=60.0)
        with asked as answer, pytest.raises(httpx2.RemoteProtocolError):
            heard.extend(answer.iter_raw())
        assert answer.status_code == 200
        assert (b'"code": "upstream_reset"' in b"".join(heard)) is (url == proxied.url)


@pytest.mark.parametrize("path", ["/generate", "/encode", "/classify", "/v1/rerank"])
def test_put_is_what_post_is(engines: EnginePair, proxied: Specswitch, path: str) -> None:
    """On the four paths where SGLang has both; it arrives as PUT."""
    body = BODIES.get(path, {"text": "hello"})
    direct, through = (
        httpx2.put(url + path, json=body, trust_env=False, timeout=60.0)
        for url in (engines.base.url, proxied.url)
    )
    assert through.status_code == direct.status_code != 405
    assert f'"PUT {path} HTTP/1.1"' in engines.base.log.read_text(errors="replace")
    assert through.headers["x-specswitch-upstream"] == "base"
