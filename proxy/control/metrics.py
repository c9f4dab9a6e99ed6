"""What Prometheus sees; with `gauges` the only module that knows prometheus_client.

Counters and histograms are moved by what the core and the data plane tell (`Metrics` is an
observer); every series that a closed set allows exists from the start, so that a rate over the
first event is right. Gauges are not moved at all: they are read from the pair when somebody
scrapes, all in one moment of the one thread, so a scrape is never torn. It takes that thread 3 ms.
docs/metrics.md explains each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from proxy.control.gauges import PREFIX, Gauges, Sources
from proxy.control.observers import Deaf
from proxy.control.tallies import Counts, Spread, Sum
from proxy.core.dispatch import Dispatcher
from proxy.core.endpoints import ENDPOINTS
from proxy.core.modes import Switch
from proxy.core.observer import Record
from proxy.core.route import REASONS
from proxy.core.words import (
    EjectionCause,
    Health,
    Outcome,
    RetryCause,
    SwitchReason,
    UpstreamName,
)

S = TypeVar("S", bound=str)
L = TypeVar("L", bound=tuple[str, ...])

NONE = "none"
OTHER = "other"
"""An endpoint that is not on the allow-list, a status that is none: labels stay a closed set."""
_SWITCHED = 101
"""The status of a tunnel, which lasts as long as its two sides like."""
_OWN_CODES = (400, 401, 403, 404, 405, 408, 413, 426, 429, 431, 502, 503, 504)
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


class Metrics(Deaf):
    """An observer that counts, and the text of a scrape."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._version = version
        self._started = 0
        names = (*UpstreamName, None)
        endpoints = (*(e.template for e in ENDPOINTS if e.needs_key), OTHER)
        self._requests = Counts(product(names, endpoints, Outcome))
        engines, ours = product(UpstreamName, _ENGINE_CODES), product((None,), _OWN_CODES)
        self._responses: Counts[tuple[UpstreamName | None, int | str]] = Counts((*engines, *ours))
        self._decisions = Counts(product(UpstreamName, REASONS))
        self._switches = Counts(product(UpstreamName, SwitchReason))
        self._ejections = Counts(product(UpstreamName, EjectionCause))
        self._retries = Counts(RetryCause)
        self._reloads = Counts(("ok", "rejected"))
        self._midstream = Counts(UpstreamName)
        self._tokens = Counts(UpstreamName)
        self._first_token = {name: Spread(_FIRST_TOKEN) for name in UpstreamName}
        self._per_token = {name: Spread(_PER_TOKEN) for name in UpstreamName}
        self._duration = {name: Spread(_DURATION) for name in UpstreamName}
        self._queue_wait = Spread(_QUEUE_WAIT)
        self._overhead = Spread(_OVERHEAD)
        self._lag = Spread(_LAG)
        self._registry.register(self)

    # What is told ------------------------------------------------------------------------------

    def started(self) -> None:
        """Count it; it is open until `ended`."""
        self._started += 1

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Count it."""
        self._decisions.by[upstream, reason] += 1

    def retried(self, cause: RetryCause) -> None:
        """Count it."""
        self._retries.add(cause)

    def ended(self, record: Record) -> None:
        """Count it, and what it says of times."""
        outcome, name = record.outcome, record.upstream
        ended = (name, record.endpoint, outcome)
        requests = self._requests.by
        if ended not in requests:
            ended = (name, OTHER, outcome)
        requests[ended] += 1
        status = record.status
        if outcome is not Outcome.ABANDONED and status is not None:
            known = 100 <= status <= 599  # noqa: PLR2004 - RFC 9110 section 15
            self._responses.add((name, status if known else OTHER))
        if record.waited_seconds is not None:
            self._queue_wait.add(record.waited_seconds)
        if record.overhead_seconds is not None:
            self._overhead.add(record.overhead_seconds)
        if name is not None:
            self._ended_at(name, record)

    def switched(self, switch: Switch) -> None:
        """Count it."""
        self._switches.add((switch.to, switch.reason))

    def held(self, seconds: float) -> None:
        """Count it among the switches: as one that was not made."""
        del seconds
        self._switches.add((UpstreamName.BASE, SwitchReason.FLAP))

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Count an ejection."""
        del detail
        if health is Health.EJECTED and cause is not None:
            self._ejections.add((upstream, cause))

    def reloaded(self, *, ok: bool) -> None:
        """The configuration was read again, or refused."""
        self._reloads.add("ok" if ok else "rejected")

    def lagged(self, seconds: float) -> None:
        """The event loop came back this much later than it was asked to."""
        self._lag.add(seconds)

    # What is asked -----------------------------------------------------------------------------

    def watch(
        self, dispatcher: Dispatcher, sources: Sources, *, clock: Callable[[], float]
    ) -> None:
        """Read the gauges from these from now on; once, as soon as there is a dispatcher."""
        self._registry.register(Gauges(dispatcher, sources, self._version, clock))

    def render(self) -> tuple[bytes, str]:
        """The text of a scrape, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def first_token(self, name: UpstreamName) -> Sum:
        """Times to the first token until now, in seconds."""
        return self._first_token[name].so_far

    def per_token(self, name: UpstreamName) -> Sum:
        """Times per output token until now, in seconds; each request counts once."""
        return self._per_token[name].so_far

    def collect(self) -> Iterator[Metric]:
        """Every family that is counted here; asked for by the library at a scrape."""
        yield from self._of_requests()
        yield from self._of_the_pair()
        yield from self._of_times()

    # Within ------------------------------------------------------------------------------------

    def _ended_at(self, name: UpstreamName, record: Record) -> None:
        if record.first_token_seconds is not None:
            self._first_token[name].add(record.first_token_seconds)
        if record.seconds_per_token is not None:
            self._per_token[name].add(record.seconds_per_token)
        if record.outcome is not Outcome.ABANDONED and record.status != _SWITCHED:
            self._duration[name].add(record.duration_seconds)
        if record.output_tokens:
            self._tokens.by[name] += record.output_tokens
        if record.midstream:
            self._midstream.add(name)

    def _of_requests(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            f"{PREFIX}_requests_started", "Requests whose head was read.", value=self._started
        )
        yield counter(
            "requests",
            "Requests that ended, counted once.",
            ("upstream", "endpoint", "outcome"),
            {(name or NONE, *rest): n for (name, *rest), n in self._requests.by.items()},
        )
        yield counter(
            "responses",
            "Statuses sent to clients that stayed.",
            ("upstream", "code"),
            {(name or NONE, str(code)): n for (name, code), n in self._responses.by.items()},
        )

    def _of_the_pair(self) -> Iterator[Metric]:
        yield counter("decisions", "Places given.", ("upstream", "reason"), self._decisions.by)
        yield counter(
            "config_reloads", "Configurations read again.", ("result",), _single(self._reloads)
        )
        yield counter("mode_switches", "Changes of mode.", ("to", "reason"), self._switches.by)
        yield counter(
            "ejections", "Upstreams taken out.", ("upstream", "cause"), self._ejections.by
        )
        yield counter("retries", "Requests sent a second time.", ("cause",), _single(self._retries))
        yield counter(
            "midstream_failures",
            "Upstream failures after the head had gone out.",
            ("upstream",),
            _single(self._midstream),
        )
        yield counter(
            "output_tokens", "Tokens generated, from usage.", ("upstream",), _single(self._tokens)
        )

    def _of_times(self) -> Iterator[Metric]:
        yield _histogram(
            "time_to_first_token_seconds",
            "From the whole request to its first token.",
            _FIRST_TOKEN,
            self._first_token,
        )
        yield _histogram(
            "time_per_output_token_seconds",
            "After the first token, from usage.",
            _PER_TOKEN,
            self._per_token,
        )
        yield _histogram(
            "request_duration_seconds",
            "From the first byte of a request to its end.",
            _DURATION,
            self._duration,
        )
        yield _histogram(
            "queue_wait_seconds", "Time in the waiting room.", _QUEUE_WAIT, self._queue_wait
        )
        yield _histogram(
            "proxy_overhead_seconds",
            "From the whole request here to the request sent, without the waiting room.",
            _OVERHEAD,
            self._overhead,
        )
        yield _histogram("loop_lag_seconds", "How late the event loop is.", _LAG, self._lag)


def _single(counts: Counts[S]) -> dict[tuple[str, ...], int]:
    """Counts by one label."""
    return {(key,): count for key, count in counts.by.items()}


def counter(
    name: str, what: str, labels: Sequence[str], values: Mapping[L, float]
) -> CounterMetricFamily:
    """A counter by `labels`, whose values the keys of `values` are."""
    family = CounterMetricFamily(f"{PREFIX}_{name}", what, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _histogram(
    name: str,
    what: str,
    bounds: Sequence[float],
    spread: Spread | Mapping[UpstreamName, Spread],
) -> HistogramMetricFamily:
    labels = () if isinstance(spread, Spread) else ("upstream",)
    family = HistogramMetricFamily(f"{PREFIX}_{name}", what, labels=labels)
    ends = [*map(floatToGoString, bounds), "+Inf"]
    rows = {(): spread} if isinstance(spread, Spread) else {(n,): s for n, s in spread.items()}
    for key, row in rows.items():
        buckets = [(end, float(count)) for end, count in zip(ends, row.cumulative(), strict=True)]
        family.add_metric(list(key), buckets, row.total)
    return family
