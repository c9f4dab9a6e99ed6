"""One run of one work against one target, as numbers."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from bench.speed import leaving, loading, machine
from bench.speed.errors import BenchError
from bench.speed.loading import Said
from bench.speed.machine import Cores, Spent
from bench.speed.processes import wait_until
from bench.speed.scraping import Lag, lag_of, scraped
from bench.speed.stage import Running, Stage
from bench.speed.works import Kind, Work

Figures = dict[str, float | None]
"""By name with its unit; None is unknown."""

STALL_MOST_MIB: Final = 1024.0
"""Growth at which the work ends early: it has said what it has to say, and memory is not ours."""

_STALL_LOOK: Final = 0.1
_HELD_SECONDS: Final = 10.0
_LEAVING_SECONDS: Final = 8.0
"""A connection that is not closed by then counts as closed then: a lower bound."""


@dataclass(slots=True)
class _Books:
    """What was spent between two moments, and by whom."""

    target: Spent = machine.NOTHING
    steady: Spent | None = None
    """Of the target, while all streams ran."""
    deferred: float = 0.0
    """Seconds of the kernel on the target's core, which nobody's books have."""
    foreign: float = 0.0
    """Cores that others kept busy."""
    marks: dict[str, Spent] = field(default_factory=dict)


def measure(stage: Stage, running: Running, work: Work) -> Figures:
    """Do `work`; raises BenchError or OSError where that fails."""
    stage.reset()
    running.forget_peak()
    before = running.resident()
    figures: Figures
    match work.kind:
        case Kind.START:
            figures = {"start_s": running.start_seconds}
        case Kind.STALL:
            figures = _stall(stage, running, work)
        case Kind.LEAVING | Kind.REQUESTS | Kind.STREAMS:
            figures = _loaded(stage, running, work)
    figures["peak_mib"] = running.peak() or None
    figures["before_mib"] = before or None
    if running.ended:
        raise BenchError(f"{running.target.name} ended by itself")
    return figures


def _loaded(stage: Stage, running: Running, work: Work) -> Figures:
    mode = "requests" if work.kind is Kind.REQUESTS else "streams"
    path = running.target.own_path if work.own_path else None
    line = loading.words(stage.load, mode, running.port, work.load, path)
    lag_before = lag_of(running)
    with ExitStack() as around:
        own = [stage.emulator_pid]
        if work.beside is not None:
            own.append(around.enter_context(_beside(stage, running, work)))
        scrapes = around.enter_context(scraped(running)) if work.scraped else []
        with _kept(running, own, stage.cores) as books:
            said = loading.run(line, _marker(running, books))
    _must_be_answers(said)
    figures = figures_of(said, work, books.target, books.steady)
    figures["foreign"] = books.foreign
    if running.process and figures["count"]:
        figures["deferred_us"] = books.deferred * 1e6 / figures["count"]
    figures |= _shares(stage, work)
    figures |= _lag(lag_before, lag_of(running))
    if work.scraped:
        figures["scrapes"] = float(len(scrapes))
        figures["scrape_ms_max"] = max(scrapes, default=0.0) * 1e3
    if work.kind is Kind.LEAVING:
        wait_until(lambda: stage.streams() == 0, _LEAVING_SECONDS)
        closed = leaving.closed(stage.ask("/emulator/left"))
        figures |= leaving.figures(leaving.left(said), closed, _LEAVING_SECONDS)
    return figures


def _must_be_answers(said: Said) -> None:
    """Errors are fast, and would look good in a table; raises BenchError where there are any."""
    if refused := said["refused"]:
        raise BenchError(f"{refused} answers had another status than 200")


def _marker(running: Running, books: _Books) -> Callable[[str], None]:
    """Takes the target's CPU time when the load says that all streams run, and that one ends."""

    def mark(word: str) -> None:
        books.marks[word] = running.spent()
        if word == "ending" and "steady" in books.marks:
            books.steady = books.marks[word] - books.marks["steady"]

    return mark


@contextmanager
def _kept(running: Running, own: Sequence[int], cores: Cores) -> Iterator[_Books]:
    """Books over what is in here; `own` are further processes of ours."""
    ours = {os.getpid(), *machine.tree(running.process.pid if running.process else 0), *own}
    books = _Books()
    began, others = monotonic(), machine.others(ours)
    target, deferred = running.spent(), machine.deferred(cores.proxy)
    yield books
    seconds = monotonic() - began
    books.target = running.spent() - target
    books.deferred = machine.deferred(cores.proxy) - deferred
    books.foreign = max(0.0, (machine.others(ours) - others) / seconds)


@contextmanager
def _beside(stage: Stage, running: Running, work: Work) -> Iterator[int]:
    """The second load, once it is there; its process id."""
    options = work.beside or {}
    mode = "requests" if work.beside_kind is Kind.REQUESTS else "streams"
    with loading.beside(loading.words(stage.load, mode, running.port, options, None)) as pid:
        if work.beside_kind is Kind.STREAMS:
            if not wait_until(lambda: stage.streams() >= options["clients"], _HELD_SECONDS):
                raise BenchError(f"only {stage.streams()} of {options['clients']} streams are held")
        else:
            machine.pause(0.5)  # until its bodies are on their way
        yield pid


def _stall(stage: Stage, running: Running, work: Work) -> Figures:
    """How much a target grows while one client reads nothing."""
    line = loading.words(stage.load, "stall", running.port, work.load, None)
    before = most = running.resident()
    began = monotonic()
    with loading.beside(line):
        while monotonic() - began < work.load["seconds"] and most - before < STALL_MOST_MIB:
            machine.pause(_STALL_LOOK)
            most = max(most, running.resident())
    return {"grown_mib": most - before, "watched_s": monotonic() - began}


def _shares(stage: Stage, work: Work) -> Figures:
    """Which part the speculative server had; a probe or two of each is in it."""
    if work.own_path:
        return {}
    spec, base = stage.requests()
    return {"spec_share": spec / (spec + base) if spec + base else None}


def _lag(before: Lag | None, after: Lag | None) -> Figures:
    if before is None or after is None:
        return {}
    lately = after - before
    return {"lag_ms_most": lately.most_ms, "lag_over_10_ms": float(lately.over_10_ms)}


def figures_of(
    said: Mapping[str, object], work: Work, target: Spent, steady: Spent | None
) -> Figures:
    """The load's numbers, and those for each chunk or request that follow from them.

    Times end in `_us`, `_ms` or `_s`; `cpu_us` is user and system time for each.
    """
    numbers: Said = {name: value for name, value in said.items() if name != "left"}
    figures = {name: _number(value) for name, value in numbers.items()}
    count = figures["count"] or 0.0
    figures |= _each(target, count, "")
    if steady is not None:
        figures |= _each(steady, figures["steady_chunks"] or 0.0, "steady_")
    sent = figures["clients"] or 0.0
    exact, altered, wrong = (figures[name] or 0.0 for name in ("exact", "altered", "wrong"))
    figures["in_time_share"] = (
        (figures["in_time"] or 0.0) / sent if work.kind is Kind.STREAMS else None
    )
    compared = exact + altered + wrong
    figures["exact_share"] = exact / compared if compared else None
    return figures


def _each(spent: Spent, count: float, prefix: str) -> Figures:
    if not count or not spent.total:
        return {}
    return {
        f"{prefix}cpu_us": spent.total * 1e6 / count,
        f"{prefix}user_us": spent.user * 1e6 / count,
        f"{prefix}system_us": spent.system * 1e6 / count,
    }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
