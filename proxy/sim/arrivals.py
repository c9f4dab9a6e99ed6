"""When requests come: streams of arrival times, in seconds from 0, each with no end.

All have a mean rate of `rate` requests per second and take every random number from the `Random`
that they are given. Those with a period begin with a whole one.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from math import pi, sin
from random import Random
from typing import Final

Arrivals = Callable[[float, Random], Iterator[float]]
"""From a mean rate and a source of chance to the times."""

BURST_PHASES: Final = ((20.0, 3.0), (60.0, 1.0 / 3.0))
"""(mean seconds, times the mean rate): three times for 20 s, a third of it for 60 s."""

RARE_BURST_SECONDS: Final = 20.0
RARE_BURST_PERIOD: Final = 300.0
_RARE_BURST_FACTOR: Final = 12.0
"""Twelve times the rate between bursts, for 20 s in each 5 min."""

SQUARE_PERIOD: Final = 240.0
_SQUARE_FACTOR: Final = 7.0
"""Half a period of night, then half of day at seven times the rate of the night."""

DIURNAL_PERIOD: Final = 600.0
_DIURNAL_AMPLITUDE: Final = 0.9
"""From 0.1 to 1.9 times the mean rate and back."""

_BURST_SHARE: Final = 0.2
_REQUESTS_IN_BURST: Final = 133.0
"""A train of so many requests on average comes in a fifth of the time, then nothing comes: gaps
have a coefficient of variation of 13 and the trains look like those of the code trace of 2023 in
the Azure public dataset (13.15 there)."""


def poisson(rate: float, random: Random) -> Iterator[float]:
    """Independent of one another."""
    now = 0.0
    while True:
        now += random.expovariate(rate)
        yield now


def bursts(rate: float, random: Random) -> Iterator[float]:
    """A Poisson process whose rate changes at random between two levels (MMPP)."""
    now = 0.0
    for mean_seconds, factor in cycle(reversed(BURST_PHASES)):
        until = now + random.expovariate(1.0 / mean_seconds)
        yield from _between(now, until, rate * factor, random)
        now = until


def rare_bursts(rate: float, random: Random) -> Iterator[float]:
    """Short bursts at set times, at the end of each period."""
    quiet_seconds = RARE_BURST_PERIOD - RARE_BURST_SECONDS
    quiet = rate / _mean((quiet_seconds, 1.0), (RARE_BURST_SECONDS, _RARE_BURST_FACTOR))
    levels = ((quiet_seconds, quiet), (RARE_BURST_SECONDS, quiet * _RARE_BURST_FACTOR))
    return _levels(levels, random)


def square(rate: float, random: Random) -> Iterator[float]:
    """Night and day by the switch of a light."""
    half = SQUARE_PERIOD / 2.0
    night = rate / _mean((half, 1.0), (half, _SQUARE_FACTOR))
    return _levels(((half, night), (half, night * _SQUARE_FACTOR)), random)


def diurnal(rate: float, random: Random) -> Iterator[float]:
    """Night and day as a sine; it begins at the mean, on its way up."""
    most = 1.0 + _DIURNAL_AMPLITUDE
    for at in poisson(rate * most, random):
        factor = 1.0 + _DIURNAL_AMPLITUDE * sin(2.0 * pi * at / DIURNAL_PERIOD)
        if random.random() * most < factor:  # thinning
            yield at


def heavy_tailed(rate: float, random: Random) -> Iterator[float]:
    """Trains of requests with long silences between them.

    Gaps are exponential of one of two means: 1 of `_REQUESTS_IN_BURST` ends a train.
    """
    now = 0.0
    share_of_long = 1.0 / _REQUESTS_IN_BURST
    short = _BURST_SHARE / rate
    long = (1.0 - _BURST_SHARE * (1.0 - share_of_long)) / share_of_long / rate
    while True:
        mean_gap = long if random.random() < share_of_long else short
        now += random.expovariate(1.0 / mean_gap)
        yield now


def _levels(levels: tuple[tuple[float, float], ...], random: Random) -> Iterator[float]:
    """(seconds, rate) one after the other, and again from the first."""
    now = 0.0
    for seconds, rate in cycle(levels):
        yield from _between(now, now + seconds, rate, random)
        now += seconds


def _between(start: float, stop: float, rate: float, random: Random) -> Iterator[float]:
    now = start + random.expovariate(rate)
    while now < stop:
        yield now
        now += random.expovariate(rate)


def _mean(*levels: tuple[float, float]) -> float:
    """Of (seconds, factor), by time."""
    whole = sum(seconds for seconds, _ in levels)
    return sum(seconds * factor for seconds, factor in levels) / whole
