"""OpenAI's client for Python, as people use it in code that waits."""

import time
from collections.abc import Iterable
from typing import Literal

from openai import OpenAI
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolParam,
)
from pydantic import BaseModel

from tests.clients.scripts.serving import LONG, PROMPT, SHORT, Case, Target, serve

MESSAGES: Iterable[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": PROMPT},
]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
# Named, and one call at a time: a model without sense would otherwise call without end.
ONLY: ChatCompletionNamedToolChoiceParam = {"type": "function", "function": {"name": "weather"}}
GO_ON = {"ignore_eos": True}


class Place(BaseModel):
    """What is to be parsed."""

    city: Literal["Paris", "Rome"]
    large: bool


def made(target: Target, *, retries: int = 0, patience: float = 60.0) -> OpenAI:
    """The client, which retries nothing on its own unless it is told to."""
    return OpenAI(
        base_url=f"{target.url}/v1", api_key=target.key, max_retries=retries, timeout=patience
    )


def chat(target: Target) -> object:
    """A whole answer, and the headers that specswitch adds."""
    with made(target) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=target.model, messages=MESSAGES, max_tokens=SHORT, temperature=0
        )
        answer = raw.parse()
    (choice,) = answer.choices
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "model": answer.model,
        "tokens": answer.usage and answer.usage.completion_tokens,
        "upstream": raw.headers["x-specswitch-upstream"],
        "reason": raw.headers["x-specswitch-reason"],
        "request": bool(raw.headers["x-request-id"]),
    }


def chat_stream(target: Target) -> object:
    """A streamed answer, to its end."""
    with made(target) as client:
        stream = client.chat.completions.create(
            model=target.model,
            messages=MESSAGES,
            max_tokens=SHORT,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "finish": [choice.finish_reason for choice in choices if choice.finish_reason],
        "tokens": [chunk.usage.completion_tokens for chunk in chunks if chunk.usage],
        "chunks": len(chunks),
    }


def two_choices(target: Target) -> object:
    """`n`: one request of two sequences."""
    with made(target) as client:
        answer = client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=SHORT, n=2
        )
    return {"indexes": [choice.index for choice in answer.choices]}


def completion(target: Target) -> object:
    """The older API, whole."""
    with made(target) as client:
        answer = client.completions.create(
            model=target.model, prompt=PROMPT, max_tokens=SHORT, temperature=0
        )
    (choice,) = answer.choices
    return {"text": choice.text, "finish": choice.finish_reason}


def completion_stream(target: Target) -> object:
    """The older API, streamed."""
    with made(target) as client:
        chunks = list(
            client.completions.create(
                model=target.model, prompt=PROMPT, max_tokens=SHORT, temperature=0, stream=True
            )
        )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "text": "".join(choice.text for choice in choices),
        "finish": list(filter(None, (choice.finish_reason for choice in choices))),
    }


def tools(target: Target) -> object:
    """A call of a tool."""
    with made(target) as client:
        answer = client.chat.completions.create(
            model=target.model,
            messages=MESSAGES,
            max_tokens=200,
            tools=[WEATHER],
            tool_choice=ONLY,
            parallel_tool_calls=False,
        )
    (choice,) = answer.choices
    calls = choice.message.tool_calls or []
    return {
        "finish": choice.finish_reason,
        "calls": [(c.function.name, c.function.arguments) for c in calls if c.type == "function"],
    }


def tools_stream(target: Target) -> object:
    """A call of a tool, put together from its pieces by the client."""
    with (
        made(target) as client,
        client.chat.completions.stream(
            model=target.model,
            messages=MESSAGES,
            max_tokens=200,
            tools=[WEATHER],
            tool_choice=ONLY,
            parallel_tool_calls=False,
        ) as stream,
    ):
        (choice,) = stream.get_final_completion().choices
    calls = choice.message.tool_calls or []
    return {
        "finish": choice.finish_reason,
        "calls": [(c.function.name, c.function.arguments) for c in calls],
    }


def structured(target: Target) -> object:
    """An answer by a schema, parsed."""
    with made(target) as client:
        answer = client.chat.completions.parse(
            model=target.model, messages=MESSAGES, max_tokens=200, response_format=Place
        )
    parsed = answer.choices[0].message.parsed
    return parsed and parsed.model_dump()


def structured_stream(target: Target) -> object:
    """The same, streamed."""
    with (
        made(target) as client,
        client.chat.completions.stream(
            model=target.model, messages=MESSAGES, max_tokens=200, response_format=Place
        ) as stream,
    ):
        parsed = stream.get_final_completion().choices[0].message.parsed
    return parsed and parsed.model_dump()


def respond(target: Target) -> object:
    """The Responses API, whole."""
    with made(target) as client:
        answer = client.responses.create(
            model=target.model, input=PROMPT, max_output_tokens=SHORT, store=False
        )
    return {"text": answer.output_text, "status": answer.status}


def respond_stream(target: Target) -> object:
    """The Responses API, streamed."""
    with made(target) as client:
        events = list(
            client.responses.create(
                model=target.model, input=PROMPT, max_output_tokens=SHORT, store=False, stream=True
            )
        )
    return {
        "text": "".join(e.delta for e in events if e.type == "response.output_text.delta"),
        "last": events[-1].type,
    }


def respond_stored(target: Target) -> object:
    """A response that is stored, found again."""
    with made(target) as client:
        answer = client.responses.create(
            model=target.model, input=PROMPT, max_output_tokens=SHORT, store=True
        )
        again = client.responses.retrieve(answer.id)
    return {"text": answer.output_text, "again": again.output_text, "same": again.id == answer.id}


def models(target: Target) -> object:
    """What models there are, and one of them."""
    with made(target) as client:
        found = [each.id for each in client.models.list()]
        return {"found": found, "one": client.models.retrieve(found[0]).id}


def embeddings(target: Target) -> object:
    """What a model that generates does not do."""
    with made(target) as client:
        return client.embeddings.create(model=target.model, input=PROMPT).model_dump()


def files(target: Target) -> object:
    """A path that SGLang does not have."""
    with made(target) as client:
        return client.files.list().model_dump()


def too_long(target: Target) -> object:
    """A prompt that no context holds."""
    with made(target) as client:
        return client.chat.completions.create(
            model=target.model, messages=[{"role": "user", "content": "word " * 200_000}]
        ).model_dump()


def patient(target: Target) -> object:
    """The client's own retries, which wait for as long as `Retry-After` says."""
    started = time.monotonic()
    with made(target, retries=4) as client:
        answer = client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=SHORT
        )
    return {"finish": answer.choices[0].finish_reason, "seconds": time.monotonic() - started}


def abort(target: Target) -> object:
    """A stream that is left in its middle."""
    with made(target) as client:
        stream = client.chat.completions.create(
            model=target.model,
            messages=MESSAGES,
            max_tokens=LONG,
            stream=True,
            extra_body=GO_ON,
        )
        read = [next(stream).choices[0].index for _ in range(3)]
        stream.close()
    return {"read": len(read)}


def impatient(target: Target) -> object:
    """A whole answer that takes longer than the client waits."""
    with made(target, patience=1.0) as client:
        return client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=LONG, extra_body=GO_ON
        ).model_dump()


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (
        chat,
        chat_stream,
        two_choices,
        completion,
        completion_stream,
        tools,
        tools_stream,
        structured,
        structured_stream,
        respond,
        respond_stream,
        respond_stored,
        models,
        embeddings,
        files,
        too_long,
        patient,
        abort,
        impatient,
    )
}

if __name__ == "__main__":
    serve(CASES)
