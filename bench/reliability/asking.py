"""The client of the measures, and how its times become numbers."""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from tests.harness.client import RawClient, post
from tests.soak.plans import Plan

PATH: Final = "/v1/chat/completions"
"""The one path that all targets have."""

Numbers = dict[str, float | None]
"""What one run of a measure says, by name with its unit; None is unknown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    status: int | None
    """None where no head came."""
    whole: bool
    """Whether it is 200 and came to its end without an error in it."""
    first_byte: float
    """Seconds from the request to the head, or to the failure."""
    seconds: float
    """Until its end."""


def request(plan: Plan) -> bytes:
    """A chat that asks the engines for `plan`."""
    messages = [{"role": "user", "content": str(plan)}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 64, "stream": plan.stream}
    return post(PATH, json.dumps(body).encode(), headers={"x-request-id": plan.id})


async def ask(port: int, plan: Plan) -> Answer:
    """Ask on a connection of its own, and read the answer to its end."""
    began = time.monotonic()
    status: int | None = None
    first: float | None = None
    good = False
    try:
        async with await _Timed.connect(port) as client:
            client.send(request(plan))
            response = await client.response()
            status, first = response.status, client.head_at - began
            good = response.complete and status == HTTPStatus.OK and _ERROR not in response.body
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
        good = False  # whoever measures counts it as what it is: not answered
    took = time.monotonic() - began
    return Answer(status, good, took if first is None else first, took)


class _Timed(RawClient):
    """A raw client that notes when the head was there."""

    head_at = 0.0

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        """Read it, and look at the clock."""
        read = await super().head()
        self.head_at = time.monotonic()
        return read


_ERROR: Final = b'"error"'


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of `values` do not exceed (nearest rank), None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def milliseconds(seconds: float | None) -> float | None:
    """The same in milliseconds."""
    return None if seconds is None else seconds * 1000
