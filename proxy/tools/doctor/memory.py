"""How the two servers share the memory of their GPU. Pure checks over both.

--mem-fraction-static is a share of the memory that is free when that server starts
(sglang#3265), so what it means depends on the order of the starts.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from proxy.core.words import UpstreamName
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.server_info import ServerInfo

_FLAGS: Final = ("--mem-fraction-static", "--max-total-tokens")
"""Either fixes what a server takes."""

TOKENS_EACH: Final = 512
"""Room for each running sequence below which many will be taken back while they run."""

_RECIPE: Final = (
    "start spec first with --mem-fraction-static 0.35, wait for its /ready, then base with 0.75 of "
    "what is left; or give both --max-total-tokens"
)


def check_memory(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    """Whether both have the room that they need.

    Of a spec that does not speculate (swapped, or without its flags) nothing is said that only
    holds of one that does.
    """
    for info in (spec, base):
        yield from _check_room(info)
    if not _share_gpus(spec, base):
        return
    yield from _check_fractions(spec, base)
    if spec.algorithm is not None:
        yield from _check_split(spec, base)


def _share_gpus(spec: ServerInfo, base: ServerInfo) -> bool:
    """Whether they use a GPU together, as far as their addresses and arguments tell."""
    if spec.on_cpu or base.on_cpu or not (spec.known and base.known):
        return False
    if urlsplit(spec.url).hostname != urlsplit(base.url).hostname:
        return False
    mine, its = _gpus(spec), _gpus(base)
    return mine is not None and its is not None and not mine.isdisjoint(its)


def _gpus(info: ServerInfo) -> frozenset[int] | None:
    first = info.arguments.count("base_gpu_id")
    step = info.arguments.count("gpu_id_step") or 1
    size = (info.arguments.count("tp_size") or 1) * (info.arguments.count("pp_size") or 1)
    return None if first is None else frozenset(range(first, first + size * step, step))


def _check_room(info: ServerInfo) -> Iterator[Finding]:
    tokens, context, running = info.kv_tokens, info.context_length, info.max_running
    if tokens is None:
        return
    fraction = info.arguments.amount("mem_fraction_static")
    taken = "" if fraction is None else f", --mem-fraction-static {fraction:g}"
    if context is not None and tokens < context:
        yield Finding(
            code="memory.below_context",
            severity=Severity.WARNING,
            server=info.name,
            what=f"its KV cache has {tokens} tokens, and one request may have {context}{taken}",
            why="a long request is refused or never ends",
            change=f"more memory for it, or --context-length {tokens} on both",
        )
    elif running is not None and _drafts(info) and tokens < running * TOKENS_EACH:
        yield Finding(
            code="memory.little_room",
            severity=Severity.WARNING,
            server=info.name,
            what=f"its KV cache has {tokens} tokens for up to {running} sequences{taken}",
            why="sequences are taken back and filled anew while they run, which looks like slow "
            "speculation",
            change=f"more memory for it, or --max-running-requests {max(1, tokens // 1024)}",
        )
    else:
        yield Finding(
            code="memory.room",
            severity=Severity.OK,
            server=info.name,
            what=f"room for {tokens} tokens{taken}",
        )


def _drafts(info: ServerInfo) -> bool:
    return info.name is UpstreamName.SPEC and info.algorithm is not None


def _check_fractions(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    asked = {info.name: _fixed(info) for info in (spec, base)}
    loose = [name for name, fixed in asked.items() if fixed is False]
    if not loose:
        return
    both = len(loose) == len(asked)
    yield Finding(
        code="memory.fraction_unset",
        severity=Severity.WARNING if both else Severity.NOTE,
        server=None if both else loose[0],
        what="neither server was told how much memory to take"
        if both
        else f"{loose[0]} was not told how much memory to take",
        why="by default a server takes nearly all that is free when it starts, so the order of the "
        "starts decides, and two at once fail",
        change=_RECIPE,
    )


def _fixed(info: ServerInfo) -> bool | None:
    """Whether it was told; None where that cannot be seen."""
    told = [info.asked_for(flag) for flag in _FLAGS]
    return None if None in told else any(told)


def _check_split(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    mine, its = spec.kv_tokens, base.kv_tokens
    if mine is None or its is None or mine <= its:
        return
    yield Finding(
        code="memory.split",
        severity=Severity.WARNING,
        what=f"spec has room for {mine} tokens, base for {its}",
        why="spec serves while few requests run, base while many do: base needs the larger share; "
        "the fraction is of what is free at the start, so the second server gets less for the same "
        "figure",
        change=_RECIPE,
    )
