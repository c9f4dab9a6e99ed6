"""Whether the servers are still as fast as they were when they were calibrated.

Watches what passes by anyway: the time per output token of each answer that tells its usage, beside
what the curve says for as much as was in flight meanwhile. Only while the other server was idle,
since two on one GPU slow each other down. And at most ten of them a second: the mean of the lot is
theirs as well, and a logarithm for each of a thousand a second tells no more.
"""

from collections.abc import Mapping
from math import exp, inf, log
from typing import Final

from proxy.core.curves import Curve
from proxy.core.lengths import RunningMean
from proxy.core.words import UpstreamName

_MEMORY: Final = 500
"""Answers of one bucket over which it forgets."""

_ENOUGH: Final = 20
"""Answers of one bucket before it says anything: acceptance differs by a quarter from answer to
answer, so the mean of so many is within 6 %."""

_LONGEST: Final = 20.0
"""A single answer counts as at most so many times slower or faster: a pause is no drift."""


_PAUSE_SECONDS: Final = 0.1
"""Between two answers that are looked at. Enough are then seen within two seconds, and 500 answers
are a minute or more."""


class Drift:
    """How far one server is from its curve.

    Bucket i holds answers with 2^i up to 2^(i+1) in flight.
    """

    __slots__ = ("_buckets", "_curve", "_looks_at")

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._buckets: dict[int, RunningMean] = {}
        self._looks_at = -inf

    def looks(self, now: float) -> bool:
        """Whether an answer that ends at `now` is one to look at; the next ones are not."""
        if now < self._looks_at:
            return False
        self._looks_at = now + _PAUSE_SECONDS
        return True

    def add(self, seconds_per_token: float, in_flight: float) -> None:
        """An answer took `seconds_per_token` with `in_flight` sequences there on average."""
        bucket = max(0, int(in_flight).bit_length() - 1)
        mean = self._buckets.setdefault(bucket, RunningMean(_MEMORY))
        ratio = seconds_per_token / self._curve.seconds_per_token(max(1.0, in_flight))
        mean.add(log(min(max(ratio, 1.0 / _LONGEST), _LONGEST)))

    @property
    def ratio(self) -> float | None:
        """Time per token now over time per token then, of the bucket that is farthest from 1.

        None before enough was seen. A mean over the buckets would hide a curve that has turned:
        slower with many in flight, and faster alone.
        """
        told = [mean.value for mean in self._buckets.values() if mean.count >= _ENOUGH]
        return exp(max(told, key=abs)) if told else None


def drifts(curves: Mapping[UpstreamName, Curve]) -> dict[UpstreamName, Drift]:
    """A watch for each server whose curve is known."""
    return {name: Drift(curve) for name, curve in curves.items()}
