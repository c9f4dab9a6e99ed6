"""Where a tunnel can stand x whatever can happen there: the table of test_every_ending.py, for it.

The states before an engine is asked are those of any request, and are there.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest

from proxy.core.words import UpstreamName
from proxy.data.exchange import State
from tests.harness.families import GENERATE
from tests.harness.happenings import EVENTS, NEEDS, SHORT_SECONDS
from tests.harness.running import rig
from tests.harness.stages import Subject
from tests.harness.tunnels import PATH, SWITCH, offer
from tests.harness.upstream import Tunnel

FAMILY = replace(GENERATE, name="tunnel", path=PATH)
SOON_SECONDS = 2.0


@dataclass(frozen=True)
class Ending:
    """What a word of the table means."""

    outcome: str
    goes_on: bool = False
    """Whether what happened changes nothing: bytes still go both ways."""
    code: str | None = None
    """The code of an answer of ours; None: there is none."""


ENDINGS = {
    "open": Ending("ok", goes_on=True),
    "over": Ending("ok"),
    "left": Ending("abandoned"),
    "502": Ending("failed", code="upstream_reset"),
    "504": Ending("failed", code="upstream_timeout"),
    "broken": Ending("failed"),
}
IMPOSSIBLE = {
    "-taken": "the client takes everything; one that does not is in test_tunnel_endings.py",
    "-bytes": "within a tunnel any bytes are the engine's to send",
}

# fmt: off
TABLE = {
    #           client_fin client_rst engine_fin engine_rst engine_bad late   slow
    #           drain cut  kill control adrain maint other ejected reload
    "agreeing": "left      left       502        502        502        504    -taken "
                "open left left open    open   open  open  open    open",
    "open":     "over      over       over       broken     -bytes     broken -taken "
                "open over over open    open   open  open  open    open",
}
# fmt: on
MOVED = {"other", "ejected"}
"""What moves the counts of failures by itself."""


def rows() -> Iterator[tuple[str, str, str]]:
    """The whole table, the impossible with it."""
    for stage, words in TABLE.items():
        for event, word in zip(EVENTS, words.split(), strict=True):
            yield stage, event, word


CELLS = [row for row in rows() if row[2] in ENDINGS]


def test_the_table_is_whole() -> None:
    """Every state has a word for every event; what cannot happen has a reason."""
    assert {word for _, _, word in rows()} == {*ENDINGS} | {*IMPOSSIBLE}


@pytest.mark.parametrize(("stage", "event", "word"), CELLS, ids=str)
async def test_every_tunnel_ending(stage: str, event: str, word: str) -> None:
    """Whatever happens, a tunnel ends once, and as the table says."""
    ending = ENDINGS[word]
    keys = {**NEEDS.get(event, {})}
    if event == "late":
        patience = "timeouts__first_byte" if stage == "agreeing" else "timeouts__between_chunks"
        keys[patience] = SHORT_SECONDS
    async with rig(**keys) as it, AsyncExitStack() as undo:  # type: ignore[arg-type]  # keys
        for name in UpstreamName:
            it.app.dispatcher.upstream(name).health._failed_requests = 1
        subject = Subject(it, FAMILY, await it.client(), await it.client(), undo)
        await reach(subject, stage)
        await EVENTS[event](subject)
        if ending.goes_on:
            await go_on(subject, stage)
        elif ending.code is not None:
            response = await subject.client.response()
            assert (response.status, response.code) == (int(word), ending.code)
        elif event not in {"client_fin", "client_rst"}:
            assert await subject.client.at_end()
        assert subject.engine is not None
        await asyncio.wait_for(subject.engine.gone.wait(), SOON_SECONDS)
        labels = {"endpoint": PATH, "upstream": "base", "outcome": ending.outcome}
        await it.until(lambda: it.metric("requests_total", **labels) == 1, f"counted as {labels}")
        assert it.total("requests_total", endpoint=PATH) == 1
        assert len(it.base.requests) == 1
        if event not in MOVED:  # what is no load says nothing of health
            health = [it.app.dispatcher.upstream(name).health for name in UpstreamName]
            assert [each._failed_requests for each in health] == [1, 1]
        await subject.companion_ends()
        if subject.ending is not None:
            assert await asyncio.wait_for(subject.ending, 10) == 0


async def reach(subject: Subject, stage: str) -> None:
    """A tunnel that was asked for, and then opened or not."""
    subject.it.base.script(Tunnel())
    subject.client.send(offer())
    engine = await subject.at_engine("base")
    await subject.in_state(State.AWAITING)
    if stage == "open":
        engine.say(SWITCH)
        assert (await subject.client.head())[0] == 101


async def go_on(subject: Subject, stage: str) -> None:
    """Both sides still hear each other; then the client ends it."""
    engine, client = subject.engine, subject.client
    assert engine is not None
    if stage == "agreeing":
        engine.say(SWITCH)
        assert (await client.head())[0] == 101
    client.send(b"a question")
    await subject.it.until(lambda: engine.came == b"a question", "the engine hears")
    engine.say(b"an answer")
    assert await client.reader.readexactly(9) == b"an answer"
    client.half_close()
    assert await client.at_end()
