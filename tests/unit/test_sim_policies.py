"""The policies of a simulation: rules, the run that plays them, and what it amounts to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from proxy.config.model import Policy as PolicySection
from proxy.core.tolerance import Bounds
from proxy.core.words import UpstreamName
from proxy.sim import engine
from proxy.sim.engine import Emitted, Happening, Refused
from proxy.sim.knowledge import Knowledge, conversations, know
from proxy.sim.physics import CHAIN, FOUNDING
from proxy.sim.policies import EngineKind, Policy, Setting, is_possible, play, thresholds
from proxy.sim.results import Objective, spread, summarize
from proxy.sim.rivals import Rival, Rule, always, hysteresis, spill, static
from proxy.sim.run import Change, Run, Submit, run
from proxy.sim.switching import Switching, settings
from proxy.sim.traces import Request

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

KNOWLEDGE = Knowledge(crossover=3.1, crossover_rate=180.0, output_tokens=100.0)
SETTING = Setting(profile=FOUNDING, contention=0.9, knowledge=KNOWLEDGE)


def every(seconds: float, count: int, *, output_tokens: int = 100) -> list[Request]:
    """`count` requests, one each `seconds`."""
    return [Request(seconds * number, 100, output_tokens) for number in range(count)]


@dataclass
class Clerk:
    """Engines that end each sequence a set time after it came, or refuse it."""

    seconds: float = 1.0
    refuses: bool = False
    due: list[tuple[float, UpstreamName, int]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def submit(self, engine: UpstreamName, sequence: engine.Sequence, now: float) -> None:
        """Take note."""
        self.log.append(f"{now:g} submit {sequence.key}")
        self.due.append((now + self.seconds, engine, sequence.key))

    def advance(self, now: float) -> Sequence[Happening]:
        """Those due."""
        ended = [one for one in self.due if one[0] <= now]
        self.due = [one for one in self.due if one[0] > now]
        self.log += [f"{now:g} end {key}" for _, _, key in ended]
        if self.refuses:
            return [Refused(at, name, key) for at, name, key in ended]
        return [Emitted(at, name, key, 100, None, last=True) for at, name, key in ended]

    def next_event(self) -> float | None:
        """When the first is due."""
        return min((at for at, _, _ in self.due), default=None)


def rival(rule: Rule) -> Callable[[Submit], Rival]:
    """A router by this rule."""
    return lambda submit: Rival(rule, submit)


@pytest.mark.parametrize(
    ("rule", "spec", "base", "last", "goes"),
    [
        (always(SPEC), 100, 0, BASE, SPEC),
        (always(BASE), 0, 0, SPEC, BASE),
        (static(3.1), 2, 0, BASE, SPEC),
        (static(3.1), 2, 1, SPEC, BASE),
        (spill(3.1), 2, 50, BASE, SPEC),
        (spill(3.1), 3, 0, SPEC, BASE),
        (hysteresis(8.0, 2.0), 7, 0, SPEC, SPEC),
        (hysteresis(8.0, 2.0), 8, 0, SPEC, BASE),
        (hysteresis(8.0, 2.0), 0, 2, BASE, BASE),
        (hysteresis(8.0, 2.0), 0, 1, BASE, SPEC),
        (hysteresis(3.1, 0.8), 0, 0, BASE, SPEC),
        (hysteresis(0.5, 0.2), 0, 0, BASE, BASE),
    ],
)
def test_rules(rule: Rule, spec: int, base: int, last: UpstreamName, goes: UpstreamName) -> None:
    """Each rule sends a request where its description says."""
    assert rule(spec, base, last) is goes


def test_rival_counts_both_engines_and_tells_changes() -> None:
    """A rule sees what is in flight now, and a change is told once, when it happens."""
    found = run(every(0.25, 6), Clerk(), rival(static(2.0)))

    assert [one.upstream for one in found.served] == [SPEC, SPEC, BASE, BASE, BASE, BASE]
    assert found.changes == [Change(0.5, BASE)]
    assert [(m.spec, m.base) for m in found.moments[:4]] == [(1, 0), (2, 0), (2, 1), (2, 2)]
    assert (found.moments[-1].spec, found.moments[-1].base) == (0, 0)


def test_ends_come_before_an_arrival_of_the_same_instant() -> None:
    """Who arrives as another ends finds its place free."""
    clerk = Clerk()
    found = run(every(1.0, 3), clerk, rival(static(1.0)))

    assert clerk.log[:4] == ["0 submit 0", "1 end 0", "1 submit 1", "2 end 1"]
    assert found.changes == []


def test_refused_requests_are_counted_and_end() -> None:
    """A queue that is full ends a request without tokens."""
    found = run(every(1.0, 3), Clerk(refuses=True), rival(always(BASE)))

    assert all(one.refused for one in found.served)
    with pytest.raises(ValueError, match="no request was served"):
        summarize(found, Objective())


def test_nothing_to_do_is_done() -> None:
    """A run of no requests ends at once."""
    assert run([], Clerk(), rival(always(BASE))) == Run([], [], [])


class Keeper:
    """A router that forgets to submit."""

    ticks = False
    changes: Sequence[Change] = ()

    def arrive(self, key: int, now: float) -> None:
        """Keep it."""

    def end(self, key: int, output_tokens: int, now: float) -> None:
        """Never called."""

    def tick(self, now: float) -> None:
        """Never called."""


def test_router_that_holds_on_to_requests_is_found_out() -> None:
    """A run that can never end says so."""
    with pytest.raises(RuntimeError, match="2 requests have not ended"):
        run(every(1.0, 2), Clerk(), lambda _submit: Keeper())


def test_spread_takes_the_smallest_value_that_covers_the_share() -> None:
    """Percentiles are values that occurred; of nothing they are infinite."""
    values = spread([float(value) for value in range(1, 101)])

    assert (values.mean, values.p50, values.p95, values.p99) == (50.5, 50.0, 95.0, 99.0)
    assert spread([]).mean == inf


def test_figures_of_a_run() -> None:
    """Shares, rates and halves are those of the requests served."""
    found = summarize(run(every(1.0, 60), Clerk(0.5), rival(static(1.0))), Objective())

    assert found.requests == 60
    assert found.refused == 0
    assert found.e2e.mean == pytest.approx(0.5)
    assert found.tokens_per_second == pytest.approx(6000 / 59.5)
    assert found.goodput == 1.0
    assert (found.on_spec, found.both_active, found.switches_per_minute) == (1.0, 0.0, 0.0)
    assert [found.quiet, found.busy] == pytest.approx([0.5, 0.5])
    assert found.peak_spec == 1


def test_goodput_asks_for_both_times() -> None:
    """A request that is late with its first token is not good."""
    late = summarize(
        run(every(9.0, 3), Clerk(5.0), rival(always(BASE))), Objective(first_token=4.0)
    )

    assert late.goodput == 0.0


def test_both_active_share() -> None:
    """The time in which both have work counts, once."""
    requests = [Request(0.0, 1, 10), Request(0.5, 1, 10), Request(3.0, 1, 10)]
    found = summarize(run(requests, Clerk(), rival(static(1.0))), Objective())

    assert found.both_active == pytest.approx(0.5 / 4.0)
    assert found.on_spec == pytest.approx(2 / 3)


def test_busy_half_is_that_with_more_arrivals_around() -> None:
    """The halves are told apart by arrivals, not by the policy."""
    quiet = [Request(100.0 * number, 100, 200) for number in range(5)]
    busy = [Request(1000.0 + 0.1 * number, 100, 200) for number in range(5)]
    found = summarize(play(Policy.ALWAYS_SPEC, SETTING, quiet + busy, seed=0), Objective())

    assert found.busy > 1.5 * found.quiet


def test_defaults_are_those_of_the_configuration() -> None:
    """What is simulated is what is served with nothing configured."""
    by, section = thresholds(KNOWLEDGE), PolicySection()

    names = [
        "gate_factor", "rate_up", "rate_down", "fast_window", "slow_window",
        "count_window", "return_dwell", "flap_limit", "flap_window", "flap_hold", "topology",
    ]  # fmt: skip
    assert [getattr(by, name) for name in names] == [getattr(section, name) for name in names]
    shares = Bounds(section.up_factor, section.up_factor_min, section.up_factor_max)
    assert by.tolerance == shares


def test_switch_is_on_spec_when_alone_and_leaves_under_load() -> None:
    """Ours speculates for a lone user and not in a flood; a burst leaves few behind on spec."""
    calm = play(Policy.SWITCH, SETTING, every(10.0, 30), seed=0)
    flood = play(Policy.SWITCH, SETTING, every(0.1, 300), seed=0)

    assert {one.upstream for one in calm.served} == {SPEC}
    assert calm.changes == []
    assert [change.to for change in flood.changes] == [BASE]
    assert sum(one.upstream is SPEC for one in flood.served) < 10


def test_switch_returns_when_load_goes_away() -> None:
    """After a flood the lone user has speculation again."""
    later = [Request(200.0 + 10.0 * number, 100, 100) for number in range(10)]
    found = play(Policy.SWITCH, SETTING, every(0.1, 300) + later, seed=0)

    assert [change.to for change in found.changes] == [BASE, SPEC]
    assert found.changes[1].at < later[0].at  # by time alone, before anybody came
    assert found.served[-1].upstream is SPEC


def test_switch_learns_from_usage() -> None:
    """The dispatcher is told how many tokens a request had, as the proxy tells it."""
    asked = settings(thresholds(KNOWLEDGE), spec_cap=48, expected_tokens=100.0)
    routers: list[Switching] = []

    def router(submit: Submit) -> Switching:
        routers.append(Switching(asked, submit, now=0.0))
        return routers[0]

    run(every(2.0, 50, output_tokens=300), Clerk(), router)

    assert routers[0].dispatcher.lengths.output_tokens == pytest.approx(300.0)


def test_switch_leaves_those_waiting_to_the_dispatcher() -> None:
    """Who finds no place waits in the dispatcher's room and is submitted when one comes free."""
    asked = replace(
        settings(thresholds(KNOWLEDGE), spec_cap=48, expected_tokens=100.0), max_in_flight=2
    )
    found = run(every(0.1, 6), Clerk(), lambda submit: Switching(asked, submit, now=0.0))

    assert max(moment.spec + moment.base for moment in found.moments) == 2
    assert all(one.end_at < inf for one in found.served)


def test_refusal_by_the_dispatcher_is_an_error_of_the_simulation() -> None:
    """A request that is lost without a word would make the figures better."""
    asked = replace(
        settings(thresholds(KNOWLEDGE), spec_cap=48, expected_tokens=100.0),
        max_in_flight=1,
        queue_size=0,
    )
    with pytest.raises(RuntimeError, match="the dispatcher refused request 1"):
        run(every(0.1, 3), Clerk(), lambda submit: Switching(asked, submit, now=0.0))


def test_spec_full_goes_to_base() -> None:
    """Where speculation always pays, only its cap sends requests away."""
    always_pays = Knowledge(crossover=inf, crossover_rate=inf, output_tokens=100.0)
    setting = Setting(profile=CHAIN, contention=0.9, knowledge=always_pays)
    found = play(Policy.SWITCH, setting, every(0.001, 60), seed=0)

    on_spec = [one.upstream for one in found.served].count(SPEC)
    assert on_spec == setting.spec_cap


@pytest.mark.parametrize("policy", list(Policy))
def test_every_policy_serves_all(policy: Policy) -> None:
    """Each policy ends every request, with the tokens that it asked for."""
    found = play(policy, SETTING, every(0.5, 40), seed=0)

    assert all(one.request.at < one.first_at <= one.end_at < inf for one in found.served)


@pytest.mark.parametrize("policy", [Policy.SWITCH, Policy.STATIC, Policy.ALWAYS_SPEC])
def test_steps_and_fluid_agree(policy: Policy) -> None:
    """Both models of the engines give the same mean time within a tenth."""
    steps = Setting(profile=FOUNDING, contention=0.9, knowledge=KNOWLEDGE, engines=EngineKind.STEPS)
    requests = every(0.8, 60)
    means = [
        summarize(play(policy, setting, requests, seed=0), Objective()).e2e.mean
        for setting in (SETTING, steps)
    ]

    assert means[0] == pytest.approx(means[1], rel=0.1)


def test_ideal_is_fluid_only() -> None:
    """There is no step-wise engine that switches inside."""
    steps = Setting(profile=FOUNDING, contention=0.9, knowledge=KNOWLEDGE, engines=EngineKind.STEPS)

    assert not is_possible(Policy.IDEAL, EngineKind.STEPS)
    with pytest.raises(ValueError, match="no engines of the kind steps"):
        play(Policy.IDEAL, steps, every(1.0, 2), seed=0)


def test_knowledge_of_the_profiles() -> None:
    """N* is that of the physics, and λ* lies where both fixed modes are equal."""
    lengths = conversations(500)
    founding, chain = know(FOUNDING, lengths), know(CHAIN, lengths)

    assert founding.crossover == pytest.approx(3.108, rel=0.01)
    assert 150.0 < founding.crossover_rate < 210.0
    assert founding.output_tokens == pytest.approx(211.0, rel=0.1)
    assert (chain.crossover, chain.crossover_rate) == (inf, inf)
