"""Doctor's report: what is gravest, what it exits with, how it looks, and its command."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from proxy.commands.doctor import doctor
from proxy.tools.doctor.diagnosis import Finding, Report, Severity, gravest_first
from proxy.tools.doctor.examine import as_json, examine, judge, show
from tests.harness.server_infos import BASE, SPEC, server

NOWHERE = "http://127.0.0.1:1"


def finding(severity: Severity, code: str = "pair.x") -> Finding:
    """One of that severity."""
    return Finding(code=code, severity=severity, what="a", why="b", change="c")


def report(*severities: Severity) -> Report:
    """A report with one finding of each."""
    return Report(findings=gravest_first(map(finding, severities)), servers={})


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ((), 0),
        ((Severity.OK, Severity.NOTE), 0),
        ((Severity.OK, Severity.WARNING, Severity.NOTE), 1),
        ((Severity.ERROR, Severity.WARNING), 2),
    ],
)
def test_the_exit_code_is_that_of_the_gravest(severities: tuple[Severity, ...], code: int) -> None:
    """0 fine, 1 warnings, 2 errors."""
    assert report(*severities).exit_code == code


def test_the_gravest_comes_first() -> None:
    """And within one severity the order stays."""
    given = [
        finding(Severity.OK, "a.1"),
        finding(Severity.ERROR, "a.2"),
        finding(Severity.NOTE, "a.3"),
        finding(Severity.ERROR, "a.4"),
    ]
    assert [each.code for each in gravest_first(given)] == ["a.2", "a.4", "a.3", "a.1"]


def test_a_report_for_people_has_what_why_and_change() -> None:
    """In a table, with what is well in a line below."""
    console = Console(file=io.StringIO(), width=120)
    show(report(Severity.WARNING, Severity.OK), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(word in text for word in ("warning", "what to change", "pair.x", "1 checks are"))
    assert "1 warning" in text


def test_what_a_server_says_is_shown_as_it_is() -> None:
    """Brackets in a server's answer are no markup, and cannot break the table."""
    console = Console(file=io.StringIO(), width=120)
    odd = Finding(
        code="live.x", severity=Severity.ERROR, what="[/bold] [red]x", change="[/b] a", server=SPEC
    )
    show(Report(findings=(odd,), servers={}), console)
    assert isinstance(console.file, io.StringIO)
    assert "[/bold] [red]x" in console.file.getvalue()
    assert "[/b] a" in console.file.getvalue()


def test_a_report_for_programs_is_json() -> None:
    """Every finding with all its fields."""
    told = json.loads(as_json(report(Severity.ERROR, Severity.OK)))
    assert told["worst"] == "error"
    assert told["findings"][0] == {
        "code": "pair.x",
        "severity": "error",
        "server": None,
        "what": "a",
        "why": "b",
        "change": "c",
    }


def test_what_is_so_of_both_is_said_once() -> None:
    """Two servers with the same note make one line."""
    pair = {name: server(name, sleep_on_idle=False) for name in (SPEC, BASE)}
    found = [each for each in judge(pair) if each.code == "server.spins_when_idle"]
    assert [(each.server, each.what.partition(":")[0]) for each in found] == [(None, "both")]


def test_a_good_pair_exits_with_0() -> None:
    """The one thing to say of it is a note."""
    findings = tuple(judge({SPEC: server(SPEC), BASE: server(BASE)}))
    assert Report(findings=findings, servers={}).exit_code == 0


def test_of_one_server_only_its_own_flags_are_judged() -> None:
    """The other could not be read, which is a finding elsewhere."""
    assert not [each for each in judge({BASE: server(BASE)}) if each.code.startswith("pair.")]


@pytest.mark.asyncio
async def test_servers_that_are_not_there_are_errors() -> None:
    """Findings, one for each, and no traceback."""
    found = await examine(NOWHERE, NOWHERE + "/other")
    assert [(each.code, each.server) for each in found.findings] == [
        ("reach.unreachable", SPEC),
        ("reach.unreachable", BASE),
    ]
    assert found.exit_code == 2


def test_the_command_exits_with_2_and_says_which() -> None:
    """On standard output, as JSON where that is asked for."""
    told = CliRunner().invoke(doctor, ["--spec-url", NOWHERE, "--base-url", NOWHERE, "--json"])
    assert told.exit_code == 2
    assert {each["code"] for each in json.loads(told.stdout)["findings"]} == {"reach.unreachable"}


def test_an_address_that_is_none_is_wrong_usage() -> None:
    """With a sentence."""
    told = CliRunner().invoke(doctor, ["--spec-url", "nonsense", "--json"])
    assert told.exit_code == 2
    assert "nonsense" in told.output


def test_help_names_every_exit_code() -> None:
    """It is what scripts go by."""
    told = CliRunner().invoke(doctor, ["--help"])
    codes = [line.split()[0] for line in told.output.partition("Exit codes:")[2].splitlines()[1:]]
    assert codes == ["0", "1", "2", "130"]
