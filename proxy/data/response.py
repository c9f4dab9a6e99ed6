"""An engine's response head, and what follows from it for the client's answer."""

from proxy.core.http import Framing, first_values
from proxy.core.peek import Dialect
from proxy.core.sse import StreamWatch
from proxy.data.reader import RequestHead

_STREAMS = frozenset({b"text/event-stream", b"application/x-ndjson"})


class ResponseHead:
    """An engine's response head. `length` is None where none was given; `bare` has no body."""

    __slots__ = (
        "bare",
        "chunked",
        "encoded",
        "headers",
        "length",
        "media_type",
        "phrase",
        "status",
    )

    def __init__(self, status: int, phrase: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        first = first_values(headers)
        self.status = status
        self.phrase = phrase
        self.headers = headers
        length = first.get(b"content-length")
        self.length = None if length is None else int(length)
        self.chunked = b"transfer-encoding" in first
        self.bare = status in {101, 204, 304}
        self.media_type = first.get(b"content-type", b"").partition(b";")[0].strip().lower()
        """The content type without its parameters, lower case."""
        self.encoded = b"content-encoding" in first
        """Whether the body is compressed or the like, so that we cannot read it."""

    @property
    def plain_json(self) -> bool:
        """Whether the body is JSON that we can read."""
        return not self.encoded and self.media_type == b"application/json"

    @property
    def until_close(self) -> bool:
        """Whether only the closing of the connection marks the end of the body."""
        return self.length is None and not self.chunked and not self.bare


def watch_for(head: ResponseHead, dialect: Dialect | None) -> StreamWatch | None:
    """Return the watch for this response, None where it is no stream that can be read."""
    if dialect is None or head.encoded or head.media_type not in _STREAMS:
        return None
    return StreamWatch(dialect)


def framing_for(request: RequestHead, response: ResponseHead) -> Framing:
    """How the end of the body is marked towards the client."""
    if request.method == "HEAD" or response.bare:
        return Framing.NONE
    if response.length is not None:
        return Framing.LENGTH
    return Framing.CLOSE if request.version == "1.0" else Framing.CHUNKED


def connection_line(version: str, *, keep_alive: bool) -> tuple[bytes, ...]:
    """What has to be said: each version of HTTP has its own default."""
    if not keep_alive:
        return (b"connection: close",)
    return (b"connection: keep-alive",) if version == "1.0" else ()
