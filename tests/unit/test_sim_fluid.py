"""The fluid model says what the step-wise one says, and keeps its rules for places and cache."""

from collections.abc import Mapping
from dataclasses import replace
from math import isclose
from random import Random
from statistics import fmean
from typing import Protocol

import pytest

from proxy.core.words import UpstreamName
from proxy.sim.arrivals import poisson
from proxy.sim.engine import Emitted, Happening, Limits, Load, Refused, Sequence
from proxy.sim.fluid import CACHE_TOKENS, Fluid, Model, model, pair, single, switching
from proxy.sim.gpu import Gpu
from proxy.sim.lengths import CONVERSATION_PROMPTS, CONVERSATION_REPLIES, draw, spread
from proxy.sim.physics import FOUNDING, TREE, Profile, StepCost, output_rate, prefill_work
from proxy.sim.workloads import WORKLOADS, capacity, requests

BASE, SPEC = UpstreamName.BASE, UpstreamName.SPEC

Arriving = list[tuple[float, UpstreamName, Sequence]]


class _Simulated(Protocol):
    """What both models of a GPU can do."""

    def submit(self, engine: UpstreamName, sequence: Sequence, now: float) -> None: ...
    def advance(self, now: float) -> list[Happening]: ...
    def next_event(self) -> float | None: ...
    def load(self, engine: UpstreamName) -> Load: ...


def _arriving(rate: float, count: int, engines: tuple[UpstreamName, ...]) -> Arriving:
    random = Random(f"{rate}")
    times = poisson(rate, random)
    return [
        (
            next(times),
            engines[key % len(engines)],
            Sequence(key, draw(CONVERSATION_PROMPTS, random), draw(CONVERSATION_REPLIES, random)),
        )
        for key in range(count)
    ]


def _play(gpu: _Simulated, arriving: Arriving) -> list[Happening]:
    """Everything from the first arrival to the moment when both engines are idle."""
    happened: list[Happening] = []
    for at, engine, sequence in arriving:
        while (due := gpu.next_event()) is not None and due <= at:
            happened += gpu.advance(due)
        gpu.submit(engine, sequence, at)
    return happened + _finish(gpu)


def _finish(gpu: _Simulated) -> list[Happening]:
    happened: list[Happening] = []
    while (due := gpu.next_event()) is not None:
        happened += gpu.advance(due)
    return happened


def _emitted(happened: list[Happening]) -> list[Emitted]:
    return [one for one in happened if isinstance(one, Emitted)]


def _mean_seconds(arriving: Arriving, happened: list[Happening]) -> tuple[float, float]:
    """To the first token and to the end."""
    born = {sequence.key: at for at, _, sequence in arriving}
    first: dict[int, float] = {}
    ends: dict[int, float] = {}
    for one in _emitted(happened):
        first.setdefault(one.key, one.at - born[one.key])
        if one.last:
            ends[one.key] = one.at - born[one.key]
    assert len(ends) == len(arriving)
    return sum(first.values()) / len(first), sum(ends.values()) / len(ends)


def _limits(models: Mapping[UpstreamName, Model]) -> dict[UpstreamName, Limits]:
    return {name: one.limits for name, one in models.items()}


def _small(**limits: int) -> Fluid:
    """A plain engine of the founding profile with these limits."""
    wanted = Limits(max_running=limits.pop("max_running", 8), **limits)
    return Fluid({BASE: model(FOUNDING, BASE, wanted)}, contention=0.9)


@pytest.mark.parametrize("profile", [FOUNDING, TREE], ids=lambda profile: profile.name)
@pytest.mark.parametrize(
    ("load", "engines"),
    [
        (0.1, (BASE,)),
        (0.7, (BASE,)),
        (0.1, (SPEC,)),
        (0.4, (SPEC,)),
        (0.3, (SPEC, BASE)),
        (0.6, (SPEC, BASE, BASE, BASE)),
    ],
)
def test_it_agrees_with_the_stepwise_model(
    profile: Profile, load: float, engines: tuple[UpstreamName, ...]
) -> None:
    """Mean times to the end are within 2 %, to the first token within 10 %."""
    models = pair(profile)
    arriving = _arriving(load * capacity(profile), 250, engines)
    flowing = _play(Fluid(models, contention=0.9), arriving)
    stepping = Gpu(profile, _limits(models), contention=0.9, random=Random(1))
    first, end = _mean_seconds(arriving, flowing)
    exact_first, exact_end = _mean_seconds(arriving, _play(stepping, arriving))
    assert isclose(end, exact_end, rel_tol=0.02)
    assert isclose(first, exact_first, rel_tol=0.1)


def _ladder(models: Mapping[UpstreamName, Model], profile: Profile, load: float) -> float:
    """Mean seconds to the end at a Poisson load, over two seeds."""
    (name,) = models
    workload = replace(WORKLOADS["poisson-10"], load=load)
    found = []
    for seed in (0, 1):
        arriving = [
            (one.at, name, Sequence(key, one.prompt_tokens, one.output_tokens))
            for key, one in enumerate(requests(workload, profile, 1500, seed))
        ]
        found.append(_mean_seconds(arriving, _play(Fluid(models, contention=0.9), arriving))[1])
    return fmean(found)


@pytest.mark.parametrize(
    ("profile", "load", "base", "spec", "ideal"),
    [
        (FOUNDING, 0.05, 1.83, 1.17, 1.16),
        (FOUNDING, 0.1, 1.92, 1.30, 1.28),
        (FOUNDING, 0.2, 2.13, 1.68, 1.60),
        (FOUNDING, 0.3, 2.39, 2.40, 1.99),
        (TREE, 0.1, 1.51, 0.75, 0.75),
        (TREE, 0.3, 1.83, 0.96, 0.94),
    ],
    ids=lambda value: value.name if isinstance(value, Profile) else None,
)
def test_the_ladder(profile: Profile, load: float, base: float, spec: float, ideal: float) -> None:
    """The fixed modes and the ideal switch have the mean times of docs/model.md, within 6 %."""
    assert isclose(_ladder(single(profile, BASE), profile, load), base, rel_tol=0.06)
    assert isclose(_ladder(single(profile, SPEC), profile, load), spec, rel_tol=0.06)
    assert isclose(_ladder(switching(profile), profile, load), ideal, rel_tol=0.06)


@pytest.mark.parametrize(("profile", "share"), [(FOUNDING, 0.51), (TREE, 0.61)])
def test_the_capacity_of_the_speculative_engine(profile: Profile, share: float) -> None:
    """51 and 61 % of the plain one's, within 5 %."""
    gpu = Fluid(single(profile, SPEC), contention=0.9)
    lengths = zip(
        spread(CONVERSATION_PROMPTS, 3000, Random(1)),
        spread(CONVERSATION_REPLIES, 3000, Random(2)),
        strict=True,
    )
    for key, (prompt, reply) in enumerate(lengths):
        gpu.submit(SPEC, Sequence(key, prompt, reply), 0.0)
    ends = [one.at for one in _emitted(_finish(gpu)) if one.last]
    assert isclose(2400 / (ends[2700] - ends[300]), share * capacity(profile), rel_tol=0.05)


def test_a_request_costs_a_few_events() -> None:
    """Arrival, start and end of its prefill, its own end; its length does not matter."""
    gpu, events = Fluid(pair(FOUNDING), contention=0.9), 0
    for at, engine, sequence in _arriving(0.8, 200, (BASE,)):
        while (due := gpu.next_event()) is not None and due <= at:
            gpu.advance(due)
            events += 1
        gpu.submit(engine, sequence, at)
    assert events <= 4 * 200


def test_every_sequence_gets_its_tokens() -> None:
    """A first token and then the rest, and nothing is left behind."""
    gpu = Fluid(pair(FOUNDING), contention=0.9)
    arriving = _arriving(3.0, 200, (SPEC, BASE))
    tokens: dict[int, int] = {}
    for one in _emitted(_play(gpu, arriving)):
        tokens[one.key] = tokens.get(one.key, 0) + one.tokens
    assert tokens == {sequence.key: sequence.output_tokens for _, _, sequence in arriving}
    for name in (SPEC, BASE):
        load = gpu.load(name)
        assert (load.running, load.waiting, load.used_tokens, load.output_rate) == (0, 0, 0, 0.0)
        wanted = sum(s.output_tokens for _, engine, s in arriving if engine is name)
        assert isclose(load.counters.output_tokens, wanted, abs_tol=1.0)


def test_the_load_of_a_busy_engine() -> None:
    """Rate and acceptance length are those of the formulas; the cache holds what was filled."""
    gpu = Fluid(pair(FOUNDING), contention=0.9)
    for key in range(4):
        gpu.submit(SPEC, Sequence(key, 10, 1000), 0.0)
    gpu.submit(BASE, Sequence(9, 5000, 10), 0.0)
    gpu.advance(2.0)
    load = gpu.load(SPEC)
    assert (load.running, load.waiting, gpu.load(BASE).running) == (4, 0, 0)
    assert isclose(load.output_rate, output_rate(FOUNDING, SPEC, 4), rel_tol=1e-6)
    assert load.acceptance_length == pytest.approx(2.6, rel=0.01)
    assert load.used_tokens == pytest.approx(4 * 10 + load.counters.output_tokens, abs=2)
    assert gpu.load(BASE).acceptance_length is None


def test_a_prefill_begins_between_two_steps() -> None:
    """Who comes while a step runs waits for half of one; who comes meanwhile is filled with it."""
    gpu = _small()
    gpu.submit(BASE, Sequence(1, 1, 1000), 0.0)
    gpu.submit(BASE, Sequence(2, 1000, 10), 1.0)
    step = 1.0 / output_rate(FOUNDING, BASE, 1)
    gpu.submit(BASE, Sequence(3, 2000, 10), 1.0 + step / 4)
    first = {one.key: one.at for one in _emitted(_finish(gpu)) if not one.last}
    both = 1.0 + step / 2 + prefill_work(FOUNDING, BASE, 3000).seconds
    assert isclose(first[2], both)
    assert isclose(first[3], both)


def test_a_prefill_stalls_its_own_engine() -> None:
    """What decodes waits for as long as the other prompt takes to fill."""
    alone, stalled = _small(max_total_tokens=50_000), _small(max_total_tokens=50_000)
    for gpu in (alone, stalled):
        gpu.submit(BASE, Sequence(1, 1, 100), 0.0)
    stalled.submit(BASE, Sequence(2, 10_000, 1), 0.2)
    ends = [
        next(one.at for one in _emitted(_finish(gpu)) if one.key == 1 and one.last)
        for gpu in (alone, stalled)
    ]
    assert isclose(ends[1] - ends[0], prefill_work(FOUNDING, BASE, 10_000).seconds)


def test_two_engines_slow_each_other_down() -> None:
    """Both without a host part: each runs at half of eta while both decode."""
    rates = []
    for engines in ((BASE,), (SPEC, BASE)):
        gpu = Fluid(pair(FOUNDING), contention=0.9)
        for key, name in enumerate(engines):
            gpu.submit(name, Sequence(key, 1, 5000), 0.0)
        gpu.advance(3.0)
        rates.append(gpu.load(BASE).output_rate)
    assert isclose(rates[1] / rates[0], 0.45)


def test_places_bound_what_runs() -> None:
    """The rest waits in the order of arrival."""
    gpu = _small(max_running=2)
    for key in range(5):
        gpu.submit(BASE, Sequence(key, 1, 30), 0.0)
    gpu.advance(0.01)
    assert (gpu.load(BASE).running, gpu.load(BASE).waiting) == (2, 3)
    first: dict[int, float] = {}
    for one in _emitted(_finish(gpu)):
        first.setdefault(one.key, one.at)
    assert list(first) == [0, 1, 2, 3, 4]
    assert first[2] > first[1]


def test_the_cache_bounds_what_runs() -> None:
    """A sequence waits while there is no room for its prompt and its whole output."""
    gpu = _small(max_total_tokens=100)
    gpu.submit(BASE, Sequence(1, 40, 20), 0.0)
    gpu.submit(BASE, Sequence(2, 40, 20), 0.0)
    gpu.advance(0.0)
    assert (gpu.load(BASE).running, gpu.load(BASE).waiting_tokens) == (1, 40)
    assert sum(one.tokens for one in _emitted(_finish(gpu))) == 40


def test_a_full_queue_refuses() -> None:
    """The refusal is told at once."""
    gpu = _small(max_running=1, max_queued=0)
    gpu.submit(BASE, Sequence(1, 1, 1000), 0.0)
    gpu.advance(0.5)
    gpu.submit(BASE, Sequence(2, 1, 10), 0.5)
    assert gpu.next_event() == 0.5
    assert gpu.advance(0.5) == [Refused(0.5, BASE, 2)]
    assert gpu.load(BASE).counters.refused == 1


def test_cancelling_frees_the_place() -> None:
    """A running and a waiting sequence go, the next in line runs, and no more is told of them."""
    gpu = _small(max_running=1)
    for key in (1, 2, 3):
        gpu.submit(BASE, Sequence(key, 10, 100), 0.0)
    gpu.advance(0.1)
    assert gpu.cancel(BASE, 1, 0.1)
    assert gpu.cancel(BASE, 2, 0.1)
    assert not gpu.cancel(BASE, 2, 0.1)
    assert {one.key for one in _emitted(_finish(gpu))} == {3}
    assert (gpu.load(BASE).counters.aborted, gpu.load(BASE).counters.finished) == (2, 1)


def test_a_key_may_come_again() -> None:
    """A cancelled sequence leaves no end behind that its successor would be given."""
    gpu = _small()
    gpu.submit(BASE, Sequence(1, 1, 20), 0.0)
    gpu.submit(BASE, Sequence(2, 1, 500), 0.0)
    gpu.advance(0.1)
    gpu.cancel(BASE, 1, 0.1)
    gpu.submit(BASE, Sequence(1, 1, 400), 0.1)
    ended = [one.key for one in _emitted(_finish(gpu)) if one.last]
    assert ended == [1, 2]
    assert gpu.load(BASE).counters.output_tokens == pytest.approx(500 + 400 + 10, abs=6)


def test_cancelling_during_the_prefill() -> None:
    """It keeps its length, and a sequence that goes meanwhile leaves nothing in the cache."""
    gpu = _small(max_total_tokens=50_000)
    gpu.submit(BASE, Sequence(1, 10_000, 5), 0.0)
    gpu.advance(0.1)
    assert gpu.cancel(BASE, 1, 0.1)
    gpu.submit(BASE, Sequence(2, 1, 5), 0.1)
    assert _emitted(_finish(gpu))[0].at > prefill_work(FOUNDING, BASE, 10_000).seconds
    assert gpu.load(BASE).used_tokens == 0


def test_what_happened_late_is_told_at_its_time() -> None:
    """A caller that comes late hears the same things at the same times as one that is punctual."""
    arriving = _arriving(3.0, 40, (SPEC, BASE))
    punctual, late = Fluid(pair(FOUNDING), contention=0.9), Fluid(pair(FOUNDING), contention=0.9)
    expected = _play(punctual, arriving)
    for at, engine, sequence in arriving:
        late.submit(engine, sequence, at)
    found = late.advance(10_000.0)
    assert [(one.engine, one.key) for one in found] == [(one.engine, one.key) for one in expected]
    assert [one.at for one in found] == pytest.approx([one.at for one in expected])


def test_time_does_not_go_back() -> None:
    """An earlier `now` is a mistake of the caller."""
    gpu = _small()
    gpu.advance(1.0)
    with pytest.raises(ValueError, match="time goes back"):
        gpu.advance(0.5)


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        (Sequence(1, 1, 10), "already"),
        (Sequence(2, 0, 10), "at least one"),
        (Sequence(2, 1, 0), "at least one"),
        (Sequence(2, 60, 60), "do not fit"),
    ],
)
def test_impossible_sequences_are_refused(sequence: Sequence, reason: str) -> None:
    """As on the step-wise model."""
    gpu = _small(max_total_tokens=100)
    gpu.submit(BASE, Sequence(1, 1, 10), 0.0)
    with pytest.raises(ValueError, match=reason):
        gpu.submit(BASE, sequence, 0.0)


@pytest.mark.parametrize(("sequences", "like"), [(1, SPEC), (40, BASE)])
def test_the_ideal_switch_is_the_faster_engine(sequences: int, like: UpstreamName) -> None:
    """On each side of the crossover it decodes at the rate of the engine that is ahead there."""
    gpu = Fluid(switching(FOUNDING), contention=0.9)
    for key in range(sequences):
        gpu.submit(SPEC, Sequence(key, 1, 1000), 0.0)
    gpu.advance(1.0)
    assert isclose(gpu.load(SPEC).output_rate, output_rate(FOUNDING, like, sequences))


def test_overhead_is_paid_by_plain_steps_only() -> None:
    """10 % more for a step without speculation, nothing for one with it."""
    rates = []
    for sequences in (1, 40):
        gpu = Fluid(switching(FOUNDING, 0.1), contention=0.9)
        for key in range(sequences):
            gpu.submit(SPEC, Sequence(key, 1, 1000), 0.0)
        gpu.advance(1.0)
        rates.append(gpu.load(SPEC).output_rate)
    assert isclose(rates[0], output_rate(FOUNDING, SPEC, 1))
    assert isclose(rates[1], output_rate(FOUNDING, BASE, 40) / 1.1)


def test_the_switch_takes_all_that_the_plain_engine_takes() -> None:
    """Its places and its cache are those of one engine alone on the GPU."""
    alone, ideal = single(FOUNDING, BASE)[BASE], switching(FOUNDING)[SPEC]
    assert ideal.limits == alone.limits
    assert ideal.limits.max_total_tokens == CACHE_TOKENS
    assert 2 * pair(FOUNDING)[BASE].limits.max_total_tokens < CACHE_TOKENS


def test_reading_grows_with_the_context() -> None:
    """A step costs the mean of what it reads until the next event: 1 s a token of context here."""
    costly = StepCost(fixed=1.0, per_context_token=1.0)
    profile = Profile(
        name="reading",
        base=costly,
        spec=costly,
        acceptance_length=1.0,
        draft_steps=1,
        draft_topk=1,
        draft_tokens=2,
        prefill_per_token=0.0,
    )
    gpu = Fluid(single(profile, BASE), contention=0.9)
    gpu.submit(BASE, Sequence(1, 9, 11), 0.0)
    end = _emitted(_finish(gpu))[-1].at
    # Ten steps, over a context that grows from 10 to 20, and 3 ms of prefill.
    assert isclose(end, 10 * (1.0 + 15.0) + 0.003)
