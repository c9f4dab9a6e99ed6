"""The root: builds everything from a Config, and owns every lifetime.

What is started here is ended here, in the reverse order, whatever happens in between. Two things
have lifetimes of their own below: a connection in the making (data/upstream) and the thread that
writes the log (control/log).
"""

import asyncio
import gc
import logging
import secrets
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from proxy import __version__, wiring
from proxy.config import Config
from proxy.control.admin import AdminServer, build_admin
from proxy.control.engine import Findings, connect
from proxy.control.log import BufferedLog, LogObserver
from proxy.control.metrics import Metrics, Sources
from proxy.control.observers import Observers
from proxy.control.prober import Prober
from proxy.control.state import Facts, Pair
from proxy.core.dispatch import Dispatcher
from proxy.core.http import RequestIds
from proxy.core.words import UpstreamName
from proxy.data.downstream import ClientConnection
from proxy.data.front import EngineSide, Front
from proxy.data.upstream import Pool
from proxy.errors import ConfigError, SpecswitchError

_log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
"""How often time itself is looked at: four times in the second that the contract gives it."""

_BACKLOG: Final = 4096
"""Connections that the kernel holds for us; a burst of clients should wait, not be refused."""


class App:
    """specswitch, built and not yet running; `running` gives it its lifetime."""

    def __init__(
        self, config: Config, *, clock: Callable[[], float], log: BufferedLog | None
    ) -> None:
        now = clock()
        self.config = config
        self.clock = clock
        self.metrics = Metrics(__version__)
        self._observer = Observers(self.metrics, LogObserver())
        self.dispatcher = Dispatcher(wiring.settings_of(config), self._observer, now=now)
        self.dispatcher.set_control(config.policy.control, by="configuration", now=now)
        self.pools = {name: self._pool(name) for name in UpstreamName}
        self.front = self._front()
        self.probers = {name: self._prober(name) for name in UpstreamName}
        self.metrics.watch(self.dispatcher, self._sources(log), clock=clock)
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
        return wiring.address(self.config.listen.host, self.port)

    @property
    def admin_url(self) -> str:
        """Where the admin listener can be reached from this machine."""
        return wiring.address(self.config.listen.admin_host, self.admin_port)

    def background_ended(self, task: asyncio.Task[None]) -> None:
        """Called when a background task ends, which only our own stopping should make it do."""
        if self.ending or task.cancelled() or self.failure is not None:
            return
        cause = task.exception()
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
        cut = self.front.unfinished
        if cut:
            _log.warning("cut %s", _unfinished(cut))
        return 1 if cut else 0

    def _pool(self, name: UpstreamName) -> Pool:
        upstream = wiring.upstream_of(self.config, name)
        tls = None
        if upstream.url.secure:
            tls = ssl.create_default_context(cafile=upstream.ca_file)
        return Pool(
            name,
            upstream.url.host,
            upstream.url.port,
            tls=tls,
            idle_seconds=self.config.timeouts.idle_connection,
            clock=self.clock,
        )

    def _front(self) -> Front:
        config = self.config
        return Front(
            dispatcher=self.dispatcher,
            observer=self._observer,
            engines={name: self._side(name) for name in UpstreamName},
            limits=wiring.limits_of(config),
            timeouts=wiring.timeouts_of(config),
            keyring=wiring.keyring_of(config),
            allow_override=config.policy.allow_override,
            # No other process gives the same: each starts its ids with a number of its own.
            ids=RequestIds(secrets.token_hex(8)),
            clock=self.clock,
        )

    def _side(self, name: UpstreamName) -> EngineSide:
        upstream = wiring.upstream_of(self.config, name)
        has_key = wiring.key_of(upstream) is not None
        return EngineSide(self.pools[name], wiring.lines_of(upstream), has_key=has_key)

    def _prober(self, name: UpstreamName) -> Prober:
        upstream = wiring.upstream_of(self.config, name)
        rules = wiring.probes_of(self.config)
        client = connect(
            str(upstream.url),
            api_key=wiring.key_of(upstream),
            ca_file=upstream.ca_file,
            timeout=rules.timeout,
        )
        return Prober(name, client, self.dispatcher, rules, clock=self.clock)

    def _sources(self, log: BufferedLog | None) -> Sources:
        def connections(name: UpstreamName) -> tuple[int, int]:
            return self.pools[name].active, self.pools[name].idle

        return Sources(
            open_requests=lambda: self.front.open_requests,
            connections=connections,
            findings=self._findings,
            dropped_lines=lambda: 0 if log is None else log.dropped,
        )

    @property
    def _findings(self) -> dict[UpstreamName, Findings]:
        return {name: prober.findings for name, prober in self.probers.items()}

    def admin(self) -> AdminServer:
        """The admin listener, not yet listening."""
        config = self.config
        urls = {name: str(wiring.upstream_of(config, name).url) for name in UpstreamName}
        facts = Facts(urls=urls, version=__version__, started=_wall())
        pair = Pair(self.dispatcher, facts, self._findings, clock=self.clock, wall=_wall)
        application = build_admin(
            pair,
            self.metrics,
            token=config.auth.admin_token.get_secret_value() or None,
            known_hosts=wiring.known_hosts_of(config),
        )
        return AdminServer(application, config.listen.admin_host, config.listen.admin_port)

    async def tick(self) -> None:
        """Let time pass in the pair and the pools, for ever; and see how late the loop is."""
        while True:
            due = self.clock() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            now = self.clock()
            self.metrics.lagged(max(0.0, now - due))
            self.dispatcher.tick(now)
            for pool in self.pools.values():
                pool.sweep(now)


@asynccontextmanager
async def running(
    config: Config,
    *,
    clock: Callable[[], float] = time.monotonic,
    log: BufferedLog | None = None,
) -> AsyncIterator[App]:
    """The whole, from its first probe to its last connection; raises SpecswitchError at a failure.

    A background task that dies takes the whole with it: a proxy that no longer probes must not look
    alive.
    """
    app = App(config, clock=clock, log=log)
    async with AsyncExitStack() as ends:
        server = await _listen(app)
        ends.push_async_callback(server.wait_closed)
        admin = app.admin()
        ends.push_async_callback(admin.close)
        ends.callback(_close, app, server)
        await _start(app, admin)
        ends.push_async_callback(_end, _background(app))
        yield app
        app.ending = True
    if app.failure is not None:
        raise app.failure


async def serve(config: Config, log: BufferedLog) -> int:
    """Serve until a signal says stop; the exit code. What ends it early is said in the log."""
    try:
        async with running(config, log=log) as app:
            call_on_signals(app.stop)
            _announce(app)
            # What is there now is there to stay; the collector need not look at it again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 50, 100)
            return await app.until_stopped()
    except SpecswitchError as error:
        _log.critical("ended: %s", error)
        return 1


def call_on_signals(call: Callable[[], object]) -> None:
    """SIGTERM and SIGINT call `call`, from now until the loop ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, call)


def _unfinished(count: int) -> str:
    return "1 unfinished answer" if count == 1 else f"{count} unfinished answers"


def _announce(app: App) -> None:
    upstreams = app.config.upstreams
    _log.info("specswitch %s serves at %s, admin at %s", __version__, app.url, app.admin_url)
    _log.info("spec is %s, base is %s", upstreams.spec.url, upstreams.base.url)
    if not app.config.policy.crossover:
        _log.warning(
            "policy.crossover is not set: nothing says when speculation pays, so all goes to base"
        )


async def _listen(app: App) -> asyncio.Server:
    listen = app.config.listen
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(app.front), listen.host, listen.port, backlog=_BACKLOG
        )
    except OSError as error:
        # The loop's own words repeat the address, and end with what is wrong with it.
        why = (error.strerror or str(error)).rpartition(": ")[2].lower()
        raise SpecswitchError(
            f"cannot listen on {listen.host} port {listen.port}: {why}"
        ) from error
    app.port = server.sockets[0].getsockname()[1]
    return server


def _close(app: App, server: asyncio.Server) -> None:
    """Take nothing more, and let go of everybody; who was still being answered is cut."""
    app.ending = True
    server.close()
    for client in tuple(app.front.connections):
        client.close()
    for pool in app.pools.values():
        pool.close()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
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


def _background(app: App) -> list[asyncio.Task[None]]:
    """Start what runs beside the requests."""
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(prober.run(), name=f"the prober of {name}")
        for name, prober in app.probers.items()
    ]
    tasks.append(loop.create_task(app.tick(), name="the ticker"))
    for task in tasks:
        task.add_done_callback(app.background_ended)
    return tasks


def _wall() -> datetime:
    """The time of day: for people, never for durations."""
    return datetime.now(UTC)
