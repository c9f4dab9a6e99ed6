"""What our policy has to hold in simulation, each as a figure beside its bound.

The bounds are those of docs/policy.md. Everything is a ratio, since absolute seconds of a
simulation predict nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.sim.compare import Comparison, geometric_mean, mean_e2e, p95_e2e
from proxy.sim.policies import Policy
from proxy.sim.results import Result

MEASURED_PROFILES: Final = ("founding", "tree", "chain")
MEASURED_POLICIES: Final = (Policy.SWITCH, Policy.ALWAYS_SPEC, Policy.ALWAYS_BASE, Policy.IDEAL)
"""As many as the measures need."""

CONTENTION: Final = 0.9
LEAST_SEEDS: Final = 3
LEAST_REQUESTS: Final = 6000
"""In each run. With 1,500 the upper levels of a fast profile last two minutes of virtual time, in
which a policy that switches less than once a minute shows nothing of itself."""

_TO_IDEAL: Final = {"founding": 1.10, "tree": 1.15}
_LEVEL: Final = 1.08
_LADDER: Final = 1.03
_TAIL: Final = 1.05
_TAIL_RARE: Final = 1.10
_SWITCHES: Final = 1.0

RARE_BURSTS: Final = "rare-bursts"
POISSON: Final = "poisson-"
"""How the names of the levels of the ladder begin."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure and its bound."""

    profile: str
    what: str
    figure: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bound; one that is no number is not."""
        return self.figure <= self.bound


def measures(comparison: Comparison) -> list[Measure]:
    """The measures of one profile."""
    profile = comparison.plan.setting.profile.name
    found = _unchanged(comparison) if profile == "chain" else _kept(comparison, profile)
    return [Measure(profile, *one) for one in found]


def _names(comparison: Comparison, start: str = "") -> list[str]:
    return [w.name for w in comparison.plan.workloads if w.name.startswith(start)]


def _kept(comparison: Comparison, profile: str) -> Iterator[tuple[str, float, float]]:
    """Both ends are kept: what, the figure, its bound."""
    every = _names(comparison)
    to_ideal = comparison.ratio_over(Policy.SWITCH, Policy.IDEAL, every, mean_e2e)
    yield "mean E2E to the ideal in-engine switch, geometric mean", to_ideal, _TO_IDEAL[profile]
    levels = [_to_best_fixed(comparison, name) for name in _names(comparison, POISSON)]
    yield "mean E2E to the best fixed mode, worst Poisson level", max(levels), _LEVEL
    yield "the same, geometric mean over the levels", geometric_mean(levels), _LADDER
    tails = {name: _tail(comparison, name) for name in every}
    rare = tails.pop(RARE_BURSTS)
    yield "p95 E2E to always-base, worst workload but rare bursts", max(tails.values()), _TAIL
    yield "the same, rare bursts", rare, _TAIL_RARE
    switches = comparison.overall(Policy.SWITCH, lambda result: result.switches_per_minute)
    yield "switches a minute, mean", switches, _SWITCHES


def _to_best_fixed(comparison: Comparison, workload: str) -> float:
    ours = comparison.mean(Policy.SWITCH, workload, mean_e2e)
    return ours / comparison.best_fixed(workload, mean_e2e)


def _tail(comparison: Comparison, workload: str) -> float:
    return comparison.ratio(Policy.SWITCH, Policy.ALWAYS_BASE, workload, p95_e2e)


def _unchanged(comparison: Comparison) -> Iterator[tuple[str, float, float]]:
    """Where speculation always pays, ours is always-spec, as long as spec's cap is not reached."""
    cap = comparison.plan.setting.spec_cap
    pairs = [
        (ours, fixed)
        for name in _names(comparison)
        for ours, fixed in zip(
            comparison.of(Policy.SWITCH, name),
            comparison.of(Policy.ALWAYS_SPEC, name),
            strict=True,
        )
        if fixed.peak_spec <= cap
    ]
    runs = len(comparison.of(Policy.SWITCH, _names(comparison)[0])) * len(_names(comparison))
    yield "runs in which spec's cap is reached (not all of them)", runs - len(pairs), runs - 1
    yield "other runs that are not identical to always-spec", _different(pairs), 0


def _different(pairs: Sequence[tuple[Result, Result]]) -> int:
    return sum(ours != fixed for ours, fixed in pairs)
