"""OpenAI's own clients: Python, both ways, and Node.js. The same cases, and the same expected."""

import json
from typing import Any

from tests.clients.rows import OPENAI, OPENAI_ASYNC, OPENAI_NODE, Client, PairKind, row
from tests.clients.stand import CHAT, N_STAR, Stand

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
ALL = (OPENAI, OPENAI_ASYNC, OPENAI_NODE)

NO_TOOLS = "a simulated engine calls no tools"
NO_SCHEMA = "a simulated engine follows no schema"
NO_RESPONSES = "a simulated engine has no `/v1/responses`"


@row("chat", *ALL)
def test_a_chat(stand: Stand, client: Client) -> None:
    """A whole answer, with our headers."""
    with stand.counting((CHAT, "ok")):
        saw = stand.saw(client, "chat")

    assert saw["text"]
    assert saw["finish"] in {"length", "stop"}
    assert saw["model"] == stand.pair.model
    assert 1 <= saw["tokens"] <= 16
    assert saw["upstream"] in {"spec", "base"}
    assert saw["reason"]
    assert saw["request"]


@row("chat, streamed", *ALL)
def test_a_streamed_chat(stand: Stand, client: Client) -> None:
    """It says what the whole answer says, ends once, and tells its usage once."""
    with stand.counting((CHAT, "ok"), (CHAT, "ok")):
        whole = stand.saw(client, "chat")
        saw = stand.saw(client, "chat_stream")

    assert saw["text"] == whole["text"]
    assert saw["finish"] == [whole["finish"]]
    assert saw["tokens"] == [whole["tokens"]]
    assert saw["chunks"] > 2


@row("eight requests side by side", OPENAI_ASYNC, OPENAI_NODE)
def test_side_by_side(stand: Stand, client: Client) -> None:
    """More than N* at once: all are answered, and each is counted."""
    assert N_STAR < 8
    with stand.counting(*[(CHAT, "ok")] * 8):
        assert stand.saw(client, "side_by_side") == {"answers": 8}


@row("two choices (`n`)", *ALL)
def test_two_choices(stand: Stand, client: Client) -> None:
    """One request."""
    with stand.counting((CHAT, "ok")):
        assert sorted(stand.saw(client, "two_choices")["indexes"]) == [0, 1]


@row("completions, whole and streamed", *ALL)
def test_completions(stand: Stand, client: Client) -> None:
    """The older API says the same either way."""
    with stand.counting((COMPLETIONS, "ok"), (COMPLETIONS, "ok")):
        whole = stand.saw(client, "completion")
        saw = stand.saw(client, "completion_stream")

    assert saw["text"] == whole["text"] != ""
    assert saw["finish"] == [whole["finish"]]


@row("tools", *ALL, simulated=NO_TOOLS)
def test_tools(stand: Stand, client: Client) -> None:
    """A call arrives, with arguments by its schema."""
    with stand.counting((CHAT, "ok")):
        _called(stand.saw(client, "tools"))


@row("tools, streamed", *ALL, simulated=NO_TOOLS)
def test_streamed_tools(stand: Stand, client: Client) -> None:
    """The client puts the pieces together."""
    with stand.counting((CHAT, "ok")):
        _called(stand.saw(client, "tools_stream"))


def _called(saw: dict[str, Any]) -> None:
    assert saw["finish"] in {"stop", "tool_calls"}
    for name, arguments in saw["calls"]:
        assert name == "weather"
        assert json.loads(arguments)["city"] in {"Paris", "Rome"}
    assert saw["calls"]


@row("structured output, parsed", *ALL, simulated=NO_SCHEMA)
def test_structured_output(stand: Stand, client: Client) -> None:
    """What the client parses is by the schema."""
    with stand.counting((CHAT, "ok")):
        _placed(stand.saw(client, "structured"))


@row("structured output, streamed", *ALL, simulated=NO_SCHEMA)
def test_streamed_structured_output(stand: Stand, client: Client) -> None:
    """The same at the end of a stream."""
    with stand.counting((CHAT, "ok")):
        _placed(stand.saw(client, "structured_stream"))


def _placed(saw: dict[str, Any]) -> None:
    assert saw["city"] in {"Paris", "Rome"}
    assert isinstance(saw["large"], bool)


@row("responses, whole and streamed", *ALL, simulated=NO_RESPONSES)
def test_responses(stand: Stand, client: Client) -> None:
    """The newer API ends with its own last event."""
    with stand.counting((RESPONSES, "ok"), (RESPONSES, "ok")):
        whole = stand.saw(client, "respond")
        saw = stand.saw(client, "respond_stream")

    assert whole["text"]
    assert whole["status"] in {"completed", "incomplete"}
    assert saw["text"]
    assert saw["last"] in {"response.completed", "response.incomplete"}


@row("responses, stored and found again", *ALL, simulated=NO_RESPONSES)
def test_stored_responses(stand: Stand, client: Client) -> None:
    """It lives in one server, and is asked for there."""
    with stand.counting((RESPONSES, "ok"), (f"{RESPONSES}/{{id}}", "ok")):
        saw = stand.saw(client, "respond_stored")

    assert saw["same"]
    assert saw["again"] == saw["text"] != ""


@row("models", *ALL)
def test_models(stand: Stand, client: Client) -> None:
    """The list, and one of it."""
    with stand.counting(("/v1/models", "ok"), ("/v1/models/{id}", "ok")):
        saw = stand.saw(client, "models")

    assert saw == {"found": [stand.pair.model], "one": stand.pair.model}


@row("embeddings, which the model has not: the server's own error", *ALL)
def test_no_embeddings(stand: Stand, client: Client) -> None:
    """The engine's refusal arrives as the client's exception."""
    with stand.counting(("/v1/embeddings", "ok")):
        raised = stand.raised(client, "embeddings")

    simulated = stand.pair.kind is PairKind.SIMULATED
    assert ("NotFoundError" if simulated else "BadRequestError") in raised.types


@row("a prompt that is too long: `BadRequestError`", *ALL)
def test_too_long(stand: Stand, client: Client) -> None:
    """The engine judges it, in its own words."""
    with stand.counting((CHAT, "ok")):
        raised = stand.raised(client, "too_long")

    assert "BadRequestError" in raised.types
    assert "context length" in raised.message


@row("a path that is not served: `NotFoundError`", *ALL)
def test_not_found(stand: Stand, client: Client) -> None:
    """Told by its path."""
    with stand.counting(("other", "rejected")):
        raised = stand.raised(client, "files")

    assert "NotFoundError" in raised.types
    assert "/v1/files is not served here" in raised.message


@row("a wrong key: `AuthenticationError`", *ALL)
def test_a_wrong_key(stand: Stand, client: Client) -> None:
    """Before an engine is asked."""
    with stand.counting((CHAT, "rejected")):
        raised = stand.raised(client, "chat", key="sk-wrong")

    assert "AuthenticationError" in raised.types
    assert (raised.status, raised.code) == (401, "invalid_api_key")


@row("no room: `RateLimitError` with `Retry-After`", *ALL)
def test_overloaded(stand: Stand, client: Client) -> None:
    """The exception that a program waits upon."""
    expected = [(CHAT, "rejected"), (CHAT, "abandoned")]
    with stand.counting(*expected, at=stand.narrow), stand.occupied():
        raised = stand.raised(client, "chat", at=stand.narrow)

    assert "RateLimitError" in raised.types
    assert (raised.status, raised.code, raised.retry_after) == (429, "overloaded", "1")


@row("no room: its own retry waits for as long as `Retry-After` says", *ALL)
def test_its_own_retry(stand: Stand, client: Client) -> None:
    """Refused once, it asks again no sooner than told, and is answered."""
    expected = [(CHAT, "abandoned"), (CHAT, "ok")]
    with stand.refusing_once(CHAT, *expected) as give_back:
        talker = stand.ask(client, "patient", at=stand.narrow)
        give_back()
        saw = talker.saw()

    assert saw["finish"] in {"length", "stop"}
    assert saw["seconds"] >= 1.0


@row("a stream that is left: the engine stops, and it counts as abandoned", *ALL)
def test_abort(stand: Stand, client: Client) -> None:
    """`counting` waits for the engines to be idle, long before the answer would end."""
    with stand.counting((CHAT, "abandoned")):
        assert stand.saw(client, "abort") == {"read": 3}


@row("a whole answer that takes too long: the client's own timeout, and the same", *ALL)
def test_impatience(stand: Stand, client: Client) -> None:
    """Nobody waits for it any more, so nobody works on it."""
    with stand.counting((CHAT, "abandoned")):
        raised = stand.raised(client, "impatient")

    timeouts = {"APITimeoutError", "APIConnectionTimeoutError", "TimeoutError"}
    assert timeouts & set(raised.types)
