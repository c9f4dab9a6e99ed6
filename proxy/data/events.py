"""What an exchange is told and what it asks for: its events and its commands.

Events are in the past tense, commands in the imperative. They are values; what they lead to is in
exchange.py, and who translates them to sockets is in relay.py.
"""

from typing import TypeAlias

from msgspec import Struct

from proxy.core.errands import Reply, Result
from proxy.core.places import Evidence, Place
from proxy.core.sse import StreamWatch
from proxy.core.words import Outcome, RetryCause, UpstreamName
from proxy.errors import Refusal

# Events


class RequestRead(Struct, frozen=True):
    """The whole request is here."""


class ErrandRead(Struct, frozen=True):
    """The whole request is here, and its answer is ours: somebody is to be asked for it."""


class ErrandOver(Struct, frozen=True):
    """The answer that was asked for, or why there is none."""

    result: Result


class Placed(Struct, frozen=True):
    """A place is held for this request."""

    place: Place


class NotPlaced(Struct, frozen=True):
    """No place at the other upstream."""


class Queued(Struct, frozen=True):
    """None yet: it waits again, for a place at the other upstream."""


class Refused(Struct, frozen=True):
    """An answer of our own instead of an engine's."""

    refusal: Refusal


class Connected(Struct, frozen=True):
    """There is a connection to the engine; `reused` if it has served before."""

    reused: bool


class ConnectFailed(Struct, frozen=True):
    """There is none."""

    why: str


class HeadRead(Struct, frozen=True):
    """The response's head is here. `watch` is None where the body is not a stream we can read."""

    status: int
    watch: StreamWatch | None


class FirstEventRead(Struct, frozen=True):
    """The first event of a held stream is complete, or never will be."""


class ResponseEnded(Struct, frozen=True):
    """The response is complete; `reusable` if its connection can serve again."""

    reusable: bool


class EngineLost(Struct, frozen=True):
    """The engine's connection broke, or what came over it is not HTTP.

    `silent` if not one byte had come back since the request went out.
    """

    silent: bool
    why: str


class ClientGone(Struct, frozen=True):
    """The client has left."""


class ClientFinished(Struct, frozen=True):
    """The client sends nothing more into its tunnel, and may still read."""


class Expired(Struct, frozen=True):
    """The exchange's deadline has passed."""


Event: TypeAlias = (
    RequestRead
    | ErrandRead
    | ErrandOver
    | Placed
    | NotPlaced
    | Queued
    | Refused
    | Connected
    | ConnectFailed
    | HeadRead
    | FirstEventRead
    | ResponseEnded
    | EngineLost
    | ClientGone
    | ClientFinished
    | Expired
)


# Commands


class Ask(Struct, frozen=True):
    """Ask for a place."""


class RunErrand(Struct, frozen=True):
    """Have the answer put together."""


class CancelErrand(Struct, frozen=True):
    """Nobody waits for that answer any more."""


class Tell(Struct, frozen=True):
    """Send the client the answer that was put together."""

    reply: Reply


class AskOther(Struct, frozen=True):
    """Ask for a place at the other upstream, in exchange for the one held."""

    place: Place
    cause: RetryCause
    evidence: Evidence


class GiveBack(Struct, frozen=True):
    """Give back the place, to wait for another."""

    place: Place
    evidence: Evidence


class LeaveRoom(Struct, frozen=True):
    """Leave the waiting room."""


class Connect(Struct, frozen=True):
    """Get a connection to `upstream`; with `fresh`, not a kept one."""

    upstream: UpstreamName
    fresh: bool


class Send(Struct, frozen=True):
    """Send the request, as the `attempt`-th."""

    attempt: int


class SendHead(Struct, frozen=True):
    """Send the response's head to the client, and what was held with it."""


class OpenTunnel(Struct, frozen=True):
    """From now on pass what comes from either side to the other."""


class FinishSending(Struct, frozen=True):
    """Tell the engine that nothing more comes through the tunnel."""


class DropEngine(Struct, frozen=True):
    """Close the engine's connection, or give up making one, at once."""


class KeepEngine(Struct, frozen=True):
    """Put the engine's connection back with those kept."""


class Finish(Struct, frozen=True):
    """Give the place back, count the outcome, write the line."""

    outcome: Outcome
    evidence: Evidence
    place: Place | None
    refusal: Refusal | None = None


class Answer(Struct, frozen=True):
    """Answer the client ourselves."""

    refusal: Refusal


class EndAnswer(Struct, frozen=True):
    """Mark the end of the relayed body."""


class Cut(Struct, frozen=True):
    """Break the client's answer off, so that it cannot be taken for complete."""

    refusal: Refusal


Command: TypeAlias = (
    Ask
    | RunErrand
    | CancelErrand
    | Tell
    | AskOther
    | GiveBack
    | LeaveRoom
    | Connect
    | Send
    | SendHead
    | OpenTunnel
    | FinishSending
    | DropEngine
    | KeepEngine
    | Finish
    | Answer
    | EndAnswer
    | Cut
)
Commands: TypeAlias = tuple[Command, ...]
