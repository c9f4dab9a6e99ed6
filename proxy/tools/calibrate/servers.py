"""The two servers while they are measured: idle before a cell, caches empty, nobody else's work.

Work of others is seen in /v1/loads, which SGLang writes every 15 decode steps; a server without
that path is measured all the same, and the result says that nobody looked.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx2
import msgspec

from proxy.core.fields import Fields
from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.doctor.server_info import ServerInfo

_READ_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
"""Between two looks at a server that is to become idle: short beside the shortest cell."""
_WATCH_SECONDS: Final = 0.25
_OK: Final = 200
_BUSY: Final = 400
"""What SGLang answers to a flush while it has work; given-up requests take it a moment to drop."""
_FLUSHES: Final = 40
"""Tries, two seconds in all."""


@dataclass(frozen=True, slots=True)
class Side:
    """One server of the pair, and how it is reached."""

    info: ServerInfo
    client: httpx2.AsyncClient
    model: str
    """The name that requests give."""

    @property
    def name(self) -> UpstreamName:
        """Which of the two."""
        return self.info.name

    @property
    def cap(self) -> int | None:
        """Sequences that it runs at once; None where it does not say."""
        return self.info.identity.cap

    async def busy(self) -> int | None:
        """Requests that it runs or has waiting; None where it does not say.

        Raises:
            SpecswitchError: it does not answer.
        """
        answer = await self._asked("GET", "/v1/loads")
        if answer.status_code != _OK:
            return None
        try:
            ranks = Fields(msgspec.json.decode(answer.content)).many("loads")
        except msgspec.MsgspecError:
            return None
        counts = [rank.count(name) for rank in ranks for name in _IN_HAND]
        known = [count for count in counts if count is not None]
        return sum(known) if ranks and len(known) == len(counts) else None

    async def flush(self) -> bool:
        """Empty its prefix cache; False where it does not let us.

        Raises:
            SpecswitchError: it does not answer.
        """
        for _ in range(_FLUSHES):
            answer = await self._asked("POST", "/flush_cache")
            if answer.status_code != _BUSY:
                return answer.status_code == _OK
            await asyncio.sleep(_POLL_SECONDS)
        return False

    async def _asked(self, method: str, path: str) -> httpx2.Response:
        try:
            return await self.client.request(method, path, timeout=_READ_SECONDS)
        except httpx2.HTTPError as error:
            words = str(error) or type(error).__name__
            raise SpecswitchError(
                f"{self.name} ({self.info.url}) does not answer: {words}"
            ) from error


_IN_HAND: Final = ("num_running_reqs", "num_waiting_reqs")

Sides = Mapping[UpstreamName, Side]


async def until_idle(
    sides: Sides, *, patience: float, clock: Callable[[], float]
) -> tuple[UpstreamName, ...]:
    """Wait until neither server has work, at most `patience` seconds; those that do not say.

    Raises:
        SpecswitchError: one still has work then, which is not ours.
    """
    silent = []
    deadline = clock() + patience
    for side in sides.values():
        while count := await side.busy():
            if clock() > deadline:
                raise SpecswitchError(
                    f"{side.name} has {count} requests in hand that are not ours. Measured beside "
                    f"other work, neither curve would be right: keep all traffic away from both"
                )
            await asyncio.sleep(_POLL_SECONDS)
        if count is None:
            silent.append(side.name)
    return tuple(silent)


async def intruder(sides: Sides, ours: Mapping[UpstreamName, int]) -> str:
    """Come back once a server has more work than `ours`, with a sentence that says so.

    Twice in a row: one look may catch a request that has just been given up.
    """
    seen = dict.fromkeys(sides, 0)
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        for name, side in sides.items():
            try:
                count = await side.busy()
            except SpecswitchError:
                continue  # our own requests will tell, and better
            more = count is not None and count > ours.get(name, 0)
            seen[name] = seen[name] + 1 if more else 0
            if seen[name] > 1:
                return (
                    f"{name} has {count} requests in hand, of which {ours.get(name, 0)} are ours: "
                    f"keep all other traffic away from both servers"
                )
