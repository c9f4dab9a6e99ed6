"""`specswitch plan`: from what was asked for to a plan, printed or written to a `.env`."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from proxy.core.words import Topology, UpstreamName
from proxy.errors import ConfigError
from proxy.tools.destination import reject_unwritable
from proxy.tools.plan import dotenv
from proxy.tools.plan.known import Known, Told, known
from proxy.tools.plan.launch import (
    PLANNED_FLAGS,
    Names,
    compose_files,
    environment,
    extra_arguments,
)
from proxy.tools.plan.report import as_json, show
from proxy.tools.plan.sizes import KvDtype
from proxy.tools.plan.split import Plan, plan
from proxy.tools.plan.wanted import Drafts, Reserves, Wanted

_CONTEXT: Final = 32_768
"""Tokens, where the model was not made for less: what the README's commands have."""
_REQUIRED: Final = (
    "MODEL",
    "DRAFT_MODEL",
    "SPECSWITCH_ADMIN_TOKEN",
    "GRAFANA_ADMIN_PASSWORD",
)
"""Keys without which compose does not start, or not as planned."""
_THERE: Final = (
    "is there already; with --force its lines that a plan decides are changed, and all others kept"
)
_MADE_FOR: Final = "which the model was made for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked for."""

    gpu_bytes: int
    gpus: int = 1
    topology: Topology = Topology.SHARED
    told: Told
    names: Names = field(default_factory=Names)
    context: int | None = None
    """None: _CONTEXT, or what the model was made for if that is less."""
    spec_running: int = 16
    base_running: int = 256
    kv_dtype: KvDtype = KvDtype.AUTO
    drafts: Drafts = field(default_factory=Drafts)
    spec_share: float = 0.25
    chunk: int | None = None
    reserves: Reserves = field(default_factory=Reserves)


def wanted(options: Options) -> Wanted:
    """What the options ask for.

    Raises:
        ConfigError: a file cannot be used, or two options contradict each other.
    """
    found = known(options.told)
    _reject_uneven(found, options.gpus)
    return Wanted(
        gpu_bytes=options.gpu_bytes,
        gpus=options.gpus,
        topology=options.topology,
        model=found.model,
        draft=found.draft,
        draft_share=found.draft_share,
        context=_context(options.context, found.model.positions),
        spec_running=options.spec_running,
        base_running=options.base_running,
        dtype=options.told.dtype,
        kv_dtype=options.kv_dtype,
        drafts=options.drafts,
        spec_share=options.spec_share,
        chunk=options.chunk,
        reserves=options.reserves,
    )


def run(options: Options, *, env: Path | None, force: bool, as_object: bool) -> int:
    """Plan, print it, and write `env` if the pair fits; 0 if it does, else 1.

    Raises:
        ConfigError: what is asked for cannot be planned.
        SpecswitchError: the file cannot be read or written.
    """
    if env is not None and env.exists() and not force:
        raise ConfigError([(str(env), _THERE)])
    reject_unwritable(env)
    made = plan(wanted(options))
    # Before it is shown: whoever reads only the first lines ends us with them.
    became = [] if env is None else list(_write(made, options.names, env))
    if as_object:
        print(as_json(made, options.names))  # noqa: T201 - its output
    else:
        show(made, options.names, Console())
    for sentence in became:
        _tell(sentence, quiet=as_object)
    return 0 if made.fits else 1


def _write(made: Plan, names: Names, env: Path) -> Iterator[str]:
    """Write the file; what became of it, in sentences."""
    if not made.fits:
        yield f"{env} was not written"
        return
    before = dotenv.read(env)
    now = dotenv.value(before, "COMPOSE_FILE")
    values = environment(made, names) | {"COMPOSE_FILE": compose_files(now, made.wanted.topology)}
    extra = extra_arguments(made)
    arguments = {f"{name.upper()}_EXTRA_ARGS": extra for name in UpstreamName}
    text = dotenv.merged(before, values, arguments)
    dotenv.write(env, text)
    gone = [name for name in values if values[name] is None and dotenv.value(before, name)]
    # A file that lacks a key altogether is another's: Kubernetes' secrets have one of their own.
    asked = [name for name in _REQUIRED if not before or dotenv.value(text, name) is not None]
    missing = dotenv.unset(text, tuple(asked))
    out = f"; taken out: {', '.join(gone)}" if gone else ""
    left = f"; still to be set in it: {', '.join(missing)}" if missing else ""
    yield f"{env} was written{out}{left}"
    yield from _doubts(text, values, arguments)


def _doubts(text: str, decided: Container[str], arguments: Iterable[str]) -> Iterator[str]:
    """What of the file may be at odds with the plan."""
    for name in ("MODEL", "DRAFT_MODEL"):
        kept = dotenv.value(text, name)
        if kept and name not in decided:
            yield f"{name} stays {kept}: is the plan for that one?"
    for name in arguments:
        words = (dotenv.value(text, name) or "").replace("=", " ").split()
        undone = [flag for flag in PLANNED_FLAGS if flag in words]
        if undone:
            yield f"{name} has {', '.join(undone)}, which counts in place of the plan's"


def _tell(sentence: str, *, quiet: bool) -> None:
    if not quiet:
        Console(stderr=True).print(sentence, soft_wrap=True, highlight=False, markup=False)


def _context(asked: int | None, positions: int | None) -> int:
    if asked is None:
        return _CONTEXT if positions is None else min(_CONTEXT, positions)
    if positions is not None and asked > positions:
        raise ConfigError([("--context", f"must be at most {positions}, {_MADE_FOR}")])
    return asked


def _reject_uneven(found: Known, gpus: int) -> None:
    model = found.model
    if model.can_be_split(gpus):
        return
    heads = f"{model.heads} attention heads and {model.kv_heads} KV heads"
    raise ConfigError([("--gpus", f"{gpus} GPUs cannot share {heads} evenly")])
