"""OpenAI's client for Python, as people use it on an event loop."""

import asyncio
import time

from openai import AsyncOpenAI

from tests.clients.scripts.openai_sync import GO_ON, MESSAGES, ONLY, WEATHER, Place
from tests.clients.scripts.serving import LONG, PROMPT, SHORT, Case, Target, serve


def made(target: Target, *, retries: int = 0) -> AsyncOpenAI:
    """The client, which retries nothing on its own unless it is told to."""
    return AsyncOpenAI(base_url=f"{target.url}/v1", api_key=target.key, max_retries=retries)


async def chat(target: Target) -> object:
    """A whole answer, and the headers that specswitch adds."""
    async with made(target) as client:
        raw = await client.chat.completions.with_raw_response.create(
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


async def chat_stream(target: Target) -> object:
    """A streamed answer, to its end."""
    async with made(target) as client:
        stream = await client.chat.completions.create(
            model=target.model,
            messages=MESSAGES,
            max_tokens=SHORT,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "finish": [choice.finish_reason for choice in choices if choice.finish_reason],
        "tokens": [chunk.usage.completion_tokens for chunk in chunks if chunk.usage],
        "chunks": len(chunks),
    }


async def side_by_side(target: Target) -> object:
    """Eight at once, over as many connections."""
    async with made(target) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=target.model,
                    messages=[{"role": "user", "content": f"number {number}"}],
                    max_tokens=SHORT,
                )
                for number in range(8)
            )
        )
    return {"answers": len([each for each in answers if each.choices[0].message.content])}


async def two_choices(target: Target) -> object:
    """`n`: one request of two sequences."""
    async with made(target) as client:
        answer = await client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=SHORT, n=2
        )
    return {"indexes": [choice.index for choice in answer.choices]}


async def completion(target: Target) -> object:
    """The older API, whole."""
    async with made(target) as client:
        answer = await client.completions.create(
            model=target.model, prompt=PROMPT, max_tokens=SHORT, temperature=0
        )
    (choice,) = answer.choices
    return {"text": choice.text, "finish": choice.finish_reason}


async def completion_stream(target: Target) -> object:
    """The older API, streamed."""
    async with made(target) as client:
        stream = await client.completions.create(
            model=target.model, prompt=PROMPT, max_tokens=SHORT, temperature=0, stream=True
        )
        choices = [choice async for chunk in stream for choice in chunk.choices]
    return {
        "text": "".join(choice.text for choice in choices),
        "finish": list(filter(None, (choice.finish_reason for choice in choices))),
    }


async def tools(target: Target) -> object:
    """A call of a tool."""
    async with made(target) as client:
        answer = await client.chat.completions.create(
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


async def tools_stream(target: Target) -> object:
    """A call of a tool, put together from its pieces by the client."""
    async with (
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
        (choice,) = (await stream.get_final_completion()).choices
    calls = choice.message.tool_calls or []
    return {
        "finish": choice.finish_reason,
        "calls": [(c.function.name, c.function.arguments) for c in calls],
    }


async def structured(target: Target) -> object:
    """An answer by a schema, parsed."""
    async with made(target) as client:
        answer = await client.chat.completions.parse(
            model=target.model, messages=MESSAGES, max_tokens=200, response_format=Place
        )
    parsed = answer.choices[0].message.parsed
    return parsed and parsed.model_dump()


async def structured_stream(target: Target) -> object:
    """The same, streamed."""
    async with (
        made(target) as client,
        client.chat.completions.stream(
            model=target.model, messages=MESSAGES, max_tokens=200, response_format=Place
        ) as stream,
    ):
        parsed = (await stream.get_final_completion()).choices[0].message.parsed
    return parsed and parsed.model_dump()


async def respond(target: Target) -> object:
    """The Responses API, whole."""
    async with made(target) as client:
        answer = await client.responses.create(
            model=target.model, input=PROMPT, max_output_tokens=SHORT, store=False
        )
    return {"text": answer.output_text, "status": answer.status}


async def respond_stream(target: Target) -> object:
    """The Responses API, streamed."""
    async with made(target) as client:
        stream = await client.responses.create(
            model=target.model, input=PROMPT, max_output_tokens=SHORT, store=False, stream=True
        )
        events = [event async for event in stream]
    return {
        "text": "".join(e.delta for e in events if e.type == "response.output_text.delta"),
        "last": events[-1].type,
    }


async def respond_stored(target: Target) -> object:
    """A response that is stored, found again."""
    async with made(target) as client:
        answer = await client.responses.create(
            model=target.model, input=PROMPT, max_output_tokens=SHORT, store=True
        )
        again = await client.responses.retrieve(answer.id)
    return {"text": answer.output_text, "again": again.output_text, "same": again.id == answer.id}


async def models(target: Target) -> object:
    """What models there are, and one of them."""
    async with made(target) as client:
        found = [each.id async for each in client.models.list()]
        return {"found": found, "one": (await client.models.retrieve(found[0])).id}


async def embeddings(target: Target) -> object:
    """What a model that generates does not do."""
    async with made(target) as client:
        return (await client.embeddings.create(model=target.model, input=PROMPT)).model_dump()


async def files(target: Target) -> object:
    """A path that SGLang does not have."""
    async with made(target) as client:
        return (await client.files.list()).model_dump()


async def too_long(target: Target) -> object:
    """A prompt that no context holds."""
    async with made(target) as client:
        answer = await client.chat.completions.create(
            model=target.model, messages=[{"role": "user", "content": "word " * 200_000}]
        )
    return answer.model_dump()


async def patient(target: Target) -> object:
    """The client's own retries, which wait for as long as `Retry-After` says."""
    started = time.monotonic()
    async with made(target, retries=4) as client:
        answer = await client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=SHORT
        )
    return {"finish": answer.choices[0].finish_reason, "seconds": time.monotonic() - started}


async def abort(target: Target) -> object:
    """A stream that is left in its middle."""
    async with made(target) as client:
        stream = await client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=LONG, stream=True, extra_body=GO_ON
        )
        read = [(await anext(stream)).choices[0].index for _ in range(3)]
        await stream.close()
    return {"read": len(read)}


async def impatient(target: Target) -> object:
    """A whole answer whose task is cancelled before it comes."""
    async with made(target) as client, asyncio.timeout(1.0):
        answer = await client.chat.completions.create(
            model=target.model, messages=MESSAGES, max_tokens=LONG, extra_body=GO_ON
        )
    return answer.model_dump()


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (
        chat,
        chat_stream,
        side_by_side,
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
