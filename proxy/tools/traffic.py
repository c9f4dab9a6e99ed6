"""A little traffic with a view of where it goes: one request at a time, a burst, one at a time.

It talks to a running specswitch over HTTP like any client, and learns where a request went from the
headers of its answer, and from the admin listener what specswitch thinks.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from statistics import mean

import httpx2
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proxy.errors import SpecswitchError

_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_TOKENS = 48
BURST = 24
"""Requests of the middle part: far above any N* that a demo has."""
_ALONE = 4

_WHY = {
    "in_flight": "over N*",
    "rate": "too much is offered",
    "engine": "spec says that it has too much",
    "calm": "few are in flight",
    "health": "the other server is not there",
    "control": "the operator says so",
    "uncalibrated": "N* is not known",
    "flap": "it has changed too often",
}
"""The reasons of a mode, in words for somebody who sees it for the first time."""


class View(StrEnum):
    """How the traffic is shown."""

    AUTO = "auto"  # live on a terminal, a line for each part elsewhere
    JSON = "json"  # an object in a line for each part


class _InFlight(msgspec.Struct):
    spec: int
    base: int


class _Crossover(msgspec.Struct):
    in_flight: float | str | None


class State(msgspec.Struct):
    """What is shown of /admin/state."""

    mode: str
    mode_reason: str
    in_flight: _InFlight
    average_in_flight: float
    crossover: _Crossover
    gate: float | str | None


@dataclass
class Phase:
    """A part of the traffic and what came of it."""

    name: str
    asked: int
    went: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By upstream and reason."""
    first_token: list[float] = field(default_factory=list)
    """Seconds."""
    rates: list[float] = field(default_factory=list)
    """Tokens/s of one request, as its client sees it."""
    tokens: int = 0
    failed: int = 0
    began: float | None = None
    ended: float | None = None
    """Of the last request that has; monotonic seconds."""

    @property
    def done(self) -> int:
        """Requests that have ended, well or not."""
        return len(self.rates) + self.failed

    @property
    def rate(self) -> float | None:
        """Tokens/s of all requests together."""
        if self.began is None or self.ended is None or not self.tokens:
            return None
        return self.tokens / (self.ended - self.began)

    def to(self, upstream: str) -> int:
        """How many went to `upstream`."""
        return sum(count for (name, _), count in self.went.items() if name == upstream)


async def show_traffic(
    url: str, admin_url: str, console: Console, *, view: View = View.AUTO, dwell: float = 0.0
) -> int:
    """Send the traffic to `url` and show it on `console`; the number of requests that failed.

    `dwell` is its `policy.return_dwell`, in seconds. Raises SpecswitchError where specswitch does
    not answer or does not become ready.
    """
    phases = [
        Phase(f"{_ALONE}, one at a time", _ALONE),
        Phase(f"{BURST} at once", BURST),
        Phase(f"{_ALONE}, one at a time", _ALONE),
    ]
    timeout = httpx2.Timeout(_PATIENCE_SECONDS)
    async with httpx2.AsyncClient(
        base_url=url, timeout=timeout, trust_env=False, verify=False
    ) as client:
        asking = _Asking(client, admin_url)
        if view is View.JSON:
            await _with_lines(console, asking, phases, _object)
        elif console.is_terminal and not console.is_dumb_terminal:
            await _with_view(console, asking, phases, _Dwell(dwell))
        else:
            await _with_lines(console, asking, phases, _sentence)
    return sum(phase.failed for phase in phases)


class _Asking:
    """The requests themselves."""

    def __init__(self, client: httpx2.AsyncClient, admin_url: str) -> None:
        self._client = client
        self._admin_url = admin_url

    async def play(self, phases: list[Phase]) -> AsyncIterator[Phase]:
        """Run the phases; each is yielded when it is over."""
        alone, burst, again = phases
        await self._until_mode("spec")
        await self._one_at_a_time(alone)
        yield alone
        async with asyncio.TaskGroup() as tasks:
            for _ in range(burst.asked):
                tasks.create_task(self._ask(burst))
        yield burst
        await self._until_mode("spec")
        await self._one_at_a_time(again)
        yield again

    async def state(self) -> State:
        """What specswitch thinks; raises SpecswitchError where it does not say."""
        with _translated():
            answer = await self._client.get(f"{self._admin_url}/admin/state")
            answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=State)

    async def _one_at_a_time(self, phase: Phase) -> None:
        for _ in range(phase.asked):
            await self._ask(phase)

    async def _ask(self, phase: Phase) -> None:
        """One streamed chat request, noted in `phase`."""
        body = {
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "max_tokens": _TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        started = time.monotonic()
        phase.began = phase.began or started
        first, tokens = None, 0
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                headers = response.headers
                where = headers.get("x-specswitch-upstream", "none")
                phase.went[where, headers.get("x-specswitch-reason", "none")] += 1
                async for line in response.aiter_lines():
                    if first is None and line:
                        first = time.monotonic()
                    if '"usage":{' in line:
                        tokens = json.loads(line.removeprefix("data:"))["usage"][
                            "completion_tokens"
                        ]
        except httpx2.HTTPError:
            tokens = 0  # an answer that broke off is none
        phase.ended = time.monotonic()
        if first is None or not tokens:
            phase.failed += 1
            return
        phase.tokens += tokens
        phase.first_token.append(first - started)
        phase.rates.append(tokens / (phase.ended - started))

    async def _until_mode(self, mode: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (state := await self.state()).mode != mode:
            if time.monotonic() > deadline:
                raise SpecswitchError(
                    f"the mode is still {state.mode} ({state.mode_reason}) after "
                    f"{_PATIENCE_SECONDS:g} s, not {mode}"
                )
            await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx2.HTTPError as error:
        raise SpecswitchError(f"specswitch does not answer: {error!r}") from error


async def _with_lines(
    console: Console, asking: _Asking, phases: list[Phase], line: Callable[[Phase], str]
) -> None:
    async for phase in asking.play(phases):
        console.out(line(phase), highlight=False)


class _Dwell:
    """How long the dwell still keeps it from speculation, as somebody who looks on can tell."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over_at = 0.0
        self._mode = ""

    def left(self, state: State, now: float) -> float:
        """Seconds that are left of it; 0 for none."""
        if self._mode == "spec" != state.mode:
            self._over_at = now + self._seconds
        self._mode = state.mode
        return max(0.0, self._over_at - now)


async def _with_view(console: Console, asking: _Asking, phases: list[Phase], dwell: _Dwell) -> None:
    async def play() -> None:
        async for _ in asking.play(phases):
            continue

    playing = asyncio.get_running_loop().create_task(play())
    try:
        with Live(console=console, auto_refresh=False) as live:
            seen: _Picture | None = None
            while True:
                over = playing.done()
                state = await asking.state()
                picture = _picture(phases, state, dwell.left(state, time.monotonic()))
                # Drawn when something has changed only: a view that is still does not flicker.
                if picture != seen and not _is_starting(phases, state):
                    seen = picture
                    live.update(_drawn(picture), refresh=True)
                if over:
                    break
                await asyncio.wait({playing}, timeout=_POLL_SECONDS)
        await playing
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def _is_starting(phases: list[Phase], state: State) -> bool:
    """Whether its first probes are still out, by which it will know both servers."""
    return state.mode_reason == "health" and phases[0].began is None


def _object(phase: Phase) -> str:
    return json.dumps(
        {
            "traffic": phase.name,
            "asked": phase.asked,
            "failed": phase.failed,
            "went": [
                {"upstream": upstream, "reason": reason, "requests": count}
                for (upstream, reason), count in sorted(phase.went.items())
            ],
            "first_token_seconds": _mean(phase.first_token),
            "tokens_per_second_each": _mean(phase.rates),
            "tokens_per_second": phase.rate,
        }
    )


def _sentence(phase: Phase) -> str:
    went = sorted(phase.went.items())
    parts = [f"{count} to {upstream} ({reason})" for (upstream, reason), count in went]
    parts += [f"{phase.failed} failed"] if phase.failed else []
    if phase.rates:
        parts.append(f"first token {_milliseconds(phase)}")
        parts.append(f"{mean(phase.rates):.0f} tokens/s each")
        parts.append(f"{phase.rate:.0f} in all")
    return f"{phase.name}: {', '.join(parts)}"


def _mean(values: list[float]) -> float | None:
    return mean(values) if values else None


def _milliseconds(phase: Phase) -> str:
    return f"{mean(phase.first_token) * 1000:.0f} ms" if phase.first_token else ""


_Picture = tuple[Text, Text, list[tuple[str, ...]]]
"""The mode, what is in flight, and a row for each phase."""


def _picture(phases: list[Phase], state: State, dwell: float) -> _Picture:
    return _mode_line(state, dwell), _flight_line(state), [_row(phase) for phase in phases]


def _drawn(picture: _Picture) -> Group:
    """What specswitch thinks above, what came of the traffic below; 80 columns do."""
    mode, flight, rows = picture
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    # Cut, never wrapped: the view would jump.
    table.add_column("requests", min_width=16, no_wrap=True)
    table.add_column("done", justify="right", min_width=5, no_wrap=True)
    for name in ("to spec", "to base", "first token", "tokens/s each", "in all"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Group(mode, flight, "", table)


def _mode_line(state: State, dwell: float) -> Text:
    why = _WHY.get(state.mode_reason, state.mode_reason)
    mode = (state.mode, f"bold {_COLOURS[state.mode]}")
    line = Text.assemble("New requests go to ", mode, no_wrap=True, overflow="ellipsis")
    line.append(f": {why}")
    if state.mode_reason == "in_flight":
        line.append(f"; spec again {_return(state, dwell)}", style="dim")
    return line


def _return(state: State, dwell: float) -> str:
    """What a return waits for: the dwell, and an average at the gate."""
    in_time = f"in {ceil(dwell)} s and " if dwell else ""
    return f"{in_time}at average {_number(state.gate)}, now {state.average_in_flight:.1f}"


def _number(value: float | str | None) -> str:
    """As /admin/state gives it: infinity is a word, null is unknown."""
    return f"{value:.1f}" if isinstance(value, float) else str(value or "unknown")


_COLOURS = {"spec": "cyan", "base": "yellow"}


def _flight_line(state: State) -> Text:
    line = Text("In flight", no_wrap=True, overflow="ellipsis")
    for name, count in (("spec", state.in_flight.spec), ("base", state.in_flight.base)):
        # A fixed place for each, so that nothing jumps: spec has N* at most, base the burst.
        width = 8 if name == "spec" else BURST
        line.append(f"   {name} {count:>2} ")
        line.append(("|" * min(count, width)).ljust(width), style=_COLOURS[name])
    line.append(f"   N* {_number(state.crossover.in_flight)}", style="dim")
    return line


def _row(phase: Phase) -> tuple[str, ...]:
    failed = f" ({phase.failed} failed)" if phase.failed else ""
    return (
        phase.name,
        f"{phase.done}/{phase.asked}{failed}",
        *(str(phase.to(name) or "") for name in ("spec", "base")),
        _milliseconds(phase),
        f"{mean(phase.rates):.0f}" if phase.rates else "",
        f"{phase.rate:.0f}" if phase.rate is not None else "",
    )
