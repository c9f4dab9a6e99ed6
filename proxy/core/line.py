"""Those who wait for a place: who may, and who waits no longer.

The waiting room keeps their order; who of them is given a place is decided where places are given.
"""

from collections.abc import Set as AbstractSet
from typing import TypeGuard

from proxy.core.eligibility import Verdict
from proxy.core.inflight import InFlight
from proxy.core.places import Settings, Ticket, Waiter
from proxy.core.refusals import base_unusable, nobody_usable, room_full, waited_too_long
from proxy.core.route import Decision, Need, Never, Wait, Why
from proxy.core.servers import Servers
from proxy.core.waiting import WaitingRoom
from proxy.core.words import UpstreamName
from proxy.errors import Refusal


class Line:
    """The waiting room, and what those in it wait for."""

    def __init__(self, settings: Settings, servers: Servers, counts: InFlight) -> None:
        self.room: WaitingRoom[Ticket] = WaitingRoom(settings.queue_size)
        self.awaited: set[UpstreamName] = set()
        """Whose places those in the waiting room wait for.

        Not those who wait for room over both: they are passed over by whoever is lighter, or one
        request of very many sequences would hold up all others.
        """
        self._settings = settings
        self._servers = servers
        self._counts = counts

    def set_to(self, settings: Settings) -> None:
        """Go by `settings`; who stands there keeps his stand."""
        self._settings = settings
        self.room.size = settings.queue_size

    def enter(
        self, need: Need, choice: Decision | Wait | Never, waiter: Waiter, now: float
    ) -> Ticket | Refusal:
        """No place now: a stand at the end, if it may wait."""
        if isinstance(choice, Never):
            return base_unusable(need, self._servers.both)
        why = choice.why if isinstance(choice, Wait) else Why.FULL
        refusal = self._refuse(need, why, now)
        if refusal is not None:
            return refusal
        ticket = Ticket(need, waiter, now)
        self.room.enter(ticket)
        if choice.upstream is not None:
            self.awaited.add(choice.upstream)
        return ticket

    def enter_again(
        self, need: Need, found_gone: UpstreamName, waiter: Waiter, arrived: float
    ) -> Ticket | None:
        """A stand in front, for a place at the other one than `found_gone`; None if it may not."""
        other = self._servers.upstream(found_gone.other)
        only_base = need.eligibility.verdict is Verdict.BASE
        barred = need.weight == 0 or (only_base and other is self._servers.spec)
        if barred or not other.in_service or self.room.full or self._settings.queue_timeout <= 0:
            return None
        ticket = Ticket(need._replace(avoid=found_gone), waiter, arrived, again=True)
        self.room.enter(ticket, again=True)
        self.awaited.add(other.name)
        return ticket

    def lift(self, name: UpstreamName) -> None:
        """`name` is there again: who found nobody there may try it, and stays in front."""
        for ticket in self.room:
            if ticket.need.avoid is name:
                self.room.leave(ticket)
                ticket.lift()
                self.room.enter(ticket, again=True)

    def expire(self, now: float) -> bool:
        """Refuse those whose patience, or ours, has run out; whether there were any."""
        settings, servers = self._settings, self._servers
        none = now - servers.none_since >= settings.wait_for_upstream
        no_base = now - servers.base_gone_since >= settings.wait_for_upstream
        told = False
        for ticket in self.room:
            refusal: Refusal | None = None
            if no_base and ticket.need.eligibility.verdict is Verdict.BASE:
                refusal = base_unusable(ticket.need, servers.both)
            elif none:
                refusal = nobody_usable(servers.both, settings)
            elif now - ticket.arrived >= settings.queue_timeout:
                refusal = waited_too_long(len(self.room), self._counts, settings)
            if refusal is not None and self.room.leave(ticket):
                told = True
                ticket.waiter.refused(refusal)
        return told

    def _refuse(self, need: Need, why: Why, now: float) -> Refusal | None:
        settings, servers = self._settings, self._servers
        patience = settings.wait_for_upstream
        if why is Why.NO_UPSTREAM and now - servers.none_since >= patience:
            return nobody_usable(servers.both, settings)
        if why is Why.INELIGIBLE and now - servers.base_gone_since >= patience:
            return base_unusable(need, servers.both)
        if settings.queue_timeout <= 0:
            return waited_too_long(len(self.room), self._counts, settings)
        if self.room.full:
            return room_full(len(self.room), self._counts, settings)
        return None


def is_open(
    choice: Decision | Wait | Never, need: Need, awaited: AbstractSet[UpstreamName]
) -> TypeGuard[Decision]:
    """Whether `choice` is a place that nobody in front waits for; what is no load takes none."""
    if not isinstance(choice, Decision):
        return False
    return need.weight == 0 or choice.upstream not in awaited
