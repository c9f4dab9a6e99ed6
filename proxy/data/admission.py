"""Whether a request's head is enough to refuse it, and whether its body is asked for."""

from proxy.core.keys import presented
from proxy.data.front import Front
from proxy.data.ledger import Account
from proxy.data.reader import RequestHead
from proxy.errors import InvalidApiKey, MethodNotAllowed, NotFound, Refusal


def head_refusal(front: Front, head: RequestHead, account: Account) -> Refusal | None:
    """Why `head` is refused, None if it is not; in the order of the contract: 401, 404, 405.

    Whose key it was is noted in `account`.
    """
    keyring, endpoint = front.keyring, account.endpoint
    if keyring:
        account.key_name = keyring.name_of(presented(head.headers, head.first))
        if account.key_name is None:
            return InvalidApiKey("an API key is needed, and none or a wrong one was given")
    if endpoint is None:
        path = head.path.decode("ascii", "replace")
        return NotFound(f"{path} is not served here")
    if head.method not in endpoint.methods:
        allowed = ", ".join(endpoint.methods)
        why = f"{endpoint.template} takes {allowed}, not {head.method}"
        return MethodNotAllowed(why, allow=endpoint.methods)
    return None


def asks_for_body(front: Front, head: RequestHead) -> bool:
    """Whether the client waits to be asked for its body, and it is one we would take."""
    fits = (head.content_length or 0) <= front.limits.max_body_bytes
    return head.expects_continue and head.has_body and fits
