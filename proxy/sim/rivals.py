"""The simple policies that ours is compared with: each decides by what is in flight, or not at all.

They are what is found in gateways and in papers; none is built into the proxy. All count the
sequences in flight with the arriving one among them.
"""

from collections.abc import Callable

from proxy.core.words import UpstreamName
from proxy.sim.run import Change, Submit

SPEC, BASE = UpstreamName.SPEC, UpstreamName.BASE

Rule = Callable[[int, int, UpstreamName], UpstreamName]
"""Where a request goes, by the sequences on spec and on base before it and where the last went."""


def always(name: UpstreamName) -> Rule:
    """All requests to one engine."""
    return lambda _spec, _base, _last: name


def static(threshold: float) -> Rule:
    """Spec while at most so many are in flight on both engines together."""
    return lambda spec, base, _last: SPEC if spec + base + 1 <= threshold else BASE


def spill(threshold: float) -> Rule:
    """Spec has so many places of its own, and what finds none goes to base."""
    return lambda spec, _base, _last: SPEC if spec + 1 <= threshold else BASE


def hysteresis(threshold: float, back: float) -> Rule:
    """Leave spec above `threshold`, return at `back` or one sequence."""

    def rule(spec: int, base: int, last: UpstreamName) -> UpstreamName:
        bound = threshold if last is SPEC else min(threshold, max(1.0, back))
        return SPEC if spec + base + 1 <= bound else BASE

    return rule


class Rival:
    """A rule at work."""

    ticks = False

    def __init__(self, rule: Rule, submit: Submit) -> None:
        self.changes: list[Change] = []
        self._rule = rule
        self._submit = submit
        self._counts = {SPEC: 0, BASE: 0}
        self._where: dict[int, UpstreamName] = {}
        self._last = rule(0, 0, SPEC)

    def arrive(self, key: int, now: float) -> None:
        """Ask the rule."""
        name = self._rule(self._counts[SPEC], self._counts[BASE], self._last)
        if name is not self._last:
            self.changes.append(Change(now, name))
        self._last = name
        self._where[key] = name
        self._counts[name] += 1
        self._submit(key, name)

    def end(self, key: int, output_tokens: int, now: float) -> None:  # noqa: ARG002 - as all routers
        """Count one less."""
        self._counts[self._where.pop(key)] -= 1

    def tick(self, now: float) -> None:
        """Time alone changes nothing."""
