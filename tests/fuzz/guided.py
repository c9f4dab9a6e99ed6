"""The same targets, guided by the coverage of `proxy`: `python -m tests.fuzz.guided SIDE [...]`.

Needs atheris, which is no dependency (`make fuzz` installs it beside the environment). What follows
the side are libFuzzer's own options and corpus folders. It ends at the first finding, and leaves
the script as `crash-...`.
"""

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris  # type: ignore[import-untyped]  # installed where it is asked for

with atheris.instrument_imports(include=["proxy"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.corpus import HERE
from tests.fuzz.mutate import LONGEST, fresh, remake
from tests.fuzz.run import SIDES, TELL_EVERY, Tally, mutated_bytes

STARTS = 400
"""Scripts of the corpus that libFuzzer begins with."""


def mutator(data: bytes, most: int, seed: int) -> bytes:
    """Change a script as the seeded mutator does, or as libFuzzer does.

    libFuzzer knows the values that were compared with, and joins scripts.
    """
    lots = Random(seed)
    if lots.random() < 0.4:
        changed: bytes = atheris.Mutate(data, min(most, len(data) + 64))
        return changed
    return remake(data, lots)[:most]


def main() -> None:
    """Fuzz until something is found, or as long as libFuzzer's options say."""
    side, *options = sys.argv[1:]
    name, client, engine = SIDES[side]
    lots = Random(0)
    with tempfile.TemporaryDirectory() as corpus:
        for number in range(STARTS):
            script = fresh(lots, client=client, engine=engine)
            Path(corpus, f"{number}").write_bytes(script)
        tally = Tally()

        def play(data: bytes) -> None:
            tally.executions += 1
            tally.size += mutated_bytes(data, client=client, engine=engine)
            if tally.executions % TELL_EVERY == 0:
                print(tally, flush=True)  # noqa: T201 - libFuzzer does not count bytes
            TARGETS[name](data)

        known = [f"-dict={HERE / 'http.dict'}", f"-max_len={2 * LONGEST}"]
        arguments = [sys.argv[0], *known, *options, corpus]
        atheris.Setup(arguments, play, custom_mutator=mutator)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
