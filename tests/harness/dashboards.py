"""A dashboard as Grafana's JSON has it: its panels, its queries, and its variables put into them.

Only what a check of queries needs. What is missing where it must be is a KeyError.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
_LABEL_VALUES: Final = re.compile(r"label_values\((?:(?P<selector>.+),\s*)?(?P<label>\w+)\)")

# JSON of Grafana's own shape.
Json = Mapping[str, Any]


class UnknownVariableError(Exception):
    """A query names a variable that the dashboard has not got; the message has both."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One query, and where it stands."""

    where: str
    expr: str


@dataclass(frozen=True, slots=True)
class Variable:
    """One that is filled by a query."""

    name: str
    label: str
    selector: str


@dataclass(slots=True)
class Shown:
    """One dashboard; `values` are those that its variables have now, by their names."""

    json: Json
    values: dict[str, str] = field(default_factory=dict)

    def panels(self) -> Iterator[Json]:
        """All of them, rows and those within rows included."""
        yield from _panels(self.json["panels"])

    def queries(self) -> Iterator[Asked]:
        """Those of panels and of annotations."""
        for panel in self.panels():
            for target in panel.get("targets", ()):
                yield Asked(f"{panel['title']} {target['refId']}", target["expr"])
        for annotation in self.json["annotations"]["list"]:
            yield Asked(f"annotation {annotation['name']}", annotation["target"]["expr"])

    def variables(self) -> Iterator[Variable]:
        """Those that are filled by a query, in their order."""
        for variable in self.json["templating"]["list"]:
            if variable["type"] != "query":
                continue
            found = _LABEL_VALUES.fullmatch(variable["query"])
            if found is None:
                raise ValueError(f"{variable['name']}: {variable['query']} is no label_values")
            yield Variable(variable["name"], found["label"], found["selector"] or "")

    def filled(self, expr: str) -> str:
        """`expr` with the variables replaced; raises UnknownVariableError."""

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            if name not in self.values:
                raise UnknownVariableError(f"${name} in {expr}")
            return self.values[name]

        return _VARIABLE.sub(value, expr)


def read(path: Path) -> Shown:
    """The dashboard of a file."""
    return Shown(json.loads(path.read_text(encoding="utf-8")))


def _panels(panels: list[Json]) -> Iterator[Json]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels") or [])
