"""The status page for everybody: light and dark, small and wide, by keyboard, read aloud, late.

And where the browser is not as usual: a clock that is set, no scripts.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.deploy.browsing import Scheme, Traffic, Visit, chromium, simulated_pair, until, visit
from tests.harness.process import Specswitch

TOKEN = "the-admin-token"
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WIDTHS = (320, 1200)
AN_HOUR_BACK = "const real = Date.now; Date.now = () => real() - 3600_000"
EVERY_LOOK = pytest.mark.parametrize(
    ("scheme", "width"), [(scheme, width) for scheme in SCHEMES for width in WIDTHS]
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for this file."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Specswitch]:
    """Specswitch with a token, in front of a simulated pair, after a burst."""
    log = tmp_path_factory.mktemp("page") / "log"
    with simulated_pair() as engines, in_front(log, engines) as it:
        with Traffic(it.url, 8):
            until(lambda: it.state()["mode"] == "base", "a burst leads to base")
        yield it


def in_front(log: Path, engines: dict[str, str]) -> Specswitch:
    """Not yet running."""
    return Specswitch(
        log,
        spec_url=engines["spec"],
        base_url=engines["base"],
        policy_crossover=3.0,
        policy_return_dwell=1.0,
        auth_admin_token=TOKEN,
    )


@contextmanager
def everything_wrong(
    browser: Browser, it: Specswitch, scheme: Scheme, width: int
) -> Iterator[Visit]:
    """A page with every kind of alert, fault and word on it."""

    def worst(route: Route) -> None:
        state = route.fetch().json()
        state.update(draining=True, mode="base", mode_wanted="spec", queue_depth=7)
        spec, base = state["upstreams"]["spec"], state["upstreams"]["base"]
        spec.update(health="ejected", cause="misconfigured", probe_fault="503 Service Unavailable")
        spec.update(faults=["it serves the model other/model, and base serves simulated"])
        base.update(health="probation", admin_state="ready")
        state["calibration"] = {
            "created": "2026-11-29T10:00:00Z",
            "sentence": "Crossover at 3.1 in flight (90 %: 2.8 to 3.4): speculation below it.",
            "valid": False,
            "faults": ["spec runs version 0.5.24, and was calibrated with 0.5.23"],
            "drift": {"spec": 1.31, "base": None},
        }
        route.fulfill(json=state)

    def prepare(page: Page) -> None:
        page.route("**/admin/state", worst)

    with visit(browser, it.admin_url, scheme=scheme, width=width, prepare=prepare) as seen:
        seen.shows("#alerts", "Draining")
        yield seen


@EVERY_LOOK
def test_axe_finds_nothing_serious(
    browser: Browser, served: Specswitch, scheme: Scheme, width: int
) -> None:
    """On a page that is well."""
    with visit(browser, served.admin_url, scheme=scheme, width=width) as seen:
        seen.is_live()
        expect(seen.page.locator("#switches tbody tr").first).to_be_visible()
        assert seen.faults() == []


@EVERY_LOOK
def test_axe_finds_nothing_serious_where_all_is_wrong(
    browser: Browser, served: Specswitch, scheme: Scheme, width: int
) -> None:
    """Alerts, faults, an ejection and a probation are as readable as all else."""
    with everything_wrong(browser, served, scheme, width) as seen:
        assert seen.faults() == []


@EVERY_LOOK
def test_axe_finds_nothing_serious_in_the_dialog(
    browser: Browser, served: Specswitch, scheme: Scheme, width: int
) -> None:
    """With the field for the token, and with what is wrong."""
    with visit(browser, served.admin_url, scheme=scheme, width=width, silent=True) as seen:
        seen.ask("#control-buttons", "observe")
        seen.confirm()
        seen.shows("#ask-wrong", "This needs the admin token.")
        assert seen.faults() == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_serious_while_nobody_answers(
    browser: Browser, served: Specswitch, scheme: Scheme
) -> None:
    """What was said last is still readable."""
    with visit(browser, served.admin_url, scheme=scheme, silent=True) as seen:
        seen.is_live()
        seen.page.route("**/admin/state", lambda route: route.abort())
        seen.shows("#answers", "No answer since ")
        assert seen.faults() == []


def test_axe_would_find_it(browser: Browser, served: Specswitch) -> None:
    """What is asked here is not always answered with nothing: a grey on white, a field unnamed."""
    with visit(browser, served.admin_url) as seen:
        seen.is_live()
        seen.page.evaluate(
            "document.getElementById('why').style.color = '#ccc';"
            "document.querySelector('label[for=cursor]').replaceWith(document.getElementById('cursor'))"
        )
        assert {str(each["id"]) for each in seen.faults()} >= {"color-contrast", "label"}


@pytest.mark.parametrize("width", [320, 375, 768, 1200, 1920])
def test_nothing_is_wider_than_the_screen(browser: Browser, served: Specswitch, width: int) -> None:
    """WCAG 1.4.10: at 320 px nobody scrolls sideways, also where all is wrong."""
    with everything_wrong(browser, served, "light", width) as seen:
        wide = seen.page.evaluate(
            "[...document.querySelectorAll('body, body *:not(.unseen, .skip)')]"
            ".filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)"
            ".map((each) => each.outerHTML.slice(0, 80))"
        )
        assert wide == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_are_what_the_system_asks_for(browser: Browser, served: Specswitch) -> None:
    """Dark ink on a light ground, and the other way round."""
    shades = {}
    for scheme in SCHEMES:
        with visit(browser, served.admin_url, scheme=scheme) as seen:
            seen.is_live()
            ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
            shades[scheme] = sum(int(part) for part in ground[4:-1].split(","))
    assert shades["light"] > 600
    assert shades["dark"] < 150


def test_the_kill_switch_is_reached_by_keyboard_alone(browser: Browser, served: Specswitch) -> None:
    """The first stop leads to it; the dialog begins with the harmless answer, gives focus back."""
    with visit(browser, served.admin_url, silent=True) as seen:
        seen.is_live()
        press, focused = seen.page.keyboard.press, seen.page.locator(":focus")
        press("Tab")
        expect(focused).to_have_text("To the control switch")
        press("Enter")
        for word in ("auto", "spec", "base"):
            press("Tab")
            expect(focused).to_have_attribute("value", word)
        press("Enter")
        expect(focused).to_have_id("ask-no")
        press("Tab")
        press("Enter")
        expect(focused).to_have_id("token")
        seen.page.keyboard.type(TOKEN)
        press("Enter")
        expect(seen.page.locator("#ask")).to_be_hidden()
        expect(focused).to_have_attribute("value", "base")
        seen.is_chosen("#control-buttons", "base")
        assert served.state()["control"] == "base"
        served_again(seen)


def served_again(seen: Visit) -> None:
    """Give the control back, for the tests after this one."""
    seen.ask("#control-buttons", "auto")
    seen.confirm()
    seen.is_chosen("#control-buttons", "auto")


def test_what_is_read_aloud_is_news_only(browser: Browser, served: Specswitch) -> None:
    """Figures change all the time and are never spoken; the mode and the alerts are."""
    count = (
        "new MutationObserver((found) => { window.spoken += found.length; })"
        ".observe(document.getElementById('said'),"
        " {childList: true, characterData: true, subtree: true})"
    )
    with visit(browser, served.admin_url) as seen:
        seen.shows("#mode", "spec")
        seen.page.evaluate(f"window.spoken = 0; {count}; undefined")
        with Traffic(served.url, 1):
            for _ in range(4):
                with seen.page.expect_response("**/admin/history*"):
                    pass
        assert seen.page.evaluate("window.spoken") == 0
        live = seen.page.locator("[role=status], [role=alert], [aria-live]")
        assert live.evaluate_all("(all) => all.map((each) => each.id)") == ["said", "ask-wrong"]


def test_landmarks_and_headings_are_an_outline(browser: Browser, served: Specswitch) -> None:
    """One h1, a name for each region, and every button in a group that says what it is for."""
    with visit(browser, served.admin_url) as seen:
        seen.is_live()
        assert seen.page.locator("h1").count() == 1
        for role in ("banner", "main", "contentinfo"):
            expect(seen.page.get_by_role(role)).to_have_count(1)
        for name in (
            "Mode",
            "Control",
            "The last 3 minutes",
            "spec",
            "base",
            "Calibration",
            "Recent switches",
        ):
            expect(seen.page.get_by_role("region", name=name, exact=True)).to_have_count(1)
        for name in ("Control", "Admin state of spec", "Admin state of base"):
            expect(seen.page.get_by_role("group", name=name)).to_have_count(1)


def test_colours_are_never_the_only_sign(browser: Browser, served: Specswitch) -> None:
    """The two are told apart by their names, a dashed line and a hatched area, too."""
    with visit(browser, served.admin_url) as seen:
        seen.is_live()
        dashes = "(line) => getComputedStyle(line).strokeDasharray"
        assert seen.page.eval_on_selector("#tpot path.line.spec", dashes) == "none"
        assert seen.page.eval_on_selector("#tpot path.line.base", dashes) != "none"
        assert seen.page.locator("#in-flight path.hatch").count() == 1
        seen.shows("#tpot .reading", "spec ")
        seen.shows("#tpot .reading", "base ")


def test_how_long_it_is_up_is_of_one_clock(browser: Browser, served: Specswitch) -> None:
    """The browser's machine and specswitch's need not tell the same time of day."""

    def prepare(page: Page) -> None:
        page.clock.install(time=datetime.now(UTC) + timedelta(days=30))

    with visit(browser, served.admin_url, prepare=prepare) as seen:
        seen.is_live()
        expect(seen.page.locator("#version")).to_have_text(re.compile(r", up (\d+ min )?\d+ s$"))


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
