"""Watches the admin listener of a specswitch while it is measured: mode, switches, both active.

Counters are read at the start and the end of what is measured, and now and then between for a
picture over time. A specswitch that was started anew meanwhile has lost its counts: then they are
unknown, not negative.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

import httpx2

from proxy.errors import SpecswitchError

POLL_SECONDS: Final = 5.0
"""A scrape takes its loop 4 ms (docs/metrics.md): a thousandth of the time."""

_SWITCHES: Final = "specswitch_mode_switches_total"
_BOTH_ACTIVE: Final = "specswitch_both_active_seconds_total"
_IN_FLIGHT: Final = "specswitch_in_flight"
_MODE: Final = "specswitch_mode"
_READ: Final = frozenset({_SWITCHES, _BOTH_ACTIVE, _IN_FLIGHT, _MODE})

_SAMPLE: Final = re.compile(r"^(specswitch_\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
"""Of Prometheus's text format what is needed; no label value of ours holds a brace or a quote."""
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Reading:
    """What specswitch said of itself at one moment."""

    at: float
    """Monotonic seconds."""
    switches: float
    """Since its start."""
    both_active_seconds: float
    """Since its start."""
    mode: str | None
    in_flight: Mapping[str, float]
    """Sequences, by upstream."""


@dataclass(slots=True)
class Watched:
    """The readings of one measured stretch."""

    readings: list[Reading] = field(default_factory=list)
    missed: int = 0
    """Times that it did not answer."""
    whole: bool = False
    """Whether it answered at both ends: the counts between are those of the stretch."""

    @property
    def seconds(self) -> float:
        """From the first reading to the last."""
        return self.readings[-1].at - self.readings[0].at if self.readings else 0.0

    @property
    def switches(self) -> float | None:
        """Changes of mode within; None if it was started anew."""
        return self._grown(lambda reading: reading.switches)

    @property
    def both_active_seconds(self) -> float | None:
        """Seconds within, in which both upstreams had work; None if it was started anew."""
        return self._grown(lambda reading: reading.both_active_seconds)

    def _grown(self, value: Callable[[Reading], float]) -> float | None:
        counts = [value(reading) for reading in self.readings]
        if not self.whole or counts != sorted(counts):
            return None
        return counts[-1] - counts[0]


def per_minute(stretches: list[Watched]) -> float | None:
    """Return the switches per minute of all stretches together; None where one is unknown."""
    rate = _rate(stretches, [one.switches for one in stretches])
    return None if rate is None else rate * 60.0


def both_active_share(stretches: list[Watched]) -> float | None:
    """Return the share of their time in which both upstreams had work; None where unknown."""
    return _rate(stretches, [one.both_active_seconds for one in stretches])


def _rate(stretches: list[Watched], counts: list[float | None]) -> float | None:
    seconds = sum(one.seconds for one in stretches)
    known = [count for count in counts if count is not None]
    return sum(known) / seconds if seconds > 0.0 and len(known) == len(counts) else None


def parse(text: str, at: float) -> Reading:
    """Return what the metrics in `text` say; raises SpecswitchError if they are none of ours."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        if name in _READ:
            found.setdefault(name, []).append((dict(_LABEL.findall(labels)), _number(value)))
    missing = [name for name in (_SWITCHES, _BOTH_ACTIVE, _MODE) if name not in found]
    if missing:
        raise SpecswitchError(f"its metrics have no {missing[0]}")
    return Reading(
        at,
        sum(value for _, value in found[_SWITCHES]),
        sum(value for _, value in found[_BOTH_ACTIVE]),
        next((labels.get("mode") for labels, value in found[_MODE] if value == 1.0), None),
        {labels.get("upstream", ""): value for labels, value in found.get(_IN_FLIGHT, [])},
    )


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise SpecswitchError(f"its metrics hold {text!r} as a number") from error
    if not isfinite(value):
        raise SpecswitchError(f"its metrics hold {text} as a number")
    return value


async def read(client: httpx2.AsyncClient, clock: Callable[[], float]) -> Reading:
    """Read the metrics once; raises SpecswitchError if there is no specswitch that tells them."""
    where = f"{str(client.base_url).rstrip('/')}/metrics"
    try:
        answer = await client.get("/metrics", timeout=POLL_SECONDS)
    except httpx2.HTTPError as error:
        raise SpecswitchError(f"{where} does not answer: {error!r}") from error
    if answer.is_error:
        raise SpecswitchError(f"{where} answers {answer.status_code}")
    try:
        return parse(answer.text, clock())
    except SpecswitchError as error:
        raise SpecswitchError(f"{where} is not a specswitch's: {error}") from error


@asynccontextmanager
async def watching(
    client: httpx2.AsyncClient | None,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Watched]:
    """Watch while the block runs; without a client there is nothing to see.

    The readings are whole once the block has ended. Raises nothing: what does not answer is missed,
    and without the first or the last reading nothing is known.
    """
    watched = Watched()
    if client is None:
        yield watched
        return
    began = await _note(watched, client, clock)
    polling = asyncio.get_running_loop().create_task(_poll(watched, client, clock, sleep))
    try:
        yield watched
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        watched.whole = await _note(watched, client, clock) and began


async def _poll(
    watched: Watched,
    client: httpx2.AsyncClient,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    while True:
        await sleep(POLL_SECONDS)
        await _note(watched, client, clock)


async def _note(watched: Watched, client: httpx2.AsyncClient, clock: Callable[[], float]) -> bool:
    """Whether there was something to note."""
    try:
        watched.readings.append(await read(client, clock))
    except SpecswitchError:
        watched.missed += 1  # shown with the figures: nothing is concluded from a gap
        return False
    return True
