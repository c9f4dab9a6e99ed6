"""Holds what the clients saw, what specswitch says and what the engines say against each other.

Every request has an id of its own, so this is done one by one, and then for the totals. A finding
is a sentence; none is what a soak must end with.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from tests.soak.clients import LARGE, Seen
from tests.soak.jobs import SLOW_MS, Job, Leave, Way
from tests.soak.pair import Line
from tests.soak.plans import MAY_BE_SILENT, REFUSALS

Entry = Mapping[str, object]
"""One line of specswitch's log."""

NO_REQUEST: Final = frozenset({Way.MALFORMED, Way.LONG_HEAD})
"""What never becomes a request: it has no id, and is counted all the same."""
UNCOUNTED: Final = frozenset({Way.OWN, Way.LEAVE_HEAD})
_SWITCHED: Final = 101
_MAY_BE_LOST: Final = frozenset({"upstream_reset", "upstream_timeout"})


class Scrape:
    """Totals of one moment; labels that are not asked for are summed over."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> int:
        """The sum of the series of `specswitch_{name}` that have these labels."""
        return round(
            sum(
                sample.value
                for sample in self._samples
                if sample.name == f"specswitch_{name}" and labels.items() <= sample.labels.items()
            )
        )

    def by(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        """The series of `specswitch_{name}` by these labels, without those at 0."""
        counts: Counter[tuple[str, ...]] = Counter()
        for sample in self._samples:
            if sample.name == f"specswitch_{name}" and sample.value:
                counts[tuple(sample.labels[label] for label in labels)] += round(sample.value)
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that there is at the end."""

    seen: Sequence[Seen]
    log: Sequence[Entry]
    ledger: Sequence[Line]
    """The whole requests that the engines received."""
    done: Sequence[Line]
    """The answers that they gave as planned, whatever the plan was."""
    scrape: Scrape

    @property
    def requests(self) -> list[Entry]:
        """The log's lines of requests."""
        return [entry for entry in self.log if entry["message"] == "request"]


def findings(evidence: Evidence) -> list[str]:
    """Everything that does not agree."""
    return [
        *_of_clients(evidence.seen),
        *_of_each(evidence),
        *_of_the_log(evidence),
        *_of_totals(evidence.requests, evidence.scrape),
        *_of_sends(evidence),
        *_of_nothing_left(evidence.scrape),
    ]


def _of_clients(seen: Iterable[Seen]) -> Iterator[str]:
    for each in seen:
        if each.fault is not None:
            yield f"{each.job.id} ({each.job.way}, {each.job.path}): {each.fault}"


# One by one ----------------------------------------------------------------------------------


def _of_each(evidence: Evidence) -> Iterator[str]:
    entries: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.requests:
        entries[str(entry.get("request_id", ""))].append(entry)
    received, done = _by_id(evidence.ledger), _by_id(evidence.done)
    unnamed = entries.pop("", [])
    told = sum(each.job.way in NO_REQUEST for each in evidence.seen)
    if len(unnamed) != told:
        yield f"{told} clients sent what is no request, {len(unnamed)} are in the log"
    for each in evidence.seen:
        name = each.job.id
        own, there = entries.pop(name, []), received.pop(name, [])
        again = _of_repeats(each.job, done[name], len(there))
        for fault in (*_of_one(each, own), *_of_receipts(own, there), *again):
            yield f"{name} ({each.job.way}, {each.job.path}): {fault}"
    yield from (f"{name} is in the log, and nobody asked it" for name in entries)
    yield from (f"{name} reached an engine, and nobody asked it" for name in received)


def _by_id(lines: Iterable[Line]) -> defaultdict[str, list[Line]]:
    by_id: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line.id].append(line)
    return by_id


def _of_one(seen: Seen, entries: list[Entry]) -> Iterator[str]:
    expected = _lines_expected(seen.job)
    if len(entries) not in expected:
        yield f"{len(entries)} lines in the log"
    for entry in entries:
        if not _agree(seen, entry):
            yield f"the client saw {_as_text(seen)}, the log says {_short(entry)}"


def _lines_expected(job: Job) -> frozenset[int]:
    if job.way in UNCOUNTED or job.way in NO_REQUEST:
        return frozenset({0})
    if job.leave is Leave.RESET and job.way in {Way.LEAVE_BODY, Way.LEAVE_SOON}:
        return frozenset({0, 1})  # a reset may overtake what was sent before it
    return frozenset({1})


def _agree(seen: Seen, entry: Entry) -> bool:
    outcome, status = entry["outcome"], entry.get("status")
    if seen.job.way is Way.LEAVE_BODY:
        return (outcome, entry["attempts"]) == ("abandoned", 0)
    if seen.left:
        return True  # it may have ended before we saw that nobody was there
    if seen.job.way is Way.TUNNEL and seen.status == _SWITCHED:
        return outcome in {"ok", "failed"} and (status, entry.get("upstream")) == (
            seen.status,
            seen.upstream,
        )
    if seen.whole:
        good = outcome != "abandoned" and status == seen.status
        return good and (outcome != "ok" or entry.get("upstream") == seen.upstream)
    if outcome == "abandoned":
        return seen.job.way in LARGE
    return outcome == "failed" and status == seen.status


def _of_receipts(entries: list[Entry], received: list[Line]) -> Iterator[str]:
    """Nothing reaches an engine twice but as a numbered attempt, and nothing that was refused."""
    sent = sum(_number(entry, "attempts") for entry in entries)
    attempts = sorted(line.attempt for line in received)
    if len(set(attempts)) < len(attempts) or not set(attempts) <= set(range(1, sent + 1)):
        yield f"sent {sent} times, engines received the attempts {attempts}"
    for entry in entries:
        there = {(line.engine, line.attempt) for line in received}
        ended = entry["outcome"] == "ok" or entry.get("status") in {200, 400, 429, 500}
        last = (entry.get("upstream"), entry["attempts"])
        if ended and entry["attempts"] and last not in there:
            yield f"answered by {last}, received by {sorted(there)}"


def _of_repeats(job: Job, done: list[Line], times: int) -> Iterator[str]:
    """What an engine had worked on, and did not refuse, is never sent again.

    Unless it died soon and without a byte: that looks like a connection that was closed before.
    """
    for line in done:
        act = job.plan.act(line.engine)
        early = act in MAY_BE_SILENT and job.plan.before < SLOW_MS
        if not early and act not in REFUSALS and line.attempt < times:
            yield f"{line.engine} had it and ended ({act}), and it was sent again"


# Totals --------------------------------------------------------------------------------------


def _of_the_log(evidence: Evidence) -> Iterator[str]:
    for entry in evidence.log:
        if entry["level"] in {"error", "critical"} or "exception" in entry:
            yield f"the log says: {entry}"
    dropped = evidence.scrape.total("log_lines_dropped_total")
    if dropped:
        yield f"{dropped} lines of the log were dropped"


def _of_totals(requests: Sequence[Entry], scrape: Scrape) -> Iterator[str]:
    yield from conservation(scrape)
    labels = ("upstream", "endpoint", "outcome")
    ended = Counter(tuple(str(e.get(label, "none")) for label in labels) for e in requests)
    yield from _differ("requests_total", ended, scrape.by("requests_total", *labels))
    stayed = [entry for entry in requests if entry["outcome"] != "abandoned"]
    said: Counter[tuple[str, ...]] = Counter(
        (str(e.get("upstream", "none")), str(e["status"])) for e in stayed
    )
    yield from _differ("responses_total", said, scrape.by("responses_total", "upstream", "code"))


def conservation(scrape: Scrape) -> Iterator[str]:
    """What holds at every scrape, also in the middle of everything."""
    started = scrape.total("requests_started_total")
    ended, open_ = scrape.total("requests_total"), scrape.total("open_requests")
    if started != ended + open_:
        yield f"{started} requests started, {ended} ended and {open_} are open"


def _differ(
    name: str, log: Counter[tuple[str, ...]], scrape: Counter[tuple[str, ...]]
) -> Iterator[str]:
    if log != scrape:
        yield f"{name}: {dict(scrape - log)} only in the metric, {dict(log - scrape)} in the log"


def _of_sends(evidence: Evidence) -> Iterator[str]:
    """Sends are decisions, and stale connections replaced, less those that did not come about."""
    requests, scrape = evidence.requests, evidence.scrape
    retries = {c: scrape.total("retries_total", cause=c) for c in _CAUSES}
    placed = sum("upstream" in entry for entry in requests)
    decided = scrape.total("decisions_total")
    waiting = sum("upstream" not in entry and _ended_waiting(entry) for entry in requests)
    # Who could not be connected to may wait for a place once more, and end there without one.
    gone = decided - placed - retries["connect"] - retries["refusal"]
    if not 0 <= gone <= waiting:
        yield f"{decided} decisions for {placed} requests that had a place, and {retries}"
    sent = sum(_number(entry, "attempts") for entry in requests)
    unconnected = decided + retries["stale_connection"] - sent
    failed = retries["connect"] + gone
    failed += sum(entry.get("code") == "upstream_connect" for entry in requests)
    left = sum(entry["outcome"] == "abandoned" for entry in requests)
    if not failed <= unconnected <= failed + left:
        yield f"{unconnected} places were never sent to, {failed} could not be connected to"
    lost = sent - len(evidence.ledger)
    may_be_lost = left + retries["stale_connection"]
    may_be_lost += sum(entry.get("code") in _MAY_BE_LOST for entry in requests)
    if not 0 <= lost <= may_be_lost:
        yield f"{sent} were sent, {len(evidence.ledger)} arrived, {may_be_lost} may be lost"


def _ended_waiting(entry: Entry) -> bool:
    return entry["outcome"] == "abandoned" or entry.get("code") in _PATIENCE


_PATIENCE: Final = frozenset({"queue_timeout", "no_upstream", "ineligible"})
_CAUSES: Final = ("connect", "refusal", "stale_connection")


def _of_nothing_left(scrape: Scrape) -> Iterator[str]:
    for name in ("in_flight", "queue_depth", "open_requests"):
        if scrape.total(name):
            yield f"{name} is {scrape.total(name)} at the end"
    active = scrape.total("upstream_connections", state="active")
    if active:
        yield f"{active} connections to the engines are in use at the end"


# Words ---------------------------------------------------------------------------------------


def _number(entry: Entry, name: str) -> int:
    number = entry[name]
    assert isinstance(number, int)
    return number


def _as_text(seen: Seen) -> str:
    how = "whole" if seen.whole else "broken off"
    return f"{seen.status} of {seen.upstream} {how}"


def _short(entry: Entry) -> str:
    names = ("outcome", "status", "code", "upstream", "attempts")
    return ", ".join(f"{name}={entry[name]}" for name in names if name in entry)


@dataclass(frozen=True, slots=True)
class Tally:
    """What a soak consisted of, for the report."""

    ways: dict[str, int]
    outcomes: dict[str, int]
    statuses: dict[str, int]
    codes: dict[str, int]
    retries: dict[str, int]
    attempts: int
    received: int


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())


def tally(evidence: Evidence) -> Tally:
    """Count what there was."""
    requests = evidence.requests
    return Tally(
        ways=_counted(str(each.job.way) for each in evidence.seen),
        outcomes=_counted(str(entry["outcome"]) for entry in requests),
        statuses=_counted(str(entry["status"]) for entry in requests if "status" in entry),
        codes=_counted(str(entry["code"]) for entry in requests if "code" in entry),
        retries={c: evidence.scrape.total("retries_total", cause=c) for c in _CAUSES},
        attempts=sum(_number(entry, "attempts") for entry in requests),
        received=len(evidence.ledger),
    )
