"""Our own errors in the shape that each protocol's clients read."""

import json

import pytest

from proxy.core.answers import anthropic_error, error_event, openai_error, refusal_body
from proxy.core.peek import Dialect
from proxy.errors import (
    BadRequest,
    BodyTooLarge,
    Draining,
    HeadersTooLarge,
    Ineligible,
    InvalidApiKey,
    MethodNotAllowed,
    NotFound,
    NoUpstream,
    Overloaded,
    QueueTimeout,
    Refusal,
    RequestTimeout,
    UpstreamConnect,
    UpstreamReset,
    UpstreamTimeout,
)

DIED = UpstreamReset('spec died: "gone"\n')


def test_openais_shape() -> None:
    """Message, type, param and code, as its clients look for them."""
    assert openai_error(DIED) == {
        "message": 'spec died: "gone"\n',
        "type": "upstream_error",
        "param": None,
        "code": "upstream_reset",
    }


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (BadRequest("m"), "invalid_request_error"),
        (InvalidApiKey("m"), "authentication_error"),
        (NotFound("m"), "not_found_error"),
        (MethodNotAllowed("m", allow=("POST",)), "invalid_request_error"),
        (RequestTimeout("m"), "timeout_error"),
        (BodyTooLarge("m"), "request_too_large"),
        (HeadersTooLarge("m"), "request_too_large"),
        (Overloaded("m"), "rate_limit_error"),
        (QueueTimeout("m"), "overloaded_error"),
        (NoUpstream("m"), "overloaded_error"),
        (Ineligible("m"), "overloaded_error"),
        (Draining("m"), "overloaded_error"),
        (UpstreamConnect("m"), "api_error"),
        (UpstreamReset("m"), "api_error"),
        (UpstreamTimeout("m"), "timeout_error"),
    ],
)
def test_anthropics_shape(refusal: Refusal, kind: str) -> None:
    """Its own types, from the status; our code stands in the message, where there is room."""
    assert anthropic_error(refusal) == {
        "type": "error",
        "error": {"type": kind, "message": f"m ({refusal.code})"},
    }


def test_a_body_is_the_shape_as_json() -> None:
    """OpenAI's under `error`, Anthropic's whole."""
    assert json.loads(refusal_body(DIED, anthropic=False)) == {"error": openai_error(DIED)}
    assert json.loads(refusal_body(DIED, anthropic=True)) == anthropic_error(DIED)


@pytest.mark.parametrize(
    "dialect",
    [
        Dialect.OPENAI_CHAT,
        Dialect.OPENAI_COMPLETIONS,
        Dialect.OPENAI_RESPONSES,
        Dialect.GENERATE,
    ],
)
def test_an_event_on_openais_paths(dialect: Dialect) -> None:
    """One data line, whatever is in the message."""
    event = error_event(DIED, dialect)

    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:]) == {"error": openai_error(DIED)}


def test_an_event_on_anthropics_path() -> None:
    """Named as its clients expect, with one data line."""
    event = error_event(DIED, Dialect.ANTHROPIC)

    assert event.startswith(b"event: error\ndata: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 3
    assert json.loads(event[19:]) == anthropic_error(DIED)


@pytest.mark.parametrize("dialect", [Dialect.OLLAMA_CHAT, Dialect.OLLAMA_GENERATE])
def test_a_line_on_ollamas_paths(dialect: Dialect) -> None:
    """One line of JSON."""
    event = error_event(DIED, dialect)

    assert event.endswith(b"\n")
    assert event.count(b"\n") == 1
    assert json.loads(event) == {"error": DIED.message, "code": "upstream_reset"}


@pytest.mark.parametrize("dialect", Dialect)
def test_no_event_looks_like_an_end(dialect: Dialect) -> None:
    """Nothing in it could be taken for a finished answer."""
    event = error_event(DIED, dialect)

    assert b"[DONE]" not in event
    assert b"finish_reason" not in event
    assert b'"done"' not in event
