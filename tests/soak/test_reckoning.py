"""The reckoning of the soak finds what it is there to find: each fault, made up, is named."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.soak.clients import Seen
from tests.soak.jobs import Framing, Job, Leave, Way
from tests.soak.pair import Line
from tests.soak.plans import Act, Plan, plan_in
from tests.soak.reckoning import Entry, Evidence, Scrape, findings

PATH = "/generate"
OK_ENTRY: Entry = {
    "message": "request",
    "level": "info",
    "request_id": "s1-0",
    "endpoint": PATH,
    "outcome": "ok",
    "status": 200,
    "upstream": "spec",
    "attempts": 1,
}
OK_LINE = Line("R", "spec", "s1-0", 1, 0.0)
SERIES = {
    "requests_started_total": 1,
    f'requests_total{{upstream="spec",endpoint="{PATH}",outcome="ok"}}': 1,
    'responses_total{upstream="spec",code="200"}': 1,
    'decisions_total{upstream="spec",reason="mode"}': 1,
}


def job(way: Way = Way.STAY) -> Job:
    """A job."""
    plan = Plan(id="s1-0", stream=True)
    return Job(id="s1-0", way=way, path=PATH, plan=plan, leave=Leave.FIN, framing=Framing.LENGTH)


SEEN = Seen(job=job(), status=200, upstream="spec", whole=True)


def scrape(**changed: float) -> Scrape:
    """A scrape of what one request leaves behind; `changed` series on top."""
    series = {**SERIES, **changed}
    return Scrape("".join(f"specswitch_{name} {value}\n" for name, value in series.items()))


def found(
    *,
    seen: Seen = SEEN,
    log: Sequence[Entry] = (OK_ENTRY,),
    ledger: Sequence[Line] = (OK_LINE,),
    done: Sequence[Line] = (),
    text: Scrape | None = None,
) -> str:
    """What the reckoning finds, as one text."""
    evidence = Evidence(seen=[seen], log=log, ledger=ledger, done=done, scrape=text or scrape())
    return "\n".join(findings(evidence))


def test_what_agrees_is_no_finding() -> None:
    """One good request, told alike by all three, gives no finding."""
    assert found() == ""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seen": replace(SEEN, fault="another's bytes")}, "another's bytes"),
        ({"seen": replace(SEEN, status=500)}, "the client saw 500"),
        ({"seen": replace(SEEN, whole=False)}, "broken off"),
        ({"seen": replace(SEEN, upstream="base")}, "the client saw 200 of base"),
        ({"log": ()}, "0 lines in the log"),
        ({"log": (OK_ENTRY, OK_ENTRY)}, "2 lines in the log"),
        ({"log": ({**OK_ENTRY, "request_id": "s1-9"},)}, "nobody asked"),
        ({"log": ({**OK_ENTRY, "outcome": "abandoned"},)}, "outcome=abandoned"),
        ({"log": ({**OK_ENTRY, "level": "error"},)}, "the log says"),
        ({"log": ({**OK_ENTRY, "outcome": "failed"},)}, "only in the metric"),
        ({"ledger": ()}, "received by []"),
        ({"ledger": (OK_LINE, OK_LINE)}, "engines received the attempts [1, 1]"),
        ({"ledger": (OK_LINE, OK_LINE._replace(attempt=2))}, "sent 1 times"),
        ({"ledger": (OK_LINE, OK_LINE._replace(id="s1-9"))}, "reached an engine"),
        ({"text": scrape(requests_started_total=2)}, "2 requests started"),
        ({"text": scrape(in_flight=1)}, "in_flight is 1"),
        ({"text": scrape(queue_depth=1)}, "queue_depth is 1"),
        ({"text": scrape(open_requests=1)}, "open_requests is 1"),
        ({"text": scrape(log_lines_dropped_total=3)}, "3 lines of the log"),
        ({"text": scrape(**{'upstream_connections{state="active"}': 1})}, "in use at the end"),
        ({"text": scrape(**{'retries_total{cause="connect"}': 1})}, "1 decisions for 1 requests"),
        ({"text": scrape(**{'retries_total{cause="stale_connection"}': 2})}, "never sent to"),
    ],
)
def test_each_fault_is_named(changed: dict[str, object], says: str) -> None:
    """What one of the three tells otherwise is found, whatever it is."""
    assert says in found(**changed)  # type: ignore[arg-type]  # a table of all of them


def test_who_leaves_within_the_body_reaches_no_engine() -> None:
    """A client that left within its body must be abandoned, and nothing may have been sent."""
    gone = Seen(job=job(Way.LEAVE_BODY), left=True)
    assert "the client saw None" in found(seen=gone)


def test_who_leaves_within_the_head_is_no_request() -> None:
    """A client that left within its head has no line in the log."""
    assert "1 lines in the log" in found(seen=Seen(job=job(Way.LEAVE_HEAD), left=True))


def test_what_is_no_request_is_counted() -> None:
    """Whoever sent what is not HTTP is in the log once, without a name."""
    wrong = Seen(job=job(Way.MALFORMED), status=400, whole=True)
    assert "1 clients sent what is no request, 0 are in the log" in found(seen=wrong)


def test_what_an_engine_worked_on_is_never_sent_again() -> None:
    """A second attempt after an engine had it for long, and did not refuse, is found."""
    slow = replace(job(), plan=Plan(id="s1-0", before=150, spec=Act.RESET_HEAD))
    seen = replace(SEEN, job=slow)
    twice = (OK_LINE, OK_LINE._replace(attempt=2))
    ended = (OK_LINE._replace(letter="E"),)
    assert "it was sent again" in found(seen=seen, ledger=twice, done=ended)
    refused = replace(slow, plan=replace(slow.plan, spec=Act.STATUS_503))
    again = found(seen=replace(SEEN, job=refused), ledger=twice, done=ended)
    assert "it was sent again" not in again


def test_a_plan_is_read_as_it_was_written() -> None:
    """A plan survives the prompt, whatever JSON makes of it."""
    plan = Plan(id="s1-0", pieces=3, before=5, between=2, pad=10, stream=True)
    assert plan_in(b'{"messages":[{"content":"' + str(plan).encode() + b'"}]}') == plan
    assert plan_in(b"{}") is None
