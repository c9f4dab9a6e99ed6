"""What a bench shows: ratios to the first endpoint, doubts in words, table, JSON and report."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from proxy.errors import SpecswitchError
from proxy.tools.asking import Fault, Sample
from proxy.tools.bench.load import Shot, Volley
from proxy.tools.bench.objective import Objective, Ratio
from proxy.tools.bench.report import show, warnings, write
from proxy.tools.bench.standing import Cell, Standing, as_json, is_good, standings
from proxy.tools.bench.watching import Reading, Watched
from proxy.tools.prompts import Prompt

OBJECTIVE = Objective(ttft=0.5, tpot=0.03)
PROMPT = Prompt(({"role": "user", "content": "x"},))
CONDITIONS: dict[str, object] = {"workload": "poisson", "seed": 0}


def sample(seconds: float = 1.0, **more: object) -> Sample:
    """An answer of 11 tokens that took so long."""
    fields: dict[str, object] = {
        "sent_at": 0.0,
        "first_token_seconds": 0.1 * seconds,
        "last_token_seconds": 0.3 * seconds,
        "duration_seconds": seconds,
        "prompt_tokens": 5,
        "output_tokens": 11,
        "finish_reason": "length",
        "acceptance_length": None,
        "status": 200,
        "error": None,
        "upstream": None,
        "reason": None,
    }
    return Sample(**{**fields, **more})  # type: ignore[arg-type]  # the test's own names


def failure(fault: Fault = Fault.CUT, error: str = "it broke") -> Sample:
    """One that did not end well."""
    return sample(error=error, fault=fault, output_tokens=None)


def cell(
    name: str,
    samples: Sequence[Sample | None],
    *,
    rate: float | None = 2.0,
    unsent: Sequence[int] = (),
) -> Cell:
    """One round of one endpoint."""
    shots = [Shot(0.0, PROMPT, 11) for _ in samples]
    return Cell(name, rate, [(shots, Volley(0.0, list(samples), set(unsent)))])


def judged(*cells: Cell) -> list[Standing]:
    """How they stand."""
    return standings(cells, OBJECTIVE, Random(0))


def shown(found: Sequence[Standing], *, interrupted: bool = False) -> str:
    """What stands on a terminal of 80 columns."""
    out = io.StringIO()
    show(Console(file=out, width=80), found, CONDITIONS, interrupted=interrupted)
    return out.getvalue()


def row(text: str, name: str) -> list[str]:
    """The cells of a row of the table."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(name)]
    return line.strip().removeprefix(name).split("  ")


def test_ratios_are_to_the_first_of_each_rate() -> None:
    """Each is set beside the first endpoint under the same load; the first beside nobody."""
    found = judged(
        cell("a", [sample(2.0)] * 30),
        cell("b", [sample(1.0)] * 30),
        cell("a", [sample(4.0)] * 30, rate=8.0),
        cell("b", [sample(3.0)] * 30, rate=8.0),
    )
    assert [one.ratios is None for one in found] == [True, False, True, False]
    slow, fast = (one.ratios for one in (found[1], found[3]))
    assert slow is not None
    assert slow.to == "a"
    assert slow.end_to_end == Ratio(0.5, 0.5, 0.5)
    assert slow.tokens_per_second == 2.0
    assert fast is not None
    assert fast.end_to_end == Ratio(0.75, 0.75, 0.75)


def test_the_table_fits() -> None:
    """Three endpoints stand side by side in 80 columns, with counts, times and ratios."""
    cells = [cell("ours", [sample(1.0, upstream="spec")] * 30)]
    cells += [cell(name, [sample(1.2)] * 30) for name in ("spec", "base")]
    cells[0].watched = [
        Watched([Reading(0, 1, 0, "spec", {}), Reading(60, 3, 6, "spec", {})], whole=True)
    ]
    text = shown(judged(*cells))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "poisson at 2 requests/s" in text
    assert "1.200 (1.20-1.20)" in text
    for name in ("E2E mean", "TTFT p99", "TPOT p50", "goodput, a second", "tok/s to ours"):
        assert row(text, name)
    assert row(text, "switches a minute")[-1].strip() == "-"
    assert "2" in "".join(row(text, "switches a minute"))
    assert "10.0%" in "".join(row(text, "both active"))
    assert "100.0%" in "".join(row(text, "served by spec"))


def test_one_endpoint_has_no_ratio() -> None:
    """There is nothing to set it beside."""
    assert " to a" not in shown(judged(cell("a", [sample()])))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (cell("a", [sample(), failure()]), "a at 2/s: 1 failed: cut"),
        (cell("a", [sample(), failure()]), "it broke"),
        (cell("a", [sample(), None], unsent=[1]), "1 of 2 requests were NOT SENT"),
        (cell("a", [sample(sent_at=1.0)] * 9), "the generator was late (1000 ms at p99)"),
        (cell("a", [sample(output_tokens=None)]), "1 answers without usage"),
        (cell("a", [failure()], rate=None), "a: nothing was measured"),
        (cell("a", []), "nothing was measured"),
    ],
)
def test_doubts_are_said(made: Cell, said: str) -> None:
    """What makes figures doubtful stands beside them in plain words."""
    found = judged(made)
    assert any(said in line for line in warnings(found, interrupted=False))
    assert said in shown(found)


def test_more_doubts() -> None:
    """An interruption, an empty run and a silent admin listener are said, too; else nothing is."""
    good = cell("a", [sample()])
    assert warnings(judged(good), interrupted=False) == []
    assert "interrupted" in warnings(judged(good), interrupted=True)[0]
    assert warnings([], interrupted=False) == ["nothing was measured"]
    good.watched = [Watched(missed=2)]
    (line,) = warnings(judged(good), interrupted=False)
    assert "did not answer 2 times" in line


@pytest.mark.parametrize(
    ("samples", "good"),
    [
        ([sample()], True),
        ([sample(), failure(Fault.REFUSED)], True),
        ([sample(), failure()], False),
        ([failure(Fault.REFUSED)], False),
        ([], False),
    ],
)
def test_what_is_good(samples: list[Sample], *, good: bool) -> None:
    """A failure is not, nor is a run that measured nothing; being full is no failure."""
    assert is_good(judged(cell("a", samples))) is good
    assert not is_good(judged(cell("b", [failure()]), cell("a", samples)))
    assert not is_good([])


def test_json() -> None:
    """One object with everything; what is unknown is null."""
    found = judged(cell("a", [sample()] * 3), cell("b", [failure()]))
    whole = json.loads(as_json(found, CONDITIONS, interrupted=True))
    assert (whole["version"], whole["interrupted"]) == (1, True)
    assert whole["conditions"] == CONDITIONS
    first, second = whole["results"]
    assert (first["endpoint"], first["rate"], first["ratios"]) == ("a", 2.0, None)
    assert first["figures"]["end_to_end"]["p95"] == 1.0
    assert first["switches_per_minute"] is None
    assert second["figures"]["faults"] == {"cut": 1}
    assert second["figures"]["end_to_end"] is None
    assert second["ratios"]["end_to_end"] is None


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    """One file that says it all, also where something is missing."""
    pytest.importorskip("matplotlib")
    cells = [
        cell("ours<", [sample(1.0 + 0.1 * n) for n in range(30)], rate=rate) for rate in (2.0, 4.0)
    ] + [cell("b", [failure()], rate=4.0)]
    cells[0].watched = [
        Watched(
            [Reading(0, 1, 0, "spec", {"spec": 1.0}), Reading(60, 3, 6, "spec", {"base": 2.0})],
            whole=True,
        )
    ]
    file = tmp_path / "out.html"
    write(file, judged(*cells), cells, CONDITIONS, interrupted=False)
    page = file.read_text(encoding="utf-8")
    assert page.count("<svg") == 4 + 2 * 3 + 1
    assert "ours<" not in page
    assert "1 failed: cut" in page
    assert "Over the load" in page
    with pytest.raises(SpecswitchError, match="cannot be written"):
        write(tmp_path / "no" / "out.html", judged(*cells), cells, CONDITIONS, interrupted=False)
