"""What a request is given and what it leaves behind: its place, its ticket, its evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from proxy.core.curves import Curve
from proxy.core.eligibility import Rules
from proxy.core.fingerprint import Fingerprint
from proxy.core.health import HealthRules
from proxy.core.inflight import Lease
from proxy.core.modes import Thresholds
from proxy.core.route import Need
from proxy.core.words import UpstreamName
from proxy.errors import Refusal

FINE_WEIGHTS = 16
"""Sequences up to which each weight stands in a file of its own in the waiting room.

Above, a weight shares one with those up to twice as heavy: clients choose the weight, and each file
is asked whenever a place comes free."""


class Evidence(Enum):
    """What the end of a request says about its upstream."""

    GOOD = auto()
    BAD = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the pair is set to; sequences and seconds."""

    thresholds: Thresholds
    made_for: Mapping[UpstreamName, Fingerprint]
    """The servers that the thresholds were measured on; empty where they are given by hand."""
    curves: Mapping[UpstreamName, Curve]
    """How fast those servers were; empty where nothing is known."""
    expected_tokens: float | None
    """L-hat until responses tell: output tokens of a sequence; None while nothing is known."""
    health: HealthRules
    rules: Rules
    spec_cap: int | None
    """Sequences; 0 for no cap, None for what the server reports."""
    base_cap: int | None
    max_in_flight: int
    queue_size: int
    queue_timeout: float
    wait_for_upstream: float


class Answer(NamedTuple):
    """What an answer says of itself by its usage; None where it says nothing."""

    output_tokens: int | None
    """Over all its sequences."""
    seconds_per_token: float | None
    """Of one sequence, after its first token."""


UNTOLD = Answer(None, None)
"""Of an answer without usage, or of none."""


class Place:
    """A place at an upstream, counted."""

    __slots__ = ("at", "in_flight", "lease", "mode", "reason", "upstream")

    def __init__(
        self,
        upstream: UpstreamName,
        reason: str,
        mode: UpstreamName,
        lease: Lease,
        in_flight: int,
        at: float,
    ) -> None:
        self.upstream = upstream
        self.reason = reason
        self.mode = mode
        self.lease = lease
        self.in_flight = in_flight
        """Sequences over both upstreams when it was decided, its own among them."""
        self.at = at
        """When it was decided; seconds, monotonic."""


class Waiter(Protocol):
    """Who waits for a place; is told once."""

    def placed(self, place: Place) -> None:
        """Here is your place; it is held for you from now on."""

    def refused(self, refusal: Refusal) -> None:
        """There will be none."""


class Ticket:
    """A stand in the waiting room; `arrived` is the one stamp that counts."""

    __slots__ = ("again", "arrived", "need", "waiter", "want")

    def __init__(self, need: Need, waiter: Waiter, arrived: float, *, again: bool = False) -> None:
        self.need = need
        self.waiter = waiter
        self.arrived = arrived
        self.again = again
        """Whether it has had a place before, where it found nobody."""
        heavy = need.weight > FINE_WEIGHTS
        coarse = need._replace(weight=1 << need.weight.bit_length()) if heavy else need
        self.want = (coarse, again)
        """What any place would suit alike, as the waiting room asks for it."""

    def lift(self) -> None:
        """Any upstream will do again; outside of the room only."""
        self.need = self.need._replace(avoid=None)
        self.want = (self.want[0]._replace(avoid=None), self.again)
