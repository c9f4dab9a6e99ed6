"""One request's life as a state machine: events in, commands out, no I/O.

Everything that decides how a request goes on or ends is in this file. The two protocols only
translate: what happened on a socket becomes an event, and each command becomes a call. Between the
response's head and its end, pieces of the body pass by a direct call (`passing`) and not as events,
since there are tens of thousands of them a second.

    state        what is so
    ----------   ---------------------------------------------------------------------------
    READING      the head is here and accepted; the body is coming in
    ERRAND       all is here, and the answer is ours; who is asked for it has not answered yet
    WAITING      all is here; a place has been asked for
    CONNECTING   a place is held; there is no connection yet
    AWAITING     the request is out; nothing has come back
    HOLDING      the head of a stream is here, held until its first event (it may be a refusal)
    RETRYING     the first upstream failed or refused; a place at the other has been asked for
                 (what was never sent may wait for it, and is WAITING again)
    RELAYING     the head has gone to the client: nothing is retried, nothing can be taken back
    TUNNEL       the engine has switched protocols: bytes pass both ways, and mean nothing here
    ENDED        the place is given back, the outcome counted; nothing more happens

Every ending is one transition into ENDED, which emits `Finish` exactly once, so a lease cannot
leak and an outcome cannot be counted twice. An event that a state does not expect is a fault of
ours and raises `IllegalEvent`.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from math import inf
from typing import Final

from proxy.core.places import Evidence, Place
from proxy.core.sse import StreamWatch
from proxy.core.words import Outcome, RetryCause
from proxy.data.events import (
    Answer,
    Ask,
    AskOther,
    CancelErrand,
    ClientFinished,
    ClientGone,
    Commands,
    Connect,
    Connected,
    ConnectFailed,
    Cut,
    DropEngine,
    EndAnswer,
    EngineLost,
    ErrandOver,
    ErrandRead,
    Event,
    Expired,
    Finish,
    FinishSending,
    FirstEventRead,
    GiveBack,
    HeadRead,
    KeepEngine,
    LeaveRoom,
    NotPlaced,
    OpenTunnel,
    Placed,
    Queued,
    Refused,
    RequestRead,
    ResponseEnded,
    RunErrand,
    Send,
    SendHead,
    Tell,
)
from proxy.data.settings import Timeouts
from proxy.errors import (
    IllegalEvent,
    InternalError,
    Refusal,
    UpstreamConnect,
    UpstreamFault,
    UpstreamReset,
    UpstreamTimeout,
)

STALE_SECONDS = 0.1
"""A kept connection that dies this soon after sending, without a byte, was already closed by the
engine when we used it; later, the engine may have begun to work."""

MAX_HELD_BYTES = 65536
"""A stream's head is held no longer than this much of a first event."""

ERRAND_GRACE_SECONDS = 5.0
"""Beyond `timeouts.response`, within which an errand ends by itself and can say of whom it has not
heard; past it nobody is waited for."""

HALF_CLOSED_SECONDS = 10.0
"""For which an engine may go on after its client has said that it sends no more: that of the
closing handshake of common WebSocket libraries."""

_SWITCHING = 101
_REFUSALS = frozenset({429, 503})
_REFUSAL_EVENT = 503
"""SGLang's full queue, told as the first event of a stream that it has begun with 200."""


class State(Enum):
    """Where a request stands."""

    READING = auto()
    ERRAND = auto()
    WAITING = auto()
    CONNECTING = auto()
    AWAITING = auto()
    HOLDING = auto()
    RETRYING = auto()
    RELAYING = auto()
    TUNNEL = auto()
    ENDED = auto()

    __hash__ = object.__hash__  # Enum's is a Python call, for each event


_ASK: Final = Ask()
_RUN_ERRAND: Final = RunErrand()
_CANCEL_ERRAND: Final = CancelErrand()
_LEAVE_ROOM: Final = LeaveRoom()
_SEND_HEAD: Final = SendHead()
_OPEN_TUNNEL: Final = OpenTunnel()
_FINISH_SENDING: Final = FinishSending()
_DROP_ENGINE: Final = DropEngine()
_KEEP_ENGINE: Final = KeepEngine()
_END_ANSWER: Final = EndAnswer()


class Exchange:
    """One request, from the end of its head to its ending."""

    __slots__ = (
        "_failure",
        "_half_closed",
        "_last_passed",
        "_paused",
        "_retried",
        "_reused",
        "_sent_at",
        "_stale_replaced",
        "_timeouts",
        "attempts",
        "deadline",
        "holds_head",
        "place",
        "state",
        "status",
        "streams",
        "was_paused",
        "watch",
    )

    def __init__(self, timeouts: Timeouts, *, holds_head: bool) -> None:
        self._timeouts = timeouts
        self.holds_head = holds_head
        self.streams = False
        """Whether a stream was asked for; set when the body has been read."""
        self.state = State.READING
        self.deadline = inf
        """When to tell `Expired`; monotonic seconds."""
        self.place: Place | None = None
        self.attempts = 0
        self.status: int | None = None
        """The engine's status, once its head is here."""
        self.watch: StreamWatch | None = None
        self._sent_at = inf
        self._reused = False
        self._stale_replaced = False
        self._retried = False
        self._failure: Refusal | None = None
        self._last_passed: float | None = None
        self._half_closed = False
        """Whether the client of a tunnel sends nothing more."""
        self._paused = False
        self.was_paused = False
        """Whether the engine has ever waited for a slow client."""

    def __repr__(self) -> str:
        where = "" if self.place is None else f" at {self.place.upstream}"
        return f"<Exchange {self.state.name}{where} attempt {self.attempts}>"

    @property
    def sent_at(self) -> float | None:
        """When the request last went out."""
        return None if self._sent_at == inf else self._sent_at

    def process(self, event: Event, now: float) -> Commands:
        """Take one event; return what is to be done, in order."""
        try:
            transition = TRANSITIONS[self.state][type(event)]
        except KeyError:
            raise IllegalEvent(f"{type(event).__name__} in {self.state.name}") from None
        return transition(self, event, now)

    def passing(self, pieces: list[bytes], now: float) -> None:
        """Pieces of the response's body go by; they are watched and not touched."""
        self._last_passed = now
        if self.streams and not self._paused:
            self.deadline = now + self._timeouts.between_chunks
        watch = self.watch
        if watch is not None:
            for piece in pieces:
                watch.feed(piece, now)

    def tunnelled(self, now: float) -> None:
        """Bytes go through the tunnel, either way; both sides' pings keep it open."""
        if not self._half_closed:
            self._last_passed = now
            self.deadline = now + self._timeouts.between_chunks

    @property
    def speaks(self) -> bool:
        """Whether a token has come, and no error."""
        watch = self.watch
        return watch is not None and watch.first_token_at is not None and watch.error_code is None

    def pause(self) -> None:
        """We have stopped reading from the engine for a slow client: its silence is ours."""
        if self.streams and self.state is State.RELAYING:
            self._paused = self.was_paused = True
            self.deadline = inf

    def resume(self, now: float) -> None:
        """We read from the engine again."""
        if self._paused:
            self._paused = False
            self.deadline = now + self._patience()

    # READING, WAITING

    def _request_read(self, _event: RequestRead, _now: float) -> Commands:
        self.state = State.WAITING
        return (_ASK,)

    def _placed(self, event: Placed, now: float) -> Commands:
        self.place = event.place
        return self._connect(now, fresh=False)

    def _refused(self, event: Refused, _now: float) -> Commands:
        return self._answer(event.refusal, Outcome.REJECTED)

    def _gone_before_place(self, _event: ClientGone, _now: float) -> Commands:
        return self._end(Outcome.ABANDONED)

    def _gone_waiting(self, _event: ClientGone, _now: float) -> Commands:
        return (_LEAVE_ROOM, *self._end(Outcome.ABANDONED))

    # ERRAND

    def _errand_read(self, _event: ErrandRead, now: float) -> Commands:
        self.state = State.ERRAND
        self.deadline = now + self._timeouts.response + ERRAND_GRACE_SECONDS
        return (_RUN_ERRAND,)

    def _errand_over(self, event: ErrandOver, _now: float) -> Commands:
        result = event.result
        if isinstance(result, Refusal):
            ours = isinstance(result, InternalError)
            return self._answer(result, Outcome.FAILED if ours else Outcome.REJECTED)
        failed = result.status in _REFUSALS or result.status >= 500  # noqa: PLR2004 - HTTP's classes
        outcome = Outcome.FAILED if failed else Outcome.OK
        return (*self._end(outcome, refusal=result.refusal), Tell(result))

    def _gone_asking(self, _event: ClientGone, _now: float) -> Commands:
        return (_CANCEL_ERRAND, *self._end(Outcome.ABANDONED))

    def _errand_expired(self, _event: Expired, _now: float) -> Commands:
        seconds = self._timeouts.response + ERRAND_GRACE_SECONDS
        failure = UpstreamTimeout(f"there was no answer to give within {seconds:g} s")
        return (_CANCEL_ERRAND, *self._answer(failure, Outcome.FAILED))

    # CONNECTING

    def _connected(self, event: Connected, now: float) -> Commands:
        self.state = State.AWAITING
        self._reused = event.reused
        self._sent_at = now
        self.attempts += 1
        self._last_passed = None
        self.deadline = now + self._patience()
        return (Send(self.attempts),)

    def _connect_failed(self, event: ConnectFailed, _now: float) -> Commands:
        return self._could_not_connect(event.why)

    def _refused_connecting(self, event: Refused, _now: float) -> Commands:
        """We cannot make a connection, which says nothing of the engine."""
        return (_DROP_ENGINE, *self._answer(event.refusal, Outcome.REJECTED))

    def _connect_expired(self, _event: Expired, _now: float) -> Commands:
        why = f"no connection within {self._timeouts.connect:g} s"
        return (_DROP_ENGINE, *self._could_not_connect(why))

    def _could_not_connect(self, why: str) -> Commands:
        name = self._place_held().upstream
        failure = UpstreamConnect(f"could not connect to {name}: {why}")
        if self._retried:
            return self._answer(failure, Outcome.FAILED, Evidence.BAD)
        return self._ask_other(RetryCause.CONNECT, Evidence.BAD, failure)

    # AWAITING

    def _head_read(self, event: HeadRead, now: float) -> Commands:
        self.status = event.status
        self.watch = event.watch
        if event.watch is not None and not self.streams:  # what was asked for we could not read
            self.streams = True
            self.deadline = now + self._patience()
        if event.status in _REFUSALS and not self._retried:
            return self._ask_other(RetryCause.REFUSAL, Evidence.NONE, None)
        if self.holds_head and event.watch is not None and event.status < 300:  # noqa: PLR2004
            self.state = State.HOLDING
            return ()
        if event.status == _SWITCHING:
            self.state = State.TUNNEL
            self.tunnelled(now)
            return (_SEND_HEAD, _OPEN_TUNNEL)
        return self._relay()

    def _lost_awaiting(self, event: EngineLost, now: float) -> Commands:
        stale = self._reused and event.silent and now - self._sent_at <= STALE_SECONDS
        if stale and not self._stale_replaced:
            self._stale_replaced = True
            return (_DROP_ENGINE, *self._connect(now, fresh=True))
        return self._lost_before_head(event, now)

    def _lost_before_head(self, event: EngineLost, _now: float) -> Commands:
        name = self._place_held().upstream
        failure = UpstreamReset(f"{name} broke off before its answer began: {event.why}")
        return (_DROP_ENGINE, *self._answer(failure, Outcome.FAILED, Evidence.BAD))

    def _too_late_before_head(self, _event: Expired, now: float) -> Commands:
        return (_DROP_ENGINE, *self._answer(self._too_late(now), Outcome.FAILED, Evidence.BAD))

    def _gone_with_engine(self, _event: ClientGone, _now: float) -> Commands:
        return (_DROP_ENGINE, *self._end(Outcome.ABANDONED))

    # HOLDING

    def _first_event_read(self, _event: FirstEventRead, _now: float) -> Commands:
        if self._watch_saw_refusal() and not self._retried:
            return self._ask_other(RetryCause.REFUSAL, Evidence.NONE, None)
        return self._relay()

    def _watch_saw_refusal(self) -> bool:
        """Whether the stream began with a refusal; one after a token is a failure, and passes."""
        watch = self.watch
        return (
            watch is not None
            and watch.error_code == _REFUSAL_EVENT
            and watch.first_token_at is None
        )

    def _ended_held(self, event: ResponseEnded, now: float) -> Commands:
        return (*self._relay(), *self._response_ended(event, now))

    # RETRYING

    def _placed_again(self, event: Placed, now: float) -> Commands:
        self.place = event.place
        self.status = None
        self.watch = None
        self._failure = None
        return (_DROP_ENGINE, *self._connect(now, fresh=False))

    def _queued(self, _event: Queued, _now: float) -> Commands:
        place, self.place = self._place_held(), None
        self.state = State.WAITING
        self.deadline = inf
        self._failure = None
        return (_DROP_ENGINE, GiveBack(place, Evidence.BAD))

    def _not_placed(self, _event: NotPlaced, _now: float) -> Commands:
        if self._failure is not None:
            return self._answer(self._failure, Outcome.FAILED, Evidence.BAD)
        return self._relay()

    # RELAYING

    def _response_ended(self, event: ResponseEnded, now: float) -> Commands:
        if self.watch is not None:
            self.watch.finish(now)
        engine = _KEEP_ENGINE if event.reusable else _DROP_ENGINE
        outcome, evidence = self._verdict()
        return (engine, *self._end(outcome, evidence), _END_ANSWER)

    def _gone_relaying(self, event: ClientGone, now: float) -> Commands:
        """A client may leave at the stream's own end, as OpenAI's for Python does at [DONE].

        Whether the engine's end of it was faster than the client's is chance.
        """
        if self.watch is None or not self.watch.ended:
            return self._gone_with_engine(event, now)
        outcome, evidence = self._verdict()
        return (_DROP_ENGINE, *self._end(outcome, evidence), _END_ANSWER)

    def _lost_relaying(self, event: EngineLost, _now: float) -> Commands:
        name = self._place_held().upstream
        return self._break_off(UpstreamReset(f"{name} broke off its answer: {event.why}"))

    def _too_late_relaying(self, _event: Expired, now: float) -> Commands:
        return self._break_off(self._too_late(now))

    def _break_off(self, failure: UpstreamFault) -> Commands:
        end = self._end(Outcome.FAILED, Evidence.BAD, failure)
        return (_DROP_ENGINE, *end, Cut(failure))

    # TUNNEL: what is no load says nothing of an engine's health, and its ends would say least: who
    # closes a connection into which the other still sends resets it.

    def _tunnel_over(self, _event: Event, _now: float) -> Commands:
        return (_DROP_ENGINE, *self._end(Outcome.OK), _END_ANSWER)

    def _client_finished(self, _event: ClientFinished, now: float) -> Commands:
        if self._half_closed:  # TLS's goodbye and FIN say the same
            return ()
        self._half_closed = True
        self.deadline = now + HALF_CLOSED_SECONDS
        return (_FINISH_SENDING,)

    def _tunnel_lost(self, event: EngineLost, now: float) -> Commands:
        if self._half_closed:
            return self._tunnel_over(event, now)
        name = self._place_held().upstream
        return self._break_tunnel(UpstreamReset(f"{name} broke off the tunnel: {event.why}"))

    def _tunnel_silent(self, event: Expired, now: float) -> Commands:
        if self._half_closed:
            return self._tunnel_over(event, now)
        silent = now - (self._last_passed or now)
        why = f"nothing has gone through the tunnel for {silent:.0f} s"
        return self._break_tunnel(UpstreamTimeout(why))

    def _break_tunnel(self, failure: UpstreamFault) -> Commands:
        end = self._end(Outcome.FAILED, refusal=failure)
        return (_DROP_ENGINE, *end, _END_ANSWER)

    # what several of them do

    def _place_held(self) -> Place:
        assert self.place is not None  # noqa: S101 - the states that ask hold one
        return self.place

    def _connect(self, now: float, *, fresh: bool) -> Commands:
        self.state = State.CONNECTING
        self.deadline = now + self._timeouts.connect
        return (Connect(self._place_held().upstream, fresh),)

    def _ask_other(
        self, cause: RetryCause, evidence: Evidence, failure: Refusal | None
    ) -> Commands:
        self.state = State.RETRYING
        self._retried = True
        self._failure = failure
        return (AskOther(self._place_held(), cause, evidence),)

    def _relay(self) -> Commands:
        self.state = State.RELAYING
        return (_SEND_HEAD,)

    def _patience(self) -> float:
        """Seconds that the engine may take from now on."""
        if not self.streams:
            return self._timeouts.response
        if self._last_passed is None:
            return self._timeouts.first_byte
        return self._timeouts.between_chunks

    def _too_late(self, now: float) -> UpstreamTimeout:
        name = self._place_held().upstream
        if not self.streams:
            return UpstreamTimeout(
                f"{name} has not ended its answer within {now - self._sent_at:.0f} s"
            )
        since = self._sent_at if self._last_passed is None else self._last_passed
        return UpstreamTimeout(f"{name} has sent nothing for {now - since:.0f} s")

    def _verdict(self) -> tuple[Outcome, Evidence]:
        """What the engine's own complete answer was."""
        status = self.status or 0
        error = None if self.watch is None else self.watch.error_code
        code = status if error is None else error
        if code in _REFUSALS:
            return Outcome.FAILED, Evidence.NONE
        if error is not None:
            bad = not isinstance(error, int) or error >= 500  # noqa: PLR2004 - HTTP's classes
            return Outcome.FAILED, Evidence.BAD if bad else Evidence.NONE
        if status >= 500:  # noqa: PLR2004
            return Outcome.FAILED, Evidence.BAD
        return Outcome.OK, Evidence.GOOD if status < 400 else Evidence.NONE  # noqa: PLR2004

    def _answer(
        self, refusal: Refusal, outcome: Outcome, evidence: Evidence = Evidence.NONE
    ) -> Commands:
        return (*self._end(outcome, evidence, refusal), Answer(refusal))

    def _end(
        self,
        outcome: Outcome,
        evidence: Evidence = Evidence.NONE,
        refusal: Refusal | None = None,
    ) -> Commands:
        self.state = State.ENDED
        self.deadline = inf
        self._paused = False
        return (Finish(outcome, evidence, self.place, refusal),)


TRANSITIONS: Final[Mapping[State, Mapping[type[Event], Callable[..., Commands]]]] = {
    State.READING: {
        RequestRead: Exchange._request_read,
        ErrandRead: Exchange._errand_read,
        Refused: Exchange._refused,
        ClientGone: Exchange._gone_before_place,
    },
    State.ERRAND: {
        ErrandOver: Exchange._errand_over,
        ClientGone: Exchange._gone_asking,
        Expired: Exchange._errand_expired,
    },
    State.WAITING: {
        Placed: Exchange._placed,
        Refused: Exchange._refused,
        ClientGone: Exchange._gone_waiting,
    },
    State.CONNECTING: {
        Connected: Exchange._connected,
        ConnectFailed: Exchange._connect_failed,
        Refused: Exchange._refused_connecting,
        ClientGone: Exchange._gone_with_engine,
        Expired: Exchange._connect_expired,
    },
    State.AWAITING: {
        HeadRead: Exchange._head_read,
        EngineLost: Exchange._lost_awaiting,
        ClientGone: Exchange._gone_with_engine,
        Expired: Exchange._too_late_before_head,
    },
    State.HOLDING: {
        FirstEventRead: Exchange._first_event_read,
        ResponseEnded: Exchange._ended_held,
        EngineLost: Exchange._lost_before_head,
        ClientGone: Exchange._gone_with_engine,
        Expired: Exchange._too_late_before_head,
    },
    State.RETRYING: {
        Placed: Exchange._placed_again,
        NotPlaced: Exchange._not_placed,
        Queued: Exchange._queued,
        ClientGone: Exchange._gone_with_engine,
    },
    State.RELAYING: {
        ResponseEnded: Exchange._response_ended,
        EngineLost: Exchange._lost_relaying,
        ClientGone: Exchange._gone_relaying,
        Expired: Exchange._too_late_relaying,
    },
    State.TUNNEL: {
        ResponseEnded: Exchange._tunnel_over,
        EngineLost: Exchange._tunnel_lost,
        ClientFinished: Exchange._client_finished,
        ClientGone: Exchange._tunnel_over,
        Expired: Exchange._tunnel_silent,
    },
    State.ENDED: {},
}
