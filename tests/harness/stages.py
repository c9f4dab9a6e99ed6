"""A request brought to where an exchange can stand, over real sockets, and led on from there.

`Stage.reach` leaves the request exactly there; `Stage.go_on` leads it to its good end. Between the
two a test lets something happen.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from proxy.data.downstream import ClientConnection
from proxy.data.exchange import State
from proxy.data.relay import Relay
from tests.harness.client import RawClient, post
from tests.harness.families import CHAT_FAMILY, GENERATE, Family
from tests.harness.running import Rig
from tests.harness.upstream import ByHand, Received, Send, reply

FULL = reply(b'{"error": {"code": 503}}', status="503 Service Unavailable")
PAD_BYTES = 32 * 1024
"""A piece that fits into what may be unsent before an engine is paused (64 KiB)."""
SMALL_WINDOW = 4096


@dataclass
class Subject:
    """One request under test: its client, its engine's side of it, and what is still to be said."""

    it: Rig
    family: Family
    client: RawClient
    companion: RawClient
    """Another client, for a request that keeps a place or a drain."""
    undo: AsyncExitStack
    """What the stage has set up for as long as it lasts."""
    engine: Received | None = None
    beside: Received | None = None
    """The companion's request."""
    body: bytes = b""
    """What the client is to have of the answer's body, at its good end."""
    pending: bytes = b""
    """What of it the engine has not said."""
    unsent: bytes = b""
    """What the client has not sent."""
    ending: "asyncio.Task[int] | None" = None
    """Its going down, while it drains; the exit code."""

    @property
    def connection(self) -> ClientConnection:
        """Our side of the client's connection."""
        (it,) = (c for c in self.it.app.front.connections if self._is_ours(c))
        return it

    def _is_ours(self, connection: ClientConnection) -> bool:
        transport = connection._out.transport
        mine = self.client.writer.get_extra_info("sockname")
        return transport is not None and transport.get_extra_info("peername") == mine

    @property
    def relay(self) -> Relay:
        """What runs it."""
        relay = self.connection._relay
        assert relay is not None
        return relay

    async def in_state(self, state: State) -> None:
        """Wait until it stands there."""
        await self.it.until(lambda: self._state() is state, f"it is {state.name}")

    def _state(self) -> State | None:
        relay = self.connection._relay
        return None if relay is None else relay.exchange.state

    async def at_engine(self, name: str) -> Received:
        """Wait until it is at the upstream `name`."""
        upstream = self.it.upstream(name)
        await self.it.until(lambda: bool(self._received(name)), f"it is at {name}")
        assert upstream.answering
        self.engine = self._received(name)[0]
        return self.engine

    def _received(self, name: str) -> list[Received]:
        return [r for r in self.it.upstream(name).requests if r.path == self.family.path]

    def answers(self, body: bytes) -> None:
        """The engine says the head and so much of the body."""
        assert self.engine is not None
        self.body = self.family.answer
        self.pending = self.body[len(body) :]
        said = self.family.framed(body) if body else b""
        self.engine.say(self.family.head + said)

    async def passes(self, size: int) -> None:
        """Wait until so much of the body has passed us."""
        await self.it.until(lambda: self._passed(size), f"{size} bytes have passed")

    def _passed(self, size: int) -> bool:
        relay = self.connection._relay
        return relay is None or relay.account.response_bytes >= size

    async def beside_it(self) -> None:
        """The companion's request runs on spec."""
        self.it.spec.script(ByHand())
        self.companion.send(post("/v1/completions", {"prompt": "a", "stream": True}))
        self.beside = (await self.it.spec.received(1))[0]

    async def companion_ends(self) -> None:
        """If there is one."""
        if self.beside is not None:
            self.beside.say(reply(b"{}"))
            self.beside.over()
            assert (await self.companion.response()).status == 200
            self.beside = None


Reach = Callable[[Subject], Awaitable[None]]


@dataclass(frozen=True)
class Stage:
    """Where an exchange can stand."""

    name: str
    reach: Reach
    go_on: Reach
    family: Family = GENERATE
    """The one it is shown with, unless a test says otherwise."""
    at: str | None = "spec"
    """The upstream whose place it holds there, None before it holds one."""
    asked: bool = True
    """Whether an engine has been asked."""
    keys: dict[str, object] = field(default_factory=dict)
    """Configuration that it needs."""
    patience: str | None = None
    """The key of the deadline that runs there, None where none does."""


async def _half_head(subject: Subject) -> None:
    request = subject.family.request
    subject.unsent = request[20:]
    subject.client.send(request[:20])
    await subject.it.until(lambda: subject.connection._began_at is not None, "a half head is here")


async def _half_body(subject: Subject) -> None:
    request = subject.family.request
    subject.unsent = request[-5:]
    subject.client.send(request[:-5])
    await subject.it.until(lambda: subject.connection._relay is not None, "the head is read")


def _engines_answer(subject: Subject) -> None:
    for upstream in (subject.it.spec, subject.it.base):
        upstream.always(Send(subject.family.whole))
    subject.body = subject.family.answer


async def _send_the_rest(subject: Subject) -> None:
    _engines_answer(subject)
    subject.client.send(subject.unsent)


async def _waiting(subject: Subject) -> None:
    await subject.beside_it()
    subject.client.send(subject.family.request)
    await subject.in_state(State.WAITING)


async def _let_it_in(subject: Subject) -> None:
    _engines_answer(subject)
    await subject.companion_ends()


async def _connecting(subject: Subject) -> None:
    _engines_answer(subject)
    await subject.undo.enter_async_context(subject.it.spec.taking_none())
    subject.client.send(subject.family.request)
    await subject.in_state(State.CONNECTING)


async def _take_it(subject: Subject) -> None:
    await subject.undo.aclose()


async def _awaiting(subject: Subject) -> None:
    subject.it.spec.script(ByHand())
    subject.client.send(subject.family.request)
    await subject.at_engine("spec")
    await subject.in_state(State.AWAITING)


async def _awaiting_again(subject: Subject) -> None:
    subject.it.spec.script(Send(FULL))
    subject.it.base.script(ByHand())
    subject.client.send(subject.family.request)
    await subject.at_engine("base")
    await subject.in_state(State.AWAITING)


async def _holding(subject: Subject) -> None:
    await _awaiting(subject)
    subject.answers(subject.family.first[:-5])
    await subject.in_state(State.HOLDING)


async def _after_head(subject: Subject) -> None:
    await _awaiting(subject)
    subject.answers(b"")
    await subject.in_state(State.RELAYING)


async def _mid_event(subject: Subject) -> None:
    await _awaiting(subject)
    said = subject.family.first + subject.family.second[:-5]
    subject.answers(said)
    await subject.passes(len(said))


async def _at_boundary(subject: Subject) -> None:
    await _awaiting(subject)
    subject.answers(subject.family.first)
    await subject.passes(len(subject.family.first))


async def _answer_the_rest(subject: Subject) -> None:
    engine = subject.engine
    assert engine is not None
    if not subject.body:
        subject.answers(b"")
    if subject.pending:
        engine.say(subject.family.framed(subject.pending) + subject.family.end)
        subject.pending = b""
    engine.over()
    subject.client.read_on()


async def _paused(subject: Subject) -> None:
    """The client takes nothing, and its engine is made to wait."""
    subject.client.stop_reading()
    await _at_boundary(subject)
    for _ in range(512):
        if subject.connection.slow:
            break
        await _pad(subject, PAD_BYTES)
    assert subject.connection.slow


async def _unsent(subject: Subject) -> None:
    """The engine has answered, and the client has not taken all of it."""
    subject.client.stop_reading()
    await _at_boundary(subject)
    connection = subject.connection
    for _ in range(512):
        if connection.unsent_bytes:
            break
        await _pad(subject, PAD_BYTES)
    engine = subject.engine
    assert engine is not None
    engine.say(subject.family.framed(subject.pending) + subject.family.end)
    subject.pending = b""
    await subject.it.until(lambda: connection._relay is None, "it has ended")
    assert connection.unsent_bytes
    engine.over()


async def _pad(subject: Subject, size: int) -> None:
    """The engine says one more event of about `size` bytes, before what is still to be said."""
    assert subject.engine is not None
    event = subject.family.pad("x" * size)
    said = len(subject.body) - len(subject.pending)
    subject.body = subject.body[:said] + event + subject.pending
    subject.engine.say(subject.family.framed(event))
    await subject.it.until(
        lambda: subject.connection.slow or subject._passed(said + len(event)), "it has passed"
    )


async def _read_on(subject: Subject) -> None:
    subject.client.read_on()


# With one place for both, whoever comes second waits.
_ONE_PLACE: dict[str, object] = {"limits__max_in_flight": 1}

HEAD = Stage(
    "head", _half_head, _send_the_rest, at=None, asked=False, patience="limits__header_timeout"
)
BODY = Stage(
    "body", _half_body, _send_the_rest, at=None, asked=False, patience="limits__body_timeout"
)
WAITING = Stage(
    "waiting",
    _waiting,
    _let_it_in,
    at=None,
    asked=False,
    keys=_ONE_PLACE,
    patience="limits__queue_timeout",
)
CONNECTING = Stage(
    "connecting",
    _connecting,
    _take_it,
    asked=False,
    keys={"health__fall": 1000, "timeouts__connect": 30.0},
    patience="timeouts__connect",
)
AWAITING = Stage("awaiting", _awaiting, _answer_the_rest, patience="timeouts__first_byte")
AGAIN = Stage(
    "again", _awaiting_again, _answer_the_rest, at="base", patience="timeouts__first_byte"
)
HOLDING = Stage(
    "holding", _holding, _answer_the_rest, family=CHAT_FAMILY, patience="timeouts__between_chunks"
)
AFTER_HEAD = Stage("after_head", _after_head, _answer_the_rest, patience="timeouts__first_byte")
MID_EVENT = Stage("mid_event", _mid_event, _answer_the_rest, patience="timeouts__between_chunks")
BOUNDARY = Stage("boundary", _at_boundary, _answer_the_rest, patience="timeouts__between_chunks")
PAUSED = Stage("paused", _paused, _answer_the_rest, patience="timeouts__between_chunks")
UNSENT = Stage("unsent", _unsent, _read_on)

STAGES = (
    HEAD,
    BODY,
    WAITING,
    CONNECTING,
    AWAITING,
    AGAIN,
    HOLDING,
    AFTER_HEAD,
    MID_EVENT,
    BOUNDARY,
    PAUSED,
    UNSENT,
)


async def subject_in(it: Rig, stage: Stage, family: Family, undo: AsyncExitStack) -> Subject:
    """A request of `family`, brought to `stage`."""
    slow = stage in (PAUSED, UNSENT)
    client = await it.client(receive_bytes=SMALL_WINDOW if slow else None)
    subject = Subject(it, family, client, await it.client(), undo)
    async with asyncio.timeout(20):
        await stage.reach(subject)
    return subject
