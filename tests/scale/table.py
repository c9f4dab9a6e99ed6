"""The table of docs/scaling.md, from what the last `make scale` has seen.

A cell is what its story holds a router to: another run that passes writes the same.

python -m tests.scale.table             print it
python -m tests.scale.table --write     put it into the page
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.scale.routers import STARTS
from tests.scale.seen import Story, noted

PAGE: Final = Path(__file__).parents[2] / "docs" / "scaling.md"
BEGIN: Final = "<!-- tests.scale begins -->"
END: Final = "<!-- tests.scale ends -->"


def table() -> str:
    """A row for each router, a column for each story.

    Raises:
        KeyError: a story was not run, or did not hold.
    """
    found = noted()
    head = ["router", *Story]
    rows = [[f"**{name}**", *(found[name, story] for story in Story)] for name in STARTS]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def between(page: str) -> str:
    """What stands between the marks of a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def put(page: str, made: str) -> str:
    """The page with `made` between its marks, which it has."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Print it, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.table", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into docs/scaling.md")
    asked = parser.parse_args()
    try:
        made = table()
    except KeyError as missing:
        sys.stderr.write(f"not seen: {missing}; run `make scale` first\n")
        return 1
    if asked.write:
        PAGE.write_text(put(PAGE.read_text(), made))
    else:
        sys.stdout.write(f"{made}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
