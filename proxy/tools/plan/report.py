"""A plan for people and for programs: sentences, a table and commands; or one object."""

import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.core.words import Topology, UpstreamName
from proxy.tools.plan.dotenv import given
from proxy.tools.plan.instead import instead
from proxy.tools.plan.launch import Names, commands, environment
from proxy.tools.plan.notes import assumptions, later, notes, shortage
from proxy.tools.plan.quantities import gib
from proxy.tools.plan.split import Plan, Server
from proxy.tools.plan.wanted import Demand

_BETWEEN: Final = "until curl -fs http://127.0.0.1:30001/ready; do sleep 1; done"

_WIDEST: Final = 100
"""Columns; longer lines are hard to read."""
_NARROWEST: Final = 20

_PARTS: Final[tuple[tuple[str, Callable[[Demand], float]], ...]] = (
    ("CUDA context", lambda each: each.runtime),
    ("weights", lambda each: each.weights),
    ("draft", lambda each: each.draft),
    ("CUDA graphs, tables", lambda each: each.started),
    ("activations", lambda each: each.activations),
)
"""What a server takes beside its KV cache."""


def fields(made: Plan, names: Names) -> dict[str, object]:
    """The plan as JSON has it; sizes are bytes on each GPU."""
    wanted = made.wanted
    return {
        "fits": made.fits,
        "short_bytes": max(0, round(made.short)),
        "topology": wanted.topology.value,
        "gpus": wanted.gpus,
        "gpu_bytes": wanted.gpu_bytes,
        "context": wanted.context,
        "chunked_prefill_size": made.chunk,
        "needs": {each.name.value: _needs(each) for each in made.demands},
        "servers": {each.demand.name.value: _server(each) for each in made.servers or ()},
        "commands": {name.value: line for name, line in commands(made, names).items()},
        "env": given(environment(made, names)),
        "notes": list(notes(made)),
        "instead": [] if made.fits else list(instead(made)),
        "assumptions": [asdict(each) for each in assumptions(made)],
    }


def as_json(made: Plan, names: Names) -> str:
    """The plan for programs."""
    return json.dumps(fields(made, names), indent=2, ensure_ascii=False)


def _needs(each: Demand) -> dict[str, int]:
    return {
        "weights_bytes": each.weights,
        "draft_bytes": each.draft,
        "runtime_bytes": each.runtime,
        "graphs_bytes": each.started,
        "activations_bytes": each.activations,
        "token_bytes": each.token_charged,
        "least_tokens": each.least_tokens,
    }


def _server(each: Server) -> dict[str, float | int]:
    return {
        "mem_fraction_static": each.fraction,
        "free_least_bytes": round(each.free_least),
        "free_most_bytes": round(each.free_most),
        "kv_bytes": round(each.kv_bytes),
        "kv_tokens": each.kv_tokens,
        "full_contexts": each.full_contexts,
        "max_running_requests": each.running,
        "cuda_graph_max_bs_decode": each.running,
    }


def show(made: Plan, names: Names, console: Console) -> None:
    """Print the plan: the answer first, and last what it rests on."""
    wanted = made.wanted
    gpus = "one GPU" if wanted.gpus == 1 else f"{wanted.gpus} GPUs"
    where = f"{gpus} each" if wanted.topology is Topology.SEPARATE else gpus
    answer, style = (
        ("The pair fits", "bold green") if made.fits else ("It does not fit", "bold red")
    )
    console.print(Text(f"{answer}: {where} of {gib(wanted.gpu_bytes)} GiB.", style=style))
    if not made.fits:
        _sentence(console, f"{shortage(made)}.")
    console.print(_table(made))
    if made.fits:
        for note in notes(made):
            _sentence(console, f"- {note}")
        _commands(made, names, console)
    else:
        _instead(made, console)
    _assumed(made, console)
    _sentence(console, later(made) if made.fits else "All figures are estimates.")


def _table(made: Plan) -> Table:
    table = Table(
        *("GiB on each GPU, in launch order", *UpstreamName), box=SIMPLE_HEAD, title_justify="left"
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name, part in _PARTS:
        table.add_row(name, *(_amount(part(each)) for each in made.demands))
    if made.servers is None:
        table.add_row(
            f"KV cache of {made.wanted.context} tokens",
            *(gib(each.least_tokens * each.token_taken) for each in made.demands),
        )
        return table
    for name, figure in _rows().items():
        table.add_row(name, *map(figure, made.servers))
    return table


def _rows() -> Mapping[str, Callable[[Server], str]]:
    return {
        "KV cache, at least": lambda each: gib(each.kv_bytes),
        "free when it measures": _free,
        "--mem-fraction-static of that": lambda each: f"{each.fraction:g}",
        "KV tokens, at least": lambda each: f"{each.kv_tokens:,}",
        "requests of full context": lambda each: str(each.full_contexts),
        "--max-running-requests": lambda each: str(each.running),
        "--cuda-graph-max-bs-decode": lambda each: str(each.running),
    }


def _free(server: Server) -> str:
    least, most = gib(server.free_least), gib(server.free_most)
    return least if least == most else f"{least} to {most}"


def _amount(value: float) -> str:
    return gib(value) if value else ""


def _commands(made: Plan, names: Names, console: Console) -> None:
    spec, base = commands(made, names).values()
    between = (_BETWEEN,) if made.wanted.topology is Topology.SHARED else ()
    for block in (spec, *between, base):
        # As it is: it is there to be copied.
        console.print(Text(f"\n{block}"), soft_wrap=True)
    console.print()


def _instead(made: Plan, console: Console) -> None:
    found = instead(made)
    if not found:
        _sentence(console, "Nothing near it fits either: a smaller model, or larger GPUs.")
        return
    _sentence(console, "What would fit:")
    for each in found:
        _sentence(console, f"- {each}")
    console.print()


def _assumed(made: Plan, console: Console) -> None:
    _sentence(console, "Assumed, and the option that says otherwise:")
    for each in assumptions(made):
        _sentence(console, f"- {each.option} {each.value}: {each.why}")
    console.print()


def _sentence(console: Console, text: str) -> None:
    """In lines of at most _WIDEST; an option is never cut, so that it can be copied."""
    lines = textwrap.fill(
        text,
        max(_NARROWEST, min(console.width, _WIDEST)),
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(Text(lines), soft_wrap=True)
