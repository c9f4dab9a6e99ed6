"""The metrics pages of both servers as the page of one: what routers and autoscalers scrape.

Only SGLang's own families pass (`sglang:`). Counters and histograms are sums. Of the gauges those
pass for which there is a rule here; docs/endpoints.md lists them. Labels that tell ranks or servers
apart are left out, so that there is one series where a single server has one; the ranks of one
server that share their work (tensor, pipeline, expert) tell of the same requests, so that one of
them is heard.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from proxy.control.one_load import mean_by
from proxy.core.words import UpstreamName

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""In alphabetical order, as SGLang writes them."""


class Rule(Enum):
    """How a gauge of several servers becomes one."""

    SUM = auto()
    BY_RUNNING = auto()  # the mean, by `num_running_reqs`; the plain mean while nothing runs
    LEAST = auto()  # what both can do
    MOST = auto()
    SPEC = auto()  # only spec's: base has it, and it is 0


GAUGES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            *("num_running_reqs", "num_queue_reqs", "num_grammar_queue_reqs"),
            *("num_retracted_reqs", "num_paused_reqs", "gen_throughput", "decode_sum_seq_lens"),
            *("num_used_tokens", "kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens"),
            *("swa_used_tokens", "swa_available_tokens", "swa_evictable_tokens"),
            *("mamba_used_tokens", "mamba_available_tokens", "mamba_evictable_tokens"),
            *("max_total_num_tokens", "max_total_num_tokens_swa", "num_pages"),
            *("lora_pool_slots_used", "lora_pool_slots_total"),
            *("hicache_host_used_tokens", "hicache_host_total_tokens"),
            *("num_streaming_sessions", "streaming_session_held_tokens"),
            *("weight_memory_usage_gb", "kv_cache_memory_usage_gb", "graph_memory_usage_gb"),
            "http_requests_active",
        ),
        Rule.SUM,
    ),
    "cache_hit_rate": Rule.BY_RUNNING,
    **dict.fromkeys(("context_len", "page_size"), Rule.LEAST),
    # How full: under load all goes to base, and none of it overflows to spec. So with base's cache
    # full and spec's empty the pair is full, and a mean would tell a router that half is free.
    **dict.fromkeys(
        ("utilization", "token_usage", "full_token_usage", "swa_token_usage", "mamba_usage"),
        Rule.MOST,
    ),
    **dict.fromkeys(
        (
            *("spec_accept_length", "spec_accept_rate", "spec_num_steps", "spec_num_draft_tokens"),
            *("spec_cap_length", "spec_block_accept_length"),
        ),
        Rule.SPEC,
    ),
}
"""By name without `sglang:`; other gauges are left out."""

KEPT_LABELS: Final = frozenset(
    {
        *("model_name", "engine_type", "priority", "is_streaming", "le", "quantile"),
        *("cache_source", "source", "outcome", "mode", "stage", "forward_mode", "category"),
        *("forward_overlap", "num_prefill_ranks", "kind", "rank_state", "phase", "reason"),
        *("endpoint", "method", "status_code", "component", "pool", "layer"),
        *("input_estimation", "output_allow", "output_reason", "actual_execution"),
    }
)
"""What SGLang divides its figures by. Others tell ranks or servers apart, or are an operator's."""

MAX_LABEL: Final = 256
"""Characters of a label's value as it is written; SGLang's longest are names of models."""

_WORKERS: Final = ("pp_rank", "tp_rank", "moe_ep_rank")
"""Ranks that work on the same requests."""
_PREFIX: Final = "sglang:"
_SUMMED: Final = frozenset({"counter", "histogram", "summary"})
_HEAD: Final = re.compile(r'[^\s{]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?')
"""A sample's name and labels, up to the brace that ends them."""
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_CACHE_CONFIG: Final = "cache_config_info"


_Worker: TypeAlias = tuple[int, ...]


class _Name(NamedTuple):
    """One series of one server, as its name and labels say; made once, since they do not change."""

    shown: str
    """With the labels that are kept, as it is written."""
    labels: Labels
    bound: str | None
    """Of a histogram's bucket."""
    without_bound: Labels
    rank: str
    """The data-parallel one."""
    worker: _Worker


@dataclass(frozen=True, slots=True)
class _Part:
    """A figure of one data-parallel rank of one server."""

    server: UpstreamName
    rank: str
    value: float


@dataclass(slots=True)
class _Series:
    """One series of the pair."""

    name: _Name
    parts: list[_Part]


@dataclass(slots=True)
class _Family:
    kind: str
    help: str
    series: dict[str, _Series] = field(default_factory=dict)
    """As they are written."""


def one_metrics(
    pages: Mapping[UpstreamName, str], notes: Iterable[str] = (), *, waiting: int = 0
) -> str:
    """The pair's page by the pages of its servers, of which one may be missing.

    `notes` are sentences for who reads it; a scraper passes over them. `waiting` are requests that
    wait before the servers, and count as queued.
    """
    families: dict[str, _Family] = {}
    for server, page in pages.items():
        _Reader(server, families).read(page)
    _queue(waiting, families)
    lines = [f"# specswitch: {note}" for note in notes]
    for name, family in families.items():
        samples = [*_samples(name, family, families)]
        if samples:
            lines += (f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}", *samples)
    lines += _cache_config(families)
    return "\n".join(lines) + "\n"


def _queue(waiting: int, families: Mapping[str, _Family]) -> None:
    """Add what waits to base's queue, where most of it will go, or to spec's where that is alone.

    To its total: where SGLang schedules by priority the queue is divided by that, too, and the
    total has none.
    """
    family = families.get(f"{_PREFIX}num_queue_reqs")
    totals = [
        series
        for series in ([] if family is None else family.series.values())
        if not dict(series.name.labels).get("priority")
    ]
    for server in (UpstreamName.BASE, UpstreamName.SPEC):
        for series in totals:
            if any(part.server is server for part in series.parts):
                series.parts.append(_Part(server, "", waiting))
                return


class _Reader:
    """Reads the page of one server, and adds what it says to the families of the pair."""

    def __init__(self, server: UpstreamName, families: dict[str, _Family]) -> None:
        self._server = server
        self._families = families

    def read(self, page: str) -> None:
        """All of it."""
        name, family, said = "", None, ""
        found: dict[tuple[str, str], tuple[_Name, float]] = {}
        for line in page.split("\n"):  # a label may hold what else ends a line of Unicode's
            if family is not None and line.startswith(name):
                _take(line, found)
            elif line.startswith("# HELP sglang:"):
                said = line[7:].rstrip("\r").partition(" ")[2]
            elif line.startswith("# TYPE "):
                self._add(family, found)
                found.clear()
                name, _, kind = line[7:].partition(" ")
                family = self._wanted(name, kind.strip(), said)
        self._add(family, found)

    def _wanted(self, name: str, kind: str, said: str) -> _Family | None:
        """The family `name`, None where it is not passed on."""
        if not name.startswith(_PREFIX):
            return None
        if kind not in _SUMMED and name.removeprefix(_PREFIX) not in GAUGES:
            return None
        family = self._families.setdefault(name, _Family(kind, said))
        return family if family.kind == kind else None

    def _add(
        self, family: _Family | None, found: Mapping[tuple[str, str], tuple[_Name, float]]
    ) -> None:
        """What was found of a family."""
        if family is None:
            return
        for name, value in found.values():
            series = family.series.get(name.shown)
            if series is None:
                series = family.series[name.shown] = _Series(name, [])
            series.parts.append(_Part(self._server, name.rank, value))


def _take(line: str, found: dict[tuple[str, str], tuple[_Name, float]]) -> None:
    """Note one line; what is no number says nothing, nor does one with a label that is too long."""
    if "#" in line or line.count("}") > 1:  # an exemplar has braces, too, and so may a label
        head = _HEAD.match(line)
        end = head.end() if head else 0
    else:  # thirty times as fast
        end = line.rfind("}") + 1 or line.find(" ")
    try:
        value = float(line[end:].split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return
    name = _name(line[:end])
    if name is None:
        return
    key = (name.shown, name.rank)
    before = found.get(key)
    if before is None or name.worker < before[0].worker:
        found[key] = (name, value)
    elif name.worker == before[0].worker:  # told apart only by labels that an operator has added
        found[key] = (name, before[1] + value)


@lru_cache(maxsize=8192)  # a page has some 800, and the same ones each time
def _name(head: str) -> _Name | None:
    """A sample's name and labels, as they stand there; None where a value is over `MAX_LABEL`.

    It is left out, for two that are cut may be the same.
    """
    name, _, text = head.partition("{")
    given = dict(_LABEL.findall(text))
    kept = tuple(sorted((each, given[each]) for each in KEPT_LABELS & given.keys()))
    if any(len(value) > MAX_LABEL for _, value in kept):
        return None
    return _Name(
        shown=name + _text(kept),
        labels=kept,
        bound=given.get("le"),
        without_bound=tuple(label for label in kept if label[0] != "le"),
        rank=given.get("dp_rank", ""),
        worker=tuple(_whole(given.get(each, "")) for each in _WORKERS),
    )


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _samples(name: str, family: _Family, families: Mapping[str, _Family]) -> Iterator[str]:
    """The lines of a family."""
    rule = Rule.SUM if family.kind in _SUMMED else GAUGES[name.removeprefix(_PREFIX)]
    common = _common_bounds(family) if family.kind == "histogram" else {}
    for shown, series in family.series.items():
        bound = series.name.bound
        if bound is not None and bound not in common.get(series.name.without_bound, {bound}):
            continue
        value = _value(rule, series.name.labels, series.parts, families)
        if value is not None:
            yield f"{shown} {_figure(value)}"


def _common_bounds(family: _Family) -> dict[Labels, set[str]]:
    """The bounds of a histogram that each server has, or its counts would not grow with them."""
    bounds: dict[Labels, dict[UpstreamName, set[str]]] = {}
    for series in family.series.values():
        bound = series.name.bound
        if bound is not None:
            own = bounds.setdefault(series.name.without_bound, {})
            for part in series.parts:
                own.setdefault(part.server, set()).add(bound)
    return {labels: set.intersection(*own.values()) for labels, own in bounds.items()}


def _value(
    rule: Rule, labels: Labels, parts: Sequence[_Part], families: Mapping[str, _Family]
) -> float | None:
    """One figure of several; None where there is none to give."""
    values = [part.value for part in parts]
    match rule:
        case Rule.SUM:
            return sum(values)
        case Rule.LEAST:
            return min(values)
        case Rule.MOST:
            return max(values)
        case Rule.SPEC:
            own = [part.value for part in parts if part.server is UpstreamName.SPEC]
            return sum(own) / len(own) if own else None
        case Rule.BY_RUNNING:
            running = _parts("num_running_reqs", labels, families)
            by_rank = {(part.server, part.rank): part.value for part in running}
            return mean_by(values, [by_rank.get((part.server, part.rank)) for part in parts])


def _parts(name: str, labels: Labels, families: Mapping[str, _Family]) -> list[_Part]:
    """Of the gauge `name` with these labels; none where there is none."""
    family = families.get(f"{_PREFIX}{name}")
    series = None if family is None else family.series.get(f"{_PREFIX}{name}{_text(labels)}")
    return [] if series is None else series.parts


def _cache_config(families: Mapping[str, _Family]) -> Iterator[str]:
    """What a scheduler by prefixes reads: how large a page is, and how many there are."""
    sizes = families.get(f"{_PREFIX}page_size")
    lines = []
    for series in [] if sizes is None else sizes.series.values():
        labels = series.name.labels
        counts = _parts("num_pages", labels, families)
        finite = all(math.isfinite(part.value) for part in (*series.parts, *counts))
        if counts and finite:
            size = _figure(min(part.value for part in series.parts)).removesuffix(".0")
            count = _figure(sum(part.value for part in counts)).removesuffix(".0")
            own = [label for label in labels if label[0] == "model_name"]
            named = (*own, ("num_pages", count), ("page_size", size))
            lines.append(f"{_PREFIX}{_CACHE_CONFIG}{_text(named)} 1.0")
    if lines:
        yield f"# HELP {_PREFIX}{_CACHE_CONFIG} Pages of the KV cache, and tokens of each."
        yield f"# TYPE {_PREFIX}{_CACHE_CONFIG} gauge"
        yield from lines


def _text(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def _figure(value: float) -> str:
    """As Prometheus's clients write it."""
    if value in {float("inf"), float("-inf")}:
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if value != value else repr(value)  # noqa: PLR0124 - NaN is what differs from itself
