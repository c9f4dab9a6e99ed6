"""The prober: what it asks, when, and what it tells the dispatcher. No socket and no waiting."""

import asyncio
import errno
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple, cast

import httpx2
import pytest

from proxy.control.engine import Load
from proxy.control.prober import Prober, ProbeRules
from proxy.core.dispatch import Dispatcher
from proxy.core.eligibility import Eligibility, Verdict
from proxy.core.places import Evidence, Place
from proxy.core.route import Need
from proxy.core.signals import EngineSignals
from proxy.core.words import AdminState, EjectionCause, Health, UpstreamName
from proxy.errors import Refusal
from tests.harness.pair import SETTINGS as PAIR_SETTINGS

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
SETTINGS = replace(PAIR_SETTINGS, spec_cap=None)
RULES = ProbeRules(path="/ready", interval=2.0, timeout=5.0)
INFO = {"speculative_algorithm": "EAGLE3", "served_model_name": "tiny"}
LOADS = {"loads": [{"num_running_reqs": 3, "num_waiting_reqs": 0}]}


class Told(NamedTuple):
    """What the observer was told of health."""

    health: Health
    cause: EjectionCause | None
    detail: str


class Watcher:
    """An observer that keeps what it is told of health."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.of = SPEC

    def nothing(self, *_: object, **__: object) -> None:
        """Told of what is of no interest here."""

    started = decided = retried = ended = switched = wanted = calibration_checked = held = nothing

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Keep it."""
        assert upstream is self.of
        self.told.append(Told(health, cause, detail))


class OverError(BaseException):
    """The scene is over."""


@dataclass
class Scene:
    """A prober of spec, its engine, and a clock that moves only when the prober sleeps."""

    rules: ProbeRules = RULES
    routes: dict[str, Callable[[], httpx2.Response]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    now: float = 1000.0
    between: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.watcher = Watcher()
        self.dispatcher = Dispatcher(SETTINGS, self.watcher, now=self.now)
        self.client = httpx2.AsyncClient(
            base_url="http://engine:1", transport=httpx2.MockTransport(self.handle)
        )
        self.prober = Prober(
            SPEC,
            self.client,
            self.dispatcher,
            self.rules,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        self.rounds = 0
        self.says("/ready", httpx2.Response(200))
        self.says("/server_info", httpx2.Response(200, json=INFO))
        self.says("/v1/models", httpx2.Response(200, json={"data": [{"id": "tiny"}]}))
        self.says("/v1/loads", httpx2.Response(200, json=LOADS))

    def says(self, path: str, response: httpx2.Response) -> None:
        """The engine answers `response` at `path` from now on."""
        body = response.read()
        self.routes[path] = lambda: httpx2.Response(response.status_code, content=body)

    def breaks(self, path: str, error: Exception) -> None:
        """Asking for `path` raises `error` from now on."""

        def fail() -> httpx2.Response:
            raise error

        self.routes[path] = fail

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        """The engine; a question that is not cheap fails the test."""
        assert request.method == "GET"
        self.asked.append(request.url.path)
        return self.routes.get(request.url.path, lambda: httpx2.Response(404))()

    async def sleep(self, seconds: float) -> None:
        """Let the clock move, and end the scene after its rounds."""
        self.slept.append(seconds)
        self.now += seconds
        self.rounds -= 1
        if self.rounds == 0:
            raise OverError
        self.between()

    async def run(self, rounds: int = 1) -> None:
        """Probe that many times; the client is closed after it."""
        self.rounds = rounds
        with pytest.raises(OverError):
            await self.prober.run()

    @property
    def health(self) -> Health:
        """What the dispatcher makes of it."""
        return self.dispatcher.spec.health.state


# When ------------------------------------------------------------------------------------------


async def test_the_first_probe_is_at_once() -> None:
    """A server that is there at the start is usable after one good probe."""
    scene = Scene()

    await scene.run()

    assert scene.health is Health.HEALTHY
    assert scene.asked == ["/ready", "/server_info", "/v1/models", "/v1/loads", "/metrics"]
    assert scene.slept == [2.0]
    assert scene.client.is_closed


async def test_the_interval_is_from_start_to_start() -> None:
    """What a probe takes is taken off the pause; a probe longer than that is followed at once."""
    scene = Scene()

    def slow() -> httpx2.Response:
        scene.now += 0.5 if not scene.slept else 4.0
        return httpx2.Response(200)

    scene.routes["/ready"] = slow
    await scene.run(2)

    assert scene.slept == [1.5, 0.0]


async def test_what_is_healthy_is_not_asked_who_it_is() -> None:
    """The identity goes through the engine's scheduler, so it is not read for nothing."""
    scene = Scene()

    await scene.run(3)

    assert scene.asked.count("/server_info") == 1
    assert scene.asked.count("/ready") == scene.asked.count("/v1/loads") == 3


async def test_maintenance_is_left_in_peace() -> None:
    """An upstream in maint is not probed; put back, it is."""
    scene = Scene()
    scene.prober.findings.fault = "old"
    scene.dispatcher.set_admin_state(SPEC, AdminState.MAINT, scene.now)

    def put_back() -> None:
        assert scene.asked == []
        assert scene.prober.findings.fault is None
        scene.dispatcher.set_admin_state(SPEC, AdminState.READY, scene.now)

    scene.between = put_back
    await scene.run(2)

    assert scene.asked.count("/ready") == 1


async def test_a_draining_upstream_is_still_probed() -> None:
    """Drain takes nothing new, and says nothing about health."""
    scene = Scene()
    scene.dispatcher.set_admin_state(SPEC, AdminState.DRAIN, scene.now)

    await scene.run()

    assert scene.health is Health.HEALTHY


# What it hears ---------------------------------------------------------------------------------


async def test_three_failed_probes_eject() -> None:
    """`fall` in a row, and the operator reads what the last one heard."""
    scene = Scene()
    scene.between = lambda: scene.says("/ready", httpx2.Response(503))

    await scene.run(4)

    assert scene.watcher.told == [
        Told(Health.HEALTHY, None, ""),
        Told(Health.EJECTED, EjectionCause.PROBE, "http://engine:1/ready answers 503"),
    ]
    assert scene.prober.findings.fault == "http://engine:1/ready answers 503"


async def test_a_rise_takes_two_good_probes_and_each_asks_who_it_is() -> None:
    """What comes back may be another server, so its identity is read while it is not healthy."""
    scene = Scene()
    script = {5: 503, 4: 503, 3: 503, 2: 200, 1: 200}
    scene.between = lambda: scene.says("/ready", httpx2.Response(script[scene.rounds]))

    await scene.run(6)

    assert scene.health is Health.HEALTHY
    assert scene.asked.count("/server_info") == 3
    assert scene.prober.findings.fault is None


async def test_a_doubt_while_it_says_what_it_is_is_asked_for_again() -> None:
    """A card may have been read before an adapter was loaded, and the page after it."""
    scene = Scene()
    cards = scene.routes["/v1/models"]

    def changed() -> httpx2.Response:
        if scene.asked.count("/v1/models") == 1:
            scene.dispatcher.doubt()
        return cards()

    scene.routes["/v1/models"] = changed
    await scene.run(3)

    assert scene.asked.count("/server_info") == scene.asked.count("/v1/models") == 2


async def test_an_identity_that_cannot_be_read_fails_the_probe() -> None:
    """Else the server would be trusted to be what it did not say."""
    scene = Scene()
    scene.says("/server_info", httpx2.Response(500))

    await scene.run()

    assert scene.health is Health.EJECTED
    assert scene.prober.findings.fault == "http://engine:1/server_info answers 500"
    assert scene.asked == ["/ready", "/server_info"]


async def test_a_swapped_server_is_misconfigured() -> None:
    """A server at spec without a speculative algorithm takes no request, and says why."""
    scene = Scene()
    scene.says("/server_info", httpx2.Response(200, json={"speculative_algorithm": None}))

    await scene.run(2)

    (told,) = scene.watcher.told
    assert told.cause is EjectionCause.MISCONFIGURED
    assert "swapped" in told.detail


async def test_a_server_that_does_not_say_what_it_is_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is trusted; that must be said, and need not be said again at each rise."""
    scene = Scene()
    scene.says("/server_info", httpx2.Response(404))
    script = {5: 503, 4: 503, 3: 503, 2: 200, 1: 200}
    scene.between = lambda: scene.says("/ready", httpx2.Response(script[scene.rounds]))

    await scene.run(6)

    assert scene.health is Health.HEALTHY
    assert scene.asked.count("/get_server_info") == 3
    assert caplog.text.count("spec has no /server_info") == 1


@pytest.mark.parametrize("path", ["/ready", "/server_info", "/v1/loads"])
async def test_an_answer_has_a_deadline(path: str) -> None:
    """A server that accepts and is silent is a failed probe; silent about its load it is not."""
    scene = Scene(rules=ProbeRules(path="/ready", interval=2.0, timeout=0.05))
    never = asyncio.Event()
    answer = scene.handle

    async def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == path:
            await never.wait()
        return answer(request)

    scene.client._transport = httpx2.MockTransport(handle)
    await scene.run()

    late = None if path == "/v1/loads" else "spec did not answer its probe within 0.05 s"
    assert scene.prober.findings.fault == late
    assert scene.prober.findings.reading is None


async def test_a_fault_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong address is said once, not every two seconds; a new fault is said again."""
    scene = Scene()
    scene.breaks("/ready", httpx2.ConnectError("refused"))

    def change() -> None:
        if scene.rounds == 1:
            scene.says("/ready", httpx2.Response(503))

    scene.between = change

    await scene.run(4)

    assert [record.getMessage() for record in caplog.records] == [
        "probe of spec failed: http://engine:1/ready could not be read (ConnectError: refused)",
        "probe of spec failed: http://engine:1/ready answers 503",
    ]


# Load ------------------------------------------------------------------------------------------


async def test_the_load_is_kept_with_its_time() -> None:
    """Metrics and state read it, and can tell how old it is."""
    scene = Scene()

    await scene.run()

    reading = scene.prober.findings.reading
    assert reading is not None
    assert reading.load == Load(running=3, waiting=0)
    assert (reading.at, reading.stale_after) == (1000.0, 6.0)


async def test_a_load_that_cannot_be_read_is_no_failed_probe() -> None:
    """Health is whether requests are served; the last reading stays, and goes stale."""
    scene = Scene()
    scene.between = lambda: scene.says("/v1/loads", httpx2.Response(404))

    await scene.run(6)

    assert scene.health is Health.HEALTHY
    reading = scene.prober.findings.reading
    assert reading is not None
    assert reading.at == 1000.0
    assert not reading.fresh(scene.now)


async def test_an_ejected_upstream_is_not_asked_for_its_load() -> None:
    """There is nothing to know, and a server that is starting has other work."""
    scene = Scene()
    scene.says("/ready", httpx2.Response(503))

    await scene.run(2)

    assert "/v1/loads" not in scene.asked


async def test_probation_is_asked_for_its_load() -> None:
    """It may serve, so its load is of interest."""
    scene = Scene()
    need = Need(1, Eligibility(Verdict.ANY, None), override=SPEC)

    def fail_requests() -> None:
        if scene.rounds == 2:
            for _ in range(5):
                place = scene.dispatcher.arrive(need, Nobody(), scene.now)
                assert isinstance(place, Place)
                scene.dispatcher.end(place.lease, Evidence.BAD, scene.now)
        else:
            scene.now += 10.0
            scene.dispatcher.tick(scene.now)

    scene.between = fail_requests
    await scene.run(3)

    assert scene.health is Health.PROBATION
    assert scene.asked.count("/v1/loads") == 2


# Signals ---------------------------------------------------------------------------------------


class Heard:
    """Keeps what a dispatcher is told of the engines, and hands everything on to it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.signals: list[EngineSignals] = []
        self.ended: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._dispatcher, name)

    def signals_read(self, name: UpstreamName, signals: EngineSignals, now: float) -> None:
        """Keep it."""
        self.signals.append(signals)
        self._dispatcher.signals_read(name, signals, now)

    def lengths_read(self, output_tokens: float, sequences: int) -> None:
        """Keep it."""
        self.ended.append((output_tokens, sequences))
        self._dispatcher.lengths_read(output_tokens, sequences)


@dataclass
class Engine:
    """What an engine has done; a scene shows it in its load and its metrics."""

    scene: Scene
    name: UpstreamName = SPEC
    rounds: float = 0
    decoded: float = 0
    sequences: float = 0
    output: float = 0
    stamp: float = 1.7e9
    moments: bool = True

    def __post_init__(self) -> None:
        scene = self.scene
        self.heard = Heard(scene.dispatcher)
        scene.prober = Prober(
            self.name,
            scene.client,
            cast("Dispatcher", self.heard),
            scene.rules,
            clock=lambda: scene.now,
            sleep=scene.sleep,
        )
        self.show()

    def show(self) -> None:
        """Its pages, now."""
        moments = [1.0, self.rounds, 1.0, 1.0, 1.0, self.decoded] if self.moments else None
        rank = {
            "timestamp": self.stamp,
            "num_waiting_reqs": 2,
            "token_usage": 0.5,
            "decode_moments": moments,
        }
        body = json.dumps({"timestamp": _iso(self.stamp + 0.5), "loads": [rank]})
        self.scene.says("/v1/loads", httpx2.Response(200, content=body))
        page = (
            f'sglang:generation_tokens_total{{m="x"}} {self.output}\n'
            f'sglang:num_requests_total{{m="x"}} {self.sequences}\n'
            f'sglang:spec_verify_calls_total{{m="x"}} {self.rounds}\n'
        )
        self.scene.says("/metrics", httpx2.Response(200, content=page))

    def work(self, *, rounds: float = 0, yielding: float = 0, sequences: float = 0) -> None:
        """Some rounds with so many tokens each, and sequences that end with a token more each."""
        self.stamp += 2.0
        self.rounds += rounds
        self.decoded += rounds * yielding
        self.sequences += sequences
        self.output += rounds * yielding + sequences
        self.show()

    @property
    def lengths(self) -> list[float | None]:
        """The acceptance lengths that were told."""
        return [signals.acceptance_length for signals in self.heard.signals]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def test_signals_are_told_with_their_age() -> None:
    """What the load says goes to the dispatcher, and metrics and state find it, too."""
    scene = Scene()
    engine = Engine(scene)

    await scene.run()

    (signals,) = engine.heard.signals
    assert (signals.waiting, signals.token_usage) == (2, 0.5)
    assert signals.acceptance_length is None
    assert signals.at == 1000.0
    assert signals.age_seconds == pytest.approx(0.5)
    assert signals.age(1003.0) == pytest.approx(3.5)
    assert scene.prober.findings.signals is signals


@pytest.mark.parametrize("moments", [True, False])
async def test_acceptance_is_what_was_counted_between_readings(*, moments: bool) -> None:
    """Of the last seconds, not since the start; from the load, else from the metrics."""
    scene = Scene()
    engine = Engine(scene, rounds=10_000, decoded=50_000, output=50_000, moments=moments)
    scene.between = lambda: engine.work(rounds=100, yielding=2.0, sequences=1)

    await scene.run(20)

    assert engine.lengths[0] is None
    assert engine.lengths[-1] == pytest.approx(2.0)

    scene = Scene()
    engine = Engine(scene, moments=moments)
    yields = iter([4.0] * 40 + [1.5] * 60)
    scene.between = lambda: engine.work(rounds=100, yielding=next(yields), sequences=1)
    await scene.run(100)
    assert engine.lengths[40] == pytest.approx(4.0)
    assert engine.lengths[-1] == pytest.approx(1.5)


async def test_an_idle_engine_has_no_acceptance() -> None:
    """Nothing was verified lately, so nothing is known, and what was known is not kept."""
    scene = Scene()
    engine = Engine(scene)
    rounds = iter([100] * 3 + [0] * 20)
    scene.between = lambda: engine.work(rounds=next(rounds), yielding=3.0)

    await scene.run(20)

    assert engine.lengths[3] == pytest.approx(3.0)
    assert engine.lengths[-1] is None


async def test_a_restart_makes_acceptance_unknown() -> None:
    """Counters that went back say nothing of what lies between; the next reading does again."""
    scene = Scene()
    engine = Engine(scene, rounds=10_000, decoded=30_000, output=30_000)

    def between() -> None:
        if len(engine.lengths) == 3:
            engine.rounds = engine.decoded = engine.output = engine.sequences = 0
        engine.work(rounds=100, yielding=2.0)

    scene.between = between
    await scene.run(6)

    twice = pytest.approx(2.0)
    assert engine.lengths == [None, twice, twice, None, twice, twice]


async def test_the_plain_server_has_no_acceptance() -> None:
    """A decode step of base yields a token for each sequence, which is no acceptance length."""
    scene = Scene()
    plain: dict[str, object] = INFO | {"speculative_algorithm": None}
    scene.says("/server_info", httpx2.Response(200, json=plain))
    scene.watcher.of = BASE
    engine = Engine(scene, name=BASE)
    scene.between = lambda: engine.work(rounds=100, yielding=1.0)

    await scene.run(4)

    assert engine.lengths == [None] * 4


async def test_one_account_is_not_told_twice() -> None:
    """A frozen scheduler answers with what it wrote last: the signals grow old, and are not new."""
    scene = Scene()
    engine = Engine(scene)

    await scene.run(6)

    (signals,) = engine.heard.signals
    assert signals.age(scene.now) == pytest.approx(12.5)
    assert scene.prober.findings.reading is not None
    assert scene.prober.findings.reading.at == 1010.0


async def test_a_load_that_cannot_be_read_tells_nothing() -> None:
    """The last signals stay, and grow old."""
    scene = Scene()
    engine = Engine(scene)
    scene.between = lambda: scene.says("/v1/loads", httpx2.Response(500))

    await scene.run(4)

    assert len(engine.heard.signals) == 1


async def test_what_has_ended_is_told() -> None:
    """What the engine counted between two readings of its metrics, and not since its start."""
    scene = Scene()
    engine = Engine(scene, rounds=9_000, output=90_000, sequences=100)
    scene.between = lambda: engine.work(rounds=39, yielding=2.0, sequences=2)

    await scene.run(16)

    # Read at the rounds 1, 6, 11 and 16, ten sequences apart.
    assert engine.heard.ended == [(400.0, 10)] * 3


async def test_metrics_are_read_seldom() -> None:
    """Their page costs the engine ten times what its load does."""
    scene = Scene()
    Engine(scene)

    await scene.run(11)

    assert scene.asked.count("/metrics") == 3
    assert scene.asked.count("/v1/loads") == 11


async def test_a_server_without_metrics_is_asked_again_after_a_rise_only() -> None:
    """It was started without them; what comes back may be another server."""
    scene = Scene()
    scene.says("/metrics", httpx2.Response(404))
    script = [200] * 10 + [503] * 3 + [200] * 12

    def between() -> None:
        assert scene.asked.count("/metrics") == (1 if len(script) > 10 else 2)
        scene.says("/ready", httpx2.Response(script.pop(0)))

    scene.between = between
    await scene.run(26)


async def test_a_rise_asks_for_metrics_again() -> None:
    """It may be another server now, so what the one before had counted is forgotten."""
    scene = Scene()
    engine = Engine(scene, rounds=1_000, decoded=3_000, output=3_000)
    script = iter([200, 200, 503, 503, 503, 200, 200, 200, 200])

    def between() -> None:
        scene.says("/ready", httpx2.Response(next(script)))
        engine.work(rounds=100, yielding=2.0)

    scene.between = between
    await scene.run(9)

    twice = pytest.approx(2.0)
    # Two failed probes still leave it in service; the third ejects it, and two good ones end that.
    assert engine.lengths == [None, twice, twice, twice, twice, None, twice]
    assert scene.asked.count("/metrics") == 2


@pytest.mark.parametrize(
    "page", [httpx2.Response(500), httpx2.Response(200, content=b"sglang:num_requests_total{} -1")]
)
async def test_metrics_that_cannot_be_read_change_nothing(page: httpx2.Response) -> None:
    """No failed probe, no mean, no acceptance from before; the load is read all the same."""
    scene = Scene()
    engine = Engine(scene, moments=False)

    def between() -> None:
        engine.work(rounds=100, yielding=2.0, sequences=50)
        if len(engine.lengths) >= 10:
            scene.says("/metrics", page)

    scene.between = between
    await scene.run(30)

    assert scene.health is Health.HEALTHY
    assert len(engine.heard.ended) == 1
    assert engine.lengths[9] == pytest.approx(2.0)
    assert engine.lengths[-1] is None


async def test_a_silent_metrics_page_does_not_hold_up_the_probes() -> None:
    """It has one interval at most, however long a probe may take."""
    scene = Scene(rules=ProbeRules(path="/ready", interval=0.05, timeout=30.0))
    never = asyncio.Event()
    answer = scene.handle

    async def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/metrics":
            await never.wait()
        return answer(request)

    scene.client._transport = httpx2.MockTransport(handle)
    await scene.run(2)

    assert scene.health is Health.HEALTHY
    assert scene.asked.count("/ready") == 2


class Nobody:
    """A waiter that is never told anything."""

    def placed(self, place: object) -> None:
        """Fail."""
        raise AssertionError(place)

    def refused(self, refusal: Refusal) -> None:
        """Fail."""
        raise AssertionError(refusal)


# Never -----------------------------------------------------------------------------------------


async def test_no_probe_generates(caplog: pytest.LogCaptureFixture) -> None:
    """SGLang's /health makes a token and takes a second; nothing here asks for it."""
    scene = Scene()
    scene.says("/ready", httpx2.Response(404))
    with caplog.at_level(logging.DEBUG, "proxy"):
        await scene.run(4)

    cheap = {"/ready", "/server_info", "/v1/models", "/v1/loads", "/metrics"}
    assert set(scene.asked) == cheap


async def test_what_nobody_foresaw_is_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fault of ours in a probe is a failed probe; the next one is made all the same."""
    scene = Scene()
    scene.breaks("/ready", ZeroDivisionError("ours"))
    scene.between = lambda: scene.says("/ready", httpx2.Response(200))

    await scene.run(2)

    assert "ZeroDivisionError" in caplog.text
    assert "failed within specswitch" in caplog.text
    assert scene.health is Health.HEALTHY


async def test_cancelling_ends_it_and_closes_the_client() -> None:
    """A prober ends when it is told to, in the middle of a question too."""
    scene = Scene()
    asked, never = asyncio.Event(), asyncio.Event()

    async def handle(request: httpx2.Request) -> httpx2.Response:
        asked.set()
        await never.wait()
        return httpx2.Response(200)

    scene.client._transport = httpx2.MockTransport(handle)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(scene.prober.run())
        await asked.wait()
        task.cancel()

    assert task.cancelled()
    assert scene.client.is_closed
    assert scene.watcher.told == []


async def test_a_probe_that_could_not_be_made_says_nothing() -> None:
    """Out of file descriptors: the operator reads it, and nobody is ejected for it."""
    error = httpx2.ConnectError("All connection attempts failed")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    scene = Scene()
    scene.between = lambda: scene.breaks("/ready", error)

    await scene.run(6)

    assert scene.watcher.told == [Told(Health.HEALTHY, None, "")]
    assert scene.prober.findings.fault == (
        "http://engine:1/ready was not asked: no file descriptor is free"
    )


async def test_other_rules_count_from_the_next_probe_on() -> None:
    """The interval and the path; a reload may have changed them."""
    scene = Scene()
    scene.says("/live", httpx2.Response(200))
    scene.between = lambda: scene.prober.set_to(ProbeRules(path="/live", interval=7.0, timeout=5.0))

    await scene.run(2)

    assert "/live" in scene.asked
    assert scene.slept[-1] == 7.0
