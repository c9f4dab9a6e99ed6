"""LangChain's ChatOpenAI."""

# mypy: disable-error-code="import-not-found"
# (the clients live in their own environment, not in the one mypy runs in)

from typing import Literal

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.clients.scripts.serving import LONG, PROMPT, SHORT, Case, Target, serve

MESSAGES = [SystemMessage("You are brief."), HumanMessage(PROMPT)]


class Place(BaseModel):
    """A city, and whether it is large."""

    city: Literal["Paris", "Rome"]
    large: bool


@tool  # type: ignore[untyped-decorator]
def weather(city: Literal["Paris", "Rome"]) -> str:
    """What the weather is like in a city."""
    return f"It rains in {city}."


def made(target: Target, tokens: int = SHORT, **more: object) -> ChatOpenAI:
    """The model as LangChain has it, greedy, without retries of its own."""
    return ChatOpenAI(
        base_url=f"{target.url}/v1",
        api_key=target.key,
        model=target.model,
        max_completion_tokens=tokens,
        temperature=0,
        max_retries=0,
        timeout=60,
        **more,
    )


def invoke(target: Target) -> object:
    """A whole answer."""
    answer = made(target).invoke(MESSAGES)
    usage = answer.usage_metadata or {}
    return {"text": answer.content, "tokens": usage.get("output_tokens")}


def stream(target: Target) -> object:
    """A streamed answer, added up by LangChain's own rule."""
    chunks = list(made(target, stream_usage=True).stream(MESSAGES))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    usage = whole.usage_metadata or {}
    return {"text": whole.content, "tokens": usage.get("output_tokens"), "chunks": len(chunks)}


async def ainvoke(target: Target) -> object:
    """The same on an event loop."""
    answer = await made(target).ainvoke(MESSAGES)
    return {"text": answer.content}


async def astream(target: Target) -> object:
    """The same, streamed."""
    return {"text": "".join([str(c.content) async for c in made(target).astream(MESSAGES)])}


def batch(target: Target) -> object:
    """Four at once, in threads."""
    answers = made(target).batch([[HumanMessage(f"number {number}")] for number in range(4)])
    return {"answers": len([each for each in answers if each.content])}


def bind_tools(target: Target) -> object:
    """A call of a tool, its result, and the answer to that."""
    model = made(target, 200)
    asked = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False).invoke(
        MESSAGES
    )
    results = [
        ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
        for call in asked.tool_calls[:1]
    ]
    calls = [call["name"] for call in asked.tool_calls]
    return {"calls": calls, "results": [result.content for result in results]}


def with_structured_output(target: Target) -> object:
    """An answer by a schema, parsed."""
    found = made(target, 200).with_structured_output(Place, method="json_schema").invoke(MESSAGES)
    return found.model_dump()


def abort(target: Target) -> object:
    """A stream that is left in its middle."""
    model = made(target, LONG, extra_body={"ignore_eos": True})
    chunks = model.stream(MESSAGES)
    read = [next(chunks) is not None for _ in range(3)]
    chunks.close()
    return {"read": len(read)}


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (
        invoke,
        stream,
        ainvoke,
        astream,
        batch,
        bind_tools,
        with_structured_output,
        abort,
    )
}

if __name__ == "__main__":
    serve(CASES)
