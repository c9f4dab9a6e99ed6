"""What either server may have set up badly, whether it speculates or not. Pure checks."""

from collections.abc import Iterator
from typing import Final

from proxy.core.fields import NOTHING, Fields
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.server_info import ServerInfo

_NEUTRAL: Final = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "min_new_tokens": 0.0,
}
"""Sampling parameters that a speculative SGLang ignores or bends, and what leaves them alone."""

_FROM_MODEL: Final = ("min_p", "repetition_penalty")
"""Those of them that SGLang takes from a model's generation_config.json."""


def check_server(info: ServerInfo) -> Iterator[Finding]:
    """What is so of this server alone."""
    if not info.known:
        yield Finding(
            code="reach.server_info",
            severity=Severity.WARNING,
            server=info.name,
            what=f"{info.url} has no /server_info",
            why="its flags cannot be checked, and specswitch trusts it and has no cap for it",
            change="set its max_in_flight in specswitch.toml, and compare its launch command "
            "with the other's",
        )
        return
    yield from _check_graphs_off(info)
    yield from _check_prefill(info)
    yield from _check_radix(info)
    yield from _check_idle(info)
    yield from _check_defaults(info)
    yield from _check_dummy(info)


def _check_graphs_off(info: ServerInfo) -> Iterator[Finding]:
    if info.graphs_off:
        yield Finding(
            code="server.graphs_off",
            severity=Severity.WARNING,
            server=info.name,
            what="decoding runs without CUDA graphs",
            why="each step waits for the host, which costs small batches most, and speculation "
            "lives in small batches",
            change="start it without --disable-cuda-graph and --disable-decode-cuda-graph",
        )


def _check_prefill(info: ServerInfo) -> Iterator[Finding]:
    size = info.arguments.number("chunked_prefill_size")
    if size is not None and size <= 0:
        yield Finding(
            code="server.chunked_prefill_off",
            severity=Severity.WARNING,
            server=info.name,
            what="chunked prefill is off",
            why="one long prompt stops all streams of this server until it is filled",
            change="--chunked-prefill-size 8192, or leave the flag out",
        )


def _check_radix(info: ServerInfo) -> Iterator[Finding]:
    if info.arguments.flag("disable_radix_cache"):
        yield Finding(
            code="server.radix_off",
            severity=Severity.NOTE,
            server=info.name,
            what="the prefix cache is off",
            why="every turn of a conversation is filled anew",
            change="start it without --disable-radix-cache, unless on purpose",
        )


def _check_idle(info: ServerInfo) -> Iterator[Finding]:
    if info.arguments.flag("sleep_on_idle") is False:
        yield Finding(
            code="server.spins_when_idle",
            severity=Severity.NOTE,
            server=info.name,
            what="its scheduler spins on a CPU core while it is idle",
            why="one of the two is idle most of the time, and they share the machine",
            change="--sleep-on-idle",
        )


def _check_defaults(info: ServerInfo) -> Iterator[Finding]:
    """Defaults that act without being in a request: eligibility reads requests."""
    preferred = info.arguments.within("preferred_sampling_params")
    if not preferred:
        preferred = info.model_info.within("preferred_sampling_params")
    acting = _acting(preferred, tuple(_NEUTRAL))
    if acting:
        yield _defaults(info, acting, "--preferred-sampling-params", "without them")
    if info.arguments.text("sampling_defaults") != "model":
        return
    acting = _acting(info.generation or NOTHING, _FROM_MODEL)
    if acting:
        yield _defaults(
            info, acting, "the model's generation_config.json", "with --sampling-defaults openai"
        )
    elif info.generation is not None:
        yield Finding(
            code="server.sampling_defaults",
            severity=Severity.OK,
            server=info.name,
            what="the model sets no sampling default that speculation would ignore",
        )
    else:
        yield Finding(
            code="server.sampling_defaults_unseen",
            severity=Severity.NOTE,
            server=info.name,
            what="sampling defaults come from the model's generation_config.json, which is not "
            "shown",
            why="a min_p or repetition_penalty in it acts on requests that do not name it, and "
            "speculation ignores or bends it",
            change="look into that file; if it has one, --sampling-defaults openai on both",
        )


def _acting(fields: Fields, names: tuple[str, ...]) -> dict[str, float]:
    """Those of `names` that are set to something that has an effect."""
    values = ((name, fields.number(name)) for name in names)
    return {name: value for name, value in values if value is not None and value != _NEUTRAL[name]}


def _defaults(info: ServerInfo, acting: dict[str, float], source: str, change: str) -> Finding:
    shown = ", ".join(f"{name} {value:g}" for name, value in acting.items())
    return Finding(
        code="server.sampling_defaults",
        severity=Severity.WARNING,
        server=info.name,
        what=f"{source} sets {shown}",
        why="it acts on requests that do not name it, so eligibility cannot see it, and a "
        "speculative server ignores or bends it",
        change=f"start both {change}, and let clients ask for it",
    )


def _check_dummy(info: ServerInfo) -> Iterator[Finding]:
    if info.arguments.text("load_format") == "dummy":
        yield Finding(
            code="server.dummy_weights",
            severity=Severity.WARNING,
            server=info.name,
            what="its weights are random (--load-format dummy)",
            why="acceptance of drafts, and so the crossover, says nothing about a real model",
            change="leave --load-format out",
        )
