"""Anthropic's client for Python."""

# mypy: disable-error-code="import-not-found"
# (the clients live in their own environment, not in the one mypy runs in)

import time

from anthropic import Anthropic

from tests.clients.scripts.serving import LONG, PROMPT, SHORT, Case, Target, serve

MESSAGES = [{"role": "user", "content": PROMPT}]
WEATHER = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}


def made(target: Target, *, retries: int = 0) -> Anthropic:
    """The client; it shows its key as `x-api-key`."""
    return Anthropic(base_url=target.url, api_key=target.key, max_retries=retries, timeout=60.0)


def message(target: Target) -> object:
    """A whole answer."""
    with made(target) as client:
        answer = client.messages.create(
            model=target.model, max_tokens=SHORT, messages=MESSAGES, extra_body={"temperature": 0}
        )
    return {
        "text": "".join(block.text for block in answer.content if block.type == "text"),
        "stop": answer.stop_reason,
        "tokens": answer.usage.output_tokens,
    }


def message_stream(target: Target) -> object:
    """A streamed answer, put together by the client."""
    with (
        made(target) as client,
        client.messages.stream(
            model=target.model, max_tokens=SHORT, messages=MESSAGES, extra_body={"temperature": 0}
        ) as stream,
    ):
        types = [event.type for event in stream]
        answer = stream.get_final_message()
    return {
        "text": "".join(block.text for block in answer.content if block.type == "text"),
        "stop": answer.stop_reason,
        "tokens": answer.usage.output_tokens,
        "first": types[0],
        "last": types[-1],
    }


def tools(target: Target) -> object:
    """A call of a tool."""
    with made(target) as client:
        answer = client.messages.create(
            model=target.model,
            max_tokens=200,
            messages=MESSAGES,
            tools=[WEATHER],
            tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        )
    return {
        "stop": answer.stop_reason,
        "calls": [(each.name, each.input) for each in answer.content if each.type == "tool_use"],
    }


def count(target: Target) -> object:
    """How long a prompt is."""
    with made(target) as client:
        return client.messages.count_tokens(model=target.model, messages=MESSAGES).input_tokens


def too_long(target: Target) -> object:
    """A prompt that no context holds."""
    with made(target) as client:
        return client.messages.create(
            model=target.model,
            max_tokens=SHORT,
            messages=[{"role": "user", "content": "word " * 20_000}],
        ).model_dump()


def patient(target: Target) -> object:
    """The client's own retries, which wait for as long as `Retry-After` says."""
    started = time.monotonic()
    with made(target, retries=4) as client:
        answer = client.messages.create(model=target.model, max_tokens=SHORT, messages=MESSAGES)
    return {"stop": answer.stop_reason, "seconds": time.monotonic() - started}


def abort(target: Target) -> object:
    """A stream that is left in its middle."""
    with (
        made(target) as client,
        client.messages.create(
            model=target.model,
            max_tokens=LONG,
            messages=MESSAGES,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream,
    ):
        read = [event.type for event, _ in zip(stream, range(4), strict=False)]
    return {"read": len(read)}


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (message, message_stream, tools, count, too_long, patient, abort)
}

if __name__ == "__main__":
    serve(CASES)
