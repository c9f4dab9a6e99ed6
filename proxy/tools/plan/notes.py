"""What follows from a plan, what it rests on, and what to do next, in sentences."""

from collections.abc import Iterator
from dataclasses import dataclass

from proxy.core.words import Topology
from proxy.tools.doctor.memory import TOKENS_EACH
from proxy.tools.plan.quantities import gib
from proxy.tools.plan.split import Plan, Server
from proxy.tools.plan.wanted import CHUNKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One figure that was not told, and the option that tells it."""

    option: str
    value: str
    why: str


def notes(made: Plan) -> tuple[str, ...]:
    """What is worth knowing of a plan that fits."""
    if made.servers is None:
        return ()
    return tuple(_notes(made, *made.servers))


def assumptions(made: Plan) -> tuple[Assumption, ...]:
    """Every figure that was assumed, in the order in which memory is taken."""
    return tuple(_assumptions(made))


def _notes(made: Plan, spec: Server, base: Server) -> Iterator[str]:
    for server in (spec, base):
        wanted = server.demand.running
        if server.running < wanted:
            yield (
                f"{server.demand.name}: {server.running} sequences at once, not {wanted}: with "
                f"less than {TOKENS_EACH} tokens each they are taken back while they run"
            )
    if made.wanted.chunk is None and made.chunk < CHUNKS[0]:
        yield (
            f"prompts are filled in chunks of {made.chunk} tokens: with {CHUNKS[0]}, the default "
            "on large GPUs, the pair does not fit; long prompts then take somewhat longer"
        )
    yield from _on_draft(made)
    yield (
        f"a crossover above {spec.running} is not seen by calibrate, since spec takes no more; if "
        "spec wins up to there, plan again with a larger --spec-concurrency"
    )


def _on_draft(made: Plan) -> Iterator[str]:
    positions = made.wanted.draft.positions
    if positions is not None and positions < made.wanted.context:
        yield (
            f"the draft was made for {positions} tokens: beyond that drafts are seldom right; set "
            f"eligibility.max_spec_prompt_tokens = {positions}"
        )
    spec = made.demands[0]
    if spec.token_taken > spec.token_charged:
        yield (
            "the draft keeps more of each token than SGLang counts for it; the difference is left "
            "free for it"
        )


def _assumptions(made: Plan) -> Iterator[Assumption]:
    wanted = made.wanted
    reserves = wanted.reserves
    spec, base = made.demands
    yield Assumption(
        option="--gpu-reserved",
        value=f"{gib(reserves.gpu_reserved)} GiB",
        why="of each GPU nobody gets: the driver, other programs",
    )
    yield Assumption(
        option="--runtime-memory",
        value=f"{gib(spec.runtime)} GiB",
        why="each server: CUDA context, libraries, communication; taken before SGLang measures",
    )
    if wanted.model.kv_guessed:
        yield Assumption(
            option="--config, --kv-bytes-per-token",
            value=f"{base.token_charged / 1024:.0f} KiB",
            why="a token on each GPU: guessed, as dense models of this size have it",
        )
    if wanted.draft.weights_guessed:
        yield Assumption(
            option="--draft-config, --draft-weights",
            value=f"{gib(wanted.draft.weight_bytes)} GiB",
            why="the draft: guessed, one layer of EAGLE-3 for a model of this size",
        )
    yield Assumption(
        option="--graph-memory",
        value=f"{gib(spec.graphs)} and {gib(base.graphs)} GiB",
        why="CUDA graphs of spec and base: 2 MiB a sequence, three times for spec, and 8 MiB for "
        "each captured length of prefill",
    )
    yield Assumption(
        option="--activation-memory",
        value=f"{gib(base.activations)} GiB",
        why=f"each server: what a prefill of {made.chunk} tokens needs for a moment",
    )
    if wanted.topology is Topology.SHARED:
        yield Assumption(
            option="--spec-share",
            value=f"{wanted.spec_share:.0%}",
            why="of the KV cache goes to spec, if that is a request of full context",
        )
    yield Assumption(
        option="--margin", value=f"{gib(reserves.margin)} GiB", why="left free when both run"
    )


def shortage(made: Plan) -> str:
    """By how much a pair does not fit."""
    spec, base = made.demands
    missing = f"{gib(made.short)} GiB are missing on each GPU"
    if made.wanted.topology is Topology.SEPARATE:
        return f"With a request of full context in its KV cache, {missing} of one of the servers"
    weights = gib(spec.loaded + base.loaded)
    return f"The weights take {weights} GiB, twice and with the draft; {missing}"


def later(made: Plan) -> str:
    """What will check these figures once the servers run."""
    checks = ["memory.room (their KV tokens)", "memory.below_context", "memory.little_room"]
    if made.wanted.topology is Topology.SHARED:
        checks.append("memory.split (whether base has the larger share)")
    return (
        "All figures are estimates. `specswitch doctor` reads what the two really have once they "
        f"run, and checks it: {', '.join(checks)}."
    )
