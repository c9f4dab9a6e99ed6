"""A plan as what starts it: the two launch commands, or the keys of `.env` for compose."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.core.words import Topology, UpstreamName
from proxy.tools.plan.sizes import KvDtype
from proxy.tools.plan.split import Plan, Server

MODEL = "MODEL"
"""Stands for its name where none was given."""
DRAFT = "DRAFT"

_COMPOSE = "docker-compose.yml"
_SEPARATE = "deploy/compose/separate.yml"
_PORTS: Mapping[UpstreamName, int] = {UpstreamName.SPEC: 30001, UpstreamName.BASE: 30000}

PLANNED_FLAGS = (
    "--context-length",
    "--cuda-graph-max-bs",
    "--cuda-graph-max-bs-decode",
    "--dtype",
    "--max-running-requests",
    "--max-total-tokens",
    "--mem-fraction-static",
    "--tp",
    "--tp-size",
)
"""What compose sets by keys of their own, and the older names of it: SGLang takes the last."""

Flags = dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Where SGLang finds the two; None where that was not told."""

    model: str | None = None
    draft: str | None = None


def commands(made: Plan, names: Names) -> dict[UpstreamName, str]:
    """A command line for each server, in launch order; empty where the pair does not fit."""
    return {server.demand.name: _command(made, server, names) for server in made.servers or ()}


def environment(made: Plan, names: Names) -> dict[str, str | None]:
    """The keys of `.env` that a plan decides; empty where the pair does not fit.

    None: it must not be there. The fractions are for caches as large as they come; a number of
    tokens that was pinned for other fractions would cap them.
    """
    if made.servers is None:
        return {}
    wanted = made.wanted
    spec, base = made.servers
    named = {"MODEL": names.model, "DRAFT_MODEL": names.draft}
    return {
        **{key: name for key, name in named.items() if name is not None},
        "DTYPE": wanted.dtype.value,
        "CONTEXT_LENGTH": str(wanted.context),
        "GPUS": str(wanted.gpus),
        "TP_SIZE": str(wanted.gpus),
        "COMPOSE_FILE": compose_files(None, wanted.topology),
        **_gpu_ids(wanted.topology, wanted.gpus),
        "SPEC_MEM_FRACTION": f"{spec.fraction:g}",
        "BASE_MEM_FRACTION": f"{base.fraction:g}",
        "SPEC_MAX_TOTAL_TOKENS": None,
        "BASE_MAX_TOTAL_TOKENS": None,
        "SPEC_MAX_RUNNING": str(spec.running),
        "BASE_MAX_RUNNING": str(base.running),
        "SPEC_NUM_STEPS": str(wanted.drafts.steps),
        "SPEC_EAGLE_TOPK": str(wanted.drafts.topk),
        "SPEC_NUM_DRAFT_TOKENS": str(wanted.drafts.tokens),
    }


def compose_files(now: str | None, topology: Topology) -> str | None:
    """COMPOSE_FILE for this topology, with whatever else it names; None where the default does."""
    named = [file for file in (now or _COMPOSE).split(":") if file != _SEPARATE]
    if topology is Topology.SEPARATE:
        named.append(_SEPARATE)
    return None if named == [_COMPOSE] else ":".join(named)


def _gpu_ids(topology: Topology, gpus: int) -> dict[str, str | None]:
    separate = topology is Topology.SEPARATE
    ids = {"SPEC_GPU_IDS": range(gpus), "BASE_GPU_IDS": range(gpus, 2 * gpus)}
    return {key: ",".join(map(str, each)) if separate else None for key, each in ids.items()}


def extra_arguments(made: Plan) -> Flags:
    """Flags of both servers that have no key of their own; None: it must not be there."""
    kv = made.wanted.kv_dtype
    return {
        "--chunked-prefill-size": str(made.chunk),
        "--kv-cache-dtype": None if kv is KvDtype.AUTO else kv.value,
    }


def outgrows_draft(made: Plan) -> bool:
    """Whether the context may be longer than the draft was made for; SGLang refuses that."""
    positions = made.wanted.draft.positions
    return positions is None or positions < made.wanted.context


def _command(made: Plan, server: Server, names: Names) -> str:
    wanted = made.wanted
    spec = server.demand.name is UpstreamName.SPEC
    lines = [
        f"python -m sglang.launch_server --model-path {_name(names.model, MODEL)}",
        *(_speculation(made, names) if spec else ()),
        _line({"--dtype": wanted.dtype.value, "--context-length": str(wanted.context)}),
        _line(
            {
                "--max-running-requests": str(server.running),
                "--cuda-graph-max-bs-decode": str(server.running),
            }
        ),
        _line({"--mem-fraction-static": f"{server.fraction:g}", **extra_arguments(made)}),
        *(_gpus(made, server.demand.name)),
        f"--host 127.0.0.1 --port {_PORTS[server.demand.name]} --enable-metrics --sleep-on-idle",
    ]
    command = " \\\n  ".join(lines)
    if spec and outgrows_draft(made):
        return f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 \\\n{command}"
    return command


def _speculation(made: Plan, names: Names) -> tuple[str, ...]:
    drafts = made.wanted.drafts
    return (
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path "
        + _name(names.draft, DRAFT),
        _line(
            {
                "--speculative-num-steps": str(drafts.steps),
                "--speculative-eagle-topk": str(drafts.topk),
                "--speculative-num-draft-tokens": str(drafts.tokens),
            }
        ),
    )


def _gpus(made: Plan, name: UpstreamName) -> tuple[str, ...]:
    wanted = made.wanted
    flags: Flags = {"--tp-size": str(wanted.gpus) if wanted.gpus > 1 else None}
    if wanted.topology is Topology.SEPARATE and name is UpstreamName.BASE:
        flags["--base-gpu-id"] = str(wanted.gpus)
    line = _line(flags)
    return (line,) if line else ()


def _line(flags: Mapping[str, str | None]) -> str:
    return " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)


def _name(name: str | None, otherwise: str) -> str:
    return otherwise if name is None else shlex.quote(name)
