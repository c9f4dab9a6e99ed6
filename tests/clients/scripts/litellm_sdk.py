"""LiteLLM's SDK, told that the endpoint speaks as OpenAI does."""

# mypy: disable-error-code="import-not-found"
# (the clients live in their own environment, not in the one mypy runs in)

import asyncio

import litellm

from tests.clients.scripts.serving import LONG, PROMPT, SHORT, Case, Target, serve

MESSAGES = [{"role": "user", "content": PROMPT}]

litellm.suppress_debug_info = True


def asked(target: Target, tokens: int = SHORT, **more: object) -> dict[str, object]:
    """The arguments of a call; `openai/` says how the endpoint speaks."""
    return {
        "model": f"openai/{target.model}",
        "api_base": f"{target.url}/v1",
        "api_key": target.key,
        "messages": MESSAGES,
        "max_tokens": tokens,
        "temperature": 0,
        "num_retries": 0,
        "max_retries": 0,
        **more,
    }


def completion(target: Target) -> object:
    """A whole answer."""
    answer = litellm.completion(**asked(target))
    (choice,) = answer.choices
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "tokens": answer.usage.completion_tokens,
    }


def completion_stream(target: Target) -> object:
    """A streamed answer, to its end."""
    chunks = list(litellm.completion(**asked(target, stream=True)))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "finish": [choice.finish_reason for choice in choices if choice.finish_reason],
    }


async def acompletion(target: Target) -> object:
    """The same on an event loop, whole and streamed."""
    whole = await litellm.acompletion(**asked(target))
    stream = await litellm.acompletion(**asked(target, stream=True))
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return {"text": whole.choices[0].message.content, "streamed": "".join(parts)}


async def side_by_side(target: Target) -> object:
    """Four at once."""
    answers = await asyncio.gather(*(litellm.acompletion(**asked(target)) for _ in range(4)))
    return {"answers": len([each for each in answers if each.choices[0].message.content])}


def too_long(target: Target) -> object:
    """A prompt that no context holds."""
    long = [{"role": "user", "content": "word " * 200_000}]
    return litellm.completion(**asked(target, messages=long)).model_dump()


def text_completion(target: Target) -> object:
    """The older API."""
    fields = asked(target)
    del fields["messages"]
    fields["model"] = f"text-completion-openai/{target.model}"
    answer = litellm.text_completion(prompt=PROMPT, **fields)
    return {"text": answer.choices[0].text}


def abort(target: Target) -> object:
    """A stream that is left in its middle."""
    fields = asked(target, LONG, stream=True, extra_body={"ignore_eos": True})
    stream = litellm.completion(**fields)
    read = [next(stream) is not None for _ in range(3)]
    stream.completion_stream.close()
    return {"read": len(read)}


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (
        completion,
        completion_stream,
        acompletion,
        side_by_side,
        too_long,
        text_completion,
        abort,
    )
}

if __name__ == "__main__":
    serve(CASES)
