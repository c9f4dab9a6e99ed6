"""Doctor's report: what is gravest, what it exits with, how it looks, and its command."""

import io
import json
import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from proxy.commands.doctor import doctor
from proxy.tools.doctor.diagnosis import Finding, Report, Severity, gravest_first
from proxy.tools.doctor.examine import as_json, examine, judge, show
from tests.harness.server_infos import BASE, SPEC, rank, server

NOWHERE = "http://127.0.0.1:1"


def finding(severity: Severity, code: str = "pair.x") -> Finding:
    """One of that severity."""
    return Finding(code=code, severity=severity, what="a", why="b", change="c")


def report(*severities: Severity) -> Report:
    """A report with one finding of each."""
    return Report(findings=gravest_first(map(finding, severities)), servers={})


def codes(findings: Iterable[Finding]) -> set[str]:
    """Those of all."""
    return {each.code for each in findings}


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


def told(*findings: Finding, width: int = 80) -> str:
    """What people read of them on a terminal of that many columns."""
    console = Console(file=io.StringIO(), width=width)
    show(Report(findings=findings, servers={}), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_report_for_people_has_what_why_and_change() -> None:
    """In a block, with what is well in a line below."""
    text = told(finding(Severity.WARNING), finding(Severity.OK))
    block = "warning pair.x\n  what    a\n  why     b\n  change  c\n\n"
    assert text == block + "1 check is fine: x.\n1 warning\n"


def test_what_is_empty_has_no_line() -> None:
    """A finding may leave out why it matters."""
    text = told(Finding(code="live.x", severity=Severity.NOTE, what="a", server=SPEC))
    assert text == "note live.x\n  what    spec: a\n\n1 note\n"


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_flag_is_never_cut(width: int) -> None:
    """Lines are broken between words and are no longer than they may be, so flags can be copied."""
    flags = [f"--speculative-{'x' * length}-tokens" for length in range(30)]
    change = Finding(code="spec.x", severity=Severity.WARNING, what="a", change=" ".join(flags))
    text = told(change, width=width)
    assert [word for word in text.split() if word.startswith("--")] == flags
    for line in text.splitlines():
        assert len(line) <= min(width, 100) or len(line.removeprefix("  change").split()) == 1


def test_many_names_take_one_line() -> None:
    """As many as fit into one stand there; others are counted, and --json has them."""
    few, many = (("page_size", "dtype"), tuple(f"field_{number}" for number in range(20)))
    counted = Finding(code="pair.unknown", severity=Severity.NOTE, what="not compared", names=few)
    assert "what    not compared: page_size, dtype\n" in told(counted)
    text = told(replace(counted, names=many))
    assert "what    not compared; --json names them\n" in text
    assert json.loads(as_json(Report(findings=(replace(counted, names=many),), servers={})))[
        "findings"
    ][0]["names"] == list(many)


def test_what_a_server_says_is_shown_as_it_is() -> None:
    """Brackets in a server's answer are no markup, and cannot break the report."""
    odd = Finding(
        code="live.x", severity=Severity.ERROR, what="[/bold] [red]x", change="[/b] a", server=SPEC
    )
    text = told(odd)
    assert "[/bold] [red]x" in text
    assert "[/b] a" in text


def test_a_report_for_programs_is_json() -> None:
    """Every finding with all its fields."""
    found = json.loads(as_json(report(Severity.ERROR, Severity.OK)))
    assert found["worst"] == "error"
    assert found["findings"][0] == {
        "code": "pair.x",
        "severity": "error",
        "server": None,
        "what": "a",
        "why": "b",
        "change": "c",
        "names": [],
    }


def test_of_swapped_servers_nothing_is_said_of_the_wrong_one() -> None:
    """What holds of a server that speculates is not said of the one that does not."""
    few = [rank(SPEC, memory_usage={"token_capacity": 300_000}, decode_cuda_graph_bs=[2048])]
    few[0]["effective_max_running_requests_per_dp"] = 2048
    spec = server(SPEC, internal_states=few)
    assert {"memory.little_room", "memory.split"} <= codes(judge({SPEC: spec, BASE: server(BASE)}))
    plain = server(SPEC, internal_states=few, speculative_algorithm=None)
    drafts = server(BASE, speculative_algorithm="EAGLE3")
    found = codes(judge({SPEC: plain, BASE: drafts}))
    assert "pair.swapped" in found
    assert not found & {"memory.little_room", "memory.split"}


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
    result = CliRunner().invoke(doctor, ["--spec-url", NOWHERE, "--base-url", NOWHERE, "--json"])
    assert result.exit_code == 2
    assert {each["code"] for each in json.loads(result.stdout)["findings"]} == {"reach.unreachable"}


def test_an_address_that_is_none_is_wrong_usage() -> None:
    """With a sentence."""
    result = CliRunner().invoke(doctor, ["--spec-url", "nonsense", "--json"])
    assert result.exit_code == 2
    assert "nonsense" in result.output


def test_help_names_every_exit_code() -> None:
    """It is what scripts go by."""
    result = CliRunner().invoke(doctor, ["--help"])
    listed = re.findall(r"^ {4}(\d+) ", result.output.partition("Exit codes:")[2], re.MULTILINE)
    assert listed == ["0", "1", "2", "130"]
