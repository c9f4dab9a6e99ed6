"""Pydantic's errors in our words: what a value must be, what it is, and never a secret."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from pydantic_core import ErrorDetails

from proxy.config.forms import form, shown
from proxy.config.settings import PREFIX, SETTINGS, VARIABLES

Location = tuple[str | int, ...]
"""A path in parts, with the index in a list as a number."""

_MUST: Final = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "mapping_type": "must be a table",
    "model_type": "must be a table",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:.16g}",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
}

_ALIKE: Final = 0.6
"""difflib's own threshold for words."""
_VARIABLES_ALIKE: Final = 0.8
"""Variables share a prefix, which makes any two of them look alike."""


def dotted(location: Location) -> str:
    """`location` as one writes it in TOML: `auth.api_keys."my key"`, `listen.admin_hosts[1]`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{_bare_or_quoted(part)}"
    return text.removeprefix(".")


def _bare_or_quoted(part: str) -> str:
    bare = part.isascii() and part.replace("-", "_").replace("_", "a").isalnum()
    return part if bare else shown(part)


def setting_path(location: Location) -> str | None:
    """The key that `location` is or lies in, None for none."""
    known = (dotted(location[:end]) for end in range(1, len(location) + 1))
    return next((path for path in known if path in SETTINGS), None)


def wording(error: ErrorDetails, location: Location) -> str:
    """What is wrong at `location`."""
    if error["type"] == "extra_forbidden":
        return unknown_key(location)
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    must = _MUST.get(error["type"])
    if must is None:
        return f"is refused: {error['msg']}"
    expected = must.format(**error.get("ctx", {})).replace("'", '"')
    return f"{expected}, is {_is(error['input'], location)}"


def _is(value: object, location: Location) -> str:
    path = setting_path(location)
    # Text where a table belongs may be a key that slipped.
    open_to_read = path is not None and not SETTINGS[path].kind.private
    return shown(value) if open_to_read else form(value)


def unknown_key(location: Location) -> str:
    """That there is no such key, and which one may have been meant."""
    *parents, name = map(str, location)
    siblings = _names_in(parents)
    meant = [".".join((*parents, near)) for near in _near(name, siblings, _ALIKE)]
    meant += [path for path in SETTINGS if path.rpartition(".")[2] == name]
    return f"unknown key; did you mean {meant[0]}?" if meant else "unknown key"


def unknown_variable(name: str) -> str:
    """That there is no such variable, and which one may have been meant."""
    words = name.removeprefix(PREFIX)
    # Its section was left out, perhaps; by letters some other may be nearer.
    near = [known for known in VARIABLES if words and known.endswith(f"_{words}")]
    near += _near(name, list(VARIABLES), _VARIABLES_ALIKE)
    return f"unknown variable; did you mean {near[0]}?" if near else "unknown variable"


def _names_in(parents: Sequence[str]) -> list[str]:
    """What may stand in the table at `parents`."""
    prefix = "".join(f"{parent}." for parent in parents)
    inside = (path.removeprefix(prefix) for path in SETTINGS if path.startswith(prefix))
    return list(dict.fromkeys(rest.partition(".")[0] for rest in inside))


def _near(name: str, names: Sequence[str], cutoff: float) -> list[str]:
    # The cost of difflib grows with the square of the length; no key is this long.
    return get_close_matches(name[:100], [each for each in names if each != name], 1, cutoff)
