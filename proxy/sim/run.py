"""One run in virtual time: requests, a router that places them, and engines that serve them.

The loop knows neither policy nor physics. What came of a run is kept request by request (`Served`);
`results.py` makes figures of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from proxy.core.words import UpstreamName
from proxy.sim import engine
from proxy.sim.engine import Emitted, Happening, Refused
from proxy.sim.traces import Request

TICK_SECONDS = 1.0
"""How often a router is told of time passing: as often as the proxy evaluates its controller."""

Submit = Callable[[int, UpstreamName], None]
"""Hands request number so-and-so to an engine, now."""


class Engines(Protocol):
    """One engine or two, in virtual time: `gpu.Gpu` and what stands in for it."""

    def submit(self, engine: UpstreamName, sequence: engine.Sequence, now: float) -> None:
        """Queue a sequence."""

    def advance(self, now: float) -> Sequence[Happening]:
        """What has happened up to and including `now` and was not told yet, in order."""
        ...

    def next_event(self) -> float | None:
        """When `advance` will next have something to do; None while all are idle."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """New requests go to another engine from `at` on."""

    at: float
    to: UpstreamName


class Router(Protocol):
    """A policy at work: it is told of each request and submits it, at once or later."""

    @property
    def ticks(self) -> bool:
        """Whether it wants to be told of time passing."""
        ...

    @property
    def changes(self) -> Sequence[Change]:
        """Every change of where new requests go, in order."""
        ...

    def arrive(self, key: int, now: float) -> None:
        """Request `key` is here."""

    def end(self, key: int, output_tokens: int, now: float) -> None:
        """Request `key` has ended, with so many tokens."""

    def tick(self, now: float) -> None:
        """A second has passed."""


@dataclass(slots=True)
class Served:
    """One request and what came of it; virtual seconds."""

    request: Request
    upstream: UpstreamName | None = None
    """None while no engine has it."""
    first_at: float = inf
    """When its first token came."""
    end_at: float = inf
    refused: bool = False
    """By an engine whose queue was full, or by the router."""


@dataclass(frozen=True, slots=True)
class Moment:
    """How much was in flight from `at` on, in sequences."""

    at: float
    spec: int
    base: int


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it all."""

    served: Sequence[Served]
    """In order of arrival."""
    changes: Sequence[Change]
    moments: Sequence[Moment]
    """One for each arrival at an engine and each end."""


def run(requests: Sequence[Request], engines: Engines, router: Callable[[Submit], Router]) -> Run:
    """Send `requests`, in order of time, through a router to the engines, until all have ended.

    Raises:
        ValueError: the requests are not in order, or one does not fit an engine.
        RuntimeError: nothing can happen any more and some have not ended: the router holds on to
            them.
    """
    station = Station(engines, router, now=requests[0].at if requests else 0.0)
    for request in requests:
        station.arrive(request)
    return station.end()


class Station:
    """A router and its engines, moved on by whoever has the requests.

    Requests are its own by number, from 0 in order of arrival.
    """

    def __init__(self, engines: Engines, router: Callable[[Submit], Router], *, now: float) -> None:
        self._now = now
        self._engines = engines
        self._served: list[Served] = []
        self._router = router(self._submit)
        self._moments: list[Moment] = []
        self._in_flight = dict.fromkeys(UpstreamName, 0)
        self._open = 0
        self._next_tick = now + TICK_SECONDS if self._router.ticks else inf

    @property
    def open(self) -> int:
        """Requests that have arrived and not ended: at an engine, or held by the router."""
        return self._open

    def next_event(self) -> float:
        """When something happens here by itself; infinity if nothing ever does."""
        event = self._engines.next_event()
        return min(self._next_tick, inf if event is None else event)

    def arrive(self, request: Request) -> None:
        """Let everything happen up to `request.at`, and then `request` come.

        At one instant ends come before arrivals.

        Raises:
            ValueError: time goes back, or the request does not fit an engine.
        """
        self.run_until(request.at)
        self._served.append(Served(request))
        self._open += 1
        self._router.arrive(len(self._served) - 1, self._now)

    def run_until(self, now: float) -> None:
        """Let everything happen up to and including `now`."""
        while (due := self.next_event()) < now:
            self._turn(due)
        self._turn(now)

    def end(self) -> Run:
        """Let everything end that is open, and say what came of it all.

        Raises:
            RuntimeError: nothing can happen any more and some have not ended.
        """
        while self._open:
            due = self.next_event()
            if due == inf:
                raise RuntimeError(
                    f"{self._open} requests have not ended and nothing happens any more"
                )
            self._turn(due)
        return Run(self._served, self._router.changes, self._moments)

    def _turn(self, now: float) -> None:
        """What is due at `now`; nothing is due before it."""
        self._now = now
        event = self._engines.next_event()
        if event is not None and event <= now:
            for happening in self._engines.advance(now):
                self._note(happening)
        if self._next_tick <= now:
            self._next_tick = now + TICK_SECONDS
            self._router.tick(now)

    def _submit(self, key: int, upstream: UpstreamName) -> None:
        one = self._served[key]
        one.upstream = upstream
        asked = one.request
        sequence = engine.Sequence(key, asked.prompt_tokens, asked.output_tokens)
        self._engines.submit(upstream, sequence, self._now)
        self._count(upstream, 1)

    def _count(self, upstream: UpstreamName, change: int) -> None:
        counts = self._in_flight
        counts[upstream] += change
        self._moments.append(
            Moment(self._now, counts[UpstreamName.SPEC], counts[UpstreamName.BASE])
        )

    def _note(self, happening: Happening) -> None:
        one = self._served[happening.key]
        if isinstance(happening, Emitted):
            one.first_at = min(one.first_at, happening.at)
            if happening.last:
                self._end(happening.key, happening.engine, one.request.output_tokens)
                one.end_at = happening.at
        elif isinstance(happening, Refused):
            one.refused = True
            self._end(happening.key, happening.engine, 0)

    def _end(self, key: int, upstream: UpstreamName, output_tokens: int) -> None:
        self._open -= 1
        self._count(upstream, -1)
        self._router.end(key, output_tokens, self._now)
