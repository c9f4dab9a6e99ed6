"""One request on its way: runs the exchange's commands between a client and an engine.

It lives from the end of a request's head to the end of its answer, and holds what the request
holds: the place, the engine's connection, the body. Writing and reading the client's socket is the
connection's business (downstream.py).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from proxy.core.endpoints import Endpoint
from proxy.core.errands import Reply, Result
from proxy.core.http import Framing
from proxy.core.places import UNTOLD, Answer, Place, Ticket
from proxy.core.words import Outcome, RetryCause
from proxy.data import events as ev
from proxy.data import exchange as ex
from proxy.data.client import Client
from proxy.data.client_answer import ClientAnswer
from proxy.data.engine_request import request_head, upgrade_head
from proxy.data.errand import DeskVisit
from proxy.data.front import EngineSide, Front
from proxy.data.held_body import HeldBody
from proxy.data.ledger import PLAIN, Account
from proxy.data.pool import Connecting
from proxy.data.reader import RequestHead
from proxy.data.response import ResponseHead, watch_for
from proxy.data.tunnel import Tunnel
from proxy.data.upstream import EngineConnection
from proxy.errors import Draining, Refusal

_READING: Final = ex.State.READING
_HOLDING: Final = ex.State.HOLDING
_TUNNEL: Final = ex.State.TUNNEL
_CHUNKED: Final = Framing.CHUNKED
_REQUEST_READ: Final = ev.RequestRead()
_ERRAND_READ: Final = ev.ErrandRead()
_REUSED: Final = ev.Connected(reused=True)


class Relay:
    """One request between its client and an engine; a Sink of the one, a Waiter for a place."""

    __slots__ = (
        "_body",
        "_client",
        "_engine",
        "_front",
        "_head",
        "_held",
        "_response",
        "_side",
        "_ticket",
        "_visit",
        "account",
        "answer",
        "exchange",
        "tunnel",
    )

    def __init__(self, front: Front, client: Client, head: RequestHead, account: Account) -> None:
        endpoint = account.endpoint
        self._front = front
        self._client = client
        self._head = head
        self.account = account
        holds_head = endpoint is not None and endpoint.holds_head
        self.exchange = ex.Exchange(front.timeouts, holds_head=holds_head)
        self.answer = ClientAnswer(front, client, head, account)
        self._engine: EngineConnection | Connecting | None = None
        self._side: EngineSide | None = None
        """How the server of its place is spoken to; a reload must not exchange it underway."""
        self._ticket: Ticket | None = None
        self._visit: DeskVisit | None = None
        self._body = HeldBody(front)
        self._response: ResponseHead | None = None
        self._held: list[bytes] = []
        self.tunnel: Tunnel | None = None
        """What its bytes pass through, once both sides have switched protocols."""
        front.opened()

    @property
    def reading(self) -> bool:
        """Whether its body is still coming in."""
        return self.exchange.state is _READING and not self._body.whole

    @property
    def wants_tunnel(self) -> bool:
        """Whether it has asked for a tunnel."""
        return self._endpoint.tunnel

    @property
    def _endpoint(self) -> Endpoint:
        assert self.account.endpoint is not None  # noqa: S101 - others are refused at their head
        return self.account.endpoint

    @property
    def _place(self) -> Place:
        assert self.account.place is not None  # noqa: S101 - asked for where one is held
        return self.account.place

    # from the client's side

    def body_grows(self, held: int) -> None:
        """`held` bytes of the body have come so far."""
        refusal = self._body.grow(held)
        if refusal is not None:
            self.refuse(refusal)

    def body_read(self, body: bytes, now: float) -> None:
        """The whole request is here."""
        if self._is_held(body):
            self._decide(now)

    def large_body_read(self, body: bytearray) -> None:
        """The same; to look into a large body takes milliseconds."""
        if self._is_held(body):
            self._front.lane.add(self._at_turn)

    def refuse(self, refusal: Refusal) -> None:
        """Answer instead of an engine."""
        self._process(ev.Refused(refusal))

    def client_gone(self) -> None:
        """Nobody is there to answer."""
        self._client.keep_alive = False
        if self.exchange.state is not ex.State.ENDED:
            try:
                self._process(ev.ClientGone())
            except Exception as fault:  # noqa: BLE001 - reported; the connection ends anyway
                self._client.failed(fault)

    def client_finished(self) -> None:
        """The client of a tunnel sends nothing more, and may still read."""
        self._told(ev.ClientFinished())

    def expired(self) -> None:
        """Its deadline has passed."""
        self._told(ev.Expired())

    def pause(self) -> None:
        """The client reads more slowly than the engine writes: let the engine wait."""
        if isinstance(self._engine, EngineConnection):
            self._engine.pause()
            self._place.lease.expect_no_more()
        self.exchange.pause()

    def resume(self) -> None:
        """The client has caught up."""
        now = self._front.clock()
        if isinstance(self._engine, EngineConnection):
            self._engine.resume()
            self._place.lease.expect(now)
        self.exchange.resume(now)

    # Waiter

    def placed(self, place: Place) -> None:
        """A place came free."""
        self._ticket = None
        self.account.placed(place, self._front.clock())
        self._told(ev.Placed(place))

    def refused(self, refusal: Refusal) -> None:
        """None came free."""
        self._ticket = None
        self._told(ev.Refused(refusal))

    # Asker

    def errand_over(self, result: Result) -> None:
        """The desk has an answer for it, or none."""
        assert self._visit is not None  # noqa: S101 - it is told of its own
        self._visit.over()
        if isinstance(result, Reply):
            self.account.response_bytes = len(result.body)
            if result.refusal is None:
                self.account.status = result.status
        self._told(ev.ErrandOver(result))

    def _told(self, event: ev.Event) -> None:
        """Go on with what the waiting has led to.

        This runs in a timer, which nobody would set anew, or within the ending of another request,
        whose fault must not become ours, nor ours its: what fails here ends here.
        """
        try:
            self._process(event)
            self._client.request_moved()
        except Exception as fault:  # noqa: BLE001 - reported, and this one request is given up
            self._client.failed(fault)

    # Sink

    def engine_connected(self, engine: EngineConnection, *, reused: bool) -> None:
        """The one made for it, or one that came free."""
        self._engine = engine
        self._process(ev.Connected(reused))

    def engine_not_connected(self, why: str) -> None:
        """None."""
        self._engine = None
        self._process(ev.ConnectFailed(why))

    def engine_refused(self, refusal: Refusal) -> None:
        """None, for want of a file descriptor: our own trouble; the other would fare no better."""
        self._engine = None
        self._front.connects_without_descriptor += 1
        self.account.place = None  # the answer is ours
        self.refuse(refusal)

    def engine_head(self, head: ResponseHead) -> None:
        """The response begins."""
        self._response = head
        endpoint = self._endpoint
        watch = watch_for(head, endpoint.dialect or endpoint.stream_dialect)
        self.account.notes_answer = watch is None and head.plain_json
        self._process(ev.HeadRead(head.status, watch))

    def engine_body(self, pieces: list[bytes], framed: bytes | None) -> None:
        """A part of it; what comes framed as the client takes it passes as it came."""
        now = self._front.clock()
        exchange = self.exchange
        exchange.passing(pieces, now)
        lease = self._place.lease
        lease.heard(now)
        if lease.trial and exchange.speaks:
            self._front.dispatcher.trial_speaks(lease, now)
        if exchange.state is _HOLDING:
            self._hold(pieces)
        elif framed is not None and self.answer.framing is _CHUNKED:
            self.account.passed(pieces)
            self._client.write(framed)
        else:
            self.answer.go_on(pieces)

    def engine_tunnelled(self, data: bytes) -> None:
        """Bytes out of its tunnel."""
        assert self.tunnel is not None  # noqa: S101 - it was opened when the head was told
        self.tunnel.from_engine(data)

    def engine_slow(self) -> None:
        """The engine takes less than comes through the tunnel: let the client wait."""
        self._client.hold_back()

    def engine_caught_up(self) -> None:
        """The engine has caught up."""
        self._client.go_on()

    def engine_ended(self, *, reusable: bool) -> None:
        """The end of it."""
        self._process(ev.ResponseEnded(reusable))

    def engine_lost(self, *, silent: bool, why: str) -> None:
        """No end of it."""
        self._process(ev.EngineLost(silent, why))

    def engine_flush(self) -> None:
        """That was all of one read of the engine."""
        self._client.request_moved()

    def engine_failed(self, fault: Exception) -> None:
        """A fault of ours: this one request is given up."""
        self._client.failed(fault)

    # commands

    def _process(self, event: ev.Event) -> None:
        """Tell the exchange, and do what it asks for; what comes of that at once is told it, too.

        Only the last command of an event can lead to another one.
        """
        following: ev.Event | None = event
        while following is not None:
            now = self._front.clock()
            commands = iter(self.exchange.process(following, now))
            following = None
            try:
                for command in commands:
                    following = TABLE[type(command)](self, command, now)
            except BaseException:
                self._end_anyway(commands, now)
                raise

    def _end_anyway(self, commands: Iterator[ev.Command], now: float) -> None:
        """What has failed is raised again; what comes after it in an ending is not left out."""
        for command in commands:
            if isinstance(command, ev.GiveBack | ev.Finish):
                TABLE[type(command)](self, command, now)

    def _ask(self, _command: ev.Ask, now: float) -> ev.Event | None:
        account, front = self.account, self._front
        override = self._head.first.get(b"x-specswitch-route")
        account.need = need = front.need(self._endpoint, account.traits, override)
        answer = front.dispatcher.arrive(need, self, now)
        if isinstance(answer, Place):
            account.placed(answer, now)
            return ev.Placed(answer)
        if isinstance(answer, Ticket):
            self._ticket = answer
            account.queued_at = now
            return None
        return ev.Refused(answer)

    def _run_errand(self, _command: ev.RunErrand, _now: float) -> ev.Event | None:
        if self._front.dispatcher.draining:
            return ev.ErrandOver(Draining("specswitch is shutting down"))
        visit = DeskVisit(self._front)
        visit.start(self._head, self.account, self._body.content, self)
        self._visit = visit
        return None

    def _cancel_errand(self, _command: ev.CancelErrand, _now: float) -> None:
        if self._visit is not None:  # there is none where its start has failed within us
            self._visit.cancel()

    def _tell(self, command: ev.Tell, _now: float) -> None:
        self.answer.tell(command.reply)
        self._client.request_over()

    def _ask_other(self, command: ev.AskOther, now: float) -> ev.Event:
        need = self.account.need
        assert need is not None  # noqa: S101 - a first place was asked for with it
        place = self._front.dispatcher.retry(
            command.place, need, command.cause, command.evidence, now
        )
        if place is not None:
            self.account.place = place
            return ev.Placed(place)
        if command.cause is RetryCause.CONNECT:  # nothing was sent, so nothing need be lost
            self._ticket = self._front.dispatcher.wait_for_other(
                command.place, need, self, self.account.arrived_at
            )
        if self._ticket is None:
            return ev.NotPlaced()
        self.account.waits_again(now)
        return ev.Queued()

    def _give_back(self, command: ev.GiveBack, now: float) -> None:
        self._front.dispatcher.end(command.place.lease, command.evidence, now)

    def _leave_room(self, _command: ev.LeaveRoom, now: float) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:  # there is none where asking has failed within us
            self._front.dispatcher.leave(ticket, now)

    def _connect(self, command: ev.Connect, _now: float) -> ev.Event | None:
        if command.fresh:
            self._front.observer.retried(RetryCause.STALE_CONNECTION)
        else:
            self._side = self._front.engines[command.upstream]
        assert self._side is not None  # noqa: S101 - a fresh one replaces one that was used
        self._response = None
        self._held = []
        fresh = command.fresh or self._endpoint.tunnel  # which gives none back
        self._engine = engine = self._side.pool.obtain(self, fresh=fresh)
        return _REUSED if isinstance(engine, EngineConnection) else None

    def _send(self, command: ev.Send, _now: float) -> None:
        engine, side, outbox = self._engine, self._side, self._front.outbox
        assert isinstance(engine, EngineConnection)  # noqa: S101 - it is connected
        assert side is not None  # noqa: S101 - it is connected by it
        head, account, attempt = self._head, self.account, command.attempt
        if self._endpoint.tunnel:
            engine.send_upgrade(self, upgrade_head(head, account, side, attempt=attempt), outbox)
            return
        body = self._body.content
        block = request_head(head, account, side, attempt=attempt, body_bytes=len(body))
        engine.send(self, block, body, outbox)

    def _finish(self, command: ev.Finish, now: float) -> None:
        """Give back what the request held, and tell of it; only then is the client told."""
        front = self._front
        self._body.let_go()
        told = UNTOLD
        try:
            if self._engine is not None:  # letting it go has failed within us
                self._let_engine_go()
            record = self.account.closed(command, self.exchange, now)
            told = Answer(record.output_tokens, record.seconds_per_token)
            front.closed(record)
        finally:
            if command.place is not None:  # last: who gets the place is told within this call
                front.dispatcher.end(command.place.lease, command.evidence, now, told)
        if command.outcome is Outcome.ABANDONED:
            self._client.request_over()

    def _drop_engine(self, _command: ev.DropEngine, _now: float) -> None:
        self._let_engine_go()

    def _keep_engine(self, _command: ev.KeepEngine, _now: float) -> None:
        engine, self._engine = self._engine, None
        assert isinstance(engine, EngineConnection)  # noqa: S101 - it has just answered
        engine.keep()

    def _send_head(self, _command: ev.SendHead, _now: float) -> None:
        response = self._response
        assert response is not None  # noqa: S101 - it is what is sent
        self._body.let_go()  # nothing is retried from here on
        if self.exchange.state is _TUNNEL:
            self.answer.switch(response, self._place)
        else:
            self.answer.begin(response, self._place)
        if self._client.slow:
            self.pause()  # what was answered before has not been read yet
        if self._held:
            held, self._held = self._held, []
            self.answer.go_on(held)

    def _open_tunnel(self, _command: ev.OpenTunnel, _now: float) -> None:
        engine, clock = self._engine, self._front.clock
        assert isinstance(engine, EngineConnection)  # noqa: S101 - it has just answered
        self.tunnel = Tunnel(self._client, engine, self.exchange, self.account, clock)
        self.tunnel.open()

    def _finish_sending(self, _command: ev.FinishSending, _now: float) -> None:
        engine = self._engine
        assert isinstance(engine, EngineConnection)  # noqa: S101 - the tunnel is open
        engine.finish_sending()

    def _hold(self, pieces: list[bytes]) -> None:
        self._held += pieces
        watch = self.exchange.watch
        whole = watch is None or watch.events > 0
        if whole or sum(map(len, self._held)) > ex.MAX_HELD_BYTES:
            self._process(ev.FirstEventRead())

    def _end_answer(self, _command: ev.EndAnswer, _now: float) -> None:
        self.answer.end()
        self._client.request_over()

    def _answer(self, command: ev.Answer, _now: float) -> None:
        refusal, client = command.refusal, self._client
        if refusal.closes or not (self._body.whole or client.pass_over_body()):
            client.keep_alive = False
        self.answer.refuse(refusal)
        client.request_over()

    def _cut(self, command: ev.Cut, _now: float) -> None:
        self.answer.break_off(command.refusal, self.exchange.watch)
        self._client.request_over()

    def _let_engine_go(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.drop()

    # its body

    def _is_held(self, body: bytes | bytearray) -> bool:
        """Keep what has come, all of it; whether the request goes on."""
        self._body.keep(body)
        self.body_grows(len(body))
        return self.exchange.state is _READING

    def _at_turn(self) -> None:
        """Decide in a turn of its own, unless it has ended by then."""
        if self.exchange.state is not _READING:
            return
        try:
            self._decide(self._front.clock())
            self._client.request_moved()
        except Exception as fault:  # noqa: BLE001 - reported, and this one request is given up
            self._client.failed(fault)

    def _decide(self, now: float) -> None:
        """Look into the body, and go on with what it says."""
        endpoint, body = self._endpoint, self._body.content
        if endpoint.is_errand:
            self.account.read(PLAIN, len(body), now)
            self._process(_ERRAND_READ)
            return
        traits = self._front.traits(endpoint, body)
        self.account.read(traits, len(body), now)
        # A tunnel is a stream as far as its head and its silences go.
        self.exchange.streams = endpoint.tunnel or (traits.stream and endpoint.dialect is not None)
        self._process(_REQUEST_READ)


TABLE: Final[Mapping[type[ev.Command], Callable[..., ev.Event | None]]] = {
    ev.Ask: Relay._ask,
    ev.RunErrand: Relay._run_errand,
    ev.CancelErrand: Relay._cancel_errand,
    ev.Tell: Relay._tell,
    ev.AskOther: Relay._ask_other,
    ev.GiveBack: Relay._give_back,
    ev.LeaveRoom: Relay._leave_room,
    ev.Connect: Relay._connect,
    ev.Send: Relay._send,
    ev.DropEngine: Relay._drop_engine,
    ev.KeepEngine: Relay._keep_engine,
    ev.SendHead: Relay._send_head,
    ev.OpenTunnel: Relay._open_tunnel,
    ev.FinishSending: Relay._finish_sending,
    ev.EndAnswer: Relay._end_answer,
    ev.Answer: Relay._answer,
    ev.Cut: Relay._cut,
    ev.Finish: Relay._finish,
}
"""Each command's method, which returns what comes of it at once, if anything does."""
