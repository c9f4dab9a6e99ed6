"""A pair without sockets: a dispatcher on a clock that the test moves, and who listens and waits.

Everything has a sane value unless a test says otherwise: N* = 4, no caps, both servers of the same
model, spec speculative and base not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from proxy.core.dispatch import Dispatcher
from proxy.core.eligibility import Eligibility, Rule, Rules, Verdict
from proxy.core.health import HealthRules
from proxy.core.identity import Identity
from proxy.core.modes import Switch, Thresholds
from proxy.core.observer import Record
from proxy.core.places import Evidence, Place, Settings, Ticket
from proxy.core.route import Need
from proxy.core.tolerance import Bounds
from proxy.core.words import (
    AdminState,
    Control,
    EjectionCause,
    Health,
    RetryCause,
    Topology,
    UpstreamName,
)
from proxy.errors import Refusal

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
_BOUNDS = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}

SETTINGS = Settings(
    made_for={},
    curves={},
    expected_tokens=None,
    thresholds=Thresholds(
        crossover=4.0,
        crossover_rate=None,
        topology=Topology.SHARED,
        tolerance=Bounds(1.5, 0.5, 3.0),
        rate_up=1.3,
        rate_down=0.9,
        fast_window=5.0,
        slow_window=30.0,
        least_acceptance=0.0,
        gate_factor=0.25,
        count_window=10.0,
        return_dwell=10.0,
        flap_limit=6,
        flap_window=60.0,
        flap_hold=60.0,
    ),
    health=HealthRules(fall=3, rise=2, passive_failures=5, stalled=30.0, ejection=5.0),
    rules=Rules(
        verdicts={rule: Verdict.ANY for rule in Rule if rule not in _BOUNDS},
        short_output_tokens=1,
        max_spec_prompt_tokens=0,
    ),
    spec_cap=0,
    base_cap=0,
    max_in_flight=2048,
    queue_size=8,
    queue_timeout=30.0,
    wait_for_upstream=10.0,
)
ONE_EACH = replace(SETTINGS, spec_cap=1, base_cap=1)
SMALL_BASE = replace(SETTINGS, base_cap=4)
UNCALIBRATED = replace(SETTINGS, thresholds=replace(SETTINGS.thresholds, crossover=None))

IDENTITIES = {
    SPEC: Identity(known=True, speculative_algorithm="EAGLE3", model="tiny"),
    BASE: Identity(known=True, model="tiny"),
}

_ANYWHERE = Eligibility(Verdict.ANY, None)


def need(weight: int = 1, *, override: UpstreamName | None = None) -> Need:
    """What any upstream may serve."""
    return Need(weight, _ANYWHERE, override)


def only_base(weight: int = 1) -> Need:
    """What only base may serve."""
    return Need(weight, Eligibility(Verdict.BASE, Rule.MIN_P))


def prefers_base(weight: int = 1) -> Need:
    """What base should serve if it can."""
    return Need(weight, Eligibility(Verdict.PREFER, Rule.LORA))


def model_path() -> Need:
    """What is no load and any server can answer, base first."""
    return Need(0, _ANYWHERE, base_first=True)


def where(places: Sequence[Place]) -> list[UpstreamName]:
    """The upstreams of `places`."""
    return [place.upstream for place in places]


@dataclass
class Recorder:
    """An observer that keeps what it is told."""

    decisions: list[tuple[UpstreamName, str]] = field(default_factory=list)
    retries: list[RetryCause] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    wishes: list[Switch] = field(default_factory=list)
    calibrations: list[tuple[str, ...]] = field(default_factory=list)
    holds: list[float] = field(default_factory=list)
    health: list[tuple[UpstreamName, Health, EjectionCause | None, str]] = field(
        default_factory=list
    )

    def started(self) -> None:
        """Of no interest here."""

    def ended(self, record: Record) -> None:
        """Of no interest here."""

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Keep it."""
        self.decisions.append((upstream, reason))

    def retried(self, cause: RetryCause) -> None:
        """Keep it."""
        self.retries.append(cause)

    def switched(self, switch: Switch) -> None:
        """Keep it."""
        self.switches.append(switch)

    def wanted(self, switch: Switch) -> None:
        """Keep it."""
        self.wishes.append(switch)

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """Keep it."""
        self.calibrations.append(faults)

    def held(self, seconds: float) -> None:
        """Keep it."""
        self.holds.append(seconds)

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Keep it."""
        self.health.append((upstream, health, cause, detail))


@dataclass
class Standing:
    """One who waits, and keeps what it is told."""

    told: list[Place | Refusal] = field(default_factory=list)

    def placed(self, place: Place) -> None:
        """Keep it."""
        self.told.append(place)

    def refused(self, refusal: Refusal) -> None:
        """Keep it."""
        self.told.append(refusal)

    @property
    def place(self) -> Place:
        """The place that it was given, and nothing else before or after."""
        (told,) = self.told
        assert isinstance(told, Place)
        return told

    @property
    def refusal(self) -> Refusal:
        """The refusal that it was given, and nothing else before or after."""
        (told,) = self.told
        assert isinstance(told, Refusal)
        return told


class Pair:
    """A dispatcher, who listens to it, and the time."""

    def __init__(self, settings: Settings = SETTINGS, *, healthy: bool = True) -> None:
        self.now = 1000.0
        self.told = Recorder()
        self.dispatcher = Dispatcher(settings, self.told, now=self.now)
        if healthy:
            self.up(BASE)
            self.up(SPEC)

    # requests

    def come(
        self, wanted: Need | None = None, standing: Standing | None = None
    ) -> Place | Ticket | Refusal:
        """A request arrives; `wanted` is one sequence for anywhere if not given."""
        waiter = Standing() if standing is None else standing
        return self.dispatcher.arrive(need() if wanted is None else wanted, waiter, self.now)

    def place(self, wanted: Need | None = None) -> Place:
        """A request arrives, and gets a place at once."""
        place = self.come(wanted)
        assert isinstance(place, Place), place
        return place

    def wait(self, wanted: Need | None = None) -> tuple[Ticket, Standing]:
        """A request arrives, and has to wait."""
        standing = Standing()
        ticket = self.come(wanted, standing)
        assert isinstance(ticket, Ticket), ticket
        return ticket, standing

    def refusal(self, wanted: Need | None = None) -> Refusal:
        """A request arrives, and is refused at once."""
        refusal = self.come(wanted)
        assert isinstance(refusal, Refusal), refusal
        return refusal

    def end(self, place: Place, evidence: Evidence = Evidence.GOOD) -> None:
        """The request that has `place` ends."""
        self.dispatcher.end(place.lease, evidence, self.now)

    def fill(self, wanted: Need, count: int) -> list[Place]:
        """`count` requests arrive, and all get places."""
        return [self.place(wanted) for _ in range(count)]

    # the operator

    def control(self, word: Control) -> None:
        """The operator says `word`."""
        self.dispatcher.set_control(word, by="the test", now=self.now)

    def say(self, name: UpstreamName, word: AdminState) -> None:
        """The operator says what is to become of an upstream."""
        self.dispatcher.set_admin_state(name, word, self.now)

    # time and the upstreams

    def state(self, name: UpstreamName) -> tuple[Health, EjectionCause | None]:
        """What is thought of an upstream's health."""
        health = self.dispatcher.upstream(name).health
        return health.state, health.cause

    def later(self, seconds: float) -> None:
        """Time passes, and is looked at once at its end."""
        self.now += seconds
        self.dispatcher.tick(self.now)

    def up(self, name: UpstreamName, identity: Identity | None = None, *, probes: int = 1) -> None:
        """Good probes of `name`, with its identity."""
        for _ in range(probes):
            self.dispatcher.probe_succeeded(name, identity or IDENTITIES[name], self.now)

    def down(self, name: UpstreamName, *, probes: int = 3) -> None:
        """Failed probes of `name`: as many as it takes, if not given."""
        for _ in range(probes):
            self.dispatcher.probe_failed(name, "it is silent", self.now)

    def fail(self, name: UpstreamName) -> None:
        """Requests to `name` fail until it is ejected for a time, base-only or overriding ones."""
        wanted = only_base() if name is BASE else need()
        places = self.fill(wanted, self.dispatcher.settings.health.passive_failures)
        assert {place.upstream for place in places} == {name}
        for place in places:
            self.end(place, Evidence.BAD)
