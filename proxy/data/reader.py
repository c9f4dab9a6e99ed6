"""A client's bytes to requests, one at a time and in order. No I/O.

llhttp reads the syntax, strictly; this finds where a request ends, so that what a pipelining client
has sent ahead stays unread until its turn, and keeps to the limits. Pull: `feed`, then `next` until
it has nothing more to say.
"""

from typing import Final

import httptools

from proxy.core.http import first_values, head_fault
from proxy.errors import BadRequest, BodyTooLarge, HeadersTooLarge, Refusal

_BLANK_LINE: Final = b"\r\n\r\n"
_LINE_ENDS: Final = b"\r\n"
_NO_BODY: Final = bytearray()
"""In the place of one whose second piece has not come; nothing is added to it."""
_NO_PARSER: Final = httptools.HttpRequestParser(object())
"""In the place of one that nothing is fed to any more."""

MAX_FEEDS: Final = 64
"""Pieces of a chunked body that are read before others have their turn; a client can make them as
small as four bytes."""


LARGE_BODY: Final = 1 << 18
"""Bytes above which a body is told as it was gathered: another copy takes 0.5 ms a MiB."""


class RequestHead:
    """A request's head, accepted as far as HTTP goes."""

    __slots__ = (
        "chunked",
        "content_length",
        "expects_continue",
        "first",
        "headers",
        "keep_alive",
        "method",
        "target",
        "version",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        version: str,
        headers: list[tuple[bytes, bytes]],
        first: dict[bytes, bytes],
        *,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        """As they came."""
        self.first = first
        """The first value of each, by its name in lower case."""
        self.keep_alive = keep_alive
        length = first.get(b"content-length")
        self.content_length = None if length is None else int(length)
        self.chunked = b"transfer-encoding" in first
        self.expects_continue = (
            b"expect" in first
            and version == "1.1"
            and first[b"expect"].strip().lower() == b"100-continue"
        )

    @property
    def has_body(self) -> bool:
        """Whether bytes follow the head."""
        return self.chunked or bool(self.content_length)

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]


class RequestReader:
    """Reads requests. After a refusal it reads nothing more."""

    __slots__ = (
        "_begun",
        "_body",
        "_complete",
        "_first_piece",
        "_head",
        "_head_bytes",
        "_headers",
        "_keep_alive",
        "_last",
        "_left",
        "_line",
        "_max_body",
        "_max_header",
        "_parser",
        "_pending",
        "_short",
        "_unfruitful",
        "_url",
        "_version",
        "_whole_headers",
        "dead",
    )

    def __init__(self, *, max_header_bytes: int, max_body_bytes: int) -> None:
        self._max_header = max_header_bytes
        self._max_body = max_body_bytes
        self._pending = b""
        self._parser = httptools.HttpRequestParser(self)
        self.dead = False
        """Whether a refusal has ended the reading."""
        self._keep_alive = False
        self._left = 0
        """Bytes that a counted body lacks."""
        self._line = b""
        """The first line, while it is not whole."""
        self._reset()
        self._reset_chunks()

    def _reset(self) -> None:
        """Begin another request."""
        self._url = b""
        self._whole_headers: list[tuple[bytes, bytes]] | None = None
        """Those of the head, once it is whole."""
        self._head: RequestHead | None = None
        self._version: str | None = None
        """Known once the first line is whole."""
        self._begun = False
        self._head_bytes = 0
        self._complete = False
        # Most bodies come in one piece, which is then kept as it came. The others grow in place: a
        # list of what a client cut into chunks of two bytes would weigh twenty times the body.
        self._first_piece = b""
        self._body = _NO_BODY

    def _reset_chunks(self) -> None:
        """Forget what only a head in parts or a chunked body leaves behind."""
        self._headers: list[tuple[bytes, bytes]] = []
        """Those of a head that is not whole; then the trailers, which end here."""
        self._last = b""
        """The last bytes that were fed: a blank line may have begun in them."""
        self._unfruitful = 0
        self._short = False

    @property
    def started(self) -> bool:
        """Whether a request has begun and is not complete; empty lines in front of it are none."""
        return self._begun or bool(self._pending.lstrip(_LINE_ENDS))

    @property
    def body_bytes(self) -> int:
        """Bytes of the body read so far."""
        return len(self._first_piece) + len(self._body)

    @property
    def ahead(self) -> int:
        """Bytes received and not read yet."""
        return len(self._pending)

    @property
    def unread(self) -> bool:
        """Whether `next` has stopped short of what it has, to be called again."""
        return self._short

    def keep_to(self, *, max_header_bytes: int, max_body_bytes: int) -> None:
        """Hold what comes next to these limits."""
        self._max_header = max_header_bytes
        self._max_body = max_body_bytes

    def feed(self, data: bytes) -> None:
        """Take bytes as they came; after a refusal they are dropped."""
        if not self.dead:
            self._pending = self._pending + data if self._pending else data

    def next(self) -> RequestHead | bytes | bytearray | Refusal | None:
        """Return the next head, then that request's whole body, or a refusal; None: needs bytes.

        The body follows its head in a call of its own, b"" for a request without one; a large one
        is a bytearray, which is the caller's.
        """
        if self.dead:
            return None
        head = self._head
        try:
            return self._next_head() if head is None else self._next_body(head)
        except httptools.HttpParserError as fault:
            if self.body_bytes > self._max_body:  # it was too large before it was wrong
                return self._too_large("more")
            return self._refuse(BadRequest(f"not HTTP that is accepted here: {fault}"))

    def take_ahead(self) -> bytes:
        """Give away what was received and not read: it is no HTTP, and nothing is after it."""
        ahead = self._pending
        self.close()
        return ahead

    def close(self) -> None:
        """Forget everything; the parser holds references to this, and this to the parser."""
        if self.dead:
            return
        self.dead = True
        self._short = False
        self._pending = b""
        self._first_piece = b""
        self._body = _NO_BODY
        self._parser = _NO_PARSER

    # llhttp's callbacks

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The end of the head."""
        self._whole_headers, self._headers = self._headers, []
        self._keep_alive = self._parser.should_keep_alive()  # forgotten with the message's end

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._body:
            self._body += piece
        elif self._first_piece:
            self._body = bytearray(self._first_piece)
            self._body += piece
            self._first_piece = b""
        else:
            self._first_piece = piece

    def on_message_complete(self) -> None:
        """The end of the request."""
        self._complete = True

    # head

    def _next_head(self) -> RequestHead | Refusal | None:
        if not self._pending:
            return None
        if not self._begun and self._pending[0] in _LINE_ENDS:
            self._skip_empty_lines()
        while True:
            piece = self._up_to_blank_line()
            self._head_bytes += len(piece)
            if self._head_bytes > self._max_header:
                return self._head_too_large(piece)
            if not piece:
                return None
            self._begun = True
            upgraded = self._feed_head(piece)
            fault = self._read_version(piece)
            if fault is not None:
                return fault
            headers = self._whole_headers
            if headers is not None:
                return self._head_read(headers, upgraded=upgraded)

    def _skip_empty_lines(self) -> None:
        """Pass over what RFC 9112 section 2.2 asks a server to ignore; it counts as head."""
        pending = self._pending
        rest = pending.lstrip(_LINE_ENDS)
        self._head_bytes += len(pending) - len(rest)
        self._pending = rest

    def _up_to_blank_line(self) -> bytes:
        """Take what is pending up to the end of the head, or all of it."""
        last, pending = self._last, self._pending
        end = -1 if last else pending.find(_BLANK_LINE)
        if end >= 0:  # nearly always: the whole head is here
            end += len(_BLANK_LINE)
            self._pending = pending[end:]
            return pending[:end]
        whole = last + pending
        end = _blank_line_end(whole, 0, len(whole))
        self._last, self._pending = whole[max(0, end - 3) : end], whole[end:]
        return whole[len(last) : end]

    def _head_too_large(self, piece: bytes) -> Refusal:
        """Refuse a head that is over the limit with `piece`."""
        fits = piece[: max(0, len(piece) - self._head_bytes + self._max_header)]
        self._feed_head(fits)  # what is no HTTP is told as such at any cut
        fault = self._read_version(fits)
        why = f"the request head is larger than {self._max_header} bytes"
        return fault or self._refuse(HeadersTooLarge(why))

    def _feed_head(self, piece: bytes) -> bool:
        """Feed a part of the head; whether it ended with the offer of an upgrade."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return True
        return False

    def _read_version(self, piece: bytes) -> Refusal | None:
        """Refuse a first line, once `piece` has ended it, that ends as no request of ours does.

        llhttp also reads HTTP/2.0, RTSP and ICE, and HTTP/0.9, whose clients send that line alone
        and would wait for an answer until the deadline of a head.
        """
        if self._version is not None:
            return None
        line = self._line + piece
        end = line.find(b"\n") + 1
        if not end:
            self._line = line
            return None
        self._line = b""
        if line.endswith(b" HTTP/1.1\r\n", 0, end):
            self._version = "1.1"
        elif line.endswith(b" HTTP/1.0\r\n", 0, end):
            self._version = "1.0"
        else:
            return self._refuse(BadRequest("HTTP/1.1 and HTTP/1.0 are spoken here"))
        return None

    def _head_read(
        self, headers: list[tuple[bytes, bytes]], *, upgraded: bool
    ) -> RequestHead | Refusal:
        version = self._version
        assert version is not None  # noqa: S101 - its line is in front of the blank one
        method = self._parser.get_method().decode("ascii")
        first = first_values(headers)
        fault = head_fault(method, self._url, version, headers, first)
        if fault is not None:
            return self._refuse(BadRequest(fault))
        head = RequestHead(method, self._url, version, headers, first, keep_alive=self._keep_alive)
        if upgraded:
            self._go_on_without_upgrade(head)
        self._head = head
        self._last = b""
        self._left = head.content_length or 0
        return head

    def _go_on_without_upgrade(self, head: RequestHead) -> None:
        """Read on as HTTP/1.1: an upgrade is an offer, and declining it is saying nothing.

        Java's HttpClient offers h2c on its first request, a POST with its body included; llhttp
        takes what follows for the other protocol, so a fresh one reads the body.
        """
        self._parser = httptools.HttpRequestParser(self)
        self._complete = False
        framing = (
            b"transfer-encoding: chunked"
            if head.chunked
            else (b"content-length: %d" % (head.content_length or 0))
        )
        self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: -\r\n" + framing + _BLANK_LINE)

    # body

    def _next_body(self, head: RequestHead) -> bytes | bytearray | Refusal | None:
        if head.chunked:
            return self._next_chunked_body()
        length = head.content_length or 0
        if length > self._max_body:
            return self._too_large(f"{length} bytes")
        if not self._complete and not self._feed_counted():
            return None
        return self._body_read()

    def _feed_counted(self) -> bool:
        """Take what has come of a body whose length is known; whether that is all of it.

        One that is here at once is fed, and is a small one, mostly. The parser would copy each
        piece of the others once more. But of what follows a last request it is the parser that
        knows it is one too many.
        """
        left, pending = self._left, self._pending
        if len(pending) <= left:  # compiled, a slice is a copy
            piece, self._pending = pending, b""
        else:
            piece, self._pending = pending[:left], pending[left:]
        self._left = left - len(piece)
        if not self._keep_alive or not (self._left or self.body_bytes):
            self._parser.feed_data(piece)
            return self._complete
        if piece:
            self.on_body(piece)
        if self._left:
            return False
        self._parser = httptools.HttpRequestParser(self)  # the old one still waits for that body
        return True

    def _body_read(self) -> bytes | bytearray:
        first, body = self._first_piece, self._body
        self._reset()
        if not body:
            return first
        return body if len(body) > LARGE_BODY else bytes(body)

    def _next_chunked_body(self) -> bytes | bytearray | Refusal | None:
        self._feed_chunked()
        if self.body_bytes > self._max_body:
            return self._too_large("more")
        if self._unfruitful > self._max_header:
            what = "the trailers or the extensions of a chunk are"
            return self._refuse(HeadersTooLarge(f"{what} larger than {self._max_header} bytes"))
        if not self._complete:
            return None
        self._reset_chunks()
        return self._body_read()

    def _feed_chunked(self) -> None:
        """Feed up to the end of this request and no further.

        A chunked body ends with CR LF CR LF, and llhttp does not say where in its input it ended.
        So it is fed in pieces that end at such a sequence, and asked after each. Pieces are no
        larger than a head may be, so that trailers, which are held until each is whole, and what
        else is no body can be bounded like a head.
        """
        whole, at = self._last + self._pending, len(self._last)
        limit = self._max_header
        feeds = MAX_FEEDS
        while at < len(whole) and not self._complete and self._unfruitful <= limit and feeds:
            feeds -= 1
            end = _blank_line_end(whole, at - 3, min(at + limit, len(whole)))
            before = self.body_bytes
            self._parser.feed_data(whole[at:end])
            grown = self.body_bytes > before
            self._unfruitful = 0 if grown else self._unfruitful + end - at
            at = end
        self._last, self._pending = whole[max(0, at - 3) : at], whole[at:]
        self._short = bool(self._pending) and not self._complete

    def _too_large(self, declared: str) -> Refusal:
        return self._refuse(
            BodyTooLarge(f"the request body is {declared}, {self._max_body} bytes are allowed")
        )

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.close()
        return refusal


def _blank_line_end(data: bytes, start: int, stop: int) -> int:
    """Where the first CR LF CR LF in `data[start:stop]` ends; `stop` if there is none."""
    found = data.find(_BLANK_LINE, max(0, start), stop)
    return stop if found < 0 else found + len(_BLANK_LINE)
