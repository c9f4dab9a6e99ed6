"""Conversations with the exchange: `>>` what happens, `<<` what it commands. No sockets.

A test reads as what was said:

    talk = waiting()
    assert talk >> ClientGone() << LeaveRoom() << Ends(ABANDONED)
"""

from typing import NamedTuple, Self

from proxy.core.errands import Reply
from proxy.core.inflight import InFlight
from proxy.core.peek import Dialect
from proxy.core.places import Evidence, Place
from proxy.core.sse import StreamWatch
from proxy.core.words import Outcome, RetryCause, UpstreamName
from proxy.core.work import Work
from proxy.data.events import (
    Answer,
    Ask,
    AskOther,
    ClientGone,
    Command,
    Connect,
    Connected,
    Cut,
    ErrandRead,
    Event,
    Finish,
    HeadRead,
    OpenTunnel,
    Placed,
    RequestRead,
    RunErrand,
    Send,
    SendHead,
)
from proxy.data.exchange import Exchange
from proxy.data.settings import Timeouts

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE
OK, FAILED = Outcome.OK, Outcome.FAILED
ABANDONED, REJECTED = Outcome.ABANDONED, Outcome.REJECTED
GOOD, BAD, NONE = Evidence.GOOD, Evidence.BAD, Evidence.NONE

TIMEOUTS = Timeouts(
    header=10.0,
    body=60.0,
    client_write=60.0,
    client_keep_alive=75.0,
    connect=2.0,
    first_byte=600.0,
    between_chunks=120.0,
    response=3600.0,
    idle_connection=3.0,
)
START = 0.0
"""Nought, so that 0.1 s later is exactly 0.1."""

REPLY = Reply(status=200, content_type="text/plain", body=b"ok")
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
FULL = b'data: {"error": {"message": "The request queue is full.", "code": 503}}\n\n'
DONE = b"data: [DONE]\n\n"


def place(upstream: UpstreamName) -> Place:
    """A place at `upstream`."""
    lease = InFlight().take(upstream, 1, Work(), trial=False, now=START)
    return Place(upstream, "mode", upstream, lease, 1, START)


AT_SPEC, AT_BASE = place(SPEC), place(BASE)


class Ends(NamedTuple):
    """`Finish`, with its refusal's code."""

    outcome: Outcome
    evidence: Evidence = NONE
    place: Place | None = None
    code: str | None = None


class Answers(NamedTuple):
    """`Answer`, with its refusal's code."""

    code: str


class Cuts(NamedTuple):
    """`Cut`, with its refusal's code."""

    code: str


class After(NamedTuple):
    """So many seconds pass."""

    seconds: float


Plain = Command | Ends | Answers | Cuts


def plain(command: Command) -> Plain:
    """`command`, comparable: refusals by their codes."""
    match command:
        case Finish(outcome, evidence, held, refusal):
            return Ends(outcome, evidence, held, None if refusal is None else refusal.code)
        case Answer(refusal):
            return Answers(refusal.code)
        case Cut(refusal):
            return Cuts(refusal.code)
        case _:
            return command


class Talk:
    """A conversation with an exchange; true when nothing that was commanded is left unsaid."""

    def __init__(self, *, streams: bool = True, holds_head: bool = True) -> None:
        self.exchange = Exchange(TIMEOUTS, holds_head=holds_head)
        self.exchange.streams = streams
        self.now = START
        self.said: list[Plain] = []
        self.last: tuple[Command, ...] = ()

    def __rshift__(self, event: Event | After | list[bytes]) -> Self:
        """This happens; all that was commanded before must have been said."""
        assert self.said == []
        if isinstance(event, After):
            self.now += event.seconds
        elif isinstance(event, list):
            self.exchange.passing(event, self.now)
        else:
            self.last = self.exchange.process(event, self.now)
            self.said = [plain(command) for command in self.last]
        return self

    def __lshift__(self, command: Plain) -> Self:
        """This is commanded next."""
        assert self.said
        assert self.said.pop(0) == command
        return self

    def __bool__(self) -> bool:
        assert self.said == []
        return True

    @property
    def deadline(self) -> float:
        """Seconds until the deadline."""
        return self.exchange.deadline - self.now

    @property
    def message(self) -> str:
        """What the last refusal says."""
        (refusal,) = {c.refusal for c in self.last if isinstance(c, Answer | Cut | Finish)}
        assert refusal is not None
        return refusal.message


def watch() -> StreamWatch:
    """A watch of a chat stream."""
    return StreamWatch(Dialect.OPENAI_CHAT)


def stream(status: int = 200) -> HeadRead:
    """The head of a stream that can be read."""
    return HeadRead(status, watch())


def head(status: int = 200) -> HeadRead:
    """The head of what is no stream."""
    return HeadRead(status, None)


def asking() -> Talk:
    """Up to ERRAND."""
    talk = Talk()
    assert talk >> ErrandRead() << RunErrand()
    return talk


def waiting(talk: Talk | None = None) -> Talk:
    """Up to WAITING."""
    talk = talk or Talk()
    assert talk >> RequestRead() << Ask()
    return talk


def connecting(talk: Talk | None = None, at: Place = AT_SPEC) -> Talk:
    """Up to CONNECTING."""
    talk = waiting(talk)
    assert talk >> Placed(at) << Connect(at.upstream, fresh=False)
    return talk


def awaiting(talk: Talk | None = None, at: Place = AT_SPEC, *, reused: bool = False) -> Talk:
    """Up to AWAITING."""
    talk = connecting(talk, at)
    assert talk >> Connected(reused) << Send(1)
    return talk


def holding(talk: Talk | None = None) -> Talk:
    """Up to HOLDING."""
    talk = awaiting(talk)
    assert talk >> stream()
    return talk


def retrying() -> Talk:
    """Up to RETRYING, for a refusal."""
    talk = awaiting()
    assert talk >> head(503) << AskOther(AT_SPEC, RetryCause.REFUSAL, NONE)
    return talk


def relaying(talk: Talk | None = None) -> Talk:
    """Up to RELAYING, with nothing of the body yet."""
    talk = awaiting(talk)
    assert talk >> head() << SendHead()
    return talk


def tunnel() -> Talk:
    """Up to TUNNEL, with nothing gone through it yet."""
    talk = awaiting()
    assert talk >> head(101) << SendHead() << OpenTunnel()
    return talk


def ended() -> Talk:
    """Up to ENDED."""
    talk = Talk()
    assert talk >> ClientGone() << Ends(ABANDONED)
    return talk
