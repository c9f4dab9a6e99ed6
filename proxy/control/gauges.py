"""What is read from the pair at a scrape: its state now, in gauges, and what it counts itself."""

import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.control.engine import Findings
from proxy.core.dispatch import Dispatcher
from proxy.core.words import AdminState, Control, EjectionCause, Health, Topology, UpstreamName

K = TypeVar("K", bound=str)

PREFIX = "specswitch"

_STATM: Final = Path("/proc/self/statm")
"""Pages of memory, the resident ones second (proc(5)); Linux only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where to read, at a scrape, what the dispatcher does not know."""

    open_requests: Callable[[], int]
    """Requests started and not ended."""
    connections: Callable[[UpstreamName], tuple[int, int]]
    """How many an upstream has with a request on them, and how many without."""
    findings: Callable[[], Mapping[UpstreamName, Findings]]
    dropped_lines: Callable[[], int]
    clients: Callable[[], int]
    """Connections of clients."""
    calibrated_at: Callable[[], float | None]
    """When the calibration was made, in seconds since 1970; None where there is none."""
    started_at: float
    """When this process began, likewise."""


class Gauges:
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
        yield from _process()
        started = self._sources.started_at
        yield _single("process_start_time_seconds", "When the process began.", started)
        yield _gauge("build_info", "The version that runs.", "version", {self._version: 1})

    def _requests(self) -> Iterator[Metric]:
        dispatcher, sources = self._dispatcher, self._sources
        yield _single("open_requests", "Requests that have not ended.", sources.open_requests())
        yield _single("queue_depth", "Requests in the waiting room.", len(dispatcher.room))
        yield _single("client_connections", "Connections of clients.", sources.clients())
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
        yield _state(
            "topology", "Whether GPUs are shared.", Topology, thresholds.topology, label="topology"
        )
        # No bound is 0 in the core; here what does not count has no sample.
        least = thresholds.least_acceptance or None
        yield _single("min_acceptance_length", "Below it speculation is left.", least)
        offered = {"fast": controller.offered_fast(now), "slow": controller.offered_slow(now)}
        if dispatcher.lengths.output_tokens is not None:
            yield _gauge("offered_tokens_per_second", "Offered work.", "window", offered)
        valid = int(thresholds.crossover is not None)
        yield _single("calibration_valid", "1 where it is known when speculation pays.", valid)
        made_at = self._sources.calibrated_at()
        yield _single("calibration_timestamp_seconds", "When it was made.", made_at)
        drift = {name: watch.ratio for name, watch in dispatcher.drift.items()}
        yield _gauge("drift_ratio", "Time per token now and when calibrated.", "upstream", drift)

    def _upstreams(self) -> Iterator[Metric]:
        dispatcher = self._dispatcher
        in_flight = {name: dispatcher.in_flight.at(name) for name in UpstreamName}
        yield _gauge("in_flight", "Sequences of generation in flight.", "upstream", in_flight)
        health = {name: dispatcher.upstream(name).health for name in UpstreamName}
        healthy = {name: int(each.state is not Health.EJECTED) for name, each in health.items()}
        yield _gauge("upstream_healthy", "1 unless ejected.", "upstream", healthy)
        wanted = {
            name: int(dispatcher.upstream(name).admin_state is AdminState.READY)
            for name in UpstreamName
        }
        yield _gauge("upstream_in_service", "1 unless the operator drains it.", "upstream", wanted)
        seen = {name: int(each.seen) for name, each in health.items()}
        yield _gauge("upstream_seen", "1 once it has been healthy.", "upstream", seen)
        wrong = {
            name: int(each.cause is EjectionCause.MISCONFIGURED) for name, each in health.items()
        }
        yield _gauge(
            "upstream_misconfigured", "1 while it is not what it should be.", "upstream", wrong
        )
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


def _process() -> Iterator[Metric]:
    """What this process has used.

    The library's own collector also counts the open descriptors, one by one: 7 ms of the event loop
    with 10,000 of them.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield CounterMetricFamily(
        f"{PREFIX}_process_cpu_seconds",
        "Processor time, of user and system.",
        value=used.ru_utime + used.ru_stime,
    )
    yield _single("process_resident_memory_bytes", "Memory in use.", _resident())


def _resident() -> float | None:
    """Bytes; None on a system that does not say."""
    try:
        pages = _STATM.read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return float(pages) * resource.getpagesize()


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
    name: str,
    what: str,
    every: type[UpstreamName | Control | Topology],
    now: str,
    *,
    label: str = "mode",
) -> Metric:
    """A gauge that is 1 on the current value of a closed set, and 0 on the others."""
    return _gauge(name, what, label, {each: float(each == now) for each in every})
