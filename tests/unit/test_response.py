"""An engine's response head: what is read of it, and what follows for the client's answer."""

import pytest

from proxy.core.http import Framing
from proxy.core.peek import Dialect
from proxy.data.reader import RequestHead, RequestReader
from proxy.data.response import ResponseHead, connection_line, framing_for, watch_for

Headers = list[tuple[bytes, bytes]]

CHAT = Dialect.OPENAI_CHAT


def answer(*headers: tuple[bytes, bytes], status: int = 200) -> ResponseHead:
    """Return a response head with these headers."""
    return ResponseHead(status, b"", list(headers))


def request(method: bytes = b"POST", version: bytes = b"1.1") -> RequestHead:
    """Return the head of a request."""
    reader = RequestReader(max_header_bytes=1000, max_body_bytes=1000)
    reader.feed(method + b" / HTTP/" + version + b"\r\nHost: a\r\n\r\n")
    head = reader.next()
    assert isinstance(head, RequestHead)
    return head


def test_a_response_head() -> None:
    """Its headers stay as they came; of several the first counts."""
    headers = [
        (b"Content-LENGTH", b"12"),
        (b"Content-Type", b"Application/JSON; charset=utf-8"),
        (b"content-type", b"text/plain"),
    ]
    head = ResponseHead(200, b"OK", headers)

    assert head.headers == headers
    assert (head.status, head.phrase, head.length, head.chunked) == (200, b"OK", 12, False)
    assert (head.media_type, head.encoded, head.plain_json) == (b"application/json", False, True)


def test_a_bare_response_head() -> None:
    """Without headers nothing is known."""
    head = answer()

    assert (head.length, head.chunked, head.media_type) == (None, False, b"")
    assert (head.encoded, head.plain_json) == (False, False)


@pytest.mark.parametrize("name", [b"Content-Encoding", b"content-encoding"])
def test_an_encoded_body_is_not_read(name: bytes) -> None:
    """Whatever its type, neither as an answer nor as a stream."""
    encoded = (name, b"gzip")
    json = answer((b"content-type", b"application/json"), encoded)
    stream = answer((b"content-type", b"text/event-stream"), encoded)

    assert (json.encoded, json.plain_json) == (True, False)
    assert watch_for(stream, CHAT) is None


@pytest.mark.parametrize(
    ("media_type", "dialect", "watched"),
    [
        (b"text/event-stream", CHAT, True),
        (b"Text/Event-Stream; charset=utf-8", CHAT, True),
        (b" text/event-stream ;charset=utf-8", CHAT, True),
        (b"application/x-ndjson", Dialect.OLLAMA_CHAT, True),
        (b"application/json", CHAT, False),
        (b"", CHAT, False),
        (b"text/event-stream", None, False),
    ],
)
def test_which_answers_are_watched(
    *, media_type: bytes, dialect: Dialect | None, watched: bool
) -> None:
    """Streams of a dialect that can be read."""
    head = answer((b"Content-Type", media_type))

    assert (watch_for(head, dialect) is not None) is watched


@pytest.mark.parametrize(
    ("head", "until_close"),
    [
        (answer(), True),
        (answer((b"content-length", b"0")), False),
        (answer((b"transfer-encoding", b"chunked")), False),
        (answer(status=204), False),
        (answer(status=304), False),
    ],
)
def test_what_only_the_close_ends(head: ResponseHead, *, until_close: bool) -> None:
    """A body without a length and without chunks, where there can be one."""
    assert head.until_close is until_close


@pytest.mark.parametrize(
    ("asked", "head", "framing"),
    [
        (request(), answer((b"content-length", b"5")), Framing.LENGTH),
        (request(), answer((b"transfer-encoding", b"chunked")), Framing.CHUNKED),
        (request(), answer(), Framing.CHUNKED),
        (request(version=b"1.0"), answer(), Framing.CLOSE),
        (request(version=b"1.0"), answer((b"content-length", b"5")), Framing.LENGTH),
        (request(b"HEAD"), answer((b"content-length", b"5")), Framing.NONE),
        (request(), answer(status=204), Framing.NONE),
        (request(), answer((b"content-length", b"5"), status=304), Framing.NONE),
    ],
)
def test_how_the_end_of_the_answer_is_marked(
    asked: RequestHead, head: ResponseHead, framing: Framing
) -> None:
    """By the engine's length, by chunks of our own, or for an old client by the close."""
    assert framing_for(asked, head) is framing


def test_what_is_said_of_the_connection() -> None:
    """What the client's version does not take for granted."""
    assert connection_line("1.1", keep_alive=True) == ()
    assert connection_line("1.1", keep_alive=False) == (b"connection: close",)
    assert connection_line("1.0", keep_alive=True) == (b"connection: keep-alive",)
    assert connection_line("1.0", keep_alive=False) == (b"connection: close",)
