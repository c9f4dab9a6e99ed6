"""The decision: a row for each rule of the contract, and what holds whatever the picture."""

from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.eligibility import Eligibility, Rule, Verdict
from proxy.core.route import (
    REASONS,
    Decision,
    Need,
    Never,
    Pair,
    Reason,
    View,
    Wait,
    Why,
    decide,
    has_room,
)
from proxy.core.words import Control, UpstreamName
from tests.harness.pair import BASE, SPEC, model_path, need, only_base, prefers_base

T = TypeVar("T", View, Pair)

_PARTS: dict[type, tuple[str, ...]] = {
    View: ("usable", "why_not", "in_flight", "cap", "trial"),
    Pair: (
        "spec",
        "base",
        "base_in_maint",
        "control",
        "mode",
        "calibrated",
        "places",
        "spill",
    ),
}


def but(picture: T, **changes: Any) -> T:  # noqa: ANN401 - what its parts are
    """The same picture, but for `changes`."""
    parts = {name: getattr(picture, name) for name in _PARTS[type(picture)]}
    return type(picture)(**{**parts, **changes})


WELL = View(usable=True, why_not=Reason.HEALTH, in_flight=0, cap=None)
DOWN = but(WELL, usable=False)
DRAINED = but(WELL, usable=False, why_not=Reason.DRAIN)
FULL = but(WELL, in_flight=8, cap=8)
OVERFULL = but(WELL, in_flight=9, cap=8)  # one that is heavier than all of it
ON_TRIAL = but(WELL, trial=True)
NEARLY_FULL = but(WELL, in_flight=7, cap=8)

PAIR = Pair(
    spec=WELL,
    base=WELL,
    base_in_maint=False,
    control=Control.AUTO,
    mode=SPEC,
    calibrated=True,
    places=2048,
    spill=None,
)

Outcome = Decision | Wait | Never


@dataclass(frozen=True)
class Row:
    """A situation, what is wanted, and what is decided."""

    name: str
    pair: Pair
    need: Need
    outcome: Outcome


def pair(
    *,
    spec: View = WELL,
    base: View = WELL,
    control: Control = Control.AUTO,
    mode: UpstreamName = SPEC,
    calibrated: bool = True,
    places: int = 2048,
) -> Pair:
    """A picture in which all is well, but for what is given."""
    return but(
        PAIR, spec=spec, base=base, control=control, mode=mode, calibrated=calibrated, places=places
    )


NO_UPSTREAM = Wait(Why.NO_UPSTREAM, None)
NO_BASE = Wait(Why.INELIGIBLE, BASE)
MIN_P = Decision(BASE, "eligibility:min_p")
LORA = Decision(BASE, "eligibility:lora")
MAINT = but(PAIR, base=DRAINED, base_in_maint=True)

ROWS = (
    # 1. Base-only rules: base or nothing, whatever the rest says.
    Row("base only, spec's turn", PAIR, only_base(), MIN_P),
    Row("base only, control spec", pair(control=Control.SPEC), only_base(), MIN_P),
    Row("base only, override spec", PAIR, only_base()._replace(override=SPEC), MIN_P),
    Row("base only, spec down", pair(spec=DOWN), only_base(), MIN_P),
    Row("base only, base down", pair(base=DOWN), only_base(), NO_BASE),
    Row("base only, base drained", pair(base=DRAINED), only_base(), NO_BASE),
    Row("base only, base in maint", MAINT, only_base(), Never(Rule.MIN_P)),
    Row("base only, nothing usable", pair(spec=DOWN, base=DOWN), only_base(), NO_BASE),
    Row("base only, base full", pair(base=FULL), only_base(), Wait(Why.FULL, BASE)),
    Row(
        "base only, all places taken", pair(spec=FULL, places=0), only_base(), Wait(Why.FULL, None)
    ),
    Row("base only and no load", pair(base=OVERFULL, places=-1), only_base(0), MIN_P),
    # 2. Usable: one takes all, also against control; none waits.
    Row("spec alone", pair(base=DOWN, mode=BASE), need(), Decision(SPEC, Reason.HEALTH)),
    Row("base alone", pair(spec=DOWN), need(), Decision(BASE, Reason.HEALTH)),
    Row("spec drained", pair(spec=DRAINED), need(), Decision(BASE, Reason.DRAIN)),
    Row("base drained", pair(base=DRAINED, mode=BASE), need(), Decision(SPEC, Reason.DRAIN)),
    Row("base in maint", but(MAINT, mode=BASE), need(), Decision(SPEC, Reason.DRAIN)),
    Row(
        "a survivor although control names it",
        pair(base=DOWN, control=Control.SPEC),
        need(),
        Decision(SPEC, Reason.HEALTH),
    ),
    Row(
        "a survivor although control names the other",
        pair(base=DOWN, control=Control.OBSERVE),
        need(),
        Decision(SPEC, Reason.HEALTH),
    ),
    Row("spec alone, preferring base", pair(base=DOWN), prefers_base(), Decision(SPEC, "health")),
    Row("none", pair(spec=DOWN, base=DRAINED), need(), NO_UPSTREAM),
    Row("spec alone and full", pair(spec=FULL, base=DOWN), need(), Wait(Why.FULL, SPEC)),
    Row("base alone and full", pair(spec=DOWN, base=FULL), need(), Wait(Why.FULL, BASE)),
    # 3. Control, then override.
    Row(
        "control spec",
        pair(control=Control.SPEC, mode=BASE),
        need(),
        Decision(SPEC, Reason.CONTROL),
    ),
    Row("control base", pair(control=Control.BASE), need(), Decision(BASE, Reason.CONTROL)),
    Row("control observe", pair(control=Control.OBSERVE), need(), Decision(BASE, Reason.CONTROL)),
    Row(
        "control before override",
        pair(control=Control.SPEC),
        need(override=BASE),
        Decision(SPEC, Reason.CONTROL),
    ),
    Row(
        "control before prefer",
        pair(control=Control.SPEC),
        prefers_base(),
        Decision(SPEC, Reason.CONTROL),
    ),
    Row(
        "control without calibration",
        pair(control=Control.SPEC, calibrated=False),
        need(),
        Decision(SPEC, Reason.CONTROL),
    ),
    Row("override base", PAIR, need(override=BASE), Decision(BASE, Reason.OVERRIDE)),
    Row("override spec", pair(mode=BASE), need(override=SPEC), Decision(SPEC, Reason.OVERRIDE)),
    Row(
        "override before prefer",
        PAIR,
        prefers_base()._replace(override=SPEC),
        Decision(SPEC, Reason.OVERRIDE),
    ),
    Row(
        "override without calibration",
        pair(calibrated=False),
        need(override=SPEC),
        Decision(SPEC, Reason.OVERRIDE),
    ),
    # 4. Preferences, 5. the mode.
    Row("prefers base", PAIR, prefers_base(), LORA),
    Row("prefers base, without calibration", pair(calibrated=False), prefers_base(), LORA),
    Row("mode spec", PAIR, need(), Decision(SPEC, Reason.MODE)),
    Row("mode base", pair(mode=BASE), need(), Decision(BASE, Reason.MODE)),
    Row(
        "no calibration",
        pair(calibrated=False, mode=BASE),
        need(),
        Decision(BASE, Reason.UNCALIBRATED),
    ),
    # 6. The cap: spec full goes to base, base full waits.
    Row("spec full", pair(spec=FULL), need(), Decision(BASE, Reason.FULL)),
    Row("spec with one place", pair(spec=NEARLY_FULL), need(), Decision(SPEC, Reason.MODE)),
    Row("spec too full for two", pair(spec=NEARLY_FULL), need(2), Decision(BASE, Reason.FULL)),
    Row(
        "spec full, control spec",
        pair(spec=FULL, control=Control.SPEC),
        need(),
        Decision(BASE, Reason.FULL),
    ),
    Row("spec full, override", pair(spec=FULL), need(override=SPEC), Decision(BASE, Reason.FULL)),
    Row("both full", pair(spec=FULL, base=FULL), need(), Wait(Why.FULL, BASE)),
    Row("base full", pair(base=FULL, mode=BASE), need(), Wait(Why.FULL, BASE)),
    Row("base too full for two", pair(base=NEARLY_FULL), prefers_base(2), Wait(Why.FULL, BASE)),
    Row(
        "heavier than the cap, server busy",
        pair(spec=but(NEARLY_FULL, in_flight=1), base=but(NEARLY_FULL, in_flight=1)),
        need(9),
        Wait(Why.FULL, BASE),
    ),
    Row(
        "heavier than the cap, server idle",
        pair(spec=but(FULL, in_flight=0)),
        need(9),
        Decision(BASE, Reason.FULL),
    ),
    Row(
        "heavier than the cap, server idle and alone",
        pair(spec=but(FULL, in_flight=0), base=DOWN),
        need(9),
        Decision(SPEC, Reason.HEALTH),
    ),
    Row("base on trial", pair(base=ON_TRIAL), need(), Decision(BASE, Reason.HEALTH)),
    Row(
        "base on trial, control spec",
        pair(base=ON_TRIAL, control=Control.SPEC),
        need(),
        Decision(SPEC, Reason.CONTROL),
    ),
    # limits.max_in_flight counts over both.
    Row("the last place", pair(spec=but(FULL, cap=9), places=1), need(), Decision(SPEC, "mode")),
    Row("what is no load needs no place", pair(places=-1), need(0), Decision(SPEC, "mode")),
    Row("no place left", pair(base=but(FULL, cap=9), places=0), need(), Wait(Why.FULL, None)),
    Row(
        "two wanted and one left",
        pair(spec=but(FULL, cap=None), places=1),
        need(2),
        Wait(Why.FULL, None),
    ),
    Row("heavier than all, pair idle", pair(places=4), need(5), Wait(Why.FULL, None)),
    # Model paths: base first, no load, reason `mode`.
    Row("model path", PAIR, model_path(), Decision(BASE, Reason.MODE)),
    Row(
        "model path, control spec", pair(control=Control.SPEC), model_path(), Decision(BASE, "mode")
    ),
    Row("model path, base full", pair(base=FULL, places=0), model_path(), Decision(BASE, "mode")),
    Row("model path, base down", pair(base=DOWN), model_path(), Decision(SPEC, Reason.HEALTH)),
    Row("model path, base drained", pair(base=DRAINED), model_path(), Decision(SPEC, "drain")),
    Row("model path, none", pair(spec=DOWN, base=DOWN), model_path(), NO_UPSTREAM),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_decision(row: Row) -> None:
    """Each rule of the contract decides as it says."""
    assert decide(row.need, row.pair) == row.outcome


def test_reasons_are_a_closed_set() -> None:
    """Every reason is in REASONS, once, with one for each eligibility rule."""
    assert len(set(REASONS)) == len(REASONS) == len(Reason) + len(Rule)
    assert {row.outcome.reason for row in ROWS if isinstance(row.outcome, Decision)} <= {*REASONS}


VIEWS = st.builds(
    View,
    usable=st.booleans(),
    why_not=st.sampled_from((Reason.HEALTH, Reason.DRAIN)),
    in_flight=st.integers(0, 12),
    cap=st.none() | st.integers(1, 12),
)
PAIRS = st.builds(
    Pair,
    spec=VIEWS,
    base=VIEWS,
    base_in_maint=st.booleans(),
    control=st.sampled_from(Control),
    mode=st.sampled_from(UpstreamName),
    calibrated=st.booleans(),
    places=st.integers(-4, 12),
    spill=st.none() | st.floats(0.0, 12.0),
).map(lambda p: but(p, base=but(p.base, usable=p.base.usable and not p.base_in_maint)))
ELIGIBILITIES = st.just(Eligibility(Verdict.ANY, None)) | st.builds(
    Eligibility, st.sampled_from((Verdict.BASE, Verdict.PREFER)), st.sampled_from(Rule)
)
NEEDS = st.builds(
    Need,
    weight=st.integers(0, 14),
    eligibility=ELIGIBILITIES,
    override=st.none() | st.sampled_from(UpstreamName),
    base_first=st.just(False),
    avoid=st.none(),
)


def view_of(name: UpstreamName, picture: Pair) -> View:
    """The upstream called `name`."""
    return picture.spec if name is SPEC else picture.base


@given(NEEDS, PAIRS)
def test_whatever_the_picture(wanted: Need, picture: Pair) -> None:
    """Nobody is sent to what is unusable or full, and base-only never to spec."""
    outcome = decide(wanted, picture)
    match outcome:
        case Decision(name, reason):
            view = view_of(name, picture)
            assert view.usable
            assert has_room(wanted, view)
            assert wanted.eligibility.verdict is not Verdict.BASE or name is BASE
            assert reason in REASONS
            busy = picture.spec.in_flight + picture.base.in_flight > 0
            assert not (busy and wanted.weight > max(picture.places, 0))
        case Never(rule):
            assert picture.base_in_maint
            assert wanted.eligibility == Eligibility(Verdict.BASE, rule)
        case Wait(why, name):
            waits_for_nothing(wanted, picture, why, name)
        case _:
            assert_never(outcome)


def waits_for_nothing(wanted: Need, picture: Pair, why: Why, name: UpstreamName | None) -> None:
    """Nobody waits without need."""
    match why:
        case Why.NO_UPSTREAM:
            assert not picture.spec.usable
            assert not picture.base.usable
        case Why.INELIGIBLE:
            assert not picture.base.usable
        case Why.FULL if name is None:
            assert wanted.weight > picture.places
        case Why.FULL:
            assert name is not None
            assert not has_room(wanted, view_of(name, picture))
        case _:
            assert_never(why)


@given(NEEDS, PAIRS)
def test_base_full_never_overflows_to_spec(wanted: Need, picture: Pair) -> None:
    """What is meant for base and finds it full waits for it, however empty a spec beside it is.

    On GPUs of its own it may, see below.
    """
    full = but(
        picture,
        spill=None,
        base=View(usable=True, why_not=Reason.HEALTH, in_flight=8, cap=8),
        spec=but(picture.spec, in_flight=0),
        base_in_maint=False,
        places=2048,
    )
    meant = decide(wanted, but(full, base=but(full.base, cap=None)))
    assert isinstance(meant, Decision)
    outcome = decide(wanted, full)
    if meant.upstream is BASE and wanted.weight:
        assert outcome == Wait(Why.FULL, BASE)
    else:
        assert outcome == meant


@given(PAIRS, st.booleans())
def test_model_paths_go_to_any_usable_server(picture: Pair, allowed: bool) -> None:  # noqa: FBT001 - drawn
    """Base first, else spec, whatever is in flight; only with neither they wait."""
    outcome = decide(model_path()._replace(override=SPEC if allowed else None), picture)
    if picture.base.usable:
        assert outcome == Decision(BASE, Reason.MODE)
    elif picture.spec.usable:
        assert outcome == Decision(SPEC, picture.base.why_not)
    else:
        assert outcome == NO_UPSTREAM


@pytest.mark.parametrize("avoid", [SPEC, BASE])
@pytest.mark.parametrize("control", Control)
def test_who_found_nobody_somewhere_goes_elsewhere(avoid: UpstreamName, control: Control) -> None:
    """Whatever the operator or the mode says, with the reason `retry`; or it waits."""
    wanted = need()._replace(avoid=avoid)
    for mode in UpstreamName:
        pair = but(PAIR, control=control, mode=mode)
        assert decide(wanted, pair) == Decision(avoid.other, Reason.RETRY)
    assert decide(wanted, _with(pair, avoid.other, FULL)) == Wait(Why.FULL, avoid.other)
    assert decide(wanted, _with(pair, avoid.other, DOWN)) == Wait(Why.NO_UPSTREAM, None)


def _with(pair: Pair, name: UpstreamName, view: View) -> Pair:
    return but(pair, spec=view) if name is SPEC else but(pair, base=view)


# GPUs of their own: both serve


def separate(*, spec: View = WELL, base: View = WELL, mode: UpstreamName = SPEC) -> Pair:
    """Two servers that do not share their GPUs; spec is best for three sequences."""
    return but(pair(spec=spec, base=base, mode=mode), spill=3.0)


BUSY = but(WELL, in_flight=3)


@pytest.mark.parametrize(
    ("case", "wanted", "outcome"),
    [
        (separate(), need(), Decision(SPEC, Reason.MODE)),
        (separate(spec=but(WELL, in_flight=2)), need(), Decision(SPEC, Reason.MODE)),
        (separate(spec=BUSY), need(), Decision(BASE, Reason.SPILL)),
        (separate(), need(4), Decision(BASE, Reason.SPILL)),
        (separate(spec=BUSY, base=FULL), need(), Decision(SPEC, Reason.FULL)),
        (
            separate(spec=but(BUSY, cap=3), base=FULL),
            need(),
            Wait(Why.FULL, BASE),
        ),
        (separate(spec=FULL), need(), Decision(BASE, Reason.FULL)),
        (separate(mode=BASE), need(), Decision(BASE, Reason.MODE)),
        (separate(spec=BUSY), need(override=SPEC), Decision(SPEC, Reason.OVERRIDE)),
        (separate(spec=BUSY), prefers_base(), LORA),
        (separate(spec=BUSY), only_base(), MIN_P),
        (pair(), need(50), Decision(SPEC, Reason.MODE)),
    ],
)
def test_separate_servers_share_the_load(case: Pair, wanted: Need, outcome: Outcome) -> None:
    """Spec as many as it is best for, base the rest, and spec again what base cannot hold."""
    assert decide(wanted, case) == outcome
