"""The protocol facing a client: its bytes to requests, and its answers to its socket.

It reads one request at a time; what a client sends ahead waits, bounded, in the reader. It never
stops reading the client's socket while a request runs, since a paused transport does not report
that its client has left. What one request holds is in its Relay; what lives here is the
connection's: deadlines, unsent bytes, the closing.
"""

import asyncio
from math import inf

from proxy.core.endpoints import Endpoint, Kind, find
from proxy.core.observer import Record
from proxy.core.refusals import RETRY_AFTER_BUSY
from proxy.data.admission import asks_for_body, head_refusal
from proxy.data.front import Front
from proxy.data.ledger import Account
from proxy.data.outgoing import Outgoing
from proxy.data.own import own_answer, preflight_answer, unread_answer
from proxy.data.patience import Alarm, Unread
from proxy.data.reader import RequestHead, RequestReader
from proxy.data.relay import Relay
from proxy.errors import (
    Overloaded,
    Refusal,
    RequestTimeout,
)

MAX_AHEAD_BYTES = 65536
"""How much a client may send ahead of the answer it waits for; past it, it is cut."""

TURN = 32
"""How many things are read for one client before the others have their turn; about 2 ms."""

LINGER_SECONDS = 1.0
"""After a last answer the client may go on sending this long, so that no reset destroys it."""


class ClientConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._out = Outgoing()
        self._limits = front.limits
        self._reader = RequestReader(
            max_header_bytes=self._limits.max_header_bytes,
            max_body_bytes=self._limits.max_body_bytes,
        )
        self._relay: Relay | None = None
        self.keep_alive = True
        """Whether another request may follow the one that is being answered."""
        self.closing_is_end = False
        """Whether a clean close would mark the end of an answer that is being written."""
        self._is_last = False
        """Whether the client has said that no request follows the one that it has sent."""
        self._continues = False
        """Whether reading goes on in a turn of its own."""
        self._began_at: float | None = None
        """When the first byte of the request that is coming in was here."""
        self._closing = False
        self._deaf = False
        """Whether we do not read, for a client that is too far ahead."""
        self._last_word = False
        """Whether to say that nothing follows, once that is sent."""
        self._deadline = inf
        self._unread = Unread()
        self._alarm = Alarm(front)

    @property
    def decision(self) -> Record | None:
        """The record so far of the request that is being answered, if it has a place."""
        return None if self._relay is None else self._relay.account.decision()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        front = self._front
        self._out.open(transport)
        front.connections.add(self)
        self._deadline = front.clock() + front.timeouts.header
        allowed = front.max_connections
        if len(front.connections) > allowed + front.told:
            self._out.cut(half=False)  # telling it would take what others need
            return
        if len(front.connections) > allowed:
            why = f"all {allowed} connections are in use"
            self._refuse_connection(Overloaded(why, retry_after=RETRY_AFTER_BUSY))
        self._schedule()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        answering = self._answering
        if answering or self._closing:
            self._is_last = False  # it goes on sending, whatever it has said
        if self._closing:
            return
        if answering and self._pass_through(data):
            return
        reader = self._reader
        reader.feed(data)
        if not answering and not self._continues:
            self._advance()
        if reader.ahead > MAX_AHEAD_BYTES:
            self._too_far_ahead()

    def eof_received(self) -> bool | None:
        """The client sends no more: it has left, unless it is only reading its last answer."""
        if self._closing:
            self.flush()
            return self.unsent_bytes > 0
        if self._relay is not None and self._relay.tunnel is not None:
            self._relay.client_finished()
            return True
        self.cut()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """The connection is closed."""
        self._out.transport = None
        self._closing = True
        self._client_gone()
        self._front.connections.discard(self)
        self._alarm.cancel()
        self._reader.close()

    def pause_writing(self) -> None:
        """The client reads more slowly than its engine writes."""
        front = self._front
        self._unread.falls_behind(self.unsent_bytes, front.clock() + front.timeouts.client_write)
        if self._relay is not None:
            self._relay.pause()
        self._schedule()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._unread.catches_up()
        if self._closing:
            self._deadline = self._front.clock() + LINGER_SECONDS
        if self._relay is not None:
            self._relay.resume()
        self.request_moved()

    # what the relay needs

    @property
    def slow(self) -> bool:
        """Whether the client has more to read than it takes."""
        return self._unread.cut_at < inf

    def write(self, *pieces: bytes) -> None:
        """Add `pieces` to what `request_moved`, or an ending, sends."""
        self._out.pieces += pieces

    def pass_over_body(self) -> bool:
        """Read on past the body of a request that is answered at its head; whether it was there."""
        return isinstance(self._reader.next(), (bytes, bytearray))

    def take_ahead(self) -> bytes:
        """What was sent behind a request, and is no HTTP, nor anything after it."""
        return self._reader.take_ahead()

    def hold_back(self) -> None:
        """Do not read, for an engine that does not either."""
        if self._out.transport is not None and not self._deaf:
            self._out.transport.pause_reading()
            self._deaf = True

    def go_on(self) -> None:
        """Read again."""
        self._hear()

    def failed(self, fault: Exception) -> None:
        """A fault of ours in the request that runs: report it, and give the connection up."""
        context = {"message": "a request failed within specswitch", "exception": fault}
        asyncio.get_running_loop().call_exception_handler(context)
        self.cut()

    def request_over(self) -> None:
        """The answer is written; go on with the next request, or close."""
        self._relay = None
        self._began_at = None
        self._unread.begins_to_idle()
        self._deadline = self._front.clock() + self._front.timeouts.client_keep_alive
        if not self.keep_alive:
            self._close()

    def request_moved(self) -> None:
        """Something has happened outside of a read of the client."""
        if self._relay is None and (self._reader.ahead or self._deaf):
            self._advance()
        else:
            self._flush_soon()
            self._schedule()

    def flush(self) -> None:
        """Send what has been written, and that it was the last."""
        out = self._out
        out.send()
        if self._last_word and out.transport is not None:
            self._last_word = False
            self._say_last_word(out.transport)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken yet."""
        return self._out.unsent_bytes

    @property
    def unfinished(self) -> bool:
        """Whether a request is open, or an answer has not been taken whole."""
        return self._relay is not None or self.unsent_bytes > 0

    # the app

    def close(self) -> None:
        """End: at once if something is not finished, else as after a last answer."""
        self.flush()
        if self.unfinished:
            self.cut()
        elif self._out.transport is not None:
            self._closing = True
            self._out.transport.close()

    def cut(self) -> None:
        """End now, whatever is going on; with a reset where a clean close would be a lie."""
        self.flush()
        half = self.closing_is_end and self.unfinished
        self._closing = True
        self._client_gone()
        self._out.cut(half=half)

    def refuse(self, refusal: Refusal) -> None:
        """Answer what cannot become a request, and close."""
        if not self._closing:
            self._refuse_connection(refusal)
            self._schedule()

    # reading

    @property
    def _answering(self) -> bool:
        """Whether a request is past its body, so that the next has to wait."""
        return self._relay is not None and not self._relay.reading

    def _pass_through(self, data: bytes) -> bool:
        """Send what comes through a tunnel, if there is one; whether there is."""
        relay = self._relay
        if relay is None or relay.tunnel is None:
            return False
        relay.tunnel.from_client(data)
        return True

    def _advance(self) -> None:
        """Read as many requests as can be answered, in order, one at a time.

        Not beyond what the client takes of the answers, and not for long: whoever sends requests
        that cost nothing to answer, thousands of them, must not keep the loop from the others.
        """
        for _ in range(TURN):
            if self._closing or self._answering or self.slow:
                break
            if not self._read_one():
                break
        else:
            self._go_on_later()
        if self._deaf:
            self._hear()
        self._flush_soon()
        self._schedule()

    def _read_one(self) -> bool:
        """Take one thing from the reader; whether there may be more."""
        now = self._front.clock()
        if self._began_at is None and self._reader.started:
            self._began_at = now
            limits = self._front.limits
            if limits is not self._limits:  # a reload has changed them
                self._limits = limits
                self._reader.keep_to(
                    max_header_bytes=limits.max_header_bytes, max_body_bytes=limits.max_body_bytes
                )
        item = self._reader.next()
        if item is None:
            self._await_more(now)
            return self._reader.unread
        if isinstance(item, RequestHead):
            self._request_begins(item, now)
        elif isinstance(item, Refusal):
            self._unreadable(item, now)
        else:
            assert self._relay is not None  # noqa: S101 - a body follows its head
            if isinstance(item, bytes):
                self._relay.body_read(item, now)
            else:
                self._relay.large_body_read(item)
        return True

    def _go_on_later(self) -> None:
        if not self._continues:
            self._continues = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._continues = False
        self._advance()

    def _too_far_ahead(self) -> None:
        """Bound what a client sends ahead.

        While a request runs we go on reading, or nobody would tell us that its client has left; so
        what is beyond the bound is dropped, and the connection ends with this answer. While none
        runs the client can wait.
        """
        relay = self._relay
        if relay is None or relay.reading:
            self.hold_back()
        elif relay.wants_tunnel:
            self.cut()  # what is dropped would be missed, and no WebSocket begins like this
        else:
            self._reader.close()
            self.keep_alive = False

    def _hear(self) -> None:
        """Read again from a client that had to wait, as soon as a request runs or there is room."""
        if self._answering or self._reader.ahead <= MAX_AHEAD_BYTES:
            self._deaf = False
            if self._out.transport is not None:
                self._out.transport.resume_reading()

    def _await_more(self, now: float) -> None:
        """Set the patience for what comes next; for a next request it runs already."""
        timeouts = self._front.timeouts
        if self._relay is not None:
            self._deadline = now + timeouts.body
            self._relay.body_grows(self._reader.body_bytes)
        elif self._began_at is not None:
            self._deadline = self._began_at + timeouts.header

    def _request_begins(self, head: RequestHead, now: float) -> None:
        front = self._front
        endpoint = find(head.path)
        if endpoint is not None and endpoint.reserved and not front.offers(endpoint, head):
            endpoint = None
        self.keep_alive = head.keep_alive
        self._is_last = not head.keep_alive
        if endpoint is not None and endpoint.kind is Kind.OWN and head.method in endpoint.methods:
            self._answer_own(head, endpoint)
            return
        if endpoint is not None and head.method == "OPTIONS" and not endpoint.reserved:
            allowed = front.cors.preflight(head.headers, endpoint.methods)
            if allowed is not None:
                self._answer_preflight(head, endpoint, allowed, now)
                return
        request_id = front.ids.choose(head.first.get(b"x-request-id"))
        began_at = now if self._began_at is None else self._began_at
        account = Account(request_id, endpoint, head.method, began_at)
        self._relay = Relay(front, self, head, account)
        refusal = head_refusal(front, head, account)
        if refusal is not None:
            self._relay.refuse(refusal)
        elif asks_for_body(front, head) and not self._reader.ahead:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer_own(self, head: RequestHead, endpoint: Endpoint) -> None:
        self.keep_alive = self.pass_over_body() and self.keep_alive
        self.write(own_answer(endpoint.template, head, self._front, keep_alive=self.keep_alive))
        self.request_over()

    def _answer_preflight(
        self, head: RequestHead, endpoint: Endpoint, allowed: tuple[bytes, ...], now: float
    ) -> None:
        """Tell a browser what it may send; asked without a key."""
        began_at = now if self._began_at is None else self._began_at
        self.keep_alive = self.pass_over_body() and self.keep_alive
        answer = preflight_answer(
            allowed, endpoint, head, self._front, keep_alive=self.keep_alive, began_at=began_at
        )
        self.write(answer)
        self.request_over()

    def _unreadable(self, refusal: Refusal, now: float) -> None:
        """What came is no request, or one too large; nothing after it can be read."""
        if self._relay is not None:
            self.keep_alive = False
            self._relay.refuse(refusal)
        else:
            self._refuse_connection(refusal, now)

    def _refuse_connection(self, refusal: Refusal, now: float | None = None) -> None:
        """Answer what never became a request."""
        at = self._front.clock() if now is None else now
        began_at = at if self._began_at is None else self._began_at
        self.keep_alive = False
        self.write(unread_answer(refusal, self._front, began_at=began_at, now=at))
        self.request_over()

    # leaving and closing

    def _client_gone(self) -> None:
        if self._relay is not None:
            self._relay.client_gone()

    def _close(self) -> None:
        """Say no more, and let the client read what has been said."""
        if self._closing or self._out.transport is None:
            return
        self._closing = True
        if self._reader.started or self._reader.ahead:
            self._is_last = False
        self._reader.close()  # what has come of a body that was refused is held for nobody
        self._last_word = True
        self._front.outbox.add(self)

    def _say_last_word(self, transport: asyncio.Transport) -> None:
        """Say that nothing follows, and let the client read what has been said.

        From a client that sends no more either (RFC 9112 section 9.6), and keeps its word, nothing
        comes that would make the kernel reset the connection, and destroy the answer.
        """
        if self._is_last and not transport.get_write_buffer_size():
            transport.close()
            return
        self._deadline = self._front.clock() + LINGER_SECONDS
        self._schedule()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    # writing and time

    def _flush_soon(self) -> None:
        """Send what has been written, in this turn; at once where it is much.

        One turn may read megabytes of an engine that, for a slow client, should have been paused.
        """
        if self._out.is_much:
            self.flush()
        elif self._out.pieces:
            self._front.outbox.add(self)

    def _due(self) -> float:
        relay = self._relay
        due = self._deadline if relay is None or relay.reading else relay.exchange.deadline
        return min(due, self._unread.cut_at)

    def _schedule(self) -> None:
        if self._out.transport is not None:
            self._alarm.set(self._due(), self._time_passed)

    def _time_passed(self) -> None:
        now = self._front.clock()
        if now >= self._unread.cut_at:
            self._reads_nothing(now)
        elif now >= self._due():
            self._expired(now)
        self._schedule()

    def _reads_nothing(self, now: float) -> None:
        """`client_write` is over: cut a client that has taken no byte in it."""
        again = now + self._front.timeouts.client_write
        if self._unread.still_falls(self.unsent_bytes, again):
            self.cut()

    def _expired(self, now: float) -> None:
        relay, timeouts = self._relay, self._front.timeouts
        if self._closing:
            self._lingered(now)
        elif relay is not None and not relay.reading:
            relay.expired()
            self.request_moved()
        elif relay is not None:
            why = f"no byte of the body came for {timeouts.body:g} s"
            self._unreadable(RequestTimeout(why), now)
        elif self._began_at is not None:
            why = f"the head took longer than {timeouts.header:g} s"
            self._unreadable(RequestTimeout(why), now)
        elif self.unsent_bytes:
            self._let_read(now)
        else:
            self.cut()  # idle past its time: without a word

    def _lingered(self, now: float) -> None:
        """The time to read the last answer is over, but for a client that is still reading it."""
        if self.unsent_bytes:
            self._let_read(now)
        else:
            self.cut()

    def _let_read(self, now: float) -> None:
        """Give a client that has not taken all of an answer `client_write` to take some of it."""
        if self._unread.idles_on(self.unsent_bytes):
            self.cut()
        else:
            self._deadline = now + self._front.timeouts.client_write
