"""The simulated GPU in real time: one timer moves it and tells each exchange what happened.

The loop is passed in and only two of its methods are used, so a test can bring a clock of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

from proxy.core.words import UpstreamName
from proxy.sim.engine import Emitted, Happening, Load, Refused, Sequence
from proxy.sim.generation import Generation
from proxy.sim.gpu import Gpu
from proxy.sim.pages import Tally


class Timer(Protocol):
    """What a loop gives for a call that it will make."""

    def cancel(self) -> None:
        """Do not make it."""


class Loop(Protocol):
    """As much of an event loop as is needed here."""

    def time(self) -> float:
        """Seconds, monotonic."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Call back at that time."""
        ...


@dataclass(slots=True, eq=False)
class Exchange:
    """A generation under way."""

    engine: UpstreamName
    generation: Generation
    tally: Tally
    changed: Callable[[], None]
    """Called after something happened to the generation."""
    keys: dict[int, int] = field(default_factory=dict)
    """Sequences on the GPU that have not ended, with the reply that each one is."""


class Clockwork:
    """Moves the GPU with the time of the loop, times `scale`."""

    def __init__(self, gpu: Gpu, loop: Loop, *, scale: float, wall: float) -> None:
        """`wall` is the time of day now, in seconds since the epoch."""
        self._gpu = gpu
        self._loop = loop
        self._scale = scale
        self._origin = loop.time()
        self._origin_wall = wall
        self._latest = 0.0
        self._timer: Timer | None = None
        self._exchanges: dict[int, Exchange] = {}
        self._keys = count()

    @property
    def wall(self) -> float:
        """The time of day now, in seconds since the epoch."""
        return self._origin_wall + self._loop.time() - self._origin

    def submit(self, exchange: Exchange) -> None:
        """Start what is asked for; nothing is told before the loop's next turn."""
        now = self._now()
        for index, wanted in enumerate(exchange.generation.ask.wanted):
            key = next(self._keys)
            exchange.keys[key] = index
            self._exchanges[key] = exchange
            sequence = Sequence(key, wanted.prompt_tokens, wanted.output_tokens)
            self._gpu.submit(exchange.engine, sequence, now)
        self._set_timer()

    def abort(self, exchange: Exchange) -> None:
        """The client is gone, or will not get this: free what is left of it."""
        now = self._now()
        stream = exchange.generation.ask.stream
        for key, index in exchange.keys.items():
            del self._exchanges[key]
            self._gpu.cancel(exchange.engine, key, now)
            exchange.tally.left(exchange.generation.replies[index], stream=stream)
        exchange.keys.clear()
        self._set_timer()

    def end(self, engine: UpstreamName, rid: str | None) -> None:
        """End what has an id before its time, and tell its client so; None: all there is.

        As SGLang does it: the id must be one that it knows, and ends all whose ids begin so.
        """
        found = [
            (key, exchange, exchange.generation.replies[exchange.keys[key]])
            for key, exchange in self._exchanges.items()
            if exchange.engine is engine
        ]
        if rid is not None:
            known = any(reply.rid == rid for _, _, reply in found)
            found = [each for each in found if known and each[2].rid.startswith(rid)]
        now = self._now()
        for key, exchange, reply in found:
            del exchange.keys[key], self._exchanges[key]
            self._gpu.cancel(engine, key, now)
            reply.aborted, reply.ended_at = True, self._origin_wall + now / self._scale
            exchange.tally.left(reply, stream=exchange.generation.ask.stream)
        self._set_timer()
        for exchange in dict.fromkeys(exchange for _, exchange, _ in found):
            exchange.changed()

    def reset(self, engine: UpstreamName) -> None:
        """The engine dies and is back; its exchanges must have been aborted."""
        self._gpu.reset(engine, self._now())
        self._set_timer()

    def load(self, engine: UpstreamName) -> Load:
        """The engine as it was when something last happened."""
        return self._gpu.load(engine)

    def stop(self) -> None:
        """Let no more time pass."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> float:
        """Virtual seconds; never earlier than what was told before."""
        self._latest = max(self._latest, (self._loop.time() - self._origin) * self._scale)
        return self._latest

    def _set_timer(self) -> None:
        self.stop()
        due = self._gpu.next_event()
        if due is not None:
            when = self._origin + due / self._scale
            self._timer = self._loop.call_at(when, partial(self._tick, due))

    def _tick(self, due: float) -> None:
        # A loop may call early: uvloop by up to half a millisecond, and any by a rounding error.
        self._latest = max(self._latest, due)
        for happening in self._gpu.advance(self._now()):
            exchange = self._exchanges.get(happening.key)
            if exchange is not None:  # else its client has left since
                self._note(exchange, happening)
                # One by one, so that a late timer does not merge the events of several steps.
                exchange.changed()
        self._set_timer()

    def _note(self, exchange: Exchange, happening: Happening) -> None:
        key, generation = happening.key, exchange.generation
        index = exchange.keys[key]
        generation.note(index, happening, self._origin_wall + happening.at / self._scale)
        ended = isinstance(happening, Emitted) and happening.last
        if ended:
            exchange.tally.ended(generation.replies[index], stream=generation.ask.stream)
        if ended or isinstance(happening, Refused):
            del exchange.keys[key], self._exchanges[key]
