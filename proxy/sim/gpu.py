"""Two engines on one simulated GPU, in virtual time: sequences in, tokens out.

While both engines run a step, each is slowed as `physics.speed` says; when one starts or ends, what
is left of the other's step is timed anew. There is no I/O and no clock here: `now` is virtual
seconds, passed in, and what happened comes out of `advance` in the order in which it did. So the
same engines serve HTTP in real time (`server.py`) and a simulation in none.
"""

from collections.abc import Mapping
from math import inf
from random import Random

from proxy.core.words import UpstreamName
from proxy.sim.engine import DEFAULT_LIMITS, Engine, Happening, Limits, Load, Refused, Sequence
from proxy.sim.physics import Profile, kappa, speed


class Gpu:
    """The GPU and its two engines.

    A caller submits and cancels at `now`, calls `advance(now)` for what happened up to then, and
    comes back at `next_event()`. Time never goes back.
    """

    def __init__(
        self,
        profile: Profile,
        limits: Mapping[UpstreamName, Limits] = DEFAULT_LIMITS,
        *,
        contention: float,
        random: Random,
        now: float = 0.0,
    ) -> None:
        """Raises ValueError for an impossible `contention` (see `physics.kappa`)."""
        self._kappa = kappa(contention)
        self._clock = now
        self._happened: list[Happening] = []
        self._engines = {
            name: Engine(name, profile, limits[name], random, started=now) for name in UpstreamName
        }

    def submit(self, engine: UpstreamName, sequence: Sequence, now: float) -> None:
        """Queue a sequence; a full queue shows as `Refused`. Those of one instant start together.

        Raises:
            ValueError: time goes back, the key is in use on this engine, there is nothing to
                generate, or the sequence is larger than the whole KV cache.
        """
        self._run_to(now)
        if not self._engines[engine].submit(sequence):
            self._happened.append(Refused(self._clock, engine, sequence.key))

    def cancel(self, engine: UpstreamName, key: int, now: float) -> bool:
        """Abort a sequence: nothing more happens to it; False if it had ended before.

        Its place is free at once. A step that has begun with it keeps its length: the batch is on
        the GPU. What happened to it before is still told.
        """
        self._run_to(now)
        return self._engines[engine].cancel(key)

    def reset(self, engine: UpstreamName, now: float) -> None:
        """The engine dies and is back at once, empty; nothing more happens to its sequences."""
        self._run_to(now)
        self._engines[engine] = self._engines[engine].reborn(self._clock)
        self._retime()

    def advance(self, now: float) -> list[Happening]:
        """What has happened up to and including `now` and was not told yet, in order.

        Raises:
            ValueError: time goes back.
        """
        self._run_to(now, settle=True)
        happened, self._happened = self._happened, []
        return happened

    def next_event(self) -> float | None:
        """When `advance` will next have something to do; None while both engines are idle."""
        if self._happened or any(e.step is None and e.has_work for e in self._engines.values()):
            return self._clock
        due, _ = self._next_end()
        return None if due == inf else due

    def load(self, engine: UpstreamName) -> Load:
        """The engine as of the last call that had a `now`."""
        return self._engines[engine].load()

    def _run_to(self, now: float, *, settle: bool = False) -> None:
        """Let time pass; at the present instant itself only `advance` settles what is to start."""
        if now < self._clock:
            raise ValueError(f"time goes back from {self._clock} to {now}")
        while settle or now > self._clock:
            self._start()
            due, engine = self._next_end()
            if engine is None or engine.step is None or due > now:
                self._pass(now)
                return
            self._pass(due)
            self._happened += engine.finish(engine.step, due)

    def _start(self) -> None:
        for engine in self._engines.values():
            if engine.step is None and engine.has_work:
                self._happened += engine.start(self._clock)
        self._retime()

    def _retime(self) -> None:
        """Set how fast each step under way goes, now that one has begun or ended."""
        steps = {name: engine.step for name, engine in self._engines.items()}
        for name, step in steps.items():
            if step is not None:
                other = steps[name.other]
                step.speed = speed(step.work, None if other is None else other.work, self._kappa)

    def _next_end(self) -> tuple[float, Engine | None]:
        """When the next step ends and whose it is."""
        due, first = inf, None
        for engine in self._engines.values():
            if engine.step is not None:
                at = self._clock + engine.step.left / engine.step.speed
                if at < due:
                    due, first = at, engine
        return due, first

    def _pass(self, to: float) -> None:
        """Move the clock; both engines work meanwhile."""
        for engine in self._engines.values():
            if engine.step is not None:
                done = (to - self._clock) * engine.step.speed
                engine.step.left = max(0.0, engine.step.left - done)
        self._clock = to
