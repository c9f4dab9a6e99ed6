"""The simulated GPU for long stretches of virtual time: tokens flow, and only ends are events.

`gpu.py` runs every step; here all sequences of an engine decode at one steady rate from one event
to the next (`flow.py`). Two engines slow each other down as they do there.

An engine is what it costs (`Model`), so there are more kinds than two: those of a profile, and one
that switches speculation off inside (`switching`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from proxy.core.words import UpstreamName
from proxy.sim.engine import DEFAULT_LIMITS, Happening, Limits, Load, Refused, Sequence
from proxy.sim.flow import Flow, Pace
from proxy.sim.physics import Profile, Work, acceptance_probability, kappa, prefill_work, speed

CACHE_TOKENS: Final = 440_000
"""Room in the KV cache of an 8B engine that has 80 GB for itself (docs/model.md)."""

PAIR_SHARE: Final = 0.4
"""The part of it that each of two engines has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One kind of engine."""

    decode: Callable[[int, float], Pace]
    """With so many sequences, of so many tokens of context in all."""
    prefill: Callable[[int], Work]
    """Of so many prompt tokens in one pass."""
    limits: Limits
    overshoot: float = 0.0
    """Tokens that the last round yields past the end of a sequence, on average."""


def model(profile: Profile, name: UpstreamName, limits: Limits) -> Model:
    """An engine of a profile."""
    cost, tokens = profile.cost(name), profile.tokens_per_step(name)
    return Model(
        decode=lambda sequences, context: Pace(cost.work(sequences, context), tokens),
        prefill=lambda prompt_tokens: prefill_work(profile, name, prompt_tokens),
        limits=limits,
        overshoot=_overshoot(profile) if name is UpstreamName.SPEC else 0.0,
    )


def pair(profile: Profile) -> dict[UpstreamName, Model]:
    """Both engines of a profile, on one GPU."""
    tokens = round(CACHE_TOKENS * PAIR_SHARE)
    return {
        name: model(profile, name, replace(limits, max_total_tokens=tokens))
        for name, limits in DEFAULT_LIMITS.items()
    }


def single(profile: Profile, name: UpstreamName) -> dict[UpstreamName, Model]:
    """One engine that has the whole GPU."""
    limits = replace(DEFAULT_LIMITS[name], max_total_tokens=CACHE_TOKENS)
    return {name: model(profile, name, limits)}


def switching(profile: Profile, overhead: float = 0.0) -> dict[UpstreamName, Model]:
    """One engine with the whole GPU that takes the faster kind of step at each moment, for all.

    It stands as `spec`. `overhead` is what having a draft costs a plain step, as a share of it; its
    prefill costs what that of the plain engine does. No engine is as good as this with overhead 0.
    """
    limits = replace(DEFAULT_LIMITS[UpstreamName.BASE], max_total_tokens=CACHE_TOKENS)
    plain = model(profile, UpstreamName.BASE, limits)
    speculative = model(profile, UpstreamName.SPEC, limits)

    def decode(sequences: int, context: float) -> Pace:
        work, tokens = plain.decode(sequences, context)
        slow = Pace(Work(work.host, work.gpu + overhead * work.seconds), tokens)
        fast = speculative.decode(sequences, context)
        return min(slow, fast, key=lambda pace: pace.work.seconds / pace.tokens)

    return {UpstreamName.SPEC: replace(plain, decode=decode)}


def _overshoot(profile: Profile) -> float:
    """A sequence ends within a round: what is left over in a renewal process, for whole tokens.

    (E[x^2] / E[x] - 1) / 2 for x tokens a round, x - 1 of them drafts accepted with chance a each.
    """
    most = profile.draft_steps
    chance = acceptance_probability(profile.acceptance_length, most)
    at_least = [chance**drafts for drafts in range(most + 1)]
    square = sum((2 * drafts + 1) * share for drafts, share in enumerate(at_least))
    return (square / sum(at_least) - 1.0) / 2.0


class Fluid:
    """The GPU and its engines; used as `gpu.Gpu` is.

    It tells of first tokens, of ends (with all tokens but the first) and of refusals. `accepted` is
    never known, and admission is not told.
    """

    def __init__(
        self, models: Mapping[UpstreamName, Model], *, contention: float, now: float = 0.0
    ) -> None:
        """Raises ValueError for an impossible `contention` (see `physics.kappa`)."""
        self._kappa = kappa(contention)
        self._clock = now
        self._happened: list[Happening] = []
        self._by_name = {
            name: Flow(name, one.decode, one.prefill, one.limits, one.overshoot)
            for name, one in models.items()
        }
        self._engines = tuple(self._by_name.values())

    def submit(self, engine: UpstreamName, sequence: Sequence, now: float) -> None:
        """Queue a sequence; a full queue shows as `Refused`. Those of one instant start together.

        Raises:
            ValueError: time goes back, the key is in use on this engine, there is nothing to
                generate, or the sequence is larger than the whole KV cache.
        """
        self._run_to(now)
        one = self._by_name[engine]
        if sequence.key in one.waiting or sequence.key in one.running:
            raise ValueError(f"sequence {sequence.key} is already on {engine}")
        if min(sequence.prompt_tokens, sequence.output_tokens) < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        if sequence.reserved_tokens > one.limits.max_total_tokens:
            raise ValueError(f"{sequence.reserved_tokens} tokens do not fit the cache")
        if one.full:
            one.counters.refused += 1
            self._happened.append(Refused(self._clock, engine, sequence.key))
            return
        one.queue(sequence)

    def cancel(self, engine: UpstreamName, key: int, now: float) -> bool:
        """Abort a sequence: nothing more happens to it; False if it had ended before.

        A prefill that has begun with it keeps its length.
        """
        self._run_to(now)
        return self._by_name[engine].cancel(key)

    def advance(self, now: float) -> list[Happening]:
        """What has happened up to and including `now` and was not told yet, in order.

        Raises:
            ValueError: time goes back.
        """
        self._run_to(now, settle=True)
        happened, self._happened = self._happened, []
        return happened

    def next_event(self) -> float | None:
        """When `advance` will next have something to do; None while the engines are idle."""
        if self._happened or any(engine.changed for engine in self._engines):
            return self._clock
        due, engine = self._next_end()
        return None if engine is None else due

    def load(self, engine: UpstreamName) -> Load:
        """The engine as of the last call that had a `now`."""
        return self._by_name[engine].load()

    def _run_to(self, now: float, *, settle: bool = False) -> None:
        """Let time pass; at the present instant itself only `advance` settles what is to start."""
        if now < self._clock:
            raise ValueError(f"time goes back from {self._clock} to {now}")
        while settle or now > self._clock:
            self._look()
            due, engine = self._next_end()
            if engine is None or due > now:
                self._pass(now)
                return
            self._pass(due)
            self._happened += engine.finish(due)

    def _look(self) -> None:
        changed = False
        for engine in self._engines:
            if engine.changed:
                engine.look()
                changed = True
        if changed:
            self._retime()

    def _retime(self) -> None:
        """Set how fast each engine goes, now that one has begun or ended something."""
        busy = [engine for engine in self._engines if engine.work is not None]
        if len(busy) == 1:
            busy[0].speed = 1.0
        for engine, other in zip(busy, reversed(busy), strict=True):
            if engine is not other and engine.work is not None:
                engine.speed = speed(engine.work, other.work, self._kappa)

    def _next_end(self) -> tuple[float, Flow | None]:
        """When the next thing ends and whose it is."""
        due, first = inf, None
        for engine in self._engines:
            if engine.work is not None:
                left = (engine.goal - engine.reached) / (engine.rate * engine.speed)
                if self._clock + left < due:
                    due, first = self._clock + left, engine
        return due, first

    def _pass(self, to: float) -> None:
        seconds = to - self._clock
        if seconds > 0.0:
            for engine in self._engines:
                engine.move(seconds)
        self._clock = to
