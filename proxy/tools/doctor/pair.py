"""Do these two servers make a pair? Pure checks over what both say of themselves.

What differs and would keep specswitch from using a server (core/identity.py) is an error; what
would make answers depend on which server gave them is a warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.core.words import UpstreamName
from proxy.tools.doctor.diagnosis import Finding, Severity
from proxy.tools.doctor.server_info import ServerInfo

_UNUSABLE: Final = "specswitch sends nothing to a server that is not what its partner is"
_ANSWERS: Final = "the same request would be answered differently, depending on the load"
_CACHE: Final = "prompts fill and share the cache differently, so a switch costs one side more"


_REDACTED: Final = "<redacted>"
"""What SGLang shows in place of some secrets."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A field that has to be equal, or had better be."""

    field: str
    words: str
    severity: Severity
    why: str


def _warned(why: str, *rows: tuple[str, str]) -> Iterator[_Row]:
    return (_Row(field, words, Severity.WARNING, why) for field, words in rows)


def _noted(why: str, *rows: tuple[str, str]) -> Iterator[_Row]:
    return (_Row(field, words, Severity.NOTE, why) for field, words in rows)


_IDENTITY: Final = (
    ("model", "model_path", "model"),
    ("revision", "revision", "model revision"),
    ("dtype", "dtype", "dtype"),
    ("quantization", "quantization", "quantization"),
    ("context_length", "context_length", "context length"),
    ("tensor_parallel", "tp_size", "tensor parallel size"),
)
"""Of core/identity.py, the argument of SGLang, and what it is called."""

_ROWS: Final = (
    *_warned(
        _ANSWERS,
        ("tokenizer_path", "tokenizer"),
        ("tokenizer_mode", "tokenizer mode"),
        ("kv_cache_dtype", "KV cache dtype"),
        ("chat_template", "chat template"),
        ("hf_chat_template_name", "chat template of the model"),
        ("completion_template", "completion template"),
        ("default_chat_template_kwargs", "chat template arguments"),
        ("reasoning_parser", "reasoning parser"),
        ("tool_call_parser", "tool call parser"),
        ("grammar_backend", "grammar backend"),
        ("sampling_defaults", "sampling defaults"),
        ("preferred_sampling_params", "preferred sampling parameters"),
        ("json_model_override_args", "model overrides"),
        ("load_format", "load format"),
        ("weight_version", "weight version"),
        ("enable_deterministic_inference", "deterministic inference"),
        ("allow_auto_truncate", "truncation of long prompts"),
        ("stream_response_default_include_usage", "usage in streams"),
        ("incremental_streaming_output", "incremental streaming"),
        ("enable_strict_thinking", "strict thinking"),
        ("strip_thinking_cache", "thinking in the cache"),
    ),
    *_warned(
        "requests name the model; a name that one server does not know fails on some paths",
        ("served_model_name", "served name"),
    ),
    *_warned(_CACHE, ("page_size", "page size")),
    *_noted(_CACHE, ("disable_radix_cache", "radix cache off")),
    *_noted(
        "allowed, but the two then have different capacity for other reasons than speculation",
        ("pp_size", "pipeline parallel size"),
        ("dp_size", "data parallel size"),
        ("enable_dp_attention", "attention data parallelism"),
        ("chunked_prefill_size", "prefill chunk"),
    ),
    *_noted(
        "streams look different, depending on the load",
        ("stream_interval", "stream interval"),
        ("enable_cache_report", "cache report"),
    ),
)


def check_pair(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    """What the two are to each other."""
    if _are_one(spec, base):
        yield Finding(
            code="pair.same_server",
            severity=Severity.ERROR,
            what=f"spec and base are one server, {spec.url}",
            why="with one server there is nothing to switch between",
            change="start a second one without the --speculative flags, and give its address",
        )
        return
    yield from _check_roles(spec, base)
    if spec.known and base.known:
        yield from _check_identity(spec, base)
        yield from _check_rows(spec, base)
        yield from _check_version(spec, base)
        yield from _check_keys(spec, base)
        yield from _check_stores(spec, base)
    yield from _check_adapters(spec, base)


def _are_one(spec: ServerInfo, base: ServerInfo) -> bool:
    """The same address, or two addresses that show the same start: no two have its seconds."""
    if spec.url == base.url:
        return True
    mine, its = (info.arguments.canonical("startup_time") for info in (spec, base))
    ports = (info.arguments.count("port") for info in (spec, base))
    return mine is not None and mine == its and mine != "{}" and len(set(ports)) == 1


def _check_roles(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    for info in (spec, base):
        if info.is_specswitch:
            yield Finding(
                code="pair.is_specswitch",
                severity=Severity.ERROR,
                server=info.name,
                what=f"{info.url} is a specswitch, not an engine",
                why="what it says is of both servers at once",
                change="give the engine's own address",
            )
    if spec.known and base.known and spec.algorithm is None and base.algorithm is not None:
        yield Finding(
            code="pair.swapped",
            severity=Severity.ERROR,
            what=f"base speculates ({base.algorithm}) and spec does not",
            why="requests that only a plain server answers rightly would go to the other one",
            change="swap --spec-url and --base-url",
        )
        return
    if spec.known and spec.algorithm is None:
        yield Finding(
            code="spec.not_speculative",
            severity=Severity.ERROR,
            server=UpstreamName.SPEC,
            what="spec reports no speculative algorithm",
            why=_UNUSABLE,
            change="start it with --speculative-algorithm EAGLE3 "
            "--speculative-draft-model-path DRAFT",
        )
    if base.known and base.algorithm is not None:
        yield Finding(
            code="base.speculative",
            severity=Severity.ERROR,
            server=UpstreamName.BASE,
            what=f"base speculates too ({base.algorithm})",
            why=_UNUSABLE,
            change="start it without any --speculative flag",
        )


def _check_identity(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    mine, its = spec.identity, base.identity
    for attribute, argument, words in _IDENTITY:
        left, right = getattr(mine, attribute), getattr(its, attribute)
        if left == right:
            yield _alike(argument, words, left)
        else:
            yield _different(
                _Row(argument, words, Severity.ERROR, _UNUSABLE), _plain(left), _plain(right)
            )


def _check_rows(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    unknown: list[str] = []
    for row in _ROWS:
        left, right = _shown(spec, row.field), _shown(base, row.field)
        if left is None or right is None:
            unknown.append(row.field)
        elif left == right:
            yield _alike(row.field, row.words, left)
        else:
            yield _different(row, left, right)
    if unknown:
        yield Finding(
            code="pair.unknown",
            severity=Severity.NOTE,
            what=f"{len(unknown)} not compared, since not both show it",
            why="another version or vendor of SGLang may name them otherwise",
            change="compare the two launch commands",
            names=tuple(unknown),
        )


def _shown(info: ServerInfo, field: str) -> str | None:
    """The value; /model_info knows of weights that were changed after the start."""
    newer = info.model_info.canonical(field)
    return newer if newer is not None else info.arguments.canonical(field)


def _alike(argument: str, words: str, value: object) -> Finding:
    shown = value if isinstance(value, str) else _plain(value)
    return Finding(
        code=f"pair.{argument}", severity=Severity.OK, what=f"{words}: {shown.strip(chr(34))}"
    )


def _different(row: _Row, left: str, right: str) -> Finding:
    return Finding(
        code=f"pair.{row.field}",
        severity=row.severity,
        what=f"{row.words}: spec has {left}, base {right}",
        why=row.why,
        change=f"start both with the same value: spec {_as_base(row.field, right)}",
    )


def _as_base(field: str, value: str) -> str:
    """How spec is started to be as base is."""
    flag = "--" + field.replace("_", "-")
    match value:
        case "null" | "false":
            return f"without {flag}"
        case "true":
            return f"with {flag}"
        case _:
            return f"with {flag} {value.strip(chr(34))}"


def _plain(value: object) -> str:
    return "null" if value is None else str(value)


def _check_version(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    if spec.version == base.version:
        yield Finding(
            code="pair.version", severity=Severity.OK, what=f"SGLang {_plain(spec.version)}"
        )
        return
    yield Finding(
        code="pair.version",
        severity=Severity.WARNING,
        what=f"spec runs SGLang {_plain(spec.version)}, base {_plain(base.version)}",
        why="versions differ in kernels, parsers and error shapes, and in speed",
        change="run the same version on both",
    )


def _check_keys(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    """Whether one key opens both. A key is compared, and never shown."""
    if "api_key" not in spec.arguments or "api_key" not in base.arguments:
        return
    mine, its = spec.arguments.text("api_key"), base.arguments.text("api_key")
    if _REDACTED in {mine, its}:
        return
    if mine == its:
        asked = "ask for no key" if mine is None else "ask for the same key"
        yield Finding(code="pair.api_key", severity=Severity.OK, what=f"both {asked}")
        return
    if mine and its:
        what = "the two servers ask for different keys"
    else:
        what = f"{'spec' if mine else 'base'} asks for a key, and the other does not"
    yield Finding(
        code="pair.api_key",
        severity=Severity.WARNING,
        what=what,
        why="a client's own key is passed on as it is, and only one of the two would take it",
        change="start both with the same --api-key, or set api_key of [upstreams.spec] and "
        "[upstreams.base]",
    )


def _check_stores(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    """What may be stored goes to base: a store of base alone does, one of spec alone does not."""
    if spec.identity.stores_responses and not base.identity.stores_responses:
        yield Finding(
            code="pair.response_store",
            severity=Severity.WARNING,
            what="spec stores responses, and base does not",
            why="responses that may be stored go to base, where none is found again",
            change="start base with --enable-response-store too, or spec without it",
        )


def _check_adapters(spec: ServerInfo, base: ServerInfo) -> Iterator[Finding]:
    if spec.adapters == base.adapters:
        return
    only = {
        "spec": ", ".join(sorted(spec.adapters - base.adapters)),
        "base": ", ".join(sorted(base.adapters - spec.adapters)),
    }
    missing = "; ".join(f"only {name} has {names}" for name, names in only.items() if names)
    yield Finding(
        code="pair.lora",
        severity=Severity.WARNING,
        what=f"LoRA adapters differ: {missing}",
        why="a request that names one fails, or is answered by the plain model, on the other",
        change="start both with the same --lora-paths, or load the adapter on both",
    )
