"""What to use where a pair does not fit: each way is planned too, and named only if it does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from proxy.core.words import Topology, UpstreamName
from proxy.tools.plan.quantities import gigabytes
from proxy.tools.plan.sizes import KvDtype
from proxy.tools.plan.split import Plan, alone, plan
from proxy.tools.plan.wanted import Wanted

_LEAST_CONTEXT: Final = 2048
_MOST_GPUS: Final = 8
_SHOWN: Final = 10**8
"""Bytes: a tenth of a GB."""
_QUANTISED: Final = (
    (8.0, "weights in 8 bits (an FP8 checkpoint, or --quantization fp8 on both)"),
    (4.25, "weights in 4 bits (an AWQ or GPTQ checkpoint)"),
)


def instead(made: Plan) -> tuple[str, ...]:
    """What would fit in its place, each a phrase; the last is one server, if that does."""
    wanted = made.wanted
    return (
        *_with_less(wanted),
        *_with_more(wanted),
        *_smaller(made),
        *_one_server(made),
    )


def _with_less(wanted: Wanted) -> Iterator[str]:
    """The same GPUs and the same model, stored in less."""
    context = _context(wanted)
    if context is not None:
        yield f"--context {context}"
    if wanted.kv_dtype in {KvDtype.AUTO, KvDtype.BFLOAT16} and _fits(
        replace(wanted, kv_dtype=KvDtype.FP8_E5M2)
    ):
        yield "--kv-cache-dtype fp8_e5m2 on both; look at its answers first"
    for bits, phrase in _QUANTISED:
        if bits >= wanted.model.weight_bits:
            continue
        fewer = _scaled(wanted, bits)
        if _fits(fewer):
            yield phrase
            return
        shorter = _context(fewer)
        if shorter is not None:
            yield f"{phrase} and --context {shorter}"


def _with_more(wanted: Wanted) -> Iterator[str]:
    """The same model, with more GPUs."""
    gpus = 2 * wanted.gpus
    while gpus <= _MOST_GPUS:
        more = replace(wanted, gpus=gpus)
        # What a token takes was told for as many GPUs as there are; more take no more.
        if wanted.model.can_be_split(gpus) and _fits(more):
            yield f"--gpus {gpus}: each server over {gpus} of these GPUs"
            break
        gpus *= 2
    if wanted.topology is Topology.SHARED and _fits(replace(wanted, topology=Topology.SEPARATE)):
        sets = "two GPUs, one" if wanted.gpus == 1 else f"two sets of {wanted.gpus} GPUs, one"
        yield f"--topology separate: {sets} for each server"


def _smaller(made: Plan) -> Iterator[str]:
    """The largest model of the same shape, about."""
    wanted = made.wanted
    copies = 2 if wanted.topology is Topology.SHARED else 1
    most = int(wanted.model.weight_bytes - made.short * wanted.gpus / copies)
    if most <= 0:
        return
    # Half a GB less, since the second launch is not quite linear in what the first one takes; in
    # the digits in which it is shown.
    most = (most - 10**9 // 2) // _SHOWN * _SHOWN
    if most > 0 and _fits(replace(wanted, model=replace(wanted.model, weight_bytes=most))):
        yield f"a model of up to {gigabytes(most)} of weights"


def _one_server(made: Plan) -> Iterator[str]:
    wanted = made.wanted
    one, _ = alone(wanted, UpstreamName.SPEC, chunk=made.chunk)
    if one is None or wanted.topology is Topology.SEPARATE:
        return
    chain = " (chains of drafts only)" if wanted.drafts.topk > 1 else ""
    yield (
        "one server with --speculative-adaptive in place of a pair: one copy of the weights, room "
        f"for {one.kv_tokens:,} tokens{chain}"
    )


def _context(wanted: Wanted) -> int | None:
    """The longest context of a power of two that fits; None if none does."""
    context = 2 ** ((wanted.context - 1).bit_length() - 1) if wanted.context > 1 else 0
    while context >= _LEAST_CONTEXT:
        if _fits(replace(wanted, context=context)):
            return context
        context //= 2
    return None


def _scaled(wanted: Wanted, bits: float) -> Wanted:
    model = wanted.model
    weight_bytes = round(model.weight_bytes * bits / model.weight_bits)
    return replace(wanted, model=replace(model, weight_bytes=weight_bytes, weight_bits=bits))


def _fits(wanted: Wanted) -> bool:
    return plan(wanted).fits
