"""How far a long command has come: a bar on a terminal, a plain line now and then elsewhere.

Give it a console on standard error, so that what the command prints as its result stays alone on
standard output.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

_LINE_SECONDS = 5.0
"""A log holds a line as often as that: often enough to see life, seldom enough to be read."""
_MINUTE = 60
_HOUR = 3600


class Progress:
    """Steps done of a total, in any unit; time left assumes that the rest goes as fast so far."""

    def __init__(self, total: float, *, clock: Callable[[], float]) -> None:
        self._total = max(total, 0.0)
        self._clock = clock
        self._started = clock()
        self._skipped = 0.0
        self.done = 0.0
        self.note = ""
        """What is being done now, in a few words."""

    def step(self, n: float = 1, note: str | None = None) -> None:
        """`n` more are done; 0 with a note says only what comes next."""
        self.done += n
        if note is not None:
            self.note = note
        self._show()

    def skip(self, n: float, note: str | None = None) -> None:
        """`n` more were done in an earlier run: they count, but say nothing of the speed."""
        self._skipped += n
        self.step(n, note)

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.done / self._total) if self._total > 0 else 1.0

    @property
    def seconds_left(self) -> float | None:
        """None before anything was done."""
        worked = self.done - self._skipped
        if worked <= 0:
            return None
        left = max(0.0, self._total - self.done)
        return left * (self._clock() - self._started) / worked

    @property
    def state(self) -> str:
        """Done of the total, time left, and the note."""
        left = self.seconds_left
        parts = [f"{self.share:.0%}"]
        if self._total == int(self._total):  # whole things, and not seconds of an estimate
            parts = [f"{self.done:.6g} of {self._total:.6g} ({parts[0]})"]
        if left is not None and self.share < 1:
            parts.append(f"{duration(left)} left")
        return ", ".join([*parts, self.note] if self.note else parts)

    def _show(self) -> None:
        """Nothing, here."""

    def _end(self, *, well: bool) -> None:
        """Nothing, here."""


class _Lines(Progress):
    def __init__(
        self, console: Console, what: str, total: float, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(total, clock=clock)
        self._console = console
        self._what = what
        self._said_at: float | None = None

    def _show(self) -> None:
        now = self._clock()
        if self._said_at is None or now - self._said_at >= _LINE_SECONDS:
            self._said_at = now
            self._say(self.state)

    def _end(self, *, well: bool) -> None:
        took = duration(self._clock() - self._started)
        self._say(f"done in {took}" if well else f"stopped after {took} at {self.state}")

    def _say(self, text: str) -> None:
        # As it is: a note may hold a URL or brackets, and a line broken at 80 cannot be searched.
        line = f"{self._what}: {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _OnTerminal(Progress):
    def __init__(
        self, console: Console, what: str, total: float, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(total, clock=clock)
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
        )
        self._task = self._bar.add_task(what, total=1.0, state="")
        self._what = what
        self._bar.start()

    def _show(self) -> None:
        self._bar.update(self._task, completed=self.share, state=self.state)

    def _end(self, *, well: bool) -> None:
        took = duration(self._clock() - self._started)
        state = f"done in {took}" if well else f"stopped after {took} at {self.state}"
        self._bar.update(self._task, state=state)
        self._bar.stop()


@contextmanager
def progress(
    console: Console,
    *,
    total: float,
    what: str,
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Show how far the block has come; `what` names it, as in "calibrating".

    `quiet` shows nothing at all: for --json. A block that raises is shown as stopped, and where.
    """
    if quiet:
        shown = Progress(total, clock=clock)
    elif console.is_terminal:
        shown = _OnTerminal(console, what, total, clock=clock)
    else:
        shown = _Lines(console, what, total, clock=clock)
    well = False
    try:
        yield shown
        well = True
    finally:
        shown._end(well=well)  # noqa: SLF001 - only this block may end it


def duration(seconds: float) -> str:
    """As it is said: "8 s", "2 min 10 s", "1 h 05 min"; rounded to whole seconds."""
    if not isfinite(seconds):
        return "an unknown time"
    whole = max(0, round(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} min"
