"""What the policy asks for, worked out from what clients saw. Pure.

The rule is the one of docs/policy.md, and the rates and lengths are those of the core; but the
stamps are the clients' own, so what is compared with them is the whole way through specswitch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log

from proxy.core.lengths import Lengths
from proxy.core.rates import DecayedRate
from proxy.tools.asking import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The controller's constants; output tokens/s, sequences and seconds."""

    rate: float
    """λ*."""
    most: float
    """Sequences above which speculation is left."""
    gate: float
    up: float = 1.3
    down: float = 0.9
    """Shares of λ*: leave above, return below."""
    fast: float
    slow: float
    output_tokens: float
    """L̂ until answers tell."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An arrival or an end, with all as it is right after it."""

    at: float
    arrival: bool
    in_flight: int
    fast: float
    slow: float
    """Offered output tokens/s."""


def moments(samples: Sequence[Sample], rule: Rule) -> Iterator[Moment]:
    """Everything that happened, in order."""
    fast, slow = (DecayedRate(seconds, now=-inf) for seconds in (rule.fast, rule.slow))
    lengths = Lengths(rule.output_tokens)
    events = [(one.sent_at, True, one) for one in samples]
    events += [(one.sent_at + one.duration_seconds, False, one) for one in samples]
    in_flight = 0
    for at, arrival, sample in sorted(events, key=lambda event: event[:2]):
        in_flight += 1 if arrival else -1
        if arrival:
            work = lengths.output_tokens or 0.0
            fast.add(work, at)
            slow.add(work, at)
        elif sample.output_tokens:
            lengths.ended(sample.duration_seconds, sample.output_tokens, 1)
        yield Moment(at, arrival, in_flight, fast.value(at), slow.value(at))


def leaves_at(found: Sequence[Moment], rule: Rule, since: float) -> float | None:
    """When an arrival after `since` first asks for base; None if none does."""
    for one in found:
        rated = one.fast > rule.up * rule.rate and one.in_flight > rule.gate
        if one.at >= since and one.arrival and (rated or one.in_flight > rule.most):
            return one.at
    return None


def returns_at(found: Sequence[Moment], rule: Rule, since: float) -> float | None:
    """When load after `since` is first calm: nothing in flight, and the slow rate low enough.

    None if that never comes before the last of what is known.
    """
    threshold = rule.down * rule.rate
    for one, following in zip(found, [*found[1:], None], strict=True):
        if one.in_flight or (following is not None and following.at <= since):
            continue
        # Between two moments the rate only decays: slow e^(-t / window) = threshold.
        start = max(one.at, since)
        falls = one.at + rule.slow * log(max(1.0, one.slow / threshold))
        calm = max(start, falls)
        if following is None or calm < following.at:
            return calm
    return None


def longest_busy(arrivals: Sequence[tuple[float, float]]) -> float:
    """The longest time without a pause of one server, of (arrival, seconds of work) in order."""
    longest, began, free = 0.0, 0.0, -inf
    for at, seconds in arrivals:
        if at > free:
            began = free = at
        free += seconds
        longest = max(longest, free - began)
    return longest
