"""Fuzz for as long as is asked: `python -m tests.fuzz.run --side client --inputs 100000`.

Seeded mutation, without a library; guided.py does the same by coverage. What is found is written to
a folder, one script a kind of finding, and the exit status is 1. `--replay FILE...` plays scripts
again, and raises what they find.
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutate import fresh
from tests.fuzz.targets import TARGETS

SIDES = {
    "reader": ("reader", True, False),
    "client": ("conversation", True, False),
    "engine": ("conversation", False, True),
    "both": ("conversation", True, True),
}
"""Each side's target, and which parts of a script are mutated."""


TELL_EVERY = 20_000
_VARIES = re.compile(r"\b\d|\[|bytearray|b['\"]|<")
"""Where in a finding's message that begins which differs from script to script."""


@dataclass(slots=True)
class Tally:
    """What a run has done."""

    executions: int = 0
    size: int = 0
    """Bytes of mutated input."""
    began: float = field(default_factory=time.monotonic)
    findings: dict[str, bytes] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        spent = self.seconds
        return (
            f"{self.executions} inputs, {self.size} bytes, {spent:.0f} s, "
            f"{self.executions / spent:.0f} inputs/s, {len(self.findings)} kinds of findings"
        )


def mutated_bytes(script: bytes, *, client: bool, engine: bool) -> int:
    """How much of a script is mutated input; what is only the other side's part does not count."""
    asked, _, answered = script.partition(b"\n=== ")
    return len(asked) * client + len(answered) * engine


def fuzz(
    side: str, seed: int, tally: Tally, *, inputs: int | None = None, seconds: float | None = None
) -> Tally:
    """Play so many mutated scripts, or for so long."""
    name, client, engine = SIDES[side]
    target = TARGETS[name]
    lots = Random(seed)
    while tally.executions != inputs and (seconds is None or tally.seconds < seconds):
        script = fresh(lots, client=client, engine=engine)
        tally.executions += 1
        tally.size += mutated_bytes(script, client=client, engine=engine)
        try:
            target(script)
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is a finding
            tally.findings.setdefault(kind_of(fault), script)
        if tally.executions % TELL_EVERY == 0:
            print(tally, flush=True)  # noqa: T201 - this is its interface
    return tally


def kind_of(fault: Exception) -> str:
    """Findings of one kind are told once: where it was raised, and what it begins with."""
    trace = fault.__traceback__
    assert trace is not None
    while trace.tb_next is not None and trace.tb_next.tb_frame.f_code.co_name != "require":
        trace = trace.tb_next
    where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{where} {type(fault).__name__}: {_VARIES.split(str(fault), maxsplit=1)[0][:90]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES, default="client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--findings", type=Path, default=Path(".fuzz/findings"))
    parser.add_argument("--replay", type=Path, nargs="+", default=[])
    chosen = parser.parse_args(arguments)
    for path in chosen.replay:
        TARGETS[SIDES[chosen.side][0]](path.read_bytes())
    if chosen.replay:
        return 0
    tally = fuzz(chosen.side, chosen.seed, Tally(), inputs=chosen.inputs, seconds=chosen.seconds)
    print(f"{chosen.side}, seed {chosen.seed}: {tally}")  # noqa: T201
    chosen.findings.mkdir(parents=True, exist_ok=True)
    for number, (kind, script) in enumerate(sorted(tally.findings.items())):
        path = chosen.findings / f"{chosen.side}-{chosen.seed}-{number}"
        path.write_bytes(script)
        print(f"{path}: {kind}")  # noqa: T201
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
