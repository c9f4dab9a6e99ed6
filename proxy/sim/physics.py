"""The cost model of a speculative and a plain engine: seconds for a step, by what is in the batch.

It is the model of docs/model.md, with profiles as data; sections named below are that page's. It
knows no time, no queue and no request; `gpu.py` puts those on top. Nothing here was measured on a
GPU by this project: rankings are what a simulation can be trusted with, not seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from random import Random
from types import MappingProxyType
from typing import Final

from proxy.core.words import UpstreamName

_KNEE: Final = 4
"""The power with which the memory-bound and the compute-bound time of a step blend ("A step")."""

_PREFILL_FIXED: Final = 0.003
_SPEC_PREFILL_FACTOR: Final = 1.08
"""t_P = p*m + 3 ms, and 8 % more where a draft model is filled as well ("Prefill")."""

_TWO_GPUS: Final = 2.0
"""The eta at which two engines do not slow each other down ("Two engines on one GPU")."""

_SEARCH_LIMIT: Final = 65536.0
"""Sequences; a crossover beyond any batch that an engine runs is none."""

_SEARCH_TURNS: Final = 80
"""Halvings of a search interval: enough to reach the last bit of a float."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step costs when the engine has the GPU to itself, in seconds."""

    host: float
    """The part that leaves the GPU idle, which no other engine slows down: h."""
    gpu: float
    """The part that keeps the GPU busy: g."""

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.host + self.gpu

    @property
    def busy_share(self) -> float:
        """How much of the step the GPU works: U."""
        return self.gpu / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One decode step or one verify round as a function of the batch; all in seconds ("A step")."""

    host: float = 0.0
    """h: launch and scheduling while the GPU idles."""
    fixed: float = 0.0
    """d*delta + f0: draft steps and what each round costs whatever the batch."""
    weights: float = 0.0
    """w: reading the weights once."""
    per_token: float = 0.0
    """c: computing one token of one sequence."""
    tokens_per_sequence: int = 1
    """1 for plain decoding, k + 1 where k drafts are verified."""
    per_context_token: float = 0.0
    """kv: reading the keys and values of one token of context."""
    per_sequence: float = 0.0
    """b, and f1 on the speculative engine."""

    def work(self, sequences: float, context_tokens: float = 0.0) -> Work:
        """One step for `sequences` with `context_tokens` of context in all.

        A real number of sequences is allowed: a crossover lies between two whole ones.
        """
        compute = self.per_token * self.tokens_per_sequence * sequences
        pass_seconds = (self.weights**_KNEE + compute**_KNEE) ** (1 / _KNEE)
        per_sequence = self.per_sequence * sequences
        reading = self.per_context_token * context_tokens
        return Work(self.host, self.fixed + pass_seconds + reading + per_sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A pair of engines as data: what their steps cost and how well the draft guesses."""

    name: str
    base: StepCost
    spec: StepCost
    acceptance_length: float
    """tau: mean tokens that one verify round yields to one sequence, the bonus token included."""
    draft_steps: int
    """k: most drafts that a round can accept, so that it yields 1 to k + 1 tokens."""
    draft_topk: int
    draft_tokens: int
    """Tokens verified for one sequence in one round; with a tree more than k + 1."""
    prefill_per_token: float
    """p: seconds for one prompt token."""
    saturation: int = 48
    """Sequences in flight at which the plain engine counts as saturated: where workloads take its
    capacity ("Capacity")."""

    def cost(self, engine: UpstreamName) -> StepCost:
        """The step of this engine."""
        return self.spec if engine is UpstreamName.SPEC else self.base

    def tokens_per_step(self, engine: UpstreamName) -> float:
        """Mean tokens that one step yields to one sequence."""
        return self.acceptance_length if engine is UpstreamName.SPEC else 1.0


FOUNDING: Final = Profile(
    name="founding",
    # t_B = 6.8 + 1.2 B ms, t_E = 5 + 7.2 B ms, tau 2.6. Of the machine two figures are known, 773
    # and 354 tok/s, so this is one of several shapes that fit ("The founding profile").
    base=StepCost(fixed=0.0068, per_sequence=0.0012),
    spec=StepCost(fixed=0.005, per_sequence=0.0072),
    acceptance_length=2.6,
    # A guess: a speculative engine as flat as this one looks like the flags of SGLang's
    # documentation, 5 steps, topk 8, 32 draft tokens.
    draft_steps=5,
    draft_topk=8,
    draft_tokens=32,
    # Of p nothing is known. This one makes the saturated speculative engine (1155 tokens in, 211
    # out, 48 at once) deliver the 317 tok/s of an earlier simulation.
    prefill_per_token=0.000055,
    saturation=48,
)

_H100: Final = StepCost(
    # 8 billion parameters in 16 bits, from the data sheet of the GPU ("8B on one H100").
    host=0.00035,
    weights=0.00599,
    per_token=27.1e-6,
    per_context_token=48.9e-9,
    per_sequence=20e-6,
)

TREE: Final = Profile(
    name="tree",
    base=_H100,
    # 32 tokens verified for each sequence, 5 draft steps of 0.43 ms (SGLang #4247). The 2 ms and
    # 60 us that a round adds and tau are fitted to a crossover at 23 and to the ladder of mean
    # times of an earlier simulation ("The tree profile").
    spec=replace(_H100, tokens_per_sequence=32, fixed=5 * 0.00043 + 0.002, per_sequence=80e-6),
    acceptance_length=3.4,
    draft_steps=5,
    draft_topk=8,
    draft_tokens=32,
    # c: a prompt is computed at the same arithmetic rate.
    prefill_per_token=27.1e-6,
    saturation=96,
)

CHAIN: Final = Profile(
    name="chain",
    base=_H100,
    # f0 2.5 ms, f1 93 us and tau 2.8 are fitted to the EAGLE-3 paper's table for SGLang ("The
    # chain profile").
    spec=replace(_H100, tokens_per_sequence=4, fixed=3 * 0.00043 + 0.0025, per_sequence=113e-6),
    acceptance_length=2.8,
    draft_steps=3,
    draft_topk=1,
    draft_tokens=4,
    prefill_per_token=27.1e-6,
    saturation=96,
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {profile.name: profile for profile in (FOUNDING, TREE, CHAIN)}
)
"""By name, for the command line."""


def prefill_work(profile: Profile, engine: UpstreamName, prompt_tokens: int) -> Work:
    """Filling the caches for prompts of so many tokens in all, in one pass."""
    seconds = profile.prefill_per_token * prompt_tokens + _PREFILL_FIXED
    if engine is UpstreamName.SPEC:
        seconds *= _SPEC_PREFILL_FACTOR
    return Work(0.0, seconds)


def output_rate(
    profile: Profile, engine: UpstreamName, sequences: float, context_tokens: float = 0.0
) -> float:
    """Output tokens per second of the whole batch, prefill aside: X.

    `context_tokens` is the context of each sequence.
    """
    step = profile.cost(engine).work(sequences, sequences * context_tokens)
    return sequences * profile.tokens_per_step(engine) / step.seconds


def crossover(profile: Profile, context_tokens: float = 0.0) -> float:
    """N*: sequences in flight at which both engines deliver the same total, as a real number.

    0 if the plain engine is ahead from the start, infinity if it never gets ahead. One crossing is
    assumed, which holds for dense models; with experts the gain rises before it falls.
    `context_tokens` is the context of each sequence.
    """

    def plain_is_ahead(sequences: float) -> bool:
        spec = output_rate(profile, UpstreamName.SPEC, sequences, context_tokens)
        return output_rate(profile, UpstreamName.BASE, sequences, context_tokens) >= spec

    low, high = 1 / _SEARCH_LIMIT, _SEARCH_LIMIT
    if plain_is_ahead(low):
        return 0.0
    if not plain_is_ahead(high):
        return inf
    for _ in range(_SEARCH_TURNS):
        middle = (low + high) / 2
        low, high = (low, middle) if plain_is_ahead(middle) else (middle, high)
    return high


def kappa(contention: float) -> float:
    """How much one engine stretches the GPU work of the other: 2/eta - 1.

    `contention` is eta: 0.65 poor time slicing, 0.9 time slicing, 1.1 MPS, 2.0 two GPUs. Two
    engines that keep the GPU busy all the time each run at eta/2.

    Raises:
        ValueError: eta is not above 0 and at most 2.
    """
    if not 0.0 < contention <= _TWO_GPUS:
        raise ValueError(f"contention must be above 0 and at most 2, not {contention}")
    return _TWO_GPUS / contention - 1.0


def speed(own: Work, other: Work | None, kappa: float) -> float:
    """How fast a step goes, 1 being alone on the GPU, while the other engine runs its own.

    T = h + g*(1 + kappa*U), where U is the busy share of the other.
    """
    if other is None:
        return 1.0
    return own.seconds / (own.host + own.gpu * (1.0 + kappa * other.busy_share))


def acceptance_probability(mean: float, draft_steps: int) -> float:
    """The chance a that one more draft is accepted, for `mean` tokens a round.

    Drafts are accepted one after the other, each with chance a, until the first miss or until all
    `draft_steps` are; the target's own token comes on top. The mean is then
    1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a), a truncated geometric ("Tokens of a round").

    Raises:
        ValueError: a round cannot yield that many tokens, or fewer than one.
    """
    if not 1.0 <= mean <= draft_steps + 1:
        raise ValueError(f"{draft_steps} drafts cannot make {mean} tokens a round")
    low, high = 0.0, 1.0
    for _ in range(_SEARCH_TURNS):
        middle = (low + high) / 2
        reached = sum(middle**accepted for accepted in range(draft_steps + 1))
        low, high = (middle, high) if reached < mean else (low, middle)
    return high


def accepted_drafts(random: Random, probability: float, draft_steps: int) -> int:
    """How many drafts one round accepts for one sequence: 0 to `draft_steps`."""
    accepted = 0
    while accepted < draft_steps and random.random() < probability:
        accepted += 1
    return accepted
