"""Several observers are told the same, in the order in which they were given."""

from dataclasses import dataclass

import pytest

from proxy.control.observers import Deaf, Observers
from proxy.core.modes import Switch
from proxy.core.observer import Observer, Record
from proxy.core.words import EjectionCause, Health, RetryCause, SwitchReason, UpstreamName

SWITCH = Switch(UpstreamName.BASE, SwitchReason.IN_FLIGHT, 1.0, 4)
RECORD = Record(request_id="r", endpoint="/generate", method="POST")


@dataclass
class Listener:
    """Keeps what it is told, under its name."""

    name: str
    told: list[tuple[object, ...]]

    def started(self) -> None:
        """Keep it."""
        self.told.append((self.name, "started"))

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Keep it."""
        self.told.append((self.name, "decided", upstream, reason))

    def retried(self, cause: RetryCause) -> None:
        """Keep it."""
        self.told.append((self.name, "retried", cause))

    def ended(self, record: Record) -> None:
        """Keep it."""
        self.told.append((self.name, "ended", record))

    def switched(self, switch: Switch) -> None:
        """Keep it."""
        self.told.append((self.name, "switched", switch))

    def wanted(self, switch: Switch) -> None:
        """Keep it."""
        self.told.append((self.name, "wanted", switch))

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """Keep it."""
        self.told.append((self.name, "calibration_checked", faults))

    def held(self, seconds: float) -> None:
        """Keep it."""
        self.told.append((self.name, "held", seconds))

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Keep it."""
        self.told.append((self.name, "health_changed", upstream, health, cause, detail))


def test_all_are_told_everything_in_order() -> None:
    """Each thing that is told reaches each listener once, unchanged."""
    told: list[tuple[object, ...]] = []
    both = Observers(Listener("a", told), Listener("b", told))

    both.started()
    both.decided(UpstreamName.SPEC, "mode")
    both.retried(RetryCause.CONNECT)
    both.switched(SWITCH)
    both.wanted(SWITCH)
    both.health_changed(UpstreamName.SPEC, Health.EJECTED, EjectionCause.PROBE, "gone")
    both.calibration_checked(("other",))
    both.held(60.0)
    both.ended(RECORD)

    expected: list[tuple[object, ...]] = [
        ("started",),
        ("decided", UpstreamName.SPEC, "mode"),
        ("retried", RetryCause.CONNECT),
        ("switched", SWITCH),
        ("wanted", SWITCH),
        ("health_changed", UpstreamName.SPEC, Health.EJECTED, EjectionCause.PROBE, "gone"),
        ("calibration_checked", ("other",)),
        ("held", 60.0),
        ("ended", RECORD),
    ]
    assert told == [(name, *each) for each in expected for name in ("a", "b")]


def test_nobody_may_listen() -> None:
    """Without listeners telling is nothing."""
    Observers().started()


class Partly(Deaf):
    """Hears of two things."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def ended(self, record: Record) -> None:
        """Keep it."""
        self.told.append(record)

    def held(self, seconds: float) -> None:
        """Keep it."""
        self.told.append(seconds)


def tell_all(observer: Observer) -> None:
    """Tell everything that there is to tell, once."""
    observer.started()
    observer.decided(UpstreamName.SPEC, "mode")
    observer.retried(RetryCause.CONNECT)
    observer.switched(SWITCH)
    observer.wanted(SWITCH)
    observer.health_changed(UpstreamName.SPEC, Health.HEALTHY, None, "")
    observer.calibration_checked(())
    observer.held(60.0)
    observer.ended(RECORD)


@pytest.mark.interpreted("nobody can inherit from a compiled class")
def test_who_hears_some_things_hears_those() -> None:
    """The others of the row hear the rest, whatever their neighbours are deaf to."""
    told: list[tuple[object, ...]] = []
    partly = Partly()

    tell_all(Observers(Deaf(), partly, Listener("a", told)))

    assert partly.told == [60.0, RECORD]
    assert len(told) == 9
