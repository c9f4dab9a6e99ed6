"""One engine whose tokens flow: the batch at a steady rate from one event to the next.

Events are an arrival, the end of a prefill and the end of a sequence, so a request costs a few of
them whatever its length. Who begins when is decided as in `engine.py`: a prefill goes before
decoding and stalls it, places and the KV cache bound what runs. `fluid.py` moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from proxy.core.words import UpstreamName
from proxy.sim.engine import (
    MAX_PREFILL_TOKENS,
    Counters,
    Emitted,
    Happening,
    Limits,
    Load,
    Sequence,
)
from proxy.sim.physics import Work


class Pace(NamedTuple):
    """How an engine decodes: one step after the other."""

    work: Work
    """Of one step."""
    tokens: float
    """That it yields to each sequence."""


@dataclass(slots=True, eq=False)
class _Running:
    """A sequence in the batch; `flow` is the tokens that had flowed when its prefill ended."""

    sequence: Sequence
    flow: float | None = None


@dataclass(slots=True, eq=False)
class Flow:
    """One engine and what it is at; `flow` counts the tokens that each sequence got or could have.

    All running sequences decode alike, so one that is filled when the flow is f ends when the flow
    is f + the tokens that it still wants.
    """

    name: UpstreamName
    pace: Callable[[int, float], Pace]
    """With so many sequences, of so many tokens of context in all."""
    prefill: Callable[[int], Work]
    """Of so many prompt tokens in one pass."""
    limits: Limits
    overshoot: float
    """Tokens that the last round yields past the end of a sequence, on average."""
    waiting: dict[int, Sequence] = field(default_factory=dict)
    running: dict[int, _Running] = field(default_factory=dict)
    reserved: int = 0
    flow: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)
    """(flow, key) of those that decode; a heap."""
    decoding: int = 0
    filled_tokens: float = 0.0
    """Prompts of those that decode, and a token for each, less the flow when they began."""
    filling: list[int] | None = None
    """Whose prefill is under way; None while it decodes or idles."""
    work: Work | None = None
    """Of the step or prefill under way; None while it idles."""
    boundary: float | None = None
    """Flow at which the step under way ends, where one waits for that."""
    goal: float = 0.0
    """Where the prefill or the flow will be at the next event."""
    reached: float = 0.0
    """Where it is."""
    rate: float = 0.0
    """Of that, a second; while alone on the GPU."""
    speed: float = 1.0
    changed: bool = False
    """Whether something came or went, so that it is to be looked at anew."""
    counters: Counters = field(default_factory=Counters)
    decoded: float = 0.0
    """Tokens, over all sequences, and of those the ones that `rounds` of speculation yielded."""
    verified: float = 0.0
    rounds: float = 0.0
    round_tokens: float = 1.0
    """What a step yields to a sequence at present."""

    @property
    def context(self) -> float:
        """Tokens of context of those that decode."""
        return self.filled_tokens + self.decoding * self.flow

    @property
    def full(self) -> bool:
        """Whether one more sequence is too many."""
        limits = self.limits
        if limits.max_queued is None:
            return False
        return len(self.running) + len(self.waiting) >= limits.max_running + limits.max_queued

    def queue(self, sequence: Sequence) -> None:
        """It comes in the middle of a step, on average: its prefill waits for half of one."""
        self.waiting[sequence.key] = sequence
        self.changed = True
        if self.filling is None and self.decoding and self.boundary is None:
            self.boundary = self.flow + self.round_tokens / 2.0

    def look(self) -> None:
        """See what to do next, now that something came, went or ended."""
        self.changed = False
        if self.filling is not None:
            return
        between = self.boundary is None or not self.decoding
        if self.waiting and between and (admitted := self._admit()):
            self._fill(admitted)
        elif self.decoding:
            self._decode()
        else:
            self.work = None

    def _admit(self) -> list[Sequence]:
        """As `engine.Engine` does: in order, within places, cache and one prefill pass."""
        limits = self.limits
        room = limits.max_running - len(self.running)
        admitted: list[Sequence] = []
        prompt_tokens = 0
        for sequence in islice(self.waiting.values(), room):
            prompt_tokens += sequence.prompt_tokens
            if admitted and prompt_tokens > MAX_PREFILL_TOKENS:
                break
            if self.reserved + sequence.reserved_tokens > limits.max_total_tokens:
                break
            admitted.append(sequence)
            self.reserved += sequence.reserved_tokens
        return admitted

    def _fill(self, admitted: list[Sequence]) -> None:
        for sequence in admitted:
            del self.waiting[sequence.key]
            self.running[sequence.key] = _Running(sequence)
        self.boundary = None
        self.filling = [sequence.key for sequence in admitted]
        self.work = self.prefill(sum(sequence.prompt_tokens for sequence in admitted))
        self.reached, self.goal, self.rate = 0.0, self.work.seconds, 1.0

    def _decode(self) -> None:
        end = self.ends[0][0]
        self.reached = self.flow
        self.goal = end if self.boundary is None else min(end, self.boundary)
        # The context grows on the way; its mean is what reading costs on average.
        context = self.context + self.decoding * (end - self.flow) / 2.0
        self.work, self.round_tokens = self.pace(self.decoding, context)
        self.rate = self.round_tokens / self.work.seconds

    def move(self, seconds: float) -> None:
        """Let time pass, up to the next end at most."""
        if self.work is None:
            return
        before = self.reached
        self.reached = min(self.goal, before + seconds * self.rate * self.speed)
        if self.filling is None:
            self.flow = self.reached
            self._count(self.reached - before)

    def _count(self, tokens: float) -> None:
        whole = tokens * self.decoding
        self.decoded += whole
        if self.round_tokens > 1.0:
            self.rounds += whole / self.round_tokens
            self.verified += whole

    def finish(self, at: float) -> list[Happening]:
        """What `goal` stands for has been reached."""
        self.changed = True
        if self.filling is None:
            self.flow = self.reached = self.goal
            self.boundary = None
            return self._end(at)
        batch, self.filling = self.filling, None
        if self.work is not None:
            self.counters.prefill_seconds += self.work.seconds
        return [self._first(self.running[key], at) for key in batch if key in self.running]

    def _first(self, one: _Running, at: float) -> Emitted:
        sequence = one.sequence
        self.counters.prefilled_tokens += sequence.prompt_tokens
        one.flow = self.flow
        self.decoding += 1
        self.decoded += 1.0
        self.filled_tokens += sequence.prompt_tokens + 1 - self.flow
        last = sequence.output_tokens == 1
        if last:
            self._leave(one)
            self.counters.finished += 1
        else:
            end = self.flow + sequence.output_tokens - 1 + self.overshoot
            heappush(self.ends, (end, sequence.key))
        return Emitted(at, self.name, sequence.key, 1, None, last)

    def _end(self, at: float) -> list[Happening]:
        happened: list[Happening] = []
        while self.ends and self.ends[0][0] <= self.goal:
            _, key = heappop(self.ends)
            one = self.running[key]
            self._leave(one)
            self.counters.finished += 1
            self.decoded -= self.overshoot
            rest = one.sequence.output_tokens - 1
            happened.append(Emitted(at, self.name, key, rest, None, last=True))
        return happened

    def _leave(self, one: _Running) -> None:
        del self.running[one.sequence.key]
        self.reserved -= one.sequence.reserved_tokens
        if one.flow is not None:
            self.decoding -= 1
            self.filled_tokens -= one.sequence.prompt_tokens + 1 - one.flow

    def cancel(self, key: int) -> bool:
        """Forget a sequence; False if it is not here any more."""
        one = self.running.get(key)
        if one is not None:
            self._leave(one)
            self.ends = [end for end in self.ends if end[1] != key]
            heapify(self.ends)
        elif self.waiting.pop(key, None) is None:
            return False
        self.changed = True
        self.counters.aborted += 1
        return True

    def load(self) -> Load:
        """What it is doing now."""
        decodes = self.work is not None and self.filling is None
        counters = replace(
            self.counters,
            output_tokens=round(self.decoded),
            verify_rounds=round(self.rounds),
            verified_tokens=round(self.verified),
        )
        return Load(
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=sum(sequence.prompt_tokens for sequence in self.waiting.values()),
            used_tokens=round(self.context),
            output_rate=self.decoding * self.rate * self.speed if decodes else 0.0,
            limits=self.limits,
            counters=counters,
        )
