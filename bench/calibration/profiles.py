"""Pairs to calibrate: the simulator's own, and one made for each verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from proxy.calibration import VerdictKind
from proxy.sim.physics import FOUNDING, PROFILES, Profile, StepCost


@dataclass(frozen=True, slots=True)
class Case:
    """A pair, and what may be said of it."""

    profile: Profile
    verdicts: frozenset[VerdictKind]
    what: str
    """For people."""


def _spec(name: str, fixed: float, per_sequence: float) -> Profile:
    """`founding` with another speculative server: seconds of a round, which yields 2.6 tokens."""
    return replace(FOUNDING, name=name, spec=StepCost(fixed=fixed, per_sequence=per_sequence))


def _ahead_of_base(name: str, factor: float) -> Profile:
    """`founding` with a speculative server that takes `factor` of base's time at all loads."""
    base, tau = FOUNDING.base, FOUNDING.acceptance_length
    return _spec(name, factor * tau * base.fixed, factor * tau * base.per_sequence)


CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        case.profile.name: case
        for case in (
            Case(FOUNDING, frozenset({VerdictKind.CROSSOVER}), "ahead up to 3.1 in flight"),
            Case(
                _ahead_of_base("never", 1.4),
                frozenset({VerdictKind.NEVER_WINS}),
                "takes 1.4 times as long, at all loads",
            ),
            Case(
                _ahead_of_base("always", 0.5),
                frozenset({VerdictKind.NO_CROSSOVER}),
                "takes half as long, at all loads",
            ),
            Case(
                _spec("reverse", 0.0312, 0.0016),
                frozenset({VerdictKind.UNDECIDED}),
                "behind alone, ahead from 8.8 in flight on: no crossover can describe it",
            ),
            Case(
                _ahead_of_base("alike", 1.0),
                frozenset({VerdictKind.NEVER_WINS, VerdictKind.UNDECIDED}),
                "as fast as base at all loads: nothing to find",
            ),
        )
    }
)
"""By name: one pair for each verdict."""

KNOWN: Final[Mapping[str, Profile]] = MappingProxyType(
    {**PROFILES, **{name: case.profile for name, case in CASES.items()}}
)
