"""Every state of a request x everything that can happen to it, over real sockets.

The table is the contract as data: one word a cell. `ENDINGS` says what the word means: the outcome
that is counted, what the client and the engine see, what is learnt of the engine. What cannot
happen is there, too, with its reason. The forms of the protocols are made from the same words.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from proxy.core.words import UpstreamName
from tests.harness import stages
from tests.harness.client import Response
from tests.harness.families import FAMILIES, Family
from tests.harness.happenings import EVENTS, NEEDS, SHORT_SECONDS
from tests.harness.running import Rig, rig
from tests.harness.stages import STAGES, Stage, Subject, subject_in

SOON_SECONDS = 2.0
"""Within which an engine's connection has to close; the time itself is measured elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What a word of the table means."""

    outcome: str | None
    """What is counted; None: it never became a request."""
    at: str | None = None
    """Where it is counted; None: where the stage has put it."""
    goes_on: bool = False
    """Whether what happened changes nothing at once: the request is led to its end."""
    status: int | None = 200
    """What the client sees; None: nothing, or it is not there any more."""
    code: str | None = None
    """The code of an error of ours, in an answer or in a stream."""
    whole: bool = True
    """Whether the client can take the answer for complete."""
    told: bool | None = False
    """Whether one that is not whole says so by an event; None: either, as it happens to be cut."""
    kept: bool = False
    """Whether the engine's connection is kept; else it is closed at once."""
    failures: tuple[int, int] | None = (1, 1)
    """Failures in a row of the upstream where it is counted and of the other, from (1, 1); None:
    what happened has moved them."""


def _broken(code: str, *, told: bool | None) -> Ending:
    return Ending(outcome="failed", code=code, whole=False, told=told, failures=(2, 1))


def _refused(status: int, code: str, *, goes_on: bool = False) -> Ending:
    return Ending(outcome="rejected", at="none", status=status, code=code, goes_on=goes_on)


ENDINGS = {
    "ok": Ending(outcome="ok", goes_on=True, kept=True, failures=(0, 1)),
    "ok@spec": Ending(outcome="ok", at="spec", goes_on=True, kept=True, failures=None),
    "ok@base": Ending(outcome="ok", at="base", goes_on=True, kept=True, failures=None),
    "served": Ending(outcome="ok", goes_on=True, failures=(0, 1)),
    "moved": Ending(outcome="ok", at="base", kept=True, failures=(0, 2)),
    "left": Ending(outcome="abandoned", status=None),
    "cut": Ending(outcome="abandoned", status=None),
    "torn": Ending(outcome="abandoned", whole=False),
    "done": Ending(outcome="ok", status=None, kept=True, failures=(0, 1)),
    "lost": Ending(outcome="ok", whole=False, kept=True, failures=(0, 1)),
    "gone": Ending(outcome="ok", whole=False, failures=(0, 1)),
    "quiet": Ending(outcome=None, status=None),
    "408": _refused(408, "request_timeout"),
    "draining": _refused(503, "draining", goes_on=True),
    "waited": _refused(503, "queue_timeout"),
    "401": _refused(401, "invalid_api_key", goes_on=True),
    "502": Ending(outcome="failed", status=502, code="upstream_reset", failures=(2, 1)),
    "504": Ending(outcome="failed", status=504, code="upstream_timeout", failures=(2, 1)),
    "broken": _broken("upstream_reset", told=True),
    "broken?": _broken("upstream_reset", told=None),
    "mute": _broken("upstream_reset", told=False),
    "silent": _broken("upstream_timeout", told=True),
    "mutely": _broken("upstream_timeout", told=False),
}

IMPOSSIBLE = {
    "-unasked": "no engine has been asked",
    "-taken": "the client takes everything, so nothing is unsent that it could be slow to read",
    "-refused": "who takes no connection can only refuse it: see engine_fin",
    "-over": "the engine has answered, and no deadline of its own runs any more",
    "-body": "within a counted body any bytes are body",
}

# fmt: off
WHO_GOES = {
    #              client_fin client_rst engine_fin engine_rst engine_bad late   slow
    "head":       "quiet      quiet      -unasked   -unasked   -unasked   408    -taken",
    "body":       "left       left       -unasked   -unasked   -unasked   408    -taken",
    "waiting":    "left       left       -unasked   -unasked   -unasked   waited -taken",
    "connecting": "left       left       moved      -refused   -refused   moved  -taken",
    "awaiting":   "left       left       502        502        502        504    -taken",
    "again":      "left       left       502        502        502        504    -taken",
    "holding":    "left       left       502        502        502        504    -taken",
    "after_head": "left       left       broken     broken     broken     silent -taken",
    "mid_event":  "left       left       mute       mute       mute       mutely -taken",
    "boundary":   "left       left       broken     broken     broken     silent -taken",
    "paused":     "left       left       broken     broken?    broken     ok     torn",
    "unsent":     "done       done       served     served     served     -over  lost",
}
WHO_DECIDES = {
    #              drain    cut   kill  control adrain  maint   other   ejected reload
    "head":       "draining quiet quiet ok@base ok@base ok@base ok@spec ok@base 401",
    "body":       "draining cut   cut   ok@base ok@base ok@base ok@spec ok@base ok@spec",
    "waiting":    "ok@spec  cut   cut   ok@base ok@base ok@base ok@spec ok@base ok@spec",
    "connecting": "ok       cut   cut   ok      ok      ok      ok@spec ok@spec ok",
    "awaiting":   "ok       cut   cut   ok      ok      ok      ok@spec ok@spec ok",
    "again":      "ok       cut   cut   ok      ok      ok      ok@base ok@base ok",
    "holding":    "ok       cut   cut   ok      ok      ok      ok@spec ok@spec ok",
    "after_head": "ok       torn  torn  ok      ok      ok      ok@spec ok@spec ok",
    "mid_event":  "ok       torn  torn  ok      ok      ok      ok@spec ok@spec ok",
    "boundary":   "ok       torn  torn  ok      ok      ok      ok@spec ok@spec ok",
    "paused":     "ok       torn  torn  ok      ok      ok      ok@spec ok@spec ok",
    "unsent":     "ok       gone  gone  ok      ok      ok      ok@spec ok@spec ok",
}
# fmt: on
TABLE = {stage: f"{words} {WHO_DECIDES[stage]}" for stage, words in WHO_GOES.items()}


@dataclass(frozen=True)
class Cell:
    """One way for one request to end."""

    stage: Stage
    event: str
    word: str
    family: Family

    @property
    def ending(self) -> Ending:
        """What must come of it."""
        return ENDINGS[self.word]

    @property
    def at(self) -> str:
        """Where it is counted."""
        return self.ending.at or self.stage.at or "none"

    @property
    def headless(self) -> bool:
        """Whether it ends before its head is read, so that nobody knows what was asked."""
        return self.stage is stages.HEAD and not self.ending.goes_on

    @property
    def reaches_engine(self) -> bool:
        """Whether an engine has had it."""
        led = self.ending.goes_on or self.word == "moved"
        asked = self.stage.asked and self.stage is not stages.CONNECTING
        return asked or (led and self.at != "none")

    @property
    def keys(self) -> dict[str, object]:
        """The configuration that it needs."""
        late = (
            {} if self.event != "late" or self.patience is None else {self.patience: SHORT_SECONDS}
        )
        return {**self.stage.keys, **NEEDS.get(self.event, {}), **late}

    @property
    def patience(self) -> str | None:
        """The key of the deadline that runs."""
        upstream = self.stage.asked and not self.family.streams
        return "timeouts__response" if upstream else self.stage.patience


def rows() -> Iterator[tuple[Stage, str, str]]:
    """The whole table, the impossible with it."""
    for stage in STAGES:
        for event, word in zip(EVENTS, TABLE[stage.name].split(), strict=True):
            yield stage, event, word


CELLS = [Cell(stage, event, word, stage.family) for stage, event, word in rows() if word in ENDINGS]


def of_forms() -> Iterator[Cell]:
    """What depends on the form of the answer, in each of the forms that are not shown above."""
    for stage, event, word in rows():
        asked = stage.asked and stage.name not in {"connecting", "holding", "paused", "unsent"}
        if not asked or event not in {
            "client_rst",
            "engine_fin",
            "engine_rst",
            "engine_bad",
            "late",
        }:
            continue
        for family in FAMILIES:
            said = word_for(family, stage, event, word)
            if family is not stage.family and said in ENDINGS:
                yield Cell(stage, event, said, family)


def word_for(family: Family, stage: Stage, event: str, word: str) -> str:
    """The word of the table, in the form of `family`."""
    if family.streams:
        return "-held" if family.holds and stage.name == "after_head" else word
    if stage.name == "boundary":
        return "-mid_event"  # it has no events, so it is always within
    if event == "engine_bad" and stage.name in {"after_head", "mid_event"}:
        return "-body"
    return {"broken": "mute", "silent": "mutely"}.get(word, word)


def name_of(cell: Cell) -> str:
    """The cell as a test's name."""
    return f"{cell.family.name}-{cell.stage.name}-{cell.event}"


def test_the_table_is_whole() -> None:
    """Every state has a word for every event; what cannot happen has a reason."""
    assert list(TABLE) == [stage.name for stage in STAGES]
    words = {word for _, _, word in rows()}
    assert {*ENDINGS} | {*IMPOSSIBLE} - {"-body"} == words
    assert len(CELLS) + sum(word in IMPOSSIBLE for _, _, word in rows()) == 12 * 16


def takes_time(cell: Cell) -> bool:
    """Whether a deadline has to pass in it, or TCP's own second."""
    return cell.event in {"late", "slow", "cut"} or cell.stage is stages.CONNECTING


def cells(*, slow: bool) -> list[object]:
    """The cells as a test's parameters."""
    return [pytest.param(cell, id=name_of(cell)) for cell in CELLS if takes_time(cell) is slow]


@pytest.mark.parametrize("cell", cells(slow=False))
async def test_every_ending(cell: Cell) -> None:
    """In each state, whatever happens, the request ends once, and as the table says."""
    await play(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(slow=True))
async def test_every_ending_in_time(cell: Cell) -> None:
    """The same where something must not happen for a while."""
    await play(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [*of_forms()], ids=name_of)
async def test_every_ending_in_every_form(cell: Cell) -> None:
    """The same for the other protocols: what breaks off says so in the words of each, if at all."""
    await play(cell)


async def play(cell: Cell) -> None:
    """Bring a request there, let it happen, and look at everybody."""
    async with rig(**cell.keys) as it, AsyncExitStack() as undo:  # type: ignore[arg-type]  # keys
        for upstream in (it.app.dispatcher.spec, it.app.dispatcher.base):
            upstream.health._failed_requests = 1  # so that good, bad and neither can be told apart
        subject = await subject_in(it, cell.stage, cell.family, undo)
        await EVENTS[cell.event](subject)
        if cell.ending.goes_on:
            await cell.stage.go_on(subject)
        await client_sees(subject, cell)
        await engine_sees(subject, cell.ending)
        await counted(subject, cell)
        learnt(it, cell)
        await subject.companion_ends()
        if subject.ending is not None:
            assert await asyncio.wait_for(subject.ending, 10) == 0


async def client_sees(subject: Subject, cell: Cell) -> None:
    """What the client has in its hands."""
    ending = cell.ending
    if ending.status is None:
        if cell.event not in {"client_fin", "client_rst"}:
            assert await subject.client.at_end()
        return
    response = await subject.client.response()
    assert (response.status, response.complete) == (ending.status, ending.whole)
    if ending.status != 200:
        assert code_of(response, subject.family) == ending.code
    elif ending.whole:
        assert response.body == subject.body
    else:
        breaks_off(response, subject, ending)


def breaks_off(response: Response, subject: Subject, ending: Ending) -> None:
    """An answer that broke off: what there is of it, then one event that says so, or nothing."""
    body = response.body
    read = subject.family.code_in
    if ending.told is None:
        assert b"[DONE]" not in body
        return
    if ending.told:
        assert read is not None
        event = response.chunks[-1]
        assert read(event) == ending.code
        body = body.removesuffix(event)
    assert subject.body.startswith(body)
    assert body != subject.body


def code_of(response: Response, family: Family) -> str:
    """The code of an answer of our own, in the shape of the protocol."""
    if family.path != "/v1/messages":
        return response.code
    return response.body.rpartition(b"(")[2].partition(b")")[0].decode()


async def engine_sees(subject: Subject, ending: Ending) -> None:
    """Its connection is kept, or closed at once."""
    if subject.engine is None:
        return
    if ending.kept:
        assert not subject.engine.gone.is_set()
    else:
        await asyncio.wait_for(subject.engine.gone.wait(), SOON_SECONDS)


async def counted(subject: Subject, cell: Cell) -> None:
    """It is counted once, at its end; and engines have had it no more often than is allowed."""
    ending, it, path = cell.ending, subject.it, subject.family.path
    of_it = {"endpoint": "other" if cell.headless else path}
    if ending.outcome is not None:
        labels = {**of_it, "upstream": cell.at, "outcome": ending.outcome}
        await it.until(lambda: it.metric("requests_total", **labels) == 1, f"counted as {labels}")
    assert it.total("requests_total", **of_it) == (ending.outcome is not None)
    broken = ending.outcome == "failed" and ending.status == 200
    assert it.total("midstream_failures_total") == broken
    sent = [r for up in (it.spec, it.base) for r in up.requests if r.path == path]
    assert len(sent) == (2 if cell.stage is stages.AGAIN else cell.reaches_engine)


def learnt(it: Rig, cell: Cell) -> None:
    """What the end says of the engine: its own fault counts against it, a client's does not."""
    if cell.ending.failures is None:
        return
    at = UpstreamName.SPEC if cell.at == "none" else UpstreamName(cell.at)
    health = [it.app.dispatcher.upstream(name).health for name in (at, at.other)]
    assert tuple(each._failed_requests for each in health) == cell.ending.failures
