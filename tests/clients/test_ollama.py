"""Ollama's client for Python, on `/api`."""

from tests.clients.rows import OLLAMA, Client, row
from tests.clients.stand import CHAT, Stand

OLLAMA_CHAT, GENERATE = "/api/chat", "/api/generate"
NO_API = "a simulated engine has no `/api`"


@row("chat", OLLAMA, simulated=NO_API)
def test_a_chat(stand: Stand, client: Client) -> None:
    """A whole answer."""
    with stand.counting((OLLAMA_CHAT, "ok")):
        saw = stand.saw(client, "chat")

    assert saw["text"]
    assert saw["done"] is True
    assert 1 <= saw["tokens"] <= 16


@row("chat, streamed", OLLAMA, simulated=NO_API)
def test_a_streamed_chat(stand: Stand, client: Client) -> None:
    """Line by line, and only the last one says that it is done."""
    with stand.counting((OLLAMA_CHAT, "ok"), (OLLAMA_CHAT, "ok")):
        saw = stand.saw(client, "chat_stream")
        again = stand.saw(client, "async_chat_stream")

    assert saw["text"]
    assert saw["done"] == [False] * (len(saw["done"]) - 1) + [True]
    assert again["text"] == saw["text"]


@row("generate, whole and streamed", OLLAMA, simulated=NO_API)
def test_generate(stand: Stand, client: Client) -> None:
    """The older API."""
    with stand.counting((GENERATE, "ok"), (GENERATE, "ok")):
        saw = stand.saw(client, "generate")

    assert saw["text"]
    assert saw["done"] is True
    # SGLang's last line carries no text, whatever came with it.
    assert saw["text"].startswith(saw["streamed"])
    assert saw["ends"][-1] is True


@row("list and show", OLLAMA, simulated=NO_API)
def test_models(stand: Stand, client: Client) -> None:
    """What models there are, and what one is."""
    with stand.counting(("/api/tags", "ok"), ("/api/show", "ok")):
        saw = stand.saw(client, "models")

    assert saw["found"] == [stand.pair.model]
    assert saw["shown"]["details"]


@row("what SGLang has not (`pull`): `ResponseError`", OLLAMA)
def test_pull(stand: Stand, client: Client) -> None:
    """Told by its path."""
    with stand.counting(("other", "rejected")):
        raised = stand.raised(client, "pull")

    assert "ResponseError" in raised.types
    assert raised.status == 404
    assert "/api/pull is not served here" in raised.message


@row("a wrong key: `ResponseError`", OLLAMA)
def test_a_wrong_key(stand: Stand, client: Client) -> None:
    """Before an engine is asked."""
    with stand.counting((OLLAMA_CHAT, "rejected")):
        raised = stand.raised(client, "chat", key="sk-wrong")

    assert "ResponseError" in raised.types
    assert raised.status == 401


@row("no room: `ResponseError`, 429", OLLAMA)
def test_overloaded(stand: Stand, client: Client) -> None:
    """It has no exception of its own for that, and no retries."""
    expected = [(OLLAMA_CHAT, "rejected"), (CHAT, "abandoned")]
    with stand.counting(*expected, at=stand.narrow), stand.occupied():
        raised = stand.raised(client, "chat", at=stand.narrow)

    assert "ResponseError" in raised.types
    assert raised.status == 429


@row(
    "a stream that is left: the engine stops, and it counts as abandoned",
    OLLAMA,
    simulated=NO_API,
)
def test_abort(stand: Stand, client: Client) -> None:
    """`counting` waits for the engines to be idle."""
    with stand.counting((OLLAMA_CHAT, "abandoned")):
        assert stand.saw(client, "abort") == {"read": [False] * 3}
