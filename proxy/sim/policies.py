"""The policies that a simulation compares, by name: the engines that each has and its router.

Ours is the proxy's own dispatcher (`switching.py`); the ideal is one engine that speculates or not
at every step, which no router can be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Final

from proxy.core.modes import Thresholds
from proxy.core.tolerance import Bounds
from proxy.core.words import Topology, UpstreamName
from proxy.sim.engine import DEFAULT_LIMITS
from proxy.sim.fluid import CACHE_TOKENS, PAIR_SHARE, Fluid, Model, pair, single, switching
from proxy.sim.gpu import Gpu
from proxy.sim.knowledge import Knowledge
from proxy.sim.physics import Profile
from proxy.sim.rivals import Rival, Rule, always, hysteresis, spill, static
from proxy.sim.run import Engines, Router, Run, Station, Submit, run
from proxy.sim.switching import Switching, settings
from proxy.sim.traces import Request

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

_IDEAL_OVERHEAD: Final = 0.1


class Policy(StrEnum):
    """A way to use the two engines, or what they are compared with."""

    SWITCH = "switch"
    """Ours."""
    COUNT_ONLY = "count-only"
    """Ours where the crossover rate is unknown."""
    HYSTERESIS_QUARTER = "hysteresis-quarter"
    """Leave above N*, return at a quarter of it."""
    HYSTERESIS_HALF = "hysteresis-half"
    STATIC = "static"
    """Spec while at most N* are in flight."""
    SPILL_HALF = "spill-half"
    """Spec has half of N* places, and base the rest."""
    SPILL = "spill"
    ALWAYS_SPEC = "always-spec"
    """Spec alone, with the whole KV cache."""
    ALWAYS_BASE = "always-base"
    IDEAL = "ideal"
    """One engine that takes the faster kind of step each time, for nothing."""
    IDEAL_10 = "ideal-10"
    """The same, where a step without speculation costs 10 % more than on base."""


class EngineKind(StrEnum):
    """Which model of the engines runs."""

    FLUID = "fluid"
    """Rates between events: fast."""
    STEPS = "steps"
    """Step by step, as the simulated servers do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all policies have in common."""

    profile: Profile
    contention: float
    """eta, see `physics.kappa`."""
    knowledge: Knowledge
    engines: EngineKind = EngineKind.FLUID

    @property
    def spec_cap(self) -> int:
        """Sequences that the speculative engine runs at once."""
        return DEFAULT_LIMITS[SPEC].max_running


def thresholds(knowledge: Knowledge) -> Thresholds:
    """What the proxy goes by with its default constants (docs/configuration.md), on shared GPUs."""
    return Thresholds(
        crossover=knowledge.crossover,
        crossover_rate=knowledge.crossover_rate,
        topology=Topology.SHARED,
        tolerance=Bounds(1.5, 0.5, 3.0),
        gate_factor=0.25,
        rate_up=1.3,
        rate_down=0.9,
        fast_window=5.0,
        slow_window=30.0,
        count_window=10.0,
        return_dwell=10.0,
        least_acceptance=0.0,
        flap_limit=4,
        flap_window=60.0,
        flap_hold=60.0,
    )


def is_possible(policy: Policy, engines: EngineKind) -> bool:
    """Whether there are such engines: the ideal one is fluid only."""
    return engines is EngineKind.FLUID or policy not in {Policy.IDEAL, Policy.IDEAL_10}


def play(policy: Policy, setting: Setting, requests: Sequence[Request], *, seed: int) -> Run:
    """Let `policy` serve `requests`, in order of time; `seed` is for what the engines draw.

    Raises:
        ValueError: there are no such engines, the contention is impossible, or a request does not
            fit an engine.
    """
    start = requests[0].at if requests else 0.0
    return run(requests, _engines(policy, setting, seed, start), _router(policy, setting, start))


def station(policy: Policy, setting: Setting, *, seed: int, now: float) -> Station:
    """What `policy` needs, empty at `now`; for whoever has the requests.

    Raises:
        ValueError: there are no such engines, or the contention is impossible.
    """
    return Station(_engines(policy, setting, seed, now), _router(policy, setting, now), now=now)


def _router(policy: Policy, setting: Setting, now: float) -> Callable[[Submit], Router]:
    known = setting.knowledge
    if policy is Policy.SWITCH or policy is Policy.COUNT_ONLY:
        by = thresholds(known)
        if policy is Policy.COUNT_ONLY:
            by = replace(by, crossover_rate=None)
        asked = settings(by, spec_cap=setting.spec_cap, expected_tokens=known.output_tokens)
        return partial(Switching, asked, now=now)
    return partial(Rival, _rule(policy, known.crossover))


def _rule(policy: Policy, crossover: float) -> Rule:
    match policy:
        case Policy.STATIC:
            return static(crossover)
        case Policy.SPILL:
            return spill(crossover)
        case Policy.SPILL_HALF:
            return spill(crossover / 2.0)
        case Policy.HYSTERESIS_QUARTER:
            return hysteresis(crossover, crossover / 4.0)
        case Policy.HYSTERESIS_HALF:
            return hysteresis(crossover, crossover / 2.0)
        case Policy.ALWAYS_BASE:
            return always(BASE)
        case _:
            return always(SPEC)


def _engines(policy: Policy, setting: Setting, seed: int, now: float) -> Engines:
    if not is_possible(policy, setting.engines):
        raise ValueError(f"{policy} has no engines of the kind {setting.engines}")
    if setting.engines is EngineKind.STEPS:
        share = 1.0 if policy in _ALONE else PAIR_SHARE
        tokens = round(CACHE_TOKENS * share)
        limits = {n: replace(one, max_total_tokens=tokens) for n, one in DEFAULT_LIMITS.items()}
        random = Random(seed)  # noqa: S311 - a simulation
        return Gpu(setting.profile, limits, contention=setting.contention, random=random, now=now)
    models = _ALONE.get(policy, pair)(setting.profile)
    return Fluid(models, contention=setting.contention, now=now)


_ALONE: Final[Mapping[Policy, Callable[[Profile], dict[UpstreamName, Model]]]] = MappingProxyType(
    {
        Policy.ALWAYS_SPEC: partial(single, name=SPEC),
        Policy.ALWAYS_BASE: partial(single, name=BASE),
        Policy.IDEAL: switching,
        Policy.IDEAL_10: partial(switching, overhead=_IDEAL_OVERHEAD),
    }
)
"""Policies that have one engine only, which has the whole GPU."""
