"""The last decisions: which are kept, in which order, and what is said of them."""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace

from proxy.control.admin import Past, build_admin
from proxy.control.decision_list import DecisionLine, DecisionList
from proxy.control.decisions import KEPT, Decisions
from proxy.control.history import History
from proxy.control.metrics import Metrics
from proxy.control.state import Facts, Pair
from proxy.core.dispatch import Dispatcher
from proxy.core.observer import Record
from proxy.core.words import Outcome, RetryCause, UpstreamName
from tests.harness.pair import SETTINGS, Recorder

ADMIN = Path(__file__).parents[2] / "docs" / "admin.md"
NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ENDED = Record(
    request_id="r1",
    endpoint="/v1/chat/completions",
    method="POST",
    upstream=UpstreamName.BASE,
    reason="eligibility:min_p",
    mode=UpstreamName.SPEC,
    in_flight=3,
    decided_at=100.0,
    outcome=Outcome.OK,
)


class Scene:
    """Decisions on clocks that the test moves; at 100 s it is noon."""

    def __init__(self, running: Iterable[Record] = ()) -> None:
        self.now = 100.0
        self.noon = NOON
        self.kept = Decisions(
            clock=lambda: self.now,
            wall=lambda: int((self.noon.timestamp() + self.now - 100.0) * 1e9),
            running=lambda: running,
        )

    def ids(self) -> list[str | None]:
        """The requests, as they are told."""
        return [line.request_id for line in self.kept.newest().decisions]


def test_a_decision_is_told_as_it_was_made() -> None:
    """Every key, as JSON; the time is that of the decision, not of the end nor of the look."""
    scene = Scene()
    scene.now = 107.5
    scene.kept.ended(ENDED)
    scene.now = 300.0

    assert scene.kept.newest().model_dump(mode="json") == {
        "decisions": [
            {
                "time": "2026-11-29T12:00:00Z",
                "request_id": "r1",
                "endpoint": "/v1/chat/completions",
                "upstream": "base",
                "reason": "eligibility:min_p",
                "mode": "spec",
                "in_flight": 3,
                "outcome": "ok",
            }
        ]
    }


def test_newest_first_by_the_decision_and_not_by_the_end() -> None:
    """A long answer ends after those that were decided after it."""
    scene = Scene()
    for name, at in (("second", 102.0), ("third", 103.0), ("first", 101.0)):
        scene.kept.ended(replace(ENDED, request_id=name, decided_at=at))

    assert scene.ids() == ["third", "second", "first"]


def test_at_the_same_moment_the_last_that_ended_comes_first() -> None:
    """Two of one burst are not told in a random order."""
    scene = Scene()
    for name in ("a", "b"):
        scene.kept.ended(replace(ENDED, request_id=name))

    assert scene.ids() == ["b", "a"]


def test_what_runs_has_no_outcome_yet() -> None:
    """It stands among the others by its time, and what its record begins with is not told."""
    runs = replace(ENDED, request_id="runs", decided_at=101.5, outcome=Outcome.ABANDONED)
    scene = Scene([runs])
    for name, at in (("before", 101.0), ("after", 102.0)):
        scene.kept.ended(replace(ENDED, request_id=name, decided_at=at))

    told = [(line.request_id, line.outcome) for line in scene.kept.newest().decisions]
    assert told == [("after", Outcome.OK), ("runs", None), ("before", Outcome.OK)]


def test_only_the_last_thousand_are_kept() -> None:
    """Also where more than that run at one time."""
    many = [replace(ENDED, request_id=f"runs{n}", decided_at=100.0 + n) for n in range(KEPT + 5)]
    scene = Scene(many)
    for number in range(KEPT + 5):
        scene.kept.ended(replace(ENDED, request_id=f"{number}", decided_at=number / 1e3))

    assert len(scene.kept._ended) == KEPT
    assert scene.ids() == [f"runs{n}" for n in range(KEPT + 4, 4, -1)]


@pytest.mark.parametrize("outcome", Outcome)
def test_what_had_no_place_is_not_a_decision(outcome: Outcome) -> None:
    """A refusal says itself why, and is counted elsewhere."""
    bare = Record(request_id="r", endpoint="other", method="GET", outcome=outcome, status=404)
    scene = Scene([bare])
    scene.kept.ended(bare)

    assert scene.ids() == []


def test_a_step_of_the_clock_moves_no_earlier_decision() -> None:
    """Whatever the time of day does, what was told once is told again."""
    scene = Scene()
    scene.kept.ended(ENDED)
    scene.noon += timedelta(hours=1)
    scene.kept.ended(replace(ENDED, request_id="later", decided_at=100.0))

    times = [line.time for line in scene.kept.newest().decisions]
    assert times == [NOON + timedelta(hours=1), NOON]


def test_other_news_changes_nothing() -> None:
    """A decision is told with its request, or it is not told."""
    scene = Scene()
    scene.kept.started()
    scene.kept.decided(UpstreamName.SPEC, "mode")
    scene.kept.retried(RetryCause.CONNECT)
    scene.kept.calibration_checked(())

    assert scene.ids() == []


async def test_the_route_tells_them() -> None:
    """`GET /admin/decisions`, in the shape that the API's description says."""
    scene = Scene()
    scene.kept.ended(ENDED)
    dispatcher = Dispatcher(SETTINGS, Recorder(), now=scene.now)
    pair = Pair(
        dispatcher,
        Facts(version="1.2.3", started=NOON),
        dict,
        calibration=lambda: None,
        clock=lambda: scene.now,
        wall=lambda: NOON,
    )
    metrics = Metrics("1.2.3")
    app = build_admin(
        pair,
        metrics,
        reload=_nothing,
        token=lambda: None,
        known_hosts=(),
        past=Past(scene.kept, History(metrics, clock=lambda: scene.now, wall=lambda: 0)),
    )
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://localhost:8001"
    ) as client:
        answer = await client.get("/admin/decisions")
        described = (await client.get("/openapi.json")).json()

    assert answer.headers["content-type"] == "application/json"
    assert DecisionList.model_validate_json(answer.text) == scene.kept.newest()
    schema = described["paths"]["/admin/decisions"]["get"]["responses"]["200"]["content"]
    assert schema["application/json"]["schema"]["$ref"].endswith("/DecisionList")


async def _nothing() -> tuple[str, ...]:
    return ()


def test_the_page_explains_every_key_and_no_other() -> None:
    """docs/admin.md, in the order in which they are told; its example is one."""
    part = ADMIN.read_text(encoding="utf-8").partition("\n## The last decisions\n")[2]
    explained = re.findall(r"^\| `(\w+)` \|", part.partition("\n## ")[0], re.MULTILINE)
    (example,) = re.findall(r"^A decision is `(.*)`\.$", part, re.MULTILINE)

    assert explained == [*DecisionLine.model_fields] == [*json.loads(example)]
    assert DecisionLine.model_validate_json(example).outcome is Outcome.OK
