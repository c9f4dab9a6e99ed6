"""The peer of a connection to an engine: answers what it is asked as the script says."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from proxy.core.words import UpstreamName
from tests.fuzz.corpus import OK, Then
from tests.fuzz.ends import End
from tests.fuzz.loop import VirtualLoop
from tests.fuzz.plan import Plan, cut


@dataclass(slots=True)
class Sent:
    """One request as an engine heard it, and how it was answered."""

    upstream: UpstreamName
    wire: bytes
    at: float
    reused: bool
    end: End
    given_before: int
    """What the engine had sent on this connection before."""
    given_after: int | None = None
    """The same when the next request came on this connection."""

    @property
    def heard(self) -> bytes:
        """The engine's bytes in answer to it, as far as they were read."""
        return self.end.given[self.given_before : self.given_after]


@dataclass(slots=True)
class Scene:
    """What the engines of one conversation share."""

    loop: VirtualLoop
    plan: Plan
    lots: Random
    answers: deque[tuple[bytes, Then]]
    sent: list[Sent] = field(default_factory=list)
    """Every request that an engine has heard, in order."""

    def next_answer(self) -> tuple[bytes, Then]:
        """The next answer of the script; after its end all is well."""
        return self.answers.popleft() if self.answers else (OK, Then.KEEP)


class Engine:
    """The peer of one connection to an engine."""

    def __init__(self, scene: Scene, upstream: UpstreamName, end: End) -> None:
        self.scene = scene
        self.upstream = upstream
        self.end = end
        self.queue: deque[bytes] = deque()
        self.then = Then.KEEP
        self.served = 0
        self.tunnel_at: int | None = None
        """Where its offer of a tunnel has ended: what it hears from there on is no request."""
        self.kept = False
        self.answering: Sent | None = None
        self.last: Sent | None = None
        end.on_taken = self.hear

    def hear(self) -> None:
        """Answer a request as soon as it is whole."""
        if self.tunnel_at is not None:
            return
        wire = self.end.taken[self.served :]
        whole = _request_end(wire)
        if whole is None:
            return
        scene = self.scene
        if self.last is not None:
            self.last.given_after = len(self.end.given)
        self.served += whole
        if b"\r\nupgrade: websocket\r\n" in wire[:whole].lower():
            self.tunnel_at = self.served
        sent = Sent(
            self.upstream, wire[:whole], scene.loop.time(), self.kept or self.served > whole,
            self.end, len(self.end.given),
        )  # fmt: skip
        scene.sent.append(sent)
        self.answering = self.last = sent
        if sent.reused and scene.lots.random() < scene.plan.stale:
            self.queue, self.then = deque(), Then.FIN
        else:
            answer, self.then = scene.next_answer()
            self.queue = cut(answer, scene.plan.engine_cut, scene.lots)

    @property
    def can_move(self) -> bool:
        """Whether there is something that it would do now."""
        if self.end.closing or self.end.lost or self.answering is None:
            return False
        return bool(self.queue) and self.end.readable

    def move(self) -> None:
        """Send the next piece; after the last, do what is to be done then."""
        if self.queue:
            self.end.give(self.queue.popleft())
        if not self.queue:
            self.conclude()

    def conclude(self) -> None:
        """End the answer as the script says."""
        self.answering = None
        if self.then is Then.FIN:
            self.end.finish()
        elif self.then is Then.RESET:
            self.end.break_off()


def _request_end(wire: bytes) -> int | None:
    """Where the first request ends, by what its head says and nothing cleverer."""
    head, blank, _ = wire.partition(b"\r\n\r\n")
    if not blank:
        return None
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    whole = len(head) + 4 + length
    return whole if len(wire) >= whole else None
