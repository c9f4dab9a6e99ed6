"""The rows on the engines, on what fails, and on specswitch itself."""

from grafana_foundation_sdk.builders import statetimeline, timeseries
from grafana_foundation_sdk.models import units

from deploy.grafana.parts import (
    TOKENS_PER_SECOND,
    About,
    Color,
    Panels,
    Query,
    bands,
    by_code,
    engines,
    events,
    grown,
    limited,
    lines,
    marked,
    meaning,
    ours,
    quantile,
    rate,
    stacked,
)


def of_engines() -> Panels:
    """How the two servers fare, as they say themselves."""
    return [_running(), _waiting(), _cache(), _accepted(), _generated(), _age(), _drift()]


def _running() -> timeseries.Panel:
    about = About(id=30, title="Running", what="Requests that the engine decodes.", width=6)
    return lines(about, units.Short, Query(ours("engine_running"), "{{upstream}}"))


def _waiting() -> timeseries.Panel:
    about = About(
        id=31,
        title="Waiting in the engine",
        what="Requests in the engine's own queue. Where spec queues twice in a row it is left.",
        width=6,
        alerts=("SpecswitchStrained",),
    )
    return lines(about, units.Short, Query(ours("engine_waiting"), "{{upstream}}"))


def _cache() -> timeseries.Panel:
    about = About(
        id=32,
        title="KV cache in use",
        what="Of the fullest data-parallel rank. Spec is left at 90 %.",
        width=6,
    )
    panel = lines(
        about, units.PercentUnit, Query(ours("engine_token_usage"), "{{upstream}}"), most=1.0
    )
    return limited(panel, (None, Color.GOOD), (0.9, Color.BAD))


def _accepted() -> timeseries.Panel:
    about = About(
        id=33,
        title="Acceptance length",
        what="Tokens of one verify round of spec, lately; a gap where nothing was verified. Below "
        "the dashed line speculation is left.",
        width=6,
        alerts=("SpecswitchAcceptanceLow",),
    )
    panel = lines(
        about,
        units.Short,
        Query(ours("engine_acceptance_length"), "{{upstream}}"),
        Query(ours("min_acceptance_length"), "least"),
    )
    return marked(panel, "least").decimals(2)


def _generated() -> timeseries.Panel:
    about = About(
        id=34,
        title="Tokens/s, as the engines say",
        what="SGLang's own gauge, which stands still while an engine is idle.",
        width=8,
    )
    query = Query(f"sum by (upstream) ({engines('gen_throughput')})", "{{upstream}}")
    return lines(about, TOKENS_PER_SECOND, query)


def _age() -> timeseries.Panel:
    about = About(
        id=35,
        title="Age of what the engines say",
        what="An idle engine need not write. While it is busy this should stay low.",
        width=8,
        alerts=("SpecswitchSignalStale",),
    )
    query = Query(ours("engine_signal_age_seconds"), "{{upstream}}")
    return limited(lines(about, units.Seconds, query), (None, Color.GOOD), (60.0, Color.BAD))


def _drift() -> timeseries.Panel:
    about = About(
        id=36,
        title="Drift",
        what="Time per output token now over that when calibrated. Away from 1, calibrate again.",
        width=8,
        alerts=("SpecswitchDrift",),
    )
    panel = lines(about, units.Short, Query(ours("drift_ratio"), "{{upstream}}")).decimals(2)
    return limited(panel, (None, Color.BAD), (0.83, Color.GOOD), (1.2, Color.BAD))


def health() -> Panels:
    """Who is there, and what fails."""
    return [
        _there(),
        _firing(),
        events(
            About(
                id=41,
                title="Ejections",
                what="Engines taken out, by cause.",
                width=6,
                alerts=(
                    "SpecswitchUpstreamStalled",
                    "SpecswitchUpstreamFlaps",
                ),
            ),
            Query(
                f"sum by (upstream, cause) ({grown('ejections_total')}) > 0",
                "{{upstream}}: {{cause}}",
            ),
        ),
        _failing(),
        events(
            About(
                id=43,
                title="Streams broken off",
                what="By an engine, after the head had gone to the client.",
                width=6,
                alerts=("SpecswitchStreamsBreak",),
            ),
            Query(f"{grown('midstream_failures_total')} > 0", "{{upstream}}"),
        ),
        stacked(
            About(
                id=44,
                title="Our own refusals",
                what="By status. 429: too much; 503: no engine, too long a wait, or draining.",
                width=6,
                alerts=("SpecswitchRefuses",),
            ),
            units.RequestsPerSecond,
            Query(by_code('upstream="none"'), "{{code}}"),
        ),
        stacked(
            About(
                id=46,
                title="Requests by outcome",
                what="`failed` is the engine's fault, `abandoned` a client that left, `rejected` "
                "our own refusal.",
                width=8,
            ),
            units.RequestsPerSecond,
            Query(f"sum by (outcome) ({rate(ours('requests_total'))})", "{{outcome}}"),
        ),
        stacked(
            About(id=47, title="Errors of the engines", what="Statuses that passed.", width=8),
            units.RequestsPerSecond,
            Query(by_code('upstream!="none",code=~"[45].."'), "{{code}}"),
        ),
        events(
            About(
                id=45,
                title="Retries",
                what="Requests sent a second time, by why the first did not count.",
                width=8,
            ),
            Query(f"{grown('retries_total')} > 0", "{{cause}}"),
        ),
    ]


def _there() -> statetimeline.Panel:
    about = About(
        id=40,
        title="Who is there",
        what="Whether an engine may take requests, as specswitch sees it, whether the operator has "
        "left it in service, whether it is what its "
        "role and its partner ask for, and whether Prometheus reaches specswitch and the engines.",
        width=12,
        height=9,
        alerts=(
            "SpecswitchDown",
            "SpecswitchNoUpstream",
            "SpecswitchUpstreamEjected",
            "SpecswitchUpstreamMisconfigured",
            "SpecswitchUpstreamHeld",
            "SpecswitchEngineUnscraped",
        ),
    )
    words = meaning({1: ("yes", Color.GOOD), 0: ("no", Color.BAD)})
    return bands(
        about,
        Query(ours("upstream_healthy"), "{{upstream}}"),
        Query(ours("upstream_in_service"), "{{upstream}} in service"),
        Query(f"1 - {ours('upstream_misconfigured')}", "{{upstream}} as it should be"),
        Query('up{job="$job",instance="$instance"}', "scrape of specswitch"),
        Query('up{job="$engines"}', "scrape of {{upstream}}"),
    ).mappings(words)


def _firing() -> statetimeline.Panel:
    about = About(
        id=48,
        title="Alerts",
        what="Those that fire, of this instance or of none; docs/operations.md says what to do.",
        width=12,
        height=9,
    )
    alerts = 'ALERTS{alertname=~"Specswitch.+",alertstate="firing",instance=~"$instance|"}'
    panel = bands(about, Query(f"max by (alertname) ({alerts})", "{{alertname}}"))
    return panel.mappings(meaning({1: ("fires", Color.BAD)})).no_value("none")


def _failing() -> timeseries.Panel:
    about = About(
        id=42,
        title="Share that fails",
        what="Of all requests, over 5 minutes.",
        width=6,
        alerts=("SpecswitchRequestsFail",),
    )
    query = Query(ours("instance:specswitch_requests_total:failed_ratio5m"), "failed")
    panel = lines(about, units.PercentUnit, query)
    return limited(panel, (None, Color.GOOD), (0.01, Color.BAD))


def itself() -> Panels:
    """What specswitch costs."""
    return [
        _overhead(),
        _lag(),
        lines(
            About(
                id=52,
                title="Processor",
                what="Of one core, which is all that one process can use.",
                width=6,
            ),
            units.PercentUnit,
            Query(rate(ours("process_cpu_seconds_total")), "of one core"),
        ),
        lines(
            About(id=53, title="Memory", what="Resident memory of the process.", width=6),
            units.BytesIEC,
            Query(ours("process_resident_memory_bytes"), "resident"),
        ),
        lines(
            About(
                id=55,
                title="Connections",
                what="Of clients, and to the engines, with a request on them or without.",
                width=12,
            ),
            units.Short,
            Query(ours("client_connections"), "clients"),
            Query(ours("upstream_connections"), "{{upstream}} {{state}}"),
        ),
        events(
            About(
                id=54,
                title="Reloads, and log lines lost",
                what="A rejected reload changes nothing. Lines are lost where nobody reads it.",
                width=12,
                alerts=("SpecswitchReloadRefused", "SpecswitchLogLost"),
            ),
            Query(grown("config_reloads_total"), "reload {{result}}"),
            Query(grown("log_lines_dropped_total"), "log lines lost"),
        ),
    ]


def _overhead() -> timeseries.Panel:
    about = About(
        id=50,
        title="Overhead",
        what="From the whole request here to the request sent, without the waiting room.",
        width=6,
        alerts=("SpecswitchSlow",),
    )
    panel = lines(
        about,
        units.Seconds,
        Query(quantile(0.5, "proxy_overhead_seconds"), "p50"),
        Query(ours("instance:specswitch_proxy_overhead_seconds:p99_5m"), "p99 of 5 min"),
    )
    return limited(panel, (None, Color.GOOD), (0.01, Color.BAD))


def _lag() -> timeseries.Panel:
    about = About(
        id=51,
        title="Lateness of the event loop",
        what="It delays every stream at once.",
        width=6,
    )
    query = Query(ours("instance:specswitch_loop_lag_seconds:p99_5m"), "p99 of 5 min")
    return limited(lines(about, units.Seconds, query), (None, Color.GOOD), (0.05, Color.BAD))
