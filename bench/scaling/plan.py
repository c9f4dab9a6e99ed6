"""What is simulated, and the figures of each run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil, inf
from multiprocessing import get_context
from types import MappingProxyType
from typing import Final

from proxy.sim.fleet import Fleet, play, summarized
from proxy.sim.knowledge import conversations, know
from proxy.sim.measures import CONTENTION
from proxy.sim.physics import PROFILES
from proxy.sim.policies import Policy, Setting
from proxy.sim.results import Objective
from proxy.sim.spreading import Spreading
from proxy.sim.workloads import WORKLOADS, capacity, requests

PAIRS: Final = (1, 2, 4, 8, 16, 32, 64)
LOADS: Final = ("poisson-10", "poisson-30", "poisson-50", "poisson-70", "bursts")
"""Of `WORKLOADS`; their level is that of each pair, so the fleet has as many times more."""

LEAST_REQUESTS: Final = 1000
"""In each run, where its seconds hold fewer."""
MOST_FOR_A_PAIR: Final = 600
"""In each run, where its seconds hold more: a fast GPU at a high level has as many in a minute."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a fleet does with a request."""

    what: str
    """For people, in a line."""
    spreading: Spreading
    bound: Callable[[Setting], float] = lambda _: inf
    policy: Policy = Policy.SWITCH


def _crossover(setting: Setting) -> float:
    return max(1.0, setting.knowledge.crossover)


def _saturation(setting: Setting) -> float:
    return float(setting.profile.saturation)


REFERENCE: Final = "power-of-two"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        REFERENCE: Rule("the emptier of two pairs drawn by lot", Spreading.POWER_OF_TWO),
        "least": Rule("the emptiest pair", Spreading.LEAST),
        "round-robin": Rule("one pair after the other", Spreading.ROUND_ROBIN),
        "random": Rule("any pair", Spreading.RANDOM),
        "pack": Rule("the first pair with fewer than N* in flight", Spreading.PACK, _crossover),
        "pack-full": Rule("the first pair that is not full", Spreading.PACK, _saturation),
        "no-switch": Rule(
            "as power-of-two, but each pair only has base",
            Spreading.POWER_OF_TWO,
            policy=Policy.ALWAYS_BASE,
        ),
    }
)
SHOWN: Final = (REFERENCE, "least", "pack", "pack-full", "no-switch")
"""By default."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One run."""

    profile: str
    workload: str
    pairs: int
    rule: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of it; seconds, and shares from 0 to 1."""

    requests: int
    mean: float
    """End-to-end, as are the next two."""
    p50: float
    p95: float
    per_token: float
    """Mean, after the first."""
    goodput: float
    """Share of the requests within `Objective`."""
    on_spec: float
    """Share of the output tokens."""
    busy: float
    """Share of the pairs that had work, over time."""
    switches_per_minute: float
    """Of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs."""

    profiles: tuple[str, ...]
    workloads: tuple[str, ...] = LOADS
    pairs: tuple[int, ...] = PAIRS
    rules: tuple[str, ...] = SHOWN
    seeds: int = 5
    seconds: float = 180.0
    """Of arrivals in each run, in virtual time: several times the controller's slow window."""

    @property
    def cells(self) -> list[Cell]:
        """In order; the largest fleets come first, so that none is left for the end."""
        return [
            Cell(profile, workload, pairs, rule, seed)
            for pairs in sorted(self.pairs, reverse=True)
            for profile in self.profiles
            for workload in self.workloads
            for rule in self.rules
            for seed in range(self.seeds)
        ]


@cache
def _setting(profile: str) -> Setting:
    found = PROFILES[profile]
    return Setting(profile=found, contention=CONTENTION, knowledge=know(found, conversations()))


def run(cell: Cell, seconds: float) -> Figures:
    """One fleet over `seconds` of arrivals; the same arguments give the same figures.

    Raises:
        KeyError: a name is unknown.
        ValueError: there is no pair.
    """
    setting, rule, workload = _setting(cell.profile), RULES[cell.rule], WORKLOADS[cell.workload]
    if workload.load is None:
        raise ValueError(f"{cell.workload} has no level to be multiplied")
    level = workload.load * cell.pairs
    for_a_pair = min(MOST_FOR_A_PAIR, workload.load * capacity(setting.profile) * seconds)
    count = max(LEAST_REQUESTS, ceil(cell.pairs * for_a_pair))
    arrivals = requests(replace(workload, load=level), setting.profile, count, cell.seed)
    fleet = Fleet(
        setting=setting,
        pairs=cell.pairs,
        spreading=rule.spreading,
        bound=rule.bound(setting),
        policy=rule.policy,
    )
    outcome = summarized(play(fleet, arrivals, seed=cell.seed), Objective())
    result = outcome.result
    return Figures(
        requests=result.requests,
        mean=result.e2e.mean,
        p50=result.e2e.p50,
        p95=result.e2e.p95,
        per_token=result.per_token.mean,
        goodput=result.goodput,
        on_spec=result.on_spec,
        busy=outcome.busy,
        switches_per_minute=result.switches_per_minute,
    )


def run_all(plan: Plan, *, processes: int) -> Iterator[tuple[Cell, Figures]]:
    """Each run of a plan, in the order in which they end."""
    if processes == 1:
        yield from ((cell, run(cell, plan.seconds)) for cell in plan.cells)
        return
    # Fresh processes and not forks: a fork of a process with threads may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = {pool.submit(run, cell, plan.seconds): cell for cell in plan.cells}
        try:
            for future in as_completed(runs):
                yield runs[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def as_objects(found: Mapping[Cell, Figures]) -> list[dict[str, object]]:
    """For JSON, in the order of the cells."""
    return [{**asdict(cell), **asdict(found[cell])} for cell in sorted(found)]


def of_objects(objects: Sequence[Mapping[str, object]]) -> dict[Cell, Figures]:
    """Back from JSON.

    Raises:
        TypeError: an object is not one of `as_objects`.
    """
    names = Cell.__dataclass_fields__
    found = {}
    for each in objects:
        cell = {name: value for name, value in each.items() if name in names}
        rest = {name: value for name, value in each.items() if name not in names}
        found[Cell(**cell)] = Figures(**rest)  # type: ignore[arg-type]  # as wide as JSON is
    return found
