"""File, environment and flags put together: flags over environment over file over defaults.

A wrong value is noted and set aside, its default stands in, and the checks go on: one run says
everything that is wrong.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from proxy.config.findings import (
    Location,
    dotted,
    setting_path,
    unknown_key,
    unknown_variable,
    wording,
)
from proxy.config.forms import from_text
from proxy.config.model import Config, conflicts
from proxy.config.settings import FOR_THE_BUILD, PREFIX, SETTINGS, VARIABLES
from proxy.errors import ConfigError

Table = dict[str, object]


class Finding(NamedTuple):
    """Something wrong, where, and under which name its source knows it."""

    location: Location
    message: str


def load(*, file: Path | None, env: Mapping[str, str], overrides: Mapping[str, object]) -> Config:
    """Return the configuration that `file`, `env` and `overrides` make together.

    `file` is None for no file; `overrides` are the flags that were given, by dotted path. Raises
    ConfigError with everything that is wrong.
    """
    table, unreadable = ({}, None) if file is None else _read(file)
    return combine(table, env=env, overrides=overrides, unreadable=unreadable)


def combine(
    table: Mapping[str, object],
    *,
    env: Mapping[str, str],
    overrides: Mapping[str, object],
    unreadable: tuple[str, str] | None = None,
) -> Config:
    """The same for the `table` that a file holds; `unreadable` is the finding about that file."""
    merged = dict(table)
    strangers: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    ours = {name for name in env if name.startswith(PREFIX)} - {FOR_THE_BUILD}
    for variable in sorted(ours):
        setting = VARIABLES.get(variable)
        if setting is None:
            strangers.append((variable, unknown_variable(variable)))
        else:
            _put(merged, setting.path, from_text(setting.kind, env[variable]))
            names[setting.path] = variable
    for path, value in overrides.items():
        if path in SETTINGS:
            _put(merged, path, value)
            names.pop(path, None)
        else:
            strangers.append((path, unknown_key(tuple(path.split(".")))))

    config, found = _validated(merged)
    if unreadable is None:
        found += _conflicting(config, found)
    findings = [_named(finding, names) for finding in sorted(found, key=_position)]
    findings = [*([unreadable] if unreadable else []), *findings, *strangers]
    if findings:
        raise ConfigError(findings)
    return config


def _read(file: Path) -> tuple[Table, tuple[str, str] | None]:
    """The table in `file`, or the finding about it."""
    try:
        content = file.read_bytes()
        text = content.decode("utf-8-sig")
        return tomllib.loads(text), None
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"line {line}: is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        message = _syntax(str(error), text)
    except (ValueError, RecursionError):
        # A name with a NUL, an integer of over 4,300 digits, brackets in brackets in brackets.
        message = "cannot be read: a name, a number or a nesting is too much for TOML"
    return {}, (str(file), message)


def _syntax(message: str, text: str) -> str:
    """Tomllib's `message`, with the place in front."""
    what, _, where = message.removesuffix(")").rpartition(" (at ")
    if where == "end of document":
        *before, last = text.split("\n")
        where = f"line {len(before) + 1}, column {len(last) + 1}"
    return f"{where}: {what[:1].lower()}{what[1:]}"


def _put(table: Table, path: str, value: object) -> None:
    """Set `path`; where something else stands in place of its section, that is left to be found."""
    *parents, name = path.split(".")
    for parent in parents:
        inner = table.get(parent, {})
        if not isinstance(inner, dict):
            return
        table[parent] = table = dict(inner)
    table[name] = value


def _standing(table: Table, location: Location) -> Location:
    """As much of `location` as there is in `table`: an entry may come from a file it names."""
    inner: object = table
    for depth, part in enumerate(location):
        if not isinstance(inner, dict) or part not in inner:
            return location[:depth]
        inner = inner[part]
    return location


def _drop(table: Table, location: Location) -> None:
    *parents, last = map(str, location)
    for parent in parents:
        inner = table[parent]
        assert isinstance(inner, dict)  # noqa: S101 - `_standing` went this way
        table[parent] = table = dict(inner)
    del table[last]


def _validated(table: Table) -> tuple[Config, list[Finding]]:
    """The configuration of what is right in `table`, and what is not."""
    found: list[Finding] = []
    while True:
        try:
            return Config.model_validate(table), found
        except ValidationError as error:
            wrong = [(each, _located(each["loc"])) for each in error.errors(include_url=False)]
        found += [Finding(location, wording(each, location)) for each, location in wrong]
        for place in {_standing(table, location) for _, location in wrong}:
            _drop(table, place)


def _located(location: Location) -> Location:
    """Without what pydantic adds below an entry to tell its name from its value."""
    path = setting_path(location)
    return location if path is None else location[: path.count(".") + 2]


def _conflicting(config: Config, found: Iterable[Finding]) -> list[Finding]:
    """What is wrong across keys that are right one by one."""
    wrong = [finding.location for finding in found]
    return [
        Finding(tuple(conflict.paths[0].split(".")), conflict.message)
        for conflict in conflicts(config)
        if not any(
            _one_holds_the_other(tuple(path.split(".")), location)
            for path in conflict.paths
            for location in wrong
        )
    ]


def _one_holds_the_other(one: Location, other: Location) -> bool:
    return all(part == its for part, its in zip(one, other, strict=False))


_SECTIONS = list(Config.model_fields)
_ORDER = list(SETTINGS)


def _position(finding: Finding) -> tuple[int, int]:
    """By section, then by key; what is unknown comes last in its place."""
    section = str(finding.location[0])
    path = setting_path(finding.location)
    return (
        _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS),
        _ORDER.index(path) if path is not None else len(_ORDER),
    )


def _named(finding: Finding, names: Mapping[str, str]) -> tuple[str, str]:
    """The finding under the name of the variable where its value came from one."""
    path = setting_path(finding.location)
    variable = None if path is None else names.get(path)
    if path is None or variable is None:
        return dotted(finding.location), finding.message
    rest = dotted(finding.location).removeprefix(path).removeprefix(".")
    return variable, f"{rest}: {finding.message}" if rest else finding.message
