"""Write the compatibility table of docs/clients.md: `python -m tests.clients.table`.

It holds the rows that the tests have, says what the last `make clients` has seen of them, and is
written only where all of them were seen to pass. Versions are those of the locks.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.clients import setup
from tests.clients.results import Results
from tests.clients.rows import CLIENTS, PairKind, Row, rows
from tests.engines import setup as engines
from tests.harness.apart import ROOT

PAGE: Final = ROOT / "docs" / "clients.md"
_BEGIN: Final = "<!-- written by `python -m tests.clients.table`: do not edit -->\n"
_END: Final = "<!-- until here -->\n"
_PINS: Final = Path(engines.HERE / "requirements.txt")
_CURL: Final = re.compile(r"^### curl (\S+)$", re.MULTILINE)


class TableError(Exception):
    """The table cannot be written; the message says why."""


def rendered(versions: Mapping[str, str]) -> str:
    """Return the table, of all rows; *versions* are by a client's package."""
    found = list(rows())
    lines = []
    for client in CLIENTS:
        lines += [
            f"### {client.name} {versions[client.package]}".rstrip(),
            "",
            "| what | simulated pair | real pair |",
            "|---|---|---|",
            *(_line(row) for row in found if row.client == client),
            "",
        ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    cells = (row.without.get(kind, "passes") for kind in PairKind)
    return f"| {' | '.join((row.what, *cells))} |"


def versions(curl: str) -> dict[str, str]:
    """Return the versions of all clients; that of curl is the machine's, as it is told."""
    node = json.loads(setup.NODE_LOCK.read_text())["packages"]["node_modules/openai"]["version"]
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", setup.LOCK.read_text(), re.MULTILINE)
    sglang = re.findall(r"^sglang==(\S+)", _PINS.read_text(), re.MULTILINE)
    return {**dict(pins), "node:openai": node, "sglang": sglang[0], "curl": curl}


def unseen(results: Results) -> Iterator[str]:
    """Yield what the last run has not seen to pass."""
    for row in rows():
        for kind in PairKind:
            outcome = results.seen.get(row.key, {}).get(kind, "not run")
            if kind not in row.without and outcome != "passed":
                yield f"{row.key}, {kind} pair: {outcome}"


def on_page(page: str) -> str:
    """Return what stands on *page* where the table belongs.

    Raises:
        TableError: there is no such place.
    """
    _, begin, rest = page.partition(_BEGIN)
    table, end, _ = rest.partition(_END)
    if not begin or not end:
        raise TableError(f"{PAGE} has no place for the table")
    return table


def curl_on_page(page: str) -> str:
    """Return the version of curl that the table was last written with; empty for none."""
    found = _CURL.search(page)
    return found[1] if found else ""


def write() -> None:
    """Write the table into the page.

    Raises:
        FileNotFoundError: there are no results.
        TableError: they are not what the page would say.
    """
    results = Results.read(setup.RESULTS)
    if missing := list(unseen(results)):
        raise TableError("\n".join(["not seen to pass:", *missing]))
    page = PAGE.read_text()
    table = rendered(versions(results.versions["curl"]))
    PAGE.write_text(page.replace(f"{_BEGIN}{on_page(page)}{_END}", f"{_BEGIN}\n{table}\n{_END}"))


def main() -> int:
    """Return the exit status."""
    try:
        write()
    except FileNotFoundError:
        sys.stderr.write("table: no results: run `make clients`\n")
        return 1
    except TableError as error:
        sys.stderr.write(f"table: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
