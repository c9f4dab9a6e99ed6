"""The tables of docs/scaling.md, from what was simulated.

A rule stands in shares of power-of-two with the same requests: the median over the seeds, and in
brackets its interval of 90 % (`bench.speed.intervals`), where there are five seeds or more.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from bench.scaling.plan import REFERENCE, RULES, Cell, Figures
from bench.speed.intervals import Estimate, estimate

BEGIN: Final = "<!-- bench.scaling begins -->"
END: Final = "<!-- bench.scaling ends -->"

ROWS: Final = (1, 2, 4, 16, 64)
"""The sizes that the page shows; what lies between them lies between their figures."""

Found = Mapping[Cell, Figures]


def markdown(found: Found) -> str:
    """Both tables of each profile."""
    blocks = []
    for profile in dict.fromkeys(cell.profile for cell in found):
        own = {cell: figures for cell, figures in found.items() if cell.profile == profile}
        blocks += [_of_rules(profile, own), _of_the_reference(profile, own)]
    return "\n\n".join(blocks) + "\n"


def put_between(page: str, tables: str) -> str:
    """The page with `tables` between its marks.

    Raises:
        ValueError: it has none.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def ratio(found: Found, cell: Cell) -> Estimate | None:
    """Mean E2E of the rule of `cell` to power-of-two, over all seeds; None for none."""
    pairs = [
        (figures.mean, found[reference].mean)
        for each, figures in found.items()
        if _alike(each, cell)
        and (reference := Cell(each.profile, each.workload, each.pairs, REFERENCE, each.seed))
        in found
    ]
    return estimate([mine / other for mine, other in pairs])


def _of_rules(profile: str, found: Found) -> str:
    """Rules in shares of the reference."""
    rules = [name for name in RULES if name != REFERENCE and any(c.rule == name for c in found)]
    rows = []
    for workload, pairs in _places(found):
        if pairs > 1:
            cells = [Cell(profile, workload, pairs, rule, 0) for rule in rules]
            rows.append([workload, str(pairs), *(_shown(ratio(found, cell)) for cell in cells)])
    head = ["workload", "pairs", *(f"`{rule}`" for rule in rules)]
    return f"`{profile}`: mean E2E to power-of-two\n\n" + _table(head, rows)


def _of_the_reference(profile: str, found: Found) -> str:
    """What power-of-two itself gives, and packing to N* beside it."""
    rows = [
        [workload, str(pairs), *_pair_of(found, profile, workload, pairs)]
        for workload, pairs in _places(found)
    ]
    head = ["workload", "pairs", "E2E s", "p95 s", "TPOT ms", "good", "spec", "busy", "busy, pack"]
    return f"`{profile}`: power-of-two itself\n\n" + _table(head, rows)


def _pair_of(found: Found, profile: str, workload: str, pairs: int) -> Iterator[str]:
    own = _of(found, Cell(profile, workload, pairs, REFERENCE, 0))
    packed = _of(found, Cell(profile, workload, pairs, "pack", 0))
    yield f"{median(one.mean for one in own):.2f}"
    yield f"{median(one.p95 for one in own):.1f}"
    yield f"{median(one.per_token for one in own) * 1e3:.1f}"
    yield f"{median(one.goodput for one in own):.0%}".replace("%", " %")
    yield f"{median(one.on_spec for one in own):.0%}".replace("%", " %")
    for some in (own, packed):
        yield f"{median(one.busy for one in some):.0%}".replace("%", " %") if some else ""


def _places(found: Found) -> list[tuple[str, int]]:
    """Workloads and sizes that were simulated, in order."""
    return sorted({(cell.workload, cell.pairs) for cell in found if cell.pairs in ROWS})


def _of(found: Found, cell: Cell) -> list[Figures]:
    """One for each seed."""
    return [figures for each, figures in found.items() if _alike(each, cell)]


def _alike(one: Cell, other: Cell) -> bool:
    """The same but for the seed."""
    return (one.profile, one.workload, one.pairs, one.rule) == (
        other.profile, other.workload, other.pairs, other.rule,
    )  # fmt: skip


def _shown(found: Estimate | None) -> str:
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
