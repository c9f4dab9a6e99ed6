"""What a perfect calibration would know of a profile: curves, N*, λ*, the mean length.

Nothing is measured here, and nothing is noisy: what a policy loses in a simulation is not to be
the fault of its figures. How good a real calibration is, is another question.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from statistics import fmean
from typing import Final

from proxy.core.curves import Curve, Prefill, Server
from proxy.core.words import UpstreamName
from proxy.sim.engine import DEFAULT_LIMITS
from proxy.sim.lengths import CONVERSATION_PROMPTS, CONVERSATION_REPLIES, draw
from proxy.sim.openloop import crossover_rate
from proxy.sim.physics import Profile, crossover, prefill_work

_LEAST_BEYOND: Final = 16.0
_BEYOND: Final = 2.5
"""A curve is drawn up to this many times N*: what is decided, is decided around N*."""

_UNCROSSED: Final = 48.0
"""How far a curve is drawn where there is no N*: to the usual cap of a speculative server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What calibration knows of a pair."""

    crossover: float
    """N*, sequences in flight."""
    crossover_rate: float
    """λ*, offered output tokens/s."""
    output_tokens: float
    """Mean of a request."""


def know(profile: Profile, lengths: Sequence[tuple[int, int]], *, seed: int = 0) -> Knowledge:
    """N* at the context that a sequence has on average while it runs, and λ*.

    `lengths` are (prompt, output) tokens of typical requests.
    """
    context = mean_context(lengths)
    at = crossover(profile, context)
    spec, base = (server(profile, name, context, at) for name in UpstreamName)
    rate = crossover_rate(spec, base, lengths, seed=seed) if 0.0 < at < inf else at
    output_tokens = fmean(output for _, output in lengths)
    return Knowledge(crossover=at, crossover_rate=rate, output_tokens=output_tokens)


def conversations(count: int = 2000, *, seed: int = 1) -> list[tuple[int, int]]:
    """(prompt, output) tokens of so many requests, drawn from the lengths of the workloads."""
    random = Random(seed)  # noqa: S311 - a simulation
    prompts = [draw(CONVERSATION_PROMPTS, random) for _ in range(count)]
    return [(prompt, draw(CONVERSATION_REPLIES, random)) for prompt in prompts]


def mean_context(lengths: Sequence[tuple[int, int]]) -> float:
    """Tokens of context of a sequence that is caught running: the long ones are met more often."""
    outputs = sum(output for _, output in lengths)
    return sum(output * (prompt + output / 2) for prompt, output in lengths) / outputs


def server(profile: Profile, name: UpstreamName, context: float, at: float) -> Server:
    """One engine of `profile` as calibration writes it down; `at` is N*."""
    fixed = prefill_work(profile, name, 0).seconds
    per_token = (prefill_work(profile, name, 1000).seconds - fixed) / 1000.0
    filling = Prefill(fixed, per_token)
    limit = DEFAULT_LIMITS[name].max_running
    cap = limit if name is UpstreamName.SPEC else None
    return Server(_parabola(profile, name, context, at), filling, cap)


def _parabola(profile: Profile, name: UpstreamName, context: float, at: float) -> Curve:
    """The curve through one sequence, N* and well beyond it."""
    to = max(_LEAST_BEYOND, _BEYOND * at) if at < inf else _UNCROSSED
    middle = at if 1.0 < at < to else to / 3.0
    points = [(n, _seconds_per_token(profile, name, n, context)) for n in (1.0, middle, to)]
    (n0, t0), (n1, t1), (n2, t2) = points
    first, second = (t1 - t0) / (n1 - n0), (t2 - t1) / (n2 - n1)
    bend = (second - first) / (n2 - n0)
    per_sequence = first - bend * (n0 + n1)
    return Curve(t0 - per_sequence * n0 - bend * n0 * n0, per_sequence, bend, to)


def _seconds_per_token(profile: Profile, name: UpstreamName, n: float, context: float) -> float:
    return profile.cost(name).work(n, n * context).seconds / profile.tokens_per_step(name)
