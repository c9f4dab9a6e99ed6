"""What was seen of each row when it last ran, kept for the table: `.clients/results.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.rows import PairKind, Row

Seen = dict[str, dict[str, str]]
"""By a row's key and a pair: `passed`, or how it ended else."""


@dataclass
class Results:
    """The outcomes of one run, or of all; the worst of a row's tests in a run is the row's."""

    seen: Seen = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """Of clients that no lock has: `curl`."""

    def note(self, row: Row, pair: PairKind, outcome: str) -> None:
        """One phase of one test has ended."""
        cells = self.seen.setdefault(row.key, {})
        if cells.get(pair, "passed") == "passed":
            cells[pair] = outcome

    def write(self, path: Path) -> None:
        """Keep them, and what earlier runs have seen of cells that this one has not."""
        before = Results.read(path).seen if path.exists() else {}
        keys = [*before, *(key for key in self.seen if key not in before)]
        seen = {key: {**before.get(key, {}), **self.seen.get(key, {})} for key in keys}
        told: Mapping[str, object] = {"seen": seen, "versions": self.versions}
        path.write_text(json.dumps(told, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Those that are kept.

        Raises:
            FileNotFoundError: there was none.
        """
        return cls(**json.loads(path.read_text()))
