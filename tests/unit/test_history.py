"""The last 15 minutes: what is kept of each second, how much of it, and what is said of it."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from proxy.control.history import KEPT, SWITCHES_KEPT, History
from proxy.control.history_columns import (
    HistoryColumns,
    SwitchLine,
    Times,
    UpstreamColumns,
    columns,
)
from proxy.control.metrics import Metrics
from proxy.control.observers import Observers
from proxy.core.dispatch import Dispatcher
from proxy.core.modes import Switch
from proxy.core.observer import Record
from proxy.core.places import Evidence, Place
from proxy.core.words import Control, SwitchReason, UpstreamName
from tests.harness.pair import IDENTITIES, SETTINGS, Standing, need

ADMIN = Path(__file__).parents[2] / "docs" / "admin.md"
SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Scene:
    """A healthy pair that is looked at, on a clock that the test moves; it began at 1,000 s."""

    def __init__(self, *, expected_tokens: float | None = None) -> None:
        self.now = 1000.0
        self.metrics = Metrics("1.2.3")
        self.history = History(
            self.metrics,
            clock=lambda: self.now,
            wall=lambda: int((NOON.timestamp() + self.now - 1000.0) * 1e9),
        )
        settings = replace(SETTINGS, spec_cap=None, expected_tokens=expected_tokens)
        observer = Observers(self.metrics, self.history)
        self.dispatcher = Dispatcher(settings, observer, now=self.now)
        for name, identity in IDENTITIES.items():
            self.dispatcher.probe_succeeded(name, identity, self.now)

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let it be looked at every `step` seconds."""
        for _ in range(round(seconds / step)):
            self.now += step
            self.history.look(self.dispatcher, self.now)

    def come(self) -> Place:
        """A request that has a place."""
        place = self.dispatcher.arrive(need(), Standing(), self.now)
        assert isinstance(place, Place)
        return place

    def told(self, after: float = -1.0) -> HistoryColumns:
        """What is said of it."""
        return columns(self.history, NOON, after)


def test_a_second_is_a_row() -> None:
    """However often it is looked at; each is told by its end, in seconds since the beginning."""
    scene = Scene()
    scene.pass_time(0.75)
    early = scene.told()
    scene.pass_time(2.25)

    assert early.at == []
    assert scene.told().at == [1.0, 2.0, 3.0]
    assert scene.told().now == 3.0
    assert scene.told().mode == [scene.dispatcher.mode] * 3


def test_looks_that_come_late_do_not_add_up() -> None:
    """A tick takes a little longer than it should, each time: still a row for each second."""
    scene = Scene()
    scene.pass_time(60.3, step=0.26)

    assert len(scene.told().at) in {59, 60}
    assert all(b - a < 1.3 for a, b in pairwise(scene.told().at))


def test_a_pause_is_a_gap_and_not_many_rows() -> None:
    """A loop that stood still for a minute knows nothing of that minute."""
    scene = Scene()
    scene.pass_time(1.0)
    scene.now += 60.0
    scene.pass_time(1.0)

    assert scene.told().at == [1.0, 61.25, 62.0]


def test_a_burst_between_two_rows_is_seen() -> None:
    """What a second had most of is what is kept, not what was left at its end."""
    scene = Scene()
    scene.pass_time(1.0)
    burst = [scene.come() for _ in range(3)]
    scene.pass_time(0.25)
    for each in burst:
        scene.dispatcher.end(each.lease, Evidence.GOOD, scene.now)
    scene.pass_time(1.75)

    spec, base = (scene.told().upstreams[name].in_flight for name in (SPEC, BASE))
    assert [s + b for s, b in zip(spec, base, strict=True)] == [0, 3, 0]


def test_offered_work_is_unknown_before_any_length_is() -> None:
    """As in the state."""
    unknown, known = Scene(), Scene(expected_tokens=100.0)
    for scene in (unknown, known):
        scene.come()
        scene.pass_time(1.0)

    assert unknown.told().offered == [None]
    (offered,) = known.told().offered
    assert offered is not None
    assert offered > 0.0


def test_times_are_those_of_the_requests_that_ended_in_the_second() -> None:
    """Their number and their sum, so that a mean over any time can be taken of them."""
    scene = Scene()
    scene.metrics.ended(with_times(0.5, 0.01))
    scene.pass_time(1.0)
    scene.metrics.ended(with_times(0.2, 0.02))
    scene.metrics.ended(with_times(0.4, None))
    scene.pass_time(2.0)

    spec, base = scene.told().upstreams[SPEC], scene.told().upstreams[BASE]
    assert spec.time_to_first_token == Times(requests=[1, 2, 0], seconds=[0.5, 0.6, 0.0])
    assert spec.time_per_output_token == Times(requests=[1, 1, 0], seconds=[0.01, 0.02, 0.0])
    assert base.time_to_first_token.requests == [0, 0, 0]


def test_what_was_before_the_beginning_is_not_of_the_first_second() -> None:
    """A history begins with the counts that it finds."""
    metrics = Metrics("1.2.3")
    metrics.ended(with_times(0.5, 0.01))
    scene = Scene()
    scene.history = History(metrics, clock=lambda: scene.now, wall=lambda: 0)
    scene.pass_time(1.0)

    assert scene.told().upstreams[SPEC].time_to_first_token.requests == [0]


def test_a_switch_is_told_with_its_reason_and_its_time() -> None:
    """Newest first, by the clock of the rows and by the time of day."""
    scene = Scene()
    scene.pass_time(2.5)
    scene.dispatcher.set_control(Control.OBSERVE, by="test", now=scene.now)
    scene.pass_time(1.0)
    scene.dispatcher.set_control(Control.SPEC, by="test", now=scene.now)

    last, first = scene.told(after=0.0).switches
    assert (last.to, last.reason, last.at) == (SPEC, SwitchReason.CONTROL, 3.5)
    assert (first.to, first.reason, first.at) == (BASE, SwitchReason.CONTROL, 2.5)
    assert (last.time - NOON).total_seconds() == 3.5


def test_only_what_came_later_is_told_where_that_is_asked() -> None:
    """Rows and switches alike; who asks for all that came after its last row has everything."""
    scene = Scene()
    scene.pass_time(5.0)
    scene.history.switched(Switch(SPEC, SwitchReason.CALM, scene.now, 0))
    scene.pass_time(1.0)

    assert scene.told(after=4.0).at == [5.0, 6.0]
    assert [each.at for each in scene.told(after=4.0).switches] == [5.0]
    assert scene.told(after=6.0).at == []
    assert scene.told(after=6.0).switches == []
    assert scene.told(after=1e9).at == []


def test_no_row_is_told_twice_however_it_is_written() -> None:
    """Seconds are told as they are kept: a number with more digits would be later than itself."""
    scene = Scene()
    scene.now += 1.0 / 3.0
    scene.pass_time(2.0)
    (*_, last) = scene.told().at

    assert scene.told(after=last).at == []


def test_no_more_than_15_minutes_and_50_switches_are_kept() -> None:
    """Whoever lets it run for a year has the same."""
    scene = Scene()
    scene.pass_time(KEPT + 100.0, step=1.0)
    for _ in range(SWITCHES_KEPT + 10):
        scene.history.switched(Switch(SPEC, SwitchReason.CALM, scene.now, 0))

    told = scene.told()
    assert (told.at[0], told.at[-1], len(told.at)) == (101.0, 1000.0, KEPT)
    assert len(told.switches) == SWITCHES_KEPT
    assert len(told.model_dump_json()) < 100_000


def fields() -> list[str]:
    """What an answer has, dotted."""
    inner: dict[str, type[BaseModel]] = {"upstreams": UpstreamColumns, "switches": SwitchLine}
    found = []
    for name in HistoryColumns.model_fields:
        star = "*." if name == "upstreams" else ""
        below = inner[name].model_fields if name in inner else {}
        found += [f"{name}.{star}{each}" for each in below] or [name]
    return found


def test_the_page_explains_every_field_and_no_other() -> None:
    """docs/admin.md, in the order in which they are told; its example is an answer."""
    part = ADMIN.read_text(encoding="utf-8").partition("\n## The last 15 minutes\n")[2]
    part = part.partition("\n## ")[0]
    explained = re.findall(r"^\| `([\w.*]+)` \|", part, re.MULTILINE)
    (example,) = re.findall(r"```json\n(.*?)```", part, re.DOTALL)

    assert explained == fields()
    told = HistoryColumns.model_validate_json(example)
    assert json.loads(told.model_dump_json()) == json.loads(example)
    rows = len(told.at)
    assert rows == len(told.mode) == len(told.offered) == len(told.queue_depth)
    assert all(len(each.in_flight) == rows for each in told.upstreams.values())


def with_times(first: float, per_token: float | None) -> Record:
    """A request that ended at spec."""
    return Record(
        request_id="r",
        endpoint="/generate",
        method="POST",
        upstream=SPEC,
        first_token_seconds=first,
        seconds_per_token=per_token,
    )
