"""A controller asked as its dispatcher asks it, in one line."""

from typing import NamedTuple

from proxy.core.modes import Controller, Switch


class Load(NamedTuple):
    """What is in flight, and who is just arriving; sequences."""

    in_flight: int
    arriving: int = 0
    work: float = 0.0
    """Output tokens that those who arrive are expected to ask for."""


class Spec(NamedTuple):
    """What the controller is told of the speculative server."""

    usable: bool
    cap: int | None
    """Sequences; None for no cap."""


def ask(controller: Controller, load: Load, spec: Spec, now: float) -> Switch | None:
    """Tell it of `spec`, and let it decide."""
    controller.server(usable=spec.usable, cap=spec.cap)
    return controller.step(load.in_flight, load.arriving, load.work, now)
