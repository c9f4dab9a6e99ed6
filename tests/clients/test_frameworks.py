"""Two that others build upon: LangChain's ChatOpenAI and LiteLLM's SDK."""

from tests.clients.rows import LANGCHAIN, LITELLM, Client, row
from tests.clients.stand import CHAT, Stand

NO_TOOLS = "a simulated engine calls no tools"
NO_SCHEMA = "a simulated engine follows no schema"


@row("`invoke` and `ainvoke`", LANGCHAIN)
def test_invoke(stand: Stand, client: Client) -> None:
    """Whole answers."""
    with stand.counting((CHAT, "ok"), (CHAT, "ok")):
        saw = stand.saw(client, "invoke")
        again = stand.saw(client, "ainvoke")

    assert saw["text"] == again["text"] != ""
    assert 1 <= saw["tokens"] <= 16


@row("`stream` and `astream`", LANGCHAIN)
def test_stream(stand: Stand, client: Client) -> None:
    """They say what the whole answer says; usage arrives, too."""
    with stand.counting(*[(CHAT, "ok")] * 3):
        whole = stand.saw(client, "invoke")
        saw = stand.saw(client, "stream")
        again = stand.saw(client, "astream")

    assert saw["text"] == again["text"] == whole["text"]
    assert saw["tokens"] == whole["tokens"]
    assert saw["chunks"] > 2


@row("`batch`", LANGCHAIN)
def test_batch(stand: Stand, client: Client) -> None:
    """Four at once."""
    with stand.counting(*[(CHAT, "ok")] * 4):
        assert stand.saw(client, "batch") == {"answers": 4}


@row("`bind_tools`", LANGCHAIN, simulated=NO_TOOLS)
def test_bind_tools(stand: Stand, client: Client) -> None:
    """A call that LangChain's own tool takes."""
    with stand.counting((CHAT, "ok")):
        saw = stand.saw(client, "bind_tools")

    assert set(saw["calls"]) == {"weather"}
    assert saw["results"][0] in {"It rains in Paris.", "It rains in Rome."}


@row("`with_structured_output`", LANGCHAIN, simulated=NO_SCHEMA)
def test_with_structured_output(stand: Stand, client: Client) -> None:
    """What LangChain parses is by the schema."""
    with stand.counting((CHAT, "ok")):
        saw = stand.saw(client, "with_structured_output")

    assert saw["city"] in {"Paris", "Rome"}
    assert isinstance(saw["large"], bool)


@row("`completion`, whole and streamed", LITELLM)
def test_completion(stand: Stand, client: Client) -> None:
    """It says the same either way."""
    with stand.counting((CHAT, "ok"), (CHAT, "ok")):
        whole = stand.saw(client, "completion")
        saw = stand.saw(client, "completion_stream")

    assert saw["text"] == whole["text"] != ""
    assert saw["finish"] == [whole["finish"]]
    assert 1 <= whole["tokens"] <= 16


@row("`acompletion`, whole and streamed", LITELLM)
def test_acompletion(stand: Stand, client: Client) -> None:
    """The same on an event loop."""
    with stand.counting((CHAT, "ok"), (CHAT, "ok")):
        saw = stand.saw(client, "acompletion")

    assert saw["streamed"] == saw["text"] != ""


@row("four requests side by side", LITELLM)
def test_side_by_side(stand: Stand, client: Client) -> None:
    """Each is counted."""
    with stand.counting(*[(CHAT, "ok")] * 4):
        assert stand.saw(client, "side_by_side") == {"answers": 4}


@row("`text_completion`", LITELLM)
def test_text_completion(stand: Stand, client: Client) -> None:
    """The older API."""
    with stand.counting(("/v1/completions", "ok")):
        assert stand.saw(client, "text_completion")["text"]


@row("a prompt that is too long: `BadRequestError`", LITELLM)
def test_too_long(stand: Stand, client: Client) -> None:
    """The engine's own error."""
    with stand.counting((CHAT, "ok")):
        raised = stand.raised(client, "too_long")

    assert "BadRequestError" in raised.types
    assert "context length" in raised.message


@row("a wrong key: `AuthenticationError`", LANGCHAIN, LITELLM)
def test_a_wrong_key(stand: Stand, client: Client) -> None:
    """Before an engine is asked."""
    with stand.counting((CHAT, "rejected")):
        raised = stand.raised(client, CASES[client], key="sk-wrong")

    assert "AuthenticationError" in raised.types
    assert raised.status == 401


@row("no room: `RateLimitError`", LANGCHAIN, LITELLM)
def test_overloaded(stand: Stand, client: Client) -> None:
    """The exception that a program waits upon."""
    expected = [(CHAT, "rejected"), (CHAT, "abandoned")]
    with stand.counting(*expected, at=stand.narrow), stand.occupied():
        raised = stand.raised(client, CASES[client], at=stand.narrow)

    assert "RateLimitError" in raised.types
    assert raised.status == 429


@row("a stream that is left: the engine stops, and it counts as abandoned", LANGCHAIN, LITELLM)
def test_abort(stand: Stand, client: Client) -> None:
    """`counting` waits for the engines to be idle, long before the answer would end."""
    with stand.counting((CHAT, "abandoned")):
        assert stand.saw(client, "abort") == {"read": 3}


CASES = {LANGCHAIN: "invoke", LITELLM: "completion"}
"""The plainest of each."""
