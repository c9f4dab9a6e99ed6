"""Progress of a long command: lines where nobody watches, a bar where somebody does."""

import io

import pytest
from rich.console import Console

from proxy.tools.progress import Progress, duration, progress


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def shown(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    """A console and what it was given."""
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=60, _environ={}), out


def test_lines_come_now_and_then_and_at_the_end() -> None:
    """Elsewhere than on a terminal a line is written at most every 5 s, and one at the end."""
    clock, (console, out) = Clock(), shown()
    with progress(console, total=100, what="calibrating", clock=clock) as p:
        for _ in range(100):
            clock.now += 1.0
            p.step(note="base at 8")
    lines = out.getvalue().splitlines()
    assert lines[0] == "calibrating: 1 of 100 (1%), 1 min 39 s left, base at 8"
    assert lines[1].startswith("calibrating: 6 of 100 (6%), 1 min 34 s left")
    assert len(lines) == 21
    assert lines[-1] == "calibrating: done in 1 min 40 s"


def test_a_line_is_not_broken_and_holds_what_it_was_given() -> None:
    """A note with brackets or a long address stands in one line as it is."""
    note = "[red]http://127.0.0.1:30001/" + "x" * 100
    console, out = shown()
    with progress(console, total=2, what="bench", clock=Clock()) as p:
        p.step(note=note)
    assert out.getvalue().splitlines()[0].endswith(note)


def test_what_breaks_off_says_where() -> None:
    """A block that raises ends with how far it came, never with "done"."""
    console, out = shown()

    def broken() -> None:
        with progress(console, total=4, what="sweep", clock=Clock()) as p:
            p.step(note="spec at 2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("sweep: stopped after 0 s at 1 of 4 (25%)")
    assert last.endswith("spec at 2")


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(*, terminal: bool) -> None:
    """With --json nothing is written, on a terminal neither."""
    console, out = shown(terminal=terminal)
    with progress(console, total=1, what="sweep", quiet=True) as p:
        p.step(note="x")
    assert out.getvalue() == ""
    assert p.done == 1


def test_a_terminal_gets_a_bar() -> None:
    """The bar shows its name and its end, and brackets in a note are not markup."""
    clock, (console, out) = Clock(), shown(terminal=True)
    with progress(console, total=2, what="sweep", clock=clock) as p:
        clock.now += 3.0
        p.step(note="[x]")
        p.step()
    assert "sweep" in out.getvalue()
    assert "done in 3 s" in out.getvalue()


def test_a_bar_that_breaks_off_says_where() -> None:
    """On a terminal too a block that raises is shown as stopped."""
    console, out = shown(terminal=True)

    def broken() -> None:
        with progress(console, total=4, what="sweep", clock=Clock()):
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        broken()
    assert "stopped after 0 s" in out.getvalue()


def test_time_left_goes_by_what_was_done_in_this_run() -> None:
    """What an earlier run had done counts as done, and does not make this run look fast."""
    clock = Clock()
    p = Progress(100, clock=clock)
    assert p.seconds_left is None
    p.skip(50)
    assert p.seconds_left is None
    assert p.share == 0.5
    clock.now += 10
    p.step(5)
    assert p.seconds_left == pytest.approx(45 * 10 / 5)


def test_more_steps_than_foreseen_are_no_error() -> None:
    """A total is an estimate: beyond it the share stays 1 and no time is left."""
    clock = Clock()
    p = Progress(2, clock=clock)
    clock.now += 1
    p.step(5)
    assert (p.share, p.seconds_left) == (1.0, 0.0)
    assert "left" not in p.state
    assert Progress(0, clock=clock).share == 1.0


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0 s"),
        (8.4, "8 s"),
        (59.6, "1 min 00 s"),
        (130, "2 min 10 s"),
        (3599.6, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (float("inf"), "an unknown time"),
        (float("nan"), "an unknown time"),
    ],
)
def test_a_duration_as_it_is_said(seconds: float, said: str) -> None:
    """Rounded once, so that no "60 s" appears."""
    assert duration(seconds) == said
