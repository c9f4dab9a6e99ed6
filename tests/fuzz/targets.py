"""What is fuzzed, and what must hold whatever comes: one function a target, bytes in.

Each raises `Violation` (or whatever broke) and returns nothing.
"""

from collections.abc import Callable, Iterator
from random import Random
from zlib import crc32

from proxy.core.http import engine_head
from proxy.data.reader import RequestHead, RequestReader
from proxy.errors import Refusal
from tests.fuzz import readings
from tests.fuzz.corpus import Then, parse
from tests.fuzz.loop import VirtualLoop
from tests.fuzz.plan import LIMITS, Plan, cut, plan_of, require
from tests.fuzz.verdicts import judge
from tests.fuzz.world import World, play

Item = tuple[str, bytes, bytes, tuple[tuple[bytes, bytes], ...], bool] | bytes | type[Refusal]


def read_all(pieces: Iterator[bytes] | list[bytes]) -> tuple[list[Item], RequestReader]:
    """What the reader makes of `pieces`."""
    reader = RequestReader(
        max_header_bytes=LIMITS.max_header_bytes, max_body_bytes=LIMITS.max_body_bytes
    )
    found: list[Item] = []
    for piece in pieces:
        reader.feed(piece)
        while (item := reader.next()) is not None or reader.unread:
            if isinstance(item, RequestHead):
                found.append(
                    (item.method, item.target, item.version.encode(), tuple(item.headers),
                     item.keep_alive)
                )  # fmt: skip
            elif item is not None:
                found.append(type(item) if isinstance(item, Refusal) else bytes(item))
    return found, reader


def reader(data: bytes) -> None:
    """The reader alone: any cut gives the same, and h11 reads the same requests."""
    script = parse(data)
    wire = script.client
    whole, _ = read_all([wire])
    lots = Random(crc32(script.seed))
    for about in (1, lots.choice((3, 11, 40)), 200):
        parts, last = read_all(list(cut(wire, about, lots)))
        require(parts == whole, f"cut by {about}, it reads {parts} and not {whole}")
        bodies = (len(item) for item in parts if isinstance(item, bytes))
        require(max(bodies, default=0) <= LIMITS.max_body_bytes, "a body is over the limit")
        require(last.dead == (bool(parts) and isinstance(parts[-1], type)), "dead, and no refusal")
    _compare(wire, whole)


def _compare(wire: bytes, items: list[Item]) -> None:
    """What is accepted here is what h11 reads, and reads again from what goes to an engine."""
    strict = readings.requests_in(wire)
    for at, (head, body) in enumerate(zip(items[::2], items[1::2], strict=False)):
        if not isinstance(head, tuple) or not isinstance(body, bytes):
            return
        if at == len(strict.whole):
            require(strict.fault is not None, f"h11 does not see request {at}: {head}")
            lenient = readings.is_lenient(strict.fault, headed=strict.headed)
            require(lenient, f"h11 refuses: {strict.fault}")
            return
        _same(head, body, strict.whole[at])
        _goes_out(head, body)
        if not head[4] or head[2] == b"1.0":  # h11 keeps no HTTP/1.0 connection
            return


def _same(head: Item, body: bytes, other: readings.Request) -> None:
    assert isinstance(head, tuple)
    method, target, version, headers, keep_alive = head
    require(method.encode() == other.method, f"method {method} {other.method!r}")
    require(target == other.target, f"target {target!r} {other.target!r}")
    require(version == other.version, f"version {version!r} {other.version!r}")
    mine = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    coding = (b"transfer-encoding", b"chunked")  # h11 tells it in lower case
    mine = [coding if each[0] == coding[0] else each for each in mine]
    require(mine == other.headers, f"headers {mine} {other.headers}")
    require(body == other.body, f"body {body!r} {other.body!r}")
    if version == b"1.1":
        require(keep_alive == other.keep_alive, f"keep-alive {keep_alive} {other.keep_alive}")


def _goes_out(head: Item, body: bytes) -> None:
    """An accepted request, written for an engine, is read there as exactly this one."""
    assert isinstance(head, tuple)
    method, target, _version, headers, _keep_alive = head
    block = engine_head(
        method.encode(), target, headers,
        added=(b"Host: engine",), body_length=len(body), drop_keys=False,
    )  # fmt: skip
    there = readings.requests_in(block + body + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    require(len(there.whole) == 2 and not there.fault, f"an engine reads {there}")
    require(there.whole[0].body == body, f"an engine reads the body {there.whole[0].body!r}")
    require(there.whole[0].target == target, "an engine reads another target")


_LOOP: list[VirtualLoop] = []


def the_loop() -> VirtualLoop:
    """One loop for all conversations; making one costs more than playing one."""
    if not _LOOP:
        _LOOP.append(VirtualLoop())
    return _LOOP[0]


def conversation(data: bytes) -> None:
    """A client, both protocols, two engines."""
    script = parse(data)
    plan, _ = plan_of(script.seed)
    compared = script.seed.startswith(b"cut") and all(_ends_alike(*a) for a in script.answers)
    if compared and not all(_is_whole(*answer) for answer in script.answers):
        plan.engine_cut = (
            0  # where an answer breaks off, what was read before it makes a difference
        )
    world = play(the_loop(), script, plan)
    judge(world)
    if compared:
        whole = play(the_loop(), script, Plan(spacious=True))
        if plan.engine_cut and any(each.code == "upstream_reset" for each in whole.told.records):
            return  # llhttp refuses what h11 accepts
        mine, other = outcome(world), outcome(whole)
        require(mine == other, f"cut, it ends in {mine} and not in {other}")


def _ends_alike(answer: bytes, then: Then) -> bool:
    """Whether its engine's closing cannot meet the next request on its way."""
    if then is Then.FIN:
        return not readings.answer_in(answer, b"GET", fin=False).complete
    return then is not Then.RESET


def _is_whole(answer: bytes, then: Then) -> bool:
    """Whether `answer` is one answer that any client accepts, and nothing else."""
    read = readings.answer_in(answer, b"GET", fin=then is Then.FIN)
    return read.complete and not read.rest


def outcome(world: World) -> list[object]:
    """What the client and the observer were told, without how it was cut.

    It ends with the first request that is refused at its head: whether its connection is kept
    depends on whether its body is here yet.
    """
    told: list[object] = []
    rest = world.end.taken
    records = iter(world.told.records)
    for item in read_all([world.script.client])[0]:
        if isinstance(item, bytes):
            continue
        if _expects(item):
            return told
        if not rest:
            break
        method = item[0].encode() if isinstance(item, tuple) else b"GET"
        answer = readings.answer_in(rest, method, fin=world.end.ended == "fin")
        headers = [each for each in answer.headers if each[0] != b"connection"]
        if answer.status in {400, 502}:  # of several faults, which is told may vary
            headers, answer.body = [], b""
        told.append((answer.status, headers, answer.body, answer.complete))
        rest = answer.rest
        if answer.status in {401, 404, 405, 413}:
            return told
    told += [(each.outcome, each.status, each.code, each.attempts) for each in records]
    return told


def _expects(item: Item) -> bool:
    """Whether it asked to be asked for its body, which it is unless that is here already."""
    return isinstance(item, tuple) and any(name.lower() == b"expect" for name, _ in item[3])


TARGETS: dict[str, Callable[[bytes], None]] = {"reader": reader, "conversation": conversation}
