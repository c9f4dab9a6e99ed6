"""bench.speed: its statistics, its order of runs, its figures, results and tables."""

import io
import os
from math import comb
from pathlib import Path

import pytest

from bench.speed import leaving
from bench.speed.errors import BenchError
from bench.speed.intervals import CONFIDENCE, added, estimate, rank_of, ratios
from bench.speed.machine import Spent, others, spent
from bench.speed.measuring import figures_of
from bench.speed.results import Results, Run, read, write_conditions, write_run
from bench.speed.rounds import turns
from bench.speed.scraping import lag_in
from bench.speed.table import markdown, samples_of
from bench.speed.targets import TARGETS, of_tree
from bench.speed.works import WORKS

SPECSWITCH, ROUTER = "specswitch", "sglang-router"
DIRECT = TARGETS["direct"]


def run(target: str, number: int = 0, work: str = "requests-32", **figures: float) -> Run:
    """A run that went well."""
    return Run(work=work, target=target, round=number, figures=dict(figures))


# --- intervals -------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "rank"), [(1, None), (4, None), (5, 1), (8, 2), (15, 4)])
def test_the_rank_of_the_interval(count: int, rank: int | None) -> None:
    """As in tables of the sign test: with fifteen the fourth from either end."""
    assert rank_of(count) == rank


@pytest.mark.parametrize("count", range(5, 60))
def test_the_interval_holds_the_median_often_enough_and_is_the_shortest(count: int) -> None:
    """Nine of ten samples hold it between these ranks, and not between the next ones."""
    rank = rank_of(count)
    assert rank is not None

    def outside(k: int) -> float:
        return float(2 * sum(comb(count, i) for i in range(k)) / 2**count)

    assert outside(rank) <= 1 - CONFIDENCE < outside(rank + 1)


def test_an_estimate_is_the_median_with_its_order_statistics() -> None:
    """One wild pair of fifteen moves neither the figure nor the interval's other end."""
    found = estimate([*range(1, 15), 1000.0])

    assert found is not None
    assert (found.value, found.low, found.high, found.rounds) == (8, 4, 12, 15)


def test_few_rounds_have_no_interval_and_none_no_figure() -> None:
    """What is unknown is not made up."""
    few = estimate([1.0, 3.0])

    assert few is not None
    assert (few.value, few.low, few.high) == (2.0, None, None)
    assert estimate([]) is None


def test_ratios_are_of_rounds_that_both_have() -> None:
    """A round that one lacks, or in which the other has nothing, says nothing."""
    assert ratios({0: 2.0, 1: 9.0, 2: 4.0, 3: 1.0}, {0: 1.0, 2: 8.0, 3: 0.0}) == [2.0, 0.5]


def test_what_is_added_is_taken_round_by_round() -> None:
    """The direct figure of the same round is taken off."""
    assert added({0: 5.0, 1: 7.0, 2: 1.0}, {0: 1.0, 1: 2.0}) == {0: 4.0, 1: 5.0}


# --- the order of runs -----------------------------------------------------------------------


def order(*works: str, rounds: int = 2, thin: bool = False, names: str = "") -> list[str]:
    """Turns as words."""
    targets = [TARGETS[name] for name in names.split() or [SPECSWITCH, ROUTER]]
    planned = turns([WORKS[name] for name in works], targets, rounds, thin=thin)
    return [f"{turn.work.name} {turn.target.name} {turn.round}" for turn in planned]


def test_rounds_go_forward_and_backward() -> None:
    """Whoever is first in one round is last in the next."""
    assert order("requests-32") == [
        "requests-32 specswitch 0",
        "requests-32 sglang-router 0",
        "requests-32 sglang-router 1",
        "requests-32 specswitch 1",
    ]


def test_works_of_a_group_take_turns() -> None:
    """What is compared between works runs in the same round."""
    found = order("flat-64", "requests-32", "flat-256", rounds=1, names=SPECSWITCH)

    assert [each.split()[0] for each in found] == ["flat-64", "flat-256", "requests-32"]


def test_those_beside_the_core_take_part_in_each_fifth_round() -> None:
    """They are context; the core is in all of them."""
    beside = "nginx", "specswitch-interpreted"
    found = order("requests-32", rounds=15, thin=True, names=" ".join((SPECSWITCH, *beside)))

    assert sum(" specswitch " in each for each in found) == 15
    for name in beside:
        rounds = [each.split()[2] for each in found if name in each]
        assert sorted(rounds, key=int) == ["0", "5", "10"]


def test_a_work_is_for_those_that_it_names() -> None:
    """LiteLLM does not carry 4,096 streams, and the emulator has no start of its own."""
    assert order("streams-4096", rounds=1, names="litellm nginx") == ["streams-4096 nginx 0"]
    assert order("start", rounds=1, names="direct nginx") == ["start nginx 0"]


def test_a_work_may_have_fewer_rounds() -> None:
    """Half a minute of silence is measured once."""
    assert order("stall", rounds=15, names=SPECSWITCH) == ["stall specswitch 0"]


def test_another_tree_does_the_works_of_specswitch() -> None:
    """Two working trees are compared in all of them."""
    tree = of_tree("before", Path("/somewhere"))
    found = list(turns([WORKS["flat-64"]], [tree], 6, thin=True))

    assert len(found) == 6


# --- figures ---------------------------------------------------------------------------------


def said(**changed: object) -> dict[str, object]:
    """What the load says of 10 streams of 100 chunks."""
    numbers: dict[str, object] = {
        "clients": 10,
        "in_time": 9,
        "count": 1000,
        "steady_chunks": 500,
        "exact": 990,
        "altered": 10,
        "wrong": 0,
        "us_p50": None,
        "left": [],
    }
    return {**numbers, **changed}


def test_cpu_time_is_told_for_each_chunk() -> None:
    """User and system time apart, over all and while all streams ran."""
    steady = Spent(0.005, 0.005)
    found = figures_of(said(), WORKS["streams-64"], Spent(0.02, 0.01), steady)

    assert found["cpu_us"] == pytest.approx(30)
    assert [found["user_us"], found["system_us"]] == pytest.approx([20, 10])
    assert found["steady_cpu_us"] == pytest.approx(20)


def test_shares_are_of_all_streams_and_of_all_chunks() -> None:
    """Nine of ten in time, 99 of 100 exact; what is not known stays so."""
    found = figures_of(said(), WORKS["streams-64"], Spent(0, 0), None)

    assert (found["in_time_share"], found["exact_share"]) == (0.9, 0.99)
    assert found["us_p50"] is None
    assert "cpu_us" not in found


def test_a_client_that_leaves_is_paired_with_its_own_stream() -> None:
    """By id and not by order; who is missing counts with the horizon."""
    left_at = leaving.left({"left": [[1, 5_000_000], [2, 1_000_000], [3, 0]]})
    closed_at = leaving.closed(b"2 3000000\n1 6000000\n")

    assert leaving.figures(left_at, closed_at, 8.0) == {
        "closed_ms_p50": 2.0,
        "closed_ms_max": 8000.0,
        "never_closed": 1.0,
    }


def test_nobody_left_says_nothing() -> None:
    """An empty run is no zero."""
    assert leaving.figures({}, {}, 8.0)["closed_ms_p50"] is None


LAG_PAGE = """# TYPE specswitch_loop_lag_seconds histogram
specswitch_loop_lag_seconds_bucket{le="0.01"} 5.0
specswitch_loop_lag_seconds_bucket{le="0.025"} 7.0
specswitch_loop_lag_seconds_bucket{le="+Inf"} 7.0
"""


def test_the_loops_lateness_is_what_was_added_meanwhile() -> None:
    """Two were later than 10 ms, none later than 25; what was there before does not count."""
    before = lag_in(LAG_PAGE.replace("7.0", "5.0"))
    after = lag_in(LAG_PAGE)
    assert before is not None
    assert after is not None

    assert ((after - before).most_ms, (after - before).over_10_ms) == (25.0, 2)
    assert ((after - after).most_ms, (after - after).over_10_ms) == (None, 0)


def test_a_page_without_it_says_nothing() -> None:
    """Peers have no such histogram."""
    assert lag_in("sglang:anything 1.0\n") is None


def test_this_process_has_spent_something_and_is_not_among_the_others() -> None:
    """/proc is read as it is written, and what is ours can be left out."""
    everybody = others(set())  # first: time only grows

    assert spent(os.getpid()).total > 0
    assert others({os.getpid()}) < everybody


# --- results ---------------------------------------------------------------------------------


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Conditions and runs, faults and unknown figures with them."""
    first = Run(work="requests-32", target=ROUTER, round=0, attempt=2, disturbed=True, fault="late")
    second = Run(work="requests-32", target=SPECSWITCH, round=0, figures={"cpu_us": None})
    file = io.StringIO()
    write_conditions(file, {"cores": 2})
    write_run(file, first)
    write_run(file, second)
    (tmp_path / "out.jsonl").write_text(file.getvalue())

    assert read([tmp_path / "out.jsonl"]) == Results([{"cores": 2}], [first, second])


@pytest.mark.parametrize("text", ["no JSON", '{"work": 1, "unheard": 2}', "[1]", "7"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """A wrong file is named."""
    (tmp_path / "other").write_text(text)

    with pytest.raises(BenchError, match="other holds no results"):
        read([tmp_path / "other"])


# --- tables ----------------------------------------------------------------------------------


def test_the_last_attempt_of_a_round_counts() -> None:
    """A disturbed run is replaced by the one that came after it."""
    first = Run(work="requests-32", target=ROUTER, round=0, disturbed=True, figures={"cpu_us": 9})
    second = Run(work="requests-32", target=ROUTER, round=0, attempt=2, figures={"cpu_us": 1})

    found = samples_of([first, second], "requests-32")[ROUTER]

    assert found.values("cpu_us") == {0: 1}
    assert not found.disturbed


@pytest.mark.parametrize(("disturbed", "kept"), [(2, [2, 3]), (3, [0, 1, 2, 3])])
def test_disturbed_rounds_count_only_where_too_few_others_are_left(
    disturbed: int, kept: list[int]
) -> None:
    """Half of the rounds are enough; below it all count and the table says so."""
    runs = [
        Run(
            work="requests-32",
            target=ROUTER,
            round=each,
            disturbed=each < disturbed,
            figures={"cpu_us": 1.0},
        )
        for each in range(4)
    ]

    found = samples_of(runs, "requests-32")[ROUTER]

    assert sorted(found.runs) == kept
    assert found.disturbed == (len(kept) == 4)
    assert ("sglang-router *" in markdown(Results([], runs))) == found.disturbed


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Not the ratio of the medians: here that would be 1."""
    runs = [
        *(run(SPECSWITCH, number, cpu_us=value) for number, value in enumerate([2, 4, 6, 8, 10])),
        *(run(ROUTER, number, cpu_us=value) for number, value in enumerate([10, 8, 6, 4, 1])),
    ]

    assert "| specswitch | 5 | 6.0 | 1.00 (0.20 to 10.00) |" in markdown(Results([], runs))


def test_what_is_added_needs_the_direct_figure() -> None:
    """It is taken round by round, and not shown for asking directly."""
    runs = [run("direct", us_p50=10.0), run(SPECSWITCH, us_p50=110.0), run(ROUTER, us_p50=210.0)]
    text = markdown(Results([], runs))

    assert "| direct | 1 | 0.010 | - | - |" in text
    assert "| specswitch | 1 | 0.110 | 0.100 | 0.50 |" in text
    assert "added" not in markdown(Results([], runs[1:]))


def test_without_the_reference_there_is_no_ratio() -> None:
    """A column of dashes is none."""
    assert "ratio |" not in markdown(Results([], [run(SPECSWITCH, cpu_us=1.0)]))


def test_faults_are_told_below_the_table() -> None:
    """With how often they were."""
    bad = Run(work="requests-32", target=ROUTER, round=0, fault="it\ndied")

    text = markdown(Results([], [bad, bad, run(SPECSWITCH, cpu_us=1.0)]))

    assert "sglang-router, in 2 of its runs: it / died" in text


def test_works_of_a_group_are_compared_round_by_round() -> None:
    """CPU for each chunk of 4,096 streams to that of 64; a delay as a difference in ms."""
    runs = [
        run(SPECSWITCH, work="flat-64", steady_cpu_us=10.0),
        run(SPECSWITCH, work="flat-4096", steady_cpu_us=15.0),
        run(SPECSWITCH, work="streams-1024", us_max=2000.0),
        run(SPECSWITCH, work="scraped-1024", us_max=5000.0),
    ]
    lines = markdown(Results([], runs)).splitlines()

    assert any("4,096 streams to 64" in line and line.endswith("| 1.50 |") for line in lines)
    assert any("longest" in line and line.endswith("| 3.00 |") for line in lines)


def test_conditions_stand_before_the_tables() -> None:
    """A line each, versions in one."""
    conditions = {"cores": 2, "versions": {"nginx": "1.22.1"}, "load_average": [0.1, 0.2]}
    text = markdown(Results([conditions], []))

    assert "- cores: 2\n- versions: nginx 1.22.1\n- load average: 0.1, 0.2\n" in text
