"""Answers of our own as bytes: refusals, and the health of the pair as SGLang would tell it."""

from http import HTTPStatus

from proxy.core.answers import refusal_body
from proxy.core.endpoints import Endpoint
from proxy.core.errands import Reply
from proxy.core.http import decision_lines
from proxy.core.upgrade import UPGRADE_LINES
from proxy.core.words import Outcome
from proxy.data.front import Front
from proxy.data.ledger import Account
from proxy.data.reader import RequestHead
from proxy.errors import MethodNotAllowed, Overloaded, Refusal

_WITHOUT_ID = frozenset({400, 408, 431})
"""What was no whole request has no id, whether or not its head was read."""


def refusal_answer(
    refusal: Refusal, account: Account, head: RequestHead | None, front: Front, *, keep_alive: bool
) -> bytes:
    """The whole answer that refuses."""
    anthropic = head is not None and head.path.startswith(b"/v1/messages")
    body = refusal_body(refusal, anthropic=anthropic)
    lines = [b"content-type: application/json"]
    if account.place is not None:
        place = account.place
        lines += decision_lines(account.request_id, place.upstream, place.reason)
    elif account.request_id and refusal.status not in _WITHOUT_ID:
        lines.append(b"x-request-id: " + account.request_id)
    if refusal.retry_after is not None:
        lines.append(b"retry-after: %d" % refusal.retry_after)
    if isinstance(refusal, MethodNotAllowed):
        lines.append(b"allow: " + ", ".join(refusal.allow).encode())
    if refusal.status == HTTPStatus.UPGRADE_REQUIRED:
        lines += (*UPGRADE_LINES, b"sec-websocket-version: 13")
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        lines.append(b"www-authenticate: Bearer")
    lines += _readers(account, head, front)
    return answer(refusal.status, lines, body, head, keep_alive=keep_alive)


def errand_answer(
    reply: Reply, account: Account, head: RequestHead, front: Front, *, keep_alive: bool
) -> bytes:
    """The whole answer that was put together for a request."""
    lines = [
        b"content-type: " + reply.content_type.encode("latin-1"),
        b"x-request-id: " + account.request_id,
        *_readers(account, head, front),
    ]
    return answer(reply.status, lines, reply.body, head, keep_alive=keep_alive)


def _readers(account: Account, head: RequestHead | None, front: Front) -> tuple[bytes, ...]:
    """What says whose web pages may read an answer; none may, where the path is for some only."""
    endpoint = account.endpoint
    if endpoint is not None and endpoint.reserved:
        return ()
    return front.cors.lines(() if head is None else head.headers)


def own_answer(path: str, head: RequestHead, front: Front, *, keep_alive: bool) -> bytes:
    """The whole answer of a health path.

    `/livez` says that the loop runs; every other path that the pair can serve: one usable upstream
    is enough, both full is no reason, draining is one.
    """
    able = front.dispatcher.usable and not front.dispatcher.draining
    good = path == "/livez" or able
    offered = head.first.get(b"x-request-id")
    lines = [b"x-request-id: " + front.ids.choose(offered)]
    body = b""
    if path in {"/livez", "/readyz"}:
        lines.append(b"content-type: text/plain; charset=utf-8")
        body = b"ok\n" if good else _why_not(front)
    lines += front.cors.lines(head.headers)
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return answer(status, lines, body, head, keep_alive=keep_alive)


def unread_answer(refusal: Refusal, front: Front, *, began_at: float, now: float) -> bytes:
    """The whole answer to what never became a request; it is counted as one that ended at once.

    What was not read has no id; who was not let in has one of ours. Seconds are monotonic stamps.
    """
    request_id = front.ids.choose(None) if isinstance(refusal, Overloaded) else b""
    account = Account(request_id, None, "", began_at)
    front.opened()
    front.closed(account.answered(Outcome.REJECTED, refusal.status, now, code=refusal.code))
    return refusal_answer(refusal, account, None, front, keep_alive=False)


def preflight_answer(
    lines: tuple[bytes, ...],
    endpoint: Endpoint,
    head: RequestHead,
    front: Front,
    *,
    keep_alive: bool,
    began_at: float,
) -> bytes:
    """The whole answer to a browser that asks whether a page may send its request; `lines` say.

    It is counted where its path is.
    """
    request_id = front.ids.choose(head.first.get(b"x-request-id"))
    if endpoint.needs_key:
        front.opened()
        account = Account(request_id, endpoint, head.method, began_at)
        front.closed(account.answered(Outcome.OK, HTTPStatus.NO_CONTENT, front.clock()))
    all_lines = [b"x-request-id: " + request_id, *lines]
    return answer(HTTPStatus.NO_CONTENT, all_lines, b"", head, keep_alive=keep_alive)


def _why_not(front: Front) -> bytes:
    return b"draining\n" if front.dispatcher.draining else b"no usable upstream\n"


def answer(
    status: int, lines: list[bytes], body: bytes, head: RequestHead | None, *, keep_alive: bool
) -> bytes:
    """A whole answer with `body`, which a HEAD request does not get."""
    phrase = HTTPStatus(status).phrase.encode()
    block = [b"HTTP/1.1 %d %s" % (status, phrase), *lines]
    if status != HTTPStatus.NO_CONTENT:  # which must not have one, RFC 9110 section 8.6
        block.append(b"content-length: %d" % len(body))
    if not keep_alive:
        block.append(b"connection: close")
    elif head is not None and head.version == "1.0":
        block.append(b"connection: keep-alive")
    wanted = head is None or head.method != "HEAD"
    return b"\r\n".join((*block, b"", body if wanted else b""))
