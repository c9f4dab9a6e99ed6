"""Where new generation goes: the controller's mode, unless the operator or a server says otherwise.

It also keeps the picture that each request is decided by, and brings it up to date.
"""

from dataclasses import replace
from math import floor, inf
from typing import Final

from proxy.core.inflight import InFlight
from proxy.core.modes import Controller, Switch, Thresholds
from proxy.core.observer import Observer
from proxy.core.route import Pair
from proxy.core.servers import Servers
from proxy.core.words import AdminState, Control, SwitchReason, Topology, UpstreamName

SPEC: Final = UpstreamName.SPEC
BASE: Final = UpstreamName.BASE


class Steering:
    """The mode, why it is what it is, and the picture of the pair that goes with it."""

    def __init__(
        self,
        servers: Servers,
        controller: Controller,
        counts: InFlight,
        observer: Observer,
        *,
        now: float,
    ) -> None:
        self.control = Control.AUTO
        self.mode = BASE
        self.by_count = False
        """Whether the average of what is in flight decides, since λ* is unknown."""
        self.pair = Pair(
            spec=servers.spec.view,
            base=servers.base.view,
            base_in_maint=False,
            control=self.control,
            mode=controller.mode,
            calibrated=False,
            places=0,
            spill=None,
        )
        """What a decision is made from, but for the counts and the controller's mode."""
        self._servers = servers
        self._controller = controller
        self._counts = counts
        self._observer = observer
        self._seconds = {SPEC: 0.0, BASE: 0.0}
        self._since = now
        self._held_until = -inf
        """Until when it was told last that the mode is held on base."""
        self._look()

    @property
    def reason(self) -> SwitchReason:
        """Why the mode is what it is."""
        return self._wanted(self._controller.reason)[1]

    def seconds(self, mode: UpstreamName, now: float) -> float:
        """Spent in `mode` until `now`."""
        running = now - self._since if mode is self.mode else 0.0
        return self._seconds[mode] + running

    def set_control(self, control: Control, now: float) -> None:
        """The operator's override of the mode; `follow` is to come after it."""
        self.control = control
        self._settle(SwitchReason.CONTROL, self._counts.total, now)

    def go_by(self, thresholds: Thresholds, now: float) -> None:
        """Go by `thresholds`, if both servers are those that they were measured on, else by none.

        `follow` is to come after it.
        """
        if self._servers.calibration_faults:
            thresholds = replace(thresholds, crossover=None, crossover_rate=None)
        self._controller.set_to(thresholds, now)

    def follow(self, now: float) -> None:
        """Bring the picture and the mode in line with whatever has changed.

        Of the servers, the thresholds or what the operator says; of the servers once they have
        looked themselves.
        """
        self._look()
        if not self.step(0, 0.0, now):
            self._settle(self._controller.reason, self._counts.total, now)

    def step(self, arriving: int, work: float, now: float) -> bool:
        """Let the controller look; whether it has changed its mind.

        `arriving` are sequences, `work` what they offer if it was not counted before.
        """
        controller, in_flight = self._controller, self._counts.total
        switch = controller.step(in_flight, arriving, work, now)
        if controller.held_until > self._held_until:
            self._held_until = controller.held_until
            self._observer.held(self._held_until - now)
        if switch is None:
            return False
        self._settle(switch.reason, in_flight + arriving, now)
        if self.mode is not switch.to:
            self._observer.wanted(switch)
        return True

    def _look(self) -> None:
        pair, spec, base = self.pair, self._servers.spec, self._servers.base
        pair.spec, pair.base = spec.view, base.view
        pair.base_in_maint = base.admin_state is AdminState.MAINT
        pair.control = self.control
        thresholds = self._controller.thresholds
        pair.calibrated = thresholds.crossover is not None
        pair.spill = _spill(thresholds)
        self.by_count = thresholds.crossover_rate is None
        self._controller.server(usable=spec.in_service, cap=spec.cap)

    def _settle(self, reason: SwitchReason, in_flight: int, now: float) -> None:
        """Let the mode follow the operator, the controller and what is in service."""
        mode, reason = self._wanted(reason)
        if mode is self.mode:
            return
        self._seconds[self.mode] += now - self._since
        self._since = now
        self.mode = mode
        self._observer.switched(Switch(mode, reason, now, in_flight))

    def _wanted(self, reason: SwitchReason) -> tuple[UpstreamName, SwitchReason]:
        """The mode that there should be and why, where the controller's reason is `reason`."""
        mode, upstream = self._controller.mode, self._servers.upstream
        if self.control is not Control.AUTO:
            mode = SPEC if self.control is Control.SPEC else BASE
            reason = SwitchReason.CONTROL
        if not upstream(mode).in_service and upstream(mode.other).in_service:
            mode, reason = mode.other, SwitchReason.HEALTH
        return mode, reason


def _spill(thresholds: Thresholds) -> float | None:
    """Sequences that spec is best for, on GPUs of its own; None where it shares them."""
    if thresholds.topology is Topology.SHARED or thresholds.crossover is None:
        return None
    return inf if thresholds.crossover == inf else floor(thresholds.crossover)
