"""Asks as clients do: a request of so many tokens, and how long its stream was ever silent."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import httpx2

from proxy.sim.traces import Request
from proxy.tools.asking import Question, Sample, ask, chat
from proxy.tools.bench.load import Shot
from proxy.tools.prompts import Prompt, stretched

MODEL: Final = "simulated"

_PROMPT: Final = Prompt(({"role": "user", "content": "Go on."},))
"""Made as long as is asked for, with a mark of its own, so no cache answers for a server."""


def shots(requests: Sequence[Request], scale: float) -> list[Shot]:
    """The same requests, `scale` times as fast."""
    return [Shot(one.at / scale, _PROMPT, one.output_tokens, one.prompt_tokens) for one in requests]


def question(shot: Shot, mark: str) -> Question:
    """What is sent: exactly `shot.output_tokens` are answered."""
    prompt = stretched(shot.prompt, shot.prompt_tokens or 1, (shot.prompt,), mark)
    return chat(prompt.messages, model=MODEL, max_tokens=shot.output_tokens, ignore_eos=True)


@dataclass(slots=True)
class Patience:
    """A clock that remembers the longest time between two looks at it.

    `ask` looks when it sends, at each piece that arrives and at the end. So for one request this is
    the longest time that its client saw nothing happen, the wait for the first token included.
    """

    clock: Callable[[], float]
    longest: float = 0.0
    """Seconds."""
    began: float = 0.0
    """When that silence began."""
    _last: float | None = field(default=None, repr=False)

    def __call__(self) -> float:
        """Return the time; monotonic seconds."""
        now = self.clock()
        if self._last is not None and now - self._last > self.longest:
            self.longest, self.began = now - self._last, self._last
        self._last = now
        return now


def asker(
    client: httpx2.AsyncClient, clock: Callable[[], float], silences: list[Patience]
) -> Callable[[Shot], Awaitable[Sample]]:
    """What `load.fire` calls for each shot; the silence of each request is added to `silences`."""
    number = count()

    async def one(shot: Shot) -> Sample:
        patience = Patience(clock)
        silences.append(patience)
        return await ask(client, question(shot, str(next(number))), clock=patience)

    return one
