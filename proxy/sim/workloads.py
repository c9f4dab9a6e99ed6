"""The workloads that policies are compared on, by name.

They are those of an earlier comparison of routing policies: a ladder of Poisson loads, four
patterns that change, a replayed trace, and trains of requests with silences between ("Workloads"
in docs/model.md). Their level is a share of what the plain engine of a profile can do, so one name
means the same for each profile. Every policy gets the same requests.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count as counted
from itertools import islice, takewhile
from math import ceil
from random import Random
from statistics import fmean
from types import MappingProxyType
from typing import Final

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.sim import traces
from proxy.sim.arrivals import (
    DIURNAL_PERIOD,
    RARE_BURST_PERIOD,
    SQUARE_PERIOD,
    Arrivals,
    bursts,
    diurnal,
    heavy_tailed,
    poisson,
    rare_bursts,
    square,
)
from proxy.sim.fluid import CACHE_TOKENS, PAIR_SHARE
from proxy.sim.lengths import CONVERSATION_PROMPTS, CONVERSATION_REPLIES, Lengths, draw, spread
from proxy.sim.physics import Profile, output_rate, prefill_work
from proxy.sim.traces import Request

_PLACES: Final = 10_000
"""Places, evenly over a distribution of lengths, at which its moments are taken."""

_TYPICAL: Final = 1500
"""Requests that stand for a workload: as many as in the trace that comes along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests to come, with no end, at a level that depends on the profile."""

    name: str
    what: str
    """For people, in a line."""
    load: float | None
    """Mean requests per second as a share of the plain engine's capacity; None for a trace at the
    speed at which it was recorded."""
    arrivals: Arrivals = poisson
    period: float | None = None
    """Seconds after which the pattern comes again, where it has one."""
    trace: Callable[[], Sequence[Request]] | None = None
    """Requests to replay instead: their own lengths, and times put to the level."""
    prompts: Lengths = CONVERSATION_PROMPTS
    replies: Lengths = CONVERSATION_REPLIES


def _poisson(load: float) -> Workload:
    percent = round(load * 100)
    return Workload(
        name=f"poisson-{percent:02}",
        what=f"independent requests at {percent} % of the plain engine's capacity",
        load=load,
    )


WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        workload.name: workload
        for workload in (
            *(_poisson(load) for load in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
            Workload(
                name="bursts",
                what="three times the mean for about 20 s, a third of it for about 60 s; 25 %",
                load=0.25,
                arrivals=bursts,
            ),
            Workload(
                name="rare-bursts",
                what="twelve times the rest, for 20 s in each 5 min; 12 %",
                load=0.12,
                arrivals=rare_bursts,
                period=RARE_BURST_PERIOD,
            ),
            Workload(
                name="square",
                what="two minutes of night, two of day at seven times its rate; 30 %",
                load=0.3,
                arrivals=square,
                period=SQUARE_PERIOD,
            ),
            Workload(
                name="diurnal",
                what="a sine of ten minutes between 0.1 and 1.9 times the mean; 35 %",
                load=0.35,
                arrivals=diurnal,
                period=DIURNAL_PERIOD,
            ),
            Workload(
                name="replay",
                what="a trace of conversations, by default the one that comes along; 30 %",
                load=0.3,
                trace=traces.conversation,
            ),
            Workload(
                name="trains",
                what="trains of requests with long silences between (CV of gaps 13); 20 %",
                load=0.2,
                arrivals=heavy_tailed,
            ),
        )
    }
)
"""In the order in which they are shown."""


def replay(trace: Sequence[Request], load: float | None = None) -> Workload:
    """The replay of another trace, at the speed at which it was recorded or at a level."""
    # No lambda: workloads are sent to other processes.
    return Workload(
        name="replay", what="a trace of requests", load=load, trace=partial(tuple, trace)
    )


@cache
def capacity(profile: Profile) -> float:
    """Requests per second that the plain engine of a profile completes at saturation.

    `profile.saturation` sequences are always in flight, with the lengths of the conversations, and
    each costs its prefill and its share of the decode steps:

        1 / (t_P(mean prompt) + (mean reply - 1) / X_B(saturation, context))

    The context of a sequence in flight is its prompt and half its reply, where long replies count
    for more since they stay longer: E[reply^2] / (2 E[reply]).
    """
    plain = UpstreamName.BASE
    prompt = fmean(_every(CONVERSATION_PROMPTS))
    replies = _every(CONVERSATION_REPLIES)
    reply = fmean(replies)
    context = prompt + fmean(tokens * tokens for tokens in replies) / (2.0 * reply)
    decode = (reply - 1.0) / output_rate(profile, plain, profile.saturation, context)
    return 1.0 / (prefill_work(profile, plain, round(prompt)).seconds + decode)


def _every(lengths: Lengths) -> list[int]:
    return [lengths.at((place + 0.5) / _PLACES) for place in range(_PLACES)]


def requests(workload: Workload, profile: Profile, count: int, seed: int) -> tuple[Request, ...]:
    """At least `count` requests, the same ones for the same arguments.

    A pattern with a period goes on to the end of one, since a cut one would have another mean.

    Raises:
        SpecswitchError: a trace has all its requests at one instant, or one that is too large for
            the simulated engines.
        ValueError: there is neither a level nor a trace.
    """
    source = f"{workload.name} {seed}"
    if workload.trace:
        endless = _replayed(_at_level(workload, workload.trace(), profile), _random(source))
    else:
        endless = _drawn(workload, _rate(workload, profile), source)
    found = list(islice(endless, count))
    if workload.period and found:
        until = ceil(found[-1].at / workload.period) * workload.period
        found += takewhile(lambda one: one.at < until, endless)
    return tuple(found)


def lengths_of(workload: Workload) -> tuple[tuple[int, int], ...]:
    """(prompt, output) tokens of typical requests: a trace's own, or many over the distribution."""
    if workload.trace:
        return tuple((one.prompt_tokens, one.output_tokens) for one in workload.trace())
    random = _random("lengths")
    prompts = spread(workload.prompts, _TYPICAL, random)
    return tuple(zip(prompts, spread(workload.replies, _TYPICAL, random), strict=True))


def _rate(workload: Workload, profile: Profile) -> float:
    if workload.load is None:
        raise ValueError("only a trace has a rate of its own")
    return workload.load * capacity(profile)


def _drawn(workload: Workload, rate: float, source: str) -> Iterator[Request]:
    """Times and lengths come from sources of their own: another level leaves the lengths alone."""
    lengths = _random(f"{source} lengths")
    for at in workload.arrivals(rate, _random(source)):
        yield Request(at, draw(workload.prompts, lengths), draw(workload.replies, lengths))


def _at_level(
    workload: Workload, trace: Sequence[Request], profile: Profile
) -> tuple[Request, ...]:
    largest = max(one.prompt_tokens + one.output_tokens for one in trace)
    if largest > (room := round(CACHE_TOKENS * PAIR_SHARE)):
        raise SpecswitchError(
            f"a request of {largest} tokens in the trace is more than the {room} that each "
            f"simulated engine has room for"
        )
    recorded = workload.load is None
    return traces.scaled(trace, traces.rate(trace) if recorded else _rate(workload, profile))


def _replayed(trace: Sequence[Request], random: Random) -> Iterator[Request]:
    """Round and round, from a place drawn by lot; from the last to the first is a mean gap."""
    turn = trace[-1].at + 1.0 / traces.rate(trace)
    start = random.randrange(len(trace))
    first = trace[start].at
    for place in counted(start):
        turns, within = divmod(place, len(trace))
        one = trace[within]
        yield replace(one, at=turns * turn + one.at - first)


def _random(source: str) -> Random:
    return Random(source)  # noqa: S311 - draws lots, keeps no secret
