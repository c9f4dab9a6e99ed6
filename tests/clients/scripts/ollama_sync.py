"""Ollama's client for Python."""

# mypy: disable-error-code="import-not-found"
# (the clients live in their own environment, not in the one mypy runs in)

from ollama import AsyncClient, Client

from tests.clients.scripts.serving import LONG, PROMPT, SHORT, Case, Target, serve

MESSAGES = [{"role": "user", "content": PROMPT}]
GREEDY = {"temperature": 0, "num_predict": SHORT}


def made(target: Target) -> Client:
    """The client, which knows no keys: one goes along as a header."""
    return Client(host=target.url, headers={"Authorization": f"Bearer {target.key}"})


def chat(target: Target) -> object:
    """A whole answer."""
    answer = made(target).chat(target.model, MESSAGES, options=GREEDY)
    return {"text": answer.message.content, "done": answer.done, "tokens": answer.eval_count}


def chat_stream(target: Target) -> object:
    """A streamed answer, to its end."""
    parts = list(made(target).chat(target.model, MESSAGES, options=GREEDY, stream=True))
    return {
        "text": "".join(part.message.content or "" for part in parts),
        "done": [part.done for part in parts],
    }


async def async_chat_stream(target: Target) -> object:
    """The same on an event loop."""
    headers = {"Authorization": f"Bearer {target.key}"}
    client = AsyncClient(host=target.url, headers=headers)
    stream = await client.chat(target.model, MESSAGES, options=GREEDY, stream=True)
    parts = [part async for part in stream]
    return {
        "text": "".join(part.message.content or "" for part in parts),
        "done": [part.done for part in parts],
    }


def generate(target: Target) -> object:
    """The older API, whole and streamed."""
    client = made(target)
    whole = client.generate(target.model, PROMPT, options=GREEDY)
    parts = list(client.generate(target.model, PROMPT, options=GREEDY, stream=True))
    return {
        "text": whole.response,
        "done": whole.done,
        "streamed": "".join(part.response for part in parts),
        "ends": [part.done for part in parts],
    }


def models(target: Target) -> object:
    """What models there are, and what one is."""
    client = made(target)
    found = [each.model for each in client.list().models]
    return {"found": found, "shown": client.show(target.model).model_dump(mode="json")}


def pull(target: Target) -> object:
    """What SGLang does not do."""
    return made(target).pull(target.model).model_dump()


def abort(target: Target) -> object:
    """A stream that is left in its middle."""
    options = {"num_predict": LONG, "temperature": 0}
    stream = made(target).chat(target.model, MESSAGES, options=options, stream=True)
    read = [next(stream).done for _ in range(3)]
    stream.close()
    return {"read": read}


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (chat, chat_stream, async_chat_stream, generate, models, pull, abort)
}

if __name__ == "__main__":
    serve(CASES)
