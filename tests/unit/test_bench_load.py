"""Open-loop load in a time that the test moves: what is sent when, and what is held back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from proxy.tools.asking import Sample
from proxy.tools.bench.load import Shot, Volley, Workload, drawn, fire, rounds
from proxy.tools.prompts import Prompt

PROMPTS = tuple(
    Prompt(({"role": "user", "content": name},), output_tokens=tokens)
    for name, tokens in (("a", 10), ("b", 20), ("c", None))
)


def sample(sent_at: float = 0.0, seconds: float = 1.0) -> Sample:
    """An answer of 11 tokens that ended well."""
    return Sample(
        sent_at=sent_at,
        first_token_seconds=0.1,
        last_token_seconds=seconds,
        duration_seconds=seconds,
        prompt_tokens=5,
        output_tokens=11,
        finish_reason="length",
        acceptance_length=None,
        status=200,
        error=None,
        upstream=None,
        reason=None,
    )


def shots(*times: float) -> list[Shot]:
    """Shots at these times."""
    return [Shot(at, PROMPTS[0], 10) for at in times]


@dataclass
class Range:
    """A clock, and answers that take as long as the test says; time passes in sleeps only."""

    takes: Callable[[], Awaitable[None]] | None = None
    now: float = 100.0
    late: float = 0.0
    """Seconds that every sleep takes longer than it was asked to."""
    asked: list[float] = field(default_factory=list)
    ended: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, seconds: float) -> None:
        """Time passes, and whoever is ready gets on."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.now += seconds + self.late

    async def ask(self, _: Shot) -> Sample:
        """An answer."""
        sent_at = self.now
        self.asked.append(sent_at - 100.0)
        if self.takes is not None:
            await self.takes()
        return sample(sent_at)

    def count(self) -> None:
        """One is over."""
        self.ended += 1

    async def fire(self, planned: list[Shot], most: int = 100) -> Volley:
        """All of it."""
        return await fire(
            planned,
            self.ask,
            most_in_flight=most,
            stop=self.stop,
            ended=self.count,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


async def test_arrivals_do_not_wait_for_answers() -> None:
    """Each is sent at its time though none before it is answered."""
    gate = asyncio.Event()

    async def takes() -> None:
        if len(here.asked) == 3:
            gate.set()
        await gate.wait()

    here = Range(takes)
    volley = await here.fire(shots(0.5, 1.0, 4.0))
    assert here.asked == [0.5, 1.0, 4.0]
    assert all(volley.samples)
    assert (volley.unsent, volley.interrupted, here.ended) == (set(), False, 3)


async def test_lateness_is_measured() -> None:
    """What the generator is late by is known of each request, and never negative."""
    here = Range(late=0.25)
    planned = shots(1.0, 2.0, 2.0)
    volley = await here.fire(planned)
    assert list(volley.lateness(planned)) == pytest.approx([0.25, 0.25, 0.5])


async def test_what_is_held_back() -> None:
    """Beyond the bound nothing is sent: those arrivals are lost, not delayed."""
    gate = asyncio.Event()
    here = Range(gate.wait)  # type: ignore[arg-type]  # what it returns is not looked at
    firing = asyncio.get_running_loop().create_task(here.fire(shots(1, 2, 3, 4), most=2))
    while here.ended < 2:  # noqa: ASYNC110 - time stands still here
        await asyncio.sleep(0)
    gate.set()
    volley = await firing
    assert volley.unsent == {2, 3}
    assert [one is not None for one in volley.samples] == [True, True, False, False]
    assert here.ended == 4


async def test_a_place_that_is_free_again_is_used() -> None:
    """The bound is on what is in flight, not on what was sent."""
    volley = await Range().fire(shots(1, 2, 3, 4), most=1)
    assert volley.unsent == set()


async def test_stopping_keeps_what_has_ended() -> None:
    """What is under way is given up, what has not come is not sent, and nothing is left running."""
    before = asyncio.all_tasks()
    never = asyncio.Event()

    async def takes() -> None:
        if len(here.asked) == 2:
            here.stop.set()
            await never.wait()

    here = Range(takes)
    volley = await here.fire(shots(*range(1, 10_000)))
    assert volley.interrupted
    assert volley.samples[0] is not None
    assert volley.samples[1] is None
    assert len(here.asked) < 9_000
    assert asyncio.all_tasks() == before


async def test_a_fault_of_ours_is_raised() -> None:
    """A mistake in the asking is no answer of the server."""

    async def takes() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await Range(takes).fire(shots(1))


async def test_cancelling_leaves_nothing() -> None:
    """Whoever waits may be cancelled: its requests are, too."""
    before = asyncio.all_tasks()
    here = Range(asyncio.Event().wait)  # type: ignore[arg-type]  # as above
    firing = asyncio.get_running_loop().create_task(here.fire(shots(1)))
    while not here.asked:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    firing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await firing
    assert asyncio.all_tasks() == before


def test_the_end_of_a_volley() -> None:
    """It is that of the last answer, and the start where there is none."""
    assert Volley(3.0, [None]).ended_at == 3.0
    assert Volley(3.0, [sample(4.0, 9.0), sample(5.0, 1.0), None]).ended_at == 13.0


@pytest.mark.parametrize("workload", [w for w in Workload if w is not Workload.TRACE])
def test_each_workload_is_drawn(workload: Workload) -> None:
    """As many as asked for, in order, the same again for the same seed."""
    made = drawn(workload, 5.0, PROMPTS, Random(1), count=50)
    assert len(made) == 50
    assert [shot.at for shot in made] == sorted(shot.at for shot in made)
    assert made == drawn(workload, 5.0, PROMPTS, Random(1), count=50)
    assert made != drawn(workload, 5.0, PROMPTS, Random(2), count=50)


def test_prompts_in_turn() -> None:
    """Each comes once before any comes again, with the length that it or the user says."""
    made = drawn(Workload.POISSON, 5.0, PROMPTS, Random(1), count=6)
    assert sorted(shot.output_tokens for shot in made[:3]) == [10, 20, 128]
    assert [shot.prompt for shot in made[:3]] == [shot.prompt for shot in made[3:]]
    set_by_hand = drawn(Workload.POISSON, 5.0, PROMPTS, Random(1), count=6, output_tokens=7)
    assert {shot.output_tokens for shot in set_by_hand} == {7}


def test_rounds() -> None:
    """They hold every shot once, in order, with the gaps between them kept."""
    made = rounds(shots(1.0, 2.0, 4.0, 8.0, 16.0), 2)
    assert [[shot.at for shot in part] for part in made] == [[1.0, 2.0], [2.0, 6.0, 14.0]]
    assert len(rounds(shots(1.0, 2.0), 5)) == 2
    assert rounds(shots(1.0), 0) == [shots(1.0)]
