"""Our own policy in a simulation: the proxy's dispatcher, unchanged, as a router.

It is told what the proxy would tell it: each arrival, each end with its output tokens, and each
second. Both servers are up, of one model, and any of them may serve any request, so that what is
left is the decision by load.
"""

from proxy.core.dispatch import Dispatcher
from proxy.core.eligibility import Eligibility, Rule, Rules, Verdict
from proxy.core.health import HealthRules
from proxy.core.identity import Identity
from proxy.core.inflight import Lease
from proxy.core.modes import Switch, Thresholds
from proxy.core.observer import Record
from proxy.core.places import Answer, Evidence, Place, Settings
from proxy.core.route import Need
from proxy.core.words import EjectionCause, Health, RetryCause, UpstreamName
from proxy.errors import Refusal
from proxy.sim.run import Change, Submit

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

_BOUNDS = frozenset({Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS})

_PLENTY = 1 << 30
"""Sequences or seconds; what a simulation must not be cut short by."""

_NEED = Need(1, Eligibility(Verdict.ANY, None))
"""One sequence that any server may have."""

_IDENTITIES = {
    SPEC: Identity(known=True, speculative_algorithm="EAGLE3", model="simulated"),
    BASE: Identity(known=True, model="simulated"),
}


def settings(thresholds: Thresholds, *, spec_cap: int, expected_tokens: float) -> Settings:
    """A pair that nobody's health, caps or limits stand in the way of, but spec's own cap."""
    return Settings(
        thresholds=thresholds,
        made_for={},
        curves={},
        expected_tokens=expected_tokens,
        health=HealthRules(fall=3, rise=1, passive_failures=5, stalled=_PLENTY, ejection=5.0),
        rules=Rules(
            verdicts={rule: Verdict.ANY for rule in Rule if rule not in _BOUNDS},
            short_output_tokens=0,
            max_spec_prompt_tokens=0,
        ),
        spec_cap=spec_cap,
        base_cap=0,
        max_in_flight=_PLENTY,
        queue_size=_PLENTY,
        queue_timeout=_PLENTY,
        wait_for_upstream=_PLENTY,
    )


class Switching:
    """The dispatcher at work."""

    ticks = True

    def __init__(self, settings: Settings, submit: Submit, *, now: float) -> None:
        self.changes: list[Change] = []
        self.dispatcher = Dispatcher(settings, self, now=now)
        self._submit = submit
        self._leases: dict[int, Lease] = {}
        for name in (BASE, SPEC):
            self.dispatcher.probe_succeeded(name, _IDENTITIES[name], now)
        self.changes.clear()  # that it begins with speculation is no change of mind

    def arrive(self, key: int, now: float) -> None:
        """Ask for a place.

        Raises:
            RuntimeError: there is none, and there will be none.
        """
        answer = self.dispatcher.arrive(_NEED, _Waiter(self, key), now)
        if isinstance(answer, Place):
            self.place(key, answer)
        elif isinstance(answer, Refusal):
            raise _refused(key, answer)

    def place(self, key: int, place: Place) -> None:
        """Request `key` has a place: it goes there."""
        self._leases[key] = place.lease
        self._submit(key, place.upstream)

    def end(self, key: int, output_tokens: int, now: float) -> None:
        """Give the place back."""
        self.dispatcher.end(self._leases.pop(key), Evidence.GOOD, now, Answer(output_tokens, None))

    def tick(self, now: float) -> None:
        """Let the dispatcher look."""
        self.dispatcher.tick(now)

    # What the dispatcher tells ------------------------------------------------------------------

    def switched(self, switch: Switch) -> None:
        """Keep it."""
        self.changes.append(Change(switch.at, switch.to))

    def started(self) -> None:
        """Of no interest here."""

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Of no interest here."""

    def retried(self, cause: RetryCause) -> None:
        """Of no interest here."""

    def ended(self, record: Record) -> None:
        """Of no interest here."""

    def wanted(self, switch: Switch) -> None:
        """Of no interest here."""

    def held(self, seconds: float) -> None:
        """Of no interest here."""

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """Of no interest here."""

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Of no interest here."""


class _Waiter:
    """A request in the dispatcher's waiting room."""

    __slots__ = ("_key", "_switching")

    def __init__(self, switching: Switching, key: int) -> None:
        self._switching = switching
        self._key = key

    def placed(self, place: Place) -> None:
        """Go there."""
        self._switching.place(self._key, place)

    def refused(self, refusal: Refusal) -> None:
        """Nothing here makes the dispatcher do so.

        Raises:
            RuntimeError: always.
        """
        raise _refused(self._key, refusal)


def _refused(key: int, refusal: Refusal) -> RuntimeError:
    return RuntimeError(f"the dispatcher refused request {key}: {refusal.message}")
