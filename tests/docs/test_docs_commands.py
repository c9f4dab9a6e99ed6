"""The pages of the commands name every option, exit code, finding and JSON field, and no other."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from proxy.cli import main
from proxy.sim.measures import MEASURED_PROFILES
from proxy.sim.physics import PROFILES
from proxy.sim.policies import Policy
from proxy.sim.results import Result
from proxy.sim.traces import _HEADERS
from proxy.sim.workloads import WORKLOADS
from proxy.tools.asking import Fault
from proxy.tools.bench.load import Workload
from proxy.tools.bench.objective import Figures
from proxy.tools.bench.plan import Endpoint, Options, conditions
from proxy.tools.bench.standing import Ratios, Standing
from proxy.tools.doctor import examine, pair
from proxy.tools.doctor.diagnosis import Finding, Report, Severity
from proxy.tools.doctor.server_info import Trouble
from proxy.tools.plan.notes import Assumption

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / "docs" / file).read_text(encoding="utf-8")
    for name, file in (
        ("doctor", "doctor.md"),
        ("bench", "bench.md"),
        ("simulate", "simulation.md"),
        ("calibrate", "calibration.md"),
        ("plan", "plan.md"),
    )
}
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHECKS = ("pair", "server", "spec", "memory", "live")
ANYTHING = ".+?"


def command(name: str) -> click.Command:
    """The command of that name."""
    assert isinstance(main, click.Group)
    return main.commands[name]


def section(page: str, heading: str) -> str:
    """What stands below a heading of the second level."""
    text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in `text`, without their heads."""
    table = [line for line in text.splitlines() if line.startswith("| ")]
    heads = {above for above, line in pairwise(text.splitlines()) if line.startswith("|---")}
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table if line not in heads]


def names(text: str) -> list[str]:
    """The names in the first cells of the tables in `text`."""
    return [name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])]


def options(of: click.Command) -> dict[str, click.Option]:
    """Its options by each of their long names."""
    return {
        name: option
        for option in of.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }


@pytest.mark.parametrize("name", PAGES)
def test_every_option_is_documented_and_none_is_invented(name: str) -> None:
    """In the order in which the help has them."""
    told = names(section(PAGES[name], "Options"))

    assert told == [*options(command(name)), "--help"]


@pytest.mark.parametrize("name", PAGES)
def test_defaults_are_those_of_the_command(name: str) -> None:
    """Where the help shows a default, the page has it."""
    known = options(command(name))
    for row in rows(section(PAGES[name], "Options")):
        option = known.get(re.findall(r"`([^`]+)`", row[0])[0])
        if option is None or not option.show_default:
            continue
        default = option.opts[0] if option.default is True else f"{option.default}"
        assert row[1] == f"`{default.removesuffix('.0')}`", row


@pytest.mark.parametrize("name", PAGES)
def test_exit_codes_are_those_of_the_help(name: str) -> None:
    """The same codes, in the same order."""
    told = [row[0] for row in rows(section(PAGES[name], "Exit codes"))]

    assert told == re.findall(r"^  (\d+) ", command(name).epilog or "", re.MULTILINE)


def examples() -> Iterator[tuple[str, str]]:
    """Every line of a page that calls specswitch, without what a shell does with the result."""
    for page in (*PAGES.values(), README):
        for block in re.findall(r"```\w+\n(.*?)```", page, re.DOTALL):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                found = re.match(r"(?:\$ )?(?:\S*/)?specswitch (\w+)( [^|&<>]*)?", line)
                if found and found[1] in {*PAGES, "serve", "engines"}:
                    yield found[1], found[2] or ""


@pytest.mark.parametrize(("name", "arguments"), sorted(set(examples())))
def test_examples_are_accepted(name: str, arguments: str) -> None:
    """What a page shows can be typed."""
    context = command(name).make_context(
        name, shlex.split(arguments, comments=True), max_content_width=100
    )

    assert context.params


def test_there_are_examples() -> None:
    """Of each command that has a page, so that the test above tests something."""
    assert {name for name, _ in examples()} >= set(PAGES)


# Findings of doctor


def words(node: ast.expr | None) -> str:
    """A pattern of the text that an expression gives: what is put in may be anything."""
    match node:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return re.escape(text.replace("`", ""))
        case ast.JoinedStr(values=values):
            return "".join(words(value) for value in values)
        case _:
            return ANYTHING


def calls(module: str) -> Iterator[list[ast.expr | None]]:
    """(code, severity, what, why, change) of each place in a module that makes a finding."""
    tree = ast.parse(
        (ROOT / "proxy" / "tools" / "doctor" / f"{module}.py").read_text(encoding="utf-8")
    )
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "Finding":
            given = {each.arg: each.value for each in node.keywords}
            yield [given.get(each.name) for each in fields(Finding)[:5]]
        elif node.func.id == "_found":
            positional = node.args[1:] if module == "live" else node.args
            yield [*positional, *[None] * (5 - len(positional))]


def found_in_code() -> Iterator[tuple[str, frozenset[str], tuple[str, str, str]]]:
    """Code, severities, and patterns of what, why and change; those with a name made up apart."""
    for module in CHECKS:
        prefix = module + "."
        for code, severity, *texts in calls(module):
            if not isinstance(code, ast.Constant):
                continue
            named = str(code.value)
            found = frozenset(re.findall(r"Severity\.(\w+)", ast.unparse(severity or code)))
            what, why, change = (words(text) for text in texts)
            yield (
                named if "." in named else prefix + named,
                frozenset(each.lower() for each in found),
                (what, why, change),
            )


FINDINGS = list(found_in_code())
GRAVE = [each for each in FINDINGS if each[1] != {"ok"}]
TABLE = [row for row in rows(section(PAGES["doctor"], "Findings")) if len(row) == 5]


def test_every_finding_is_documented_and_none_is_invented() -> None:
    """Each code once, with the severities that it may have."""
    told = {
        row[0].strip("`"): frozenset(row[1].split(", "))
        for row in TABLE
        if not row[0].startswith("`reach.") or row[0] == "`reach.server_info`"
    }

    assert told == {code: severities for code, severities, _ in GRAVE}
    assert len(TABLE) == len({row[0] for row in TABLE})


@pytest.mark.parametrize("finding", GRAVE, ids=lambda finding: finding[0])
def test_a_finding_says_on_the_page_what_it_says_on_a_terminal(
    finding: tuple[str, frozenset[str], tuple[str, str, str]],
) -> None:
    """What, why and what to change; what depends on the server is a letter."""
    code, _, (_, why, change) = finding
    (row,) = [row for row in TABLE if row[0] == f"`{code}`"]

    assert all(row)
    for pattern, cell in ((why, row[3]), (change, row[4])):
        assert re.fullmatch(pattern, cell.replace("`", "")), (pattern, cell)


def test_findings_that_are_only_ever_well_are_named() -> None:
    """A code that a program may meet stands somewhere."""
    well = {code for code, _, _ in FINDINGS} - {code for code, _, _ in GRAVE}

    assert set(names(PAGES["doctor"].partition("\n### What is well\n")[2])) == well


def test_servers_that_cannot_be_read() -> None:
    """Each trouble has its row, and its remedy."""
    told = {row[0].strip("`"): row for row in TABLE if row[0].startswith("`reach.")}

    assert set(told) - {"reach.server_info"} == {f"reach.{trouble}" for trouble in Trouble}
    for trouble in set(Trouble) - {Trouble.KEY}:
        assert told[f"reach.{trouble}"][4] == examine._CHANGES[trouble]


def test_fields_that_are_compared() -> None:
    """Each field of both servers stands in the row of its severity and its reason."""
    told: list[tuple[str, str, str]] = []
    for row in rows(section(PAGES["doctor"], "Findings")):
        if len(row) == 3 and row[0] in {*Severity}:
            told += [(field, row[0], row[1]) for field in re.findall(r"`(\w+)`", row[2])]

    identity = [(field, "error", pair._UNUSABLE) for _, field, _ in pair._IDENTITY]
    compared = [(row.field, row.severity.value, row.why) for row in pair._ROWS]
    assert sorted(told) == sorted(identity + compared)


def test_json_of_doctor() -> None:
    """The table has the fields of the object, in its order."""
    finding = Finding(code="", severity=Severity.OK, what="")
    report = Report(findings=(finding,), servers={}).fields()

    told = names(section(PAGES["doctor"], "JSON"))

    assert told == [*report, *(f"findings[].{name}" for name in finding.fields())]


# What bench and simulate tell


def test_json_of_bench() -> None:
    """The table has the fields of a result, of its figures and of its ratios."""
    figures = [f"figures.{each.name}" for each in fields(Figures)]
    ratios = [f"ratios.{each.name}" for each in fields(Ratios)]
    expected = {each.name for each in fields(Standing)} | {*figures, *ratios}
    told = names(section(PAGES["bench"], "JSON"))
    whole = {"version", "interrupted", "conditions", "results"}

    assert len(told) == len(set(told))
    assert set(told) == whole | {f"results[].{name}" for name in expected}


def test_conditions_of_bench() -> None:
    """What a result hangs on stands on the page by name."""
    found = conditions(
        Options(endpoints=[Endpoint(name="a", url="http://127.0.0.1:1")], rates=(1.0,))
    )
    (row,) = [row for row in rows(section(PAGES["bench"], "JSON")) if row[0] == "`conditions`"]

    assert re.findall(r"`(\w+)`", row[1]) == list(found)


def test_closed_sets_of_bench() -> None:
    """Workloads and kinds of failure, each with a row."""
    assert names(section(PAGES["bench"], "Workloads")) == list(Workload)
    assert names(section(PAGES["bench"], "Failures")) == list(Fault)


def shown_examples() -> list[tuple[str, str]]:
    """Each call of plan that its page shows, and what it shows of it."""
    return re.findall(
        r"```text\n\$ specswitch (plan .*)\n([^`]*(?:`[^`]+`[^`]*)*)```", PAGES["plan"]
    )


@pytest.mark.parametrize(("call", "shown"), shown_examples(), ids=["fits", "does not"])
def test_the_examples_of_plan_are_what_is_said(call: str, shown: str) -> None:
    """The same arithmetic gives the same figures; blanks at the end of a line are left out."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, shlex.split(call))

    told = [line.rstrip() for line in result.stdout.rstrip().splitlines()]
    assert told == shown.rstrip().splitlines(), "paste what this command prints now"


def a_plan(*more: str) -> dict[str, Any]:
    """The plan of the example on the page, as an object."""
    words = [*shlex.split(shown_examples()[0][0]), *more]
    found: dict[str, Any] = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    return found


def test_json_of_plan() -> None:
    """The table has every field of a plan, of what a server needs and of a server."""
    found = a_plan()
    told = [
        name
        for row in rows(section(PAGES["plan"], "JSON"))
        for name in re.findall(r"`([^`]+)`", row[0])
    ]

    inner = [f"{name}.*.{key}" for name in ("needs", "servers") for key in found[name]["spec"]]
    assert sorted(told) == sorted([*found, *inner])
    assert len(told) == len(set(told))
    assert {each.name for each in fields(Assumption)} == set(found["assumptions"][0])


def test_keys_that_plan_writes() -> None:
    """The page names each key, and no other."""
    told = section(PAGES["plan"], "The .env").split("\n\n")[1]
    written = a_plan("--model", "m", "--draft-model", "d")["env"]

    extra = ["SPEC_EXTRA_ARGS", "BASE_EXTRA_ARGS"]
    separate = a_plan("--model", "m", "--draft-model", "d", "--topology", "separate")["env"]
    assert set(written) < set(separate)
    assert re.findall(r"`([A-Z_]+)`", told) == [*separate, *extra]


def test_the_recipe_beside_a_plan() -> None:
    """The page says the fractions of its example, and the recipe's are those of the README."""
    told = section(PAGES["plan"], "The README's recipe")
    servers = a_plan()["servers"]

    for name in ("spec", "base"):
        assert f"{servers[name]['mem_fraction_static']:g}" in told
    assert re.findall(r"--mem-fraction-static ([0-9.]+)", README) == ["0.35", "0.75"]


@pytest.mark.slow
def test_the_example_of_simulate_is_what_is_said() -> None:
    """The same code gives the same figures; how wide a column is may differ."""
    shown = re.search(r"```text\n\$ specswitch (simulate .*)\n([^`]*)```", PAGES["simulate"])
    assert shown is not None
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, shlex.split(shown[1]))

    assert result.exit_code == 0
    assert result.stdout.split() == shown[2].split(), "paste what this command prints now"


def test_closed_sets_of_simulate() -> None:
    """Policies, workloads and profiles, each with a row."""
    assert names(section(PAGES["simulate"], "Policies")) == list(Policy)
    assert names(section(PAGES["simulate"], "Workloads")) == list(WORKLOADS)
    assert names(section(PAGES["simulate"], "Profiles")) == list(PROFILES)
    assert set(MEASURED_PROFILES) == set(PROFILES)


def test_trace_formats_of_simulate() -> None:
    """The headers that are known stand there as they are."""
    text = section(PAGES["simulate"], "Traces")

    assert [header for header in _HEADERS if header not in text] == []


def test_json_of_simulate() -> None:
    """The table has every figure of a run."""
    told = names(section(PAGES["simulate"], "JSON"))
    prefix = "comparisons[].results[]."

    result = [name.removeprefix(prefix) for name in told if name.startswith(prefix)]
    assert result == ["policy", "workload", "seed", *(each.name for each in fields(Result))]
