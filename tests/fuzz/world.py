"""A script played between one client, specswitch's data plane and engines, without sockets.

The dispatcher, the pools, the exchange and both protocols are the real ones; the two peers are
played here.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from proxy.core.cors import Cors
from proxy.core.http import RequestIds
from proxy.core.keys import Keyring
from proxy.core.observer import Record
from proxy.core.places import Place
from proxy.core.words import RetryCause, UpstreamName
from proxy.data import downstream, exchange, outgoing, upstream
from proxy.data.downstream import ClientConnection
from proxy.data.front import EngineSide, Front
from proxy.data.outbox import Outbox
from proxy.data.pool import Pool
from proxy.data.settings import FrontSettings
from proxy.data.upstream import EngineConnection
from tests.fuzz.corpus import OK, Script
from tests.fuzz.ends import End, as_protocol
from tests.fuzz.engines import Engine, Scene, Sent
from tests.fuzz.loop import START, VirtualLoop
from tests.fuzz.plan import (
    AHEAD,
    FAR,
    HEAD,
    HELD,
    HIGH_WATER,
    LIMITS,
    LONGEST,
    MOST_STEPS,
    MOST_TURNS,
    OWN_ANSWER,
    PORTS,
    TIMEOUTS,
    Plan,
    Violation,
    cut,
    plan_of,
    require,
)
from tests.harness.pair import SETTINGS, Pair, Recorder, need, only_base
from tests.harness.wire import FakeDesk


class Told(Recorder):
    """An observer that keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.repeats: list[RetryCause] = []
        """Those of the request that runs."""
        self.excess: list[list[RetryCause]] = []
        """Those of requests that were repeated too often."""
        self.records: list[Record] = []

    def started(self) -> None:
        """Count it."""
        self.begun += 1

    def ended(self, record: Record) -> None:
        """Keep it; a request is repeated at most once for each of the two reasons."""
        stale = self.repeats.count(RetryCause.STALE_CONNECTION)
        if max(stale, len(self.repeats) - stale) > 1:
            self.excess.append(self.repeats)
        self.repeats = []
        self.records.append(record)

    def retried(self, cause: RetryCause) -> None:
        """Keep it."""
        super().retried(cause)
        self.repeats.append(cause)


@dataclass
class World:
    """One conversation."""

    loop: VirtualLoop
    script: Script
    plan: Plan
    lots: Random
    told: Told = field(default_factory=Told)
    engines: list[Engine] = field(default_factory=list)
    missed: list[tuple[UpstreamName, float]] = field(default_factory=list)
    """Connections that did not come about, and when they were tried."""
    left: bool = False
    """Whether the client has left before it had everything."""

    def __post_init__(self) -> None:
        answers = deque(self.script.answers)
        self.scene = Scene(self.loop, self.plan, self.lots, answers)
        self._measure()
        self.pair = Pair(replace(SETTINGS, spec_cap=4, base_cap=4, queue_timeout=6.0))
        self.pair.dispatcher._observer = self.told
        self.pools = {name: self._pool(name, port) for port, name in PORTS.items()}
        self.front = Front(
            dispatcher=self.pair.dispatcher,
            desk=FakeDesk(),
            observer=self.told,
            engines={
                name: EngineSide(pool, (b"Host: engine",), has_key=False)
                for name, pool in self.pools.items()
            },
            cors=Cors(),
            outbox=Outbox(),
            settings=FrontSettings(
                limits=replace(LIMITS, max_buffered_bytes=FAR) if self.plan.spacious else LIMITS,
                timeouts=TIMEOUTS,
                keyring=Keyring({"name": "key"} if self.plan.keys else {}),
                admin_keyring=Keyring({}),
                serves_metrics=False,
                allow_override=True,
            ),
            ids=RequestIds("0" * 16),
            clock=self.loop.time,
        )
        self.loop.dial = self.dial

    def _pool(self, name: UpstreamName, port: int) -> Pool:
        address = ("engine", port)
        return Pool(name, address, tls=None, timeouts=TIMEOUTS, clock=self.loop.time)

    @property
    def sent(self) -> list[Sent]:
        """Every request that an engine has heard, in order."""
        return self.scene.sent

    # connections

    async def dial(self, make: Callable[[], asyncio.BaseProtocol], port: int) -> End:
        """Make a connection to an engine, or not."""
        if self.lots.random() < self.plan.refuses:
            self.missed.append((PORTS[port], self.loop.time()))
            fate = self.lots.randrange(3)
            if fate == 0:
                raise ConnectionRefusedError("refused")
            await asyncio.sleep(TIMEOUTS.connect * fate)
        end = self._engine_end(as_protocol(make()), PORTS[port])
        if self.lots.random() < self.plan.refuses / 4:
            self.missed.append((PORTS[port], self.loop.time()))
            end.break_off()
            await asyncio.sleep(0)
        return end

    def _engine_end(self, protocol: asyncio.Protocol, name: UpstreamName) -> End:
        end = End(protocol)
        self.engines.append(Engine(self.scene, name, end))
        protocol.connection_made(end)
        return end

    def _keep_engines(self) -> None:
        for name, pool in self.pools.items():
            for _ in range(self.plan.kept):
                made = EngineConnection(pool)
                self._engine_end(made, name)
                self.engines[-1].kept = True
                made.keep()

    # the play

    async def play(self) -> None:
        """Play it to its end."""
        self._keep_engines()
        occupied = self._occupy() if self.plan.occupied else []
        self.client = ClientConnection(self.front)
        self.end = End(self.client)
        self.client.connection_made(self.end)
        self.coming = cut(self.script.client, self.plan.client_cut, self.lots)
        await self._talk()
        for place in occupied:
            self.pair.end(place)
        await self._wait_for_the_end()
        self.after_lost()
        for pool in self.pools.values():
            pool.close()
        await self._turns()
        self.after_all()

    def _occupy(self) -> list[Place]:
        return [*self.pair.fill(need(), 4), *self.pair.fill(only_base(), 4)]

    async def _talk(self) -> None:
        for step in range(MOST_STEPS):
            if step == self.plan.leaves_at:
                self.leave()
            moves = self._moves()
            if not moves or self.end.lost:
                return
            self.lots.choice(moves)()
            await self._turns()
            self.look()
        raise Violation("the conversation goes on for ever")

    def _moves(self) -> list[Callable[[], None]]:
        moves: list[Callable[[], None]] = []
        if self.coming and self.end.readable and not self.left:
            moves.append(self._client_sends)
        if self.end.unsent and self.end.ended is None and not self.left:
            moves.append(self._client_takes)
        moves += [engine.move for engine in self.engines if engine.can_move]
        moves += [
            engine.conclude
            for engine in self.engines
            if engine.answering is not None and not engine.queue and not engine.end.closing
        ]
        return moves

    def _client_sends(self) -> None:
        self.end.give(self.coming.popleft())

    def _client_takes(self) -> None:
        self.end.take(self.plan.appetite or len(self.end.unsent))

    def leave(self) -> None:
        """The client leaves."""
        if self.left or self.end.closing:
            return
        self.left = True
        if self.plan.resets:
            self.end.break_off()
        else:
            self.end.finish()

    async def _turns(self) -> None:
        """Let what is ready happen, and engines take what was written to them."""
        for _ in range(MOST_TURNS):
            for engine in self.engines:
                engine.end.take(len(engine.end.unsent))
            if not self.loop.busy:
                return
            await asyncio.sleep(0)
        raise Violation("something is ready for ever")

    async def _wait_for_the_end(self) -> None:
        """Time passes; the client has left, or says nothing more and waits."""
        if not self.plan.lingers:
            await self._talk_on(until=30.0)
            self.leave()
        await self._talk_on(until=LONGEST)
        require(self.end.lost, "the connection of a silent client never ends")

    async def _talk_on(self, *, until: float) -> None:
        end = self.loop.time() + until
        while not self.end.lost and self.loop.time() < end:
            await asyncio.sleep(1.0)
            now = self.pair.now = self.loop.time()
            self.pair.dispatcher.tick(now)
            for pool in self.pools.values():
                pool.sweep(now)
            await self._talk()

    # what must hold

    def look(self) -> None:
        """What holds at every moment: memory is bounded, and nobody waits for nothing."""
        client, end = self.client, self.end
        for engine in self.engines:
            require(end.slow or not engine.end.paused, "an engine is paused for no slow client")
            require(self._is_bounded(engine), "an engine's head is read without end")
        if self.plan.spacious:
            return
        reader = client._reader
        most = AHEAD + self.piece
        require(reader.ahead <= most, f"{reader.ahead} bytes are kept that were sent ahead")
        held = reader.body_bytes + len(reader._last)
        require(held <= LIMITS.max_body_bytes + self.piece, f"{held} bytes of a body")
        require(end.while_slow <= self.burst, f"{end.while_slow} bytes more for a slow client")
        relay = client._relay
        if relay is not None and relay._held:
            kept = sum(map(len, relay._held))
            require(kept <= HELD + self.answer, f"{kept} bytes of a stream are held")

    def _is_bounded(self, engine: Engine) -> bool:
        """Whether what came before a head is whole is no more than is allowed."""
        sent = engine.last
        if sent is None or engine.end.closing or len(engine.end.given) <= upstream.MAX_HEAD_BYTES:
            return True
        return b"\r\n\r\n" in sent.heard or len(sent.heard) <= upstream.MAX_HEAD_BYTES

    def _measure(self) -> None:
        """The largest piece of the client, of an engine, and what may follow for a slow client."""
        plan, answers = self.plan, [answer for answer, _ in self.script.answers] or [OK]
        self.piece = 2 * plan.client_cut or len(self.script.client)
        self.answer = 2 * plan.engine_cut or max(map(len, answers))
        head = max(len(answer.partition(b"\r\n\r\n")[0]) for answer in answers)
        self.burst = HELD + head + 8 * self.answer + OWN_ANSWER

    def after_lost(self) -> None:
        """What holds as soon as the client's connection is lost: nothing is held for it."""
        front, dispatcher = self.front, self.pair.dispatcher
        for name in UpstreamName:
            count = dispatcher.in_flight.at(name)
            require(count == 0, f"{count} sequences in flight at {name}")
        require(len(dispatcher.room) == 0, "somebody is in the waiting room")
        require(front.buffered == 0, f"{front.buffered} bytes of bodies are held")
        require(front.open_requests == 0, f"{front.open_requests} requests are open")
        require(not front.connections, "a connection is left")
        require(not self.told.excess, f"repeated too often: {self.told.excess}")
        require(self.told.begun == len(self.told.records), "requests begun and ended differ")
        timer = self.client._alarm._timer
        require(timer is None or timer.cancelled(), "the connection's timer is left")

    def after_all(self) -> None:
        """What holds when everything is over."""
        for name, pool in self.pools.items():
            require(pool.active == 0, f"{pool.active} connections to {name} are in use")
            require(pool.idle == 0, f"{pool.idle} connections to {name} are kept after the end")
            require(not pool._connecting, f"a connection to {name} is being made")
        require(not self.loop.pending, f"timers are left: {self.loop.pending}")
        require(not self.loop.faults, f"faults of ours: {self.loop.faults}")


@contextmanager
def _bounds(plan: Plan) -> Iterator[None]:
    """The data plane's own bounds, scaled down, or out of reach."""
    wanted = {
        (downstream, "MAX_AHEAD_BYTES"): AHEAD,
        (outgoing, "HIGH_WATER_BYTES"): HIGH_WATER,
        (exchange, "MAX_HELD_BYTES"): HELD,
        (upstream, "MAX_HEAD_BYTES"): HEAD,
    }
    before = {place: getattr(*place) for place in wanted}
    for (module, name), bound in wanted.items():
        setattr(module, name, FAR if plan.spacious else bound)
    try:
        yield
    finally:
        for (module, name), bound in before.items():
            setattr(module, name, bound)


def play(loop: VirtualLoop, script: Script, plan: Plan | None = None) -> World:
    """Play `script` and return what came of it."""
    drawn, lots = plan_of(script.seed)
    world = World(loop, script, drawn if plan is None else plan, lots)
    loop.restart()
    require(world.pair.now == START, "the pair and the loop begin at different times")
    with _bounds(world.plan):
        loop.run_until_complete(world.play())
    return world
