"""How long a sequence's output is on average, L-hat, and how long a request takes.

Offered work is counted before anybody knows how long an answer will be, so it is counted by the
mean of the answers before. Only true counts of tokens teach it: usage in responses, else the
engines' own counters, else what calibration assumed. Chunks do not: speculation puts several tokens
into one.
"""

from typing import Final

_ENOUGH: Final = 20
"""Sequences before their mean is believed: with lengths as spread as in public traces
(standard deviation about 0.8 means) it is then within 18 % of the true one, two times in three."""

_MEMORY: Final = 500
"""Sequences over which a mean forgets: minutes on a busy pair, so it follows the hour of day."""


_LONGEST: Final = 1 << 20
"""Tokens of one sequence; a larger figure is a fault of whoever wrote it, and one would outweigh
thousands."""

_LEAST_TOLD: Final = 0.2
"""Share of answers with usage below which those few no longer speak for all."""


class RunningMean:
    """A mean over about the last `memory` values; the first ones count equally."""

    __slots__ = ("_memory", "count", "value")

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.count = 0
        self.value = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        """Take note of `weight` values that are `value` on average."""
        count = self.count
        if count < self._memory:
            self.count = count = min(count + weight, self._memory)
        before = self.value
        self.value = before + (value - before) * (weight / count if weight < count else 1.0)


class Lengths:
    """What is known of output lengths and service times."""

    __slots__ = ("_by_engines", "_by_usage", "_service", "_told", "assumed")

    def __init__(self, assumed: float | None) -> None:
        self.assumed = assumed
        """Mean output tokens of a sequence as calibration has it; None while there is none."""
        self._by_usage = RunningMean(_MEMORY)
        self._by_engines = RunningMean(_MEMORY)
        self._told = RunningMean(_MEMORY)
        """Share of sequences whose answers carry usage."""
        self._service = RunningMean(_MEMORY // 10)

    def ended(self, seconds: float, output_tokens: int | None, sequences: int) -> None:
        """A request held its place for `seconds`, and its answer told so many `output_tokens`.

        They are over all its `sequences`; None, or 0, where it told nothing.
        """
        self._service.add(seconds)
        told = self._told
        if not output_tokens:
            told.add(0.0, sequences)
            return
        if output_tokens <= _LONGEST * sequences:
            self._by_usage.add(output_tokens / sequences, sequences)
        if told.value < 1.0 or told.count < _MEMORY:  # else nothing can be added
            told.add(1.0, sequences)

    def counted(self, output_tokens: float, sequences: int) -> None:
        """An engine's own counters: `output_tokens` over `sequences` that ended lately."""
        if output_tokens <= _LONGEST * sequences:
            self._by_engines.add(output_tokens / sequences, sequences)

    @property
    def output_tokens(self) -> float | None:
        """L-hat: mean output tokens of a sequence; None while nothing is known."""
        by_usage = self._by_usage
        enough = by_usage.count >= _ENOUGH
        if enough and self._told.value >= _LEAST_TOLD:
            return by_usage.value
        if self._by_engines.count >= _ENOUGH:
            return self._by_engines.value
        seen = enough or (by_usage.count and not self.assumed)
        return by_usage.value if seen else self.assumed

    @property
    def service_seconds(self) -> float:
        """Mean time that a request holds its place, lately; 0 before the first."""
        return self._service.value
