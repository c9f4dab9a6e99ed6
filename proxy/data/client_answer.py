"""The answer to one request as its client gets it: an engine's, framed for the client, or ours."""

from typing import Final

from proxy.core.answers import error_event
from proxy.core.errands import Reply
from proxy.core.http import Framing, client_head, decision_lines
from proxy.core.places import Place
from proxy.core.sse import StreamWatch
from proxy.core.upgrade import UPGRADE_LINES
from proxy.data.client import Client
from proxy.data.front import Front
from proxy.data.ledger import Account
from proxy.data.own import errand_answer, refusal_answer
from proxy.data.reader import RequestHead
from proxy.data.response import ResponseHead, connection_line, framing_for
from proxy.errors import Refusal

_CHUNKED: Final = Framing.CHUNKED


class ClientAnswer:
    """Writes to the client; whoever uses it tells the client when the request is over."""

    __slots__ = ("_account", "_client", "_front", "_head", "framing")

    def __init__(self, front: Front, client: Client, head: RequestHead, account: Account) -> None:
        self._front = front
        self._client = client
        self._head = head
        self._account = account
        self.framing = Framing.NONE
        """How its end is marked; known once it has begun."""

    def begin(self, response: ResponseHead, place: Place) -> None:
        """Write the engine's head, with what is ours to say."""
        head, client, account = self._head, self._client, self._account
        account.status = response.status
        self.framing = framing_for(head, response)
        if self.framing is Framing.CLOSE:
            client.keep_alive = False
            client.closing_is_end = True
        added = (
            *decision_lines(account.request_id, place.upstream, place.reason),
            *self._front.cors.lines(head.headers, response.headers),
        )
        client.write(
            client_head(
                response.status,
                response.phrase,
                response.headers,
                added=(*added, *connection_line(head.version, keep_alive=client.keep_alive)),
                framing=self.framing,
            )
        )

    def switch(self, response: ResponseHead, place: Place) -> None:
        """Write the engine's agreement to a tunnel; what follows is written by that."""
        account = self._account
        account.status = response.status
        self._client.keep_alive = False
        added = (*decision_lines(account.request_id, place.upstream, place.reason), *UPGRADE_LINES)
        self._client.write(
            client_head(
                response.status,
                response.phrase,
                response.headers,
                added=added,
                framing=Framing.NONE,
            )
        )

    def go_on(self, pieces: list[bytes]) -> None:
        """Write the next `pieces` of its body."""
        self._account.passed(pieces)
        if self.framing is _CHUNKED:
            for piece in pieces:
                self._client.write(b"%x\r\n" % len(piece), piece, b"\r\n")
        elif self.framing is not Framing.NONE:
            self._client.write(*pieces)

    def end(self) -> None:
        """Mark its end."""
        if self.framing is _CHUNKED:
            self._client.write(b"0\r\n\r\n")

    def break_off(self, failure: Refusal, watch: StreamWatch | None) -> None:
        """Tell, where the stream's own form allows it, and break off so that nobody is deceived."""
        client = self._client
        client.keep_alive = False
        if self.framing is Framing.CLOSE:
            client.cut()
        elif self.framing is _CHUNKED and watch is not None and watch.at_boundary:
            endpoint = self._account.endpoint
            assert endpoint is not None  # noqa: S101 - it is watched by its dialect
            dialect = endpoint.dialect or endpoint.stream_dialect
            assert dialect is not None  # noqa: S101 - the same
            event = error_event(failure, dialect)
            client.write(b"%x\r\n" % len(event), event, b"\r\n")

    def tell(self, reply: Reply) -> None:
        """Write an answer that was put together."""
        client = self._client
        client.write(
            errand_answer(
                reply, self._account, self._head, self._front, keep_alive=client.keep_alive
            )
        )

    def refuse(self, refusal: Refusal) -> None:
        """Write an answer of our own in its place."""
        client = self._client
        client.write(
            refusal_answer(
                refusal, self._account, self._head, self._front, keep_alive=client.keep_alive
            )
        )
