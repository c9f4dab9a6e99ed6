"""What a page of SGLang's metrics has counted, out of the 87 kB that it has.

Names are SGLang 0.5.23's. Only they are looked for: to parse all of the page would hold the event
loop for milliseconds, every few seconds.
"""

from dataclasses import dataclass
from math import isfinite

from proxy.core.signals import Totals


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted of sequences that ended, aborted ones included.

    A request of n > 1 samples counts one sequence more, without tokens, for its shared prompt.
    """

    ended: Totals
    """Their output tokens, and how many they were."""
    rounds: float
    """Their verify rounds; 0 where nothing speculates."""

    @property
    def verified(self) -> Totals:
        """Tokens of verify rounds: all but the first of each sequence, which its prefill makes."""
        return Totals(self.ended.tokens - self.ended.times, self.rounds)


def counters_of(page: bytes) -> Counters | None:
    """The counters of a metrics page; None where one of them makes no sense.

    SGLang shows a counter only once it has counted: what is not there is 0.
    """
    tokens = _total(page, b"generation_tokens_total")
    sequences = _total(page, b"num_requests_total")
    rounds = _total(page, b"spec_verify_calls_total")
    if tokens is None or sequences is None or rounds is None:
        return None
    return Counters(Totals(tokens, sequences), rounds)


def _total(page: bytes, name: bytes) -> float | None:
    """A counter, summed over its labels."""
    total = 0.0
    start = b"sglang:" + name + b"{"
    at = page.find(start)
    while at >= 0:
        end = page.find(b"\n", at)
        if at == 0 or page[at - 1 : at] == b"\n":
            value = _sample(page[at : end if end >= 0 else len(page)])
            if value is None:
                return None
            total += value
        at = page.find(start, at + len(start))
    return total


def _sample(line: bytes) -> float | None:
    # A label may hold a brace; the value and its time stamp, where it has one, may not.
    words = line[line.rfind(b"}") + 1 :].split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if isfinite(value) and value >= 0 else None
