"""Asks an upstream again and again whether it is well, what it is and how busy it is.

One prober for each upstream, one question at a time. It tells the dispatcher what it heard and
decides nothing itself. What a probe asks never makes the engine generate a token.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx2

from proxy.control.counters import Counters
from proxy.control.engine import (
    Findings,
    Load,
    Reading,
    check_ready,
    read_counters,
    read_identity,
    read_load,
)
from proxy.core.dispatch import Dispatcher
from proxy.core.identity import Identity
from proxy.core.signals import EngineSignals, Lately, Totals
from proxy.core.words import AdminState, Health, UpstreamName
from proxy.errors import EngineError, EngineSilentError, EngineUnaskedError

T = TypeVar("T")
_log = logging.getLogger(__name__)

_MISSED_READINGS = 3
"""After as many intervals without a new one a load says nothing any more; as `fall` for health."""

_ROUNDS_PER_METRICS = 5
"""A page of metrics takes SGLang's event loop 10 ms (75 kB, idle, on a slow core), and what is read
of it is means that move slowly."""

_LATELY_SECONDS = 10.0
"""Over which the acceptance length is taken: prompts differ, so it needs several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRules:
    """Seconds; `timeout` is for each question in full, however its answer dribbles."""

    path: str
    interval: float
    timeout: float


class _Account:
    """What one server has counted, from one time that it was asked who it is to the next."""

    def __init__(self) -> None:
        self.has_metrics = True
        self._ended: Totals | None = None
        self._decoded = Lately(_LATELY_SECONDS)
        self._verified = Lately(_LATELY_SECONDS * _ROUNDS_PER_METRICS)
        self._says_decoded = False
        self._stamp: float | None = None

    def take_load(self, load: Load, now: float) -> bool:
        """Whether the server wrote it after the one before: one account is not two."""
        if load.timestamp is not None and load.timestamp == self._stamp:
            return False
        self._stamp = load.timestamp
        self._decoded.read(load.decoded, now)
        self._says_decoded = self._says_decoded or load.decoded is not None
        return True

    def take_counters(self, counters: Counters | None, now: float) -> Totals | None:
        """What ended since the last time, where that can be told; None for no metrics."""
        self._verified.read(None if counters is None else counters.verified, now)
        if counters is None:
            self.has_metrics = False
            return None
        counted = None if self._ended is None else counters.ended.since(self._ended)
        self._ended = counters.ended
        return counted if counted is not None and counted.times >= 1 else None

    def lose_counters(self) -> None:
        """They could not be read, so what is known of them grows old."""
        self._verified.forget()

    def acceptance_length(self) -> float | None:
        """By its load, which counts each round at once; else by its metrics, at an end."""
        return (self._decoded if self._says_decoded else self._verified).acceptance_length()


class Prober:
    """Probes one upstream; closes `client` when it ends."""

    def __init__(
        self,
        name: UpstreamName,
        client: httpx2.AsyncClient,
        dispatcher: Dispatcher,
        rules: ProbeRules,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.findings = Findings()
        self._client = client
        self._dispatcher = dispatcher
        self._rules = rules
        self._clock = clock
        self._sleep = sleep
        self._warned = False
        """Whether it has been said that this server does not say what it is."""
        self._account = _Account()
        self._rounds = 0

    def set_to(self, rules: ProbeRules) -> None:
        """Go by `rules` from the next probe on."""
        self._rules = rules
        self._client.timeout = httpx2.Timeout(rules.timeout)

    async def run(self) -> None:
        """Probe for ever, every `interval`, counted from start to start; the first at once."""
        async with self._client:
            while True:
                started = self._clock()
                try:
                    await self._round()
                except Exception:  # noqa: BLE001 - the one place for what nobody foresaw: go on
                    _log.exception("the probe of %s failed within specswitch", self.name)
                    self._failed("its probe failed within specswitch; the log has a traceback")
                await self._sleep(max(0.0, started + self._rules.interval - self._clock()))

    async def _round(self) -> None:
        upstream = self._dispatcher.upstream(self.name)
        if upstream.admin_state is AdminState.MAINT:
            self.findings.fault = None
            return
        await self._probe()
        if upstream.health.state is not Health.EJECTED:
            await self._read_load()
            await self._read_counters()

    async def _probe(self) -> None:
        identity = None
        asked_at = self._clock()
        try:
            await self._in_time(check_ready(self._client, self._rules.path))
            upstream = self._dispatcher.upstream(self.name)
            doubts = upstream.doubts  # what is doubted while it answers, it may not know yet
            if upstream.wants_identity:
                identity = await self._in_time(read_identity(self._client))
                self._account = _Account()
                self._rounds = 0
        except EngineUnaskedError as exc:
            self._note(str(exc))  # says nothing of the server
            return
        except EngineError as exc:
            silent = isinstance(exc, EngineSilentError)
            self._failed(str(exc), unanswered_since=asked_at if silent else None)
            return
        self.findings.fault = None
        if identity is not None:
            self._warn_of(identity)
        self._dispatcher.probe_succeeded(self.name, identity, self._clock(), settles=doubts)

    async def _read_load(self) -> None:
        try:
            load = await self._in_time(read_load(self._client))
        except EngineError as exc:
            # The last reading stays and goes stale; health is not judged by it.
            _log.debug("no load of %s: %s", self.name, exc)
            return
        now = self._clock()
        self.findings.reading = Reading(load, now, _MISSED_READINGS * self._rules.interval)
        if load.timestamp is not None:
            self._dispatcher.load_read(self.name, load.timestamp, now)
        if self._account.take_load(load, now):
            self._tell_signals(load, now)

    def _tell_signals(self, load: Load, now: float) -> None:
        speculates = self.name is UpstreamName.SPEC
        signals = EngineSignals(
            waiting=load.waiting,
            token_usage=load.token_usage,
            acceptance_length=self._account.acceptance_length() if speculates else None,
            at=now,
            age_seconds=load.age_seconds or 0.0,
            stale_after=_MISSED_READINGS * self._rules.interval,
        )
        self.findings.signals = signals
        self._dispatcher.signals_read(self.name, signals, now)

    async def _read_counters(self) -> None:
        """Read the metrics page now and then; a server without one is not asked again."""
        due = self._rounds % _ROUNDS_PER_METRICS == 0
        self._rounds += 1
        if not due or not self._account.has_metrics:
            return
        try:
            # Not worth a late probe.
            async with asyncio.timeout(self._rules.interval):
                counters = await self._in_time(read_counters(self._client))
        except (EngineError, TimeoutError) as exc:
            _log.debug("no counters of %s: %r", self.name, exc)
            self._account.lose_counters()
            return
        ended = self._account.take_counters(counters, self._clock())
        if ended is not None:
            self._dispatcher.lengths_read(ended.tokens, int(ended.times))

    async def _in_time(self, answer: Awaitable[T]) -> T:
        timeout = self._rules.timeout
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as exc:
            raise EngineSilentError(
                f"{self.name} did not answer its probe within {timeout:g} s"
            ) from exc

    def _failed(self, detail: str, *, unanswered_since: float | None = None) -> None:
        self._note(detail)
        self._dispatcher.probe_failed(
            self.name, detail, self._clock(), unanswered_since=unanswered_since
        )

    def _note(self, detail: str) -> None:
        # Said once for each new fault: a server that never was there is ejected by no probe, and
        # one that stays away need not fill the log.
        if detail != self.findings.fault:
            _log.warning("probe of %s failed: %s", self.name, detail)
        self.findings.fault = detail

    def _warn_of(self, identity: Identity) -> None:
        if not identity.known and not self._warned:
            _log.warning(
                "%s has no /server_info: it is trusted to be what the configuration says, "
                "and has no cap unless max_in_flight gives one",
                self.name,
            )
        self._warned = not identity.known
