"""A little traffic with a view of where it goes: one request at a time, a burst, one at a time.

It talks to a running specswitch over HTTP like any client, and learns where a request went from the
headers of its answer.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from statistics import mean

import httpx2
from rich.console import Console
from rich.live import Live
from rich.table import Table

from proxy.errors import SpecswitchError

_START_SECONDS = 30.0
_CALM_SECONDS = 60.0
_POLL_SECONDS = 0.1
_TOKENS = 48
_BURST = 24
_ALONE = 4


@dataclass
class Phase:
    """A part of the traffic and what came of it."""

    name: str
    asked: int
    went: Counter[str] = field(default_factory=Counter)
    """By `upstream (reason)`."""
    first_token: list[float] = field(default_factory=list)
    """Seconds."""
    rate: list[float] = field(default_factory=list)
    """Tokens/s of one request, as its client sees it."""
    failed: int = 0

    @property
    def ended(self) -> int:
        """Requests that have ended."""
        return len(self.rate) + self.failed

    def row(self) -> tuple[str, str, str, str, str]:
        """As the cells of a table."""
        went = ", ".join(f"{count} x {where}" for where, count in sorted(self.went.items()))
        first = f"{mean(self.first_token) * 1000:.0f} ms" if self.first_token else ""
        rate = f"{mean(self.rate):.0f} tok/s" if self.rate else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return self.name, f"{self.ended}/{self.asked}{failed}", went, first, rate


async def show_traffic(url: str, admin_url: str) -> None:
    """Send the traffic to `url`, and show it; raises SpecswitchError if nothing gets through."""
    console = Console()
    phases = [
        Phase("one at a time", _ALONE),
        Phase(f"a burst of {_BURST}", _BURST),
        Phase("one at a time again", _ALONE),
    ]
    timeout = httpx2.Timeout(60.0)
    async with httpx2.AsyncClient(base_url=url, timeout=timeout, trust_env=False) as client:
        await _until_ready(client)
        if not console.is_terminal:
            async for phase in _play(client, admin_url, phases):
                console.print("  ".join(cell for cell in phase.row() if cell))
            return
        with Live(console=console, auto_refresh=False) as live:
            await _with_view(live, client, admin_url, phases)


async def _with_view(
    live: Live, client: httpx2.AsyncClient, admin_url: str, phases: list[Phase]
) -> None:
    async def watch() -> None:
        while True:
            live.update(_table(phases, await _state(client, admin_url)), refresh=True)
            await asyncio.sleep(_POLL_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        async for _ in _play(client, admin_url, phases):
            continue
        watching.cancel()
    live.update(_table(phases, await _state(client, admin_url)), refresh=True)


async def _play(
    client: httpx2.AsyncClient, admin_url: str, phases: list[Phase]
) -> AsyncIterator[Phase]:
    """Run the phases; each is yielded when it is over."""
    alone, burst, again = phases
    for _ in range(alone.asked):
        await _ask(client, alone)
    yield alone
    async with asyncio.TaskGroup() as tasks:
        for _ in range(burst.asked):
            tasks.create_task(_ask(client, burst))
    yield burst
    await _until_mode(client, admin_url, "spec")
    for _ in range(again.asked):
        await _ask(client, again)
    yield again


async def _ask(client: httpx2.AsyncClient, phase: Phase) -> None:
    """One streamed chat request, noted in `phase`."""
    body = {
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    first, tokens = None, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        where = response.headers.get("x-specswitch-upstream", "none")
        phase.went[f"{where} ({response.headers.get('x-specswitch-reason', '?')})"] += 1
        async for line in response.aiter_lines():
            if first is None and line:
                first = time.monotonic()
            if '"usage":{' in line:
                tokens = json.loads(line.removeprefix("data:"))["usage"]["completion_tokens"]
    if first is None or not tokens:
        phase.failed += 1
        return
    phase.first_token.append(first - started)
    phase.rate.append(tokens / (time.monotonic() - started))


async def _until_ready(client: httpx2.AsyncClient) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while (await client.get("/readyz")).status_code != httpx2.codes.OK:
        if time.monotonic() > deadline:
            raise SpecswitchError(f"no upstream became usable within {_START_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _until_mode(client: httpx2.AsyncClient, admin_url: str, mode: str) -> None:
    deadline = time.monotonic() + _CALM_SECONDS
    while (await _state(client, admin_url))["mode"] != mode:
        if time.monotonic() > deadline:
            raise SpecswitchError(f"the mode did not return to {mode} within {_CALM_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _state(client: httpx2.AsyncClient, admin_url: str) -> dict[str, object]:
    state: dict[str, object] = (await client.get(f"{admin_url}/admin/state")).json()
    return state


def _table(phases: list[Phase], state: dict[str, object]) -> Table:
    flight = state["in_flight"]
    table = Table(
        title=f"mode [bold]{state['mode']}[/] ({state['mode_reason']}), in flight {flight}",
        title_justify="left",
    )
    for name in ("traffic", "done", "went to", "first token", "speed of one"):
        table.add_column(name)
    for phase in phases:
        table.add_row(*phase.row())
    return table
