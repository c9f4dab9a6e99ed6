"""One engine with continuous batching, in virtual time: a queue, a batch and the step under way.

It batches as SGLang does by default: a prefill goes before any decode step and stalls it, a decode
step yields one token to every running sequence, a verify round one to k + 1. It does not know when
a step ends, since that depends on the other engine; `gpu.py` tells it.

Left out: prefix caches, chunked prefill, retraction, and an acceptance that differs by request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from types import MappingProxyType
from typing import Final

from proxy.core.words import UpstreamName
from proxy.sim.physics import Profile, Work, acceptance_probability, accepted_drafts, prefill_work

MAX_PREFILL_TOKENS: Final = 16384
"""Prompt tokens in one prefill pass: SGLang's max_prefill_tokens."""

_RATE_INTERVAL: Final = 40
"""Decode steps between two readings of the output rate: SGLang's decode_log_interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an engine takes on."""

    max_running: int
    """Sequences that run at once."""
    max_queued: int | None = None
    """Sequences that wait beyond those; None for no bound. SGLang counts all that are not in a
    batch yet, so that a burst may be refused although there is room; here exactly `max_running`
    + `max_queued` are taken at any time."""
    max_total_tokens: int = 145_000
    """Room in the KV cache: half of what a pair of 8B engines has on 80 GB (docs/model.md)."""


DEFAULT_LIMITS: Final[Mapping[UpstreamName, Limits]] = MappingProxyType(
    {
        # What SGLang sets where nothing is asked for; its plain server takes 2048 to 4096.
        UpstreamName.SPEC: Limits(max_running=48),
        UpstreamName.BASE: Limits(max_running=2048),
    }
)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt to be continued by `output_tokens` tokens, the first of them by its prefill."""

    key: int
    prompt_tokens: int
    output_tokens: int

    @property
    def reserved_tokens(self) -> int:
        """Room that it needs in the KV cache until it ends."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence left the queue and its prefill began."""

    at: float
    engine: UpstreamName
    key: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """A sequence got tokens, and ended with them if they were its `last`."""

    at: float
    engine: UpstreamName
    key: int
    tokens: int
    accepted: int | None
    """Drafts that the round accepted, also those past the end; None where nothing was verified."""
    last: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A sequence found the queue full."""

    at: float
    engine: UpstreamName
    key: int


Happening = Admitted | Emitted | Refused


@dataclass(slots=True)
class Counters:
    """What an engine has done since it started."""

    prefilled_tokens: int = 0
    prefill_seconds: float = 0.0
    """Virtual seconds as if alone on the GPU."""
    output_tokens: int = 0
    verify_rounds: int = 0
    """Rounds times sequences, as SGLang counts them."""
    verified_tokens: int = 0
    """Tokens that those rounds yielded."""
    accepted_drafts: int = 0
    decode_moments: tuple[float, float, float, float, float, float] = (0.0,) * 6
    """Sums over decode steps, as SGLang has them: 1, batch size b, time t in microseconds (as if
    alone on the GPU), b^2, b t, tokens yielded (also those past an end)."""
    finished: int = 0
    aborted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """An engine at one moment."""

    running: int
    waiting: int
    waiting_tokens: int
    """Prompt tokens of those that wait."""
    used_tokens: int
    """Tokens in the KV cache."""
    output_rate: float
    """Tokens per second over the last whole interval of 40 decode steps; 0 before the first."""
    limits: Limits
    counters: Counters

    @property
    def token_usage(self) -> float:
        """The part of the KV cache that is in use."""
        return self.used_tokens / self.limits.max_total_tokens

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens of a verify round since the start; None before the first."""
        if not self.counters.verify_rounds:
            return None
        return self.counters.verified_tokens / self.counters.verify_rounds


@dataclass(slots=True)
class _Running:
    """A sequence in the batch."""

    sequence: Sequence
    produced: int = 0

    @property
    def context_tokens(self) -> int:
        """What it holds in the KV cache, once it is filled."""
        return self.sequence.prompt_tokens + self.produced


@dataclass(slots=True)
class _Step:
    """What an engine is doing: a prefill or a decode step of the sequences in `batch`."""

    prefill: bool
    batch: tuple[int, ...]
    work: Work
    left: float
    """Seconds of work still to do, as if alone."""
    speed: float = 1.0


@dataclass(slots=True)
class _Meter:
    """The output rate as SGLang shows it: over a number of decode steps, then kept."""

    rate: float = 0.0
    steps: int = 0
    tokens: int = 0
    since: float = 0.0

    def count(self, tokens: int, at: float) -> None:
        """One decode step has ended."""
        self.steps += 1
        self.tokens += tokens
        if self.steps == _RATE_INTERVAL:
            self.rate = self.tokens / (at - self.since)
            self.steps, self.tokens, self.since = 0, 0, at


@dataclass(slots=True)
class Engine:
    """One engine: its queue, its batch, and the step under way."""

    name: UpstreamName
    profile: Profile
    limits: Limits
    random: Random
    started: float
    waiting: dict[int, Sequence] = field(default_factory=dict)
    running: dict[int, _Running] = field(default_factory=dict)
    step: _Step | None = None
    used: int = 0
    reserved: int = 0
    counters: Counters = field(default_factory=Counters)
    meter: _Meter = field(init=False)
    acceptance: float = field(init=False)

    def __post_init__(self) -> None:
        self.meter = _Meter(since=self.started)
        self.acceptance = acceptance_probability(
            self.profile.acceptance_length, self.profile.draft_steps
        )

    @property
    def has_work(self) -> bool:
        """Whether there is anything to start a step with."""
        return bool(self.waiting or self.running)

    @property
    def full(self) -> bool:
        """Whether one more sequence is too many."""
        limits = self.limits
        if limits.max_queued is None:
            return False
        return len(self.running) + len(self.waiting) >= limits.max_running + limits.max_queued

    def start(self, at: float) -> list[Happening]:
        """Begin the next step; call it only with work to do."""
        admitted = self._admit()
        if admitted:
            prompt_tokens = sum(sequence.prompt_tokens for sequence in admitted)
            work = prefill_work(self.profile, self.name, prompt_tokens)
            batch = tuple(sequence.key for sequence in admitted)
        else:
            work = self.profile.cost(self.name).work(len(self.running), self.used)
            batch = tuple(self.running)
        self.step = _Step(bool(admitted), batch, work, left=work.seconds)
        return [Admitted(at, self.name, sequence.key) for sequence in admitted]

    def _admit(self) -> list[Sequence]:
        """Move from the queue to the batch what one prefill pass takes; the first always fits."""
        room = self.limits.max_running - len(self.running)
        admitted: list[Sequence] = []
        prompt_tokens = 0
        for sequence in islice(self.waiting.values(), room):
            prompt_tokens += sequence.prompt_tokens
            if admitted and prompt_tokens > MAX_PREFILL_TOKENS:
                break
            if self.reserved + sequence.reserved_tokens > self.limits.max_total_tokens:
                break
            admitted.append(sequence)
            self.reserved += sequence.reserved_tokens
        for sequence in admitted:
            del self.waiting[sequence.key]
            self.running[sequence.key] = _Running(sequence)
        return admitted

    def finish(self, step: _Step, at: float) -> list[Happening]:
        """The step has ended: its tokens, for those of its batch that are still there."""
        self.step = None
        batch = [self.running[key] for key in step.batch if key in self.running]
        if step.prefill:
            self.counters.prefill_seconds += step.work.seconds
            return [self._fill(one, at) for one in batch]
        before = self.counters.output_tokens
        drafts_before = self.counters.accepted_drafts
        happened: list[Happening] = [self._decode(one, at) for one in batch]
        self.meter.count(self.counters.output_tokens - before, at)
        self._count_step(step, len(batch), self.counters.accepted_drafts - drafts_before)
        return happened

    def _count_step(self, step: _Step, size: int, accepted: int) -> None:
        if not size:  # all of them left meanwhile
            return
        micros = step.work.seconds * 1e6
        count, sizes, times, squares, products, tokens = self.counters.decode_moments
        self.counters.decode_moments = (
            count + 1.0,
            sizes + size,
            times + micros,
            squares + size * size,
            products + size * micros,
            tokens + size + accepted,
        )

    def _fill(self, one: _Running, at: float) -> Emitted:
        self.counters.prefilled_tokens += one.sequence.prompt_tokens
        self.used += one.sequence.prompt_tokens
        return self._emit(one, 1, None, at)

    def _decode(self, one: _Running, at: float) -> Emitted:
        if self.name is UpstreamName.BASE:
            return self._emit(one, 1, None, at)
        accepted = accepted_drafts(self.random, self.acceptance, self.profile.draft_steps)
        self.counters.verify_rounds += 1
        self.counters.verified_tokens += 1 + accepted
        self.counters.accepted_drafts += accepted
        return self._emit(one, 1 + accepted, accepted, at)

    def _emit(self, one: _Running, yielded: int, accepted: int | None, at: float) -> Emitted:
        """Hand out tokens, but none past the end."""
        sequence = one.sequence
        tokens = min(yielded, sequence.output_tokens - one.produced)
        one.produced += tokens
        self.used += tokens
        self.counters.output_tokens += tokens
        last = one.produced == sequence.output_tokens
        if last:
            self._leave(one)
            self.counters.finished += 1
        return Emitted(at, self.name, sequence.key, tokens, accepted, last)

    def _leave(self, one: _Running) -> None:
        del self.running[one.sequence.key]
        self.reserved -= one.sequence.reserved_tokens
        if one.produced:  # its prompt was filled
            self.used -= one.context_tokens

    def load(self) -> Load:
        """What it is doing now."""
        return Load(
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=sum(sequence.prompt_tokens for sequence in self.waiting.values()),
            used_tokens=self.used,
            output_rate=self.meter.rate,
            limits=self.limits,
            counters=replace(self.counters),
        )

    def reborn(self, at: float) -> "Engine":
        """The same engine, just started."""
        return Engine(self.name, self.profile, self.limits, self.random, started=at)

    def submit(self, sequence: Sequence) -> bool:
        """Queue a sequence; False if the queue is full.

        Raises:
            ValueError: the key is in use, there is nothing to generate, or the sequence is larger
                than the whole KV cache.
        """
        if sequence.key in self.waiting or sequence.key in self.running:
            raise ValueError(f"sequence {sequence.key} is already on {self.name}")
        if min(sequence.prompt_tokens, sequence.output_tokens) < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        if sequence.reserved_tokens > self.limits.max_total_tokens:
            raise ValueError(f"{sequence.reserved_tokens} tokens do not fit the cache")
        if self.full:
            self.counters.refused += 1
            return False
        self.waiting[sequence.key] = sequence
        return True

    def cancel(self, key: int) -> bool:
        """Forget a sequence; False if it is not here any more."""
        one = self.running.get(key)
        if one is not None:
            self._leave(one)
        elif self.waiting.pop(key, None) is None:
            return False
        self.counters.aborted += 1
        return True
