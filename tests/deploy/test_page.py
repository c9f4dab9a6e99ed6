"""The status page in Chromium: what it shows under traffic, what it changes, what it survives."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect

from tests.deploy.browsing import Traffic, chromium, history, mode_of, simulated_pair, until, visit
from tests.harness.process import Specswitch

TOKEN = "the-admin-token"
CONTROL = "#control-buttons"
AGE = 1000.0
"""Seconds by which a process can be made older than it is."""
TURNS = 500
"""Of a fake clock, each of which costs milliseconds."""
SEEN_SECONDS = 2.0
"""Within which a switch must be on the page."""
SETTLED = {"policy_crossover": 3.0, "policy_return_dwell": 1.0, "policy_count_window": 1.0}
NOTE_THE_CHANGE = """
    () => new MutationObserver(() => { window.changed ??= Date.now(); })
        .observe(document.getElementById("mode"), {childList: true})
"""
COUNT_THE_FETCHES = """
    window.open = window.most = 0;
    const fetched = window.fetch;
    window.fetch = async (...asked) => {
        window.most = Math.max(window.most, ++window.open);
        try { return await fetched(...asked); } finally { window.open -= 1; }
    };
    Object.defineProperty(document, "hidden", {get: () => window.away});
"""
COME_BACK = "window.away = false; document.dispatchEvent(new Event('visibilitychange'))"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for this file; each visit has a profile of its own."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, str]]:
    """One simulated pair for this file."""
    with simulated_pair() as found:
        yield found


@pytest.fixture
def served(engines: dict[str, str], tmp_path: Path) -> Iterator[Specswitch]:
    """Specswitch in front of the pair; it returns to spec soon, so that one can wait for it."""
    with started(engines, tmp_path) as it:
        until(lambda: mode_of(it) == "spec", "a calm pair speculates")
        yield it


def started(engines: dict[str, str], folder: Path, **settings: object) -> Specswitch:
    """Not yet running."""
    return Specswitch(
        folder / "log",
        spec_url=engines["spec"],
        base_url=engines["base"],
        **{**SETTLED, **settings},
    )


# What it shows ---------------------------------------------------------------------------------


def test_it_shows_what_is_under_traffic(browser: Browser, served: Specswitch) -> None:
    """Counts, rates and times of a running pair, and nothing is wrong on the console."""
    with visit(browser, served.admin_url) as seen, Traffic(served.url, 2) as traffic:
        seen.is_live()
        seen.shows("#mode", "spec")
        seen.shows("#why", "New requests go to spec: ")
        expect(seen.page.locator("#in-flight .reading")).to_have_text(re.compile("spec [12]"))
        expect(seen.page.locator("#offered .reading")).to_have_text(re.compile(r"\d{2,}"))
        for plot in ("#ttft", "#tpot"):
            expect(seen.page.locator(f"{plot} .reading")).to_have_text(re.compile(r"spec \d.* m?s"))
            expect(seen.page.locator(f"{plot} path.line.spec")).to_have_attribute(
                "d", re.compile("M")
            )
        expect(seen.page.locator("#in-flight path.fill.spec")).to_have_attribute(
            "d", re.compile("M")
        )
        seen.shows("#in-flight", "N* 3")
        seen.shows("#upstream-spec .health", "healthy")
        seen.shows("#upstream-base .facts", "0.5.23")
        expect(seen.page.locator("#load")).to_have_text(re.compile(r"[12], N\* 3.*\d{2,}, λ\* "))
        label = seen.page.get_attribute("#in-flight svg", "aria-label") or ""
    assert label.startswith("In flight: spec ")
    assert traffic.failed == []


def test_a_switch_is_seen_within_two_seconds(browser: Browser, served: Specswitch) -> None:
    """The mode, its reason, and a row in the table; by the time of day that both have."""
    with visit(browser, served.admin_url) as seen:
        seen.shows("#mode", "spec")
        seen.page.evaluate(NOTE_THE_CHANGE)
        with Traffic(served.url, 8):
            seen.shows("#mode", "base")
            seen.shows("#why", "more is in flight than speculation pays for")
            why = "more is in flight than speculation pays for"
            seen.shows("#switches tbody tr:first-child", why)
            seen.shows("#said", "New requests go to base")
        shown = seen.page.evaluate("window.changed") / 1000
    switches = [each for each in history(served).switches if each.to == "base"]
    assert 0.0 < shown - switches[0].time.timestamp() < SEEN_SECONDS


def test_who_comes_late_sees_what_was(browser: Browser, served: Specswitch) -> None:
    """A burst that is over is in the plot and in the table of a page that is opened after it."""
    with Traffic(served.url, 8):
        until(lambda: mode_of(served) == "base", "a burst leads to base")
    until(lambda: mode_of(served) == "spec", "calm leads back")
    with visit(browser, served.admin_url) as seen:
        seen.is_live()
        expect(seen.page.locator("#switches tbody tr").nth(1)).to_be_visible()
        expect(seen.page.locator("#in-flight path.fill.base")).to_have_attribute(
            "d", re.compile("M")
        )
        label = seen.page.get_attribute("#in-flight svg", "aria-label") or ""
    most = re.search(r"at most (\d+)", label)
    assert most is not None
    assert int(most[1]) >= 4


def test_one_can_look_back_with_the_keyboard(browser: Browser, served: Specswitch) -> None:
    """The plots have one cursor, which the arrow keys move and which says where it is."""
    with visit(browser, served.admin_url) as seen:
        seen.is_live()
        cursor = seen.page.locator("#cursor")
        cursor.focus()
        expect(cursor).to_be_in_viewport()
        for _ in range(3):
            seen.page.keyboard.press("ArrowLeft")
        seen.shows("#when", "15 s ago, at ")
        expect(cursor).to_have_attribute("aria-valuetext", re.compile("^15 s ago, at "))
        expect(seen.page.locator("#in-flight .pointer")).to_have_count(1)
        cursor.blur()
        expect(seen.page.locator("#when")).to_have_text("")


def test_what_is_wrong_is_said_in_words(
    browser: Browser, engines: dict[str, str], tmp_path: Path
) -> None:
    """An upstream that is not there, and N* that is not known."""
    apart = {**engines, "spec": "http://127.0.0.1:9"}
    with (
        Specswitch(tmp_path / "log", spec_url=apart["spec"], base_url=apart["base"]) as it,
        visit(browser, it.admin_url) as seen,
    ):
        seen.shows("#alerts", "spec takes no requests: no good probe so far.")
        seen.shows("#alerts", "Not calibrated: everything goes to base")
        seen.shows("#upstream-spec .health", "not there yet: no good probe so far")
        seen.shows("#upstream-spec .faults", "Last probe: ")
        seen.shows("#calibration", "None yet")
        seen.shows("#said", "Not calibrated")


def test_all_that_is_told_is_text(browser: Browser, served: Specswitch) -> None:
    """A server may call itself what it likes, and so may whoever writes a calibration."""

    def hostile(route: Route) -> None:
        state = route.fetch().json()
        state["control_set_by"] = state["mode_reason"] = HOSTILE
        state["calibration"] = {
            "created": HOSTILE,
            "sentence": HOSTILE,
            "valid": False,
            "faults": [HOSTILE],
            "drift": {"spec": None, "base": None},
        }
        for upstream in state["upstreams"].values():
            upstream.update(url=HOSTILE, version=HOSTILE, probe_fault=HOSTILE, cause=HOSTILE)
            upstream.update(health="ejected", faults=[HOSTILE])
        route.fulfill(json=state)

    def prepare(page: Page) -> None:
        page.route("**/admin/state", hostile)

    with visit(browser, served.admin_url, prepare=prepare) as seen:
        seen.shows("#calibration", HOSTILE)
        seen.shows("#upstream-spec .facts", HOSTILE)
        seen.shows("#upstream-spec .health", HOSTILE)
        assert seen.page.locator("img").count() == 0
        assert seen.page.locator("script").count() == 1


# What it changes -------------------------------------------------------------------------------


def test_the_kill_switch_asks_first(browser: Browser, served: Specswitch) -> None:
    """Nothing changes before it is confirmed, nor where it is left; then all goes to base."""
    with visit(browser, served.admin_url) as seen:
        seen.is_chosen(CONTROL, "auto")
        seen.ask(CONTROL, "base")
        seen.shows("#ask", "All goes to base: speculation is off.")
        seen.page.click("#ask-no")
        seen.ask(CONTROL, "base")
        seen.page.keyboard.press("Escape")
        expect(seen.page.locator("#ask")).to_be_hidden()
        assert served.state()["control"] == "auto"

        seen.ask(CONTROL, "base")
        seen.confirm()
        expect(seen.page.locator("#ask")).to_be_hidden()
        seen.is_chosen(CONTROL, "base")
        seen.shows("#why", "New requests go to base: the operator said so.")
        seen.shows("#control-set", "admin (127.0.0.1)")
        state = served.state()
    assert (state["control"], state["mode"]) == ("base", "base")


def test_an_upstream_is_taken_out_and_put_back(browser: Browser, served: Specswitch) -> None:
    """Drained with a confirmation; what that means is said above all else."""
    with visit(browser, served.admin_url) as seen:
        for word in ("drain", "ready"):
            seen.ask("#upstream-spec", word)
            seen.confirm()
            seen.is_chosen("#upstream-spec", word)
            if word == "drain":
                seen.shows("#alerts", "spec takes no requests: the operator has set it to drain.")
                seen.shows("#why", "New requests go to base: spec is set to drain.")
        expect(seen.page.locator("#alerts")).to_be_hidden()


def test_the_token_is_asked_for_and_not_kept(
    browser: Browser, engines: dict[str, str], tmp_path: Path
) -> None:
    """A wrong one is said to be wrong, the right one is asked for once, and a reload forgets it."""
    with (
        started(engines, tmp_path, auth_admin_token=TOKEN) as it,
        visit(browser, it.admin_url, silent=True) as seen,
    ):
        seen.ask(CONTROL, "base")
        seen.confirm()
        seen.shows("#ask-wrong", "This needs the admin token.")
        expect(seen.page.locator("#token")).to_be_focused()
        for wrong in ("wrong", "gr\u00fcn", "\u2713"):
            seen.page.fill("#token", wrong)
            seen.page.keyboard.press("Enter")
            seen.shows("#ask-wrong", "That is not the admin token.")
            expect(seen.page.locator("#token")).to_have_value("")
        assert it.state()["control"] == "auto"
        seen.page.fill("#token", TOKEN)
        seen.page.keyboard.press("Enter")
        seen.is_chosen(CONTROL, "base")

        seen.ask(CONTROL, "auto")
        seen.confirm()
        seen.is_chosen(CONTROL, "auto")
        kept = seen.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        assert kept == [0, 0, ""]
        assert TOKEN not in seen.page.content()
        assert not [url for url in (*seen.asked, seen.page.url) if TOKEN in url]

        seen.page.reload()
        seen.is_live()
        seen.ask(CONTROL, "base")
        seen.confirm()
        seen.shows("#ask-wrong", "This needs the admin token.")


def test_a_refusal_is_told(browser: Browser, served: Specswitch) -> None:
    """In specswitch's words, with the dialog still open."""

    def prepare(page: Page) -> None:
        error = {"error": {"message": "a page of another origin may not change anything"}}
        page.route("**/admin/control", lambda route: route.fulfill(status=403, json=error))

    with visit(browser, served.admin_url, prepare=prepare, silent=True) as seen:
        seen.ask(CONTROL, "base")
        seen.confirm()
        seen.shows("#ask-wrong", "Refused: a page of another origin may not change anything.")


# What it survives ------------------------------------------------------------------------------


def test_it_survives_a_restart(browser: Browser, served: Specswitch) -> None:
    """It says that nobody answers, goes on by itself, and keeps what it had seen.

    The process before it has run for a long time, as far as the page knows: the seconds of the next
    one are smaller, and count all the same.
    """
    first = served.state()["started"]

    def older(route: Route) -> None:
        url = re.sub(
            r"after=(\d.*)", lambda found: f"after={float(found[1]) - AGE}", route.request.url
        )
        try:
            told = route.fetch(url=url).json()
        except Error:
            route.abort()
            return
        if told["started"] == first:
            told["now"] += AGE
            told["at"] = [at + AGE for at in told["at"]]
        route.fulfill(json=told)

    def prepare(page: Page) -> None:
        page.route("**/admin/history*", older)

    with visit(browser, served.admin_url, silent=True, prepare=prepare) as seen:
        runs = seen.page.locator("#band rect.fill")
        with Traffic(served.url, 8):
            seen.shows("#mode", "base")
        expect(seen.page.locator("#band rect.base.fill").first).to_be_visible()
        served.stop()
        expect(seen.page.locator("html")).to_have_attribute("data-answers", "no")
        rows, before = seen.page.locator("#switches tbody tr").count(), runs.count()
        seen.shows("#answers", "No answer since ")
        seen.shows("#said", "specswitch does not answer.")
        seen.ask(CONTROL, "base")
        seen.confirm()
        seen.shows("#ask-wrong", "specswitch did not answer.")
        seen.page.click("#ask-no")

        served.__enter__()
        seen.is_live()
        assert served.state()["started"] != first
        seen.shows("#mode", "spec")
        assert seen.page.locator("#switches tbody tr").count() > rows
        expect(runs.nth(before)).to_be_visible()
        expect(seen.page.locator("#in-flight path.fill.base")).to_have_attribute(
            "d", re.compile("M")
        )


def test_it_asks_one_thing_at_a_time_and_seldom_while_hidden(
    browser: Browser, served: Specswitch
) -> None:
    """One connection for each page; and none is kept busy by a tab in the background."""

    def prepare(page: Page) -> None:
        page.add_init_script(COUNT_THE_FETCHES)
        page.clock.install()

    until(lambda: bool(history(served).at), "there is a first row")
    with visit(browser, served.admin_url, prepare=prepare) as seen:
        seen.is_live()
        answers: list[str] = []
        seen.page.on("response", lambda answer: answers.append(answer.url))
        seen.page.clock.pause_at(seen.page.evaluate("Date.now() + 50"))

        def pass_time(seconds: int) -> int:
            """Until it has heard of the history once more; how often so many seconds passed."""
            before, turns = len(answers), 0
            while not any("history" in url for url in answers[before:]):
                assert turns < TURNS, "it asks no more"
                seen.page.clock.run_for(seconds * 1000)
                turns += 1
            return turns

        seen.asked.clear()
        turns = sum(pass_time(1) for _ in range(3))
        assert seen.page.evaluate("window.most") == 1
        assert len([url for url in seen.asked if url.endswith("/admin/state")]) <= turns + 1
        assert all("after=-1" not in url for url in seen.asked)

        seen.page.evaluate("window.away = true")
        pass_time(1)
        seen.asked.clear()
        seen.page.clock.run_for(28_000)
        assert seen.asked == []
        pass_time(3)

        answers.clear()

        def comes_back() -> bool:
            seen.page.evaluate(COME_BACK)
            return any("history" in url for url in answers)

        until(comes_back, "it asks as soon as it is looked at")


def test_a_newer_specswitch_wants_a_newer_page(browser: Browser, served: Specswitch) -> None:
    """After an update an open page says that it is an old one."""
    versions = iter(["1.0.0"])

    def prepare(page: Page) -> None:
        def other(route: Route) -> None:
            state = route.fetch().json()
            state["version"] = next(versions, "1.1.0")
            route.fulfill(body=json.dumps(state), content_type="application/json")

        page.route("**/admin/state", other)

    with visit(browser, served.admin_url, prepare=prepare) as seen:
        seen.shows("#alerts", "specswitch is another version now: load this page again.")
