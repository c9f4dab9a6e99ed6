"""Metrics: what is counted when, what is read at a scrape, and that the text is Prometheus's."""

from dataclasses import replace
from math import inf, isnan
from random import Random

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from proxy.control.engine import Findings, Load, Reading
from proxy.control.gauges import Sources
from proxy.control.metrics import Metrics
from proxy.core.dispatch import Dispatcher
from proxy.core.eligibility import Eligibility, Verdict
from proxy.core.endpoints import ENDPOINTS
from proxy.core.identity import Identity
from proxy.core.modes import Switch, Thresholds
from proxy.core.observer import Observer, Record
from proxy.core.places import Place
from proxy.core.route import REASONS, Need
from proxy.core.words import (
    AdminState,
    Control,
    EjectionCause,
    Health,
    Outcome,
    RetryCause,
    SwitchReason,
    Topology,
    UpstreamName,
)
from proxy.errors import Refusal
from tests.harness import pair

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
THRESHOLDS = replace(pair.SETTINGS.thresholds, crossover=4.5)
SETTINGS = replace(
    pair.SETTINGS,
    thresholds=THRESHOLDS,
    spec_cap=None,
    max_in_flight=3,
)
NEED = Need(1, Eligibility(Verdict.ANY, None))
CHAT = "/v1/chat/completions"

Samples = dict[str, float]


def series(name: str, /, **labels: str) -> str:
    """A sample's name and labels, in one string."""
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name


class Nobody:
    """A waiter that is not asked anything here."""

    def placed(self, place: Place) -> None:
        """Nothing."""

    def refused(self, refusal: Refusal) -> None:
        """Nothing."""


class Scene:
    """Metrics of a pair whose clock and sources the test moves."""

    def __init__(self, thresholds: Thresholds = THRESHOLDS) -> None:
        self.now = 0.0
        self.open = 0
        self.dropped = 0
        self.clients = 0
        self.calibrated_at: float | None = None
        self.findings = {SPEC: Findings(), BASE: Findings()}
        self.metrics = Metrics("1.2.3")
        settings = replace(SETTINGS, thresholds=thresholds)
        self.dispatcher = Dispatcher(settings, self.metrics, now=0.0)
        sources = Sources(
            open_requests=lambda: self.open,
            connections=lambda name: (2, 5) if name is SPEC else (1, 0),
            findings=lambda: self.findings,
            dropped_lines=lambda: self.dropped,
            clients=lambda: self.clients,
            calibrated_at=lambda: self.calibrated_at,
            started_at=1.7e9,
        )
        self.metrics.watch(self.dispatcher, sources, clock=lambda: self.now)

    def probe(self, *names: UpstreamName) -> None:
        """Good probes, by which these become healthy."""
        for name in names:
            algorithm = "EAGLE3" if name is SPEC else None
            identity = Identity(known=True, speculative_algorithm=algorithm)
            self.dispatcher.probe_succeeded(name, identity, self.now)

    def scrape(self) -> Samples:
        """Every sample by its name and labels, as in `name{a="b"}`."""
        body, _ = self.metrics.render()
        found: Samples = {}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                key = series(sample.name.removeprefix("specswitch_"), **sample.labels)
                assert key not in found
                found[key] = sample.value
        return found

    def counted(self, record: Record) -> Samples:
        """What changed by a request that ended so."""
        before = self.scrape()
        self.metrics.ended(record)
        after = self.scrape()
        changed = {key: value for key, value in after.items() if value != before.get(key, 0.0)}
        # The process itself goes on meanwhile.
        left_out = ("_bucket", "process_")
        return {key: v for key, v in changed.items() if not any(word in key for word in left_out)}


def ended(
    outcome: Outcome = Outcome.OK,
    upstream: UpstreamName | None = SPEC,
    status: int | None = 200,
) -> Record:
    """A chat request that ended after two seconds."""
    record = Record(request_id="r", endpoint=CHAT, method="POST", upstream=upstream)
    record.outcome, record.status, record.duration_seconds = outcome, status, 2.0
    return record


# Counting --------------------------------------------------------------------------------------


def test_it_is_an_observer() -> None:
    """The dispatcher and the data plane know it as nothing else."""
    observer: Observer = Metrics("1")

    observer.wanted(Switch(SPEC, SwitchReason.CALM, 0.0, 0))


def test_the_text_is_that_of_prometheus() -> None:
    """The library's own parser reads it, and nothing in it is doubled."""
    body, content_type = Scene().metrics.render()

    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"_created" not in body  # the library would add one to every series
    families = list(text_string_to_metric_families(body.decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) > 30
    assert all(name.startswith("specswitch_") for name in names)
    assert all(family.documentation.endswith(".") for family in families)


def test_before_there_is_a_pair_it_can_be_scraped() -> None:
    """Metrics exist before the dispatcher that they observe."""
    assert b"specswitch_requests_started_total 0.0" in Metrics("1").render()[0]


def test_closed_sets_start_at_zero() -> None:
    """A rate over the first event is right only if the series was there before it."""
    samples = Scene().scrape()

    for name in ("spec", "base"):
        for reason in REASONS:
            assert samples[f'decisions_total{{reason="{reason}",upstream="{name}"}}'] == 0
        for cause in EjectionCause:
            assert samples[f'ejections_total{{cause="{cause}",upstream="{name}"}}'] == 0
        for why in SwitchReason:
            assert samples[f'mode_switches_total{{reason="{why}",to="{name}"}}'] == 0
        assert samples[f'midstream_failures_total{{upstream="{name}"}}'] == 0
        assert samples[f'output_tokens_total{{upstream="{name}"}}'] == 0
        assert samples[f'request_duration_seconds_count{{upstream="{name}"}}'] == 0
    for name in ("spec", "base", "none"):
        for outcome in Outcome:
            labels = f'endpoint="{CHAT}",outcome="{outcome}",upstream="{name}"'
            assert samples[f"requests_total{{{labels}}}"] == 0
    assert samples['responses_total{code="429",upstream="none"}'] == 0
    assert samples['retries_total{cause="refusal"}'] == 0


def test_a_request_is_counted_once_at_its_end() -> None:
    """With its status and its duration, and nothing that it does not say."""
    assert Scene().counted(ended()) == {
        f'requests_total{{endpoint="{CHAT}",outcome="ok",upstream="spec"}}': 1,
        'responses_total{code="200",upstream="spec"}': 1,
        'request_duration_seconds_count{upstream="spec"}': 1,
        'request_duration_seconds_sum{upstream="spec"}': 2,
    }


def test_a_tunnel_has_no_duration_that_would_say_anything() -> None:
    """It lasts as long as its two sides like; it is counted like any request."""
    assert Scene().counted(ended(status=101)) == {
        f'requests_total{{endpoint="{CHAT}",outcome="ok",upstream="spec"}}': 1,
        'responses_total{code="101",upstream="spec"}': 1,
    }


def test_a_request_says_its_times_and_tokens() -> None:
    """Each in the histogram of its upstream, or in the one of ours."""
    record = ended(upstream=BASE)
    record.waited_seconds, record.overhead_seconds = 0.5, 0.0001
    record.first_token_seconds, record.seconds_per_token = 0.3, 0.01
    record.output_tokens, record.midstream = 20, True

    changed = Scene().counted(record)

    assert changed["queue_wait_seconds_sum"] == 0.5
    assert changed["proxy_overhead_seconds_sum"] == 0.0001
    assert changed['time_to_first_token_seconds_sum{upstream="base"}'] == 0.3
    assert changed['time_per_output_token_seconds_sum{upstream="base"}'] == 0.01
    assert changed['output_tokens_total{upstream="base"}'] == 20
    assert changed['midstream_failures_total{upstream="base"}'] == 1


def test_an_abandoned_request_has_no_response_and_no_duration() -> None:
    """When a client leaves says nothing about the upstream."""
    assert Scene().counted(ended(Outcome.ABANDONED)) == {
        f'requests_total{{endpoint="{CHAT}",outcome="abandoned",upstream="spec"}}': 1,
    }


def test_our_own_refusal_has_no_upstream() -> None:
    """It is `none`, and no engine's times are touched by it."""
    assert Scene().counted(ended(Outcome.REJECTED, None, 429)) == {
        f'requests_total{{endpoint="{CHAT}",outcome="rejected",upstream="none"}}': 1,
        'responses_total{code="429",upstream="none"}': 1,
    }


@pytest.mark.parametrize(
    ("status", "code"), [(418, "418"), (599, "599"), (0, "other"), (600, "other"), (-7, "other")]
)
def test_a_status_is_a_status_or_other(status: int, code: str) -> None:
    """An engine may answer anything; the labels stay a closed set, and each counts on."""
    scene = Scene()
    scene.metrics.ended(ended(status=status))
    scene.metrics.ended(ended(status=status))

    assert scene.scrape()[f'responses_total{{code="{code}",upstream="spec"}}'] == 2


def test_an_unknown_path_is_other() -> None:
    """A scanner with a thousand paths makes no thousand series."""
    scene = Scene()
    record = ended(Outcome.REJECTED, None, 404)
    record.endpoint = "/wp-login.php"

    changed = scene.counted(record)

    assert changed['requests_total{endpoint="other",outcome="rejected",upstream="none"}'] == 1
    assert b"wp-login" not in scene.metrics.render()[0]


def test_endpoints_are_the_allow_list() -> None:
    """Every path that is counted has its series; the probes' own paths are not counted."""
    samples = Scene().scrape()

    for endpoint in ENDPOINTS:
        labels = f'endpoint="{endpoint.template}",outcome="ok",upstream="none"'
        assert (f"requests_total{{{labels}}}" in samples) is endpoint.needs_key


def test_started_is_ended_and_open() -> None:
    """At every scrape, whatever has ended how."""
    scene = Scene()
    ends = [
        ended(),
        ended(Outcome.FAILED, BASE, 503),
        ended(Outcome.ABANDONED, None, None),
        ended(Outcome.REJECTED, None, 404),
    ]
    for record in [*ends, *ends]:
        scene.metrics.started()
        scene.metrics.started()
        scene.metrics.ended(record)
        scene.open += 1

        samples = scene.scrape()

        total = sum(value for key, value in samples.items() if key.startswith("requests_total"))
        assert samples["requests_started_total"] == total + samples["open_requests"]


def test_decisions_retries_switches_and_ejections_are_counted() -> None:
    """Each under the words of its closed set; a recovery is no ejection."""
    scene = Scene()
    scene.metrics.decided(SPEC, "eligibility:min_p")
    scene.metrics.retried(RetryCause.CONNECT)
    scene.metrics.switched(Switch(BASE, SwitchReason.IN_FLIGHT, 1.0, 5))
    scene.metrics.health_changed(SPEC, Health.EJECTED, EjectionCause.PROBE, "gone")
    scene.metrics.health_changed(SPEC, Health.PROBATION, EjectionCause.PROBE, "")
    scene.metrics.health_changed(SPEC, Health.HEALTHY, None, "")
    scene.metrics.lagged(0.003)

    samples = scene.scrape()

    assert samples['decisions_total{reason="eligibility:min_p",upstream="spec"}'] == 1
    assert samples['retries_total{cause="connect"}'] == 1
    assert samples['mode_switches_total{reason="in_flight",to="base"}'] == 1
    assert samples['ejections_total{cause="probe",upstream="spec"}'] == 1
    assert sum(v for k, v in samples.items() if k.startswith("ejections_total")) == 1
    assert samples["loop_lag_seconds_sum"] == 0.003


def test_holds_and_reloads_are_counted() -> None:
    """A hold is a switch to base that was not made; a reload is told as it went."""
    scene = Scene()
    scene.metrics.held(60.0)
    for ok in (True, False, False):
        scene.metrics.reloaded(ok=ok)

    samples = scene.scrape()

    assert samples['mode_switches_total{reason="flap",to="base"}'] == 1
    assert sum(v for k, v in samples.items() if k.startswith("mode_switches_total")) == 1
    assert samples['config_reloads_total{result="ok"}'] == 1
    assert samples['config_reloads_total{result="rejected"}'] == 2


def test_it_counts_as_the_library_would() -> None:
    """Byte for byte its own text of the same story: bounds, sums, late series and their order."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type here
    metrics, theirs = Metrics("1"), CollectorRegistry()
    codes = [("spec", code) for code in (200, 400, 404, 413, 429, 500, 503)]
    responses = Counter(
        "specswitch_responses",
        "Statuses sent to clients that stayed.",
        ("upstream", "code"),
        registry=theirs,
    )
    durations = Histogram(
        "specswitch_request_duration_seconds",
        "From the first byte of a request to its end.",
        ("upstream",),
        buckets=bounds_of(metrics, "specswitch_request_duration_seconds"),
        registry=theirs,
    )
    for _, code in codes:
        responses.labels("spec", code)
    lot = Random(1)
    for _ in range(400):
        record = ended(status=lot.choice([200, 503, 302, 299, 999]))
        record.duration_seconds = lot.choice([0.0, 0.1, 0.25, 3600.0, 1e6, lot.expovariate(0.1)])
        metrics.ended(record)
        responses.labels("spec", "other" if record.status == 999 else record.status).inc()
        durations.labels("spec").observe(record.duration_seconds)

    for name in ("specswitch_responses_total", "specswitch_request_duration_seconds"):
        ours = lines_of(metrics.render()[0], name)
        assert ours == lines_of(generate_latest(theirs), name)
        assert len(ours) > 10


def bounds_of(metrics: Metrics, name: str) -> list[float]:
    """The buckets of a histogram."""
    (family,) = [each for each in metrics.collect() if each.name == name]
    bounds = [sample.labels.get("le") for sample in family.samples]
    return sorted({float(bound) for bound in bounds if bound is not None})


def lines_of(text: bytes, name: str) -> list[bytes]:
    """What a scrape says of a family at spec."""
    lines = [line for line in text.splitlines() if name.encode() in line]
    return [line for line in lines if line.startswith(b"#") or b'upstream="spec"' in line]


# Reading ---------------------------------------------------------------------------------------


def test_gauges_are_read_from_the_pair() -> None:
    """Two on the way, one waiting, both upstreams well."""
    scene = Scene()
    scene.probe(SPEC, BASE)
    for _ in range(4):
        scene.dispatcher.arrive(NEED, Nobody(), 0.0)
    scene.open, scene.dropped = 4, 7

    samples = scene.scrape()

    assert samples['in_flight{upstream="spec"}'] == 3
    assert samples['in_flight{upstream="base"}'] == 0
    assert samples["queue_depth"] == 1
    assert samples["open_requests"] == 4
    assert samples["log_lines_dropped_total"] == 7
    assert samples['upstream_healthy{upstream="spec"}'] == 1
    assert samples['upstream_connections{state="active",upstream="spec"}'] == 2
    assert samples['upstream_connections{state="idle",upstream="spec"}'] == 5
    assert samples['build_info{version="1.2.3"}'] == 1


def test_exactly_one_mode_is_current() -> None:
    """State sets: 1 on what is, 0 on what is not; what is wanted stands beside what is."""
    scene = Scene()
    scene.probe(SPEC, BASE)
    scene.dispatcher.set_control(Control.OBSERVE, by="test", now=0.0)

    samples = scene.scrape()

    assert [samples[f'mode{{mode="{m}"}}'] for m in ("spec", "base")] == [0, 1]
    assert [samples[f'mode_wanted{{mode="{m}"}}'] for m in ("spec", "base")] == [1, 0]
    assert {c: samples[f'control{{control="{c}"}}'] for c in Control} == {
        Control.AUTO: 0,
        Control.SPEC: 0,
        Control.BASE: 0,
        Control.OBSERVE: 1,
    }


def test_time_in_a_mode_runs_on_until_the_scrape() -> None:
    """Both counters know the stretch that has not ended yet."""
    scene = Scene()
    scene.now = 2.0
    scene.probe(SPEC, BASE)
    scene.dispatcher.arrive(NEED, Nobody(), 2.0)
    scene.dispatcher.set_control(Control.BASE, by="test", now=2.0)
    scene.dispatcher.arrive(NEED, Nobody(), 2.0)
    scene.now = 5.0

    samples = scene.scrape()

    assert samples['mode_seconds_total{mode="spec"}'] == 0
    assert samples['mode_seconds_total{mode="base"}'] == 5
    assert samples["both_active_seconds_total"] == 3


@pytest.mark.parametrize("crossover", [4.5, inf])
def test_the_crossover_is_shown(crossover: float) -> None:
    """A real number, or infinity where speculation always pays."""
    assert Scene(replace(THRESHOLDS, crossover=crossover)).scrape()["crossover_in_flight"] == (
        crossover
    )


def test_an_unknown_crossover_has_no_sample() -> None:
    """Unknown is not 0: 0 would say that speculation never pays."""
    assert "crossover_in_flight" not in Scene(replace(THRESHOLDS, crossover=None)).scrape()


def test_the_calibration_has_a_date() -> None:
    """Of when it was made, so that its age goes on growing; without one there is no sample."""
    scene = Scene()
    assert "calibration_timestamp_seconds" not in scene.scrape()
    scene.calibrated_at = 1.8e9
    assert scene.scrape()["calibration_timestamp_seconds"] == 1.8e9


def test_the_least_acceptance_is_shown_where_there_is_one() -> None:
    """No bound is not a bound of 0: a dashboard would draw it."""
    assert "min_acceptance_length" not in Scene(replace(THRESHOLDS, least_acceptance=0.0)).scrape()
    bound = replace(THRESHOLDS, least_acceptance=1.6)
    assert Scene(bound).scrape()["min_acceptance_length"] == 1.6


@pytest.mark.parametrize("topology", Topology)
def test_the_topology_is_shown(topology: Topology) -> None:
    """Both servers at once are meant on GPUs of their own, and costly on shared ones."""
    samples = Scene(replace(THRESHOLDS, topology=topology)).scrape()
    shown = {each: samples[f'topology{{topology="{each}"}}'] for each in Topology}
    assert shown == {each: float(each is topology) for each in Topology}


def test_what_the_process_uses() -> None:
    """As the operating system tells it: time only grows, and memory is that of a Python."""
    scene = Scene()
    before = scene.scrape()
    assert before["client_connections"] == 0
    assert before["process_start_time_seconds"] == 1.7e9
    scene.clients = 3
    after = scene.scrape()
    assert after["client_connections"] == 3
    assert 0 < before["process_cpu_seconds_total"] <= after["process_cpu_seconds_total"]
    assert 2**23 < after["process_resident_memory_bytes"] < 2**36


def test_an_ejected_upstream_is_not_healthy() -> None:
    """Nor is one that has never answered."""
    samples = Scene().scrape()

    assert samples['upstream_healthy{upstream="spec"}'] == 0
    assert samples['upstream_seen{upstream="spec"}'] == 0


def test_an_upstream_in_drain_is_not_in_service() -> None:
    """However well it is."""
    scene = Scene()
    scene.probe(SPEC)
    assert scene.scrape()['upstream_in_service{upstream="spec"}'] == 1

    scene.dispatcher.set_admin_state(SPEC, AdminState.DRAIN, scene.now)

    samples = scene.scrape()
    assert samples['upstream_in_service{upstream="spec"}'] == 0
    assert samples['upstream_in_service{upstream="base"}'] == 1


def test_an_upstream_that_was_there_once_has_been_seen() -> None:
    """What is gone is told from what has not come yet, however it went."""
    scene = Scene()
    scene.probe(SPEC)
    for _ in range(SETTINGS.health.fall):
        scene.dispatcher.probe_failed(SPEC, "timeout", 0.0)

    samples = scene.scrape()

    assert samples['upstream_healthy{upstream="spec"}'] == 0
    assert samples['upstream_seen{upstream="spec"}'] == 1
    assert samples['upstream_seen{upstream="base"}'] == 0
    assert samples['upstream_misconfigured{upstream="spec"}'] == 0


def test_an_upstream_that_is_wrong_is_told_for_as_long_as_it_is() -> None:
    """From its first probe on, though no ejection can be seen to happen; and it is not seen yet."""
    scene = Scene()
    wrong = Identity(known=True, speculative_algorithm="EAGLE3")
    scene.dispatcher.probe_succeeded(BASE, wrong, scene.now)

    samples = scene.scrape()
    assert samples['upstream_misconfigured{upstream="base"}'] == 1
    assert samples['upstream_misconfigured{upstream="spec"}'] == 0
    assert samples['upstream_seen{upstream="base"}'] == 0

    for _ in range(SETTINGS.health.rise):
        scene.probe(BASE)
    samples = scene.scrape()
    assert samples['upstream_misconfigured{upstream="base"}'] == 0
    assert samples['upstream_healthy{upstream="base"}'] == 1


def test_engine_readings_have_an_age() -> None:
    """What is known is shown; a rank that does not say has no sample."""
    scene = Scene()
    load = Load(running=3, token_usage=0.5, age_seconds=0.25)
    scene.findings[SPEC].reading = Reading(load, at=8.0, stale_after=6.0)
    scene.now = 10.0

    samples = scene.scrape()

    assert samples['engine_running{upstream="spec"}'] == 3
    assert samples['engine_token_usage{upstream="spec"}'] == 0.5
    assert samples['engine_signal_age_seconds{upstream="spec"}'] == 2.25
    assert not any(key.startswith("engine_waiting") for key in samples)
    assert not any(key.startswith("engine") and "base" in key for key in samples)


def test_a_stale_reading_is_unknown() -> None:
    """Its age stays, so that one sees why the rest is gone."""
    scene = Scene()
    scene.findings[SPEC].reading = Reading(Load(running=3), at=0.0, stale_after=6.0)
    scene.now = 7.0

    samples = scene.scrape()

    assert samples['engine_signal_age_seconds{upstream="spec"}'] == 7
    assert 'engine_running{upstream="spec"}' not in samples


def test_no_sample_is_nan_in_a_fresh_process() -> None:
    """Dashboards add these up; one NaN would hide them all."""
    assert not any(isnan(value) for value in Scene().scrape().values())
