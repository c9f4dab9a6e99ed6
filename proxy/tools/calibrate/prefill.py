"""What filling a prompt costs a server: seconds = fixed + per_token x tokens, from first tokens.

Single requests on an idle server, with prompts of several lengths that share no prefix: the time to
the first token is then the prefill, and what each request costs besides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median
from typing import Final

from proxy.core.curves import Prefill
from proxy.tools.curves.cells import BadDataError

LENGTHS: Final = (128, 512, 1024, 2048, 4096)
"""Prompt tokens, about: those of conversations, up to a document."""
REPEATS: Final = 3
"""Of each length; the median of three is safe from one that was late."""
OUTPUT_TOKENS: Final = 2
"""Of each request: the first is of interest, and a second shows that it streams."""


@dataclass(frozen=True, slots=True)
class Filled:
    """One request alone on a server."""

    wanted: int
    """About how long its prompt was to be; requests of one length are taken together."""
    prompt_tokens: int
    first_token_seconds: float


def lengths(context_tokens: int | None) -> tuple[int, ...]:
    """Those that fit a quarter of the context, since bytes only tell about how many tokens."""
    most = LENGTHS[-1] if context_tokens is None else context_tokens // 4
    return tuple(length for length in LENGTHS if length <= most) or (max(16, most),)


def fit(server: str, points: Sequence[Filled]) -> Prefill:
    """The line through the medians of each length, by least squares relative to their size.

    A line that would begin below 0, or fall, is held at 0: prompts cost nothing then that was seen.

    Raises:
        BadDataError: there is nothing to fit, or a time is no number.
    """
    times = [point.first_token_seconds for point in points]
    if not times or not all(isfinite(each) and each > 0.0 for each in times):
        raise BadDataError(f"{server}: no time to a first token that a prefill can be told from")
    groups = [
        [point for point in points if point.wanted == wanted]
        for wanted in sorted({point.wanted for point in points})
    ]
    xs = [fmean(point.prompt_tokens for point in group) for group in groups]
    ys = [median(point.first_token_seconds for point in group) for group in groups]
    weights = [1.0 / y**2 for y in ys]  # a clock is late by a share of what is measured
    fixed, slope = _line(xs, ys, weights)
    if slope < 0.0 or len(groups) == 1:
        return Prefill(min(ys), 0.0)
    if fixed < 0.0:
        through_zero = sum(w * x * y for w, x, y in zip(weights, xs, ys, strict=True))
        return Prefill(0.0, through_zero / sum(w * x * x for w, x in zip(weights, xs, strict=True)))
    return Prefill(fixed, slope)


def _line(
    xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Intercept and slope by weighted least squares."""
    total = sum(weights)
    x_mean = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    y_mean = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = sum(w * (x - x_mean) ** 2 for w, x in zip(weights, xs, strict=True))
    together = sum(w * (x - x_mean) * (y - y_mean) for w, x, y in zip(weights, xs, ys, strict=True))
    slope = together / spread if spread > 0.0 else 0.0
    return y_mean - slope * x_mean, slope
