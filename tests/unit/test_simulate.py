"""`specswitch simulate`: names, exit codes, tables, JSON and the report."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from proxy.commands.simulate import simulate
from proxy.errors import ConfigError
from proxy.sim.measures import LEAST_REQUESTS, LEAST_SEEDS, MEASURED_POLICIES, Measure
from proxy.sim.workloads import WORKLOADS
from proxy.tools.simulate.run import Options, chosen, measured
from proxy.tools.simulate.tables import as_json

SMALL = ("--seeds", "1", "--requests", "40", "--processes", "1")


def specswitch(*arguments: str) -> Result:
    """The command with these arguments, on a terminal of 80 columns."""
    return CliRunner(env={"COLUMNS": "80"}).invoke(simulate, [*arguments])


def test_names_are_taken_in_order_and_once() -> None:
    """The order is ours, whatever the order asked for; `all` is every one."""
    assert chosen("--x", ["c", "a", "c"], ["a", "b", "c"]) == ("a", "c")
    assert chosen("--x", ["b", "all"], ["a", "b"]) == ("a", "b")
    with pytest.raises(ConfigError, match="--x: there is no d; there are a, b, all"):
        chosen("--x", ["d"], ["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--workload", "nope"), "--workload: there is no nope; there are poisson-05"),
        (("--profile", "nope"), "--profile: there is no nope; there are founding, tree, chain"),
        (("--policy", "nope"), "--policy: there is no nope; there are switch, count-only"),
        (("--seeds", "0"), "0 is not in the range"),
        (("--contention", "0"), "0.0 is not in the range"),
        (("--contention", "2.1"), "2.1 is not in the range"),
        (("--trace", "x.csv", "--workload", "all"), "takes the place of --workload"),
    ],
)
def test_wrong_usage_is_named(arguments: tuple[str, ...], says: str) -> None:
    """Exit code 2, and the sentence says what is wrong and what there is."""
    found = specswitch(*arguments)

    assert found.exit_code == 2
    assert says in found.output


def test_bad_trace_is_named_by_its_line(tmp_path: Path) -> None:
    """Exit code 1, with the file and the line."""
    trace = tmp_path / "bad.csv"
    trace.write_text("at,prompt_tokens,output_tokens\n0,10,10\n1,ten,10\n")
    found = specswitch("--trace", str(trace), *SMALL)

    assert found.exit_code == 1
    assert "bad.csv" in found.output
    assert "3" in found.output


def test_trace_is_replayed(tmp_path: Path) -> None:
    """A file of arrivals takes the place of the named workloads."""
    trace = tmp_path / "arrivals.csv"
    rows = [f"{number},{100 + number},{50 + number}" for number in range(30)]
    trace.write_text("\n".join(["at,prompt_tokens,output_tokens", *rows]) + "\n")
    found = specswitch("--trace", str(trace), "--policy", "switch", "--json", *SMALL)

    assert found.exit_code == 0, found.output
    (comparison,) = json.loads(found.stdout)["comparisons"]
    assert [one["workload"] for one in comparison["results"]] == ["replay"]
    assert comparison["results"][0]["requests"] == 40


def test_json_has_every_run_and_no_infinity() -> None:
    """One object on standard output and nothing else, strict JSON."""
    found = specswitch(
        "--profile", "chain", "--workload", "poisson-10", "--policy", "switch",
        "--policy", "always-spec", "--json", *SMALL,
    )  # fmt: skip

    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout, parse_constant=pytest.fail)
    (comparison,) = said["comparisons"]
    assert comparison["crossover"] == {"in_flight": None, "tokens_per_second": None}
    assert [one["policy"] for one in comparison["results"]] == ["switch", "always-spec"]
    assert comparison["results"][0]["e2e"] == comparison["results"][1]["e2e"]
    assert said["measures"] == []


def test_what_means_nothing_is_null_or_blank(tmp_path: Path) -> None:
    """The time of each further token where there is none; two engines where there is one."""
    trace = tmp_path / "one.csv"
    trace.write_text("at,prompt_tokens,output_tokens\n0,10,1\n1,20,1\n")
    arguments = ("--trace", str(trace), "--policy", "switch", "--policy", "ideal", *SMALL)
    said = json.loads(specswitch(*arguments, "--json").stdout, parse_constant=pytest.fail)
    ours, ideal = said["comparisons"][0]["results"]

    assert set(ours["per_token"].values()) == {None}
    of_two = ("switches_per_minute", "both_active", "on_spec", "peak_spec")
    assert None not in [ours[name] for name in of_two]
    assert {ideal[name] for name in of_two} == {None}
    shown = specswitch(*arguments).stdout
    assert "inf" not in shown
    (row,) = [line for line in shown.partition("shares")[2].splitlines() if "ideal" in line]
    assert len(row.split()) == 3  # its name, tok/s and good


def test_titles_and_policies_stay_whole() -> None:
    """A narrow table does not break its title, nor 80 columns the name of a policy."""
    found = specswitch("--workload", "poisson-10", *SMALL)
    whole = specswitch("--workload", "poisson-10", "--workload", "bursts", *SMALL)

    for lines in (found.stdout.splitlines(), whole.stdout.splitlines()):
        assert lines[0] == "founding: mean E2E, s; N* 3.11, λ* 181 tok/s, eta 0.9"
        assert all(len(line) <= 80 for line in lines)
        names = [line.split()[0] for line in lines if line.startswith("  hyst")]
        assert set(names) == {"hysteresis-quarter", "hysteresis-half"}
    assert "per min" in whole.stdout


def test_tables_name_each_policy_and_workload() -> None:
    """Means by workload, then what they amount to; progress is on standard error."""
    found = specswitch("--workload", "poisson-10", "--workload", "bursts", *SMALL)

    assert found.exit_code == 0, found.output
    for word in ("switch", "spill-half", "ideal-10", "best fixed mode", "bursts", "to ideal"):
        assert word in found.stdout
    assert "simulating" in found.stderr
    assert "simulating" not in found.stdout


def test_one_workload_has_details() -> None:
    """With one workload the percentiles and shares are shown."""
    found = specswitch("--workload", "bursts", "--policy", "switch", *SMALL)

    assert found.exit_code == 0, found.output
    for word in ("p99", "TTFT p95", "TPOT ms", "both active", "quiet", "good"):
        assert word in found.stdout


def test_step_engines_leave_the_ideal_out() -> None:
    """Where a policy has no such engines it is not shown."""
    found = specswitch("--engine", "steps", "--workload", "poisson-05", "--json", *SMALL[:2],
                       "--requests", "5", "--processes", "1")  # fmt: skip

    assert found.exit_code == 0, found.output
    (comparison,) = json.loads(found.stdout)["comparisons"]
    policies = {one["policy"] for one in comparison["results"]}
    assert "switch" in policies
    assert not policies & {"ideal", "ideal-10"}


@pytest.mark.slow
def test_report_is_one_file(tmp_path: Path) -> None:
    """The report has the ladder, a run over time, and every policy."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.html"
    arguments = ("--workload", "poisson-10", "--workload", "poisson-50", *SMALL)
    found = specswitch(*arguments, "--report", str(path))

    assert found.exit_code == 0, found.output
    text = path.read_text()
    for word in ("Load ladder", "One run of ours", "always-base", "<svg"):
        assert word in text
    assert "<script" not in text


def test_report_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    """Exit code 1, and nothing was simulated."""
    pytest.importorskip("matplotlib")
    lost = specswitch("--workload", "all", "--report", str(tmp_path / "no" / "out.html"))

    assert lost.exit_code == 1
    assert "cannot be written: there is no such folder" in lost.output
    assert "simulating" not in lost.output


def test_measures_have_their_own_size() -> None:
    """Fewer seeds or requests than the measures are stated for are not taken."""
    small = measured(Options(seeds=1, requests=10, profiles=("tree",)))
    large = measured(Options(seeds=5, requests=9000))

    assert (small.seeds, small.requests) == (LEAST_SEEDS, LEAST_REQUESTS)
    assert (large.seeds, large.requests) == (5, 9000)
    assert small.profiles == ("founding", "tree", "chain")
    assert small.workloads == tuple(WORKLOADS.values())
    assert small.policies == MEASURED_POLICIES


def test_measures_say_what_does_not_hold() -> None:
    """In the object: figure, bound, and whether it holds."""
    kept = Measure("founding", "this", 1.0, 1.1)
    lost = Measure("founding", "that", 1.2, 1.1)
    said = as_json([], [kept, lost])["measures"]

    assert said == [
        {"profile": "founding", "what": "this", "figure": 1.0, "bound": 1.1, "holds": True},
        {"profile": "founding", "what": "that", "figure": 1.2, "bound": 1.1, "holds": False},
    ]
