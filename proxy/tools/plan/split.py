"""The memory of a GPU between two servers that start one after the other.

SGLang measures what is free once its CUDA context is there and before it loads anything (F), and
takes `--mem-fraction-static` of that for weights, draft and KV cache together:

    KV bytes = free after loading - F x (1 - f), so weights + draft + KV = f x F

(`mem_cache/kv_cache_configurator.py`, `_profile_available_bytes`). CUDA graphs and activations come
on top. So f1 is of F, and f2 of F2, what the first server has left when the second measures.
Between its start and its first long prompt the first one has not taken its activations yet: F2 is
anything between two figures. The second must not take what the first will need, so f2 follows from
the larger; its KV cache is promised by the smaller.

All in bytes on each GPU. A pair fits if each server holds a request of full context.
"""

from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from proxy.core.words import Topology, UpstreamName
from proxy.tools.doctor.memory import TOKENS_EACH
from proxy.tools.plan.wanted import CHUNKS, Demand, Wanted, demand

_STEP: Final = 0.001
"""Fractions have three digits, as SGLang's own default has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server as it would start."""

    demand: Demand
    fraction: float
    """--mem-fraction-static."""
    free_least: float
    """F at its launch, where the other server's activations are there already."""
    free_most: float
    """F at its launch, where they are not; the same for the first."""

    @property
    def kv_bytes(self) -> float:
        """Of its KV cache, as SGLang counts it, at the least."""
        return max(0.0, self.fraction * self.free_least - self.demand.loaded)

    @property
    def kv_tokens(self) -> int:
        """Of its KV cache, at the least."""
        return floor(self.kv_bytes / self.demand.token_charged)

    @property
    def full_contexts(self) -> int:
        """Requests of full context that it holds at one time."""
        return self.kv_tokens // self.demand.least_tokens

    @property
    def running(self) -> int:
        """Its cap: what is wanted, if there is room for TOKENS_EACH tokens of each sequence."""
        return min(self.demand.running, max(1, self.kv_tokens // TOKENS_EACH))

    def taken(self, free: float) -> float:
        """Bytes of weights and KV cache where `free` was measured."""
        kv = self.fraction * free - self.demand.loaded
        return self.demand.loaded + kv * self.demand.excess


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Whether a pair fits, and how it would share."""

    wanted: Wanted
    chunk: int
    short: float
    """Bytes on each GPU that are missing; 0 or less where it fits."""
    demands: tuple[Demand, Demand]
    """spec, base: what they need in any case."""
    servers: tuple[Server, Server] | None
    """In launch order; None where the pair does not fit."""

    @property
    def fits(self) -> bool:
        """Whether both have room."""
        return self.servers is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """What the second server meets, for one size of what the first takes."""

    most: float
    room: float
    """For its weights and KV cache, once the first has all it needs."""
    promised: float
    """Of that, what it has in any case."""


def plan(wanted: Wanted) -> Plan:
    """Whether the pair fits, with the largest prefill chunk with which it does."""
    chunks = CHUNKS if wanted.chunk is None else (wanted.chunk,)
    made = _plan(wanted, chunks[0])
    for chunk in chunks[1:]:
        if made.fits:
            break
        made = _plan(wanted, chunk)
    return made


def alone(wanted: Wanted, name: UpstreamName, *, chunk: int) -> tuple[Server | None, float]:
    """One server with the GPU to itself, or None; and the bytes that are missing."""
    one = demand(wanted, name, chunk=chunk)
    free = _free(wanted) - one.runtime
    room = free - one.started - one.activations - wanted.reserves.margin
    short = _floor_bytes(one) + _STEP * max(free, 0.0) * one.excess - room
    if short > 0:
        return None, short
    fraction = (one.loaded + (room - one.loaded) / one.excess) / free
    return Server(demand=one, fraction=_down(fraction), free_least=free, free_most=free), short


def _plan(wanted: Wanted, chunk: int) -> Plan:
    spec, base = (demand(wanted, name, chunk=chunk) for name in UpstreamName)
    if wanted.topology is Topology.SEPARATE:
        made = [alone(wanted, name, chunk=chunk) for name in UpstreamName]
        (first, _), (second, _) = made
        short = max(short for _, short in made)
        servers = None if first is None or second is None else (first, second)
    else:
        servers, short = _shared(wanted, spec, base)
    return Plan(wanted=wanted, chunk=chunk, short=short, demands=(spec, base), servers=servers)


def _shared(
    wanted: Wanted, spec: Demand, base: Demand
) -> tuple[tuple[Server, Server] | None, float]:
    free = _free(wanted) - spec.runtime
    margin = wanted.reserves.margin
    least = spec.least_tokens * spec.token_charged
    most = max(least, spec.running * spec.least_tokens * spec.token_charged)
    spare = free - spec.loaded - spec.started - spec.activations - base.runtime
    # Twice, since base has to leave room for what spec has not taken yet: see `promised`.
    spare -= base.loaded + base.started + base.activations + spec.activations + margin
    short = 0.0
    # First what spec should have; if base then has too little, no more than spec must have.
    for kv in (max(least, min(most, wanted.spec_share * spare)), least):
        static = spec.loaded + kv
        worst = _second(free, static + _STEP * max(free, 0.0), spec, base, margin=margin)
        short = _floor_bytes(base) + _STEP * max(worst.most, 0.0) - worst.promised
        if short <= 0:
            return _pair(free, _up(static / free), spec, base, margin=margin), short
    return None, short


def _pair(
    free: float, fraction: float, spec: Demand, base: Demand, *, margin: int
) -> tuple[Server, Server]:
    """Both servers, the first with this fraction."""
    after = _second(free, fraction * free, spec, base, margin=margin)
    return (
        Server(demand=spec, fraction=fraction, free_least=free, free_most=free),
        Server(
            demand=base,
            fraction=_down(after.room / after.most),
            free_least=after.most - spec.activations,
            free_most=after.most,
        ),
    )


def _second(free: float, static: float, spec: Demand, base: Demand, *, margin: int) -> _Launch:
    """What base meets where spec was given `static` bytes of its `free`."""
    kv = (static - spec.loaded) * spec.excess
    most = free - spec.loaded - kv - spec.started - base.runtime
    room = most - spec.activations - base.started - base.activations - margin
    fraction = room / most if most > 0 else 0.0
    return _Launch(most=most, room=room, promised=room - max(0.0, fraction) * spec.activations)


def _floor_bytes(one: Demand) -> float:
    """Weights and one request of full context."""
    return one.loaded + one.least_tokens * one.token_taken


def _free(wanted: Wanted) -> float:
    return float(wanted.gpu_bytes - wanted.reserves.gpu_reserved)


def _up(fraction: float) -> float:
    return ceil(fraction / _STEP) / round(1 / _STEP)


def _down(fraction: float) -> float:
    return floor(fraction / _STEP) / round(1 / _STEP)
