"""The root: builds everything from a Config, and owns every lifetime.

Nothing else starts a task, opens a listener or reads a clock. What is started here is ended here,
in the reverse order, whatever happens in between.
"""

import asyncio
import gc
import logging
import secrets
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from proxy import __version__
from proxy.config import Config, Upstream
from proxy.control.admin import AdminServer, build_admin
from proxy.control.engine import Findings, connect
from proxy.control.log import BufferedLog, LogObserver
from proxy.control.metrics import Metrics, Sources
from proxy.control.prober import Prober, ProbeRules
from proxy.control.state import Facts, Pair
from proxy.core.dispatch import Dispatcher, Settings
from proxy.core.eligibility import Rule, Rules, Verdict
from proxy.core.health import HealthRules
from proxy.core.http import RequestIds
from proxy.core.keys import Keyring
from proxy.core.modes import Switch, Thresholds
from proxy.core.observer import Observer, Record
from proxy.core.words import EjectionCause, Health, RetryCause, UpstreamName
from proxy.data.downstream import ClientConnection
from proxy.data.front import EngineSide, Front
from proxy.data.settings import Limits, Timeouts
from proxy.data.upstream import Pool
from proxy.errors import SpecswitchError

_log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
"""How often time itself is looked at: four times in the second that the contract gives it."""

_BACKLOG: Final = 4096
"""Connections that the kernel holds for us; a burst of clients should wait, not be refused."""


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.started()

    def decided(self, upstream: UpstreamName, reason: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.decided(upstream, reason)

    def retried(self, cause: RetryCause) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.retried(cause)

    def ended(self, record: Record) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.ended(record)

    def switched(self, switch: Switch) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.switched(switch)

    def wanted(self, switch: Switch) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.wanted(switch)

    def health_changed(
        self, upstream: UpstreamName, health: Health, cause: EjectionCause | None, detail: str
    ) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.health_changed(upstream, health, cause, detail)


def settings_of(config: Config) -> Settings:
    """The pair's settings."""
    policy, health, limits = config.policy, config.health, config.limits
    caps = {
        name: None if upstream.max_in_flight == "auto" else upstream.max_in_flight
        for name, upstream in (("spec", config.upstreams.spec), ("base", config.upstreams.base))
    }
    return Settings(
        thresholds=Thresholds(
            crossover=policy.crossover or None,
            gate_factor=policy.gate_factor,
            count_window=policy.count_window,
            return_dwell=policy.return_dwell,
            flap_limit=policy.flap_limit,
            flap_window=policy.flap_window,
            flap_hold=policy.flap_hold,
        ),
        health=HealthRules(
            fall=health.fall,
            rise=health.rise,
            passive_failures=health.passive_failures,
            ejection=health.ejection,
        ),
        rules=_rules_of(config),
        spec_cap=caps["spec"],
        base_cap=caps["base"],
        max_in_flight=limits.max_in_flight,
        queue_size=limits.queue_size,
        queue_timeout=limits.queue_timeout,
        wait_for_upstream=config.timeouts.wait_for_upstream,
    )


def _rules_of(config: Config) -> Rules:
    section = config.eligibility
    bounds = {Rule.SHORT_OUTPUT_TOKENS, Rule.MAX_SPEC_PROMPT_TOKENS}
    verdicts = {rule: Verdict(getattr(section, rule)) for rule in Rule if rule not in bounds}
    return Rules(verdicts, section.short_output_tokens, section.max_spec_prompt_tokens)


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
        self.dispatcher = Dispatcher(settings_of(config), self._observer, now=now)
        self.dispatcher.set_control(config.policy.control, by="configuration", now=now)
        self.pools = {
            UpstreamName.SPEC: self._pool(UpstreamName.SPEC, config.upstreams.spec),
            UpstreamName.BASE: self._pool(UpstreamName.BASE, config.upstreams.base),
        }
        self.front = self._front()
        self.probers = {
            UpstreamName.SPEC: self._prober(UpstreamName.SPEC, config.upstreams.spec),
            UpstreamName.BASE: self._prober(UpstreamName.BASE, config.upstreams.base),
        }
        self.metrics.watch(self.dispatcher, self._sources(log), clock=clock)
        self.port = 0
        self.admin_port = 0
        self.failure: BaseException | None = None
        """What a background task died of."""
        self._stopping = asyncio.Event()
        self._cutting = asyncio.Event()

    @property
    def url(self) -> str:
        """Where the endpoint can be reached from this machine."""
        return f"http://{_reachable(self.config.listen.host)}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where the admin listener can be reached from this machine."""
        return f"http://{_reachable(self.config.listen.admin_host)}:{self.admin_port}"

    def background_ended(self, task: asyncio.Task[None]) -> None:
        """Called when a background task ends, which only our own stopping should make it do."""
        if not task.cancelled():
            self.failure = task.exception()
            _log.critical("a background task died; stopping", exc_info=self.failure)
            self._stopping.set()
            self._cutting.set()

    def stop(self) -> None:
        """Drain, and cut when told again."""
        if self._stopping.is_set():
            self._cutting.set()
        self._stopping.set()

    async def until_stopped(self) -> int:
        """Run until told to stop, then drain; the exit code: 0 if nothing was cut."""
        await self._stopping.wait()
        self.dispatcher.drain()
        deadline = self.clock() + self.config.timeouts.drain
        _log.info("draining: %d requests are open", self.front.open_requests)
        while self.front.open_requests and self.clock() < deadline:
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._cutting.wait()
                break
            except TimeoutError:
                continue
        cut = self.front.open_requests
        if cut:
            _log.warning("cut %d requests that had not ended", cut)
        return 1 if cut else 0

    def _pool(self, name: UpstreamName, upstream: Upstream) -> Pool:
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
        limits, timeouts = config.limits, config.timeouts
        keys = {name: key.get_secret_value() for name, key in config.auth.api_keys.items()}
        return Front(
            dispatcher=self.dispatcher,
            observer=self._observer,
            engines={
                UpstreamName.SPEC: self._side(UpstreamName.SPEC, config.upstreams.spec),
                UpstreamName.BASE: self._side(UpstreamName.BASE, config.upstreams.base),
            },
            limits=Limits(
                max_connections=limits.max_connections,
                max_header_bytes=limits.max_header_bytes,
                max_body_bytes=limits.max_body_bytes,
                max_buffered_bytes=limits.max_buffered_bytes,
                max_peek_bytes=limits.max_peek_bytes,
            ),
            timeouts=Timeouts(
                header=limits.header_timeout,
                body=limits.body_timeout,
                client_write=limits.client_write,
                client_keep_alive=timeouts.client_keep_alive,
                connect=timeouts.connect,
                first_byte=timeouts.first_byte,
                between_chunks=timeouts.between_chunks,
                response=timeouts.response,
                idle_connection=timeouts.idle_connection,
            ),
            keyring=Keyring(keys),
            allow_override=config.policy.allow_override,
            ids=RequestIds(secrets.token_hex(8)),
            clock=self.clock,
        )

    def _side(self, name: UpstreamName, upstream: Upstream) -> EngineSide:
        host = str(upstream.url).partition("://")[2]
        key = upstream.api_key.get_secret_value()
        lines = [f"host: {host}".encode()]
        if key:
            lines.append(f"authorization: Bearer {key}".encode())
        return EngineSide(self.pools[name], tuple(lines), has_key=bool(key))

    def _prober(self, name: UpstreamName, upstream: Upstream) -> Prober:
        health = self.config.health
        client = connect(
            str(upstream.url),
            api_key=upstream.api_key.get_secret_value() or None,
            ca_file=upstream.ca_file,
            timeout=health.timeout,
        )
        rules = ProbeRules(path=health.path, interval=health.interval, timeout=health.timeout)
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
        listen, upstreams = self.config.listen, self.config.upstreams
        facts = Facts(
            urls={
                UpstreamName.SPEC: str(upstreams.spec.url),
                UpstreamName.BASE: str(upstreams.base.url),
            },
            version=__version__,
            started=_wall(),
        )
        pair = Pair(self.dispatcher, facts, self._findings, clock=self.clock, wall=_wall)
        application = build_admin(
            pair,
            self.metrics,
            token=self.config.auth.admin_token.get_secret_value() or None,
            known_hosts=(listen.admin_host, *listen.admin_hosts),
        )
        return AdminServer(application, listen.admin_host, listen.admin_port)

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
    loop = asyncio.get_running_loop()
    app = App(config, clock=clock, log=log)
    server = await _listen(app)
    admin = app.admin()
    tasks: list[asyncio.Task[None]] = []
    try:
        await admin.start()
        app.admin_port = admin.port
        for background in (*(prober.run() for prober in app.probers.values()), app.tick()):
            task = loop.create_task(background)
            task.add_done_callback(app.background_ended)
            tasks.append(task)
        yield app
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()
        for client in tuple(app.front.connections):
            client.cut()
        for pool in app.pools.values():
            pool.close()
        await admin.close()
        await server.wait_closed()
    if app.failure is not None:
        raise app.failure


async def serve(config: Config, log: BufferedLog) -> int:
    """Serve until a signal says stop; the exit code."""
    async with running(config, log=log) as app:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, app.stop)
        _announce(app)
        # What is there now is there to stay; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 50, 100)
        return await app.until_stopped()


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
        raise SpecswitchError(
            f"cannot listen on {listen.host} port {listen.port}: {error.strerror}"
        ) from error
    app.port = server.sockets[0].getsockname()[1]
    return server


def _wall() -> datetime:
    """The time of day: for people, never for durations."""
    return datetime.now(UTC)


def _reachable(host: str) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - it is told apart, not listened on
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
