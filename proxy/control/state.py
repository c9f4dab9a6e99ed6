"""The state of the pair as /admin/state shows it: values only, no secret, unknown is null."""

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from proxy.calibration import Calibration, VerdictKind
from proxy.control.engine import Findings
from proxy.core.dispatch import CONFIGURED, Dispatcher
from proxy.core.places import Settings
from proxy.core.words import (
    AdminState,
    Control,
    EjectionCause,
    Health,
    SwitchReason,
    Topology,
    UpstreamName,
)

Number = float | Literal["Infinity"] | None
"""JSON has no infinity, and null is taken: it says that a number is unknown."""


class Status(BaseModel):
    """Whether specswitch can serve."""

    status: Literal["ok", "no usable upstream", "draining"]


class Crossover(BaseModel):
    """Where both servers give the same; null where unknown."""

    in_flight: Number
    tokens_per_second: Number


class PerUpstream(BaseModel):
    """A count for each upstream."""

    spec: int
    base: int


class Offered(BaseModel):
    """Offered work, output tokens/s, over two windows; null where unknown."""

    fast: float | None
    slow: float | None


class UpstreamState(BaseModel):
    """What is known of an upstream; null where unknown."""

    url: str
    admin_state: AdminState
    health: Health
    cause: EjectionCause | None
    faults: list[str]
    """Why it is misconfigured."""
    probe_fault: str | None
    """What was wrong with the last probe."""
    cap: int | None
    running: int | None
    waiting: int | None
    acceptance_length: float | None
    signal_age: float | None
    version: str | None


class Drifts(BaseModel):
    """Time per output token now over that when calibrated; null before enough is seen."""

    spec: float | None
    base: float | None


class CalibrationState(BaseModel):
    """The calibration file."""

    created: datetime
    verdict: VerdictKind
    sentence: str
    valid: bool
    """Whether it is of these servers."""
    faults: list[str]
    """In what they are not."""
    drift: Drifts


class State(BaseModel):
    """The pair, now; times in seconds, counts in sequences unless a name says otherwise."""

    mode: UpstreamName
    mode_wanted: UpstreamName
    mode_reason: SwitchReason
    topology: Topology
    control: Control
    control_set_by: str
    control_set_at: datetime
    crossover: Crossover
    gate: Number
    """At or below this on average, speculation may return."""
    in_flight: PerUpstream
    average_in_flight: float
    queue_depth: int
    """Requests."""
    offered: Offered
    upstreams: dict[UpstreamName, UpstreamState]
    calibration: CalibrationState | None
    """null where there is no file, or N* is set by hand."""
    draining: bool
    version: str
    started: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of an upstream beside the pair's own picture."""

    url: str
    findings: Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What does not change while this process runs."""

    version: str
    started: datetime
    """The time of day, with its zone."""


class Pair:
    """What the admin routes look at and change."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        facts: Facts,
        known: Callable[[], Mapping[UpstreamName, Known]],
        *,
        calibration: Callable[[], Calibration | None],
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self.calibration = calibration
        self.dispatcher = dispatcher
        self.facts = facts
        self.known = known
        self.clock = clock
        self.wall = wall
        self.control_set_at = facts.started

    def set_control(self, control: Control, *, by: str) -> None:
        """The operator, or the configuration, says `control`."""
        self.control_set_at = self.wall()
        self.dispatcher.set_control(control, by=by, now=self.clock())

    def apply(
        self, settings: Settings, *, renewed: AbstractSet[UpstreamName], control: Control
    ) -> None:
        """Go by another configuration; its `control` counts where no operator has spoken."""
        dispatcher = self.dispatcher
        if dispatcher.control_set_by != CONFIGURED:
            control = dispatcher.control
        elif control is not dispatcher.control:
            self.control_set_at = self.wall()
        dispatcher.apply(settings, renewed=renewed, control=control, now=self.clock())

    def status(self) -> Status:
        """Whether we can serve."""
        if self.dispatcher.draining:
            return Status(status="draining")
        return Status(status="ok" if self.dispatcher.usable else "no usable upstream")

    def state(self) -> State:
        """Everything, now."""
        dispatcher, now = self.dispatcher, self.clock()
        controller = dispatcher.controller
        thresholds = controller.thresholds
        in_flight = dispatcher.in_flight
        crossover, rate = thresholds.crossover, thresholds.crossover_rate
        counted = dispatcher.lengths.output_tokens is not None
        return State(
            mode=dispatcher.mode,
            mode_wanted=dispatcher.controller.mode,
            mode_reason=dispatcher.mode_reason,
            topology=thresholds.topology,
            control=dispatcher.control,
            control_set_by=dispatcher.control_set_by,
            control_set_at=self.control_set_at,
            crossover=Crossover(
                in_flight=None if crossover is None else _number(crossover),
                tokens_per_second=None if rate is None else _number(rate),
            ),
            gate=None if crossover is None else _number(controller.gate(dispatcher.spec.cap)),
            in_flight=PerUpstream(spec=in_flight.spec, base=in_flight.base),
            average_in_flight=dispatcher.controller.average(now),
            queue_depth=len(dispatcher.room),
            offered=Offered(
                fast=controller.offered_fast(now) if counted else None,
                slow=controller.offered_slow(now) if counted else None,
            ),
            upstreams={name: self._upstream(name, now) for name in UpstreamName},
            calibration=self._calibration(),
            draining=dispatcher.draining,
            version=self.facts.version,
            started=self.facts.started,
        )

    def _calibration(self) -> CalibrationState | None:
        calibration, dispatcher = self.calibration(), self.dispatcher
        if calibration is None:
            return None
        drift = {name: watch.ratio for name, watch in dispatcher.drift.items()}
        return CalibrationState(
            created=calibration.created,
            verdict=calibration.verdict.kind,
            sentence=calibration.verdict.sentence,
            valid=not dispatcher.calibration_faults,
            faults=list(dispatcher.calibration_faults),
            drift=Drifts(spec=drift.get(UpstreamName.SPEC), base=drift.get(UpstreamName.BASE)),
        )

    def _upstream(self, name: UpstreamName, now: float) -> UpstreamState:
        upstream, known = self.dispatcher.upstream(name), self.known()[name]
        findings = known.findings
        reading = findings.reading
        load = reading.load if reading is not None and reading.fresh(now) else None
        return UpstreamState(
            url=known.url,
            admin_state=upstream.admin_state,
            health=upstream.health.state,
            cause=upstream.health.cause,
            faults=list(upstream.faults),
            probe_fault=findings.fault,
            cap=upstream.cap,
            running=None if load is None else load.running,
            waiting=None if load is None else load.waiting,
            acceptance_length=None if load is None else findings.acceptance_length,
            signal_age=None if reading is None else reading.age(now),
            version=None if upstream.identity is None else upstream.identity.version,
        )


def day(nanoseconds: int) -> datetime:
    """The time of day so long after 1970: for people, never for durations."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def _number(value: float) -> Number:
    return "Infinity" if value == math.inf else value
