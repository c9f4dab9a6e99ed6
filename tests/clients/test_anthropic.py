"""Anthropic's client for Python, on `/v1/messages`."""

from tests.clients.rows import ANTHROPIC, Client, row
from tests.clients.stand import CHAT, Stand

MESSAGES = "/v1/messages"
NO_MESSAGES = "a simulated engine has no `/v1/messages`"


@row("messages", ANTHROPIC, simulated=NO_MESSAGES)
def test_a_message(stand: Stand, client: Client) -> None:
    """A whole answer."""
    with stand.counting((MESSAGES, "ok")):
        saw = stand.saw(client, "message")

    assert saw["text"]
    assert saw["stop"] in {"max_tokens", "end_turn"}
    assert 1 <= saw["tokens"] <= 16


@row("messages, streamed", ANTHROPIC, simulated=NO_MESSAGES)
def test_a_streamed_message(stand: Stand, client: Client) -> None:
    """It says what the whole answer says, between its first and its last event."""
    with stand.counting((MESSAGES, "ok"), (MESSAGES, "ok")):
        whole = stand.saw(client, "message")
        saw = stand.saw(client, "message_stream")

    assert (saw["first"], saw["last"]) == ("message_start", "message_stop")
    assert {name: saw[name] for name in whole} == whole


@row("tools", ANTHROPIC, simulated=NO_MESSAGES)
def test_tools(stand: Stand, client: Client) -> None:
    """A call arrives, with arguments by its schema."""
    with stand.counting((MESSAGES, "ok")):
        saw = stand.saw(client, "tools")

    assert saw["stop"] == "tool_use"
    assert saw["calls"]
    assert all(name == "weather" and given["city"] for name, given in saw["calls"])


@row("`count_tokens`", ANTHROPIC, simulated=NO_MESSAGES)
def test_count_tokens(stand: Stand, client: Client) -> None:
    """Any server can tell; it is no load."""
    with stand.counting((f"{MESSAGES}/count_tokens", "ok")):
        assert stand.saw(client, "count") > 5


@row("a prompt that is too long: `BadRequestError`", ANTHROPIC, simulated=NO_MESSAGES)
def test_too_long(stand: Stand, client: Client) -> None:
    """The engine's own error, in Anthropic's shape."""
    with stand.counting((MESSAGES, "ok")):
        raised = stand.raised(client, "too_long")

    assert "BadRequestError" in raised.types
    assert "'type': 'error'" in raised.body


@row("a path that the engine has not: `NotFoundError`", ANTHROPIC, real="SGLang has it")
def test_no_messages(stand: Stand, client: Client) -> None:
    """What passes is the engine's own 404."""
    with stand.counting((MESSAGES, "ok")):
        raised = stand.raised(client, "message")

    assert "NotFoundError" in raised.types


@row("a wrong key: `AuthenticationError`", ANTHROPIC)
def test_a_wrong_key(stand: Stand, client: Client) -> None:
    """Our own errors have Anthropic's shape here."""
    with stand.counting((MESSAGES, "rejected")):
        raised = stand.raised(client, "message", key="sk-wrong")

    assert "AuthenticationError" in raised.types
    assert raised.status == 401
    assert "'type': 'error'" in raised.body
    assert "'type': 'authentication_error'" in raised.body


@row("no room: `RateLimitError` with `Retry-After`", ANTHROPIC)
def test_overloaded(stand: Stand, client: Client) -> None:
    """The exception that a program waits upon."""
    expected = [(MESSAGES, "rejected"), (CHAT, "abandoned")]
    with stand.counting(*expected, at=stand.narrow), stand.occupied():
        raised = stand.raised(client, "message", at=stand.narrow)

    assert "RateLimitError" in raised.types
    assert (raised.status, raised.retry_after) == (429, "1")
    assert "'type': 'rate_limit_error'" in raised.body


@row(
    "no room: its own retry waits for as long as `Retry-After` says",
    ANTHROPIC,
    simulated=NO_MESSAGES,
)
def test_its_own_retry(stand: Stand, client: Client) -> None:
    """Refused once, it asks again no sooner than told, and is answered."""
    expected = [(CHAT, "abandoned"), (MESSAGES, "ok")]
    with stand.refusing_once(MESSAGES, *expected) as give_back:
        talker = stand.ask(client, "patient", at=stand.narrow)
        give_back()
        saw = talker.saw()

    assert saw["stop"] in {"max_tokens", "end_turn"}
    assert saw["seconds"] >= 1.0


@row(
    "a stream that is left: the engine stops, and it counts as abandoned",
    ANTHROPIC,
    simulated=NO_MESSAGES,
)
def test_abort(stand: Stand, client: Client) -> None:
    """`counting` waits for the engines to be idle."""
    with stand.counting((MESSAGES, "abandoned")):
        assert stand.saw(client, "abort") == {"read": 4}
