"""OpenAI's own client, as people use it: what it reads, and what its errors show."""

from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from tests.harness.running import Rig, rig
from tests.harness.upstream import (
    STREAM_HEAD,
    Fin,
    Reset,
    Send,
    chunk,
    event,
    reply,
    stream,
)

CHAT_PATH = "/v1/chat/completions"
RECORDED = (Path(__file__).parent.parent / "data" / "chat-stream-usage.sse").read_bytes()


def token(text: str) -> bytes:
    """A chat event."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def official(it: Rig, suffix: str = "/v1") -> AsyncOpenAI:
    """OpenAI's own client."""
    return AsyncOpenAI(
        base_url=f"http://127.0.0.1:{it.app.port}{suffix}", api_key="x", max_retries=0
    )


async def test_the_official_client_reads_a_recorded_stream() -> None:
    """ROCm/ATOM#1711: also the chunk that carries nothing but usage."""
    async with rig() as it, official(it) as client:
        it.spec.script(Send(stream(RECORDED)))
        chunks = [
            each
            async for each in await client.chat.completions.create(
                model="tiny", messages=[], stream=True, stream_options={"include_usage": True}
            )
        ]

    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


@pytest.mark.parametrize("end", [Fin(), Reset()])
async def test_the_official_client_sees_that_a_stream_broke_off(end: Fin | Reset) -> None:
    """BerriAI/litellm#39748: an error, no hang, and no end that could pass for a good one.

    Others close with `data: [DONE]` behind the error; a made-up end is what the contract forbids.
    """
    async with rig() as it, official(it) as client:
        it.spec.script(Send(STREAM_HEAD + chunk(token("a"))), end)
        stream_ = await client.chat.completions.create(model="tiny", messages=[], stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in stream_:
                pass


@pytest.mark.parametrize("size", [1_000, 8_500, 32_000, 64_000, 100_000])
async def test_the_official_client_shows_why_a_body_was_refused(size: int) -> None:
    """agentgateway/agentgateway#2715: what fits passes; beyond it a person can read why."""
    async with rig(limits__max_body_bytes=70_000) as it, official(it) as client:
        it.spec.script(Send(reply(b'{"choices":[]}')))
        asked = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * size}]
        )
        if size < 70_000:
            await asked
            return
        with pytest.raises(openai.APIStatusError) as raised:
            await asked

        assert raised.value.status_code == 413
        assert "70000 bytes are allowed" in raised.value.message
        assert not it.spec.requests


@pytest.mark.parametrize(
    ("suffix", "tried"),
    [
        ("/v1", None),
        ("/v1/", None),
        ("", "/chat/completions"),
        ("/api/v1", "/api/v1/chat/completions"),
    ],
)
async def test_the_official_client_with_another_base_url(suffix: str, tried: str | None) -> None:
    """open-webui/open-webui#1483: with and without a slash; a forgotten /v1 is told by its path."""
    async with rig() as it, official(it, suffix) as client:
        it.spec.script(Send(reply(b'{"choices":[]}')))
        asked = client.chat.completions.create(model="tiny", messages=[])
        if tried is None:
            await asked
            return
        with pytest.raises(openai.NotFoundError, match=f"{tried} is not served here"):
            await asked
