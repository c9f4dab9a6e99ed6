"""Sweeps made up from a curve and noise, for tests of what calibration makes of them."""

from collections.abc import Callable, Sequence
from random import Random

from proxy.core.curves import Curve, Prefill, Server
from proxy.core.words import UpstreamName
from proxy.sim.lengths import CONVERSATION_PROMPTS, CONVERSATION_REPLIES, draw
from proxy.sim.physics import Profile, output_rate
from proxy.tools.curves.crossover import Conditions
from proxy.tools.curves.fit import Cell

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

LOOPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)

SPEC_CAP = 48
"""SGLang's own with speculation."""

Times = Callable[[float], float]
"""Seconds per output token by what is in flight."""


def conversation(count: int, seed: int = 1) -> list[tuple[int, int]]:
    """So many (prompt, output) lengths of the Azure conversation trace."""
    random = Random(seed)
    return [
        (draw(CONVERSATION_PROMPTS, random), draw(CONVERSATION_REPLIES, random))
        for _ in range(count)
    ]


def times_of(profile: Profile, name: UpstreamName, context: float = 0.0) -> Times:
    """Seconds per token of a simulated engine by what is in flight."""
    return lambda in_flight: in_flight / output_rate(profile, name, in_flight, context)


def cell(
    name: UpstreamName,
    loop: int,
    seconds: float,
    *,
    random: Random | None = None,
    requests: int | None = None,
    spread: float = 0.25,
) -> Cell:
    """A run whose requests take `seconds` per token on average, with this CV if drawn."""
    count = requests or max(16, 2 * loop)
    samples: tuple[float, ...] = (seconds,) * count
    if random is not None:
        shape = spread**-2
        samples = tuple(seconds * random.gammavariate(shape, 1 / shape) for _ in range(count))
    rate = loop * count / sum(samples)
    return Cell(server=name, loop=loop, concurrency=float(loop), samples=samples, rate=rate)


def sweep(
    spec: Times,
    base: Times,
    random: Random | None = None,
    *,
    loops: Sequence[int] = LOOPS,
    noise: float = 0.02,
) -> list[Cell]:
    """Both servers at each of `loops`.

    With a Random: run noise, acceptance that differs by request (CV 0.25) on spec, and little that
    differs on base.
    """
    cells = []
    for name, times, spread in ((SPEC, spec, 0.25), (BASE, base, 0.03)):
        for loop in loops:
            moved = times(loop) * (1.0 if random is None else random.gauss(1.0, noise))
            cells.append(cell(name, loop, moved, random=random, spread=spread))
    return cells


def conditions(
    profile: Profile, lengths: Sequence[tuple[int, int]] = (), spec_cap: int | None = SPEC_CAP
) -> Conditions:
    """The prefills of a profile and SGLang's usual caps."""
    plain = Prefill(0.003, profile.prefill_per_token)
    filled_twice = Prefill(1.08 * plain.fixed, 1.08 * plain.per_token)
    return Conditions({SPEC: filled_twice, BASE: plain}, {SPEC: spec_cap, BASE: None}, lengths)


def straight(fixed: float, per_sequence: float, cap: int | None = None) -> Server:
    """A server whose time per token is a line, and whose prompts cost nothing."""
    return Server(Curve(fixed, per_sequence, 0.0, 64.0), Prefill(0.0, 0.0), cap)
