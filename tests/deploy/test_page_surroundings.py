"""The status page where the browser is not as usual: a clock that is set, no scripts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.deploy.browsing import Traffic, chromium, simulated_pair, visit
from tests.harness.process import Specswitch

AN_HOUR_BACK = "const real = Date.now; Date.now = () => real() - 3600_000"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for this file."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Specswitch]:
    """Specswitch in front of a simulated pair."""
    log: Path = tmp_path_factory.mktemp("served") / "log"
    with (
        simulated_pair() as engines,
        Specswitch(
            log, spec_url=engines["spec"], base_url=engines["base"], policy_crossover=3.0
        ) as it,
    ):
        yield it


def test_a_clock_that_is_set_moves_nothing(browser: Browser, served: Specswitch) -> None:
    """What is drawn stays in its place, and what is new is drawn beside it."""
    with visit(browser, served.admin_url) as seen, Traffic(served.url, 2):
        seen.is_live()
        drawn = seen.page.locator("#in-flight path.fill.spec")
        expect(drawn).to_have_attribute("d", re.compile("M"))
        before = drawn.get_attribute("d") or ""
        seen.page.evaluate(AN_HOUR_BACK)
        expect(drawn).not_to_have_attribute("d", before)
        expect(drawn).to_have_attribute("d", re.compile("M"))
        plot = seen.page.locator("#in-flight svg").bounding_box()
        inside = drawn.bounding_box()
        assert plot is not None
        assert inside is not None
        assert plot["x"] <= inside["x"]
        assert inside["x"] + inside["width"] <= plot["x"] + plot["width"] + 1
        expect(seen.page.locator("#version")).to_have_text(re.compile(r", up \d+ s$|, up \d+ min"))


def test_without_scripts_it_says_where_the_same_is(browser: Browser, served: Specswitch) -> None:
    """And shows nothing that looks as if it worked."""
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(served.admin_url)
        expect(page.locator("main")).to_be_hidden()
        expect(page.get_by_text("This page needs JavaScript.")).to_be_visible()
        page.get_by_role("link", name="admin/state").click()
        assert page.url == f"{served.admin_url}/admin/state"
    finally:
        context.close()
