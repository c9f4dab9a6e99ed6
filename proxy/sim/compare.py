"""Policies side by side: the same arrivals for each, several workloads and seeds, over processes.

A comparison is a function of its plan: the same plan gives the same figures, whatever the number of
processes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from math import exp, inf, log
from multiprocessing import get_context
from statistics import fmean
from typing import NamedTuple

from proxy.sim.policies import Policy, Setting, play
from proxy.sim.results import Objective, Result, summarize
from proxy.sim.traces import Request
from proxy.sim.workloads import Workload, requests

Figure = Callable[[Result], float]
"""One figure of a result, where less is better."""

FIXED = (Policy.ALWAYS_SPEC, Policy.ALWAYS_BASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared."""

    setting: Setting
    policies: tuple[Policy, ...]
    workloads: tuple[Workload, ...]
    seeds: int = 3
    requests: int = 1500
    """In each run."""
    objective: Objective = field(default_factory=Objective)

    @property
    def cells(self) -> list[tuple[Workload, int]]:
        """Each workload with each seed."""
        return [(workload, seed) for workload in self.workloads for seed in range(self.seeds)]

    @property
    def runs(self) -> int:
        """How many runs it takes."""
        return len(self.cells) * len(self.policies)


@dataclass(frozen=True, slots=True)
class Key:
    """One run of a comparison."""

    policy: Policy
    workload: str
    seed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of a plan."""

    plan: Plan
    results: Mapping[Key, Result]

    def of(self, policy: Policy, workload: str) -> list[Result]:
        """One for each seed."""
        return [self.results[Key(policy, workload, seed)] for seed in range(self.plan.seeds)]

    def mean(self, policy: Policy, workload: str, figure: Figure) -> float:
        """Over the seeds."""
        return fmean(figure(result) for result in self.of(policy, workload))

    def overall(self, policy: Policy, figure: Figure) -> float:
        """The mean over workloads and seeds."""
        return fmean(self.mean(policy, workload.name, figure) for workload in self.plan.workloads)

    def ratio(self, policy: Policy, to: Policy, workload: str, figure: Figure) -> float:
        """The geometric mean over the seeds of `policy` in shares of `to`, run by run."""
        pairs = zip(self.of(policy, workload), self.of(to, workload), strict=True)
        return geometric_mean(figure(one) / figure(other) for one, other in pairs)

    def ratio_over(
        self, policy: Policy, to: Policy, workloads: Iterable[str], figure: Figure
    ) -> float:
        """The geometric mean of those ratios over `workloads`."""
        return geometric_mean(self.ratio(policy, to, workload, figure) for workload in workloads)

    def ordered(self) -> Iterator[tuple[Key, Result]]:
        """All results, in the order of the plan and not in that in which they came."""
        for workload, seed in self.plan.cells:
            for policy in self.plan.policies:
                key = Key(policy, workload.name, seed)
                yield key, self.results[key]

    @property
    def has_fixed(self) -> bool:
        """Whether both fixed modes are in it."""
        return all(policy in self.plan.policies for policy in FIXED)

    def best_fixed(self, workload: str, figure: Figure) -> float:
        """What the better of the two fixed modes gives, chosen in hindsight."""
        return min(self.mean(policy, workload, figure) for policy in FIXED)


def mean_e2e(result: Result) -> float:
    """Mean end-to-end time, in seconds."""
    return result.e2e.mean


def p95_e2e(result: Result) -> float:
    """Its 95th percentile."""
    return result.e2e.p95


def geometric_mean(values: Iterable[float]) -> float:
    """Of ratios; infinity if one is."""
    logs = [log(value) if value < inf else inf for value in values]
    return exp(fmean(logs))


def compare(
    plan: Plan, *, processes: int, done: Callable[[Workload, int], None] | None = None
) -> Comparison:
    """Run `plan`; `done` is told of each workload and seed once all policies have had it.

    Raises:
        ValueError: a request does not fit an engine, or a policy has no such engines.
    """
    results: dict[Key, Result] = {}
    for (workload, seed), batch in _batches(plan, processes):
        for policy, result in zip(plan.policies, batch, strict=True):
            results[Key(policy, workload.name, seed)] = result
        if done is not None:
            done(workload, seed)
    return Comparison(plan, results)


def _batches(plan: Plan, processes: int) -> Iterator[tuple[tuple[Workload, int], Sequence[Result]]]:
    cells = plan.cells
    if processes == 1 or len(cells) == 1:
        yield from ((cell, _run_cell(*_task(plan, cell))) for cell in cells)
        return
    # Fresh processes and not forks: a fork of a process with threads may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = {pool.submit(_run_cell, *_task(plan, cell)): cell for cell in cells}
        try:
            for future in as_completed(runs):
                yield runs[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class _Task(NamedTuple):
    """What a process is given: values only, and no workload, which may hold a function."""

    policies: tuple[Policy, ...]
    setting: Setting
    objective: Objective
    arrivals: Sequence[Request]
    seed: int


def _task(plan: Plan, cell: tuple[Workload, int]) -> _Task:
    workload, seed = cell
    arrivals = requests(workload, plan.setting.profile, plan.requests, seed)
    return _Task(plan.policies, plan.setting, plan.objective, arrivals, seed)


def _run_cell(
    policies: Sequence[Policy],
    setting: Setting,
    objective: Objective,
    arrivals: Sequence[Request],
    seed: int,
) -> list[Result]:
    """All policies on the same arrivals."""
    return [summarize(play(policy, setting, arrivals, seed=seed), objective) for policy in policies]
