"""Whether a request's head is enough to refuse it, and whether its body is asked for."""

from proxy.core.endpoints import Endpoint, Kind
from proxy.core.keys import presented
from proxy.core.upgrade import offered_key, origin_refusal, upgrade_refusal
from proxy.data.front import Front
from proxy.data.ledger import ADMIN_KEY, Account
from proxy.data.reader import RequestHead
from proxy.errors import InvalidApiKey, MethodNotAllowed, NotFound, NotSupported, Refusal


def head_refusal(front: Front, head: RequestHead, account: Account) -> Refusal | None:
    """Why `head` is refused, None if it is not; in the order of the contract: 401, 404, 405, 501.

    What a tunnel wants of its request comes after that.

    Whose key it was is noted in `account`.
    """
    keyring, endpoint = front.keyring, account.endpoint
    if endpoint is not None and endpoint.by_admin:
        account.key_name = ADMIN_KEY  # it was there for who presents that key only
    elif keyring:
        account.key_name = keyring.name_of(_key(head, endpoint))
        if account.key_name is None:
            return InvalidApiKey("an API key is needed, and none or a wrong one was given")
    if endpoint is None:
        path = head.path.decode("ascii", "replace")
        why = "; `listen.metrics` is off" if path == "/metrics" else ""
        return NotFound(f"{path} is not served here{why}")
    if head.method not in endpoint.methods:
        allowed = ", ".join(endpoint.methods)
        why = f"{endpoint.template} takes {allowed}, not {head.method}"
        return MethodNotAllowed(why, allow=endpoint.methods)
    if endpoint.kind is Kind.WITHHELD:
        return NotSupported(
            f"{endpoint.template} is not passed on to a pair, whose servers must stay alike: "
            "start both anew with what they shall serve"
        )
    return _tunnel_refusal(front, head, endpoint) if endpoint.tunnel else None


def _key(head: RequestHead, endpoint: Endpoint | None) -> bytes | None:
    """The key that a client presents; one that can set no header has another place for it."""
    key = presented(head.headers, head.first)
    if key is None and endpoint is not None and endpoint.tunnel:
        return offered_key(head.headers)
    return key


def _tunnel_refusal(front: Front, head: RequestHead, endpoint: Endpoint) -> Refusal | None:
    """Why there is no tunnel for `head`: it asks for none, or its page may not have one."""
    refusal = upgrade_refusal(endpoint.template, head.version, head.headers, has_body=head.has_body)
    if refusal is None and not front.keyring:
        return origin_refusal(head.headers, head.first, front.cors)
    return refusal


def asks_for_body(front: Front, head: RequestHead) -> bool:
    """Whether the client waits to be asked for its body, and it is one we would take."""
    fits = (head.content_length or 0) <= front.limits.max_body_bytes
    return head.expects_continue and head.has_body and fits
