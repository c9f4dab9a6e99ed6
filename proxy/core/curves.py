"""How fast a server is, by how much is in flight: what calibration measured, as values.

All of it is per sequence: a request of n samples is n of them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds per output token of one sequence, by what is in flight.

    With n sequences t(n) = fixed + per_sequence n + bend n^2 up to n = `to`, the last that was
    measured; from there straight on with the slope that it has there, since a parabola says nothing
    beyond its points.
    """

    fixed: float
    per_sequence: float
    bend: float
    to: float

    def seconds_per_token(self, in_flight: float) -> float:
        """TPOT with `in_flight` sequences, a real number."""
        within = min(in_flight, self.to)
        slope = self.per_sequence + 2.0 * self.bend * self.to
        beyond = slope * (in_flight - within)
        return self.fixed + (self.per_sequence + self.bend * within) * within + beyond

    def rate(self, in_flight: float) -> float:
        """Output tokens per second of all of them together: X = n / t(n)."""
        return in_flight / self.seconds_per_token(in_flight)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Seconds to fill the cache for a prompt of m tokens: fixed + per_token m."""

    fixed: float
    per_token: float

    def seconds(self, prompt_tokens: float) -> float:
        """For one prompt of so many tokens."""
        return self.fixed + self.per_token * prompt_tokens


@dataclass(frozen=True, slots=True)
class Server:
    """One server of the pair as calibration knows it."""

    curve: Curve
    prefill: Prefill
    cap: int | None
    """Sequences that it runs at once; None for no bound."""
