"""The decision: one request, one picture of the pair, one answer with its reason.

Order matters and is the contract (docs/architecture.md): rules that only base can satisfy, then
what is usable, then the operator's control, the client's override, preferences, the mode, the cap.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from proxy.core.eligibility import Eligibility, Rule, Verdict
from proxy.core.words import Control, UpstreamName

SPEC: Final = UpstreamName.SPEC
BASE: Final = UpstreamName.BASE

_AUTO: Final = Control.AUTO
_ONLY_BASE: Final = Verdict.BASE
_ANYWHERE: Final = Verdict.ANY


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


_ELIGIBILITY: Final[Mapping[Rule, str]] = {rule: f"eligibility:{rule}" for rule in Rule}
REASONS: Final[tuple[str, ...]] = (*Reason, *_ELIGIBILITY.values())
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


class View:
    """What the decision needs to know of an upstream; kept, and brought up to date."""

    __slots__ = ("cap", "in_flight", "trial", "usable", "why_not")

    def __init__(
        self,
        *,
        usable: bool,
        why_not: Reason,
        in_flight: int,
        cap: int | None,
        trial: bool = False,
    ) -> None:
        self.usable = usable
        self.why_not = why_not
        """`drain` if the operator took it out, else `health`."""
        self.in_flight = in_flight
        """Sequences."""
        self.cap = cap
        """Sequences; None for no cap."""
        self.trial = trial
        """Whether it is in probation, and its one request is not out."""


class Pair:
    """The picture that a decision is made from; kept, and brought up to date."""

    __slots__ = (
        "base",
        "base_in_maint",
        "calibrated",
        "control",
        "mode",
        "places",
        "spec",
        "spill",
    )

    def __init__(  # noqa: PLR0913 - a picture has as many parts as the decision asks for
        self,
        *,
        spec: View,
        base: View,
        base_in_maint: bool,
        control: Control,
        mode: UpstreamName,
        calibrated: bool,
        places: int,
        spill: float | None,
    ) -> None:
        self.spec = spec
        self.base = base
        self.base_in_maint = base_in_maint
        self.control = control
        self.mode = mode
        self.calibrated = calibrated
        self.places = places
        """Sequences that may still be admitted over both upstreams."""
        self.spill = spill
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


_SPEC_BY_MODE: Final = Decision(SPEC, Reason.MODE)
_BASE_BY_MODE: Final = Decision(BASE, Reason.MODE)
_BY_CONTROL: Final = {
    control: Decision(SPEC if control is Control.SPEC else BASE, Reason.CONTROL)
    for control in Control
}
_BY_OVERRIDE: Final = {name: Decision(name, Reason.OVERRIDE) for name in UpstreamName}
_BY_RULE: Final = {rule: Decision(BASE, reason) for rule, reason in _ELIGIBILITY.items()}
_SPEC_FULL: Final = Decision(BASE, Reason.FULL)
_BASE_FULL: Final = Decision(SPEC, Reason.FULL)
_SPILLED: Final = Decision(BASE, Reason.SPILL)
_TRIED: Final = Decision(BASE, Reason.HEALTH)
_UNCALIBRATED: Final = Decision(BASE, Reason.UNCALIBRATED)
"""Made once: a request is decided many times more often than there are decisions."""


def decide(need: Need, pair: Pair) -> Decision | Wait | Never:
    """Return where `need` goes in this `pair`, or what it waits for."""
    if need.base_first:
        return _any_server(pair)
    if need.eligibility.verdict is _ONLY_BASE:
        return _base_only(need, pair)
    if need.avoid is not None or not (pair.spec.usable and pair.base.usable):
        return _one_at_most(need, pair)
    if need.weight > pair.places and need.weight:  # what is no load needs no place
        return Wait(Why.FULL, None)
    return _either(need, pair)


def _one_at_most(need: Need, pair: Pair) -> Decision | Wait:
    """With one usable, or none."""
    spec = pair.spec.usable and need.avoid is not SPEC
    base = pair.base.usable and need.avoid is not BASE
    if not spec and not base:
        return Wait(Why.NO_UPSTREAM, None)
    if not _is_admitted(need, pair):
        return Wait(Why.FULL, None)
    if spec:
        return _placed(need, Decision(SPEC, _why_not(need, pair.base)), pair.spec)
    return _placed(need, Decision(BASE, _why_not(need, pair.spec)), pair.base)


def _either(need: Need, pair: Pair) -> Decision | Wait:
    """With both usable: where it should go, and the cap."""
    wish = _wish(need, pair)
    if wish.upstream is SPEC and not _fits(need, pair.spec):
        return _placed(need, _SPEC_FULL, pair.base)
    if pair.spill is not None and wish.reason == Reason.MODE:
        return _spilled(need, pair, pair.spill)
    return wish if wish.upstream is SPEC else _placed(need, wish, pair.base)


def _spilled(need: Need, pair: Pair, most: float) -> Decision | Wait:
    """On GPUs of their own both serve: spec as many as it is best for, base the rest."""
    if pair.mode is SPEC and pair.spec.in_flight + need.weight <= most:
        return _SPEC_BY_MODE
    if not has_room(need, pair.base) and _fits(need, pair.spec):
        return _BASE_FULL  # it takes nothing from a base that is full
    return _placed(need, _SPILLED if pair.mode is SPEC else _BASE_BY_MODE, pair.base)


def _why_not(need: Need, view: View) -> Reason:
    """Why the other one has to serve it."""
    return view.why_not if need.avoid is None else Reason.RETRY


def _any_server(pair: Pair) -> Decision | Wait:
    if pair.base.usable:
        return _BASE_BY_MODE
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
    return _placed(need, _BY_RULE[rule], pair.base)


def _wish(need: Need, pair: Pair) -> Decision:
    """Where it should go with both upstreams usable."""
    if pair.control is not _AUTO:
        return _BY_CONTROL[pair.control]
    if need.override is not None:
        return _BY_OVERRIDE[need.override]
    if pair.base.trial:
        # While speculation serves, base would be tried by nobody, and be missing when load comes.
        return _TRIED
    eligibility = need.eligibility
    if eligibility.verdict is not _ANYWHERE and eligibility.rule is not None:
        return _BY_RULE[eligibility.rule]
    if not pair.calibrated:
        return _UNCALIBRATED
    return _SPEC_BY_MODE if pair.mode is SPEC else _BASE_BY_MODE


def _is_admitted(need: Need, pair: Pair) -> bool:
    """Whether both upstreams together may have it; what is no load needs no place."""
    return need.weight == 0 or need.weight <= pair.places


def _placed(need: Need, decision: Decision, view: View) -> Decision | Wait:
    """As decided if there is room; base full waits, and never overflows to spec."""
    return decision if has_room(need, view) else Wait(Why.FULL, decision.upstream)


def has_room(need: Need, view: View) -> bool:
    """Whether the upstream may have `need`.

    What is heavier than the whole cap would wait for ever; it may have an idle server to itself.
    """
    return _fits(need, view) or view.in_flight == 0


def _fits(need: Need, view: View) -> bool:
    """Whether `need` fits under the upstream's cap."""
    return view.cap is None or need.weight == 0 or view.in_flight + need.weight <= view.cap
