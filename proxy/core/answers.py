"""Our own errors as bodies and as stream events, each in the shape its protocol's clients read."""

import json

from proxy.core.peek import Dialect
from proxy.errors import Refusal

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_NDJSON = frozenset({Dialect.OLLAMA_CHAT, Dialect.OLLAMA_GENERATE})


def openai_error(refusal: Refusal) -> dict[str, str | None]:
    """The `error` object of OpenAI's shape."""
    return {
        "message": refusal.message,
        "type": refusal.type,
        "param": None,
        "code": refusal.code,
    }


def anthropic_error(refusal: Refusal) -> dict[str, object]:
    """The whole object of Anthropic's shape."""
    kind = _ANTHROPIC_TYPES.get(refusal.status, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": f"{refusal.message} ({refusal.code})"},
    }


def refusal_body(refusal: Refusal, *, anthropic: bool) -> bytes:
    """The JSON body of an answer of our own."""
    shape = anthropic_error(refusal) if anthropic else {"error": openai_error(refusal)}
    return json.dumps(shape).encode()


def error_event(refusal: Refusal, dialect: Dialect) -> bytes:
    """The event that tells, inside a stream that began well, that it did not end well."""
    if dialect in _NDJSON:
        return json.dumps({"error": refusal.message, "code": refusal.code}).encode() + b"\n"
    if dialect is Dialect.ANTHROPIC:
        data = json.dumps(anthropic_error(refusal)).encode()
        return b"event: error\ndata: " + data + b"\n\n"
    return b"data: " + json.dumps({"error": openai_error(refusal)}).encode() + b"\n\n"
