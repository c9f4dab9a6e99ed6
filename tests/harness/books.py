"""What a scrape must add up to, at every moment: nothing is counted twice, nothing is forgotten."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client.samples import Sample

from proxy.core.words import Outcome, RetryCause


def faults(samples: Iterable[Sample]) -> list[str]:
    """What does not add up.

    Who was placed has an upstream in `requests_total`, at its end. So the places given may be more
    by those who have not ended, and by those who gave one back, of a server that was not there, and
    got no other.
    """
    sums = _sums(samples)
    wrong = []
    for name, expected in {
        "requests_started_total": sums["requests_total"] + sums["open_requests"],
        "responses_total": sums["stayed"],
    }.items():
        if sums[name] != expected:
            wrong.append(f"{name} is {sums[name]}, not {expected}")
    least = sums["placed"] + sums["moved"]
    most = least + sums["open_requests"] + sums["unplaced"]
    if not least <= sums["decisions_total"] <= most:
        wrong.append(f"decisions_total is {sums['decisions_total']}, not {least} to {most}")
    return wrong


def left(samples: Iterable[Sample]) -> list[str]:
    """What is still going on."""
    sums = _sums(samples)
    names = ("open_requests", "queue_depth", "in_flight", "connections in use")
    return [f"{sums[name]} {name}" for name in names if sums[name]]


def _sums(samples: Iterable[Sample]) -> Counter[str]:
    """The series by their names, summed, and what some of their labels say."""
    sums: Counter[str] = Counter()
    for sample in samples:
        name, labels, count = sample.name, sample.labels, int(sample.value)
        sums[name.removeprefix("specswitch_")] += count
        if name == "specswitch_requests_total":
            sums["stayed"] += count if labels["outcome"] != Outcome.ABANDONED else 0
            sums["unplaced" if labels["upstream"] == "none" else "placed"] += count
        elif name == "specswitch_retries_total":
            sums["moved"] += count if labels["cause"] != RetryCause.STALE_CONNECTION else 0
        elif name == "specswitch_upstream_connections" and labels["state"] == "active":
            sums["connections in use"] += count
    return sums
