"""The files of the status page: what goes out with them, and what may not be in them."""

import re
from enum import StrEnum
from html.parser import HTMLParser
from pathlib import Path

import pytest

import proxy.control
from proxy.control.page_files import PageFile, page_files
from proxy.core.words import (
    AdminState,
    Control,
    EjectionCause,
    Health,
    SwitchReason,
    UpstreamName,
)

FILES = {file.path: file for file in page_files()}
FOLDER = Path(proxy.control.__file__).parent / "page"
TEXTS = {path: file.body.decode() for path, file in FILES.items()}
SCRIPTS = {path: text for path, text in TEXTS.items() if path.endswith(".js")}
TABLES = {
    "REASONS": SwitchReason,
    "CONTROLS": Control,
    "ADMIN_STATES": AdminState,
    "HEALTH": Health,
    "CAUSES": EjectionCause,
}
WAYS_TO_MARKUP = (
    "innerHTML",
    "outerHTML",
    "insertAdjacent",
    "document.write",
    "DOMParser",
    "createContextualFragment",
    "setHTML",
    "srcdoc",
    "eval(",
    "new Function",
    "javascript:",
)
WAYS_TO_KEEP = ("localStorage", "sessionStorage", "indexedDB", "document.cookie", "caches")


class Tags(HTMLParser):
    """Every tag with its attributes, and the text within scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.within = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.found.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data: str) -> None:
        """Keep what is script or style."""
        if self._in in {"script", "style"}:
            self.within += data.strip()

    def handle_endtag(self, tag: str) -> None:
        """It is over."""
        self._in = self._in.removesuffix(tag)


PAGE = Tags(TEXTS["/"])


def test_every_file_of_the_folder_is_served_and_no_other() -> None:
    """What lies there and is asked for by nobody is forgotten."""
    assert {file.body for file in FILES.values()} == {
        path.read_bytes() for path in FOLDER.iterdir() if path.is_file()
    }


def test_the_page_loads_only_what_is_served() -> None:
    """By relative addresses, so that it works behind any prefix."""
    loaded = {
        str(attributes[name])
        for tag, attributes in PAGE.found
        for name in ("src", "href")
        if name in attributes and tag in {"script", "link", "img"}
    }
    imported = {
        f"page/{name.removeprefix('./')}"
        for text in SCRIPTS.values()
        for name in re.findall(r'^import .*? from "([^"]+)";', text, re.MULTILINE | re.DOTALL)
    }

    assert {f"/{path}" for path in loaded | imported} == set(FILES) - {"/"}


@pytest.mark.parametrize("path", FILES)
def test_no_file_names_another_host(path: str) -> None:
    """The one address in them is the name of a markup language."""
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"'<>]*", TEXTS[path]))

    assert addresses <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_script_makes_markup_or_keeps_anything(path: str) -> None:
    """What specswitch says is text, and the token is in memory only."""
    for way in (*WAYS_TO_MARKUP, *WAYS_TO_KEEP):
        assert way not in SCRIPTS[path]


@pytest.mark.parametrize("path", SCRIPTS)
def test_every_script_is_typed(path: str) -> None:
    """Checked by whatever reads JSDoc."""
    assert SCRIPTS[path].startswith("// @ts-check\n")


def test_the_scripts_are_small() -> None:
    """A page for a bad connection through a tunnel, and one that can be read before it is run."""
    assert sum(len(text.encode()) for text in TEXTS.values()) < 64 * 1024
    assert all(len(text.splitlines()) <= 400 for text in TEXTS.values())


def test_nothing_is_inline() -> None:
    """The policy would not run it."""
    assert PAGE.within == ""
    for tag, attributes in PAGE.found:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag


@pytest.mark.parametrize("file", FILES.values(), ids=lambda file: file.path)
def test_every_file_has_the_policy_and_a_tag(file: PageFile) -> None:
    """Nothing from elsewhere, no frame around it, no guess at its type; asked for again."""
    headers = file.headers
    policy = dict(
        part.partition(" ")[::2] for part in headers["content-security-policy"].split("; ")
    )

    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-cache"
    assert re.fullmatch(r'"[0-9a-f]{32}"', headers["etag"])


def test_files_that_differ_have_tags_that_differ() -> None:
    """Else an old script would be kept in front of a new specswitch."""
    assert len({file.headers["etag"] for file in FILES.values()}) == len(FILES)


@pytest.mark.parametrize(
    ("tags", "known"),
    [
        (None, False),
        ("", False),
        ('"other"', False),
        ("{own}", True),
        ("W/{own}", True),
        ('"other", {own}', True),
        ("*", True),
    ],
)
def test_what_a_browser_has_is_not_sent_again(tags: str | None, *, known: bool) -> None:
    """RFC 9110 section 13.1.2: compared weakly, in a list, and `*` is any."""
    file = FILES["/page/page.js"]
    given = None if tags is None else tags.format(own=file.headers["etag"])

    assert file.is_known_to(given) is known


@pytest.mark.parametrize(("table", "words"), TABLES.items(), ids=TABLES)
def test_every_word_of_a_closed_set_has_its_sentence(table: str, words: type[StrEnum]) -> None:
    """A new reason, cause or state must not reach the page as a bare word."""
    text = TEXTS["/page/words.js"]
    (body,) = re.findall(rf"^export const {table} = {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)

    assert re.findall(r"^  (\w+): ", body, re.MULTILINE) == [*words]


def test_every_control_and_state_has_its_button() -> None:
    """In the order in which they are documented."""
    values = [
        attributes["value"]
        for tag, attributes in PAGE.found
        if tag == "button" and "value" in attributes
    ]

    assert values == [*Control, *AdminState]
    assert f'["{UpstreamName.SPEC}", "{UpstreamName.BASE}"]' in TEXTS["/page/words.js"]
