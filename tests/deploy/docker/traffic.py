"""Clients of the stack: streams that say how they ended, and single questions."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import httpx2

from tests.deploy.docker.stack import Stack

SECONDS = 60.0
CHAT = "/v1/chat/completions"


def chat(tokens: int, *, stream: bool) -> dict[str, object]:
    """A request for an answer of this length."""
    messages = [{"role": "user", "content": "Tell me of a lighthouse."}]
    fields: dict[str, object] = {"messages": messages, "max_tokens": tokens, "ignore_eos": True}
    return {**fields, "stream": stream}


@dataclass
class Stream:
    """What a client saw of a streamed answer."""

    status: int | None = None
    upstream: str | None = None
    reason: str | None = None
    lines: list[str] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by its first event."""
    broken: bool = False
    """Whether the connection was cut."""

    @property
    def whole(self) -> bool:
        """Whether it is a good answer with its end."""
        ended = bool(self.lines) and self.lines[-1] == "data: [DONE]"
        return self.status == httpx2.codes.OK and ended and not self.broken and not self.errors

    @property
    def errors(self) -> list[str]:
        """The codes of the error events in it."""
        events = [line.removeprefix("data: ") for line in self.lines if line.startswith("data: {")]
        found = [json.loads(event).get("error") for event in events]
        return [str(error["code"]) for error in found if error]


class Clients:
    """Streams under way, in the test's own loop."""

    def __init__(self, stack: Stack, *, tokens: int, count: int) -> None:
        self._url = stack.url + CHAT
        self._body = chat(tokens, stream=True)
        self.streams = [Stream() for _ in range(count)]
        self._tasks: Sequence[asyncio.Task[None]] = ()

    async def __aenter__(self) -> Self:
        self._client = httpx2.AsyncClient(
            timeout=SECONDS, trust_env=False, limits=httpx2.Limits(max_connections=None)
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(stream)) for stream in self.streams]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def begun(self) -> None:
        """Wait until each has its first event."""
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(stream.begun.wait() for stream in self.streams))

    async def ended(self) -> None:
        """Wait until each has ended, well or not."""
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self._tasks)

    async def _run(self, stream: Stream) -> None:
        try:
            async with self._client.stream("POST", self._url, json=self._body) as answer:
                stream.status = answer.status_code
                stream.upstream = answer.headers.get("x-specswitch-upstream")
                stream.reason = answer.headers.get("x-specswitch-reason")
                async for line in answer.aiter_lines():
                    if line:
                        stream.lines.append(line)
                        stream.begun.set()
        except httpx2.HTTPError:
            stream.broken = True


def ask(stack: Stack, *, tokens: int = 4, seconds: float = SECONDS) -> httpx2.Response:
    """One short answer, not streamed."""
    body = chat(tokens, stream=False)
    return httpx2.post(stack.url + CHAT, json=body, timeout=seconds, trust_env=False)


def served_by(answer: httpx2.Response) -> tuple[int, str, str]:
    """Status, upstream and reason."""
    headers = answer.headers
    return (
        answer.status_code,
        headers.get("x-specswitch-upstream", ""),
        headers.get("x-specswitch-reason", ""),
    )
