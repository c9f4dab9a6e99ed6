"""Docs and code say the same: error codes, reasons, commands, modules, links, README's commands."""

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import proxy
from proxy import errors
from proxy.cli import main
from proxy.core.endpoints import find
from proxy.core.route import Reason
from proxy.errors import Refusal

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ANSWERS = (ROOT / "docs" / "answers.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
NOT_YET: set[str] = set()


def refusals() -> list[type[Refusal]]:
    """Every refusal with a code of its own."""
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    return [each for each in found if issubclass(each, Refusal) and "code" in vars(each)]


@pytest.mark.parametrize("refusal", refusals(), ids=lambda each: each.code)
def test_every_error_code_is_explained(refusal: type[Refusal]) -> None:
    """Each code stands in docs/answers.md with its status."""
    assert f"| `{refusal.code}` | {refusal.status} |" in ANSWERS


def test_no_error_code_is_invented() -> None:
    """Each code in the table exists."""
    told = set(re.findall(r"^\| `(\w+)` \| \d{3} \|", ANSWERS, re.MULTILINE))

    assert told == {each.code for each in refusals()}


@pytest.mark.parametrize("reason", [*Reason, "eligibility:<rule>"])
def test_every_reason_is_explained(reason: str) -> None:
    """Each reason stands in the table."""
    assert f"| `{reason}` |" in ANSWERS


def test_every_command_is_in_the_readme() -> None:
    """What exists is shown, and what is said not to exist yet does not."""
    assert isinstance(main, click.Group)
    commands = set(main.commands)

    assert all(
        f"specswitch {name}" in README or f"make {name}" in README
        for name in commands - {"engines"}
    )
    assert not commands & NOT_YET
    assert all(f"`{name}`" in README for name in NOT_YET)


def modules() -> list[str]:
    """Every module of the package, as the architecture page writes it."""
    files = sorted(Path(proxy.__file__).parent.rglob("*.py"))
    names = [path.relative_to(ROOT / "proxy").with_suffix("").as_posix() for path in files]
    return [name for name in names if not name.endswith(("__init__", "__main__"))]


@pytest.mark.parametrize("name", modules())
def test_every_module_has_its_place(name: str) -> None:
    """Each module, or the folder of those that only their folder explains, is on the page."""
    folder = name.partition("/")[0]

    assert f"`{name}`" in ARCHITECTURE or f"`{folder}/`" in ARCHITECTURE


def test_no_module_is_invented() -> None:
    """Each module on the page exists."""
    told = re.findall(r"`((?:core|data|control)/\w+)`", ARCHITECTURE)

    assert told
    assert set(told) <= set(modules())


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=str
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_readme_is_short() -> None:
    """Whoever wants more follows a link."""
    assert len(README.splitlines()) <= 160


def test_the_serve_command_is_accepted() -> None:
    """The command of the README is one that specswitch takes."""
    (line,) = re.findall(r"^\.venv/bin/specswitch (serve .*)$", README, re.MULTILINE)
    result = CliRunner().invoke(main, [*shlex.split(line), "--check"])

    assert result.exit_code == 0, result.output


def test_make_targets_exist() -> None:
    """Every `make x` in README and CONTRIBUTING is a target."""
    makefile = (ROOT / "Makefile").read_text()
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    for target in re.findall(r"make ([a-z]+(?:-[a-z]+)*)\b(?=`|\n| {2,})", pages):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_curl_examples_name_what_exists() -> None:
    """The admin paths of the README exist, and the endpoint's base URL is one we serve under."""
    for path in re.findall(r"127\.0\.0\.1:8001(/[\w/]+)", README):
        assert path in {"/admin/state", "/admin/control", "/metrics"}
    assert find(b"/v1/chat/completions") is not None
