"""The root: builds everything from a Config, and owns every lifetime.

What is started here is ended here, in the reverse order, whatever happens in between. Two things
have lifetimes of their own below: a connection in the making (data/upstream) and the thread that
writes the log (control/log).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Final

from proxy import __version__, wiring
from proxy.calibrated import calibration_of, tell_of
from proxy.config import Config
from proxy.control.admin import AdminServer, Past, build_admin
from proxy.control.decisions import Decisions
from proxy.control.desk import Desk
from proxy.control.gauges import Sources
from proxy.control.history import History
from proxy.control.log import BufferedLog, LogFormat
from proxy.control.logged import LogObserver
from proxy.control.metrics import Metrics
from proxy.control.observers import Observers
from proxy.control.state import Facts, Known, Pair, day
from proxy.core.dispatch import CONFIGURED, Dispatcher
from proxy.core.http import RequestIds
from proxy.core.observer import Record
from proxy.core.words import UpstreamName
from proxy.data.descriptors import provide
from proxy.data.downstream import ClientConnection
from proxy.data.front import Front
from proxy.data.listener import Listener
from proxy.data.outbox import Outbox
from proxy.data.tls import Certificate, TlsConnection
from proxy.errors import ConfigError, SpecswitchError
from proxy.links import Link, Links, build_link
from proxy.reload import Basis, Renewal, read_again

_log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
"""How often time itself is looked at: four times in the second that the contract gives it."""
LAST_SECONDS: Final = 0.25
"""For those who ask in the last moment of a drain; far more than a request takes to come."""


class App:
    """specswitch, built and not yet running; `running` gives it its lifetime."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float],
        wall: Callable[[], int],
        log: BufferedLog | None,
        load: Callable[[], Config] | None,
    ) -> None:
        now = clock()
        self.config = config
        self.clock = clock
        self._log = log
        self._load = load
        self._reloading = asyncio.Lock()
        self.metrics = Metrics(__version__)
        self.decisions = Decisions(clock=clock, wall=wall, running=self._running)
        self.history = History(self.metrics, clock=clock, wall=wall)
        self._observer = Observers(
            self.metrics, LogObserver(log, wall), self.decisions, self.history
        )
        self.calibration = calibration_of(config)
        settings = wiring.settings_of(config, self.calibration)
        self.dispatcher = Dispatcher(settings, self._observer, now=now)
        self.links = Links({name: self._link(config, name) for name in UpstreamName})
        self.desk = Desk(
            lambda: self.links.reaches,
            lambda: wiring.patience_of(self.config),
            self.dispatcher.doubt,
            lambda: len(self.dispatcher.room),
        )
        self.front = self._front()
        listen = config.listen
        self.certificate = None
        if listen.tls_cert is not None and listen.tls_key is not None:
            self.certificate = Certificate(listen.tls_cert, listen.tls_key)
        self.listener = Listener(self.front, self._client)
        self.pair = Pair(
            self.dispatcher,
            Facts(version=__version__, started=day(wall())),
            self._known,
            calibration=lambda: self.calibration,
            clock=clock,
            wall=lambda: day(wall()),
        )
        self.pair.set_control(config.policy.control, by=CONFIGURED)
        self.metrics.watch(self.dispatcher, self._sources(), clock=clock)
        self.tasks: set[asyncio.Task[None]] = set()
        """What runs beside the requests."""
        self._probing: dict[UpstreamName, asyncio.Task[None]] = {}
        self.port = 0
        self.admin_port = 0
        self.failure: SpecswitchError | None = None
        """That a background task died, and of what."""
        self.ending = False
        """Whether background tasks may end: we are going."""
        self.stopping = asyncio.Event()
        """Set when it is told to stop, or when it must."""
        self._cutting = asyncio.Event()

    @property
    def url(self) -> str:
        """Where the endpoint can be reached from this machine."""
        secure = self.certificate is not None
        return wiring.address(self.config.listen.host, self.port, secure=secure)

    @property
    def admin_url(self) -> str:
        """Where the admin listener can be reached from this machine."""
        return wiring.address(self.config.listen.admin_host, self.admin_port)

    def start(self) -> None:
        """Start what runs beside the requests."""
        for name in UpstreamName:
            self._probe(name)
        self._run(self._tick(), "the ticker").add_done_callback(self.background_ended)
        watch = self._run(self.listener.watch(), "the listener's watch")
        watch.add_done_callback(self.background_ended)

    def _run(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _probe(self, name: UpstreamName) -> None:
        task = self._run(self.links[name].prober.run(), f"the prober of {name}")
        task.add_done_callback(self.background_ended)
        self._probing[name] = task

    def provide_descriptors(self) -> None:
        """Have a file descriptor for each client and its engine, or fewer clients, and say so."""
        wanted = self.config.limits.max_connections
        there = provide(wanted)
        self.front.descriptors_suffice_for = there.clients
        self.front.told = there.told
        if not there.suffices:
            _log.warning("%s", there.shortage(wanted))

    def background_ended(self, task: asyncio.Task[None]) -> None:
        """Called when a background task ends, which only our own stopping should make it do."""
        if self.ending or task.cancelled():
            return
        cause = task.exception()
        if self.failure is not None:
            _log.error("%s died, too: %r", task.get_name(), cause)
            return
        self.failure = SpecswitchError(f"{task.get_name()} died: {cause!r}")
        self.failure.__cause__ = cause
        _log.critical("%s; stopping", self.failure, exc_info=cause)
        self.stopping.set()
        self._cutting.set()

    def stop(self) -> None:
        """Drain, and cut when told again."""
        if self.stopping.is_set():
            self._cutting.set()
        self.stopping.set()

    async def until_stopped(self) -> int:
        """Run until told to stop, then drain; the exit code: 0 if nothing was cut."""
        await self.stopping.wait()
        self.dispatcher.drain()
        deadline = self.clock() + self.config.timeouts.drain
        running = self.front.unfinished
        _log.info("draining: %s", _unfinished(running) if running else "nothing is running")
        while self.front.unfinished and self.clock() < deadline:
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._cutting.wait()
                break
            except TimeoutError:
                continue
        await self._tell_the_last()
        cut = self.front.unfinished
        if cut:
            _log.warning("cut %s", _unfinished(cut))
        elif running:
            _log.info("drained: nothing was cut")
        return 1 if cut else 0

    async def _tell_the_last(self) -> None:
        """Take nobody any more, and let those who are asking just now be told that we drain."""
        await self.listener.stop()
        last = self.clock() + LAST_SECONDS
        while not self._cutting.is_set() and self.clock() < last:
            await asyncio.sleep(LAST_SECONDS / 10)  # first: the loop may be taking some just now
            if not self.front.connections:
                break

    async def reload(self) -> tuple[str, ...]:
        """Read the configuration again and go by it; the keys that changed.

        Raises ConfigError where it cannot be gone by; nothing has changed then. No stream is cut:
        what runs at a server that is replaced ends there.
        """
        done = False
        try:
            async with self._reloading:
                renewal = await read_again(
                    Basis(self.config, self.calibration), self._load, self._link, self.certificate
                )
                self._go_by(renewal)
            done = True
        except ConfigError as error:
            for path, message in error.findings:
                _log.error("reload refused: %s: %s", path or "all of it", message)
            raise
        finally:
            self.metrics.reloaded(ok=done)
        if self.front.descriptors_suffice_for < inf:
            self.provide_descriptors()
        if "policy.calibration" in renewal.changed:
            tell_of(self.config, self.calibration)
        _log.info("reloaded: %s", ", ".join(renewal.changed) or "nothing has changed")
        return renewal.changed

    def reload_soon(self) -> None:
        """The same, for a signal; what is wrong is said in the log."""
        self._run(self._reload_or_not(), "a reload")

    async def _reload_or_not(self) -> None:
        try:
            await self.reload()
        except ConfigError:
            return  # said where it was found
        except Exception:  # noqa: BLE001 - a fault of ours; what is served is served as before
            _log.exception("a reload failed within specswitch")

    def _go_by(self, renewal: Renewal) -> None:
        """All at once: between two of these lines nothing else runs.

        Raises ConfigError where we are going: what would be started now, nobody would end.
        """
        if self.ending or self.stopping.is_set():
            raise ConfigError([("", "specswitch is shutting down")])
        config = self.config = renewal.config
        self.calibration = renewal.calibration
        for name, link in renewal.links.items():
            self.links.exchange(name, link)
            self._probing[name].cancel()
            self._probe(name)
        self.links.set_to(wiring.probes_of(config), renewal.front.timeouts)
        self.front.engines = self.links.sides
        self.front.keep_to(renewal.front)
        if self.certificate is not None and renewal.tls is not None:
            self.certificate.context = renewal.tls
        self.pair.apply(renewal.pair, renewed=renewal.renewed, control=config.policy.control)
        if self._log is not None:
            self._log.set_to(LogFormat(config.log.format), config.log.level)

    def _client(self) -> ClientConnection | TlsConnection:
        """Who faces the next client."""
        if self.certificate is None:
            return ClientConnection(self.front)
        return TlsConnection(self.front, self.certificate.context)

    def _link(self, config: Config, name: UpstreamName) -> Link:
        return build_link(config, name, self.dispatcher, clock=self.clock)

    def _front(self) -> Front:
        config = self.config
        return Front(
            dispatcher=self.dispatcher,
            desk=self.desk,
            observer=self._observer,
            engines=self.links.sides,
            settings=wiring.front_of(config),
            cors=wiring.cors_of(config),
            outbox=Outbox(),
            # No other process gives the same: each starts its ids with a number of its own.
            ids=RequestIds(secrets.token_hex(8)),
            clock=self.clock,
        )

    def _sources(self) -> Sources:
        log = self._log
        return Sources(
            open_requests=lambda: self.front.open_requests,
            connections=self.links.connections,
            findings=lambda: self.links.findings,
            dropped_lines=lambda: 0 if log is None else log.dropped,
            clients=lambda: len(self.front.connections),
            calibrated_at=self._calibrated_at,
            started_at=self.pair.facts.started.timestamp(),
        )

    def _calibrated_at(self) -> float | None:
        return None if self.calibration is None else self.calibration.created.timestamp()

    def _running(self) -> Iterable[Record]:
        """What has a place now; asked for once there is a front."""
        return self.front.running()

    def _known(self) -> dict[UpstreamName, Known]:
        return {
            name: Known(url=str(wiring.upstream_of(self.config, name).url), findings=findings)
            for name, findings in self.links.findings.items()
        }

    def admin(self) -> AdminServer:
        """The admin listener, not yet listening."""
        config = self.config
        application = build_admin(
            self.pair,
            self.metrics,
            past=Past(self.decisions, self.history),
            reload=self.reload,
            token=lambda: self.config.auth.admin_token.get_secret_value() or None,
            known_hosts=wiring.known_hosts_of(config),
        )
        return AdminServer(application, config.listen.admin_host, config.listen.admin_port)

    async def _tick(self) -> None:
        """Let time pass in the pair and the pools, for ever; and see how late the loop is."""
        while True:
            due = self.clock() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            now = self.clock()
            self.metrics.lagged(max(0.0, now - due))
            self.dispatcher.tick(now)
            self.history.look(self.dispatcher, now)
            self.links.sweep(now)


@asynccontextmanager
async def running(
    config: Config,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], int] = time.time_ns,
    log: BufferedLog | None = None,
    load: Callable[[], Config] | None = None,
) -> AsyncIterator[App]:
    """The whole, from its first probe to its last connection; raises SpecswitchError at a failure.

    `load` reads the configuration again at a reload; None: it cannot be. `wall` tells the time of
    day, for people, in nanoseconds since 1970.

    A background task that dies takes the whole with it: a proxy that no longer probes must not look
    alive.
    """
    app = App(config, clock=clock, wall=wall, log=log, load=load)
    async with AsyncExitStack() as ends:
        await _listen(app)
        admin = app.admin()
        ends.push_async_callback(admin.close)
        ends.push_async_callback(app.desk.close)
        ends.callback(_close, app)
        await _start(app, admin)
        app.start()
        ends.push_async_callback(_end, app)
        yield app
        app.ending = True
    if app.failure is not None:
        raise app.failure


def _unfinished(count: int) -> str:
    return "1 unfinished answer" if count == 1 else f"{count} unfinished answers"


async def _listen(app: App) -> None:
    listen = app.config.listen
    try:
        await app.listener.listen(listen.host, listen.port)
    except OSError as error:
        # The loop's own words repeat the address, and end with what is wrong with it.
        why = (error.strerror or str(error)).rpartition(": ")[2].lower()
        raise SpecswitchError(
            f"cannot listen on {listen.host} port {listen.port}: {why}; --port takes another"
        ) from error
    app.port = app.listener.port


def _close(app: App) -> None:
    """Take nothing more, and let go of everybody; who was still being answered is cut."""
    app.ending = True
    app.listener.close()
    app.dispatcher.stop()
    for client in tuple(app.front.connections):
        client.close()
    for pool in app.links.pools:
        pool.close()


async def _end(app: App) -> None:
    tasks = tuple(app.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _start(app: App, admin: AdminServer) -> None:
    try:
        task = await admin.start()
    except ConfigError as error:
        # Nothing is wrong with how it is configured: somebody else is there.
        _, what = error.findings[0]
        why = what.partition(" (while ")[0]
        raise SpecswitchError(f"cannot open the admin listener: {why}") from error
    task.add_done_callback(app.background_ended)
    app.admin_port = admin.port
