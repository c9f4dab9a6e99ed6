"""The decision: one request, one picture of the pair, one answer with its reason.

Order matters and is the contract (docs/architecture.md): rules that only base can satisfy, then
what is usable, then the operator's control, the client's override, preferences, the mode, the cap.
"""

from enum import StrEnum
from typing import NamedTuple

from proxy.core.eligibility import Eligibility, Rule, Verdict
from proxy.core.words import Control, UpstreamName

SPEC = UpstreamName.SPEC
BASE = UpstreamName.BASE


class Reason(StrEnum):
    """Why this upstream; eligibility reasons carry their rule (`eligibility_reason`)."""

    CONTROL = "control"
    HEALTH = "health"
    DRAIN = "drain"
    OVERRIDE = "override"
    MODE = "mode"
    FULL = "full"
    SPILL = "spill"
    UNCALIBRATED = "uncalibrated"
    RETRY = "retry"


_ELIGIBILITY = {rule: f"eligibility:{rule}" for rule in Rule}
REASONS: tuple[str, ...] = (*Reason, *_ELIGIBILITY.values())
"""Every value that a reason can have."""


class Need(NamedTuple):
    """What the decision needs to know of a request."""

    weight: int
    """Sequences; 0 for work that is not load."""
    eligibility: Eligibility
    override: UpstreamName | None = None
    """The upstream that the client asked for, where that is allowed."""
    base_first: bool = False
    """Model paths: any server can answer, base first."""
    avoid: UpstreamName | None = None
    """The upstream that it has found not to be there; only load is asked for with it."""


class View(NamedTuple):
    """What the decision needs to know of an upstream."""

    usable: bool
    why_not: Reason
    """`drain` if the operator took it out, else `health`."""
    in_flight: int
    """Sequences."""
    cap: int | None
    """Sequences; None for no cap."""
    trial: bool = False
    """Whether it is in probation, and its one request is not out."""


class Pair(NamedTuple):
    """The picture that a decision is made from."""

    spec: View
    base: View
    base_in_maint: bool
    control: Control
    mode: UpstreamName
    calibrated: bool
    places: int
    """Sequences that may still be admitted over both upstreams."""
    spill: float | None
    """Sequences on spec above which the rest goes to base, on GPUs of its own; None: shared."""


class Decision(NamedTuple):
    """Where, and why."""

    upstream: UpstreamName
    reason: str


class Why(StrEnum):
    """What a request waits for."""

    FULL = "full"
    NO_UPSTREAM = "no_upstream"
    INELIGIBLE = "ineligible"


class Wait(NamedTuple):
    """No place now. `upstream` is whose place it waits for, None for any."""

    why: Why
    upstream: UpstreamName | None


class Never(NamedTuple):
    """No place now or later: base may not serve and nothing else can."""

    rule: Rule


def decide(need: Need, pair: Pair) -> Decision | Wait | Never:
    """Return where `need` goes in this `pair`, or what it waits for."""
    if need.base_first:
        return _any_server(pair)
    if need.eligibility.verdict is Verdict.BASE:
        return _base_only(need, pair)
    spec = pair.spec.usable and need.avoid is not SPEC
    base = pair.base.usable and need.avoid is not BASE
    if not spec and not base:
        return Wait(Why.NO_UPSTREAM, None)
    if not _is_admitted(need, pair):
        return Wait(Why.FULL, None)
    if not spec:
        return _placed(need, BASE, pair.base, _why_not(need, pair.spec))
    if not base:
        return _placed(need, SPEC, pair.spec, _why_not(need, pair.base))
    return _either(need, pair)


def _either(need: Need, pair: Pair) -> Decision | Wait:
    """With both usable: where it should go, and the cap."""
    name, reason = _wish(need, pair)
    if name is SPEC and not _fits(need, pair.spec):
        return _placed(need, BASE, pair.base, Reason.FULL)
    if reason == Reason.MODE and pair.spill is not None:
        return _spilled(need, pair, pair.spill)
    return _placed(need, name, pair.spec if name is SPEC else pair.base, reason)


def _spilled(need: Need, pair: Pair, most: float) -> Decision | Wait:
    """On GPUs of their own both serve: spec as many as it is best for, base the rest."""
    if pair.mode is SPEC and pair.spec.in_flight + need.weight <= most:
        return Decision(SPEC, Reason.MODE)
    if not has_room(need, pair.base) and _fits(need, pair.spec):
        return Decision(SPEC, Reason.FULL)  # it takes nothing from a base that is full
    reason = Reason.SPILL if pair.mode is SPEC else Reason.MODE
    return _placed(need, BASE, pair.base, reason)


def _why_not(need: Need, view: View) -> Reason:
    """Why the other one has to serve it."""
    return view.why_not if need.avoid is None else Reason.RETRY


def _any_server(pair: Pair) -> Decision | Wait:
    if pair.base.usable:
        return Decision(BASE, Reason.MODE)
    if pair.spec.usable:
        return Decision(SPEC, pair.base.why_not)
    return Wait(Why.NO_UPSTREAM, None)


def _base_only(need: Need, pair: Pair) -> Decision | Wait | Never:
    rule = need.eligibility.rule
    assert rule is not None  # noqa: S101 - a verdict other than `any` names its rule
    if pair.base_in_maint:
        return Never(rule)
    if not pair.base.usable:
        return Wait(Why.INELIGIBLE, BASE)
    if not _is_admitted(need, pair):
        return Wait(Why.FULL, None)
    return _placed(need, BASE, pair.base, _ELIGIBILITY[rule])


def _wish(need: Need, pair: Pair) -> tuple[UpstreamName, str]:
    """Where it should go with both upstreams usable."""
    if pair.control is not Control.AUTO:
        return SPEC if pair.control is Control.SPEC else BASE, Reason.CONTROL
    if need.override is not None:
        return need.override, Reason.OVERRIDE
    if pair.base.trial:
        # While speculation serves, base would be tried by nobody, and be missing when load comes.
        return BASE, Reason.HEALTH
    rule = need.eligibility.rule
    if need.eligibility.verdict is Verdict.PREFER and rule is not None:
        return BASE, _ELIGIBILITY[rule]
    if not pair.calibrated:
        return BASE, Reason.UNCALIBRATED
    return pair.mode, Reason.MODE


def _is_admitted(need: Need, pair: Pair) -> bool:
    """Whether both upstreams together may have it; what is no load needs no place."""
    return need.weight == 0 or need.weight <= pair.places


def _placed(need: Need, name: UpstreamName, view: View, reason: str) -> Decision | Wait:
    """At `name` if there is room; base full waits, and never overflows to spec."""
    return Decision(name, reason) if has_room(need, view) else Wait(Why.FULL, name)


def has_room(need: Need, view: View) -> bool:
    """Whether the upstream may have `need`.

    What is heavier than the whole cap would wait for ever; it may have an idle server to itself.
    """
    return _fits(need, view) or view.in_flight == 0


def _fits(need: Need, view: View) -> bool:
    """Whether `need` fits under the upstream's cap."""
    return view.cap is None or need.weight == 0 or view.in_flight + need.weight <= view.cap
