"""The status page as an operator has it: in Chromium, before a real specswitch and traffic.

Whoever leaves a visit has seen no error on the console and no request to another host.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Literal, Self
from urllib.parse import urlsplit

import httpx2
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from proxy.control.history_columns import HistoryColumns
from tests.deploy.conftest import program
from tests.harness.process import Specswitch

Scheme = Literal["light", "dark"]

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.02
NETWORK = "Failed to load resource"
"""How Chromium itself tells of an answer that is an error, or of none."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's, without a window; it is the one that is there, so it is not fetched."""
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        expect.set_options(timeout=PATIENCE_SECONDS * 1000)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def simulated_pair() -> Iterator[dict[str, str]]:
    """`specswitch engines` as a process; the addresses of spec and base."""
    command = (sys.executable, "-m", "proxy", "engines", "--spec-port=0", "--base-port=0", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own words
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield {name: str(told[name]) for name in ("spec", "base")}
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


class Visit:
    """One open page."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.errors: list[str] = []
        """What the console and the page say is wrong, but for what the network does."""
        self.network: list[str] = []
        self.asked: list[str] = []
        """Every address, in its order."""
        self.page: Page = context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            kind = self.network if message.text.startswith(NETWORK) else self.errors
            kind.append(message.text)

    def text(self, selector: str) -> str:
        """What stands there."""
        return self.page.inner_text(selector)

    def shows(self, selector: str, text: str) -> None:
        """Wait until it is there."""
        expect(self.page.locator(selector)).to_contain_text(text)

    def is_live(self) -> None:
        """Wait until it has heard of specswitch, and has drawn that."""
        expect(self.page.locator("html")).to_have_attribute("data-answers", "yes")

    def ask(self, group: str, word: str) -> None:
        """Choose a word; the page asks whether it is meant."""
        self.page.click(f"{group} button[value={word}]")
        expect(self.page.locator("#ask")).to_be_visible()

    def confirm(self) -> None:
        """It is meant."""
        self.page.click("#ask-yes")

    def is_chosen(self, group: str, word: str) -> None:
        """Wait until the page says so."""
        button = self.page.locator(f"{group} button[value={word}]")
        expect(button).to_have_attribute("aria-pressed", "true")

    def elsewhere(self) -> set[str]:
        """Other hosts that were asked."""
        own = urlsplit(self.url).netloc
        return {url for url in self.asked if urlsplit(url).netloc != own}

    def faults(self) -> list[dict[str, object]]:
        """What axe-core finds that is serious or critical."""
        self.page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            {"id": each["id"], "nodes": [node["html"] for node in each["nodes"]]}
            for each in found["violations"]
            if each["impact"] in {"serious", "critical"}
        ]


@contextmanager
def visit(
    browser: Browser,
    url: str,
    *,
    width: int = 1200,
    scheme: Scheme = "light",
    silent: bool = False,
    prepare: Callable[[Page], None] | None = None,
) -> Iterator[Visit]:
    """Open the page; `prepare` is called before it is asked for.

    With `silent`, specswitch may refuse or be gone for a while, of which Chromium itself tells.
    """
    size = ViewportSize(width=width, height=900)
    context = browser.new_context(viewport=size, color_scheme=scheme)
    try:
        made = Visit(context, url)
        if prepare is not None:
            prepare(made.page)
        made.page.goto(url)
        yield made
        assert made.errors == []
        assert silent or made.network == []
        assert made.elsewhere() == set()
        # The page asks each second: an answer that a test is changing as it closes is lost with it.
        made.page.unroute_all(behavior="ignoreErrors")
    finally:
        context.close()


class Traffic:
    """So many clients that ask one question after the other, until it is left."""

    def __init__(self, url: str, clients: int, *, tokens: int = 48) -> None:
        self.failed: list[str] = []
        self._url = f"{url}/v1/chat/completions"
        self._body = {
            "model": "simulated",
            "messages": [{"role": "user", "content": "tell me of rivers"}],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        with httpx2.Client(trust_env=False, timeout=PATIENCE_SECONDS) as client:
            while not self._over.is_set():
                try:
                    client.post(self._url, json=self._body).raise_for_status()
                except httpx2.HTTPError as error:
                    self.failed.append(repr(error))
                    return

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()


def mode_of(it: Specswitch) -> object:
    """What it says itself."""
    return it.state()["mode"]


def history(it: Specswitch) -> HistoryColumns:
    """GET /admin/history."""
    answer = httpx2.get(f"{it.admin_url}/admin/history", trust_env=False)
    return HistoryColumns.model_validate_json(answer.text)


def until(true: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until `true`."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        pause.wait(POLL_SECONDS)
