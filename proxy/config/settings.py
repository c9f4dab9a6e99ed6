"""The keys as a list, read off the model: for the environment, the messages and the docs."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pydantic.fields import FieldInfo

from proxy.config.forms import Kind, toml
from proxy.config.model import Config, Section

PREFIX: Final = "SPECSWITCH_"

FOR_THE_BUILD: Final = "SPECSWITCH_COMPILE"
"""Read by hatch_build.py; an image in which it stayed set must start."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key."""

    path: str
    """Dotted, as in `limits.queue_size`."""
    kind: Kind
    default: str
    """As the file writes it."""
    doc: str

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.path.upper().replace(".", "_")


def describe() -> tuple[Setting, ...]:
    """Every key, in the order of the sections."""
    return tuple(_settings(Config, ""))


def _settings(section: type[Section], prefix: str) -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _settings(inner, f"{prefix}{name}.")
        else:
            yield _setting(f"{prefix}{name}", name, field, section)


def _setting(path: str, name: str, field: FieldInfo, section: type[Section]) -> Setting:
    kind = next(mark for mark in field.metadata if isinstance(mark, Kind))
    default = toml(kind, field.default)
    return Setting(path, kind, default, _doc(section, name))


def _doc(section: type[Section], name: str) -> str:
    """The sentence beside the key, or beside the key of the parent whose default it changes."""
    sections = [each for each in section.__mro__ if issubclass(each, Section)]
    fields = [each.model_fields[name] for each in sections if name in each.model_fields]
    return next(field.description for field in fields if field.description)


SETTINGS: Final = MappingProxyType({setting.path: setting for setting in describe()})
VARIABLES: Final = MappingProxyType({setting.variable: setting for setting in describe()})
