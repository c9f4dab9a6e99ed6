"""Our refusals for want of a place, in words that say why, with counts."""

from collections.abc import Iterable

from proxy.core.inflight import InFlight
from proxy.core.places import Settings
from proxy.core.route import Need
from proxy.core.upstream import Upstream
from proxy.errors import Ineligible, NoUpstream, Overloaded, QueueTimeout

RETRY_AFTER_BUSY = 1
"""Seconds: room comes with the next request that ends."""
RETRY_AFTER_DOWN = 5
"""Seconds: about what an engine needs to be seen as back."""


def too_heavy(need: Need, settings: Settings) -> Overloaded:
    """More than may ever be in flight; waiting would not help."""
    return Overloaded(
        f"this request counts as {need.weight} sequences, "
        f"{settings.max_in_flight} are allowed at a time"
    )


def room_full(waiting: int, counts: InFlight, settings: Settings) -> Overloaded:
    """Nobody more may wait."""
    load = _load(waiting, counts, settings)
    return Overloaded(f"the waiting room is full: {load}", retry_after=RETRY_AFTER_BUSY)


def waited_too_long(waiting: int, counts: InFlight, settings: Settings) -> QueueTimeout:
    """No place within `queue_timeout`."""
    load = _load(waiting, counts, settings)
    why = f"no place came free within {settings.queue_timeout:g} s: {load}"
    return QueueTimeout(why, retry_after=RETRY_AFTER_BUSY)


def nobody_usable(upstreams: Iterable[Upstream], settings: Settings) -> NoUpstream:
    """Nothing to send it to for `wait_for_upstream`."""
    seconds = settings.wait_for_upstream
    why = f"no upstream was usable for {seconds:g} s: {_states(upstreams)}"
    return NoUpstream(why, retry_after=RETRY_AFTER_DOWN)


def base_unusable(need: Need, upstreams: Iterable[Upstream]) -> Ineligible:
    """Only base may serve it, and cannot."""
    rule = need.eligibility.rule
    why = f"only base may serve this request ({rule}): {_states(upstreams)}"
    return Ineligible(why, retry_after=RETRY_AFTER_DOWN)


def _load(waiting: int, counts: InFlight, settings: Settings) -> str:
    return (
        f"{waiting} of {settings.queue_size} waiting, "
        f"{counts.spec} sequences in flight on spec and {counts.base} on base, "
        f"{settings.max_in_flight} allowed"
    )


def _states(upstreams: Iterable[Upstream]) -> str:
    return ", ".join(f"{each.name} is {each}" for each in upstreams)
