"""What Prometheus sees; the only module that knows prometheus_client.

Counters and histograms are moved by what the core and the data plane tell (`Metrics` is an
observer); every series that a closed set allows exists from the start, so that a rate over the
first event is right. Gauges are not moved at all: they are read from the pair when somebody
scrapes, all in one moment of the one thread, so a scrape is never torn. It takes that thread 4 ms.
docs/metrics.md explains each.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.control.engine import Findings
from proxy.core.dispatch import Dispatcher
from proxy.core.endpoints import ENDPOINTS
from proxy.core.modes import Switch
from proxy.core.observer import Record
from proxy.core.route import REASONS
from proxy.core.words import (
    Control,
    EjectionCause,
    Health,
    Outcome,
    RetryCause,
    SwitchReason,
    UpstreamName,
)

K = TypeVar("K", bound=str)

PREFIX = "specswitch"
NONE = "none"
OTHER = "other"
"""An endpoint that is not on the allow-list, a status that is none: labels stay a closed set."""
_OWN_CODES = (400, 401, 404, 405, 408, 413, 429, 431, 502, 503, 504)
_ENGINE_CODES = (200, 400, 404, 413, 429, 500, 503)

# From a cached prompt on an idle engine to a client's patience; finer where SLOs are set (0.2-2 s).
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
# 1,000 to 1 tokens/s of one sequence; finer where speculation moves it (5-50 ms).
_PER_TOKEN = (0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
# From an embedding to `timeouts.response`, which is an hour.
_DURATION = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600)
# Up to `limits.queue_timeout`, 30 s; a place on a busy engine comes free within a second.
_QUEUE_WAIT = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
# Measured 50-150 us; what an engine would notice (1 ms) and a client (10 ms) stand apart.
_OVERHEAD = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1)
# A loop that is late delays every stream at once: 1 ms is normal, 10 ms shows between tokens.
_LAG = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where to read, at a scrape, what the dispatcher does not know."""

    open_requests: Callable[[], int]
    """Requests started and not ended."""
    connections: Callable[[UpstreamName], tuple[int, int]]
    """How many an upstream has with a request on them, and how many without."""
    findings: Callable[[], Mapping[UpstreamName, Findings]]
    dropped_lines: Callable[[], int]


class _Bound:
    """The children of one upstream, bound once: looking one up costs more than moving it."""

    __slots__ = ("duration", "first_token", "midstream", "per_token", "tokens")

    def __init__(self, name: UpstreamName, metrics: "Metrics") -> None:
        self.first_token = metrics.first_token.labels(name)
        self.per_token = metrics.per_token.labels(name)
        self.duration = metrics.duration.labels(name)
        self.tokens = metrics.tokens.labels(name)
        self.midstream = metrics.midstream.labels(name)


class Metrics:
    """An observer that counts, and the text of a scrape."""

    def __init__(self, version: str) -> None:
        # A process-wide switch of the library; nobody else uses it. `_created` doubles the series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type here
        # PROMETHEUS_MULTIPROC_DIR, which SGLang sets for itself, would have our numbers written
        # to its folder.
        values.ValueClass = values.MutexValue
        self._registry = CollectorRegistry()
        self._version = version
        self._bind_requests()
        self._bind_pair()
        self._bind_times()
        self._upstreams = {name: _Bound(name, self) for name in UpstreamName}

    # What is told ------------------------------------------------------------------------------

    def started(self) -> None:
        """Count it; it is open until `ended`."""
        self._started.inc()

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Count it."""
        self._decisions[upstream, reason].inc()

    def retried(self, cause: RetryCause) -> None:
        """Count it."""
        self._retries[cause].inc()

    def ended(self, record: Record) -> None:
        """Count it, and what it says of times."""
        outcome, name = record.outcome, record.upstream
        ended = self._requests.get((name, record.endpoint, outcome))
        (ended or self._requests[name, OTHER, outcome]).inc()
        if outcome is not Outcome.ABANDONED and record.status is not None:
            (self._responses.get((name, record.status)) or self._response(record)).inc()
        if record.waited_seconds is not None:
            self.queue_wait.observe(record.waited_seconds)
        if record.overhead_seconds is not None:
            self.overhead.observe(record.overhead_seconds)
        if name is not None:
            self._ended_at(self._upstreams[name], record)

    def switched(self, switch: Switch) -> None:
        """Count it."""
        self._switches[switch.to, switch.reason].inc()

    def wanted(self, switch: Switch) -> None:
        """Nothing: what is wanted is read at a scrape."""

    def calibration_checked(self, faults: tuple[str, ...]) -> None:
        """Nothing: what came of it is read at a scrape."""

    def held(self, seconds: float) -> None:
        """Count it among the switches: as one that was not made."""
        del seconds
        self._switches[UpstreamName.BASE, SwitchReason.FLAP].inc()

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Count an ejection."""
        del detail
        if health is Health.EJECTED and cause is not None:
            self._ejections[upstream, cause].inc()

    def reloaded(self, *, ok: bool) -> None:
        """The configuration was read again, or refused."""
        self._reloads["ok" if ok else "rejected"].inc()

    def lagged(self, seconds: float) -> None:
        """The event loop came back this much later than it was asked to."""
        self.lag.observe(seconds)

    # What is asked -----------------------------------------------------------------------------

    def watch(
        self, dispatcher: Dispatcher, sources: Sources, *, clock: Callable[[], float]
    ) -> None:
        """Read the gauges from these from now on; once, as soon as there is a dispatcher."""
        self._registry.register(_Gauges(dispatcher, sources, self._version, clock))

    def render(self) -> tuple[bytes, str]:
        """The text of a scrape, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    # Within ------------------------------------------------------------------------------------

    def _ended_at(self, upstream: _Bound, record: Record) -> None:
        if record.first_token_seconds is not None:
            upstream.first_token.observe(record.first_token_seconds)
        if record.seconds_per_token is not None:
            upstream.per_token.observe(record.seconds_per_token)
        if record.outcome is not Outcome.ABANDONED:
            upstream.duration.observe(record.duration_seconds)
        if record.output_tokens:
            upstream.tokens.inc(record.output_tokens)
        if record.midstream:
            upstream.midstream.inc()

    def _response(self, record: Record) -> Counter:
        """The child for a status that is seen for the first time."""
        status = record.status
        known = status is not None and 100 <= status <= 599  # noqa: PLR2004 - RFC 9110 section 15
        child = self.responses.labels(record.upstream or NONE, status if known else OTHER)
        if status is not None and known:
            self._responses[record.upstream, status] = child
        return child

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, namespace=PREFIX, registry=self._registry)

    def _histogram(
        self, name: str, what: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            name, what, labels, namespace=PREFIX, buckets=buckets, registry=self._registry
        )

    def _bind_requests(self) -> None:
        self._started = self._counter("requests_started", "Requests whose head was read.")
        requests = self._counter(
            "requests", "Requests that ended, counted once.", "upstream", "endpoint", "outcome"
        )
        endpoints = [e.template for e in ENDPOINTS if e.needs_key]
        names = (*UpstreamName, None)
        self._requests = {
            (name, endpoint, outcome): requests.labels(name or NONE, endpoint, outcome)
            for name in names
            for endpoint in (*endpoints, OTHER)
            for outcome in Outcome
        }
        self.responses = self._counter(
            "responses", "Statuses sent to clients that stayed.", "upstream", "code"
        )
        self._responses: dict[tuple[UpstreamName | None, int], Counter] = {
            (name, code): self.responses.labels(name or NONE, code)
            for name in names
            for code in (_OWN_CODES if name is None else _ENGINE_CODES)
        }

    def _bind_pair(self) -> None:
        decisions = self._counter("decisions", "Places given.", "upstream", "reason")
        self._decisions = {
            (name, reason): decisions.labels(name, reason)
            for name in UpstreamName
            for reason in REASONS
        }
        reloads = self._counter("config_reloads", "Configurations read again.", "result")
        self._reloads = {result: reloads.labels(result) for result in ("ok", "rejected")}
        switches = self._counter("mode_switches", "Changes of mode.", "to", "reason")
        self._switches = {
            (name, reason): switches.labels(name, reason)
            for name in UpstreamName
            for reason in SwitchReason
        }
        ejections = self._counter("ejections", "Upstreams taken out.", "upstream", "cause")
        self._ejections = {
            (name, cause): ejections.labels(name, cause)
            for name in UpstreamName
            for cause in EjectionCause
        }
        retries = self._counter("retries", "Requests sent a second time.", "cause")
        self._retries = {cause: retries.labels(cause) for cause in RetryCause}
        self.midstream = self._counter(
            "midstream_failures", "Upstream failures after the head had gone out.", "upstream"
        )
        self.tokens = self._counter("output_tokens", "Tokens generated, from usage.", "upstream")

    def _bind_times(self) -> None:
        self.first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the whole request to its first token.",
            _FIRST_TOKEN,
            "upstream",
        )
        self.per_token = self._histogram(
            "time_per_output_token_seconds",
            "After the first token, from usage.",
            _PER_TOKEN,
            "upstream",
        )
        self.duration = self._histogram(
            "request_duration_seconds",
            "From the first byte of a request to its end.",
            _DURATION,
            "upstream",
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "Time in the waiting room.", _QUEUE_WAIT
        )
        self.overhead = self._histogram(
            "proxy_overhead_seconds",
            "From the whole request here to the request sent, without the waiting room.",
            _OVERHEAD,
        )
        self.lag = self._histogram("loop_lag_seconds", "How late the event loop is.", _LAG)


class _Gauges:
    """Reads the pair when it is scraped."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sources: Sources,
        version: str,
        clock: Callable[[], float],
    ) -> None:
        self._dispatcher = dispatcher
        self._sources = sources
        self._version = version
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Every family, from one moment."""
        now = self._clock()
        yield from self._requests()
        yield from self._modes(now)
        yield from self._upstreams()
        yield from self._engines(now)
        yield _gauge("build_info", "The version that runs.", "version", {self._version: 1})

    def _requests(self) -> Iterator[Metric]:
        dispatcher, sources = self._dispatcher, self._sources
        yield _single("open_requests", "Requests that have not ended.", sources.open_requests())
        yield _single("queue_depth", "Requests in the waiting room.", len(dispatcher.room))
        yield CounterMetricFamily(
            f"{PREFIX}_log_lines_dropped",
            "Log lines not written.",
            value=sources.dropped_lines(),
        )

    def _modes(self, now: float) -> Iterator[Metric]:
        dispatcher = self._dispatcher
        yield _state("mode", "Where new generation goes.", UpstreamName, dispatcher.mode)
        wanted = dispatcher.controller.mode
        yield _state("mode_wanted", "Where the controller would send it.", UpstreamName, wanted)
        yield _state(
            "control", "The operator's word.", Control, dispatcher.control, label="control"
        )
        seconds = {name: dispatcher.mode_seconds(name, now) for name in UpstreamName}
        yield _counter("mode_seconds", "Time spent in each mode.", "mode", seconds)
        yield CounterMetricFamily(
            f"{PREFIX}_both_active_seconds",
            "Time in which both upstreams had generation in flight.",
            value=dispatcher.in_flight.both_active_seconds(now),
        )
        controller = dispatcher.controller
        thresholds = controller.thresholds
        yield _single("crossover_in_flight", "N*, in sequences.", thresholds.crossover)
        yield _single(
            "crossover_tokens_per_second", "λ*, in offered tokens.", thresholds.crossover_rate
        )
        offered = {"fast": controller.offered_fast(now), "slow": controller.offered_slow(now)}
        if dispatcher.lengths.output_tokens is not None:
            yield _gauge("offered_tokens_per_second", "Offered work.", "window", offered)
        valid = int(thresholds.crossover is not None)
        yield _single("calibration_valid", "1 where it is known when speculation pays.", valid)
        drift = {name: watch.ratio for name, watch in dispatcher.drift.items()}
        yield _gauge("drift_ratio", "Time per token now and when calibrated.", "upstream", drift)

    def _upstreams(self) -> Iterator[Metric]:
        dispatcher = self._dispatcher
        in_flight = {name: dispatcher.in_flight.at(name) for name in UpstreamName}
        yield _gauge("in_flight", "Sequences of generation in flight.", "upstream", in_flight)
        healthy = {
            name: int(dispatcher.upstream(name).health.state is not Health.EJECTED)
            for name in UpstreamName
        }
        yield _gauge("upstream_healthy", "1 unless ejected.", "upstream", healthy)
        connections = GaugeMetricFamily(
            f"{PREFIX}_upstream_connections",
            "Connections to an upstream.",
            labels=["upstream", "state"],
        )
        for name in UpstreamName:
            active, idle = self._sources.connections(name)
            connections.add_metric([name, "active"], active)
            connections.add_metric([name, "idle"], idle)
        yield connections

    def _engines(self, now: float) -> Iterator[Metric]:
        readings = {
            name: findings.reading
            for name, findings in self._sources.findings().items()
            if findings.reading is not None
        }
        loads = {name: reading.load for name, reading in readings.items() if reading.fresh(now)}
        running = {name: load.running for name, load in loads.items()}
        yield _gauge("engine_running", "Requests the engine decodes.", "upstream", running)
        waiting = {name: load.waiting for name, load in loads.items()}
        yield _gauge("engine_waiting", "Requests the engine queues.", "upstream", waiting)
        usage = {name: load.token_usage for name, load in loads.items()}
        yield _gauge("engine_token_usage", "Share of the KV cache in use.", "upstream", usage)
        findings = self._sources.findings()
        accepted = {name: findings[name].acceptance_length for name in loads}
        yield _gauge(
            "engine_acceptance_length", "Tokens of a verify round, lately.", "upstream", accepted
        )
        ages = {name: reading.age(now) for name, reading in readings.items()}
        yield _gauge("engine_signal_age_seconds", "Age of these readings.", "upstream", ages)


def _single(name: str, what: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", what)
    if value is not None:
        family.add_metric([], value)
    return family


def _gauge(name: str, what: str, label: str, values: Mapping[K, float | None]) -> Metric:
    """A gauge with one label; what is unknown has no sample, which is how Prometheus says it."""
    family = GaugeMetricFamily(f"{PREFIX}_{name}", what, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _counter(name: str, what: str, label: str, values: Mapping[K, float]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", what, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _state(
    name: str, what: str, every: type[UpstreamName | Control], now: str, *, label: str = "mode"
) -> Metric:
    """A gauge that is 1 on the current value of a closed set, and 0 on the others."""
    return _gauge(name, what, label, {each: float(each == now) for each in every})
