"""The command line: what it says, what it ends with, and which source of a setting wins."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from proxy import __version__
from proxy.cli import _run, _terminated, main
from proxy.core.dispatch import Dispatcher
from proxy.errors import ConfigError, SpecswitchError
from proxy.tools.traffic import View

COMMANDS = sorted(main.commands)
BAD = "[listen]\nport = 99999\n[policy]\ncrossover = -1.0\nspeed = 3\n"
FINDINGS = [
    ("listen.port", "must be at most 65535, is 99999"),
    ("policy.crossover", "must be at least 0, is -1.0"),
    ("policy.speed", "unknown key"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test in an empty directory, with no variable of ours."""
    monkeypatch.chdir(tmp_path)
    for name in tuple(os.environ):
        if name.startswith("SPECSWITCH_"):
            monkeypatch.delenv(name)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on loopback that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def run(*argv: str) -> Result:
    """What `specswitch argv` says and ends with."""
    return CliRunner().invoke(main, argv, prog_name="specswitch")


# Help ----------------------------------------------------------------------------------------


def test_without_arguments_it_helps() -> None:
    """No command is wrong usage; the answer is what there is."""
    result = run()
    assert result.exit_code == 2
    for name in COMMANDS:
        assert f"\n  {name} " in result.output


@pytest.mark.parametrize("argv", [[], *([name] for name in COMMANDS)])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_readable(argv: list[str], flag: str) -> None:
    """It fits a terminal, and no mark-up of ours or click's is left in it."""
    result = run(*argv, flag)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert "\b" not in result.output
    assert "\\b" not in result.output
    assert "\\\\" not in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    """An option without a word is one that nobody can use."""
    explained = {option.name for option in main.commands[name].params if getattr(option, "help", 0)}
    assert explained == {option.name for option in main.commands[name].params}


def test_exit_codes_are_in_the_help() -> None:
    """Scripts go by them."""
    output = run("--help").output
    for code in (0, 1, 2, 130):
        assert f"\n    {code} " in output


def test_examples_in_the_help_are_good() -> None:
    """The command that `serve --help` shows is accepted."""
    _, _, rest = run("serve", "--help").output.partition("  specswitch serve")
    example = rest.partition("\n\n")[0].replace("\\\n", " ").split()
    assert run("serve", *example, "--check").output == "the configuration is good\n"


@pytest.mark.parametrize("argv", [["serv"], ["serve", "--prot", "1"], ["serve", "--port", "x"]])
def test_wrong_usage_is_said(argv: list[str]) -> None:
    """What click does not know ends with 2 and a word on it."""
    result = run(*argv)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_the_version(pytestconfig: pytest.Config) -> None:
    """The command and the module say the same: which one it is, and whether it is compiled."""
    form = "compiled" if pytestconfig.getoption("--compiled") else "interpreted"
    said = f"specswitch {__version__} ({form})\n"
    assert run("--version").output == said
    module = subprocess.run(
        [sys.executable, "-m", "proxy", "--version"], capture_output=True, check=True, timeout=30
    )
    assert module.stdout.decode() == said


def test_help_waits_for_no_large_library() -> None:
    """What a command needs is imported when it runs."""
    code = "import sys, proxy.cli; print({'pydantic', 'fastapi', 'rich'} & set(sys.modules))"
    found = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=30
    )
    assert found.stdout == b"set()\n"


# serve: the configuration --------------------------------------------------------------------


def test_a_good_configuration_is_checked() -> None:
    """Nothing set is good: everything has a default."""
    result = run("serve", "--check")
    assert (result.exit_code, result.stdout) == (0, "the configuration is good\n")
    result = run("serve", "--check", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"errors": []})


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_all_findings_are_said(check: list[str], tmp_path: Path) -> None:
    """One run names everything that is wrong, a line each, on standard error; and ends with 2."""
    file = tmp_path / "bad.toml"
    file.write_text(BAD)
    result = run("serve", "--config", str(file), *check)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [f"{path}: {message}" for path, message in FINDINGS]


def test_findings_for_programs(tmp_path: Path) -> None:
    """With --json they are an object on standard output, as a failed reload answers it."""
    file = tmp_path / "bad.toml"
    file.write_text(BAD)
    result = run("serve", "--config", str(file), "--check", "--json")
    assert result.exit_code == 2
    assert result.stderr == ""
    assert json.loads(result.stdout) == {
        "errors": [{"path": path, "message": message} for path, message in FINDINGS]
    }


def test_json_is_for_checks() -> None:
    """A server has a log, whose format is a setting."""
    result = run("serve", "--json")
    assert result.exit_code == 2
    assert "log.format" in result.stderr


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """A file that was asked for must be there."""
    file = tmp_path / "nowhere.toml"
    result = run("serve", "--config", str(file), "--check")
    assert result.exit_code == 2
    assert result.stderr == f"{file}: cannot be read: No such file or directory\n"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A folder in its place is said too."""
    result = run("serve", "--config", str(tmp_path), "--check")
    assert result.exit_code == 2
    assert "is a directory" in result.stderr


def test_the_file_beside_is_read(tmp_path: Path) -> None:
    """Without --config ./specswitch.toml is read if it is there, and not if another is named."""
    (tmp_path / "specswitch.toml").write_text(BAD)
    (tmp_path / "good.toml").touch()
    assert run("serve", "--check").exit_code == 2
    assert run("serve", "--check", "--config", "good.toml").exit_code == 0


def test_flags_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest to the command wins, and a wrong value is named where it came from."""
    (tmp_path / "specswitch.toml").write_text("[listen]\nport = 70001\n")
    assert run("serve", "--check").stderr.startswith("listen.port: ")
    monkeypatch.setenv("SPECSWITCH_LISTEN_PORT", "70002")
    result = run("serve", "--check")
    assert result.stderr == "SPECSWITCH_LISTEN_PORT: must be at most 65535, is 70002\n"
    result = run("serve", "--check", "--port", "70003")
    assert result.stderr == "listen.port: must be at most 65535, is 70003\n"
    assert run("serve", "--check", "--port", "8000").exit_code == 0


@pytest.mark.parametrize(
    ("flag", "value", "path"),
    [
        ("--spec-url", "ftp://a", "upstreams.spec.url"),
        ("--base-url", "ftp://a", "upstreams.base.url"),
        ("--host", "a b", "listen.host"),
        ("--port", "70000", "listen.port"),
        ("--admin-host", "a b", "listen.admin_host"),
        ("--admin-port", "70000", "listen.admin_port"),
        ("--crossover", "nan", "policy.crossover"),
    ],
)
def test_each_flag_is_a_key(flag: str, value: str, path: str) -> None:
    """What is wrong with a flag is said by the name of its key."""
    result = run("serve", "--check", flag, value)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{path}: must ")


def test_the_first_process_of_a_container_heeds_sigterm() -> None:
    """There a signal that nobody handles is ignored; tests/deploy tries it in one."""
    with pytest.raises(SystemExit) as raised:
        _terminated(signal.SIGTERM, None)
    assert raised.value.code == 143


# What ends early -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "engines"])
def test_an_unknown_profile_is_said(name: str) -> None:
    """With those that there are."""
    result = run(name, "--profile", "nope")
    assert result.exit_code == 2
    assert result.stderr == "--profile: must be one of founding, tree, chain, is 'nope'\n"


def test_an_impossible_pair_is_said() -> None:
    """Options that no pair can have are wrong usage."""
    result = run("engines", "--contention", "7")
    assert result.exit_code == 2
    assert result.stderr.startswith("engines: contention must be ")


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_serve_says_that_a_port_is_taken(
    flag: str, taken: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """In its log, as everything that it says while it runs; the exit code is 1."""
    ports = {"--port": "0", "--admin-port": "0", flag: str(taken)}
    argv = [word for pair in ports.items() for word in pair]
    result = run("serve", "--host", "127.0.0.1", *argv)
    assert result.exit_code == 1
    (line,) = capfd.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["level"] == "critical"
    assert f"127.0.0.1 port {taken}: " in entry["message"]


@pytest.mark.parametrize(
    "argv", [["demo", "--port"], ["demo", "--admin-port"], ["engines", "--spec-port"]]
)
def test_the_demo_says_that_a_port_is_taken(argv: list[str], taken: int) -> None:
    """In one line for people; the exit code is 1."""
    rest = {"demo": ["--port=0", "--admin-port=0"], "engines": ["--base-port=0"]}[argv[0]]
    result = run(argv[0], *rest, argv[1], str(taken))
    assert result.exit_code == 1
    assert result.stderr.startswith("specswitch: ")
    assert result.stderr.count("\n") == 1
    assert str(taken) in result.stderr


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (3, 1)])
def test_a_demo_with_failed_requests_has_failed(
    failed: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --once the exit code says whether every request was answered."""

    async def show_traffic(
        url: str, admin_url: str, console: Console, *, view: View, dwell: float
    ) -> int:
        return failed

    monkeypatch.setattr("proxy.demo.show_traffic", show_traffic)
    assert run("demo", "--once", "--port=0", "--admin-port=0").exit_code == code


def test_a_demo_whose_proxy_dies_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo does not stay up in front of a proxy that has stopped."""

    def tick(dispatcher: Dispatcher, now: float) -> None:
        raise RuntimeError("a fault that nobody foresaw")

    monkeypatch.setattr(Dispatcher, "tick", tick)
    result = run("demo", "--port=0", "--admin-port=0")
    assert result.exit_code == 1
    assert result.stderr.startswith("specswitch: the ticker died: RuntimeError(")


async def _ends(error: BaseException | None) -> int:
    if error is not None:
        raise error
    return 7


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 7, ""),
        (ConfigError([("a.b", "is wrong"), ("c", "too")]), 2, "a.b: is wrong\nc: too\n"),
        (SpecswitchError("no luck"), 1, "specswitch: no luck\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_command_ends(
    error: BaseException | None, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way to end has its exit code and its words."""
    assert _run(_ends(error)) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_a_bad_calibration_is_a_bad_configuration(check: list[str], tmp_path: Path) -> None:
    """Said by its key before anything is opened."""
    file = tmp_path / "calibration.json"
    file.write_text("{", encoding="utf-8")
    result = run("serve", "--calibration", str(file), *check)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"policy.calibration: {file} is not JSON")


def test_a_calibration_that_is_named_must_be_there(tmp_path: Path) -> None:
    """A slip of the pen would else send everything to base."""
    result = run("serve", "--calibration", str(tmp_path / "typo.json"), "--check")
    assert result.exit_code == 2
    assert "there is no file" in result.stderr
