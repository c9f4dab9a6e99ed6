"""The GPU moves with the time of a loop; the test is the loop."""

import json
from collections.abc import Callable
from random import Random

import pytest

from proxy.core.words import UpstreamName
from proxy.sim.asks import Shape, read
from proxy.sim.clockwork import Clockwork, Exchange
from proxy.sim.desk import Desk
from proxy.sim.engine import DEFAULT_LIMITS, Limits
from proxy.sim.generation import Generation
from proxy.sim.gpu import Gpu
from proxy.sim.options import PairOptions
from proxy.sim.pages import Tally
from proxy.sim.physics import FOUNDING, prefill_work

BASE, SPEC = UpstreamName.BASE, UpstreamName.SPEC
FILL = prefill_work(FOUNDING, BASE, 1).seconds
STEP = 0.008
"""Seconds of a plain decode step with one sequence (docs/model.md, "The founding profile")."""


class _Timer:
    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Loop:
    """A loop whose time is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[_Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> _Timer:
        timer = _Timer(when, callback)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> list[_Timer]:
        """Timers that would fire."""
        return [timer for timer in self.timers if not timer.cancelled]

    def fire(self, *, late: float = 0.0) -> None:
        """Let the time of the only timer come."""
        (timer,) = self.armed
        self.now = max(self.now, timer.when + late)
        self.timers.clear()
        timer.callback()

    def run(self) -> None:
        """Fire until nothing is left to do."""
        while self.armed:
            self.fire()


class _Case:
    """A clockwork, and exchanges whose changes are written down."""

    def __init__(self, *, scale: float = 1.0, base: Limits = DEFAULT_LIMITS[BASE]) -> None:
        self.loop = _Loop()
        gpu = Gpu(
            FOUNDING,
            {BASE: base, SPEC: DEFAULT_LIMITS[SPEC]},
            contention=0.9,
            random=Random(1),
        )
        self.clockwork = Clockwork(gpu, self.loop, scale=scale, wall=1000.0)
        self.tally = Tally()
        self.changes: list[tuple[float, int]] = []

    def submit(self, *, tokens: int = 3, prompts: int = 1, stream: bool = True) -> Exchange:
        body = {"prompt": ["a"] * prompts, "max_tokens": tokens, "stream": stream}
        ask = read(Shape.COMPLETION, json.dumps(body).encode(), context_length=100)
        generation = Generation(ask, None, self.clockwork.wall)
        exchange = Exchange(
            BASE,
            generation,
            self.tally,
            lambda: self.changes.append((self.loop.now, generation.completion_tokens)),
        )
        self.clockwork.submit(exchange)
        return exchange


def test_tokens_come_at_their_time() -> None:
    """One change at the admission, then one for each token, each when it is due."""
    case = _Case()
    exchange = case.submit()
    assert case.changes == []
    case.loop.run()
    times = [100.0, 100.0 + FILL, 100.0 + FILL + STEP, 100.0 + FILL + 2 * STEP]
    assert [at for at, _ in case.changes] == pytest.approx(times)
    assert [tokens for _, tokens in case.changes] == [0, 1, 2, 3]
    assert exchange.generation.complete
    assert exchange.keys == {}


def test_time_can_run_faster() -> None:
    """At a scale of 10 everything takes a tenth, in the loop and in what is told of it."""
    case = _Case(scale=10.0)
    exchange = case.submit()
    case.loop.run()
    assert case.loop.now == pytest.approx(100.0 + (FILL + 2 * STEP) / 10)
    (reply,) = exchange.generation.replies
    assert reply.admitted_at == 1000.0
    assert reply.ended_at == pytest.approx(1000.0 + (FILL + 2 * STEP) / 10)
    assert case.clockwork.wall == pytest.approx(reply.ended_at)


def test_a_late_timer_merges_nothing() -> None:
    """Steps that are told together are told one by one."""
    case = _Case()
    case.submit()
    case.loop.fire(late=10.0)
    assert [tokens for _, tokens in case.changes] == [0, 1, 2, 3]


def test_an_idle_gpu_has_no_timer() -> None:
    """Nothing wakes the process while nothing is to do."""
    case = _Case()
    assert case.loop.armed == []
    case.submit()
    case.loop.run()
    assert case.loop.armed == []


def test_there_is_one_timer() -> None:
    """However many exchanges there are."""
    case = _Case()
    for _ in range(5):
        case.submit()
    assert len(case.loop.armed) == 1
    case.clockwork.stop()
    assert case.loop.armed == []


def test_aborting_frees_the_engine() -> None:
    """What is left of an exchange goes; nothing more is told; it is counted as aborted."""
    case = _Case()
    exchange = case.submit(tokens=50, prompts=2)
    case.loop.fire()
    case.loop.fire()
    assert case.clockwork.load(BASE).running == 2
    changes = list(case.changes)
    case.clockwork.abort(exchange)
    assert case.clockwork.load(BASE).running == 0
    case.loop.run()
    assert case.changes == changes
    assert case.tally.aborted == 2
    assert case.tally.by_stream[True].requests == 2  # they had started, so SGLang counts them


def test_aborting_what_waits() -> None:
    """A sequence that never ran is aborted but is no request that was served."""
    case = _Case()
    case.clockwork.abort(case.submit())
    assert case.tally.aborted == 1
    assert case.tally.by_stream == {}


def test_aborting_what_has_ended() -> None:
    """The end was counted; leaving after it changes nothing."""
    case = _Case()
    exchange = case.submit()
    case.loop.run()
    case.clockwork.abort(exchange)
    assert case.tally.aborted == 0


def test_an_abort_between_two_events_of_one_turn() -> None:
    """A client that leaves while others are told is not told what happened before."""
    case = _Case()
    leaving: list[Exchange] = []
    first = case.submit()

    def leave() -> None:
        case.clockwork.abort(leaving[0])

    first.changed = leave
    leaving.append(case.submit())
    case.loop.fire(late=10.0)
    assert not leaving[0].generation.started
    assert case.tally.aborted == 1


def test_a_loop_that_calls_early() -> None:
    """What is due when the timer comes is told then, and time does not go back afterwards."""
    case = _Case()
    case.submit(tokens=1)
    case.loop.fire()
    (timer,) = case.loop.armed
    case.loop.timers.clear()
    case.loop.now = timer.when - 0.0005
    timer.callback()
    assert [tokens for _, tokens in case.changes] == [0, 1]
    case.submit(tokens=1)
    case.loop.run()
    assert [tokens for _, tokens in case.changes] == [0, 1, 0, 1]


def test_endings_are_counted() -> None:
    """Each sequence adds its prompt and its tokens to the totals of its kind."""
    case = _Case()
    case.submit(prompts=2)
    case.submit(stream=False, tokens=5)
    case.loop.run()
    streamed, whole = case.tally.by_stream[True], case.tally.by_stream[False]
    assert (streamed.requests, streamed.prompt_tokens, streamed.output_tokens) == (2, 2, 6)
    assert (whole.requests, whole.prompt_tokens, whole.output_tokens) == (1, 1, 5)


def test_a_refusal_is_told() -> None:
    """A full queue marks the generation and is neither a request nor an abort."""
    case = _Case(base=Limits(max_running=1, max_queued=0))
    case.submit()
    refused = case.submit()
    case.loop.run()
    assert refused.generation.refused
    assert refused.keys == {}
    assert (case.tally.aborted, case.tally.by_stream[True].requests) == (0, 1)


def test_a_dead_engine_does_nothing() -> None:
    """After a reset nothing runs on it and no timer is set for it."""
    case = _Case()
    exchange = case.submit(tokens=50)
    case.loop.fire()
    case.clockwork.abort(exchange)
    case.clockwork.reset(BASE)
    assert case.loop.armed == []
    assert case.clockwork.load(BASE).counters.aborted == 0


def test_a_cache_is_not_flushed_while_something_waits() -> None:
    """Also where nothing runs yet."""
    case = _Case()
    desk = Desk(BASE, PairOptions(), case.clockwork)
    assert desk.flush().status == 200
    case.submit()
    assert (desk.load.running, desk.load.waiting) == (0, 1)
    assert desk.flush().status == 400
    case.loop.run()
    assert desk.flush().status == 200
