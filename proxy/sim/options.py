"""What a simulated pair is like."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from proxy.core.words import UpstreamName
from proxy.sim.engine import DEFAULT_LIMITS, Limits
from proxy.sim.physics import FOUNDING, Profile, kappa


class Asked(TypedDict):
    """What a command line says of a pair, beside its profile; named as in PairOptions."""

    host: str
    spec_port: int
    base_port: int
    contention: float
    time_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """A pair of engines on one GPU, or one engine of it on a GPU of its own.

    Raises:
        ValueError: `contention`, `time_scale` or `context_length` is impossible.
    """

    profile: Profile = FOUNDING
    host: str = "127.0.0.1"
    spec_port: int = 0
    """0 for a free one."""
    base_port: int = 0
    only: UpstreamName | None = None
    """The one engine that is there; None: both. Alone it waits for nobody."""
    contention: float = 0.9
    """eta of physics.kappa; 0.9 is time slicing without MPS."""
    time_scale: float = 1.0
    """How many times faster than real the GPU is."""
    keep_alive: float = 5.0
    """Seconds after which an idle connection is closed: SGLANG_TIMEOUT_KEEP_ALIVE."""
    seed: int = 0
    model: str = "simulated"
    context_length: int = 32768
    """Tokens."""
    spec: Limits = DEFAULT_LIMITS[UpstreamName.SPEC]
    base: Limits = DEFAULT_LIMITS[UpstreamName.BASE]

    @property
    def limits(self) -> Mapping[UpstreamName, Limits]:
        """By engine."""
        return {UpstreamName.SPEC: self.spec, UpstreamName.BASE: self.base}

    @property
    def names(self) -> tuple[UpstreamName, ...]:
        """The engines that are there."""
        return tuple(UpstreamName) if self.only is None else (self.only,)

    @property
    def ports(self) -> Mapping[UpstreamName, int]:
        """By engine."""
        return {UpstreamName.SPEC: self.spec_port, UpstreamName.BASE: self.base_port}

    def __post_init__(self) -> None:
        kappa(self.contention)
        if self.time_scale <= 0.0:
            raise ValueError(f"time_scale must be above 0, not {self.time_scale}")
        room = min(self.spec.max_total_tokens, self.base.max_total_tokens)
        if self.context_length > room:
            raise ValueError(f"context_length {self.context_length} is above the cache of {room}")
