"""The head of a request as its engine gets it."""

from proxy.core.http import engine_head
from proxy.core.keys import Headers
from proxy.core.upgrade import UPGRADE_LINES, without_offered_key
from proxy.data.front import EngineSide
from proxy.data.ledger import Account
from proxy.data.reader import RequestHead


def request_head(
    head: RequestHead, account: Account, side: EngineSide, *, attempt: int, body_bytes: int
) -> bytes:
    """That of a request with a body of `body_bytes`, or without one."""
    had_body = head.has_body or head.content_length is not None
    return engine_head(
        b"GET" if head.method == "HEAD" else head.method.encode(),
        head.target,
        head.headers,
        added=_added(account, side, attempt),
        body_length=body_bytes if had_body else None,
        drop_keys=_drops_keys(account, side),
    )


def upgrade_head(head: RequestHead, account: Account, side: EngineSide, *, attempt: int) -> bytes:
    """That of a request for a tunnel."""
    drop_keys = _drops_keys(account, side)
    headers: Headers = without_offered_key(head.headers) if drop_keys else head.headers
    return engine_head(
        head.method.encode(),
        head.target,
        headers,
        added=(*_added(account, side, attempt), *UPGRADE_LINES),
        body_length=None,
        drop_keys=drop_keys,
    )


def _added(account: Account, side: EngineSide, attempt: int) -> tuple[bytes, ...]:
    return (
        *side.lines,
        b"x-request-id: " + account.request_id,
        b"x-specswitch-attempt: %d" % attempt,
    )


def _drops_keys(account: Account, side: EngineSide) -> bool:
    """Whether the client's key is ours, if it had to have one when it came, or the engine's is.

    A reload may have ended that it has to.
    """
    return side.has_key or account.key_name is not None
