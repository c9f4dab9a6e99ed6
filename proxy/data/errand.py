"""One request whose answer is ours: what is asked for at the desk, and the wait for it."""

from collections.abc import Mapping
from typing import Final

from proxy.core.endpoints import Kind
from proxy.core.errands import Asker, Errand, Visit
from proxy.core.keys import presented
from proxy.data.front import Front
from proxy.data.ledger import Account
from proxy.data.reader import RequestHead

_OF_THE_BODY: Final = (b"content-type", b"content-encoding")


class DeskVisit:
    """From the start of an errand until its end, or until nobody waits for that any more."""

    __slots__ = ("_front", "_visit")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._visit: Visit | None = None

    def start(
        self, head: RequestHead, account: Account, body: bytes | bytearray, asker: Asker
    ) -> None:
        """Ask at the desk; `asker` is told of the answer."""
        endpoint, first = account.endpoint, head.first
        assert endpoint is not None  # noqa: S101 - others are refused at their head
        # A key that is not ours to judge is the engines', as on every path. One for administration
        # is theirs, too: the one with which the request came, whatever a reload has done since.
        administers = endpoint.kind is Kind.ADMINISTRATION
        theirs = account.key_name is None or administers
        errand = Errand(
            template=endpoint.template,
            method="GET" if head.method == "HEAD" else head.method,
            query=head.target.partition(b"?")[2],
            # A page is asked for without a body: one that came all the same would cost a copy of
            # it, and make of one question many.
            headers=_headers(first, account.request_id) if administers else (),
            body=bytes(body) if administers else b"",
            key=presented(head.headers, first) if theirs else None,
        )
        self._visit = self._front.desk.start(errand, asker)

    def over(self) -> None:
        """The answer is there."""
        self._visit = None

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        visit, self._visit = self._visit, None
        assert visit is not None  # noqa: S101 - it has been started, and is not over
        visit.cancel()


def _headers(first: Mapping[bytes, bytes], request_id: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """What the servers are told of an order beside its body: what that is, and the request's id."""
    said = [(name, first[name]) for name in _OF_THE_BODY if name in first]
    return (*said, (b"x-request-id", request_id))
