"""What must hold of a conversation that is over, judged from the bytes at both ends.

The judge reads with h11 and by rules of its own; it shares with what it judges only the reader,
which has a target of its own.
"""

from collections import deque
from dataclasses import dataclass

from proxy.core.endpoints import Kind, find
from proxy.core.observer import Record
from proxy.core.words import Outcome
from proxy.data.exchange import STALE_SECONDS
from proxy.data.reader import RequestHead, RequestReader
from tests.fuzz import readings
from tests.fuzz.engines import Sent
from tests.fuzz.plan import LIMITS, require
from tests.fuzz.readings import Answer, Headers, Request
from tests.fuzz.world import World

_OURS = {b"x-request-id", b"x-specswitch-upstream", b"x-specswitch-reason"}
_UNREADABLE = {400, 408, 413, 429, 431}


@dataclass(slots=True)
class Asked:
    """A request of the client, as the reader reads it in one piece."""

    head: RequestHead
    body: bytes | None = None
    """None: it never was whole."""
    record: Record | None = None
    """What was told of it; None for what is answered by us, and for what came too late."""
    through: bytes | None = None
    """What was sent behind it through the tunnel that it has opened; None: it has opened none."""

    @property
    def own(self) -> bool:
        """Whether it is answered by us, and not counted."""
        row = find(self.head.path)
        return row is not None and row.kind is Kind.OWN and self.head.method in row.methods


@dataclass(slots=True)
class Attempts:
    """One request as it reached engines: once, or again by one of the two retries."""

    sent: list[Sent]
    read: list[Request]


def judge(world: World) -> None:
    """Raise `Violation` where something does not hold."""
    asked = _asked(world)
    reached = _reached(world)
    _no_request_made_up(asked, reached, world)
    _answers(world, asked, reached)


def _asked(world: World) -> list[Asked]:
    """What the client has asked, in order."""
    reader = RequestReader(
        max_header_bytes=LIMITS.max_header_bytes, max_body_bytes=LIMITS.max_body_bytes
    )
    reader.feed(world.end.given)
    records = iter(world.told.records)
    found: list[Asked] = []
    while (item := reader.next()) is not None or reader.unread:
        if isinstance(item, RequestHead):
            found.append(Asked(item))
            if not found[-1].own:
                found[-1].record = next(records, None)
        elif isinstance(item, bytes):
            found[-1].body = item
            record = found[-1].record
            if record is not None and record.status == 101:
                found[-1].through = reader.take_ahead()
                break
    return found


# towards the engines


def _reached(world: World) -> list[Attempts]:
    """What the engines were sent, by h11; every byte of it is part of a whole request."""
    for engine in world.engines:
        heard = readings.requests_in(engine.end.taken[: engine.tunnel_at])
        count = sum(each.end is engine.end for each in world.sent)
        require(heard.fault is None, f"h11 refuses what an engine got: {heard.fault}")
        require(not heard.partial, "an engine got half a request")
        require(len(heard.whole) == count, f"{len(heard.whole)} requests where {count} were sent")
    groups: list[Attempts] = []
    for sent in world.sent:
        if sent.given_after is not None:
            answer = _read(sent)
            ended = answer.complete or readings.is_lenient(answer.fault, headed=True)
            clean = ended and not answer.rest.strip(b"\r\n")  # as in front of a head
            require(clean, "a connection with a doubt is used again")
            require(answer.value(b"connection") != b"close", "a closed connection is used again")
        (request,) = readings.requests_in(sent.wire).whole
        if not groups or not _goes_on(groups[-1].read[-1], request):
            groups.append(Attempts([], []))
        groups[-1].sent.append(sent)
        groups[-1].read.append(request)
    return groups


def _goes_on(before: Request, after: Request) -> bool:
    """Whether `after` is the same request again; an attempt may have been lost on its way."""
    name, number = b"x-request-id", b"x-specswitch-attempt"
    same = _one(before.headers, name) == _one(after.headers, name)
    return same and int(_one(before.headers, number)) < int(_one(after.headers, number))


def _one(headers: Headers, name: bytes) -> bytes:
    values = [value for each, value in headers if each == name]
    require(len(values) == 1, f"{len(values)} headers {name!r}")
    return values[0]


def _no_request_made_up(asked: list[Asked], reached: list[Attempts], world: World) -> None:
    """What reached an engine was asked, in this order, byte for byte, and repeated only as told."""
    left = iter(asked)
    for group in reached:
        first = group.read[0]
        source = next((each for each in left if _is_told_in(each.record, group)), None)
        require(source is not None, f"nobody asked for {first}")
        assert source is not None
        method = b"GET" if source.head.method == "HEAD" else source.head.method.encode()
        require((first.method, first.target) == (method, source.head.target), "another request")
        require(first.body == source.body, f"another body: {first.body!r} for {source.body!r}")
        _headers_to_engine(source.head, first, keys=world.plan.keys)
        for before, after in zip(group.sent, group.sent[1:], strict=False):
            may = _may_be_repeated(before, after, world)
            require(may, f"repeated after {before.heard!r}")
        require(len(group.sent) <= 3, f"sent {len(group.sent)} times")
        for again in group.read[1:]:
            require(again.body == first.body, "repeated with another body")
            mine, other = (end_to_end_of(each) for each in (again, first))
            require(mine == other, "repeated with other headers")
    attempts = sum(record.attempts for record in world.told.records)
    lost = sum(e.end.dropped > 0 and e.tunnel_at is None for e in world.engines)
    arrived = len(world.sent) + lost
    # Of what waited for the end of its turn, a connection that was dropped first never sent it.
    unsent = attempts - arrived
    require(0 <= unsent <= len(world.engines), f"{arrived} sent, {attempts} counted")


def _is_told_in(record: Record | None, group: Attempts) -> bool:
    name = _one(group.read[0].headers, b"x-request-id").decode()
    return record is not None and record.attempts > 0 and record.request_id == name


def end_to_end_of(request: Request) -> Headers:
    """A request's headers without the number of its attempt."""
    return readings.end_to_end(request.headers, b"x-specswitch-attempt")


def _headers_to_engine(head: RequestHead, got: Request, *, keys: bool) -> None:
    """Every header that has to pass, in order, and no other but ours."""
    asked = [(name.lower(), value) for name, value in head.headers]
    ours = (b"host", b"x-request-id", b"x-specswitch-attempt")
    secret = (b"authorization", b"x-api-key", b"api-key") if keys else ()
    wanted = readings.end_to_end(asked, *ours, b"expect", b"x-specswitch-route", *secret)
    passed = readings.end_to_end(got.headers, *ours)
    require(passed == wanted, f"an engine got {passed}, the client sent {wanted}")
    require(_one(got.headers, b"host") == b"engine", "the Host header is not the engine's")
    length = [value for name, value in got.headers if name == b"content-length"]
    framed = head.has_body or head.content_length is not None
    require(length == ([b"%d" % len(got.body)] if framed else []), f"its length is {length}")


def _may_be_repeated(before: Sent, after: Sent, world: World) -> bool:
    """Whether one of the two exceptions allows it.

    They are a refusal, and a kept connection that was dead; the fresh one in its place may in its
    turn not come about, which leads to the other server.
    """
    heard = before.heard
    elsewhere = after.upstream is not before.upstream
    if not heard:
        missed = any(n is before.upstream and at >= before.at for n, at in world.missed)
        at_once = after.at - before.at <= STALE_SECONDS
        return before.reused and (missed if elsewhere else at_once)
    answer = _read(before)
    held = before.wire.startswith((b"POST /v1/chat/completions", b"POST /v1/completions"))
    began = held and answer.status is not None and answer.status < 300
    refused = answer.status in {429, 503} or (began and b"503" in answer.body)
    return elsewhere and refused


# towards the client


def _answers(world: World, asked: list[Asked], reached: list[Attempts]) -> None:
    """One answer a request, in order, whole or visibly broken off, and each as it was told."""
    rest = world.end.taken
    groups = deque(reached)
    for each in asked:
        group = groups.popleft() if groups and _is_told_in(each.record, groups[0]) else None
        if not rest:
            break
        if each.through is not None:
            _tunnelled(world, each, group, rest)
            return
        rest = _one_answer(world, each, group, rest)
    _last_word(world, rest)


def _one_answer(world: World, asked: Asked, group: Attempts | None, rest: bytes) -> bytes:
    record = asked.record
    fin = world.end.ended == "fin"
    answer = readings.answer_in(rest, asked.head.method.encode(), fin=fin)
    require(answer.fault is None, f"h11 refuses our answer: {answer.fault}: {rest[:300]!r}")
    require(answer.interim <= 1, "more than one interim answer")
    unsaid = world.end.dropped > 0
    if asked.own:
        require(answer.complete or unsaid, "an answer of our own is cut")
    elif record is None or answer.status is None:
        require(unsaid or _waits(world, answer), "an answer is cut before its head is over")
    else:
        _told(world, answer, record, group)
    last = answer.value(b"connection") == b"close"
    require(not (last and answer.rest), "something follows an answer that was to be the last")
    return answer.rest


def _tunnelled(world: World, asked: Asked, group: Attempts | None, rest: bytes) -> None:
    """What either side sent, once both had switched, is what the other got, byte for byte."""
    require(group is not None, "a tunnel to nowhere")
    assert group is not None
    assert asked.through is not None
    sent = group.sent[-1]
    (engine,) = (each for each in world.engines if each.end is sent.end)
    ours = readings.switch_in(rest)
    theirs = readings.switch_in(_without_empty_lines(sent.heard))
    require(theirs.complete, f"a tunnel that the engine has not agreed to: {theirs.fault}")
    through = engine.end.taken[engine.tunnel_at :]
    require(asked.through.startswith(through), f"{through!r} went in for {asked.through!r}")
    ended = engine.end.eof_given or engine.end.ended == "reset" or engine.end.dropped > 0
    require(ended or through == asked.through, f"only {through!r} went in of {asked.through!r}")
    if not ours.complete:
        require(world.end.dropped, f"half an agreement: {rest!r}")
        return
    _headers_to_client(ours, theirs)
    require(theirs.rest.startswith(ours.rest), f"{ours.rest!r} came out for {theirs.rest!r}")
    gone = world.end.dropped > 0 or (world.left and world.plan.resets)
    whole = ours.rest == theirs.rest
    require(whole or gone, f"only {ours.rest!r} came out of {theirs.rest!r}")


def _waits(world: World, answer: Answer) -> bool:
    """Whether nothing was said but `100 Continue`, to a client that then left."""
    return answer.interim == 1 and answer.status is None and world.end.ended is not None


def _told(world: World, answer: Answer, record: Record, group: Attempts | None) -> None:
    if record.outcome is Outcome.ABANDONED:
        early = record.method == "HEAD"  # whole to the client before the engine has ended
        require(early or not answer.complete, "an answer is whole, and told as abandoned")
        return
    require(answer.status == record.status, f"{answer.status} sent, {record.status} told")
    ours = record.code is not None and not record.midstream and _is_ours(answer, record)
    whole = world.end.dropped == 0
    if ours:
        require(answer.complete or not whole, "a refusal is cut")
        return
    require(group is not None, f"an answer from nowhere: {answer}")
    assert group is not None
    _relayed(answer, record, group, whole=whole)


def _is_ours(answer: Answer, record: Record) -> bool:
    code = (record.code or "").encode()
    if answer.value(b"content-type") != b"application/json":
        return False
    return not answer.complete or not answer.body or code in answer.body


def _relayed(answer: Answer, record: Record, group: Attempts, *, whole: bool) -> None:
    """What an engine said, and nothing else; whole only if the engine's answer was."""
    sent = group.sent[-1]
    theirs = _read(sent)
    require(theirs.status, f"passed on, and h11 refuses its head: {theirs.fault}")
    _headers_to_client(answer, theirs)
    if record.method == "HEAD":
        require(not answer.body, "a body in answer to HEAD")
        return
    short = readings.is_lenient(theirs.fault, headed=True)  # h11 has stopped where it is strict
    if answer.complete:
        require(not record.midstream, "whole, and told as broken off")
        require(theirs.complete or short, f"an end is made up ({theirs.fault}) for {sent.heard!r}")
        same = answer.body == theirs.body or (short and answer.body.startswith(theirs.body))
        require(same, f"{answer.body!r} for {theirs.body!r}")
        return
    require(record.midstream or not whole, "broken off, and told as whole")
    passed = _shared(answer.body, theirs.body)
    added, missing = answer.body[passed:], theirs.body[passed:]
    excused = short or not whole
    require(not added or b"upstream_" in added or excused, f"{added!r} is made up")
    # h11 may read further than llhttp into what is no HTTP any more.
    require(not missing or not whole or theirs.fault, f"{missing!r} is missing")


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _read(sent: Sent) -> Answer:
    """An engine's answer; empty lines in front of it are no fault of it."""
    return readings.answer_in(
        _without_empty_lines(sent.heard), b"GET", fin=sent.end.eof_given
    )  # fmt: skip


def _without_empty_lines(wire: bytes) -> bytes:
    """`wire` without what llhttp passes over in front of a head, interim ones included."""
    wire = wire.lstrip(b"\r\n")
    if not wire.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")) or wire.startswith(b"HTTP/1.1 101"):
        return wire
    head, blank, rest = wire.partition(b"\r\n\r\n")
    return head + blank + _without_empty_lines(rest)


def _headers_to_client(answer: Answer, theirs: Answer) -> None:
    require(answer.status == theirs.status, f"{answer.status} for {theirs.status}")
    wanted = [
        (name, value)
        for name, value in readings.end_to_end(theirs.headers, *_OURS)
        if not name.startswith(b"access-control-")  # whose pages may read it is ours to say
    ]
    passed = readings.end_to_end(answer.headers, *_OURS)
    require(passed == wanted, f"the client got {passed}, the engine sent {wanted}")
    for name in _OURS:
        _one(answer.headers, name)


def _last_word(world: World, rest: bytes) -> None:
    """What is left is the refusal of what was no request."""
    if not rest:
        return
    fin = world.end.ended == "fin"
    answer = readings.answer_in(rest, b"GET", fin=fin)
    require(answer.fault is None, f"h11 refuses our last answer: {answer.fault}")
    if not answer.complete:
        require(world.end.dropped, f"half an answer to nothing: {rest!r}")
        return
    require(answer.status in _UNREADABLE, f"an answer to nothing: {rest!r}")
    require(answer.value(b"connection") == b"close", "a connection goes on that cannot be read")
    require(not answer.rest, f"bytes behind the last answer: {answer.rest!r}")
