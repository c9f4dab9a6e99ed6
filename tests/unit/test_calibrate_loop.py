"""Closed loops: how many are in flight, which requests count, and what ends a cell."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count

import httpx2
import pytest

from proxy.core.words import UpstreamName
from proxy.tools.asking import Question, chat
from proxy.tools.calibrate.cells import Measurement, Part, Place
from proxy.tools.calibrate.loop import Asked, CellError, Loop, run


@dataclass
class Engine:
    """A server that streams as many tokens as asked for, each a turn of the loop apart."""

    answer: Callable[[int], tuple[int, bytes] | None] = lambda _: None
    """The status and body that the request of this number gets instead."""
    in_flight: int = 0
    most: int = 0
    asked: list[int] = field(default_factory=list)

    def client(self) -> httpx2.AsyncClient:
        """One that talks to it."""
        transport = httpx2.MockTransport(self._reply)
        return httpx2.AsyncClient(base_url="http://engine", transport=transport, trust_env=False)

    async def _reply(self, request: httpx2.Request) -> httpx2.Response:
        tokens = json.loads(request.content)["max_tokens"]
        self.asked.append(tokens)
        other = self.answer(len(self.asked) - 1)
        status, content = (
            (200, self._events(tokens)) if other is None else (other[0], _whole(other[1]))
        )
        head = {"content-type": "text/event-stream"}
        return httpx2.Response(status, headers=head, content=content)

    async def _events(self, tokens: int) -> AsyncIterator[bytes]:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            for _ in range(tokens):
                await asyncio.sleep(0)
                yield b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
            usage = {"prompt_tokens": 5, "completion_tokens": tokens}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode()
            yield b"data: [DONE]\n\n"
        finally:
            self.in_flight -= 1


def _asked(prompts: int = 3) -> Asked:
    def make(prompt: int, tokens: int) -> Question:
        text = [{"role": "user", "content": f"prompt {prompt}"}]
        return chat(text, model="tiny", max_tokens=tokens, ignore_eos=True)

    return Asked(list(range(prompts)), make, [f"p.jsonl, line {n + 1}" for n in range(prompts)])


def _loop(
    engine: Engine,
    *,
    concurrency: int = 4,
    requests: int = 6,
    server: UpstreamName = UpstreamName.SPEC,
) -> Loop:
    return Loop(
        client=engine.client(),
        place=Place(Part.SWEEP, server, concurrency),
        asked=_asked(),
        requests=requests,
        output_tokens=20,
        clock=time.monotonic,
    )


async def _run(*loops: Loop) -> list[Measurement]:
    async with asyncio.timeout(30):
        return await run(loops)


async def test_so_many_are_in_flight_and_no_more() -> None:
    """Every place of the loop is always taken."""
    engine = Engine()
    await _run(_loop(engine))
    assert engine.most == 4
    assert engine.in_flight == 0


async def test_those_that_count_come_after_the_warm_up() -> None:
    """As many as were wanted, in the order in which they were sent, all of full length."""
    engine = Engine()
    (found,) = await _run(_loop(engine))
    assert len(found.measured) == 6
    assert {each.output_tokens for each in found.measured} == {20}
    first = min(each.sent for each in found.measured)
    assert all(each.sent <= first for each in found.requests if each.ended and not each.measured)


async def test_the_warm_up_is_graded() -> None:
    """So that the loop is out of step when it counts."""
    engine = Engine()
    await _run(_loop(engine))
    assert engine.asked[:4] == [5, 10, 15, 20]


async def test_what_is_left_over_is_given_up() -> None:
    """It has kept the number in flight to the end; when it was sent is still known."""
    (found,) = await _run(_loop(Engine()))
    left = [each for each in found.requests if each.first is None]
    assert left
    assert not any(each.measured for each in left)


async def test_two_loops_run_until_both_have_what_counts() -> None:
    """The quicker one goes on, so that the slower one is never alone."""
    quick, slow = Engine(), Engine()
    found = await _run(
        _loop(quick, requests=2, concurrency=1),
        _loop(slow, requests=12, concurrency=1, server=UpstreamName.BASE),
    )
    assert [len(each.measured) for each in found] == [2, 12]
    assert len(quick.asked) > 8


async def _whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _refusal(status: int) -> tuple[int, bytes]:
    return status, b'{"error": {"message": "no"}}'


@pytest.mark.parametrize(
    ("status", "again"), [(400, False), (404, False), (429, True), (500, True)]
)
async def test_a_failed_request_ends_the_cell(*, status: int, again: bool) -> None:
    """It names the prompt; whether another try may help depends on whose fault it is."""
    engine = Engine(answer=lambda number: _refusal(status) if number == 4 else None)
    with pytest.raises(
        CellError, match=rf"spec at concurrency 4: p\.jsonl, line 2: .*{status}"
    ) as e:
        await _run(_loop(engine))
    assert e.value.again is again
    assert engine.in_flight == 0


async def test_short_answers_end_the_cell() -> None:
    """A server that does not honour ignore_eos."""
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    events = [
        {"choices": [{"delta": {"content": "x"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    engine = Engine(answer=lambda _: (200, body.encode()))
    with pytest.raises(CellError, match="3 tokens where 20 were asked for"):
        await _run(_loop(engine, concurrency=1))


async def test_what_the_watch_says_ends_the_cell() -> None:
    """Somebody else is there: the cell may go well another time."""
    numbers = count()

    async def watch() -> str:
        while next(numbers) < 3:  # noqa: ASYNC110 - three turns of the loop, no event
            await asyncio.sleep(0)
        return "base is busy"

    async with asyncio.timeout(30):
        with pytest.raises(CellError, match="base is busy") as caught:
            await run([_loop(Engine(), requests=10_000)], watch)
    assert caught.value.again


async def test_a_fault_of_ours_is_not_hidden() -> None:
    """It comes out as it is, in the group of the tasks that ran."""
    loop = _loop(Engine())
    loop.asked = Asked([0], lambda *_: 1 / 0, [""])  # type: ignore[arg-type]  # a fault of ours
    with pytest.raises(ExceptionGroup):
        await _run(loop)
