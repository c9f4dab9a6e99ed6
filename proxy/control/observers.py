"""Several observers as one: whoever tells something tells it once."""

from proxy.core.modes import Switch
from proxy.core.observer import Observer, Record
from proxy.core.words import EjectionCause, Health, RetryCause, UpstreamName


class Deaf:
    """An observer that hears nothing; who listens to some things only adds these to it."""

    def started(self) -> None:
        """Not heard."""

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Not heard."""

    def retried(self, cause: RetryCause) -> None:
        """Not heard."""

    def ended(self, record: Record) -> None:
        """Not heard."""

    def switched(self, switch: Switch) -> None:
        """Not heard."""

    def wanted(self, switch: Switch) -> None:
        """Not heard."""

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """Not heard."""

    def held(self, seconds: float) -> None:
        """Not heard."""

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Not heard."""


class Observers:
    """Tells each of `observers` what it is told, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.started()

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.decided(upstream, reason)

    def ended(self, record: Record) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.ended(record)

    def retried(self, cause: RetryCause) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.retried(cause)

    def switched(self, switch: Switch) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.switched(switch)

    def wanted(self, switch: Switch) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.wanted(switch)

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.calibration_checked(faults)

    def held(self, seconds: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.held(seconds)

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.health_changed(upstream, health, cause, detail)
