"""Where the fuzzing starts: valid requests of every endpoint, and answers as engines give them.

A script is one byte string, so that any fuzzer can mutate it and a person can read it:

    a line that seeds the cuts, the order and the accidents
    what the client sends
    === keep                          an answer, and what its engine does after it:
    what an engine answers            keep, fin, reset or hang
    === fin
    the next answer
"""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from proxy.core.endpoints import ENDPOINTS

HERE = Path(__file__).parent
REGRESSIONS = HERE / "regressions"
RECORDED = [each.read_bytes() for each in sorted((HERE.parent / "data").glob("*.sse"))]

_MARK = re.compile(rb"\n=== (keep|fin|reset|hang)\n")
_TOKEN = re.compile(rb'^"(.*)"$', re.MULTILINE)


class Then(Enum):
    """What an engine does after an answer."""

    KEEP = b"keep"
    FIN = b"fin"
    RESET = b"reset"
    HANG = b"hang"


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation to be played."""

    seed: bytes
    client: bytes
    answers: tuple[tuple[bytes, Then], ...]


def parse(data: bytes) -> Script:
    """Read a script; every byte string is one."""
    seed, newline, rest = data.partition(b"\n")
    if not newline:
        seed, rest = b"", data
    client, *parts = _MARK.split(rest)
    answers = zip(parts[1::2], map(Then, parts[::2]), strict=True)
    return Script(seed, client, tuple(answers))


def compose(seed: bytes, client: bytes, *answers: tuple[bytes, Then]) -> bytes:
    """Write a script."""
    return seed + b"\n" + client + b"".join(b"\n=== %s\n%s" % (t.value, a) for a, t in answers)


def tokens() -> list[bytes]:
    """The dictionary, as bytes."""
    found = _TOKEN.findall((HERE / "http.dict").read_bytes())
    return [each.decode("unicode_escape").encode("latin-1") for each in found]


# requests


def _request(
    method: str, path: str, *lines: bytes, body: bytes = b"", version: str = "1.1"
) -> bytes:
    first = f"{method} {path} HTTP/{version}".encode()
    return b"\r\n".join((first, b"Host: a", *lines, b"", body))


def _post(path: str, body: bytes, *lines: bytes, version: str = "1.1") -> bytes:
    length = b"Content-Length: %d" % len(body)
    return _request("POST", path, *lines, length, body=body, version=version)


def _chunked(path: str, *pieces: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    ends = body + b"0\r\n" + trailer + b"\r\n"
    return _request("POST", path, b"Transfer-Encoding: chunked", body=ends)


CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
PLAIN = b'{"model": "m", "messages": [], "max_tokens": 4}'


def every_endpoint() -> list[bytes]:
    """A request for each row of the allow-list."""
    made = []
    for endpoint in ENDPOINTS:
        path = endpoint.template.replace("{id}", "abc")
        method = endpoint.methods[0]
        made.append(_post(path, CHAT) if method == "POST" else _request(method, path))
    return made


def clients() -> list[bytes]:
    """What clients send."""
    chat, generate = "/v1/chat/completions", "/generate"
    streamed = _post(chat, CHAT, b"Content-Type: application/json")
    special = [
        streamed,
        _post(chat, PLAIN, b"Connection: close"),
        _post(chat, CHAT, version="1.0"),
        _post(chat, PLAIN, b"Connection: keep-alive", version="1.0"),
        _post(generate, b'{"text": "a", "stream": true, "sampling_params": {"n": 2}}'),
        _post("/v1/completions", b'{"prompt": ["a", "b"], "stream": true}'),
        _post("/v1/messages", b'{"messages": [], "stream": true}', b"X-Api-Key: key"),
        _post("/api/chat", b'{"messages": []}'),
        _post("/v1/completions", b'{"min_p": 0.5}', b"X-Specswitch-Route: base"),
        _chunked(generate, b'{"text": ', b'"a"}'),
        _chunked(chat, *(CHAT[i : i + 1] for i in range(len(CHAT)))),
        _chunked(generate, b"\r\n\r\n0\r\n\r\n", trailer=b"X-T: 1\r\n"),
        _post(generate, b"{}", b"Expect: 100-continue", b"X-Request-Id: mine"),
        _post(generate, b"{}", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"),
        _request("HEAD", "/v1/models"),
        _request("GET", "/v1/models?a=b", b"Connection: x-a", b"X-A: 1"),
        _request("GET", "/nowhere"),
        _request("PUT", generate, b"Content-Length: 0"),
        _request("GET", "/livez") * 8,
        b"\r\n\r\n" + _request("GET", "/health"),
        _post(generate, b""),
        _chunked(generate),
        _request("POST", generate),
        _post(generate, b"a" * 5000),
        _chunked(generate, b"a" * 2500, b"a" * 2500),
        _request("GET", "/v1/realtime", *OFFER),
    ]
    pipelines = [
        streamed + _request("GET", "/v1/models") + _post(generate, b"{}"),
        _post(generate, b"{}") * 5,
        _post(generate, b"{}") * 20,
        _request("GET", "/livez") * 60 + _post(generate, b"{}"),
        _request("HEAD", "/v1/models") * 2 + _chunked(generate, b"{}") + _request("GET", "/livez"),
        _request("GET", "/nowhere") * 3 + _post(generate, b"{}"),
    ]
    return special + pipelines + every_endpoint()


# answers


def _answer(status: str, *lines: bytes, body: bytes = b"", version: str = "1.1") -> bytes:
    first = f"HTTP/{version} {status}".encode()
    return b"\r\n".join((first, *lines, b"", body))


def _whole(status: str, body: bytes, *lines: bytes) -> bytes:
    return _answer(status, *lines, b"Content-Length: %d" % len(body), body=body)


def _stream(
    *events: bytes, kind: bytes = b"text/event-stream; charset=utf-8", also: tuple[bytes, ...] = ()
) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    lines = (b"content-type: " + kind, *also, b"Transfer-Encoding: chunked")
    return _answer("200 OK", *lines, body=body + b"0\r\n\r\n")


OFFER = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
OK = _whole("200 OK", b'{"usage": {"completion_tokens": 3}}', b"Content-Type: application/json")


SWITCHED = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
)


def tunnels() -> list[tuple[bytes, tuple[bytes, Then]]]:
    """Offers of a WebSocket with what is sent behind them, and an engine's agreements."""
    offer = _request("GET", "/v1/realtime?model=m", *OFFER)
    other = _request("GET", "/v1/realtime", b"Origin: http://a", *OFFER)
    hello, bye = b"\x81\x85abcd\x09\x07\x0f\x08\x0e", b"\x88\x82abcd\x62\x8a"
    sends = [offer, offer + hello + bye, offer + _post("/generate", b"{}"), other + hello * 60]
    agreed = _answer("101 Switching Protocols", *SWITCHED)
    early = _answer("103 Early Hints", b"Link: a") + agreed
    says = [agreed, agreed + hello * 3 + bye, early + hello * 60, agreed + OK]
    ends = [Then.KEEP, Then.FIN, Then.HANG, Then.RESET]
    return [(asks, (said, then)) for asks in sends for said in says for then in ends]


def answers() -> list[tuple[bytes, Then]]:
    """What engines answer, and how they go on."""
    keep = [
        OK,
        *(
            _stream(*(each + b"\n\n" for each in recorded.split(b"\n\n") if each))
            for recorded in RECORDED
        ),
        _stream(*(b'{"done": false}\n', b'{"done": true}\n'), kind=b"application/x-ndjson"),
        _stream(b"data: {}\n\n", also=(b"Connection: keep-alive, x-a", b"X-A: 1")),
        _stream(b"event: message_stop\r\n", b"data: {}\r\n\r\n", b": comment\n\n"),
        _whole("400 Bad Request", b'{"error": {"code": 400}}'),
        _whole("429 Too Many Requests", b"", b"Retry-After: 1"),
        _whole("503 Service Unavailable", b"{}"),
        _whole("500 Internal Server Error", b"{}", b"Connection: close"),
        _answer("204 No Content"),
        _answer("304 Not Modified", b"Content-Length: 5"),
        _answer("100 Continue") + OK,
        _answer("103 Early Hints", b"Link: a") + OK,
        _answer("200 OK", b"Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\nX-T: 1\r\n\r\n"),
        _whole("200 OK", b"\x1f\x8b\x08", b"Content-Encoding: gzip"),
        _whole("200 OK", b"{}", b"Connection: x-a", b"X-A: 1", b"X-Request-Id: theirs"),
        OK + OK,
    ]
    closing = [
        _answer("200 OK", body=b"until the end"),
        _answer("200 OK", b"Content-Type: text/event-stream", body=b"data: {}\n\n"),
        _answer("200 OK", body=b"old", version="1.0"),
    ]
    return [(each, Then.KEEP) for each in keep] + [(each, Then.FIN) for each in closing]
