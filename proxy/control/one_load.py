"""What the pair has in hand, as one server with two ranks would say it: `/v1/loads` of both.

spec is rank 0 and base rank 1, also where one of them is missing, and where a server has several
ranks of its own, which are one then. How figures of several ranks become one is a rule for each;
docs/endpoints.md lists them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeGuard

from proxy.core.words import UpstreamName

Page: TypeAlias = Mapping[str, object]
Number: TypeAlias = int | float

RANKS: Final[Mapping[UpstreamName, int]] = {UpstreamName.SPEC: 0, UpstreamName.BASE: 1}
_PREFIXES: Final = {"speculative": "spec", "disaggregation": "disagg"}
"""How SGLang names sections in Prometheus's format."""
_QUEUED: Final = ("num_waiting_reqs", "num_total_reqs", "total_waiting_reqs", "total_reqs")
"""What counts requests that wait; all but the first of versions before 0.5.23."""


def one_load(
    pages: Mapping[UpstreamName, Page], rank: int | None = None, *, waiting: int = 0
) -> dict[str, object]:
    """The pair's load by the pages of its servers, of which one may be missing.

    `rank` leaves the others out, as SGLang does. `waiting` are requests that wait before the
    servers: they count as queued at base, where most of them will go, or at spec where that is
    alone. Raises RecursionError where a page is nested too deeply.
    """
    whole = pages[UpstreamName.BASE if UpstreamName.BASE in pages else UpstreamName.SPEC]
    there = [name for name in RANKS if name in pages and _ranks(pages[name])]
    queue = UpstreamName.BASE if UpstreamName.BASE in there else UpstreamName.SPEC
    loads = [
        _with_waiting(one_rank(_ranks(pages[name]), RANKS[name]), waiting if name is queue else 0)
        for name in there
        if rank in {None, RANKS[name]}
    ]
    made: dict[str, object] = {**whole, "loads": loads}
    if "dp_rank_count" in whole:  # of versions before 0.5.23, with their sums
        made["dp_rank_count"] = len(loads)
    sums = [each for page in pages.values() if isinstance(each := page.get("aggregate"), dict)]
    if sums and rank is None:
        made["aggregate"] = _with_waiting(_combined(sums, _rule_of_sums), waiting)
    return made


def _with_waiting(fields: dict[str, object], waiting: int) -> dict[str, object]:
    """`fields` of a rank, or of sums, where as many requests more wait."""
    more: dict[str, object] = {
        name: value + waiting for name in _QUEUED if _is_number(value := fields.get(name))
    }
    queues = fields.get("queues")
    if isinstance(queues, dict) and _is_number(queued := queues.get("waiting")):
        more["queues"] = {**queues, "waiting": queued + waiting}
    return {**fields, **more}


def one_rank(ranks: Sequence[Page], number: int) -> dict[str, object]:
    """The ranks of one server as the rank `number`; at least one is needed."""
    return {**_combined(ranks, _rule_of), "dp_rank": number}


def prometheus(loads: Sequence[Mapping[str, object]]) -> str:
    """The same in the text format of Prometheus, with SGLang's names."""
    samples: dict[str, list[str]] = {}
    for load in loads:
        label = f'{{dp_rank="{load["dp_rank"]}"}}'
        for name, value in load.items():
            if name == "dp_rank":
                continue
            if isinstance(value, dict):
                prefix = _PREFIXES.get(name, name)
                named = {f"sglang_{prefix}_{inner}": it for inner, it in value.items()}
            else:
                named = {f"sglang_{name}": value}
            for metric, figure in named.items():
                if _is_number(figure):
                    samples.setdefault(metric, []).append(f"{metric}{label} {figure}")
    lines = [line for name, own in samples.items() for line in (f"# TYPE {name} gauge", *own)]
    return "\n".join(lines) + "\n"


def _ranks(page: Page) -> list[Page]:
    loads = page.get("loads")
    return [each for each in loads if isinstance(each, dict)] if isinstance(loads, list) else []


Rule: TypeAlias = Callable[[Sequence[Number], Sequence[Page]], Number]


def _sum(values: Sequence[Number], _parts: Sequence[Page]) -> Number:
    return sum(values)


def _oldest(values: Sequence[Number], _parts: Sequence[Page]) -> Number:
    return min(values)


def _mean(values: Sequence[Number], _parts: Sequence[Page]) -> Number:
    return sum(values) / len(values)


def _most(values: Sequence[Number], _parts: Sequence[Page]) -> Number:
    return max(values)


def _mean_by_running(values: Sequence[Number], parts: Sequence[Page]) -> Number:
    found = [part.get("num_running_reqs") for part in parts]
    return mean_by(values, [float(each) if _is_number(each) else None for each in found])


def mean_by(values: Sequence[Number], weights: Sequence[float | None]) -> float:
    """The mean, weighed; the plain one where weights are missing, or make no sense."""
    known = [each for each in weights if each is not None and math.isfinite(each) and each >= 0.0]
    most = max(known, default=0.0)
    if len(known) < len(values) or most == 0.0:
        return sum(values) / len(values)
    shares = [each / most for each in known]  # or large ones would make an infinity
    return sum(v * s for v, s in zip(values, shares, strict=True)) / sum(shares)


_RULES: Final[Mapping[str, Rule]] = {
    "timestamp": _oldest,
    "token_usage": _most,
    "cache_hit_rate": _mean_by_running,
    "utilization": _most,
    "accept_length": _mean,
    "accept_rate": _mean,
    "kv_transfer_latency_ms": _mean,
}
"""All other figures are sums. What is in `one_metrics.GAUGES` too has the same rule there."""


def _rule_of(name: str) -> Rule:
    return _RULES.get(name, _sum)


def _rule_of_sums(name: str) -> Rule:
    if name in {"avg_token_usage", "avg_utilization"}:  # of one server, and how full that is
        return _most
    return _mean if name.startswith("avg_") else _sum


def _combined(parts: Sequence[Page], rule_of: Callable[[str], Rule]) -> dict[str, object]:
    """Several objects as one, field by field; what only some have is theirs."""
    if len(parts) == 1:
        return dict(parts[0])
    made: dict[str, object] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        having = [part for part in parts if part.get(name) is not None]
        made[name] = _one(name, having, rule_of) if having else None
    return made


def _one(name: str, parts: Sequence[Page], rule_of: Callable[[str], Rule]) -> object:
    values = [part[name] for part in parts]
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) == len(values):
        return rule_of(name)(numbers, parts)
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values):
        return _combined(objects, rule_of)
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) and len({*map(len, lists)}) == 1:
        columns = [
            [value for value in column if _is_number(value)] for column in zip(*lists, strict=True)
        ]
        if all(len(column) == len(lists) for column in columns):
            return [sum(column) for column in columns]
    return values[0]


def _is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | float) and not isinstance(value, bool)
