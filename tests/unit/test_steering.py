"""The mode, and the picture of the pair: what they follow, and when."""

from dataclasses import replace

import pytest

from proxy.core.inflight import InFlight
from proxy.core.modes import Controller, Switch
from proxy.core.places import Settings
from proxy.core.servers import Servers
from proxy.core.steering import Steering
from proxy.core.words import AdminState, Control, SwitchReason, Topology, UpstreamName
from tests.harness.pair import BASE, IDENTITIES, SETTINGS, SPEC, Recorder


class Scene:
    """Two servers that are well, and the mode on spec at 10.0."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.told = Recorder()
        self.counts = InFlight()
        self.servers = Servers(settings, self.told, now=0.0)
        self.controller = Controller(settings.thresholds, now=0.0)
        self.it = Steering(self.servers, self.controller, self.counts, self.told, now=0.0)
        for name in UpstreamName:
            self.servers.probe_succeeded(name, IDENTITIES[name], 0.0)
        self.change(10.0)
        self.told.switches.clear()

    def change(self, now: float) -> None:
        """Something has changed."""
        self.servers.look(now)
        self.it.follow(now)


def test_it_follows_the_controller() -> None:
    """With its reason, and what is in flight with those who arrive."""
    scene = Scene()
    assert (scene.it.mode, scene.it.reason) == (SPEC, SwitchReason.CALM)
    assert not scene.it.step(4, 0.0, 11.0)
    assert scene.it.step(5, 0.0, 12.0)
    assert (scene.it.mode, scene.it.reason) == (BASE, SwitchReason.IN_FLIGHT)
    assert scene.told.switches == [Switch(BASE, SwitchReason.IN_FLIGHT, 12.0, 5)]
    assert scene.told.wishes == []


@pytest.mark.parametrize(("word", "mode"), [("spec", SPEC), ("base", BASE), ("observe", BASE)])
def test_it_follows_the_operator(word: str, mode: UpstreamName) -> None:
    """Whatever the controller wants, of which one is told."""
    scene = Scene()
    scene.it.set_control(Control(word), 11.0)
    scene.change(11.0)
    assert (scene.it.mode, scene.it.reason) == (mode, SwitchReason.CONTROL)
    assert scene.it.step(5, 0.0, 12.0)
    assert (scene.it.mode, scene.it.pair.control) == (mode, Control(word))
    wanted = [Switch(BASE, SwitchReason.IN_FLIGHT, 12.0, 5)]
    assert scene.told.wishes == (wanted if mode is SPEC else [])


def test_it_follows_what_is_in_service() -> None:
    """One that is out of service is no mode, unless both are."""
    scene = Scene()
    scene.servers.spec.admin_state = AdminState.DRAIN
    scene.change(11.0)
    assert (scene.it.mode, scene.it.reason) == (BASE, SwitchReason.HEALTH)
    scene.it.set_control(Control.SPEC, 12.0)
    scene.change(12.0)
    assert (scene.it.mode, scene.it.reason) == (BASE, SwitchReason.HEALTH)
    scene.servers.base.admin_state = AdminState.DRAIN
    scene.change(13.0)
    assert (scene.it.mode, scene.it.reason) == (SPEC, SwitchReason.CONTROL)


def test_the_seconds_of_each_mode() -> None:
    """What runs counts until now."""
    scene = Scene()
    scene.it.step(5, 0.0, 15.0)
    assert [scene.it.seconds(mode, 17.0) for mode in (SPEC, BASE)] == [5.0, 12.0]


def test_that_it_is_held_is_told_once() -> None:
    """When the hold begins, with its length."""
    thresholds = replace(SETTINGS.thresholds, flap_limit=2, flap_window=60.0, flap_hold=30.0)
    scene = Scene(replace(SETTINGS, thresholds=thresholds))
    scene.it.step(5, 0.0, 15.0)
    for now in (16.0, 26.0, 27.0):
        assert not scene.it.step(0, 0.0, now)
    assert scene.told.holds == [30.0]
    assert scene.it.reason is SwitchReason.FLAP


def test_the_picture_is_brought_up_to_date() -> None:
    """When whoever has changed something says so."""
    scene = Scene()
    picture = scene.it.pair
    assert (picture.base.usable, picture.base_in_maint, picture.control) == (True, False, "auto")
    scene.servers.base.admin_state = AdminState.MAINT
    scene.it.set_control(Control.OBSERVE, 11.0)
    scene.change(11.0)
    assert scene.it.pair is picture
    assert (picture.base.usable, picture.base_in_maint, picture.control) == (False, True, "observe")


@pytest.mark.parametrize(
    ("topology", "crossover", "spill"),
    [
        (Topology.SHARED, 4.7, None),
        (Topology.SEPARATE, None, None),
        (Topology.SEPARATE, 4.7, 4),
        (Topology.SEPARATE, float("inf"), float("inf")),
    ],
)
def test_on_gpus_of_its_own_spec_has_its_fill(
    topology: Topology, crossover: float | None, spill: float | None
) -> None:
    """Whole sequences, at most N*; on shared GPUs nothing spills."""
    thresholds = replace(SETTINGS.thresholds, topology=topology, crossover=crossover)
    picture = Scene(replace(SETTINGS, thresholds=thresholds)).it.pair
    assert (picture.spill, picture.calibrated) == (spill, crossover is not None)
