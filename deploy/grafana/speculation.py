"""The rows on whether speculation pays, and on why requests went where they went."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import stat, statetimeline, timeseries
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from deploy.grafana.parts import (
    TOKENS_PER_SECOND,
    About,
    Color,
    Panels,
    Query,
    bands,
    engines,
    events,
    figure,
    grown,
    late,
    limited,
    lines,
    marked,
    meaning,
    ours,
    quantile,
    rate,
    stacked,
    steps,
)


def paying() -> Panels:
    """Is speculation paying right now?"""
    return [_mode(), _share(), _calibration(), _load(), _offered(), _tokens(), _first(), _each()]


def _mode() -> statetimeline.Panel:
    about = About(
        id=1,
        title="Where new generation goes",
        what="The mode; what load alone would have it be; whether the operator holds it; and "
        "whether a calibration says when speculation pays.",
        width=16,
        height=6,
        alerts=("SpecswitchHeld",),
    )
    modes = meaning({1: ("spec", Color.SPEC), 0: ("base", Color.BASE)})
    held = meaning({1: ("auto", Color.GOOD), 0: ("held", Color.WARN)})
    known = meaning({1: ("valid", Color.GOOD), 0: ("none that counts", Color.BAD)})
    panel = bands(
        about,
        Query(ours("mode", 'mode="spec"'), "mode"),
        Query(ours("mode_wanted", 'mode="spec"'), "by load alone"),
        Query(ours("control", 'control="auto"'), "control"),
        Query(ours("calibration_valid"), "calibration"),
    )
    return (
        panel.mappings(modes)
        .override_by_name("control", [DynamicConfigValue("mappings", held)])
        .override_by_name("calibration", [DynamicConfigValue("mappings", known)])
    )


def _share() -> stat.Panel:
    about = About(
        id=2,
        title="On spec, last hour",
        what="Share of the last hour in which new generation went to spec.",
        width=4,
        height=6,
    )
    spent = "sum(rate({}[1h]))"
    on_spec = spent.format(ours("mode_seconds_total", 'mode="spec"'))
    query = Query(f"{on_spec} / {spent.format(ours('mode_seconds_total'))}", "on spec")
    panel = figure(about, units.PercentUnit, query)
    return panel.min(0).max(1).decimals(0).thresholds(steps((None, Color.BASE), (0.5, Color.SPEC)))


def _calibration() -> stat.Panel:
    about = About(
        id=3,
        title="Age of the calibration",
        what="N* and λ* are of that day. No value: there is no calibration, or N* is set by hand.",
        width=4,
        height=6,
        alerts=("SpecswitchUncalibrated", "SpecswitchCalibrationOld"),
    )
    age = Query(f"time() - {ours('calibration_timestamp_seconds')}", "age")
    limits = steps((None, Color.GOOD), (90.0 * 86400.0, Color.WARN))
    return figure(about, units.Seconds, age).decimals(0).thresholds(limits).no_value("none")


def _load() -> timeseries.Panel:
    about = About(
        id=4,
        title="In flight, against N*",
        what="Sequences at each server. Below N* speculation gives more tokens/s in all, above it "
        "costs some; the mode follows with its tolerance.",
        width=8,
    )
    panel = stacked(
        about,
        units.Short,
        Query(f"sum by (upstream) ({ours('in_flight')})", "{{upstream}}"),
        Query(ours("crossover_in_flight"), "N*"),
    )
    return marked(panel, "N*").decimals(0)


def _offered() -> timeseries.Panel:
    about = About(
        id=5,
        title="Offered work, against λ*",
        what="Output tokens/s that arrivals ask for, over the fast and the slow window. Above λ* "
        "speculation is left, well below it is returned to.",
        width=8,
    )
    panel = lines(
        about,
        TOKENS_PER_SECOND,
        Query(ours("offered_tokens_per_second"), "{{window}}"),
        Query(ours("crossover_tokens_per_second"), "λ*"),
    )
    return marked(panel, "λ*")


def _tokens() -> timeseries.Panel:
    about = About(
        id=6,
        title="Tokens/s",
        what="Output of both servers, from the usage in answers: only requests that report it, and "
        "counted at their end. Dashed: what the engines say that they generate.",
        width=8,
    )
    panel = stacked(
        about,
        TOKENS_PER_SECOND,
        Query(f"sum by (upstream) ({rate(ours('output_tokens_total'))})", "{{upstream}}"),
        Query(f"sum({engines('gen_throughput')})", "engines"),
    )
    return marked(panel, "engines")


def _first() -> timeseries.Panel:
    about = About(
        id=7,
        title="Time to first token",
        what="Median and 90th percentile, the waiting room included. A gap: no request ended.",
        width=12,
    )
    return late(lines(about, units.Seconds, *_both("time_to_first_token_seconds")), "p90")


def _each() -> timeseries.Panel:
    about = About(
        id=8,
        title="Time per output token",
        what="After the first token, from usage. Where spec is above base with as much in flight, "
        "speculation does not pay.",
        width=12,
    )
    return late(lines(about, units.Seconds, *_both("time_per_output_token_seconds")), "p90")


def _both(histogram: str) -> Iterator[Query]:
    for share, name in ((0.5, "p50"), (0.9, "p90")):
        yield Query(quantile(share, histogram, "upstream"), f"{{{{upstream}}}} {name}")


def routing() -> Panels:
    """Why requests went where they went."""
    return [
        stacked(
            About(
                id=20,
                title="Decisions by reason",
                what="Places given, by why. `mode` is the rule; each other reason is an exception "
                "that docs/glossary.md explains.",
                width=12,
            ),
            units.RequestsPerSecond,
            Query(
                f"sum by (upstream, reason) ({rate(ours('decisions_total'))}) > 0",
                "{{reason}}, to {{upstream}}",
            ),
        ),
        events(
            About(
                id=21,
                title="Switches by reason",
                what="Changes of mode. `flap`: the limit of changes held it on base.",
                width=12,
                alerts=("SpecswitchModeFlaps",),
            ),
            Query(
                f"sum by (to, reason) ({grown('mode_switches_total')}) > 0",
                "{{reason}}, to {{to}}",
            ),
        ),
        lines(
            About(id=22, title="Waiting room", what="Requests that wait for a place.", width=6),
            units.Short,
            Query(ours("queue_depth"), "waiting"),
        ),
        limited(
            lines(
                About(
                    id=23,
                    title="Time in the waiting room, p90",
                    what="Of those that had to wait, over 5 minutes.",
                    width=6,
                    alerts=("SpecswitchQueueSlow",),
                ),
                units.Seconds,
                Query(ours("instance:specswitch_queue_wait_seconds:p90_5m"), "p90"),
            ),
            (None, Color.GOOD),
            (10.0, Color.BAD),
        ),
        limited(
            lines(
                About(
                    id=24,
                    title="Both servers at once",
                    what="Share of time, over 10 minutes. On shared GPUs they slow each other down "
                    "then; on GPUs of their own it is meant.",
                    width=6,
                    alerts=("SpecswitchBothActive",),
                ),
                units.PercentUnit,
                Query(ours("instance:specswitch_both_active_seconds_total:rate10m"), "both"),
                most=1.0,
            ),
            (None, Color.GOOD),
            (0.5, Color.BAD),
        ),
        lines(
            About(
                id=25,
                title="Open requests and what is in flight",
                what="In flight are sequences of generation, open is whatever has not ended. In "
                "flight without anything open cannot be.",
                width=6,
                alerts=("SpecswitchBooksWrong", "SpecswitchInFlightStuck"),
            ),
            units.Short,
            Query(ours("open_requests"), "open requests"),
            Query(f"sum({ours('in_flight')})", "in flight"),
        ),
    ]
