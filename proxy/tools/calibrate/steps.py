"""The steps of a calibration against live servers: each adds to the state what it has measured.

A step that was done in an earlier run is not done again. Nothing is concluded here.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Final

from proxy.core.words import UpstreamName
from proxy.errors import SpecswitchError
from proxy.tools.asking import Question, Sample, ask, chat
from proxy.tools.calibrate.cells import Measurement, Part, Place, check, flaw
from proxy.tools.calibrate.loop import Asked, CellError, IntruderError, Loop, one_error, run
from proxy.tools.calibrate.plan import Pace, Plan, cell_seconds, enough, requests_of
from proxy.tools.calibrate.prefill import OUTPUT_TOKENS, REPEATS, Filled, lengths
from proxy.tools.calibrate.servers import Side, Sides, intruder, until_idle
from proxy.tools.calibrate.state import State
from proxy.tools.curves.cells import BadDataError
from proxy.tools.progress import Progress
from proxy.tools.prompts import Prompt, stretched

_BURST: Final = 8
"""Requests at once, to guess how time grows with the number in flight."""
_FEW_CUT: Final = 0.1
"""Share of answers that may reach the bound without anything being said of it."""
_NATURAL_TOKENS: Final = 1024
"""At most, of an answer whose length nobody gave."""
_NATURAL_PROMPTS: Final = 48
"""Prompts that are asked for it: their mean is then within some 12 %, as spread as lengths are."""
_BOTH_SECONDS: Final = 60.0
_LONG_FEWEST: Final = 8
"""Requests of a cell with long prompts, whose filling takes most of the time."""

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How requests are made, and what is put up with."""

    output_tokens: int
    temperature: float
    seed: int
    patience: float
    """Seconds for a server to become idle."""
    most_late: float
    """See calibrate_cells.check."""
    prefill_tokens: tuple[int, ...] | None = None
    """Prompt lengths for the prefill, if not those that fit the context."""


def _unseen() -> Progress:
    """Before it is known how long all takes there is nothing to show."""
    return Progress(0.0, clock=lambda: 0.0)


@dataclass(slots=True, kw_only=True)
class Steps:
    """Everything that is measured, in the order in which `calibrate` calls for it."""

    sides: Sides
    prompts: Sequence[Prompt]
    manner: Manner
    state: State
    keep: Callable[[], None]
    """Writes the state down."""
    clock: Callable[[], float]
    progress: Progress = field(default_factory=_unseen)
    _long: Sequence[Prompt] = ()

    async def pace(self) -> None:
        """A guess at each server's speed, which also warms it up: to say how long all will take."""
        for name, side in self.sides.items():
            if name in self.state.paces:
                continue
            await self._idle()
            alone = await self._burst(side, 1)
            several = min(_BURST, side.cap or _BURST)
            more = 0.0
            if several > 1:
                more = max(0.0, (await self._burst(side, several) - alone) / (several - 1))
            self.state.paces[name] = Pace(alone, more)
            self.keep()

    async def prefill(self) -> None:
        """First tokens of single requests with prompts of several lengths, on each server."""
        for name, side in self.sides.items():
            if name in self.state.filled:
                self.progress.skip(1.0)
                continue
            await self._idle()
            points: list[Filled] = []
            for wanted in self.manner.prefill_tokens or lengths(side.info.context_length):
                self.progress.step(0.0, note=f"{name}: prompts of {wanted} tokens")
                points += [
                    await self._fill(side, wanted, f"{name} {wanted} {turn}")
                    for turn in range(REPEATS)
                ]
            self.state.filled[name] = points
            self.keep()
            self.progress.step(1.0)

    async def natural(self) -> None:
        """How long answers are where nobody said: asked of base, without a fixed length."""
        unknown = [i for i, prompt in enumerate(self.prompts) if prompt.output_tokens is None]
        if self.state.natural is not None or not unknown:
            return
        await self._idle()
        side = self.sides[BASE]
        chosen = Random(self.manner.seed).sample(  # noqa: S311 - a choice that can be repeated
            unknown, min(_NATURAL_PROMPTS, len(unknown))
        )
        found: dict[int, int] = {}
        waiting = list(chosen)

        async def work() -> None:
            while waiting:
                index = waiting.pop()
                self.progress.step(0.0, note=f"lengths of answers, {len(waiting)} more")
                sample = await self._one(side, self.prompts[index], _NATURAL_TOKENS, natural=True)
                found[index] = sample.output_tokens or 1

        with one_error():
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_BURST, side.cap or _BURST)):
                    tasks.create_task(work())
        self.state.natural = found
        cut = sum(tokens >= _NATURAL_TOKENS for tokens in found.values())
        if cut > _FEW_CUT * len(found):
            self.state.note(
                f"{cut} of {len(found)} answers were cut at {_NATURAL_TOKENS} tokens: real ones "
                f"are longer, so λ* comes out too low; give max_tokens with the prompts"
            )
        self.keep()

    async def sweep(self, plan: Plan, *, whole: bool) -> None:
        """Each server alone, concurrency by concurrency, until that is enough (or `whole`)."""
        for level in plan.levels:
            if not whole and enough(self.rates()):
                return
            for place in plan.cells(level):
                await self.alone(place, rounds=1)

    async def again(self, plan: Plan) -> None:
        """Two cells of the beginning once more, to see whether they are what they were."""
        for place in plan.again:
            await self.alone(place, rounds=2)

    async def alone(self, place: Place, *, rounds: int) -> None:
        """Measure a cell until it has so many rounds."""
        done = len(self.state.rounds(place))
        weight = self.seconds(place)
        if done:
            self.progress.skip(min(done, rounds) * weight)
        for turn in range(done, rounds):
            self.progress.step(0.0, note=str(place))
            requests = self._requests(place)
            (found,) = await self._measured([place], requests, turn)
            self.state.cells.append(found)
            self.keep()
            self.progress.step(weight)

    async def both(self, level: int) -> None:
        """Both servers at once, each with a closed loop of `level`."""
        places = [Place(Part.BOTH, name, level) for name in self.sides]
        if any(self.state.rounds(place) for place in places):
            return
        self.progress.step(0.0, note=f"both at once, {level} each")
        seconds = max(self.seconds(place) for place in places)
        # Side by side each is at most half as fast; what would take longer than a minute is cut.
        share = min(1.0, _BOTH_SECONDS / (2.0 * seconds)) if seconds > 0.0 else 1.0
        requests = max(level, _LONG_FEWEST, round(share * requests_of(level)))
        self.state.cells += await self._measured(places, requests, 0)
        self.keep()

    async def long(self, levels: Sequence[int], tokens: int) -> None:
        """Each server alone with prompts of about `tokens`, at each of `levels`."""
        self._long = [
            stretched(prompt, tokens, self.prompts, f"{self.manner.seed}-{number}")
            for number, prompt in enumerate(self.prompts)
        ]
        for turn, level in enumerate(levels):
            for name in (SPEC, BASE) if turn % 2 == 0 else (BASE, SPEC):
                await self.alone(Place(Part.LONG, name, level), rounds=1)

    def rates(self) -> dict[UpstreamName, dict[int, float]]:
        """Output tokens/s by server and concurrency, as far as the sweep has come."""
        return {
            name: {found.place.concurrency: found.rate for found in self.state.of(Part.SWEEP, name)}
            for name in self.sides
        }

    def seconds(self, place: Place) -> float:
        """About how long a round of a cell takes."""
        pace = self.state.paces[place.server]
        return cell_seconds(
            pace, place.concurrency, self.manner.output_tokens, self._requests(place)
        )

    def _requests(self, place: Place) -> int:
        if place.part is Part.LONG:
            return max(_LONG_FEWEST, place.concurrency)
        return requests_of(place.concurrency)

    async def _measured(
        self, places: Sequence[Place], requests: int, turn: int
    ) -> list[Measurement]:
        """A round of these cells, side by side; a second try where the first may have been chance.

        Raises:
            CellError: a request failed, or somebody else was there.
            BadDataError: this machine was too late to be believed.
        """
        try:
            return await self._try(places, requests, turn)
        except (CellError, BadDataError) as error:
            if isinstance(error, CellError) and not error.again:
                raise
            if isinstance(error, IntruderError):
                self._intruded(error)
            self.state.note(f"measured again: {error}")
        return await self._try(places, requests, turn)

    def _intruded(self, error: IntruderError) -> None:
        """Once may be a slip; whoever comes again was there unseen, too.

        Raises:
            SpecswitchError: it was not the first time.
        """
        self.state.intruded += 1
        if self.state.intruded > 1:
            self.state.intruded = 0
            raise SpecswitchError(
                f"{error}. That was not the first time, so what was measured in between is not to "
                f"be believed either: keep all traffic away, and begin anew with --fresh"
            )

    async def _try(self, places: Sequence[Place], requests: int, turn: int) -> list[Measurement]:
        await self._idle()
        ours = {place.server: place.concurrency for place in places}
        loops = [
            Loop(
                client=self.sides[place.server].client,
                place=place,
                asked=self._asked(place, turn),
                requests=requests,
                output_tokens=self.manner.output_tokens,
                clock=self.clock,
            )
            for place in places
        ]
        found = await run(loops, lambda: intruder(self.sides, ours))
        for each in found:
            check(each, self.manner.most_late)
        return found

    def _asked(self, place: Place, turn: int) -> Asked:
        """The prompts in an order that is the same for both servers, and new for each round."""
        prompts = self._long if place.part is Part.LONG else self.prompts
        order = list(range(len(prompts)))
        Random(f"{self.manner.seed} {place.concurrency} {turn}").shuffle(order)  # noqa: S311 - again
        side = self.sides[place.server]

        def make(prompt: int, tokens: int) -> Question:
            return self._question(side, prompts[prompt], tokens)

        return Asked(order, make, [prompt.source for prompt in prompts])

    def _question(
        self, side: Side, prompt: Prompt, tokens: int, *, natural: bool = False
    ) -> Question:
        return chat(
            prompt.messages,
            model=side.model,
            max_tokens=tokens,
            ignore_eos=not natural,
            temperature=self.manner.temperature,
            details=side.name is SPEC,
        )

    async def _one(
        self, side: Side, prompt: Prompt, tokens: int, *, natural: bool = False
    ) -> Sample:
        question = self._question(side, prompt, tokens, natural=natural)
        sample = await ask(side.client, question, clock=self.clock)
        asked = (sample.output_tokens or tokens) if natural else tokens
        wrong = flaw(sample, asked)
        # An answer of one token has come as soon as it has begun.
        if wrong is not None and not (natural and sample.ok and sample.output_tokens == 1):
            raise BadDataError(f"{side.name}: {prompt.source}: {wrong}")
        return sample

    async def _burst(self, side: Side, count: int) -> float:
        """Median seconds per token of so many requests at once."""
        tokens, prompts = self.manner.output_tokens, self.prompts
        with one_error():
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(self._one(side, prompts[turn % len(prompts)], tokens))
                    for turn in range(count)
                ]
        times = [task.result().seconds_per_token for task in asked]
        return median(each for each in times if each is not None)

    async def _fill(self, side: Side, wanted: int, mark: str) -> Filled:
        prompt = Prompt(({"role": "user", "content": "Go on."},), source="a long prompt of ours")
        longer = stretched(prompt, wanted, self.prompts, f"{self.manner.seed} {mark}")
        sample = await self._one(side, longer, OUTPUT_TOKENS)
        return Filled(wanted, sample.prompt_tokens or wanted, sample.first_token_seconds or 0.0)

    async def _idle(self) -> None:
        """Both servers without work, and with empty caches where they let us."""
        silent = await until_idle(self.sides, patience=self.manner.patience, clock=self.clock)
        for name in silent:
            self.state.note(f"{name} does not say what it has in hand: nobody looked for others")
        for side in self.sides.values():
            if not await side.flush():
                self.state.note(f"the prefix cache of {side.name} could not be emptied in between")
