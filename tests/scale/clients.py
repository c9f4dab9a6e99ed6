"""The client of the stories: one request, and all that came back."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from tests.harness.client import RawClient, post
from tests.soak.plans import Plan

NONE: Final[Mapping[str, str]] = MappingProxyType({})
PATH: Final = "/v1/chat/completions"
DONE: Final = b"data: [DONE]"
ERROR: Final = b'"error"'


@dataclass
class Got:
    """What a client got."""

    id: str
    stream: bool
    asked_at: float
    """Loop time."""
    status: int | None = None
    """None where no head came."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    """Whether the answer came to the end that HTTP has for it."""

    @property
    def whole(self) -> bool:
        """Whether it is 200, and came to its end without an error in it."""
        if not self.complete or self.status != HTTPStatus.OK or ERROR in self.body:
            return False
        return self.body.rstrip().endswith(DONE if self.stream else b"}")

    @property
    def pretends(self) -> bool:
        """Whether it ends as HTTP has it, with 200 and no error, and is not whole."""
        ended = self.complete and self.status == HTTPStatus.OK
        return ended and ERROR not in self.body and not self.whole


def request(plan: Plan, headers: Mapping[str, str] = NONE) -> bytes:
    """A chat that asks the engines for `plan`, with a beginning that no other prompt has."""
    start = sha256(plan.id.encode()).hexdigest()
    messages = [{"role": "user", "content": f"{start} {plan}"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 64, "stream": plan.stream}
    return post(PATH, body, headers={"x-request-id": plan.id, **headers})


async def ask(port: int, plan: Plan, headers: Mapping[str, str] = NONE) -> Got:
    """Ask on a connection of its own, and read the answer as far as it comes.

    Head and body come one after the other, as from httpx and so from most clients: a router that
    sends the head on at once has nothing left that it could ask another pair with.
    """
    got = Got(plan.id, plan.stream, asyncio.get_running_loop().time())
    try:
        async with await RawClient.connect(port) as client:
            head, end, body = request(plan, headers).partition(b"\r\n\r\n")
            client.send(head + end)
            await asyncio.sleep(0.002)  # so long the head is alone, as from httpx
            client.send(body)
            answer = await client.response()
    except (OSError, asyncio.IncompleteReadError):
        return got  # no answer at all, which `status` says
    got.status, got.body, got.complete = answer.status, answer.body, answer.complete
    got.headers = {name.lower(): value for name, value in answer.headers}
    return got
