"""One server in an open loop, in virtual time: mean end-to-end seconds at an offered rate, and the
rate λ* at which a pair of servers, each used alone, are equal.

Requests come at random whatever the server does, which is what users do; a closed loop would hide
saturation. Two ways to the same figure: a simulation, request by request, and the mean of a
birth-death chain, which is exact where prompts cost nothing and has no noise.
"""  # noqa: D205 - two figures, one sentence

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import inf, isfinite, log
from random import Random
from typing import Final

from proxy.core.curves import Server
from proxy.errors import SpecswitchError

_REQUESTS: Final = 20000
"""Of one run. Two servers see the same requests, so that most of the noise cancels: λ* then moves
by about 1 % with the seed."""

_WARM_UP: Final = 0.1
"""The share of a run that is not counted: it began with an idle server."""

_UNCAPPED: Final = 2048
"""Sequences that a server without a cap is taken to run; SGLang's own default."""

_LOADS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Shares of what base can carry, at which the two are compared before λ* is narrowed down."""

_TOLERANCE: Final = 0.005
"""Of λ*: far below its noise."""

_TURNS: Final = 40
"""A bound on narrowing down; a smooth crossing takes about six."""

_NEGLIGIBLE: Final = 1e-12
"""A state this much less likely than the likeliest one no longer counts."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Requests as they come: lengths, and the stamps they would have at one request a second."""

    stamps: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    @property
    def mean_output_tokens(self) -> float:
        """What turns output tokens a second into requests a second."""
        return sum(self.output_tokens) / len(self.output_tokens)


def offered(lengths: Sequence[tuple[int, int]], *, count: int, random: Random) -> Offered:
    """`count` requests at random moments (Poisson), of these (prompt, output) lengths.

    Each length is used equally often, as far as `count` allows: a tail that is drawn by chance
    would be most of the noise.

    Raises:
        SpecswitchError: no lengths, or one that no request can have.
    """
    _reject_impossible(lengths)
    whole, rest = divmod(count, len(lengths))
    drawn = [*lengths] * whole + random.sample(list(lengths), rest)
    random.shuffle(drawn)
    stamps = tuple(accumulate(random.expovariate(1.0) for _ in drawn))
    return Offered(stamps, tuple(prompt for prompt, _ in drawn), tuple(out for _, out in drawn))


def _reject_impossible(lengths: Sequence[tuple[int, int]]) -> None:
    if not lengths:
        raise SpecswitchError("no lengths of requests are given, so no load can be simulated")
    for number, (prompt, output) in enumerate(lengths, 1):
        if prompt < 0 or output < 1:
            raise SpecswitchError(
                f"request {number} of the lengths has {prompt} prompt and {output} output tokens"
            )


class _Line:
    """The state of one server: a queue, one prompt being filled, and a batch that decodes.

    All sequences of a batch move on together, so one clock of tokens decoded serves them all, and
    each ends when that clock reads what was set when it joined.
    """

    __slots__ = (
        "_batch", "_clock", "_filled_at", "_filling", "_places", "_prefill", "_queue", "_rate",
        "_seconds", "now", "spans",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self._places = server.cap or _UNCAPPED
        self._prefill = server.prefill
        self._rate: Callable[[float], float] = server.curve.seconds_per_token
        self._seconds: list[float] = [0.0]
        self._queue: deque[tuple[float, int, int]] = deque()
        self._batch: list[tuple[float, float]] = []
        self._filling: tuple[float, int, int] | None = None
        self._filled_at = inf
        self._clock = 0.0
        self.now = 0.0
        self.spans: list[tuple[float, float]] = []
        """(arrival, seconds from arrival to last token) of the requests that have ended."""

    def arrive(self, at: float, prompt_tokens: int, output_tokens: int) -> None:
        """Take a request at `at`, the present moment."""
        self._queue.append((at, prompt_tokens, output_tokens))
        self._fill_next()

    def advance(self, until: float) -> None:
        """Let time pass; infinity runs until the server is empty."""
        while self._filling is not None or self._batch:
            if self._filling is not None:
                if self._filled_at > until:
                    break
                self._end_filling()
            elif not self._decode(until):
                break
        if isfinite(until):
            self.now = until

    def _fill_next(self) -> None:
        """Prompts go first and stop decoding, as in SGLang without mixed chunks."""
        if self._filling is None and self._queue and len(self._batch) < self._places:
            self._filling = self._queue.popleft()
            self._filled_at = self.now + self._prefill.seconds(self._filling[1])

    def _end_filling(self) -> None:
        if self._filling is None:
            return
        arrival, _, output_tokens = self._filling
        self.now, self._filling = self._filled_at, None
        if output_tokens > 1:  # the pass over the prompt yields the first token
            heappush(self._batch, (self._clock + output_tokens - 1, arrival))
        else:
            self.spans.append((arrival, self.now - arrival))
        self._fill_next()

    def _decode(self, until: float) -> bool:
        """Decode to the next end, if it comes by `until`; otherwise up to there."""
        per_token = self._per_token(len(self._batch))
        end, arrival = self._batch[0]
        ends_at = self.now + (end - self._clock) * per_token
        if ends_at > until:
            self._clock += (until - self.now) / per_token
            return False
        heappop(self._batch)
        self.now, self._clock = ends_at, end
        self.spans.append((arrival, ends_at - arrival))
        self._fill_next()
        return True

    def _per_token(self, sequences: int) -> float:
        while len(self._seconds) <= sequences:
            self._seconds.append(self._rate(len(self._seconds)))
        return self._seconds[sequences]


def mean_seconds(server: Server, requests: Offered, rate: float) -> float:
    """Mean end-to-end seconds when these requests are offered at `rate` output tokens a second.

    Finite for an unstable server as well: it grows with the length of the run.
    """
    stretch = requests.mean_output_tokens / rate
    line = _Line(server)
    for stamp, prompt, output in zip(
        requests.stamps, requests.prompt_tokens, requests.output_tokens, strict=True
    ):
        at = stamp * stretch
        line.advance(at)
        line.arrive(at, prompt, output)
    line.advance(inf)
    counted_from = requests.stamps[int(len(requests.stamps) * _WARM_UP)] * stretch
    spans = [seconds for arrival, seconds in line.spans if arrival >= counted_from]
    return sum(spans) / len(spans)


def saturation(server: Server, lengths: Sequence[tuple[int, int]]) -> float:
    """The most that a server can carry, prompts included: output tokens a second.

    Of each request the batch spends its prefill and, with n decoding, output x t(n)/n; n is the
    cap, or 2048 without one.
    """
    return _Means.of(lengths).carried(server, server.cap or _UNCAPPED)


@dataclass(frozen=True, slots=True)
class _Means:
    """All that a birth-death chain needs to know of the requests."""

    prompt_tokens: float
    output_tokens: float

    @classmethod
    def of(cls, lengths: Sequence[tuple[int, int]]) -> "_Means":
        _reject_impossible(lengths)
        count = len(lengths)
        prompts = sum(prompt for prompt, _ in lengths) / count
        return cls(prompts, sum(output for _, output in lengths) / count)

    def carried(self, server: Server, sequences: int) -> float:
        """Output tokens a second with so many in the batch, their prefills included."""
        decoding = (self.output_tokens - 1.0) * server.curve.seconds_per_token(sequences)
        request = server.prefill.seconds(self.prompt_tokens) + decoding / sequences
        return self.output_tokens / request


def expected_seconds(server: Server, lengths: Sequence[tuple[int, int]], rate: float) -> float:
    """`mean_seconds` without noise, by the means of the lengths alone.

    Processor sharing with a rate that depends on the batch: the number present is a birth-death
    chain whatever the lengths are (insensitivity; Kelly, Reversibility and Stochastic Networks,
    3.3), and Little's law gives the seconds. Prefill is taken as part of the shared work, which is
    where it departs from the simulation. Infinity for a server that cannot carry the rate.
    """
    return _expected_seconds(server, _Means.of(lengths), rate)


def _expected_seconds(server: Server, means: _Means, rate: float) -> float:
    places = server.cap or _UNCAPPED
    if rate >= means.carried(server, places):
        return inf
    weight = total = likeliest = 1.0
    present = 0.0
    sequences = 0
    share = rate / means.carried(server, 1)
    while weight > _NEGLIGIBLE * likeliest:
        sequences += 1
        if sequences <= places:
            share = rate / means.carried(server, sequences)
        weight *= share
        likeliest = max(likeliest, weight)
        total += weight
        present += sequences * weight
    return present / total / (rate / means.output_tokens)


def crossover_rate(
    spec: Server, base: Server, lengths: Sequence[tuple[int, int]], *, seed: int
) -> float:
    """λ*: output tokens a second, offered, up to which spec alone beats base alone end to end.

    From low loads up, the first rate at which base is as fast. 0 if it is so from the start,
    infinity if spec stays ahead to all that base can carry. By simulation, both servers under the
    same requests.
    """
    requests = offered(lengths, count=_REQUESTS, random=Random(seed))  # noqa: S311 - a simulation

    def lead(rate: float) -> float:
        return log(mean_seconds(base, requests, rate) / mean_seconds(spec, requests, rate))

    return _first_crossing(lead, saturation(base, lengths))


def expected_crossover_rate(
    spec: Server, base: Server, lengths: Sequence[tuple[int, int]]
) -> float:
    """`crossover_rate` by `expected_seconds`: without noise and in a few milliseconds."""
    means = _Means.of(lengths)

    def lead(rate: float) -> float:
        speculating = _expected_seconds(spec, means, rate)
        if not isfinite(speculating):
            return -1.0
        return log(_expected_seconds(base, means, rate) / speculating)

    return _first_crossing(lead, saturation(base, lengths))


def _first_crossing(lead: Callable[[float], float], most: float) -> float:
    """The first rate at which spec no longer leads, looking up to `most`."""
    low, low_lead = 0.0, inf
    for share in _LOADS:
        high, high_lead = share * most, lead(share * most)
        if high_lead <= 0.0:
            break
        low, low_lead = high, high_lead
    else:
        return inf
    if low <= 0.0:
        return 0.0
    return _narrow(lead, (low, low_lead), (high, high_lead))


def _narrow(
    lead: Callable[[float], float], low: tuple[float, float], high: tuple[float, float]
) -> float:
    """The zero between two (rate, lead) points, by false position as in the Illinois method.

    A lead far from 0, as that over an unstable server, is taken as no more than 1: a straight line
    to it would creep.
    """
    (left, ahead), (right, behind) = (low[0], min(low[1], 1.0)), (high[0], max(high[1], -1.0))
    for _ in range(_TURNS):
        middle = (left * behind - right * ahead) / (behind - ahead)
        if right - left <= _TOLERANCE * middle:
            break
        value = lead(middle)
        if value > 0.0:
            left, ahead, behind = middle, min(value, 1.0), behind / 2.0
        else:
            right, behind, ahead = middle, max(value, -1.0), ahead / 2.0
    return middle
