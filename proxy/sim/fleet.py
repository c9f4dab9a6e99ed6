"""Several pairs behind one router, in virtual time: each has its own GPU and its own controller.

The router spreads by what is in flight (`spreading.py`), the controller of each pair decides as it
does alone, and knows of no other. Nothing is shared but the arrivals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from random import Random
from statistics import fmean

from proxy.sim.policies import Policy, Setting, station
from proxy.sim.results import Objective, Result, both_active, summarize
from proxy.sim.run import Moment, Run, Served, Station
from proxy.sim.spreading import Spreading, chooser
from proxy.sim.traces import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What stands behind the router, and how it spreads.

    Raises:
        ValueError: there is no pair.
    """

    setting: Setting
    """Of each pair."""
    pairs: int
    spreading: Spreading
    bound: float = inf
    """Sequences that packing gives a pair before the next one gets any."""
    policy: Policy = Policy.SWITCH

    def __post_init__(self) -> None:
        """Hold it to what is possible."""
        if self.pairs < 1:
            raise ValueError(f"a fleet has at least one pair, not {self.pairs}")


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a fleet."""

    served: Sequence[Served]
    """Of all pairs, in order of arrival."""
    pairs: Sequence[Run]
    """Each with its own, in its own order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A fleet in figures."""

    result: Result
    """Of all requests; `switches_per_minute` and `both_active` are means over the pairs, and
    `peak_spec` is the most of any pair."""
    busy: float
    """Share of the pairs that had work, over time."""


def play(fleet: Fleet, requests: Sequence[Request], *, seed: int) -> Ran:
    """Let the fleet serve `requests`, in order of time; `seed` is for what is drawn by lot.

    Raises:
        ValueError: a pair is impossible (`policies.play`), packing has no place, the requests are
            not in order, or one does not fit an engine.
    """
    start = requests[0].at if requests else 0.0
    stations = [
        station(fleet.policy, fleet.setting, seed=seed + number, now=start)
        for number in range(fleet.pairs)
    ]
    random = Random(f"spreading {seed}")  # noqa: S311 - draws lots, keeps no secret
    choose = chooser(fleet.spreading, random=random, bound=fleet.bound)
    in_flight = [0] * fleet.pairs
    due = [one.next_event() for one in stations]
    where: list[int] = []
    for request in requests:
        for number, at in enumerate(due):
            if at < request.at:
                stations[number].run_until(request.at)
                in_flight[number], due[number] = _look(stations[number])
        number = choose(in_flight)
        where.append(number)
        stations[number].arrive(request)
        in_flight[number], due[number] = _look(stations[number])
    return _gathered([one.end() for one in stations], where)


def summarized(ran: Ran, objective: Objective) -> Figures:
    """The figures of `ran`.

    Raises:
        ValueError: nothing was served.
    """
    changes = [change for run in ran.pairs for change in run.changes]
    peak = max((moment.spec for run in ran.pairs for moment in run.moments), default=0)
    start = ran.served[0].request.at if ran.served else 0.0
    whole = summarize(Run(ran.served, changes, [Moment(start, peak, 0)]), objective)
    span = max(one.end_at for one in ran.served if not one.refused) - start
    count = len(ran.pairs)
    result = replace(
        whole,
        switches_per_minute=whole.switches_per_minute / count,
        both_active=fmean(both_active(run.moments) for run in ran.pairs) / span,
    )
    return Figures(result=result, busy=fmean(_busy(run.moments) for run in ran.pairs) / span)


def _look(one: Station) -> tuple[int, float]:
    return one.open, one.next_event()


def _gathered(runs: Sequence[Run], where: Sequence[int]) -> Ran:
    """Put what the pairs served back in order of arrival."""
    own = [iter(run.served) for run in runs]
    return Ran([next(own[number]) for number in where], runs)


def _busy(moments: Sequence[Moment]) -> float:
    """Seconds in which there was work."""
    return sum(after.at - before.at for before, after in pairwise(moments) if _any(before))


def _any(moment: Moment) -> bool:
    return moment.spec > 0 or moment.base > 0
